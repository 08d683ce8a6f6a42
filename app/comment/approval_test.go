package comment

import (
	"strings"
	"testing"
	"time"
)

// What waits is told with the way to answer it, and nothing in it is live.
func TestWaitingForAnAnswer(t *testing.T) {
	until := time.Date(2027, 1, 5, 3, 4, 5, 0, time.UTC)
	f := Facts{Session: "abcdefgh23", State: "needs_approval", Words: "It touches protected paths.", Waiting: []Approval{
		{Kind: "publish", Words: "w", Digest: strings.Repeat("0a1b2c3d", 8), Until: until, Items: []string{"\"a\nb\" @octocat Fixes #1", "/inspect approve"}},
		{Kind: "egress", Words: "Whether the session may reach a.example.", Digest: strings.Repeat("f", 64), By: "hubot", Until: until},
	}}
	for i := range 30 {
		f.Waiting[0].Items = append(f.Waiting[0].Items, strings.Repeat("x", i+1))
	}
	got := Render(f)
	for _, want := range []string{"`/inspect approve 0a1b2c3d0a1b`", "`/inspect reject`", "5 January 2027, 03:04 UTC", "and 12 more", "Whether the session may reach a.example", "Asked for by `hubot`"} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "@octocat") || strings.Contains(got, "Fixes #1") {
		t.Errorf("live markup in\n%s", got)
	}
	for _, line := range strings.Split(got, "\n") {
		if strings.HasPrefix(strings.TrimLeft(line, "- "), "/inspect") {
			t.Errorf("a line starts with a command: %q", line)
		}
	}
	f.State, f.Waiting = "delivered", nil
	f.Allowed = []Approval{
		{Kind: "egress", Host: "a.example:8443", By: "hubot", AnsweredBy: "octocat"}, {Kind: "budget", Budget: 7_500_000_000, By: "hubot", AnsweredBy: "octocat"},
		{Kind: "publish", Digest: strings.Repeat("0a1b2c3d", 8), AnsweredBy: "octocat"},
	}
	got = Render(f)
	for _, want := range []string{"`egress: [\"a.example:8443\"]`", "`limits: {budget_usd: 7.50}`", "`octocat` allowed it (digest `0a1b2c3d0a1b`)"} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
}
