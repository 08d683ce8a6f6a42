package buildkite

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/proc"
)

const (
	secret = "bkua_0123456789abcdefghij"
	job    = "b63254c0-3271-4a98-8270-7cfbd6c2f14e"
	file   = "76365070-34d5-4104-8b91-952780f8029f"
	sha    = "abcd0b72a1e580e90712cdd9eb26d3fb41cd09c8"
	build7 = "/v2/organizations/acme/pipelines/web/builds/7"
)

// api is a Buildkite of one handler, and a client whose pauses take no time.
type api struct {
	*Client
	mu     sync.Mutex
	asked  []*http.Request
	pauses []time.Duration
	clock  *proc.Fake
	server *httptest.Server
}

func (a *api) Now() time.Time                        { return a.clock.Now() }
func (a *api) NewTicker(d time.Duration) proc.Ticker { return a.clock.NewTicker(d) }
func (a *api) After(d time.Duration) <-chan time.Time {
	a.mu.Lock()
	a.pauses = append(a.pauses, d)
	a.mu.Unlock()
	a.clock.Advance(d)
	return a.clock.After(0)
}

func serve(t *testing.T, h http.HandlerFunc, change ...func(*Options)) *api {
	t.Helper()
	a := &api{clock: proc.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	a.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.asked = append(a.asked, r)
		a.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+secret {
			t.Errorf("%s %s came with the authorization %q", r.Method, r.URL, r.Header.Get("Authorization"))
		}
		h(w, r)
	}))
	t.Cleanup(a.server.Close)
	o := Options{URL: a.server.URL, Clock: a, Token: func(context.Context) (string, error) { return secret, nil }, Retry: proc.Policy{Attempts: 3, First: time.Second, Rand: func() float64 { return 0.5 }}}
	for _, f := range change {
		f(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.Client = c
	return a
}

func TestOptions(t *testing.T) {
	token := func(context.Context) (string, error) { return secret, nil }
	for _, u := range []string{"http://api.example", "ftp://api.example", "https://u:p@api.example", "https://api.example/?x=1", "https://api.example/#x", "api.example", "https:api", "\x00"} {
		if _, err := New(Options{URL: u, Token: token}); err == nil {
			t.Errorf("%q is taken", u)
		}
	}
	for _, u := range []string{"", "https://api.example", "https://proxy.example/buildkite", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"} {
		if _, err := New(Options{URL: u, Token: token}); err != nil {
			t.Errorf("%q: %v", u, err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no token is taken")
	}
}

// A build as Buildkite's own documentation shows it, with what go-buildkite's
// types cannot read: plugins without settings, a date that is none, meta-data
// that is no text.
const documented = `{
  "id": "f62a1b4d-10f9-4790-bc1c-e2c3a0c80983", "number": 7, "state": "failed", "blocked": false,
  "url": "https://api.buildkite.com/v2/organizations/acme/pipelines/web/builds/7",
  "web_url": "https://buildkite.com/acme/web/builds/7",
  "message": "Bumping", "commit": "abcd0b72a1e580e90712cdd9eb26d3fb41cd09c8", "branch": "main", "env": {"A": 1}, "source": "webhook",
  "creator": {"created_at": "not a date"},
  "created_at": "2015-05-09T21:05:59.874Z", "finished_at": "2013-09-03 13:24:38 UTC",
  "meta_data": {"release": "1", "dry": true, "n": 3, "odd": {"a": 1}},
  "pull_request": {"id": "42", "base": "main", "repository": "git://github.com/hubot/web.git"},
  "pipeline": {"id": "849411f9-9e6d-4739-a0d8-e247088e9b52", "slug": "web", "repository": "git@github.com:acme/web.git",
    "provider": {"id": "github", "settings": "?"}, "steps": [{"plugins": ["docker#v5"]}]},
  "jobs": [
    {"id": "b63254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "script", "name": ":go: Test", "step_key": "test", "state": "failed", "exit_status": 1, "soft_failed": false, "command": "go test ./...", "agent": null, "priority": {"number": 0}},
    {"id": "c63254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "script", "name": "Lint", "state": "failed", "exit_status": 2, "soft_failed": true},
    {"id": "d63254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "script", "name": "Flaky", "state": "failed", "exit_status": 2, "retried": true},
    {"id": "e63254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "waiter", "state": "waiting_failed"},
    {"id": "f63254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "trigger", "name": "Deploy", "state": "failed", "triggered_build": {"number": 15}},
    {"id": "063254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "script", "state": "timed_out", "label": "Slow"},
    {"id": "163254c0-3271-4a98-8270-7cfbd6c2f14e", "type": "script", "state": "broken"}
  ]}`

func TestBuild(t *testing.T) {
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" || r.URL.Path != build7 {
			t.Errorf("asked for %s %s", r.Method, r.URL)
		}
		fmt.Fprint(w, documented)
	})
	b, err := a.Build(t.Context(), "acme", "web", 7)
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, j := range b.Failed() {
		failed = append(failed, j.Name)
	}
	if got := strings.Join(failed, ","); got != ":go: Test,Deploy,Slow" {
		t.Errorf("failed are %q", got)
	}
	if b.ID != "f62a1b4d-10f9-4790-bc1c-e2c3a0c80983" || b.Organization != "acme" || b.Pipeline.ID != "849411f9-9e6d-4739-a0d8-e247088e9b52" || b.Pipeline.Slug != "web" ||
		b.Commit != sha || b.PullRequest.Number != 42 || b.Outcome() != Failed || !b.Fork() || b.Created.Year() != 2015 || b.Finished.Year() != 2013 ||
		b.MetaData["dry"] != "true" || b.MetaData["n"] != "3" || b.MetaData["odd"] != "" || *b.Jobs[0].ExitStatus != 1 || b.Jobs[4].Triggered != 15 {
		t.Errorf("read as %+v", b)
	}
}

