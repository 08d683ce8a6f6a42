package ask

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"inspect/checks/buildkite/step"
	"inspect/envs/proc"
	"inspect/fixtures/buildkited"
)

// program is Buildkite's own agent.
func program(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../.tools/buildkite/buildkite-agent")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run .ci/setup tests", err)
	}
	return path
}

// plane is a control plane of a few lines: it keeps one session for each job, and
// gives its states in turn.
type plane struct {
	*httptest.Server
	t      *testing.T
	states []step.State // each is answered once, the last for ever

	mu       sync.Mutex
	sessions map[string]string // by job
	asks     []step.Ask
	claims   map[string]any
	at       int
	tokens   int
	faults   []int // statuses of the next answers; 0 cuts the connection, -1 lets one through
	evidence string
}

func (p *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) > 0 {
		code := p.faults[0]
		p.faults = p.faults[1:]
		switch {
		case code == 0:
			panic(http.ErrAbortHandler)
		case code > 0:
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(step.Refusal{Error: "not allowed\x1b[31m"})
			return
		}
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.Method == http.MethodPost && r.URL.Path == step.Path+"/sessions" {
		parts := strings.Split(token, ".")
		raw, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil || json.Unmarshal(raw, &p.claims) != nil {
			p.t.Errorf("token %q", token)
		}
		var a step.Ask
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			p.t.Error(err)
		}
		p.asks = append(p.asks, a)
		job := p.claims["job_id"].(string)
		started := p.sessions[job] == ""
		if started {
			p.sessions[job] = fmt.Sprintf("s%d", len(p.sessions)+1)
		}
		p.tokens++
		status := map[bool]int{true: 201, false: 200}[started]
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(step.Answer{Session: p.sessions[job], URL: "https://inspect.example/sessions/" + p.sessions[job], Token: fmt.Sprintf("reads-%d", p.tokens), Started: started, State: p.states[0]})
		return
	}
	if token != fmt.Sprintf("reads-%d", p.tokens) {
		w.WriteHeader(401)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/evidence") {
		fmt.Fprint(w, p.evidence)
		return
	}
	p.at = min(p.at+1, len(p.states)-1)
	_ = json.NewEncoder(w).Encode(p.states[p.at])
}

// quick is a clock whose pauses take no time.
type quick struct{ *proc.Fake }

func (q quick) After(d time.Duration) <-chan time.Time {
	q.Advance(d)
	return q.Fake.After(0)
}

type world struct {
	*buildkited.Server
	plane *plane
	job   string
	o     Options
	out   bytes.Buffer
}

func newWorld(t *testing.T, states ...step.State) *world {
	t.Helper()
	s, err := buildkited.New(buildkited.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.AddPipeline("web", "https://github.com/acme/web.git")
	b := s.AddBuild("web", buildkited.Build{Commit: strings.Repeat("a", 40), Branch: "main", State: "running", Jobs: []buildkited.Job{
		{Name: "fix", StepKey: "inspect", State: "running"}, {Name: "test", StepKey: "test", State: "failed"}, {Name: "lint", StepKey: "lint", State: "passed"},
	}})
	for i := range states {
		states[i].Version = int64(i + 1)
	}
	p := &plane{t: t, states: states, sessions: map[string]string{}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	w := &world{Server: s, plane: p, job: b.Jobs[0].ID}
	w.o = Options{
		Server: p.URL + "/", Wish: step.Ask{FixBuild: true}, Wait: true, Job: w.job, Out: &w.out,
		Clock: quick{proc.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))},
		Agent: Agent{Program: program(t), Env: []string{
			"PATH=" + proc.DefaultPath, "BUILDKITE_AGENT_ENDPOINT=" + s.AgentURL(), "BUILDKITE_AGENT_ACCESS_TOKEN=" + s.AgentToken(),
			"BUILDKITE_JOB_ID=" + w.job, "BUILDKITE_BUILD_ID=" + b.ID, "BUILDKITE_ANNOTATION_APPEND=true", "HOME=" + t.TempDir(),
		}},
	}
	return w
}

func (w *world) run(t *testing.T) (Code, error) {
	t.Helper()
	w.out.Reset()
	return Run(t.Context(), w.o)
}

func (w *world) note(t *testing.T) buildkited.Annotation {
	t.Helper()
	notes := w.Build("web", 1).Annotations
	if len(notes) != 1 {
		t.Fatalf("%d annotations: %+v\n%s", len(notes), notes, w.out.String())
	}
	return notes[0]
}

