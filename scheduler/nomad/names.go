package nomad

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"

	"inspect/scheduler"
)

const (
	jobPrefix = "inspect-"
	groupName = "session"
	taskName  = "runner"
	driver    = "raw_exec"
	// identityName is of the identity that a runner shows; Nomad writes it to
	// nomad_NAME.jwt in the task's directory of secrets.
	identityName = "inspect"

	metaSession    = "inspect.session"
	metaGeneration = "inspect.generation"
	metaRepository = "inspect.repository"
)

var (
	jobForm    = regexp.MustCompile(`^inspect-([a-z0-9]{1,64})-g([1-9][0-9]{0,8})$`)
	sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// jobID names an attempt's job; false if the attempt cannot have one.
func jobID(session string, generation int) (string, bool) {
	id := fmt.Sprintf("%s%s-g%d", jobPrefix, session, generation)
	return id, jobForm.MatchString(id)
}

// attemptOf says whose job an id names; false if nobody's.
func attemptOf(id string) (session string, generation int, ok bool) {
	m := jobForm.FindStringSubmatch(id)
	if m == nil {
		return "", 0, false
	}
	generation, err := strconv.Atoi(m[2])
	return m[1], generation, err == nil
}

// ref is what is stored to find a job again, also after the options changed.
type ref struct {
	Job       string `json:"job"`
	Namespace string `json:"namespace"`
	Region    string `json:"region"`
}

func (o Options) ref(job string) (json.RawMessage, error) {
	return json.Marshal(ref{Job: job, Namespace: o.Namespace, Region: o.Region})
}

func readRef(stored json.RawMessage) (ref, error) {
	var r ref
	if err := json.Unmarshal(stored, &r); err != nil {
		return r, fmt.Errorf("what the attempt runs as cannot be read: %w", err)
	}
	if !jobForm.MatchString(r.Job) || r.Namespace == "" || r.Region == "" {
		return r, fmt.Errorf("what the attempt runs as cannot be read: %s", stored)
	}
	return r, nil
}

func checkAttempt(a scheduler.Attempt) (string, error) {
	id, ok := jobID(a.Session, a.Generation)
	if !ok || a.CPU < 0 || a.Memory < 0 {
		return "", fmt.Errorf("attempt %d of session %q cannot be run", a.Generation, a.Session)
	}
	return id, nil
}