func TestOutcome(t *testing.T) {
	end := time.Unix(1, 0)
	for _, c := range []struct {
		b    Build
		want Outcome
	}{
		{Build{State: "passed", Finished: end}, Passed},
		{Build{State: "passed"}, Pending},
		{Build{State: "passed", Finished: end, Blocked: true}, Blocked},
		{Build{State: "blocked", Finished: end}, Blocked},
		{Build{State: "failed", Blocked: true}, Failed},
		{Build{State: "running", Blocked: true}, Blocked},
		{Build{State: "failing"}, Pending},
		{Build{State: "scheduled"}, Pending},
		{Build{State: "canceled", Finished: end}, Canceled},
		{Build{State: "skipped", Finished: end}, Canceled},
		{Build{State: "not_run", Finished: end}, Canceled},
		{Build{State: "a new word", Finished: end}, Pending},
		{Build{}, Pending},
	} {
		if got := c.b.Outcome(); got != c.want {
			t.Errorf("%+v is %s, want %s", c.b, got, c.want)
		}
	}
}

func TestRed(t *testing.T) {
	failed := []Job{{Type: "script", State: "failed"}, {Type: "script", State: "running"}}
	for _, c := range []struct {
		b    Build
		want bool
	}{
		{Build{State: "failed"}, true},
		{Build{State: "failing"}, true},
		{Build{State: "running", Jobs: failed}, true},
		{Build{State: "running", Jobs: failed, Blocked: true}, true},
		{Build{State: "running", Jobs: failed[1:]}, false},
		{Build{State: "running", Jobs: []Job{{Type: "script", State: "failed", SoftFailed: true}, {Type: "script", State: "failed", Retried: true}}}, false},
		{Build{State: "canceled", Jobs: failed}, false},
		{Build{State: "passed", Finished: time.Unix(1, 0)}, false},
		{Build{}, false},
	} {
		if got := c.b.Red(); got != c.want {
			t.Errorf("%+v: red %v", c.b, got)
		}
	}
}

