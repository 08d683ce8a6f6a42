// Package measure defines what is counted of a pull request that a session
// delivered: its fate, the minutes people spent on reviewing it, and what had to
// be put right afterwards. In come the things that happened to it, in whatever
// order; out go numbers. The definitions are in docs/metrics.md, with what they
// leave out. It is pure.
package measure

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind of a thing that happened.
type Kind string

// Kinds.
const (
	Opened   Kind = "opened"
	Ready    Kind = "ready"     // no draft any more, or somebody was asked to review it
	Push     Kind = "push"      // its head moved
	Review   Kind = "review"    // somebody approved it, asked for changes or commented
	Remark   Kind = "remark"    // somebody commented on a line
	Merged   Kind = "merged"    //
	Closed   Kind = "closed"    // without a merge
	Reopened Kind = "reopened"  //
	Reverted Kind = "reverted"  // a commit or a merged pull request takes it back
	Fixed    Kind = "fixed"     // a commit that landed after it seems to put it right
	Asked    Kind = "asked for" // the issue it was made for was opened again
)

// Event is a thing that happened. Key tells it from others of its kind: told
// twice, it is still one.
type Event struct {
	Kind   Kind
	Key    string
	At     time.Time
	Actor  int64
	Login  string
	Bot    bool
	SHA    string // of a push: the new head; of a review: what was looked at; of a merge: the commit
	Before string // of a push: the old head
}

// person says whether somebody did it who can review.
func (e Event) person() bool { return e.Actor > 0 && !e.Bot && !strings.HasSuffix(e.Login, "[bot]") }

// Outcome is what is counted. Zero times: that did not happen.
type Outcome struct {
	Opened, Merged, Closed, Reverted time.Time
	MergeSHA                         string
	Review                           time.Duration // of all people together
	Rounds                           int           // heads that a person reviewed
	Pushes                           int           // by people
	Fixes                            int           // within FixedWithin of the merge
}

const (
	// FixedWithin is how long after a merge what puts it right counts as an
	// escaped defect.
	FixedWithin = 14 * 24 * time.Hour
	// pause between two acts of a person that ends a sitting.
	pause = 30 * time.Minute
	// lead is the most that counts before the first act of a sitting.
	lead = 15 * time.Minute
	// sitting is the most that one counts for.
	sitting = 2 * time.Hour
)

// Of counts.
func Of(events []Event) Outcome {
	events = slices.SortedStableFunc(slices.Values(events), func(a, b Event) int { return a.At.Compare(b.At) })
	var o Outcome
	rounds := map[string]bool{}
	for _, e := range events {
		switch e.Kind {
		case Opened:
			if o.Opened.IsZero() {
				o.Opened = e.At
			}
		case Merged:
			o.Merged, o.MergeSHA, o.Closed = e.At, e.SHA, time.Time{}
		case Closed:
			if o.Merged.IsZero() {
				o.Closed = e.At
			}
		case Reopened:
			o.Closed = time.Time{}
		case Reverted:
			if o.Reverted.IsZero() {
				o.Reverted = e.At
			}
		case Review:
			if e.person() && e.SHA != "" {
				rounds[e.SHA] = true
			}
		case Push:
			if e.person() {
				o.Pushes++
			}
		}
	}
	for _, e := range events {
		if (e.Kind == Fixed || e.Kind == Asked) && !o.Merged.IsZero() && e.At.After(o.Merged) && !e.At.After(o.Merged.Add(FixedWithin)) {
			o.Fixes++
		}
	}
	o.Rounds, o.Review = len(rounds), review(events)
	return o
}

// review adds up people's sittings over a pull request.
func review(events []Event) (total time.Duration) {
	type sat struct{ from, to time.Time }
	open := map[int64]*sat{}
	var there time.Time // since when there is something new to look at
	end := func(s *sat) { total += min(s.to.Sub(s.from), sitting) }
	for _, e := range events {
		switch e.Kind {
		case Opened, Ready, Push:
			there = e.At
		}
		act := e.Kind == Review || e.Kind == Remark || e.Kind == Merged || e.Kind == Closed
		if !act || !e.person() {
			continue
		}
		s := open[e.Actor]
		if s != nil && e.At.Sub(s.to) <= pause {
			s.to = e.At
			continue
		}
		from := e.At.Add(-lead)
		if there.After(from) {
			from = there
		}
		if s != nil {
			if s.to.After(from) {
				from = s.to
			}
			end(s)
		}
		open[e.Actor] = &sat{from, e.At}
	}
	for _, s := range open {
		end(s)
	}
	return total
}

var (
	revertsCommit = regexp.MustCompile(`(?m)^\s*This reverts commit ([0-9a-f]{40}(?:[0-9a-f]{24})?)\b`)
	revertsPull   = regexp.MustCompile(`(?mi)^\s*Reverts\s+(?:([A-Za-z0-9_-]+/[A-Za-z0-9._-]+))?#([1-9][0-9]{0,8})\s*$`)
	fixes         = regexp.MustCompile(`(?i)\b(?:hot|bug)?fix(?:e[sd]|ing)?\b|\b(?:bug|regression|broken)\b`)
	mentions      = regexp.MustCompile(`#([1-9][0-9]{0,8})\b`)
)

// RevertedCommits are the commits that a commit message says it takes back, as
// git writes it.
func RevertedCommits(message string) (shas []string) {
	for _, m := range revertsCommit.FindAllStringSubmatch(message, 20) {
		shas = append(shas, m[1])
	}
	return shas
}

// RevertedPulls are the pull requests of a repository (owner/name) that a pull
// request's text says it takes back, as GitHub's button writes it.
func RevertedPulls(body, ownerName string) (numbers []int) {
	for _, m := range revertsPull.FindAllStringSubmatch(strings.ReplaceAll(body, "\r", ""), 20) {
		if n, err := strconv.Atoi(m[2]); err == nil && (m[1] == "" || strings.EqualFold(m[1], ownerName)) {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// Commit that landed on a branch.
type Commit struct {
	SHA     string
	Message string
	At      time.Time
	Paths   []string // files it changed; nil: not known
}

// Subject is what a commit says it does: its first line, or that of the pull
// request it merges.
func (c Commit) Subject() string {
	first, rest, _ := strings.Cut(c.Message, "\n")
	if strings.HasPrefix(first, "Merge pull request #") {
		first, _, _ = strings.Cut(strings.TrimLeft(rest, "\r\n"), "\n")
	}
	return strings.TrimSpace(first)
}

// IsFix says whether a commit says that it puts something right.
func (c Commit) IsFix() bool { return fixes.MatchString(c.Subject()) }

// Names says whether a commit that says so names a pull request.
func (c Commit) Names(pull int) bool {
	for _, m := range mentions.FindAllStringSubmatch(c.Message, 50) {
		if m[1] == strconv.Itoa(pull) {
			return true
		}
	}
	return false
}

// common are files that many changes touch and that tell nothing.
var common = []string{"go.sum", "package-lock.json", "yarn.lock", "pnpm-lock.yaml", "Cargo.lock", "poetry.lock", "uv.lock", "Gemfile.lock", "composer.lock", "CHANGELOG.md"}

// Touches says whether a commit changed one of some files. Lock files and change
// logs tell nothing.
func (c Commit) Touches(paths []string) bool {
	return slices.ContainsFunc(c.Paths, func(p string) bool {
		return slices.Contains(paths, p) && !slices.Contains(common, path.Base(p))
	})
}
