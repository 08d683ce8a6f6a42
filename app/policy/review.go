package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Review of a pull request, as GitHub has it.
type Review struct {
	User      int64
	Login     string
	Bot       bool
	State     string // "APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED"
	Commit    string // what was looked at
	Submitted time.Time
	Write     bool // the reviewer may write to the repository now
}

// Reviewed is what an independent review is decided on.
type Reviewed struct {
	Head    string // of the pull request, now
	Reviews []Review
	// Sessions are those that had a hand in it, with everybody who had a hand in
	// what was asked of each.
	Sessions [][]Requester
	// Pushers are the people who pushed what is under the head.
	Pushers []int64
	// Unknown: somebody pushed of whom nothing is known. It may be one of those
	// who approve.
	Unknown bool
	// Since is when the pull request got its present base: what was said before
	// was said of another change. Zero: it has had it from the start.
	Since time.Time
}

// Requester of a session.
type Requester struct {
	ID      int64
	Login   string
	Started bool // he asked for the session itself
}

// ByMachine says that no person asked for a session: a pipeline did, or a bot
// that may.
func ByMachine(session []Requester) bool {
	return !slices.ContainsFunc(session, func(r Requester) bool { return r.Started && !strings.HasSuffix(r.Login, "[bot]") })
}

// requester says whether somebody had a hand in it.
func (r Reviewed) requester(user int64) bool {
	return slices.Contains(r.Pushers, user) || slices.ContainsFunc(r.Sessions, func(s []Requester) bool {
		return slices.ContainsFunc(s, func(p Requester) bool { return p.ID == user })
	})
}

// Pushed is one move of a pull request's head.
type Pushed struct {
	Before, After string
	User          int64
	Bot           bool
}

// Pushers walks from a head back to what sessions pushed, and collects the people
// who pushed on top of that. own maps a commit that a session pushed to the one
// below it that still matters, "" if none does. complete is false if there is a
// head on the way of which nobody knows who pushed it.
func Pushers(head string, own map[string]string, pushes []Pushed) (people []int64, complete bool) {
	seen := map[string]bool{"": true}
	complete = true
	for todo := []string{head}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		if seen[at] || strings.Trim(at, "0") == "" {
			continue
		}
		seen[at] = true
		below, ours := own[at]
		if ours {
			todo = append(todo, below)
			continue
		}
		known := false
		for _, p := range pushes {
			if p.After != at {
				continue
			}
			known = known || p.User > 0
			todo = append(todo, p.Before)
			if p.User > 0 && !p.Bot && !slices.Contains(people, p.User) {
				people = append(people, p.User)
			}
		}
		complete = complete && known
	}
	return people, complete
}

// IndependentReview says whether somebody who had no hand in it has approved
// the present head, and why not. The latest review of a person that is more than
// a comment counts; a dismissed one is taken back, and so is what was said of
// another head or before the present base. Where no person asked for a session
// one more has to approve, and one more where nobody knows who pushed.
func IndependentReview(r Reviewed) (ok bool, words string) {
	need := 1
	machine := slices.ContainsFunc(r.Sessions, ByMachine)
	if machine {
		need++
	}
	if r.Unknown {
		need++
	}
	latest := map[int64]Review{}
	for _, v := range slices.SortedStableFunc(slices.Values(r.Reviews), func(a, b Review) int { return a.Submitted.Compare(b.Submitted) }) {
		switch v.State {
		case "APPROVED", "CHANGES_REQUESTED", "DISMISSED":
			latest[v.User] = v
		}
	}
	var approved, against, own, old, before, bots, others []string
	for _, user := range slices.Sorted(maps.Keys(latest)) {
		v := latest[user]
		switch {
		case user <= 0 || v.State == "DISMISSED":
		case v.Bot || strings.HasSuffix(v.Login, "[bot]"):
			bots = append(bots, v.Login)
		case r.requester(user):
			own = append(own, v.Login)
		case !v.Write:
			others = append(others, v.Login)
		case v.State == "CHANGES_REQUESTED":
			against = append(against, v.Login)
		case v.Commit != r.Head || r.Head == "":
			old = append(old, v.Login)
		case v.Submitted.Before(r.Since):
			before = append(before, v.Login)
		default:
			approved = append(approved, v.Login)
		}
	}
	if len(approved) >= need && len(against) == 0 {
		return true, fmt.Sprintf("Approved by %s, who had no hand in what was asked for.", list(approved))
	}
	who := []string{"", "somebody", "two people", "three people"}[need]
	out := []string{fmt.Sprintf("Before this is merged %s with write access who had no hand in what was asked for must approve the present head.", who)}
	if machine {
		out = append(out, "No person asked for the session.")
	}
	if r.Unknown {
		out = append(out, "Somebody pushed of whom nothing is known.")
	}
	for _, part := range []struct {
		logins []string
		words  string
	}{
		{approved, "Approved so far by %s."}, {against, "Changes are requested by %s."}, {old, "The approval of %s is of an earlier head."}, {before, "The approval of %s was given before the base was changed."},
		{own, "The review of %s does not count: a requester."}, {others, "The review of %s does not count: no write access."},
		{bots, "The review of %s does not count: not a person."},
	} {
		if len(part.logins) > 0 {
			out = append(out, fmt.Sprintf(part.words, list(part.logins)))
		}
	}
	return false, strings.Join(out, " ")
}