var delivered = step.State{State: "delivered", Over: true, Conclusion: "success", Title: "fixed 1, 12 pass", Summary: "**The repository's own commands pass.**\n", Branch: "inspect/1-fix",
	SHA: strings.Repeat("b", 40), Pull: "https://github.com/acme/web/pull/7", CheckRun: "https://github.com/acme/web/runs/9"}

func TestDelivered(t *testing.T) {
	w := newWorld(t, step.State{State: "queued", Words: "limit 4 of acme/web reached (position 3 of 12)"}, step.State{State: "working"}, step.State{State: "needs_approval", Conclusion: "action_required", Words: "touches .github"}, delivered)
	w.plane.evidence = strings.Repeat("tar", 1000)
	w.o.Evidence = true
	code, err := w.run(t)
	if code != OK || err != nil {
		t.Fatalf("%d, %v\n%s", code, err, w.out.String())
	}
	for _, line := range []string{"session s1 is started: https://inspect.example/sessions/s1", "queued: limit 4 of acme/web reached (position 3 of 12)", "working\n", "waiting for approval: touches .github", "delivered (https://github.com/acme/web/pull/7)", "artifact inspect-evidence-s1.tar"} {
		if !strings.Contains(w.out.String(), line) {
			t.Errorf("no line %q in\n%s", line, w.out.String())
		}
	}
	c := w.plane.claims
	b := w.Build("web", 1)
	if c["aud"] != w.plane.URL || c["organization_id"] != w.OrganizationID() || c["pipeline_id"] == nil || c["build_id"] != b.ID {
		t.Errorf("the token says %v", c)
	}
	n := w.note(t)
	if n.Context != "inspect-s1" || n.Style != "success" || !strings.Contains(n.Body, "**Inspect: Delivered: fixed 1, 12 pass**") || !strings.Contains(n.Body, "[draft pull request](https://github.com/acme/web/pull/7)") ||
		!strings.Contains(n.Body, "own commands pass") || strings.Contains(n.Body, "Queued") {
		t.Errorf("annotation %+v", n)
	}
	if b.MetaData["inspect:session"] != "s1" {
		t.Errorf("meta-data %v", b.MetaData)
	}
	if a := b.Jobs[0].Artifacts; len(a) != 1 || a[0].State != "finished" || string(w.File(a[0].ID)) != w.plane.evidence {
		t.Errorf("artifacts %+v", a)
	}
	var styles []string
	for _, r := range w.Requests("/annotations") {
		var sent struct{ Style string }
		_ = json.Unmarshal(r.Body, &sent)
		styles = append(styles, sent.Style)
	}
	if !slices.Equal(styles, []string{"info", "warning", "success"}) {
		t.Errorf("annotated as %v", styles)
	}
	// Run twice: one session.
	w.o.Evidence, w.plane.at = false, 0
	if code, err := w.run(t); code != OK || err != nil || !strings.Contains(w.out.String(), "session s1 is there already") || len(w.plane.sessions) != 1 {
		t.Errorf("again: %d, %v, %v\n%s", code, err, w.plane.sessions, w.out.String())
	}
}

func TestStartedOnly(t *testing.T) {
	w := newWorld(t, step.State{State: "queued"})
	w.o.Wait = false
	w.o.Wish = step.Ask{Prompt: "-x `id` $(id) \"'\n"}
	if code, err := w.run(t); code != OK || err != nil {
		t.Fatalf("%d, %v", code, err)
	}
	if n := w.note(t); n.Style != "info" || w.plane.at != 0 || w.plane.asks[0].Prompt != w.o.Wish.Prompt {
		t.Errorf("%+v after %d questions; asked %+v", n, w.plane.at, w.plane.asks)
	}
}

func TestExit(t *testing.T) {
	for _, c := range []struct {
		s     step.State
		code  Code
		style string
	}{
		{step.State{Over: true, Conclusion: "success"}, OK, "success"},
		{step.State{Over: true, Conclusion: "failure"}, Failed, "error"},
		{step.State{Over: true, Conclusion: "neutral"}, Neutral, "warning"},
		{step.State{Over: true, Conclusion: "cancelled"}, Stopped, "warning"},
		{step.State{Over: true, Conclusion: "timed_out"}, TimedOut, "error"},
		{step.State{Over: true, Conclusion: "action_required"}, Neutral, "warning"},
		{step.State{Over: true, Conclusion: ""}, Failed, "warning"},
		{step.State{Over: true, Conclusion: "a new word"}, Failed, "warning"},
		{step.State{Conclusion: "action_required"}, Waits, "warning"},
		{step.State{State: "working"}, Unfinished, "info"},
		{step.State{Conclusion: "success"}, Unfinished, "warning"},
	} {
		if Exit(c.s) != c.code || Style(c.s) != c.style {
			t.Errorf("%+v: %d %s, want %d %s", c.s, Exit(c.s), Style(c.s), c.code, c.style)
		}
	}
}

