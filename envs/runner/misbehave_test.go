package runner

import (
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

// Every way in which an agent can go wrong ends in the right outcome, with its
// work kept and nothing of it running.
func TestMisbehaviour(t *testing.T) {
	for _, c := range []struct {
		name   string
		flags  []string
		kind   string
		reason string
		words  string // part of the outcome's words
		note   string // part of a note
		state  string // state.txt in the kept work; empty: there is none
		change func(*world)
	}{
		{name: "nothing", kind: wire.OutcomeNoChange, words: "changed nothing"},
		{name: "exit", kind: wire.OutcomeFailed, reason: wire.ReasonHarnessExit, words: "exit status 3"},
		{name: "exit-after", kind: wire.OutcomeFailed, reason: wire.ReasonHarnessExit, words: "Its work is kept", state: "good\n"},
		{name: "uncommitted", kind: wire.OutcomeVerified, note: "left changes uncommitted", state: "good\n"},
		{name: "lock-git", kind: wire.OutcomeVerified, state: "good\n"},
		{name: "leave-running", kind: wire.OutcomeVerified, state: "good\n"},
		{name: "noisy", kind: wire.OutcomeVerified, state: "good\n"},
		{name: "break", kind: wire.OutcomeVerified, words: "1 of 1 verification commands failed", state: "worse\n", change: func(w *world) {
			w.spec.Harness.Command = append(w.spec.Harness.Command, "--with", "worse")
		}},
		{name: "commit-elsewhere", kind: wire.OutcomeVerified, note: "branch elsewhere-1", state: "good\n"},
		{name: "commit-elsewhere", flags: []string{"--amount", "2"}, kind: wire.OutcomeFailed, reason: wire.ReasonElsewhere, words: "elsewhere-1, elsewhere-2", state: "good\n"},
		{name: "unrelated", kind: wire.OutcomeFailed, reason: wire.ReasonUnrelatedHistory, words: "does not descend", state: "good\n"},
		{name: "conflict", kind: wire.OutcomeFailed, reason: wire.ReasonConflict, words: "in state.txt", state: "<<<<<<<"},
		{name: "delete-git", kind: wire.OutcomeFailed, reason: wire.ReasonRepositoryGone, words: "were rescued", state: "good\n"},
		{name: "corrupt-git", kind: wire.OutcomeFailed, reason: wire.ReasonRepositoryGone, words: "were rescued", state: "good\n"},
		{name: "hang", kind: wire.OutcomeTimedOut, words: "not done within", state: "good\n", change: overtime("hanging")},
		{name: "hang-uncommitted", kind: wire.OutcomeTimedOut, words: "not done within", state: "good\n", change: overtime("hanging")},
		{name: "fork", kind: wire.OutcomeTimedOut, reason: wire.ReasonPids, words: "limit of 200 for processes", state: "good\n", change: overtime("a fork is refused")},
		{name: "memory", kind: wire.OutcomeFailed, reason: wire.ReasonMemory, words: "memory limit of 512 MiB", state: "good\n"},
		{name: "fill-disk", kind: wire.OutcomeFailed, reason: wire.ReasonDisk, words: "disk limit of 64 MiB", note: "did not track", state: "good\n", change: func(w *world) {
			w.node.limits.DiskBytes = 64 << 20
			w.spec.Limits.DiskBytes = 64 << 20
		}, flags: []string{"--amount", "400"}},
		{name: "missing", kind: wire.OutcomeFailed, reason: wire.ReasonHarnessMissing, words: "could not be started", change: func(w *world) {
			w.spec.Harness.Command = []string{"no-such-agent"}
		}},
	} {
		t.Run(c.name+strings.Join(c.flags, ""), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append([]string{"--mode", c.name}, c.flags...)...)
			w.spec.Limits.Pids = w.node.limits.Pids
			w.spec.Limits.MemoryBytes = w.node.limits.MemoryBytes
			if c.change != nil {
				c.change(w)
			}
			o := w.outcome()
			if o.Kind != c.kind || o.Reason != c.reason {
				t.Fatalf("outcome %s/%s (%s), want %s/%s", o.Kind, o.Reason, o.Words, c.kind, c.reason)
			}
			if !strings.Contains(o.Words, c.words) {
				t.Errorf("the words %q lack %q", o.Words, c.words)
			}
			if notes := w.control.texts(wire.EventNote); !strings.Contains(notes, c.note) {
				t.Errorf("the notes lack %q:\n%s", c.note, notes)
			}
			if c.state == "" {
				if o.Bundle != "" || o.Patch != "" {
					t.Errorf("there is a bundle %q and a patch %q", o.Bundle, o.Patch)
				}
				return
			}
			if got := w.file(w.unbundle(o.Bundle), "state.txt"); !strings.Contains(got, c.state) {
				t.Errorf("state.txt in the kept work is %q, want %q", got, c.state)
			}
			if len(w.control.artifacts[o.Patch]) == 0 {
				t.Error("there is no patch")
			}
		})
	}
}

// overtime is a change that lets the agent's time be over once it has said
// something.
func overtime(said string) func(*world) {
	return func(w *world) {
		clock := w.hurry()
		w.spec.WorkDeadline = time.Now().Add(time.Hour)
		w.spec.EndDeadline = time.Now().Add(3 * time.Hour)
		w.beside(func() {
			w.control.awaitOutput(said)
			clock.jump(50*time.Minute, 70*time.Minute)
		})
	}
}
