package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Which snapshot a session is restored from is decided here, from facts alone.

// candidate is a snapshot at hand on a node that takes sessions now.
type candidate struct {
	snapshot, node, commit string
	exact                  bool          // its commit is the session's
	cold                   bool          // it was prepared for sessions of its commit alone
	newest                 time.Duration // since its commit was last seen at the head of the default branch
	room                   int64         // bytes of memory left on its node; 0: not known
	drift                  *wire.Drift   // to the session's commit; nil: not known
}

// coming are the snapshots that are being prepared.
type coming struct {
	own  bool // of the session's commit
	next bool // of the environment, to be the current one
}

// choice is what becomes of a session in the queue.
type choice struct {
	kind  choiceKind
	of    candidate // of chooseUse
	stale bool      // of chooseUse: it is older or further behind than the session wants
	why   string    // what is said of the snapshot, as the end of a sentence
}

type choiceKind int

const (
	chooseUse    choiceKind = iota // take the snapshot
	chooseWait                     // for the one that is being prepared
	chooseRefuse                   // end the session
	chooseCold                     // have one of the session's commit prepared afresh, and wait
)

// choose decides for a session that wants its snapshot so fresh. There is at
// least one candidate.
//
// A snapshot of the session's own commit is never stale: nothing newer could be
// made. One that has no commit in common with the session's is no help to it,
// whatever when_stale says.
func choose(list []candidate, r spec.Refresh, in coming) choice {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rankOf(a), rankOf(b)), cmp.Compare(commits(a), commits(b)),
			cmp.Compare(len(staleness(a, r)), len(staleness(b, r))), cmp.Compare(b.room, a.room), cmp.Compare(a.newest, b.newest))
	})
	best := list[0]
	if best.exact {
		why := "it is of the session's own commit"
		if best.cold && len(list) > 1 {
			why = "it was prepared afresh for the session's own commit: the other " + strings.Join(staleness(list[1], r), " and ")
		}
		return choice{kind: chooseUse, of: best, why: why}
	}
	stale := staleness(best, r)
	why := strings.Join(stale, " and ")
	switch {
	case len(stale) == 0:
		return choice{kind: chooseUse, of: best, why: freshWords(best, r)}
	case unrelated(best):
		if in.own {
			return choice{kind: chooseWait, why: why}
		}
		return choice{kind: chooseCold, why: why}
	case r.WhenStale == spec.StaleRefuse, r.WhenStale == spec.StaleCold:
		if in.own || in.next {
			return choice{kind: chooseWait, why: why}
		}
		if r.WhenStale == spec.StaleCold {
			return choice{kind: chooseCold, why: why}
		}
		return choice{kind: chooseRefuse, why: why}
	}
	return choice{kind: chooseUse, of: best, stale: true, why: "it " + why + ", and refresh.when_stale is use"}
}

// rankOf puts what is nearest to a session's commit first.
func rankOf(c candidate) int {
	switch {
	case c.exact:
		return 0
	case unrelated(c):
		return 3
	case c.drift == nil:
		return 2
	}
	return 1
}

func unrelated(c candidate) bool { return c.drift != nil && c.drift.Unrelated }

func commits(c candidate) int {
	if c.drift == nil {
		return 0
	}
	return c.drift.Commits
}

// staleness is in words what makes a snapshot too old for a session; nothing if
// it is fresh.
func staleness(c candidate, r spec.Refresh) (out []string) {
	if unrelated(c) {
		return []string{"has no commit in common with the session's"}
	}
	if n := commits(c); n > r.MaxDrift {
		out = append(out, fmt.Sprintf("is %s behind, more than refresh.max_drift of %d", commitWords(n), r.MaxDrift))
	}
	if c.newest > r.MaxAge {
		out = append(out, fmt.Sprintf("was last the newest %s ago, longer than refresh.max_age of %s", short(c.newest), short(r.MaxAge)))
	}
	return out
}

func freshWords(c candidate, r spec.Refresh) string {
	behind := "how far it is behind is not known"
	if c.drift != nil {
		behind = fmt.Sprintf("it is %s behind, of %d at most", commitWords(c.drift.Commits), r.MaxDrift)
		if c.drift.Behind > 0 {
			behind += fmt.Sprintf(", and has %s that the history has no more", commitWords(c.drift.Behind))
		}
	}
	return fmt.Sprintf("%s, and it was the newest %s ago, of %s at most", behind, short(c.newest), short(r.MaxAge))
}

func commitWords(n int) string {
	switch {
	case n == 1:
		return "1 commit"
	case n >= wire.MaxDrift:
		return fmt.Sprintf("%d commits or more", wire.MaxDrift)
	}
	return fmt.Sprintf("%d commits", n)
}

// short is 2h5m, not 2h5m0s.
func short(d time.Duration) string {
	if d < time.Minute {
		return d.Truncate(time.Second).String()
	}
	s := d.Truncate(time.Minute).String()
	s = strings.TrimSuffix(s, "0s")
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Taken is which snapshot an attempt was given, and why. It is stored with the
// attempt.
type Taken struct {
	Snapshot string        `json:"snapshot"`
	Node     string        `json:"node"`
	Commit   string        `json:"commit"`
	Base     string        `json:"base"`            // the session's commit
	Age      time.Duration `json:"age"`             // since it was published
	Newest   time.Duration `json:"newest"`          // since its commit was last seen at the head of the default branch
	Drift    *wire.Drift   `json:"drift,omitempty"` // from Commit to Base; nil: not known
	Stale    bool          `json:"stale,omitempty"` // more than the environment's refresh allows
	Cold     bool          `json:"cold,omitempty"`  // prepared for Base alone
	Image    string        `json:"image,omitempty"` // name@sha256:… of its root file system; empty: the node's own programs
	Why      string        `json:"why"`             // completes "taken because"
}
