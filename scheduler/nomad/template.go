package nomad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// A template adds to our jobs what a cluster needs: where they may run, how
// much they log, what a task may take besides. All that makes an attempt run
// once, prove itself and hold no secret is ours.

// What a template may say; anything else must be left out.
var (
	templateJob   = []string{"Priority", "Constraints", "Affinities", "Spreads", "UI", "TaskGroups"}
	templateGroup = []string{"Name", "Constraints", "Affinities", "Spreads", "EphemeralDisk", "Tasks"}
	templateTask  = []string{"Name", "Constraints", "Affinities", "Env", "Config", "Resources", "KillTimeout", "LogConfig"}
	// CPU and memory come from the session's limits.
	templateResources = []string{"MemoryMaxMB", "Devices", "NUMA"}
	templateConfig    = []string{"cgroup_v1_override", "cgroup_v2_override", "oom_score_adj", "denied_envvars"}
	// A job can be read by all who may read jobs, so its environment holds what
	// cannot be a secret.
	templateEnv = []string{"PATH", "TZ", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "GOMAXPROCS", "GOMEMLIMIT", "GOGC"}
)

// maxTaskLogMB bounds what the logs of one attempt may take on a node.
const maxTaskLogMB = 200

// parseTemplate reads a template, which is a job as JSON of Nomad's API, alone
// or as {"Job": …}. The error says what it must not set.
func parseTemplate(data []byte) (*api.Job, error) {
	var wrapped struct{ Job json.RawMessage }
	if json.Unmarshal(data, &wrapped) == nil && len(wrapped.Job) > 0 {
		data = wrapped.Job
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	job := &api.Job{}
	if err := dec.Decode(job); err != nil {
		return nil, fmt.Errorf("it is not a job as JSON of Nomad's API: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the job")
	}
	return job, checkTemplate(job)
}

func checkTemplate(j *api.Job) error {
	errs := []error{only("the job", *j, templateJob)}
	if p := j.Priority; p != nil && (*p < minPriority || *p > maxPrior) {
		errs = append(errs, fmt.Errorf("the Priority must be from %d to %d", minPriority, maxPrior))
	}
	if len(j.TaskGroups) > 1 {
		errs = append(errs, errors.New("a job has one group"))
	}
	for _, g := range j.TaskGroups {
		if g == nil {
			return errors.New("a group is null")
		}
		errs = append(errs, checkGroup(*g))
	}
	return errors.Join(errs...)
}

func checkGroup(g api.TaskGroup) error {
	errs := []error{only("the group", g, templateGroup)}
	if name := value(g.Name); name != "" && name != groupName {
		errs = append(errs, fmt.Errorf("the group is called %s, not %q", groupName, name))
	}
	if len(g.Tasks) > 1 {
		errs = append(errs, errors.New("a group has one task"))
	}
	for _, t := range g.Tasks {
		if t == nil {
			return errors.New("a task is null")
		}
		errs = append(errs, checkTask(*t))
	}
	return errors.Join(errs...)
}

func checkTask(t api.Task) error {
	errs := []error{only("the task", t, templateTask)}
	if t.Name != "" && t.Name != taskName {
		errs = append(errs, fmt.Errorf("the task is called %s, not %q", taskName, t.Name))
	}
	if t.Resources != nil {
		errs = append(errs, only("the task's Resources", *t.Resources, templateResources))
	}
	for key := range t.Config {
		if !slices.Contains(templateConfig, key) {
			errs = append(errs, fmt.Errorf("the task's Config must not set %s: Inspect does", key))
		}
	}
	for name, v := range t.Env {
		if err := checkEnv(name, v); err != nil {
			errs = append(errs, err)
		}
	}
	if t.KillTimeout != nil && *t.KillTimeout < 0 {
		errs = append(errs, errors.New("the task's KillTimeout is negative"))
	}
	if l := t.LogConfig; l != nil {
		files, size := valueOr(l.MaxFiles, logFiles), valueOr(l.MaxFileSizeMB, logFileMB)
		if value(l.Disabled) || l.Enabled != nil && !*l.Enabled || files < 1 || size < 1 || files > maxTaskLogMB || size > maxTaskLogMB || files*size > maxTaskLogMB {
			errs = append(errs, fmt.Errorf("the task's logs must be kept, up to %d MB in all", maxTaskLogMB))
		}
	}
	return errors.Join(errs...)
}

func checkEnv(name, v string) error {
	if !slices.Contains(templateEnv, name) {
		return fmt.Errorf("the task's Env must not set %s: a job can be read by many, so it holds nothing that could be a secret; these can be set: %s",
			name, strings.Join(templateEnv, ", "))
	}
	if u, err := url.Parse(v); strings.Contains(v, "@") || err == nil && u.User != nil {
		return fmt.Errorf("the task's Env must not have credentials in %s: a job can be read by many", name)
	}
	return nil
}

// only refuses every field of a struct that is set and not allowed.
func only(what string, of any, allowed []string) error {
	var errs []error
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		f := v.Field(i)
		empty := f.IsZero() || (f.Kind() == reflect.Slice || f.Kind() == reflect.Map) && f.Len() == 0
		if name := v.Type().Field(i).Name; !empty && !slices.Contains(allowed, name) {
			errs = append(errs, fmt.Errorf("%s must not set %s: Inspect does, or nobody may", what, name))
		}
	}
	return errors.Join(errs...)
}

// lay adds what a template says to a job of ours.
func lay(j, base *api.Job) {
	j.Priority = new(valueOr(base.Priority, *j.Priority))
	j.Constraints = slices.Concat(j.Constraints, base.Constraints)
	j.Affinities = slices.Concat(j.Affinities, base.Affinities)
	j.Spreads, j.UI = base.Spreads, base.UI
	if len(base.TaskGroups) == 0 {
		return
	}
	group, from := j.TaskGroups[0], base.TaskGroups[0]
	group.Constraints, group.Affinities, group.Spreads = from.Constraints, from.Affinities, from.Spreads
	if from.EphemeralDisk != nil {
		group.EphemeralDisk = from.EphemeralDisk
	}
	if len(from.Tasks) == 0 {
		return
	}
	task, of := group.Tasks[0], from.Tasks[0]
	task.Constraints, task.Affinities, task.Env = of.Constraints, of.Affinities, of.Env
	for key, v := range of.Config {
		task.Config[key] = v
	}
	if r := of.Resources; r != nil {
		task.Resources.MemoryMaxMB, task.Resources.Devices, task.Resources.NUMA = r.MemoryMaxMB, r.Devices, r.NUMA
	}
	if of.KillTimeout != nil {
		task.KillTimeout = of.KillTimeout
	}
	if l := of.LogConfig; l != nil {
		task.LogConfig = &api.LogConfig{MaxFiles: new(valueOr(l.MaxFiles, logFiles)), MaxFileSizeMB: new(valueOr(l.MaxFileSizeMB, logFileMB))}
	}
}

func valueOr[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
}