func TestBuildsOfACommit(t *testing.T) {
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("commit") != sha {
			t.Errorf("asked for %s", r.URL)
		}
		fmt.Fprintf(w, `[{"number":9,"commit":%q},{"number":8,"commit":"HEAD"},{"number":7,"commit":"1%s"},{"number":6,"commit":%q}]`, sha, sha[1:], sha)
	})
	got, err := a.BuildsOf(t.Context(), "acme", "web", sha)
	if err != nil || len(got) != 2 || got[0].Number != 9 || got[1].Number != 6 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := a.BuildsOf(t.Context(), "acme", "web", sha[:12]); err == nil {
		t.Error("a part of a commit is taken")
	}
}

func TestNames(t *testing.T) {
	a := serve(t, func(w http.ResponseWriter, r *http.Request) { t.Errorf("asked for %s", r.URL) })
	for _, name := range []string{"", ".", "..", "a/b", "a?b", "a#b", "a b", "ä", "-a", "../x", "%2e%2e", strings.Repeat("a", 256), "a\n"} {
		if _, err := a.Build(t.Context(), name, "web", 7); err == nil {
			t.Errorf("organization %q is taken", name)
		}
		if _, err := a.Build(t.Context(), "acme", name, 7); err == nil {
			t.Errorf("pipeline %q is taken", name)
		}
		if _, err := a.LogTail(t.Context(), "acme", "web", 7, name, 1); err == nil {
			t.Errorf("job %q is taken", name)
		}
		if _, err := a.Artifact(t.Context(), "acme", "web", 7, Artifact{ID: name, Job: job}, 1); err == nil {
			t.Errorf("artifact %q is taken", name)
		}
	}
	if _, err := a.Build(t.Context(), "acme", "web", 0); err == nil {
		t.Error("build 0 is taken")
	}
}

func TestRetries(t *testing.T) {
	answers := []func(http.ResponseWriter){
		func(w http.ResponseWriter) { w.Header().Set("RateLimit-Reset", "42"); w.WriteHeader(429) },
		func(w http.ResponseWriter) { w.WriteHeader(502) },
		func(w http.ResponseWriter) { fmt.Fprint(w, documented) },
	}
	n := 0
	a := serve(t, func(w http.ResponseWriter, _ *http.Request) { answers[n](w); n++ })
	if _, err := a.Build(t.Context(), "acme", "web", 7); err != nil || n != 3 {
		t.Fatalf("%d requests, %v", n, err)
	}
	if a.pauses[0] != 42*time.Second || a.pauses[1] != 2*time.Second {
		t.Errorf("pauses %v", a.pauses)
	}
}

// What does not become better by asking again, and what is said of it.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		asked  int
		words  string
		is     error
	}{
		{"no token", status401, 1, "is not accepted (Authentication required", ErrForbidden},
		{"no scope", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			fmt.Fprint(w, `{"message":"no `+secret+`"}`)
		}, 1, "needs the scope read_builds", ErrForbidden},
		{"not there", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, 1, "no such thing", ErrNotFound},
		{"down", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, 3, "has a fault (status 503)", ErrBusy},
		{"an hour", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(429)
		}, 1, "too many requests", ErrBusy},
		{"half an answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9999")
			fmt.Fprint(w, documented[:100])
		}, 3, "broke off", ErrBusy},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, 3, "no answer that can be read", ErrBusy},
		{"elsewhere", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(302)
		}, 1, "which is not followed", nil},
		{"another build", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"number":8}`) }, 1, "is about build 8", nil},
		{"an endless answer", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"message":"`)
			for range (maxAnswer >> 20) + 1 {
				fmt.Fprint(w, strings.Repeat("x", 1<<20))
			}
		}, 1, "larger than 32 MiB", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := serve(t, c.answer)
			_, err := a.Build(t.Context(), "acme", "web", 7)
			if err == nil || !strings.Contains(err.Error(), c.words) || c.is != nil && !errors.Is(err, c.is) || len(a.asked) != c.asked {
				t.Errorf("after %d requests: %v", len(a.asked), err)
			}
			if !strings.Contains(err.Error(), "read build 7 of acme/web") || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), a.server.URL) {
				t.Errorf("words: %v", err)
			}
		})
	}
}

