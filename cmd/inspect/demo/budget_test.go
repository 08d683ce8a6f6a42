package demo

import (
	"testing"
	"time"

	"inspect/fixtures/githubd"
)

// A session whose base is newer than the snapshot and whose issue has comments
// still costs at most 16 requests besides tokens, 7 of them writes.
func TestRequestBudgetWithDriftAndComments(t *testing.T) {
	withinBudget(t, small())
}

// So does one whose commit GitHub makes and signs.
func TestRequestBudgetOfASignedCommit(t *testing.T) {
	files := small()
	files[".inspect.yml"] += "publish: {signed: always}\n"
	withinBudget(t, files)
}

func withinBudget(t *testing.T, files map[string]string) {
	t.Helper()
	s := openStage(t, map[string]map[string]string{"drift": files})
	ctx := patienceOf(t, 2*time.Minute)
	if _, err := s.pages.awaitSnapshot(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.github.PushCommit(octocat+"/drift", octocat, "main", "Something else", map[string]githubd.File{"other.txt": {Body: "new\n"}}); err != nil {
		t.Fatal(err)
	}
	issue, err := s.github.OpenIssue(octocat+"/drift", octocat, "Too dear", "Please.")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.github.Comment(octocat+"/drift", issue, octocat, "It should cost 10."); err != nil {
		t.Fatal(err)
	}
	if err := s.github.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	mark := s.github.Mark()
	if _, err := s.github.Label(octocat+"/drift", issue, "inspect", octocat); err != nil {
		t.Fatal(err)
	}
	v := s.until(ctx, s.of(ctx, "drift", issue), "over", over)
	if v.State != "delivered" {
		t.Fatalf("%s: %s", v.State, v.Words)
	}
	c := s.github.CountsSince(mark)
	t.Logf("%d requests besides %d for tokens, %d writes", c.Total-c.Tokens, c.Tokens, c.Writes)
	if c.Total-c.Tokens > 16 || c.Writes > 7 {
		for _, r := range s.github.RequestsSince(mark) {
			t.Logf("%s %s", r.Method, r.Path)
		}
		t.Errorf("%d requests besides tokens, %d writes", c.Total-c.Tokens, c.Writes)
	}
}
