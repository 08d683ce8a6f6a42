package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"inspect/envs/harness"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// ending is everything the outcome of the agent's work is decided from.
type ending struct {
	label    string // of the agent
	result   harness.Result
	why      cut
	stop     *wire.StopDirective // if why is cutStop
	end      wire.SandboxEnd     // of the agent's sandbox
	limits   wire.Limits
	workedBy time.Duration // until the deadline
	money    string        // what is spent of the budget, in brackets; empty: not known
	taken    taken
}

// decide is what came of the agent's work. An outcome without a kind means
// that there is a result to be verified.
func decide(e ending) wire.Outcome {
	agent := "The agent"
	if e.label != "" {
		agent += " (" + e.label + ")"
	}
	e.end.DiskFull = e.end.DiskFull || e.taken.diskFull
	reason, limit := limitOf(e.end, e.limits)
	if e.result.OK() && !e.taken.diskFull {
		limit = ""
	}
	fail := func(kind, reason, words string) wire.Outcome {
		if limit != "" && kind != wire.OutcomeStopped {
			words += " " + limit
		}
		if e.taken.words != "" {
			words += " " + e.taken.words
		}
		switch {
		case e.taken.err != nil:
			words += " Its work could not be taken."
		case e.taken.tip != "":
			words += " Its work is kept."
		}
		return wire.Outcome{Kind: kind, Reason: reason, Words: words}
	}
	switch {
	case e.why == cutStop:
		o := fail(wire.OutcomeStopped, "stopped", "The session was stopped.")
		if e.stop != nil && e.stop.Reason != "" {
			o.Reason = e.stop.Reason
		}
		return o

	case e.why == cutDeadline:
		o := fail(wire.OutcomeTimedOut, "", fmt.Sprintf("%s was not done within %s; nothing was verified.", agent, e.workedBy.Round(time.Second)))
		if limit != "" {
			o.Reason = reason
		}
		return o

	case e.why == cutBudget:
		return fail(wire.OutcomeOverBudget, "budget", fmt.Sprintf("%s was not done when what is left of the budget for model calls%s did not pay for a further one; nothing was verified.", agent, e.money))

	case e.result.Missing != "":
		return fail(wire.OutcomeFailed, wire.ReasonHarnessMissing, fmt.Sprintf("%s could not be started: %s.", agent, trimDot(e.result.Missing)))

	case e.result.Failed != "" && e.why == cutNot && limit == "":
		return fail(wire.OutcomeFailed, wire.ReasonModel, fmt.Sprintf("%s could not go on: %s.", agent, trimDot(e.result.Failed)))

	case e.result.Err != nil && limit != "" && e.why == cutNot:
		return fail(wire.OutcomeFailed, reason, agent+" was ended with its sandbox.")

	case e.result.Err != nil && e.why == cutNot:
		return fail(wire.OutcomeInfrastructure, "sandbox_lost", fmt.Sprintf("%s lost its sandbox: %v.", agent, e.result.Err))

	case !e.result.OK() && e.why == cutNot:
		how := fmt.Sprintf("%s ended with exit status %d.", agent, e.result.ExitCode)
		if e.result.Signal != "" {
			how = fmt.Sprintf("%s was ended by %s.", agent, e.result.Signal)
		}
		if limit == "" {
			reason = wire.ReasonHarnessExit
		}
		return fail(wire.OutcomeFailed, reason, how)

	case e.taken.err != nil:
		return wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: "take", Words: fmt.Sprintf("The agent's work could not be taken: %v.", e.taken.err)}

	case e.taken.partial && e.taken.diskFull:
		return fail(wire.OutcomeFailed, reason, "Not all of the agent's work could be taken.")

	case e.taken.partial:
		return fail(wire.OutcomeInfrastructure, "take", "The sandbox was lost while the agent's work was taken, so that only a part of it is there.")

	case e.taken.reason != "":
		return wire.Outcome{Kind: wire.OutcomeFailed, Reason: e.taken.reason, Words: e.taken.words}

	case e.taken.tip == "":
		return wire.Outcome{Kind: wire.OutcomeNoChange, Words: agent + " changed nothing."}
	}
	return wire.Outcome{}
}

// limitOf says which limit a sandbox ran into, if it did, as a reason and in words.
func limitOf(end wire.SandboxEnd, l wire.Limits) (reason, words string) {
	switch {
	case end.DiskFull:
		return wire.ReasonDisk, "The disk limit" + mib(l.DiskBytes) + " was reached."
	case end.OOM > 0:
		return wire.ReasonMemory, "The memory limit" + mib(l.MemoryBytes) + " was reached."
	case end.PidsHit > 0:
		n := ""
		if l.Pids > 0 {
			n = fmt.Sprintf(" of %d", l.Pids)
		}
		return wire.ReasonPids, "The limit" + n + " for processes was reached."
	}
	return "", ""
}

