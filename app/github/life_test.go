package github

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	gh "github.com/google/go-github/v60/github"

	"inspect/fixtures/githubd"
)

// What a pull request's life is read from, against the double of GitHub.
func TestLifeOfAPullRequest(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := w.c
	push := func(login, path string) string {
		sha, err := w.PushCommit("octocat/parcel", login, "inspect/1-x", "Fix "+path, map[string]githubd.File{path: {Body: path, Mode: 0o100644}})
		ok(err)
		return sha
	}
	first := push("octocat", "a.txt")
	n, err := w.OpenPullRequest("octocat/parcel", "octocat", "inspect/1-x", "main", "x", "x", false)
	ok(err)
	second := push("hubot", "b.txt")
	ok(w.SetPermission("octocat/parcel", "monalisa", "write"))
	var lines []int64
	for range 2 {
		id, err := w.ReviewComment("octocat/parcel", n, "monalisa", "a.txt", 1, "why?")
		ok(err)
		lines = append(lines, id)
	}
	review, err := w.SubmitReview("octocat/parcel", n, "monalisa", "COMMENTED", "hm")
	ok(err)
	ok(w.ResolveThread("octocat/parcel", lines[0]))
	ok(w.EditReview("octocat/parcel", n, review, "monalisa", "hm!"))

	threads, err := c.Threads(ctx, w.repo, n)
	if err != nil || !threads.Resolved[lines[0]] || threads.Resolved[lines[1]] || len(threads.Resolved) != 2 || len(threads.Edited) != 1 || threads.Edited[review].IsZero() {
		t.Errorf("%+v %v", threads, err)
	}
	if _, err := c.Threads(ctx, w.repo, 999); !errors.Is(err, ErrNotFound) {
		t.Errorf("a pull request that is not there: %v", err)
	}
	moves, err := c.Moves(ctx, w.repo, "inspect/1-x")
	if err != nil || len(moves) != 2 || moves[0].Before != first || moves[0].After != second || moves[0].Actor.Login != "hubot" || moves[0].Actor.ID == 0 || moves[0].At.IsZero() {
		t.Errorf("%+v %v", moves, err)
	}
	paths, err := c.PullPaths(ctx, w.repo, n)
	if err != nil || !slices.Equal(paths, []string{"a.txt", "b.txt"}) {
		t.Errorf("%q %v", paths, err)
	}
	commits, err := c.Commits(ctx, w.repo, "inspect/1-x", time.Now().Add(-time.Hour))
	if err != nil || len(commits) < 2 || commits[0].SHA != second || commits[0].Message != "Fix b.txt" || commits[0].At.IsZero() {
		t.Errorf("%+v %v", commits, err)
	}
	if paths, err := c.CommitPaths(ctx, w.repo, second); err != nil || !slices.Equal(paths, []string{"b.txt"}) {
		t.Errorf("%q %v", paths, err)
	}
	if n := w.app.Counters().Writes; n != 0 {
		t.Errorf("%d of these are counted as writes", n)
	}
}

// GraphQL takes the questions of this package and nothing else.
func TestOnlyOurQuestions(t *testing.T) {
	w := newWorld(t)
	c := w.c
	mark := w.Mark()
	for _, body := range []map[string]any{
		{"query": "mutation { mergePullRequest(input: {pullRequestId: \"x\"}) { clientMutationId } }"},
		{"query": "query { viewer { login } }"},
		{"query": threadsQuestion, "variables": map[string]any{"owner": "octocat", "id": "x"}},
		{"query": threadsQuestion, "operationName": "x"},
		{"query": map[string]any{}},
	} {
		err := c.call(context.Background(), w.repo.ID, "ask something else", func(api *gh.Client) error {
			req, err := api.NewRequest("POST", w.app.bases.GraphQL, body)
			if err != nil {
				return err
			}
			_, err = api.Do(context.Background(), req, nil)
			return err
		})
		if !errors.Is(err, ErrForbidden) {
			t.Errorf("%v: %v", body, err)
		}
	}
	if n := len(w.RequestsSince(mark)); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}
