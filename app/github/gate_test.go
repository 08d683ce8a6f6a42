package github

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	gh "github.com/google/go-github/v60/github"

	"inspect/checks/redact"
)

// Whatever code asks the library for, these leave nothing but an error.
func TestWhatIsNeverSent(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) { reply(w, 200, map[string]any{}) })
	c := h.client(t)
	ctx := ctxFor(t)
	yes := true
	for name, do := range map[string]func(api *gh.Client) error{
		"merge": func(api *gh.Client) error {
			_, _, err := api.PullRequests.Merge(ctx, "octocat", "hello", 1, "", nil)
			return err
		},
		"merge a branch": func(api *gh.Client) error {
			_, _, err := api.Repositories.Merge(ctx, "octocat", "hello", &gh.RepositoryMergeRequest{})
			return err
		},
		"approve": func(api *gh.Client) error {
			_, _, err := api.PullRequests.CreateReview(ctx, "octocat", "hello", 1, &gh.PullRequestReviewRequest{})
			return err
		},
		"protect": func(api *gh.Client) error {
			_, _, err := api.Repositories.UpdateBranchProtection(ctx, "octocat", "hello", "main", &gh.ProtectionRequest{})
			return err
		},
		"unprotect": func(api *gh.Client) error {
			_, err := api.Repositories.RemoveBranchProtection(ctx, "octocat", "hello", "main")
			return err
		},
		"delete a branch": func(api *gh.Client) error {
			_, err := api.Git.DeleteRef(ctx, "octocat", "hello", "heads/main")
			return err
		},
		"move a branch": func(api *gh.Client) error {
			ref := "refs/heads/main"
			_, _, err := api.Git.UpdateRef(ctx, "octocat", "hello", &gh.Reference{Ref: &ref, Object: &gh.GitObject{SHA: &sha40}}, true)
			return err
		},
		"force a branch": func(api *gh.Client) error {
			ref := "refs/heads/inspect/x"
			_, _, err := api.Git.UpdateRef(ctx, "octocat", "hello", &gh.Reference{Ref: &ref, Object: &gh.GitObject{SHA: &sha40}}, true)
			return err
		},
		"move a tag": func(api *gh.Client) error {
			req, err := api.NewRequest("PATCH", "repos/octocat/hello/git/refs/tags/v1", map[string]string{"sha": sha40})
			if err != nil {
				return err
			}
			_, err = api.Do(ctx, req, nil)
			return err
		},
		"make a tag": func(api *gh.Client) error {
			ref := "refs/tags/v1"
			_, _, err := api.Git.CreateRef(ctx, "octocat", "hello", &gh.Reference{Ref: &ref, Object: &gh.GitObject{SHA: &sha40}})
			return err
		},
		"make a commit in somebody's name": func(api *gh.Client) error {
			req, err := api.NewRequest("POST", "repos/octocat/hello/git/commits", map[string]any{
				"message": "x", "tree": sha40, "parents": []string{sha40}, "author": map[string]string{"name": "x", "email": "x"},
			})
			if err != nil {
				return err
			}
			_, err = api.Do(ctx, req, nil)
			return err
		},
		"make a branch without a token of that push": func(*gh.Client) error {
			return c.post(ctx, Repo{7, "octocat", "hello"}, "POST", "make a branch", "git/refs", map[string]string{"ref": "refs/heads/inspect/x", "sha": sha40}, nil)
		},
		"change the repository": func(api *gh.Client) error {
			_, _, err := api.Repositories.Edit(ctx, "octocat", "hello", &gh.Repository{Private: &yes})
			return err
		},
		"delete the repository": func(api *gh.Client) error { _, err := api.Repositories.Delete(ctx, "octocat", "hello"); return err },
		"invite": func(api *gh.Client) error {
			_, _, err := api.Repositories.AddCollaborator(ctx, "octocat", "hello", "hubot", nil)
			return err
		},
		"read secrets": func(api *gh.Client) error {
			_, _, err := api.Actions.ListRepoSecrets(ctx, "octocat", "hello", nil)
			return err
		},
		"make a pull request ready or edit it": func(api *gh.Client) error {
			_, _, err := api.PullRequests.Edit(ctx, "octocat", "hello", 1, &gh.PullRequest{})
			return err
		},
		"write a file": func(api *gh.Client) error {
			_, _, err := api.Repositories.CreateFile(ctx, "octocat", "hello", "x", &gh.RepositoryContentFileOptions{})
			return err
		},
		"close an issue": func(api *gh.Client) error {
			s := "closed"
			_, _, err := api.Issues.Edit(ctx, "octocat", "hello", 1, &gh.IssueRequest{State: &s})
			return err
		},
		"graphql": func(api *gh.Client) error {
			req, err := api.NewRequest("POST", "graphql", map[string]string{"query": "mutation { mergePullRequest }"})
			if err != nil {
				return err
			}
			_, err = api.Do(ctx, req, nil)
			return err
		},
		"a pull request from a fork": func(api *gh.Client) error {
			s := "x"
			_, _, err := api.PullRequests.Create(ctx, "octocat", "hello", &gh.NewPullRequest{Title: &s, Head: &s, Base: &s, HeadRepo: &s})
			return err
		},
		"another host": func(api *gh.Client) error {
			req, err := api.NewRequest("GET", "https://example.com/repos/octocat/hello", nil)
			if err != nil {
				return err
			}
			_, err = api.Do(ctx, req, nil)
			return err
		},
		"upload elsewhere": func(api *gh.Client) error {
			req, err := api.NewUploadRequest("https://uploads.github.com/repos/octocat/hello/releases/1/assets", strings.NewReader("x"), 1, "text/plain")
			if err != nil {
				return err
			}
			_, err = api.Do(ctx, req, nil)
			return err
		},
	} {
		if err := c.call(ctx, 7, name, do); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: got %v, want ErrForbidden", name, err)
		}
	}
	if n := len(h.all()); n != 0 {
		t.Errorf("%d requests were sent, not even a token should be asked for: %q", n, h.sent())
	}
}

