package nomad

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"inspect/scheduler"
)

// facts are what Nomad says of one job.
type facts struct {
	Known   bool // there is such a job
	Stopped bool // somebody deregistered it
	Dead    bool // Nomad has done all that it will do for it
	Allocs  []*api.AllocationListStub
}

func factsOf(stub *api.JobListStub, allocs []*api.AllocationListStub) facts {
	return facts{Known: true, Stopped: stub.Stop, Dead: stub.Status == "dead", Allocs: allocs}
}

// attempt is the allocation that is the attempt: the first of its job. Nomad
// makes a second one where it gives a node up; that one is nobody's.
func (f facts) attempt() *api.AllocationListStub {
	if len(f.Allocs) == 0 {
		return nil
	}
	return slices.MinFunc(f.Allocs, func(a, b *api.AllocationListStub) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), cmp.Compare(a.CreateTime, b.CreateTime), cmp.Compare(a.ID, b.ID))
	})
}

// over says whether Nomad will do no more for an allocation. Its process may
// live on where the node is away; it is fenced by its generation.
func over(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// state says whether an attempt runs. A status is no outcome: complete and
// failed alike say no more than that it is over.
func state(f facts) scheduler.EngineState {
	a := f.attempt()
	switch {
	case !f.Known:
		return scheduler.EngineGone
	case a == nil && (f.Stopped || f.Dead):
		return scheduler.EngineGone
	case a == nil: // it waits for a node
		return scheduler.EngineRunning
	case over(a):
		return scheduler.EngineGone
	case a.ClientStatus == api.AllocClientStatusUnknown: // its node is away
		return scheduler.EngineUnknown
	}
	return scheduler.EngineRunning
}

// maxRunWords are Nomad's own for max_run_duration, after which an allocation is
// "complete" and its task was "killed".
const maxRunWords = "exceeded max_run_duration"

// why says in words why an attempt is over or not there yet. It is for the
// record: the outcome is the runner's to tell.
func why(f facts) string {
	a := f.attempt()
	switch {
	case !f.Known:
		return "Nomad knows no such job"
	case a == nil && f.Stopped:
		return "stopped before it had a node"
	case a == nil && f.Dead:
		return "Nomad gave it no node"
	case a == nil:
		return "it waits for a node"
	}
	task := a.TaskStates[taskName]
	switch {
	case a.ClientStatus == api.AllocClientStatusLost:
		return "its node was lost"
	case a.ClientStatus == api.AllocClientStatusUnknown:
		return "its node is away"
	case !over(a):
		return ""
	case strings.Contains(a.ClientDescription, maxRunWords):
		return "it took longer than its job may"
	case task == nil:
		return cmp.Or(quoteSome(a.ClientDescription), "Nomad does not say why")
	}
	return whyTask(task)
}

// whyTask reads a task's own events: an allocation's status also tells of what
// is not the task's.
func whyTask(task *api.TaskState) string {
	var exit, setup string
	killed, oom := false, false
	for _, e := range task.Events {
		switch e.Type {
		case api.TaskTerminated:
			exit = e.Details["exit_code"]
			oom = oom || e.Details["oom_killed"] == "true"
		case api.TaskKilling, api.TaskKilled:
			killed = true
		case api.TaskSetupFailure, api.TaskDriverFailure, api.TaskFailedValidation, api.TaskArtifactDownloadFailed:
			setup = cmp.Or(e.DisplayMessage, e.Type)
		}
	}
	switch {
	case oom:
		return "killed for want of memory"
	case killed:
		return "cancelled"
	case exit != "":
		return "its process ended with exit code " + quote(exit)
	case setup != "":
		return "it could not be started: " + quote(ending(setup))
	}
	return "Nomad does not say why"
}

func quoteSome(s string) string {
	if s == "" {
		return ""
	}
	return quote(s)
}

// ending is the last part of a long message, which says what went wrong; before
// it stands what was tried, with all arguments.
func ending(s string) string {
	const most = 160
	if r := []rune(s); len(r) > most {
		return "…" + string(r[len(r)-most:])
	}
	return s
}