// withoutStore is an outcome in the light of trouble with the node's store of
// snapshots: what did not succeed need not have failed by itself, unless it ran
// into a limit of its own.
func withoutStore(o wire.Outcome, trouble string) wire.Outcome {
	switch o.Kind {
	case wire.OutcomeStopped:
		return o
	case wire.OutcomeFailed:
		if o.Reason == wire.ReasonDisk || o.Reason == wire.ReasonMemory || o.Reason == wire.ReasonPids {
			return o
		}
	case wire.OutcomeVerified:
		if failures(o.Results) == 0 {
			return o
		}
	}
	o.Words = sentence(errors.New(trouble)) + " " + o.Words
	switch o.Kind {
	case wire.OutcomeFailed, wire.OutcomeVerified, wire.OutcomeNoChange:
		o.Kind, o.Reason = wire.OutcomeInfrastructure, wire.ReasonNodeStore
	}
	return o
}

// failures counts commands that said no the last time they were run.
func failures(results []wire.VerifyResult) (n int) {
	for _, r := range results {
		if last := len(r.Again); last > 0 {
			r = r.Again[last-1]
		}
		if r.ExitCode != 0 {
			n++
		}
	}
	return n
}

func mib(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" of %d MiB", n>>20)
}

func trimDot(s string) string {
	for len(s) > 0 && (s[len(s)-1] == '.' || s[len(s)-1] == '\n' || s[len(s)-1] == ' ') {
		s = s[:len(s)-1]
	}
	return s
}

// trouble is the outcome of a step of ours that did not succeed. reason is what
// it is called when nothing more is known.
func (a *attempt) trouble(ctx context.Context, reason string, err error) wire.Outcome {
	var we *wire.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopped):
		o := wire.Outcome{Kind: wire.OutcomeStopped, Reason: "stopped", Words: "The session was stopped."}
		if stop, _ := a.orders.stopped(); stop != nil && stop.Reason != "" {
			o.Reason = stop.Reason
		}
		return o
	case errors.Is(cause, errDeadline):
		return wire.Outcome{Kind: wire.OutcomeTimedOut, Words: fmt.Sprintf("The attempt's time was over: %v.", err)}
	case errors.As(err, new(errSecret)):
		return wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonSecret, Words: sentence(err)}
	case errors.As(err, &we) && we.Code == "not_found":
		reason = wire.ReasonSnapshotMissing
	case errors.Is(err, stream.ErrEnded):
		reason = "sandbox_lost"
	}
	return wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: reason, Words: sentence(err)}
}

// sentence makes an error a sentence for people.
func sentence(err error) string {
	s := trimDot(err.Error())
	if s == "" {
		return "Something failed without saying why."
	}
	if c := s[0]; c >= 'a' && c <= 'z' {
		s = string(c-'a'+'A') + s[1:]
	}
	return s + "."
}

// afterVerify is the outcome once verification has run.
func (a *attempt) afterVerify(ctx context.Context, v verified) wire.Outcome {
	o := wire.Outcome{Kind: wire.OutcomeVerified, Tree: v.tree, Results: v.results, Base: v.base, BaseTests: v.baseTests}
	failedOnes := failures(v.results)
	last := ""
	if n := len(v.results); n > 0 {
		last = v.results[n-1].Name
	}
	switch {
	case v.died:
		reason, words := limitOf(v.end, a.spec.Limits)
		o.Kind, o.Reason = wire.OutcomeFailed, reason
		o.Words = fmt.Sprintf("The verification command %q ended its sandbox. %s", last, words)
		if reason == "" {
			o.Kind, o.Reason = wire.OutcomeInfrastructure, "sandbox_lost"
			o.Words = fmt.Sprintf("The sandbox was lost while the verification command %q ran.", last)
		}
	case v.late != "":
		t := a.trouble(ctx, "", fmt.Errorf("the verification command %q was not over", v.late))
		o.Kind, o.Reason, o.Words = t.Kind, t.Reason, t.Words
	case len(v.results) == 0:
		o.Words = "The repository names no verification command."
	case failedOnes > 0:
		o.Words = fmt.Sprintf("%d of %d verification commands failed.", failedOnes, len(v.results))
	default:
		o.Words = fmt.Sprintf("%d of %d verification commands passed.", len(v.results), len(v.results))
	}
	return o
}