func TestRoutes(t *testing.T) {
	api, err := url.Parse("https://api.github.com/")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		ok           bool
	}{
		{"GET", "repos/octocat/hello/contents/", true},
		{"GET", "repos/octocat/hello/contents/.inspect.yml", true},
		{"GET", "repos/octocat/hello/contents/a%20b/c.go", true},
		{"GET", "repos/octocat/hello/contents/a/../../../secrets", false},
		{"GET", "repos/octocat/hello/contents/a/%2e%2e/b", false},
		{"GET", "repos/octocat/hello/contents/a%2fb", false},
		{"GET", "repos/octocat/hello/contents//a", false},
		{"GET", "repos/octocat/hello/git/ref/heads/feature/%23123", true},
		{"GET", "repos/octocat/hello/git/ref/heads/x%3Fy", false},
		{"GET", "repos/octocat/hello/git/ref/", false},
		{"GET", "repos/octocat/hello/git/refs/heads/main", false},
		{"GET", "repos/octocat/../hello/pulls", false},
		{"GET", "repos/octocat/%2e%2e/pulls", false},
		{"GET", "repos/octocat/hello/pulls", true},
		{"GET", "repos/octocat/hello/pulls/", false},
		{"GET", "repos/octocat/hello/pulls/1/merge", false},
		{"PUT", "repos/octocat/hello/pulls/1/merge", false},
		{"GET", "repos/octocat/hello/branches/a%2Fb", true},
		{"GET", "repos/octocat/hello/branches/main/protection", false},
		{"GET", "repos/octocat/hello/rulesets/1", true},
		{"PUT", "repos/octocat/hello/rulesets/1", false},
		{"DELETE", "repos/octocat/hello/rulesets/1", false},
		{"PATCH", "app/hook/config", false},
		{"POST", "repos/octocat/hello/git/refs", true},
		{"PATCH", "repos/octocat/hello/git/refs/heads/inspect/%23x", true},
		{"PATCH", "repos/octocat/hello/git/refs/heads", false},
		{"PATCH", "repos/octocat/hello/git/refs/tags/v1", false},
		{"PATCH", "repos/octocat/hello/git/refs/heads/../tags/v1", false},
		{"DELETE", "repos/octocat/hello/git/refs/heads/inspect/x", false},
		{"POST", "repos/octocat/hello/git/tags", false},
		{"POST", "repos/octocat/hello/pulls/1/requested_reviewers", true},
		{"DELETE", "repos/octocat/hello/pulls/1/requested_reviewers", false},
		{"GET", "repos/octocat/hello/pulls/1", true},
		{"POST", "repos/octocat/hello/pulls/1/reviews", false},
		{"PATCH", "repos/octocat/hello/pulls/1", false},
		{"POST", "repos/octocat/hello/pulls/comments/1/reactions", true},
		{"GET", "repos/octocat/hello/branches/feature%2F%23123", true},
		{"GET", "repos/octocat/hello/actions/jobs/1/logs", true},
		{"POST", "repos/octocat/hello/actions/jobs/1/rerun", false},
		{"HEAD", "repos/octocat/hello", false},
		{"DELETE", "repos/octocat/hello", false},
		{"DELETE", "repos/octocat/hello/issues/1/labels/kind%2Fbug", true},
		{"DELETE", "repos/octocat/hello/issues/1/labels/kind/bug", false},
		{"DELETE", "repos/octocat/hello/issues/1/labels", false},
		{"DELETE", "repos/octocat/hello/issues/comments/1", false},
		{"PATCH", "repos/octocat/hello/issues/comments/1", true},
		{"PATCH", "repos/octocat/hello/issues/comments/0", false},
		{"PATCH", "repos/octocat/hello/issues/comments/1x", false},
		{"PATCH", "repositories/7/issues/comments/1", true},
		{"GET", "repositories/7", true},
		{"GET", "user", false},
		{"GET", "users/inspect[bot]", true},
		{"GET", "users/inspect%5Bbot%5D", true},
		{"GET", "users/a%2fb", false},
		{"POST", "app/installations/1/access_tokens", true},
		{"DELETE", "app/installations/1", false},
	} {
		u, err := api.Parse(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(c.path, "..") { // Parse would resolve the dots
			u = &url.URL{Scheme: "https", Host: "api.github.com", Path: "/" + c.path}
		}
		if _, _, ok := findRoute(api, c.method, u); ok != c.ok {
			t.Errorf("%s %s: %v, want %v", c.method, u.EscapedPath(), ok, c.ok)
		}
	}
	for _, other := range []string{"http://api.github.com/app", "https://api.github.com:444/app", "https://u@api.github.com/app", "https://api.github.com.example.com/app"} {
		u, _ := url.Parse(other)
		if _, _, ok := findRoute(api, "GET", u); ok {
			t.Errorf("%s would be sent", other)
		}
	}
}