func status401(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(401)
	fmt.Fprint(w, `{"message":"Authentication required. Please supply a valid API Access Token"}`)
}

func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := serve(t, func(w http.ResponseWriter, _ *http.Request) { cancel(); w.WriteHeader(500) })
	if _, err := a.Build(ctx, "acme", "web", 7); !errors.Is(err, context.Canceled) || len(a.asked) != 1 {
		t.Errorf("after %d requests: %v", len(a.asked), err)
	}
	a = serve(t, nil, func(o *Options) {
		o.Token = func(context.Context) (string, error) { return "", errors.New("vault is sealed") }
	})
	if _, err := a.Build(t.Context(), "acme", "web", 7); err == nil || !strings.Contains(err.Error(), "vault is sealed") || len(a.asked) != 0 {
		t.Errorf("without a token: %v", err)
	}
}

func TestCreateBuild(t *testing.T) {
	var sent map[string]any
	n, fault := 0, 0
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n++; fault > 0 && n == 1 {
			w.WriteHeader(fault)
			return
		}
		if r.Method != "POST" || r.URL.Path != "/v2/organizations/acme/pipelines/web/builds" {
			t.Errorf("asked for %s %s", r.Method, r.URL)
		}
		_ = json.NewDecoder(r.Body).Decode(&sent)
		w.WriteHeader(201)
		fmt.Fprintf(w, `{"number":12,"state":"scheduled","commit":%q}`, sha)
	})
	ask := NewBuild{Commit: sha, Branch: "inspect/1", Message: "for a session", Env: map[string]string{"A": "b"}, MetaData: map[string]string{"inspect:session": "s"}, IgnoreBranchFilters: true}
	b, err := a.CreateBuild(t.Context(), "acme", "web", ask)
	if err != nil || b.Number != 12 || sent["commit"] != sha || sent["branch"] != "inspect/1" || sent["ignore_pipeline_branch_filters"] != true || sent["meta_data"].(map[string]any)["inspect:session"] != "s" {
		t.Errorf("%+v, %v; sent %v", b, err, sent)
	}
	n, fault = 0, 429
	if _, err := a.CreateBuild(t.Context(), "acme", "web", ask); err != nil || n != 2 {
		t.Errorf("too many requests: %d requests, %v", n, err)
	}
	n, fault = 0, 502
	if _, err := a.CreateBuild(t.Context(), "acme", "web", ask); !errors.Is(err, ErrUncertain) || n != 1 {
		t.Errorf("a fault: %d requests, %v", n, err)
	}
	n, fault = 0, 422
	if _, err := a.CreateBuild(t.Context(), "acme", "web", ask); err == nil || errors.Is(err, ErrUncertain) || n != 1 {
		t.Errorf("refused: %d requests, %v", n, err)
	}
	ask.Commit = "HEAD"
	if _, err := a.CreateBuild(t.Context(), "acme", "web", ask); err == nil {
		t.Error("HEAD is built")
	}
}

