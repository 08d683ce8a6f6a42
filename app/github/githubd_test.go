package github

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"inspect/envs/proc"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
)

// world is the fixture GitHub with one repository of octocat's and an App in it.
type world struct {
	*githubd.Server
	t    *testing.T
	app  *App
	c    *Client
	repo Repo
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s := githubdtest.New(t, githubd.Options{AppID: 4711})
	id, err := s.AddRepository("octocat", "parcel", githubd.Seed{Private: true, Files: map[string]string{
		"README.md": "hello\n", ".inspect.yml": "version: 1\n", "go.mod": "module parcel\n", "docs/a.md": "a\n", "a#b?.txt": "odd\n",
	}})
	if err != nil {
		t.Fatal(err)
	}
	for login, level := range map[string]string{"hubot": "write", "monalisa": "triage"} {
		if err := s.SetPermission("octocat/parcel", login, level); err != nil {
			t.Fatal(err)
		}
	}
	inst, err := s.Install("octocat", "octocat/parcel")
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{
		AppID: 4711, Key: s.KeyPEM(), APIBase: s.URL(), Log: slog.New(slog.DiscardHandler),
		WriteSpacing: -1, Reads: proc.Policy{First: 1, Max: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &world{Server: s, t: t, app: a, c: a.Installation(inst), repo: Repo{ID: id, Owner: "octocat", Name: "parcel"}}
}

func (w *world) issue(t *testing.T) int {
	t.Helper()
	n, err := w.OpenIssue("octocat/parcel", "octocat", "It breaks", "Please mend it.")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReadingARepository(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	head, err := w.c.BranchHead(ctx, w.repo, "main")
	must(t, err)
	if len(head) != 40 {
		t.Errorf("head %q", head)
	}
	if _, err := w.c.BranchHead(ctx, w.repo, "no/such#branch"); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing branch: %v", err)
	}
	file, err := w.c.File(ctx, w.repo, ".inspect.yml", head)
	must(t, err)
	if string(file) != "version: 1\n" {
		t.Errorf("file %q", file)
	}
	if odd, err := w.c.File(ctx, w.repo, "a#b?.txt", head); err != nil || string(odd) != "odd\n" {
		t.Errorf("odd name: %q, %v", odd, err)
	}
	for _, path := range []string{"missing.yml", "docs"} {
		if _, err := w.c.File(ctx, w.repo, path, head); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := w.c.File(ctx, w.repo, "../secrets", head); err == nil {
		t.Error("a path upwards was read")
	}
	names, err := w.c.RootFiles(ctx, w.repo, head)
	must(t, err)
	slices.Sort(names)
	if want := []string{".inspect.yml", "README.md", "a#b?.txt", "go.mod"}; !slices.Equal(names, want) {
		t.Errorf("files %q", names)
	}
	rules, err := w.c.BranchRules(ctx, w.repo, "main")
	must(t, err)
	if !slices.ContainsFunc(rules, func(r Rule) bool { return r.Type == "pull_request" }) {
		t.Errorf("rules %+v", rules)
	}
	must(t, w.AddRule("octocat/parcel", githubd.Rule{Branch: "inspect/**", Type: "a_rule_of_tomorrow"}))
	rules, err = w.c.BranchRules(ctx, w.repo, "inspect/12-x#y")
	must(t, err)
	if len(rules) != 1 || rules[0].Type != "a_rule_of_tomorrow" {
		t.Errorf("rules of a branch to come: %+v", rules)
	}
	all, err := w.c.Repositories(ctx)
	must(t, err)
	if len(all) != 1 || all[0].Repo != w.repo || all[0].DefaultBranch != "main" || !all[0].Private {
		t.Errorf("repositories %+v", all)
	}
}

func TestPermissionsOfPeople(t *testing.T) {
	w := newWorld(t)
	for login, want := range map[string]Permission{
		"octocat":  {Level: "admin", Write: true, Read: true},
		"hubot":    {Level: "write", Write: true, Read: true},
		"monalisa": {Level: "read", Write: false, Read: true},
		"nobody":   {Level: "none"},
	} {
		p, err := w.c.Permission(ctxFor(t), w.repo, login)
		if err != nil || p.Level != want.Level || p.Write != want.Write || p.Read != want.Read {
			t.Errorf("%s: %+v, %v", login, p, err)
		}
		if want.Read && p.UserID == 0 {
			t.Errorf("%s: no id", login)
		}
	}
}

func TestTalkingOnAnIssue(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	n := w.issue(t)
	for range 2 { // 201, then 200
		must(t, w.c.ReactIssue(ctx, w.repo, n, "eyes"))
	}
	theirs, err := w.Comment("octocat/parcel", n, "monalisa", "<!-- mark -->\nI copied the marker")
	must(t, err)
	must(t, w.c.ReactComment(ctx, w.repo, theirs, "eyes"))
	if _, found, err := w.c.FindComment(ctx, w.repo, n, "<!-- mark -->"); err != nil || found {
		t.Errorf("a stranger's comment was taken for ours: %v, %v", found, err)
	}
	id, err := w.c.CreateComment(ctx, w.repo, n, "<!-- mark -->\nWorking")
	must(t, err)
	got, found, err := w.c.FindComment(ctx, w.repo, n, "<!-- mark -->")
	if err != nil || !found || got != id {
		t.Errorf("found %d, %v, %v", got, found, err)
	}
	must(t, w.c.EditComment(ctx, w.repo, id, "<!-- mark -->\nDone"))
	all, err := w.c.Comments(ctx, w.repo, n)
	must(t, err)
	if len(all) != 2 || all[0].Login != "monalisa" || !strings.HasSuffix(all[1].Body, "Done") || !all[1].Bot || all[0].Bot {
		t.Errorf("comments %+v", all)
	}
	if err := w.c.EditComment(ctx, w.repo, 999_999_999, "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("editing nothing: %v", err)
	}
	if _, err := w.Label("octocat/parcel", n, "kind/bug#1 100%", "octocat"); err != nil {
		t.Fatal(err)
	}
	must(t, w.c.RemoveLabel(ctx, w.repo, n, "kind/bug#1 100%"))
	is, err := w.Issue("octocat/parcel", n)
	must(t, err)
	if len(is.Labels) != 0 {
		t.Errorf("labels %+v", is.Labels)
	}
	must(t, w.c.RemoveLabel(ctx, w.repo, n, "kind/bug#1 100%"))
	must(t, w.Archive("octocat/parcel"))
	if _, err := w.c.CreateComment(ctx, w.repo, n, "x"); !errors.Is(err, ErrGone) {
		t.Errorf("archived: %v", err)
	}
}

func TestManyCommentsAreReadInPages(t *testing.T) {
	w := newWorld(t)
	n := w.issue(t)
	for i := range 101 {
		if _, err := w.Comment("octocat/parcel", n, "hubot", strings.Repeat("x", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	all, err := w.c.Comments(ctxFor(t), w.repo, n)
	if err != nil || len(all) != 101 {
		t.Fatalf("%d comments, %v", len(all), err)
	}
}

func TestPullRequestsAndChecks(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	sha, err := w.PushCommit("octocat/parcel", "octocat", "inspect/1-x#y", "Mend it", map[string]githubd.File{"fix.txt": {Body: "fixed\n"}})
	must(t, err)
	if got, err := w.c.Ref(ctx, w.repo, "heads/inspect/1-x#y"); err != nil || got != sha {
		t.Fatalf("ref %q, %v", got, err)
	}
	if _, found, err := w.c.FindPullRequest(ctx, w.repo, "inspect/1-x#y"); err != nil || found {
		t.Fatalf("found %v, %v", found, err)
	}
	ask := NewPullRequest{Title: "Mend it", Body: "By hand", Head: "inspect/1-x#y", Base: "main", Draft: true}
	pr, err := w.c.CreatePullRequest(ctx, w.repo, ask)
	must(t, err)
	if pr.Number == 0 || !pr.Draft || pr.HeadSHA != sha || pr.State != "open" || pr.URL == "" || pr.BaseRef != "main" {
		t.Errorf("pull request %+v", pr)
	}
	if _, err := w.c.CreatePullRequest(ctx, w.repo, ask); !errors.Is(err, ErrExists) {
		t.Errorf("a second one: %v", err)
	}
	got, found, err := w.c.FindPullRequest(ctx, w.repo, "inspect/1-x#y")
	if err != nil || !found || got != pr {
		t.Errorf("found %+v, %v, %v", got, found, err)
	}
	if _, found, err := w.c.FindPullRequest(ctx, w.repo, "inspect/1"); err != nil || found {
		t.Errorf("half a name found one: %v", err)
	}

	run := CheckRun{Name: "inspect", HeadSHA: sha, ExternalID: "s1/g1", Status: "completed", Conclusion: "success", Title: "42 pass", Summary: "all of them", DetailsURL: "http://127.0.0.1/sessions/s1"}
	for i := range 60 {
		run.Annotations = append(run.Annotations, Annotation{Path: "fix.txt", StartLine: i + 1, EndLine: i + 1, Level: "notice", Message: "m"})
	}
	id, err := w.c.CreateCheckRun(ctx, w.repo, run)
	must(t, err)
	other := run
	other.ExternalID, other.Annotations = "s2/g1", nil
	second, err := w.c.CreateCheckRun(ctx, w.repo, other)
	must(t, err)
	for external, want := range map[string]int64{"s1/g1": id, "s2/g1": second} {
		if got, found, err := w.c.FindCheckRun(ctx, w.repo, sha, external); err != nil || !found || got != want {
			t.Errorf("%s: found %d, %v, %v", external, got, found, err)
		}
	}
	if _, found, err := w.c.FindCheckRun(ctx, w.repo, sha, "s3/g1"); err != nil || found {
		t.Errorf("found %v, %v", found, err)
	}
	run.Conclusion, run.Summary, run.Annotations = "neutral", strings.Repeat("界", 60_000), nil
	must(t, w.c.UpdateCheckRun(ctx, w.repo, id, run))
	runs, err := w.CheckRuns("octocat/parcel")
	must(t, err)
	if len(runs) != 2 {
		t.Fatalf("%d check runs", len(runs))
	}
	for _, r := range w.Requests() {
		if r.FromApp() && (r.Unknown || len(r.Warnings) > 0) {
			t.Errorf("%s %s: unknown %v, fields GitHub does not know: %q", r.Method, r.Path, r.Unknown, r.Warnings)
		}
	}
}

func TestWhoWeAre(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		b, err := w.app.Bot(ctxFor(t))
		must(t, err)
		if b.ID <= 0 || b.Slug != "inspect" || b.Login != "inspect[bot]" {
			t.Errorf("bot %+v", b)
		}
	}
	if n := w.Counts().Routes["users/get-by-username"]; n != 1 {
		t.Errorf("asked %d times", n)
	}
}

func TestTokensOfTheFixture(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	a, err := w.c.ReadToken(ctx, w.repo.ID)
	must(t, err)
	b, err := w.c.PushToken(ctx, w.repo.ID)
	must(t, err)
	if a.Token == b.Token || len(a.Token) < 400 || !a.Expires.After(w.Now()) {
		t.Errorf("tokens of %d and %d bytes, until %s", len(a.Token), len(b.Token), a.Expires)
	}
	w.ExpireTokens() // behind our back: renewed once, and the write is done once
	n := w.issue(t)
	if _, err := w.c.CreateComment(ctx, w.repo, n, "hi"); err != nil {
		t.Error(err)
	}
	must(t, w.Suspend(w.c.installation, "octocat"))
	if _, err := w.c.CreateComment(ctx, w.repo, n, "hi"); !errors.Is(err, ErrSuspended) {
		t.Errorf("suspended: %v", err)
	}
	must(t, w.Unsuspend(w.c.installation, "octocat"))
	if _, err := w.c.CreateComment(ctx, w.repo, n, "hi again"); err != nil {
		t.Error(err)
	}
	must(t, w.Uninstall(w.c.installation, "octocat"))
	if _, err := w.c.PushToken(ctx, w.repo.ID); !errors.Is(err, ErrSuspended) {
		t.Errorf("uninstalled: %v", err)
	}
}

func TestRenamedRepositoryOfTheFixture(t *testing.T) {
	for _, status := range []int{301, 307} {
		w := newWorld(t)
		n := w.issue(t)
		must(t, w.RenameRepository("octocat/parcel", "box", status))
		if _, err := w.c.CreateComment(ctxFor(t), w.repo, n, "hi"); err != nil {
			t.Errorf("%d: %v", status, err)
		}
		if _, err := w.c.BranchHead(ctxFor(t), w.repo, "main"); err != nil {
			t.Errorf("%d: %v", status, err)
		}
		all, err := w.Comments("octocat/box", n)
		if err != nil || len(all) != 1 {
			t.Errorf("%d: %d comments, %v", status, len(all), err)
		}
	}
}

func TestFaultsOfTheFixture(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	n := w.issue(t)
	comments := func() int {
		all, err := w.Comments("octocat/parcel", n)
		must(t, err)
		return len(all)
	}
	for _, c := range []struct {
		kind    string
		written int
	}{{githubd.FaultLost, 1}, {githubd.FaultTruncated, 1}, {githubd.FaultCut, 0}, {githubd.FaultStatus, 0}} {
		before := comments()
		if _, err := w.AddFault(githubd.Fault{Kind: c.kind, Method: "POST", Path: "/repos/*/*/issues/*/comments"}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.CreateComment(ctx, w.repo, n, "<!-- "+c.kind+" -->"); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("%s: %v", c.kind, err)
		}
		if got := comments() - before; got != c.written {
			t.Errorf("%s: %d comments were written, want %d", c.kind, got, c.written)
		}
		_, found, err := w.c.FindComment(ctx, w.repo, n, "<!-- "+c.kind+" -->")
		if err != nil || found != (c.written == 1) {
			t.Errorf("%s: looking it up says %v, %v", c.kind, found, err)
		}
	}
	for _, f := range []githubd.Fault{
		{Kind: githubd.FaultSecondary, RetryAfter: 1},
		{Kind: githubd.FaultSecondary, Status: 429, RetryAfter: 1},
		{Kind: githubd.FaultPrimary, RetryAfter: 1},
	} {
		c := w.app.Installation(w.c.installation)
		c.pace = newPace(w.app.clock, -1, none) // each has a silence of its own
		_, err := w.AddFault(f)
		must(t, err)
		var limit *RateLimited
		if _, err := c.CreateComment(ctx, w.repo, n, "x"); !errors.As(err, &limit) {
			t.Errorf("%s %d: %v", f.Kind, f.Status, err)
		}
	}
	w.c.pace = newPace(w.app.clock, -1, none)
	if _, err := w.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 502, Count: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.BranchHead(ctx, w.repo, "main"); err != nil {
		t.Errorf("a read through two 502: %v", err)
	}
}
