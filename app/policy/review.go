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
	Head       string // of the pull request, now
	Reviews    []Review
	Requesters []int64 // everybody who had a hand in what was asked for
	// ByMachine: no person asked for the session, so that two have to agree.
	ByMachine bool
}

// IndependentReview says whether somebody who had no hand in it has approved
// the present head, and why not. The latest review of a person that is more than
// a comment counts; a dismissed one is taken back, and so is what was said of
// another head.
func IndependentReview(r Reviewed) (ok bool, words string) {
	need := 1
	if r.ByMachine {
		need = 2
	}
	latest := map[int64]Review{}
	for _, v := range slices.SortedStableFunc(slices.Values(r.Reviews), func(a, b Review) int { return a.Submitted.Compare(b.Submitted) }) {
		switch v.State {
		case "APPROVED", "CHANGES_REQUESTED", "DISMISSED":
			latest[v.User] = v
		}
	}
	var approved, against, own, old, bots, others []string
	for _, user := range slices.Sorted(maps.Keys(latest)) {
		v := latest[user]
		switch {
		case user <= 0 || v.State == "DISMISSED":
		case v.Bot || strings.HasSuffix(v.Login, "[bot]"):
			bots = append(bots, v.Login)
		case slices.Contains(r.Requesters, user):
			own = append(own, v.Login)
		case !v.Write:
			others = append(others, v.Login)
		case v.State == "CHANGES_REQUESTED":
			against = append(against, v.Login)
		case v.Commit != r.Head || r.Head == "":
			old = append(old, v.Login)
		default:
			approved = append(approved, v.Login)
		}
	}
	if len(approved) >= need && len(against) == 0 {
		return true, fmt.Sprintf("Approved by %s, who had no hand in what was asked for.", list(approved))
	}
	who := "somebody"
	if need == 2 {
		who = "two people"
	}
	out := []string{fmt.Sprintf("Before this is merged %s with write access who had no hand in what was asked for must approve the present head.", who)}
	for _, part := range []struct {
		logins []string
		words  string
	}{
		{approved, "Approved so far by %s."}, {against, "Changes are requested by %s."}, {old, "The approval of %s is of an earlier head."},
		{own, "The review of %s does not count: a requester."}, {others, "The review of %s does not count: no write access."},
		{bots, "The review of %s does not count: not a person."},
	} {
		if len(part.logins) > 0 {
			out = append(out, fmt.Sprintf(part.words, list(part.logins)))
		}
	}
	return false, strings.Join(out, " ")
}