func TestAnnotations(t *testing.T) {
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		page := r.URL.Query().Get("page")
		if page == "1" {
			w.Header().Set("Link", `<http://x/?page=2&per_page=100>; rel="next"`)
		}
		fmt.Fprintf(w, `[{"context":"c%s","style":"error","body_html":%q}]`, page, `<h1>Two &lt;failures&gt;</h1><script>evil()</script><table><tr><td>TestA</td><td>no</td></tr></table><p>see <a href="artifact://x">log</a>`+"\u202e"+`</p>`)
	})
	got, err := a.Annotations(t.Context(), "acme", "web", 7)
	if err != nil || len(got) != 2 || got[1].Context != "c2" || got[0].Text != "Two <failures>\nTestA | no | \nsee log" {
		t.Errorf("%+v, %v", got, err)
	}
	if text, more := plain("<p>"+strings.Repeat("ä", maxAnnotation), maxAnnotation); !more || len(text) > maxAnnotation {
		t.Errorf("%d bytes, more: %v", len(text), more)
	}
}

func TestArtifacts(t *testing.T) {
	const report = `<testsuite/>`
	sum := sha1.Sum([]byte(report))
	var store *httptest.Server
	leaked := ""
	store = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked += r.Header.Get("Authorization")
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, store.URL+"/report", http.StatusFound)
		case "/round":
			http.Redirect(w, r, store.URL+"/round", http.StatusFound)
		case "/gone":
			w.WriteHeader(404)
		default:
			fmt.Fprint(w, report)
		}
	}))
	defer store.Close()
	location := ""
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case build7 + "/jobs/" + job + "/artifacts":
			fmt.Fprintf(w, `[{"id":%q,"job_id":"x","path":"../../etc/passwd","mime_type":"text/xml","state":"finished","file_size":%d,"sha1sum":%q,"download_url":"https://evil.example/"}]`, file, len(report), hex.EncodeToString(sum[:]))
		case build7 + "/jobs/" + job + "/artifacts/" + file + "/download":
			w.Header().Set("Location", location)
			w.WriteHeader(302)
		default:
			t.Errorf("asked for %s", r.URL)
		}
	}
	a := serve(t, handler, func(o *Options) { o.ArtifactHosts = []string{strings.TrimPrefix(store.URL, "http://")} })
	list, err := a.Artifacts(t.Context(), "acme", "web", 7, job)
	if err != nil || len(list) != 1 || list[0].ID != file || list[0].Size != int64(len(report)) || list[0].Job != job {
		t.Fatalf("%+v, %v", list, err)
	}
	read := func(a *api, f Artifact, most int64) (string, error) {
		got, err := a.Artifact(t.Context(), "acme", "web", 7, f, most)
		return string(got), err
	}
	for _, where := range []string{"/report", "/moved"} {
		location = store.URL + where
		if got, err := read(a, list[0], 100); err != nil || got != report {
			t.Errorf("%s: %q, %v", where, got, err)
		}
	}
	if _, err := read(a, list[0], 5); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	lie := list[0]
	lie.Size, lie.SHA1 = 3, ""
	if _, err := read(a, lie, 100); err == nil || !strings.Contains(err.Error(), "differ") {
		t.Errorf("another size: %v", err)
	}
	lie.Size = -1
	if _, err := read(a, lie, 5); !errors.Is(err, ErrTooLarge) {
		t.Errorf("of unknown size, too large: %v", err)
	}
	lie.SHA1 = strings.Repeat("0", 40)
	if _, err := read(a, lie, 100); err == nil || !strings.Contains(err.Error(), "differ") {
		t.Errorf("another digest: %v", err)
	}
	for _, where := range []string{"", "http://example.com/x", "https://u:p@example.com/x", "file:///etc/passwd", "gopher://x/", store.URL + "/round", store.URL + "/gone"} {
		location = where
		if got, err := read(a, list[0], 100); err == nil {
			t.Errorf("%q was fetched: %q", where, got)
		}
	}
	if leaked != "" {
		t.Errorf("the artifact store saw %q", leaked)
	}
	// The same store, not configured, is a private address somebody put there.
	b := serve(t, handler)
	location = store.URL + "/report"
	if got, err := read(b, list[0], 100); err == nil || !strings.Contains(err.Error(), "no public address") || len(b.asked) != 1 {
		t.Errorf("a private address: %q, %v after %d requests", got, err, len(b.asked))
	}
}
