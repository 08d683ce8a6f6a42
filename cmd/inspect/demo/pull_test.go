package demo

import (
	"testing"
	"time"

	"inspect/fixtures/githubd"
)

// A request on a pull request that is not ours: its head is worked on, and the
// result is a draft against its branch, with the success on its own head; the one
// asked about is not judged by it.
func TestRequestOnAPullRequest(t *testing.T) {
	const repo = octocat + "/stacked"
	s := openStage(t, map[string]map[string]string{"stacked": small()})
	ctx := patienceOf(t, time.Minute)
	if _, err := s.pages.awaitSnapshot(ctx); err != nil {
		t.Fatal(err)
	}
	head, err := s.github.PushCommit(repo, octocat, "topic", "Begin", map[string]githubd.File{"notes.txt": {Body: "to do\n"}})
	if err != nil {
		t.Fatal(err)
	}
	number, err := s.github.OpenPullRequest(repo, octocat, "topic", "main", "Prices", "They are too high.", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.github.Comment(repo, number, octocat, "Nearly there.\n\n/inspect let it cost 10\n"); err != nil {
		t.Fatal(err)
	}
	v := s.until(ctx, s.of(ctx, "stacked", number), "over", over)
	if v.State != "delivered" {
		t.Fatalf("%s: %s", v.State, v.Words)
	}
	pulls, err := s.github.PullRequests(repo)
	if err != nil {
		t.Fatal(err)
	}
	concluded := map[string]string{head: "neutral"}
	for _, p := range pulls {
		switch {
		case p.Number == number && p.HeadSHA != head:
			t.Errorf("the branch that is not ours moved to %s", p.HeadSHA)
		case p.Number != number:
			concluded[p.HeadSHA] = "success"
			if p.BaseRef != "topic" || !p.Draft {
				t.Errorf("the result is against %s, draft: %v", p.BaseRef, p.Draft)
			}
		}
	}
	if len(pulls) != 2 {
		t.Fatalf("%d pull requests", len(pulls))
	}
	runs, err := s.github.CheckRuns(repo)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.Name == "inspect" && r.Conclusion == concluded[r.HeadSHA] {
			delete(concluded, r.HeadSHA)
		}
	}
	for sha, want := range concluded {
		t.Errorf("no check run on %s is %s; there are %+v", sha, want, runs)
	}
	comments, err := s.github.Comments(repo, number)
	if err != nil || len(comments) != 2 {
		t.Errorf("%d comments, want the request and ours: %v", len(comments), err)
	}
}