func route4(t *testing.T, method, path string) *route {
	t.Helper()
	api, _ := url.Parse("https://api.github.com/")
	u, _ := api.Parse(path)
	r, _, ok := findRoute(api, method, u)
	if !ok {
		t.Fatalf("no route %s %s", method, path)
	}
	return r
}

func TestFunnelRedactsAndCuts(t *testing.T) {
	f := funnel{redact.New("hunter2-canary")}
	r := route4(t, "POST", "repos/octocat/hello/check-runs")
	long := strings.Repeat("é", 80_000)
	in, _ := json.Marshal(map[string]any{
		"name": "inspect", "head_sha": sha40, "status": "completed", "conclusion": "success",
		"output": map[string]any{
			"title":   strings.Repeat("t", 300) + "hunter2-canary",
			"summary": "hunter2-canary " + long, "text": "aHVudGVyMi1jYW5hcnk= and ghs_1_" + strings.Repeat("a.b-c_", 80),
			"annotations": []any{map[string]any{"path": "a.go", "start_line": 1, "end_line": 1, "annotation_level": "notice", "message": "hunter2-canary"}},
		},
	})
	out, err := f.pass(r, in)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2-canary", "aHVudGVyMi1jYW5hcnk", "ghs_", "a.b-c_"} {
		if bytes.Contains(out, []byte(secret)) {
			t.Errorf("%q left the funnel", secret)
		}
	}
	var got struct {
		Output struct{ Title, Summary, Text string }
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if n := len(got.Output.Title); n > 255 {
		t.Errorf("title of %d bytes", n)
	}
	if n := len(got.Output.Summary); n > 65_535 || n < 60_000 {
		t.Errorf("summary of %d bytes", n)
	}
	if !utf8.ValidString(got.Output.Summary) || strings.ContainsRune(got.Output.Summary, utf8.RuneError) {
		t.Error("the summary was cut inside a character")
	}
}

