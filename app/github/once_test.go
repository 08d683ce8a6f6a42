package github

import (
	"context"
	"crypto/sha1" // git's, not ours
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"inspect/envs/wire"
	"inspect/fixtures/githubd"
)

// slow is a GitHub that does what it is asked, and whose answers to writes come
// too late.
type slow struct {
	http.RoundTripper
	late int // that many answers
}

func (s *slow) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil && req.Method != "GET" && s.late > 0 && !strings.HasSuffix(req.URL.Path, "/access_tokens") {
		s.late--
		_ = resp.Body.Close()
		return nil, context.DeadlineExceeded
	}
	return resp, err
}

// A wish is one effect on GitHub that is wanted.
type wish struct {
	route string // of routes.go
	want  func(ctx context.Context) error
	// ready makes what the wish is about; nil: nothing is needed.
	ready func()
	// there looks for it the way a caller does; nil: to ask again does no harm.
	there func(ctx context.Context) (bool, error)
	// count is how often GitHub has it. What is the same however often it is
	// written counts as one.
	count func() int
}

// onceWorld has one of each thing that is written to.
type onceWorld struct {
	*world
	slow     *slow
	issue    int
	ours     int64
	run      int64
	pull     int
	sha      string
	delivery int64
	push     wire.GitToken
	tree     string // of sha
	n        int    // of wishes
}

func newOnceWorld(t *testing.T) *onceWorld {
	w := &onceWorld{world: newWorld(t), slow: &slow{RoundTripper: http.DefaultTransport}}
	w.app.http = w.slow
	ctx := ctxFor(t)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(hook.Close)
	w.issue = w.world.issue(t)
	var err error
	w.ours, err = w.c.CreateComment(ctx, w.repo, w.issue, "first")
	must(t, err)
	refs, err := w.Refs("octocat/parcel")
	must(t, err)
	w.sha = refs["refs/heads/main"]
	w.run, err = w.c.CreateCheckRun(ctx, w.repo, CheckRun{Name: "inspect", HeadSHA: w.sha, ExternalID: "first", Status: "queued", Title: "t"})
	must(t, err)
	_, err = w.PushCommit("octocat/parcel", "octocat", "remarked", "x", map[string]githubd.File{"x": {Body: "x"}})
	must(t, err)
	w.pull, err = w.OpenPullRequest("octocat/parcel", "octocat", "remarked", "main", "x", "x", false)
	must(t, err)
	w.push, err = w.c.PushToken(ctx, w.repo.ID)
	must(t, err)
	w.tree = w.git("rev-parse", w.sha+"^{tree}")
	w.SetWebhookURL(hook.URL)
	w.Ping()
	must(t, w.Drain(ctx))
	for _, d := range w.Deliveries() {
		w.delivery = d.ID
	}
	if w.delivery == 0 {
		t.Fatal("nothing was delivered")
	}
	return w
}

// get asks GitHub as a person would.
func (w *onceWorld) get(path string, into any) {
	w.t.Helper()
	token, err := w.UserToken("octocat")
	must(w.t, err)
	req, err := http.NewRequestWithContext(ctxFor(w.t), "GET", w.URL()+path, nil)
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	must(w.t, err)
	defer resp.Body.Close()
	must(w.t, json.NewDecoder(resp.Body).Decode(into))
}

