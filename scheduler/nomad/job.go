package nomad

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
)

const (
	basePriority          = 50 // Nomad's own default
	minPriority, maxPrior = 1, 100
	identityLife          = time.Hour // Nomad renews it at about half of it
	// A runner asked to end uploads what it has. Nodes cap it at their
	// max_kill_timeout, by default 30 s.
	killTimeout = 30 * time.Second
	diskMB      = 512 // of a task's directory: the spool and the logs
	logFiles    = 2
	logFileMB   = 5
	// A node that was lost may take as long to be found again after the session.
	lostMargin = 10 * time.Minute
)

var (
	environmentForm = regexp.MustCompile(`^[a-z0-9-]{1,100}$`)
	commitForm      = regexp.MustCompile(`^[0-9a-f]{40,64}$`)
	nodeForm        = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)
)

// job is what Nomad is asked to run for an attempt: one process, once. A node
// that is away keeps it, and nothing takes its place; whatever does so in the
// end is refused by its generation and its allocation.
// base, if any, has passed checkTemplate. limit says whether the cluster knows
// max_run_duration (since 2.0.3).
func (o Options) job(a scheduler.Attempt, base *api.Job, limit bool, now time.Time) (*api.Job, error) {
	id, err := checkAttempt(a)
	if err != nil {
		return nil, err
	}
	left := a.Deadline.Sub(now)
	if !a.Deadline.IsZero() && left < time.Second {
		return nil, fmt.Errorf("attempt %d of session %s has no time left", a.Generation, a.Session)
	}
	group := o.group(a)
	group.Disconnect.LostAfter = new(max(o.LostAfter, left+lostMargin).Round(time.Second))
	if limit && !a.Deadline.IsZero() {
		group.MaxRunDuration = new(left.Round(time.Second))
	}
	j := &api.Job{
		Region: &o.Region, Namespace: &o.Namespace, NodePool: &o.NodePool, Datacenters: o.Datacenter,
		ID: &id, Name: &id, Type: new(api.JobTypeBatch), Priority: new(basePriority),
		Constraints: []*api.Constraint{api.NewConstraint("${meta."+MetaNode+"}", api.ConstraintAttributeIsSet, "")},
		Affinities:  affinities(a),
		TaskGroups:  []*api.TaskGroup{group},
		Meta: map[string]string{
			metaSession: a.Session, metaGeneration: strconv.Itoa(a.Generation), metaRepository: a.Repository,
		},
	}
	if base != nil {
		lay(j, base)
	}
	*j.Priority = min(max(*j.Priority+a.Priority, minPriority), maxPrior)
	return j, nil
}

func (o Options) group(a scheduler.Attempt) *api.TaskGroup {
	return &api.TaskGroup{
		Name: new(groupName), Count: new(1),
		RestartPolicy:    &api.RestartPolicy{Attempts: new(0), Mode: new(api.RestartPolicyModeFail)},
		ReschedulePolicy: &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)},
		Disconnect:       &api.DisconnectStrategy{Replace: new(false)},
		EphemeralDisk:    &api.EphemeralDisk{SizeMB: new(diskMB)},
		Tasks:            []*api.Task{o.task(a)},
	}
}

func (o Options) task(a scheduler.Attempt) *api.Task {
	command, artifacts := o.Binary, []*api.TaskArtifact(nil)
	if o.Artifact.URL != "" {
		command = "${NOMAD_TASK_DIR}/inspect"
		artifacts = []*api.TaskArtifact{{
			GetterSource: &o.Artifact.URL, GetterMode: new("file"), RelativeDest: new("local/" + path.Base(command)),
			// What is an archive by its name is taken as the file that it is.
			GetterOptions: map[string]string{"checksum": o.Artifact.Checksum, "archive": "false"},
		}}
	}
	args := append([]string{"runner",
		"--control", o.ControlURL, "--session", a.Session, "--generation", strconv.Itoa(a.Generation),
		"--node-socket", o.NodeSocket, "--spool", "${NOMAD_TASK_DIR}/spool",
		"--identity-file", "${NOMAD_SECRETS_DIR}/nomad_" + identityName + ".jwt"}, o.Args...)
	return &api.Task{
		Name: taskName, Driver: driver, User: o.User, Artifacts: artifacts,
		Config: map[string]any{"command": command, "args": args},
		Resources: &api.Resources{
			CPU:      new(max(1, int(math.Round(a.CPU*float64(o.MHzPerCore))))),
			MemoryMB: new(inMiB(a.Memory) + inMiB(o.RunnerMemory)),
		},
		Identities: []*api.WorkloadIdentity{{
			Name: identityName, Audience: []string{Audience}, File: true, TTL: identityLife, ChangeMode: "noop",
		}},
		KillTimeout: new(killTimeout), KillSignal: "SIGTERM",
		LogConfig: &api.LogConfig{MaxFiles: new(logFiles), MaxFileSizeMB: new(logFileMB)},
	}
}

func inMiB(bytes int64) int { return int((bytes + mib - 1) / mib) }

// affinities prefer nodes with the snapshot, then the node that was expected.
func affinities(a scheduler.Attempt) (out []*api.Affinity) {
	if environmentForm.MatchString(a.Environment) && commitForm.MatchString(a.Commit) {
		out = append(out, api.NewAffinity("${meta."+MetaSnapshot+a.Environment+"}", "=", a.Commit, 100))
	}
	if nodeForm.MatchString(a.Node) {
		out = append(out, api.NewAffinity("${meta."+MetaNode+"}", "=", a.Node, 50))
	}
	return out
}

// ours says whether a job that was read back is what we register for an
// attempt, or another control plane of ours did.
func ours(j *api.Job, session string, generation int) bool {
	if j == nil || len(j.TaskGroups) != 1 || len(j.TaskGroups[0].Tasks) != 1 {
		return false
	}
	group := j.TaskGroups[0]
	task := group.Tasks[0]
	return value(j.Type) == api.JobTypeBatch && value(group.Name) == groupName && value(group.Count) == 1 &&
		task.Name == taskName && task.Driver == driver &&
		j.Meta[metaSession] == session && j.Meta[metaGeneration] == strconv.Itoa(generation)
}

// value of what Nomad may leave out.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