func TestFunnelRefuses(t *testing.T) {
	f := funnel{redact.New("hunter2-canary")}
	many := strings.Repeat(`{"path":"a","start_line":1,"end_line":1,"annotation_level":"notice","message":"m"},`, 51)
	for _, c := range []struct{ method, path, body string }{
		{"POST", "repos/o/n/issues/1/comments", `{"body":"x","in_reply_to":3}`},
		{"POST", "repos/o/n/issues/1/comments", `{"body":null}`},
		{"POST", "repos/o/n/issues/1/comments", `{"body":7}`},
		{"POST", "repos/o/n/issues/1/comments", `["x"]`},
		{"POST", "repos/o/n/issues/1/comments", `{"body":"x"} {"body":"y"}`},
		{"POST", "repos/o/n/issues/1/comments", ``},
		{"DELETE", "repos/o/n/issues/1/labels/x", `{"a":1}`},
		{"GET", "repos/o/n/pulls", `{"a":1}`},
		{"POST", "repos/o/n/pulls", `{"title":"t","head":"hunter2-canary","base":"main"}`},
		{"POST", "repos/o/n/pulls", `{"title":"t","head":"a\nb","base":"main"}`},
		{"POST", "repos/o/n/pulls", `{"title":"t","head":"a","base":"main","draft":"yes"}`},
		{"POST", "repos/o/n/check-runs", `{"name":"n","head_sha":"x","output":{"title":"t","summary":"s","images":[]}}`},
		{"POST", "repos/o/n/check-runs", `{"name":"n","head_sha":"x","output":{"annotations":[` + strings.TrimSuffix(many, ",") + `]}}`},
		{"POST", "repos/o/n/check-runs", `{"name":"n","head_sha":"x","output":{"annotations":[{"path":"a","start_line":1.5}]}}`},
		{"POST", "repos/o/n/check-runs", `{"name":"n","actions":[{"label":"aaaaaaaaaaaaaaaaaaaaa"}]}`},
		{"PATCH", "repos/o/n/check-runs/1", `{"head_sha":"x"}`},
		{"POST", "app/installations/1/access_tokens", `{}`},
		{"POST", "app/installations/1/access_tokens", `{"repository_ids":[7]}`},
		{"POST", "app/installations/1/access_tokens", `{"repository_ids":[7],"permissions":{}}`},
		{"POST", "app/installations/1/access_tokens", `{"repository_ids":[],"permissions":{"contents":"read"}}`},
		{"POST", "app/installations/1/access_tokens", `{"repository_ids":[0],"permissions":{"contents":"read"}}`},
		{"POST", "app/installations/1/access_tokens", `{"repository_ids":[7,8],"permissions":{"contents":"read"}}`},
		{"POST", "app/installations/1/access_tokens", `{"permissions":{"metadata":"write"}}`},
		{"POST", "app/installations/1/access_tokens", `{"repositories":["x"],"permissions":{"metadata":"read"}}`},
	} {
		if out, err := f.pass(route4(t, c.method, c.path), []byte(c.body)); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s %s %.90s: passed as %.90s, %v", c.method, c.path, c.body, out, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func TestOversizeCommentIsCutInBytes(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { reply(w, 201, map[string]any{"id": 1}) })
	if _, err := h.client(t).CreateComment(ctxFor(t), hello, 3, "<!-- marker -->\n"+strings.Repeat("界", 60_000)); err != nil {
		t.Fatal(err)
	}
	all := h.all()
	var got struct{ Body string }
	if err := json.Unmarshal([]byte(all[len(all)-1].body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Body) > MaxComment || !utf8.ValidString(got.Body) || !strings.HasPrefix(got.Body, "<!-- marker -->") {
		t.Errorf("%d bytes, begins with %.20q", len(got.Body), got.Body)
	}
}

func TestAnnotationsGoInBatches(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { reply(w, 200, map[string]any{"id": 4}) })
	run := CheckRun{Name: "inspect", HeadSHA: sha40, Status: "completed", Conclusion: "failure", Title: "t", Summary: "s"}
	for i := range 120 {
		run.Annotations = append(run.Annotations, Annotation{Path: "a.go", StartLine: i + 1, EndLine: i + 1, Level: "failure", Message: "m"})
	}
	id, err := h.client(t).CreateCheckRun(ctxFor(t), hello, run)
	if err != nil || id != 4 {
		t.Fatal(id, err)
	}
	var counts []int
	line := 0
	for _, r := range h.all()[1:] {
		var b struct {
			Output struct {
				Summary     string
				Annotations []struct {
					StartLine int `json:"start_line"`
				}
			}
		}
		if err := json.Unmarshal([]byte(r.body), &b); err != nil {
			t.Fatal(err)
		}
		if b.Output.Summary == "" {
			t.Error("an output without a summary is refused by GitHub")
		}
		counts = append(counts, len(b.Output.Annotations))
		for _, a := range b.Output.Annotations {
			if line++; a.StartLine != line {
				t.Fatalf("annotation %d came where %d belongs", a.StartLine, line)
			}
		}
	}
	if fmt.Sprint(counts) != "[50 50 20]" {
		t.Errorf("batches of %v", counts)
	}
}

func TestCheckRunsAreCheckedFirst(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { t.Error("sent") })
	c := h.client(t)
	for name, run := range map[string]CheckRun{
		"no name":                    {HeadSHA: sha40, Status: "queued"},
		"no commit":                  {Name: "n", HeadSHA: "main", Status: "queued"},
		"completed, no conclusion":   {Name: "n", HeadSHA: sha40, Status: "completed"},
		"conclusion, not completed":  {Name: "n", HeadSHA: sha40, Status: "in_progress", Conclusion: "success"},
		"conclusion without a state": {Name: "n", HeadSHA: sha40, Conclusion: "success"},
	} {
		if _, err := c.CreateCheckRun(ctxFor(t), hello, run); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzFunnel(f *testing.F) {
	f.Add("hunter2-canary", "x")
	f.Add("\xff\x00hunter2-canaryhunter2-canary", "<!-- -->")
	f.Add(strings.Repeat("界", 30_000), strings.Repeat("ghs_x", 20))
	fu := funnel{redact.New("hunter2-canary")}
	api, _ := url.Parse("https://api.github.com/")
	u, _ := api.Parse("repos/o/n/pulls")
	r, _, _ := findRoute(api, "POST", u)
	f.Fuzz(func(t *testing.T, title, body string) {
		in, err := json.Marshal(map[string]any{"title": title, "body": body, "head": "a", "base": "main"})
		if err != nil {
			t.Fatal(err)
		}
		out, err := fu.pass(r, in)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Title, Body string }
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Title) > MaxPullTitle || len(got.Body) > MaxComment || !utf8.ValidString(got.Title+got.Body) {
			t.Errorf("%d and %d bytes", len(got.Title), len(got.Body))
		}
		if strings.Contains(got.Title, "hunter2-canary") || strings.Contains(got.Body, "hunter2-canary") {
			t.Error("a secret left the funnel")
		}
	})
}
