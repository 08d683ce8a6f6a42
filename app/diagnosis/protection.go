package diagnosis

import (
	"fmt"
	"strings"
)

// Rule of a ruleset that applies to a branch.
type Rule struct {
	Type    string // GitHub's: "pull_request", "update", …
	Reviews int    // approving reviews that a pull_request rule wants
	Ruleset int64
	From    string // whose ruleset it is
	// Bypass is what GitHub lets the App pass over: "never", "pull_requests_only",
	// "always", "exempt", or "" where it does not say so.
	Bypass string
}

// Stands says whether a rule of this type may keep the App from the branch, so
// that it matters who may pass over it.
func Stands(kind string) bool {
	return kind == "pull_request" || kind == "update" || kind == "merge_queue"
}

// Protection is what keeps the App from a branch.
type Protection struct {
	Push  bool // the App could push to it
	Merge bool // the App could merge into it
	why   []string
}

// Protect judges the rules of a branch. classic says that branch protection, the
// older kind, is on: what it wants the App cannot see, so that it counts for
// nothing. A rule that the App may pass over, or may for all that is known,
// counts for nothing either.
//
// A rule that wants a pull request keeps the App from pushing, and if it wants an
// approving review, from merging what it opened: nobody approves their own.
func Protect(rules []Rule, classic bool) Protection {
	p := Protection{Push: true, Merge: true}
	for _, r := range rules {
		if !Stands(r.Type) {
			continue
		}
		switch r.Bypass {
		case "never":
		case "pull_requests_only":
			p.why = append(p.why, fmt.Sprintf("the App may pass over ruleset %d (%s) by a pull request", r.Ruleset, r.From))
		case "":
			p.why = append(p.why, fmt.Sprintf("GitHub does not say whether the App may pass over ruleset %d (%s)", r.Ruleset, r.From))
			continue
		default:
			p.why = append(p.why, fmt.Sprintf("the App is a bypass actor of ruleset %d (%s)", r.Ruleset, r.From))
			continue
		}
		p.Push = false
		if r.Bypass == "never" && (r.Type == "update" || r.Type == "pull_request" && r.Reviews > 0) {
			p.Merge = false
		}
	}
	if p.Merge && classic {
		p.why = append(p.why, "branch protection is on, but what it wants only administrators may see, and the App is none")
	}
	return p
}

// Safe says that the App could neither push nor merge.
func (p Protection) Safe() bool { return !p.Push && !p.Merge }

// Words says what the App could do to a branch, and why.
func (p Protection) Words(branch string) string {
	var words string
	switch {
	case p.Push:
		words = "no rule keeps the App from pushing to " + branch + " or from merging into it"
	case p.Merge:
		words = "no rule keeps the App from merging into " + branch
	default:
		return "rules keep the App from pushing to " + branch + " and from merging what it opened"
	}
	if len(p.why) > 0 {
		words += ": " + strings.Join(p.why, "; ")
	}
	return words + ". Inspect does neither, but GitHub would let it"
}

// ToProtect says what to do where a branch is not protected.
const ToProtect = "Add a ruleset for the default branch that requires a pull request with at least one approval, and leave the App out of its bypass list."

// DefaultBranch is Words as a finding. required: no session starts otherwise.
func (p Protection) DefaultBranch(branch string, required bool) Finding {
	f := Finding{OK, "protection of the default branch", p.Words(branch), ""}
	if p.Safe() {
		return f
	}
	f.Level, f.Do = Warn, ToProtect
	if required {
		f.Level, f.Words = Fail, f.Words+"; whoever runs Inspect requires it (require_protection), so that no session starts"
	}
	return f
}