func TestSoftFail(t *testing.T) {
	w := newWorld(t, step.State{State: "failed", Over: true, Conclusion: "failure", Words: "2 tests fail"})
	if code, err := w.run(t); code != Failed || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	w.o.SoftFail = true
	if code, err := w.run(t); code != OK || err != nil || w.note(t).Style != "error" {
		t.Errorf("softly: %d, %v", code, err)
	}
	// Not for what never ended, and not for a refusal.
	w.plane.states = []step.State{{State: "working", Version: 1}}
	w.o.Most = time.Minute
	if code, err := w.run(t); code != Unfinished || err == nil {
		t.Errorf("unfinished: %d, %v", code, err)
	}
	for range 9 {
		w.plane.faults = append(w.plane.faults, 403)
	}
	if code, err := w.run(t); code != RefusedCode || err == nil || !strings.Contains(err.Error(), "its log says why") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("refused: %d, %v", code, err)
	}
	notes := w.Build("web", 1).Annotations
	if last := notes[len(notes)-1]; last.Context != "inspect-"+w.job || last.Style != "error" || !strings.Contains(last.Body, "was refused") {
		t.Errorf("annotation of a refusal: %+v", last)
	}
}

// The control plane restarts, and forgets the tokens it gave.
func TestRestarts(t *testing.T) {
	w := newWorld(t, step.State{State: "working"}, step.State{State: "verifying"}, delivered)
	w.plane.faults = []int{503, 0, 502, -1, 500, 0, 401, 0}
	code, err := w.run(t)
	if code != OK || err != nil || len(w.plane.sessions) != 1 || len(w.plane.asks) != 2 {
		t.Fatalf("%d, %v, asked %d times\n%s", code, err, len(w.plane.asks), w.out.String())
	}
	if n := strings.Count(w.out.String(), "does not answer"); n < 2 || strings.Count(w.out.String(), "answers again") != n {
		t.Errorf("%d times away\n%s", n, w.out.String())
	}
}

func TestAway(t *testing.T) {
	w := newWorld(t, step.State{State: "working"})
	w.plane.faults = []int{-1}
	for range 500 {
		w.plane.faults = append(w.plane.faults, 503)
	}
	w.o.SoftFail = true
	if code, err := w.run(t); code != Away || err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%d, %v", code, err)
	}
	w.plane.Close()
	if code, err := w.run(t); code != Away || err == nil {
		t.Errorf("nobody there: %d, %v", code, err)
	}
}

// What others wrote steers neither the log nor the page, and secrets stay here.
func TestHostileWords(t *testing.T) {
	const secret = "hunter2-hunter2"
	bad := delivered
	bad.Words = "--- group\n\x1b]1339;url=http://evil\a\x1b[2J <img src=x> @octocat `" + secret + "` [x](http://evil)"
	bad.Title = "**bold** :tada: " + secret
	bad.Summary = strings.Repeat("ä", MaxAnnotation) + "\n"
	bad.Pull = "javascript:alert(1)"
	bad.CheckRun = "https://github.com/x) <script>"
	bad.Branch = "a`b|c\n# h"
	w := newWorld(t, bad)
	w.o.Secrets = Secrets([]string{"DEPLOY_TOKEN=" + secret, "HOME=/root"})
	if code, err := w.run(t); code != OK || err != nil {
		t.Fatalf("%d, %v\n%s", code, err, w.out.String())
	}
	n := w.note(t)
	if len(n.Body) > MaxAnnotation || !utf8.ValidString(n.Body) || strings.Contains(n.Body, secret) || strings.Contains(n.Body, "<img") || strings.Contains(n.Body, "javascript:") || strings.Contains(n.Body, "<script") || strings.Contains(n.Body, "@octocat") || strings.Contains(n.Body, "\x1b") || strings.Contains(n.Body, ":tada:") {
		t.Errorf("%d bytes: %.900s", len(n.Body), n.Body)
	}
	for line := range strings.Lines(w.out.String()) {
		if !strings.HasPrefix(line, "12:0") || strings.ContainsAny(line, "\x1b\a\r") || strings.Contains(line, secret) {
			t.Errorf("line %q", line)
		}
	}
}