// git asks the repository itself; "" is an error.
func (w *onceWorld) git(args ...string) string {
	w.t.Helper()
	dir, err := w.GitDir("octocat/parcel")
	if err != nil {
		dir, err = w.GitDir("octocat/box")
	}
	must(w.t, err)
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// wishes are one for each route that writes. Each call wants something new.
func (w *onceWorld) wishes() []wish {
	w.n++
	mark := fmt.Sprintf("<!-- wish %d -->", w.n)
	comments := func() (n int) {
		all, err := w.Comments("octocat/parcel", w.issue)
		must(w.t, err)
		for _, c := range all {
			if strings.Contains(c.Body, mark) {
				n++
			}
		}
		return n
	}
	reactions := func(path string, of any) int {
		var all []any
		w.get(fmt.Sprintf("/repos/octocat/parcel/%s%d/reactions", path, of), &all)
		return len(all)
	}
	var newIssue int
	var newComment, newRemark int64
	label := fmt.Sprintf("wish/%d", w.n)
	runs := func() (n int) {
		all, err := w.CheckRuns("octocat/parcel")
		must(w.t, err)
		for _, r := range all {
			if r.ExternalID == mark {
				n++
			}
		}
		return n
	}
	branch := fmt.Sprintf("inspect/wish-%d", w.n)
	// made is 1 if git has the object with that SHA.
	made := func(sha string) int {
		if w.git("cat-file", "-t", sha) == "" {
			return 0
		}
		return 1
	}
	var unseen string // of a commit that nothing leads to
	commits := func() int {
		for _, line := range strings.Split(w.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"), "\n") {
			if sha, is := strings.CutPrefix(line, "commit "); is && strings.Contains(w.git("cat-file", "commit", sha), mark) {
				return 1
			}
		}
		return 0
	}
	at := func(branch, sha string) int {
		if w.git("rev-parse", "-q", "--verify", "refs/heads/"+branch) == sha {
			return 1
		}
		return 0
	}
	redelivered := 0
	for _, d := range w.Deliveries() {
		if d.Redelivery {
			redelivered++
		}
	}
	return []wish{
		{
			route: "POST /issues/{id}/comments", count: comments,
			want: func(ctx context.Context) error {
				_, err := w.c.CreateComment(ctx, w.repo, w.issue, mark)
				return err
			},
			there: func(ctx context.Context) (bool, error) {
				_, found, err := w.c.FindComment(ctx, w.repo, w.issue, mark)
				return found, err
			},
		},
		{
			route: "PATCH /issues/comments/{id}", count: comments,
			want: func(ctx context.Context) error { return w.c.EditComment(ctx, w.repo, w.ours, mark) },
		},
		{
			route: "POST /issues/{id}/reactions",
			ready: func() { newIssue = w.world.issue(w.t) },
			want:  func(ctx context.Context) error { return w.c.ReactIssue(ctx, w.repo, newIssue, "eyes") },
			count: func() int { return reactions("issues/", newIssue) },
		},
		{
			route: "POST /issues/comments/{id}/reactions",
			ready: func() {
				var err error
				newComment, err = w.Comment("octocat/parcel", w.issue, "hubot", "hello")
				must(w.t, err)
			},
			want:  func(ctx context.Context) error { return w.c.ReactComment(ctx, w.repo, newComment, "eyes") },
			count: func() int { return reactions("issues/comments/", newComment) },
		},
		{
			route: "POST /pulls/comments/{id}/reactions",
			ready: func() {
				var err error
				newRemark, err = w.ReviewComment("octocat/parcel", w.pull, "hubot", "x", 1, "hello")
				must(w.t, err)
			},
			want:  func(ctx context.Context) error { return w.c.ReactReviewComment(ctx, w.repo, newRemark, "eyes") },
			count: func() int { return reactions("pulls/comments/", newRemark) },
		},
		{
			route: "DELETE /issues/{id}/labels/{label}",
			ready: func() {
				_, err := w.Label("octocat/parcel", w.issue, label, "octocat")
				must(w.t, err)
			},
			want: func(ctx context.Context) error { return w.c.RemoveLabel(ctx, w.repo, w.issue, label) },
			count: func() int {
				i, err := w.Issue("octocat/parcel", w.issue)
				must(w.t, err)
				for _, l := range i.Labels {
					if l.Name == label {
						return 0
					}
				}
				return 1
			},
		},
		{
			route: "POST /check-runs", count: runs,
			want: func(ctx context.Context) error {
				_, err := w.c.CreateCheckRun(ctx, w.repo, CheckRun{Name: "inspect", HeadSHA: w.sha, ExternalID: mark, Status: "queued", Title: "t"})
				return err
			},
			there: func(ctx context.Context) (bool, error) {
				_, found, err := w.c.FindCheckRun(ctx, w.repo, w.sha, mark)
				return found, err
			},
		},
		{
			route: "PATCH /check-runs/{id}", count: runs,
			want: func(ctx context.Context) error {
				return w.c.UpdateCheckRun(ctx, w.repo, w.run, CheckRun{Name: "inspect", ExternalID: mark, Status: "in_progress", Title: "t"})
			},
		},
		{
			route: "POST /pulls",
			ready: func() {
				_, err := w.PushCommit("octocat/parcel", "octocat", branch, "x", map[string]githubd.File{"x": {Body: branch}})
				must(w.t, err)
			},
			want: func(ctx context.Context) error {
				_, err := w.c.CreatePullRequest(ctx, w.repo, NewPullRequest{Title: "x", Body: "x", Head: branch, Base: "main", Draft: true})
				return err
			},
			there: func(ctx context.Context) (bool, error) {
				_, found, err := w.c.FindPullRequest(ctx, w.repo, branch)
				return found, err
			},
			count: func() (n int) {
				all, err := w.PullRequests("octocat/parcel")
				must(w.t, err)
				for _, p := range all {
					if p.HeadRef == branch {
						n++
					}
				}
				return n
			},
		},
		{ // objects that no branch has are no effect that anybody sees
			route: "POST /git/blobs", count: func() int { return made(hash(mark)) },
			want: func(ctx context.Context) error {
				_, err := w.c.as(w.push).createBlob(ctx, w.repo, []byte(mark))
				return err
			},
		},
		{
			route: "POST /git/trees", count: func() int { return made(hash(mark + " in a tree")) },
			want: func(ctx context.Context) error {
				text := mark + " in a tree"
				_, err := w.c.as(w.push).createTree(ctx, w.repo, w.tree, []TreeEntry{{Path: "a", Mode: 0o100644, Text: &text}})
				return err
			},
		},
		{
			route: "POST /git/commits", count: commits,
			want: func(ctx context.Context) error {
				_, err := w.c.as(w.push).createCommit(ctx, w.repo, NewCommit{Message: mark, Tree: w.tree, Parent: w.sha})
				return err
			},
		},
		{
			route: "POST /git/refs", count: func() int { return at(branch, w.sha) },
			want: func(ctx context.Context) error { return w.c.PutBranch(ctx, w.repo, w.push, branch, "", w.sha) },
			there: func(ctx context.Context) (bool, error) {
				sha, err := w.c.Ref(ctx, w.repo, "heads/"+branch)
				if errors.Is(err, ErrNotFound) {
					return false, nil
				}
				return sha == w.sha, err
			},
		},
		{
			route: "PATCH /git/refs/heads/{ref...}",
			ready: func() {
				ctx := ctxFor(w.t)
				must(w.t, w.c.PutBranch(ctx, w.repo, w.push, branch, "", w.sha))
				c, err := w.c.as(w.push).createCommit(ctx, w.repo, NewCommit{Message: mark, Tree: w.tree, Parent: w.sha})
				must(w.t, err)
				unseen = c.SHA
			},
			want:  func(ctx context.Context) error { return w.c.PutBranch(ctx, w.repo, w.push, branch, w.sha, unseen) },
			count: func() int { return at(branch, unseen) },
		},
		{
			route: "POST /pulls/{id}/requested_reviewers",
			ready: func() {
				_, err := w.PushCommit("octocat/parcel", "octocat", branch, "x", map[string]githubd.File{"x": {Body: branch}})
				must(w.t, err)
				newIssue, err = w.OpenPullRequest("octocat/parcel", "octocat", branch, "main", "x", "x", true)
				must(w.t, err)
			},
			want: func(ctx context.Context) error {
				return w.c.RequestReviewers(ctx, w.repo, newIssue, []string{"hubot"}, nil)
			},
			there: func(ctx context.Context) (bool, error) {
				people, _, err := w.c.Reviewers(ctx, w.repo, newIssue)
				return slices.Contains(people, "hubot"), err
			},
			count: func() int {
				if newIssue == 0 {
					return 0
				}
				var got struct{ Users []any }
				w.get(fmt.Sprintf("/repos/octocat/parcel/pulls/%d/requested_reviewers", newIssue), &got)
				return len(got.Users)
			},
		},
		{
			route: "POST app/hook/deliveries/{id}/attempts",
			want:  func(ctx context.Context) error { return w.app.Redeliver(ctx, w.delivery) },
			count: func() int { // more than one has the same GUID, and counts once
				must(w.t, w.Drain(ctxFor(w.t)))
				n := 0
				for _, d := range w.Deliveries() {
					if d.Redelivery {
						n++
					}
				}
				return min(n-redelivered, 1)
			},
		},
	}
}

// For each route that writes and each way in which that goes wrong: what the
// client says happened is what happened, and a caller who goes by it ends with
// the effect once.
func TestEachEffectOnce(t *testing.T) {
	faults := map[string]struct {
		fault  *githubd.Fault
		late   int
		moved  int // the repository is renamed, writes are answered with this
		writes int // that may reach GitHub at most
	}{
		"nothing goes wrong":              {writes: 1},
		"502":                             {fault: &githubd.Fault{Kind: githubd.FaultStatus, Status: 502}, writes: 2},
		"503 twice":                       {fault: &githubd.Fault{Kind: githubd.FaultStatus, Status: 503, Count: 2}, writes: 3},
		"429":                             {fault: &githubd.Fault{Kind: githubd.FaultSecondary, Status: 429, RetryAfter: 2}, writes: 2},
		"429 without a word":              {fault: &githubd.Fault{Kind: githubd.FaultStatus, Status: 429}, writes: 2},
		"403 of the secondary limit":      {fault: &githubd.Fault{Kind: githubd.FaultSecondary, RetryAfter: 2}, writes: 2},
		"403, no Retry-After":             {fault: &githubd.Fault{Kind: githubd.FaultSecondary}, writes: 2},
		"403 of the hour":                 {fault: &githubd.Fault{Kind: githubd.FaultPrimary, RetryAfter: 2}, writes: 2},
		"cut before it was done":          {fault: &githubd.Fault{Kind: githubd.FaultCut}, writes: 2},
		"done, the answer lost":           {fault: &githubd.Fault{Kind: githubd.FaultLost}, writes: 2},
		"done, the answer broken off":     {fault: &githubd.Fault{Kind: githubd.FaultTruncated}, writes: 2},
		"done, the answer too late":       {late: 1, writes: 2},
		"done, the answer too late twice": {late: 2, writes: 3},
		"renamed, 301":                    {moved: 301, writes: 2},
		"renamed, 307":                    {moved: 307, writes: 2},
	}
	tried := map[string]bool{}
	for name, f := range faults {
		w := newOnceWorld(t)
		for i := range w.wishes() {
			wish := w.wishes()[i] // whose mark no other has
			tried[wish.route] = true
			t.Run(name+"/"+wish.route, func(t *testing.T) {
				w.t = t
				w.rested()
				w.slow.late = 0 // what the one before did not need
				if wish.ready != nil {
					wish.ready()
				}
				if n := wish.count(); n != 0 {
					t.Fatalf("it is there %d times before it was wanted", n)
				}
				method, path, _ := strings.Cut(wish.route, " ")
				w.slow.late = f.late
				var held *githubd.Held
				if f.fault != nil {
					fault := *f.fault
					fault.Method, fault.Path = method, faultPath(path)
					var err error
					held, err = w.AddFault(fault)
					must(t, err)
				}
				if f.moved != 0 {
					must(t, w.RenameRepository("octocat/parcel", "box", f.moved))
				}
				mark := w.Mark()
				w.until(wish, f.moved != 0)
				if f.moved != 0 {
					must(t, w.RenameRepository("octocat/box", "parcel", f.moved))
				}
				if held != nil && held.Hits() == 0 {
					t.Error("nothing went wrong")
				}
				w.ClearFaults()
				if n := wish.count(); n != 1 {
					t.Errorf("it happened %d times", n)
				}
				writes := 0
				for _, r := range w.RequestsSince(mark) {
					if r.Method == method && !strings.HasSuffix(r.Path, "/access_tokens") {
						writes++
					}
				}
				if writes > f.writes {
					t.Errorf("it was sent %d times, at most %d are needed", writes, f.writes)
				}
			})
		}
	}
	for _, r := range slices.Concat(perRepository, perApp) {
		if r.write() && !tried[r.method+" "+r.path] {
			t.Errorf("%s %s is not tried", r.method, r.path)
		}
	}
}

// rested ends every silence.
func (w *onceWorld) rested() {
	for _, c := range []*Client{w.c, w.app.self} {
		c.pace = newPace(w.app.clock, -1, none)
	}
}

// until wants something until it is there, by the rules that callers keep.
func (w *onceWorld) until(wish wish, moved bool) {
	t := w.t
	t.Helper()
	ctx := ctxFor(t)
	for range 5 {
		err := wish.want(ctx)
		var limit *RateLimited
		switch {
		case err == nil:
			return
		case errors.As(err, &limit), errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrAmbiguous):
			if !moved && wish.count() != 0 {
				t.Errorf("it happened, and the error says that it did not: %v", err)
			}
			w.rested()
		case errors.Is(err, ErrAmbiguous):
			if wish.there == nil {
				continue
			}
			found, err := wish.there(ctx)
			must(t, err)
			if found {
				return
			}
		default:
			t.Fatalf("not an error to go on from: %v", err)
		}
	}
	t.Error("it did not come about in five tries")
}

// faultPath is a route in githubd's words.
func faultPath(route string) string {
	parts := strings.Split(strings.Trim(route, "/"), "/")
	for i, p := range parts {
		if strings.HasSuffix(p, "...}") {
			parts[i] = "**"
		} else if strings.HasPrefix(p, "{") {
			parts[i] = "*"
		}
	}
	path := "/" + strings.Join(parts, "/")
	if parts[0] == "app" {
		return path
	}
	return "/repos/*/*" + path
}

// hash is the SHA that git gives a file.
func hash(content string) string {
	return fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)))
}
