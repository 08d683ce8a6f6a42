package demo

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/fixtures/githubd"
)

// A conversation on one pull request: a request, one more while its agent works,
// an approval of what it may not push by itself, and a second session that a push
// overtakes.
func TestConversationOnAPullRequest(t *testing.T) {
	const repo = octocat + "/talk"
	files := small("--delay", "5s")
	files[".inspect.yml"] += "publish: {protected: [price.txt]}\n"
	s := openStage(t, map[string]map[string]string{"talk": files})
	s.github.SetAppPermissions(map[string]string{
		"metadata": "read", "contents": "write", "issues": "write", "pull_requests": "write", "checks": "write", "actions": "read", "merge_queues": "read",
	}, []string{"issues", "issue_comment", "pull_request"})
	ctx := patienceOf(t, 2*time.Minute)
	if _, err := s.pages.awaitSnapshot(ctx); err != nil {
		t.Fatal(err)
	}
	push := func(text string) string {
		t.Helper()
		sha, err := s.github.PushCommit(repo, octocat, "topic", "Begin", map[string]githubd.File{"notes.txt": {Body: text}})
		if err != nil {
			t.Fatal(err)
		}
		return sha
	}
	push("to do\n")
	number, err := s.github.OpenPullRequest(repo, octocat, "topic", "main", "Prices", "They are too high.", false)
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		s.github.Advance(time.Second) // GitHub tells seconds: younger than what was before
		if _, err := s.github.Comment(repo, number, octocat, text); err != nil {
			t.Fatal(err)
		}
	}
	in := func(state string) func(sessionView) bool {
		return func(v sessionView) bool { return v.State == state || v.Terminal }
	}
	ours := func() (out []string) {
		t.Helper()
		all, err := s.github.Comments(repo, number)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if strings.HasPrefix(c.Body, "<!-- inspect:") {
				out = append(out, c.Body)
			}
		}
		return out
	}

	say("/inspect let it cost 10")
	first := s.of(ctx, "talk", number)
	s.until(ctx, first, "working", in("working"))
	say("/inspect and say why")
	if v := s.until(ctx, first, "waiting for an answer", in("needs_approval")); v.State != "needs_approval" {
		t.Fatalf("%s (%s: %s)", v.State, v.Reason, v.Words)
	}
	if told := s.events(first); !strings.Contains(told, "and say why") {
		t.Errorf("the agent was not told of the second request:\n%s", told)
	}
	if n := len(pullsOf(t, s.github, "talk")); n != 1 {
		t.Errorf("%d pull requests before anybody approved", n)
	}
	say("/inspect approve")
	if v := s.until(ctx, first, "over", over); v.State != "delivered" {
		t.Fatalf("%s (%s: %s)", v.State, v.Reason, v.Words)
	}
	pulls := pullsOf(t, s.github, "talk")
	if len(pulls) != 2 {
		t.Fatalf("%d pull requests", len(pulls))
	}
	for _, p := range pulls {
		if p.Number != number && (p.BaseRef != "topic" || !p.Draft) {
			t.Errorf("the result is against %s, draft: %v", p.BaseRef, p.Draft)
		}
	}

	s.github.Advance(2 * time.Second)
	push("another thing to do\n")
	s.github.Advance(2 * time.Second)
	say("/inspect once more")
	var second string
	err = await(ctx, "no second session", nil, func() (bool, error) {
		var all []listed
		if err := s.pages.get(ctx, "/sessions.json", &all); err != nil {
			return false, err
		}
		for _, l := range all {
			if l.Issue == number && l.Session != first {
				second = l.Session
			}
		}
		return second != "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.until(ctx, second, "working", in("working"))
	now := push("and another\n")
	v := s.until(ctx, second, "over", over)
	if v.State != "stopped" || v.Reason != "superseded" || !strings.Contains(v.Words, fmt.Sprintf("%.12s", now)) {
		t.Errorf("%s (%s: %s), want it to be superseded by %.12s", v.State, v.Reason, v.Words, now)
	}
	if got := ours(); len(got) != 2 || !strings.Contains(got[0], "draft pull request") || !strings.Contains(got[1], "superseded") {
		t.Errorf("what was said: %q", got)
	}
	if n := len(pullsOf(t, s.github, "talk")); n != 2 {
		t.Errorf("%d pull requests at the end", n)
	}
	onlyAllowed(t, s.github)
}