func TestIfFailed(t *testing.T) {
	w := newWorld(t, step.State{State: "queued"})
	w.o.Wait = false
	w.o.IfFailed = []string{"lint"}
	if code, err := w.run(t); code != OK || err != nil || len(w.plane.asks) != 0 {
		t.Errorf("nothing failed: %d, %v, %d asks\n%s", code, err, len(w.plane.asks), w.out.String())
	}
	w.o.IfFailed = []string{"lint", "test"}
	if code, err := w.run(t); code != OK || err != nil || len(w.plane.asks) != 1 {
		t.Errorf("one failed: %d, %v, %d asks\n%s", code, err, len(w.plane.asks), w.out.String())
	}
	w.o.IfFailed = []string{"nothing"}
	if code, err := w.run(t); code != Usage || err == nil {
		t.Errorf("no such step: %d, %v", code, err)
	}
}

func TestIDs(t *testing.T) {
	w := newWorld(t, step.State{State: "queued"})
	ids, err := w.o.Agent.IDs(t.Context())
	if err != nil || ids.OrganizationID != w.OrganizationID() || ids.PipelineSlug != "web" || ids.OrganizationSlug != "acme" || len(ids.PipelineID) != 36 {
		t.Errorf("%+v, %v", ids, err)
	}
}

func TestBefore(t *testing.T) {
	w := newWorld(t, step.State{State: "queued"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code, err := Run(ctx, w.o); code != Interrupted || err == nil {
		t.Errorf("cancelled: %d, %v", code, err)
	}
	w.o.Agent.Program = "buildkite-agent-that-is-not-there"
	if code, err := w.run(t); code != Missing || err == nil {
		t.Errorf("no agent: %d, %v", code, err)
	}
	for _, wish := range []step.Ask{{}, {Prompt: "x", Issue: 1}, {Issue: -1}, {Issue: 1, FixBuild: true}, {Prompt: strings.Repeat("x", step.MaxPrompt+1)}, {Prompt: "x", Once: "never"}} {
		w.o.Wish = wish
		if code, err := w.run(t); code != Usage || err == nil {
			t.Errorf("%.60v: %d, %v", wish, code, err)
		}
	}
	w.o.Wish = step.Ask{Prompt: "x"}
	w.o.Evidence, w.o.Wait = true, false
	if code, err := w.run(t); code != Usage || err == nil {
		t.Errorf("evidence without an end: %d, %v", code, err)
	}
	w.o.Evidence = false
	for _, server := range []string{"", "inspect.example", "http://inspect.example", "https://u:p@inspect.example", "https://inspect.example/?a", "https://inspect.example/#a", "ftp://inspect.example"} {
		w.o.Server = server
		if code, err := w.run(t); code != Usage || err == nil {
			t.Errorf("%q: %d, %v", server, code, err)
		}
	}
}

func TestParseConfig(t *testing.T) {
	o, err := ParseConfig(`{"server":"https://inspect.example","issue":"#12","budget":2.50,"wait":true,"wait-timeout":"90m","if-failed":"test","once":"build","program":"x"}`)
	if err != nil || o.Wish.Issue != 12 || o.Wish.Budget != "2.50" || !o.Wait || o.Most != 90*time.Minute || len(o.IfFailed) != 1 || o.Wish.Once != "build" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = ParseConfig(`{"issue":7,"if-failed":["a","b"],"budget":"3"}`); err != nil || o.Wish.Issue != 7 || len(o.IfFailed) != 2 || o.Wish.Budget != "3" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, s := range []string{"", "[]", `{"unknown":1}`, `{"issue":"x"}`, `{"issue":-1}`, `{"wait":"yes"}`, `{"wait-timeout":"soon"}`, `{"if-failed":1}`, `{"prompt":["a"]}`, `{"prompt":"` + strings.Repeat("x", maxConfig) + `"}`} {
		if o, err := ParseConfig(s); err == nil {
			t.Errorf("%.40s is read as %+v", s, o)
		}
	}
}

func TestSecrets(t *testing.T) {
	got := Secrets([]string{"A_TOKEN=one", "MY_SECRET=two", "HOME=/root", "BUILDKITE_REDACTED_VARS=*_X, EXACT", "B_X=three", "EXACT=four", "EMPTY_TOKEN="})
	if !slices.Equal(got, []string{"one", "two", "three", "four"}) {
		t.Errorf("%q", got)
	}
}
