package measure

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2027, 1, 4, 9, 0, 0, 0, time.UTC)

// at is an event of a person so many minutes after the start.
func at(minutes int, kind Kind, actor int64, sha string) Event {
	return Event{Kind: kind, Key: fmt.Sprint(minutes), At: start.Add(time.Duration(minutes) * time.Minute), Actor: actor, Login: "hubot", SHA: sha}
}

func bot(e Event) Event {
	e.Bot = true
	return e
}

const day = 24 * 60

func TestOutcome(t *testing.T) {
	opened, ready, merged := bot(at(0, Opened, 9, "a")), at(60, Ready, 2, ""), at(600, Merged, 2, "m")
	type want struct {
		minutes, rounds, pushes, fixes int
		closed, merged, reverted       bool
	}
	for name, c := range map[string]struct {
		events []Event
		want   want
	}{
		"nothing":                         {nil, want{}},
		"opened":                          {[]Event{opened}, want{}},
		"one look, soon":                  {[]Event{opened, ready, at(65, Review, 2, "a")}, want{minutes: 5, rounds: 1}},
		"one look, late":                  {[]Event{opened, ready, at(500, Review, 2, "a")}, want{minutes: 15, rounds: 1}},
		"a sitting":                       {[]Event{opened, ready, at(70, Remark, 2, ""), at(90, Remark, 2, ""), at(100, Review, 2, "a")}, want{minutes: 40, rounds: 1}},
		"two sittings":                    {[]Event{opened, ready, at(70, Review, 2, "a"), at(110, Review, 2, "a")}, want{minutes: 25, rounds: 1}},
		"two people":                      {[]Event{opened, ready, at(70, Review, 2, "a"), at(71, Review, 3, "a")}, want{minutes: 21, rounds: 1}},
		"a push between":                  {[]Event{opened, ready, at(70, Review, 2, "a"), bot(at(200, Push, 9, "b")), at(203, Review, 2, "b")}, want{minutes: 13, rounds: 2}},
		"a very long sitting":             {append([]Event{opened, ready}, sitting30(20)...), want{minutes: 120, rounds: 1}},
		"bots":                            {[]Event{opened, ready, bot(at(70, Review, 9, "a")), {Kind: Review, Key: "x", At: start, Actor: 8, Login: "ci[bot]", SHA: "a"}}, want{}},
		"merged without a review":         {[]Event{opened, ready, merged}, want{minutes: 15, merged: true}},
		"merged by a queue":               {[]Event{opened, bot(merged)}, want{merged: true}},
		"closed":                          {[]Event{opened, bot(at(70, Closed, 9, ""))}, want{closed: true}},
		"closed and opened again":         {[]Event{opened, bot(at(70, Closed, 9, "")), at(80, Reopened, 2, "")}, want{}},
		"closed, opened again and merged": {[]Event{opened, bot(at(70, Closed, 9, "")), at(80, Reopened, 2, ""), bot(merged)}, want{merged: true}},
		"closed again":                    {[]Event{opened, bot(at(70, Closed, 9, "")), at(80, Reopened, 2, ""), bot(at(90, Closed, 9, ""))}, want{closed: true}},
		"people's pushes":                 {[]Event{opened, at(10, Push, 2, "b"), bot(at(20, Push, 9, "c")), at(30, Push, 3, "d")}, want{pushes: 2}},
		"reverted":                        {[]Event{bot(merged), at(700, Reverted, 2, "")}, want{merged: true, reverted: true}},
		"fixed in time":                   {[]Event{bot(merged), at(700, Fixed, 2, ""), at(600+14*day, Fixed, 2, ""), at(800, Asked, 2, "")}, want{merged: true, fixes: 3}},
		"fixed late":                      {[]Event{bot(merged), at(601+14*day, Fixed, 2, ""), at(500, Fixed, 2, "")}, want{merged: true}},
		"fixed, never merged":             {[]Event{at(700, Fixed, 2, "")}, want{}},
	} {
		for _, order := range []string{"forwards", "backwards"} {
			if order == "backwards" {
				slices.Reverse(c.events)
			}
			o := Of(c.events)
			got := want{int(o.Review / time.Minute), o.Rounds, o.Pushes, o.Fixes, !o.Closed.IsZero(), !o.Merged.IsZero(), !o.Reverted.IsZero()}
			if got != c.want {
				t.Errorf("%s, told %s: %+v, want %+v", name, order, got, c.want)
			}
		}
	}
}

// sitting30 is a review of which an act follows every half an hour.
func sitting30(n int) (out []Event) {
	for i := range n {
		out = append(out, at(70+30*i, Review, 2, "a"))
	}
	return out
}

func TestReverts(t *testing.T) {
	sha := "0123456789abcdef0123456789abcdef01234567"
	for message, want := range map[string][]string{
		"Revert \"Add\"\n\nThis reverts commit " + sha + ".":                                      {sha},
		"Revert\n\nThis reverts commit " + sha + ", reversing\nchanges made to " + sha[1:] + "0.": {sha},
		"This reverts commit 0123456.":                                                            nil,
		"We talk of how this reverts commit " + sha:                                               nil,
	} {
		if diff := cmp.Diff(want, RevertedCommits(message)); diff != "" {
			t.Errorf("%q: %s", message, diff)
		}
	}
	for body, want := range map[string][]int{
		"Reverts octocat/hello#12":              {12},
		"Reverts Octocat/Hello#12\r\nbecause":   {12},
		"It broke.\n\nReverts #12\nReverts #13": {12, 13},
		"Reverts hubot/hello#12":                nil,
		"> Reverts octocat/hello#12":            nil,
		"Reverts octocat/hello#12 and more":     nil,
		"This Reverts octocat/hello#12":         nil,
		"Reverts octocat/hello#0":               nil,
	} {
		if diff := cmp.Diff(want, RevertedPulls(body, "octocat/hello")); diff != "" {
			t.Errorf("%q: %s", body, diff)
		}
	}
}

func TestFixes(t *testing.T) {
	for message, want := range map[string]bool{
		"Fix the sum": true, "fixes #4": true, "Hotfix: sums": true, "bugfix": true, "A regression in sums": true, "Sums were broken": true,
		"Add prefixes": false, "Fixture for sums": false, "Add a sum\n\nfix": false, "": false,
		"Merge pull request #4 from octocat/x\n\nFix the sum": true, "Merge pull request #4 from octocat/fix\n\nAdd": false,
	} {
		if got := (Commit{Message: message}).IsFix(); got != want {
			t.Errorf("%q: %v", message, got)
		}
	}
	c := Commit{Message: "Fix what #12 broke (#15)", Paths: []string{"a/go.sum", "sum.go"}}
	if !c.Names(12) || c.Names(1) || c.Names(2) {
		t.Error("what it names is not found")
	}
	if !c.Touches([]string{"x", "sum.go"}) || c.Touches([]string{"a/go.sum"}) || c.Touches(nil) {
		t.Error("what it touches is not found")
	}
}
