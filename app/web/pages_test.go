package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"inspect/checks/evidence"
	"inspect/checks/render"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
	"inspect/storage/storagetest"
)

const accessToken = "access-token-canary-0123456789"

// evil is what an agent or a stranger may write anywhere.
const evil = `</pre><script>alert(1)</script><img src=x onerror=alert(1)>"'&{{.}}`

type site struct {
	t     *testing.T
	db    *storage.DB
	blobs *storage.Blobs
	http.Handler
	clock *proc.Fake
}

func newSite(t *testing.T) *site {
	t.Helper()
	blobs, err := storage.OpenBlobs(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	s := &site{t: t, db: storagetest.New(t), blobs: blobs, clock: proc.NewFake(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))}
	h, err := NewPages(PagesOptions{
		DB: s.db, Blobs: blobs, Token: accessToken, TokenPlace: "in the log", GitHub: "https://github.com",
		AllowedHosts: []string{"inspect.example"}, Clock: s.clock, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Handler = h
	s.sql(`INSERT INTO repositories (id, installation_id, owner, name) VALUES (7, 1, 'octocat', 'parcel')`)
	s.sql(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-7-x', 7, 'd', '{}')`)
	return s
}

func (s *site) sql(q string, args ...any) {
	s.t.Helper()
	if _, err := s.db.SQL().ExecContext(s.t.Context(), q, args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) json(v any) string {
	s.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

func (s *site) blob(session, content string) string {
	s.t.Helper()
	sum, _, err := s.blobs.Put(s.t.Context(), session, strings.NewReader(content), 1<<20)
	if err != nil {
		s.t.Fatal(err)
	}
	return sum
}

// session inserts a session that just waits.
func (s *site) session(id, title string) {
	s.t.Helper()
	s.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login,
		title, request, prompt, base_branch, base_sha, environment_id, spec, spec_source, queue_reason, created_at, deadline)
		VALUES ($1, 1, 7, 12, 'k-' || $1, 3, 'monalisa', $2, $2, $2, 'main', $3, 'env-7-x', $4, '.inspect.yml', 'two others are before it', $5, $5)`,
		id, title, strings.Repeat("a", 40), s.json(spec.Spec{Harness: spec.Harness{Kind: "command", Label: "scripted"}}), s.clock.Now().Add(-time.Minute))
}

func (s *site) event(session string, seq int, kind string, data any) {
	s.t.Helper()
	s.sql(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash) VALUES ($1, $2, 1, $3, $4, $5, '')`,
		session, seq, kind, s.json(data), s.clock.Now())
}

// delivered inserts a session with everything a page can show; every text in it is evil.
func (s *site) delivered(id string) (stdout string) {
	s.t.Helper()
	s.session(id, "Title "+evil)
	stdout = s.blob(id, "output "+evil)
	patch := s.blob(id, "patch")
	m := evidence.Manifest{
		Session: id, Verdict: evidence.Verdict{Kind: "passed", Words: "all pass " + evil, Passed: 42, Failed: 0, Skipped: 1},
		Checks: []evidence.Check{{Name: "unit" + evil, Run: "go test " + evil, Passed: true, Words: "42 tests passed", Duration: 3 * time.Second, Stdout: stdout,
			Tests: &evidence.Tests{Passed: 42, Failures: []evidence.Failure{{Package: "p" + evil, Test: "T", Output: evil}}}}},
		Change:   evidence.Change{Files: []evidence.ChangedFile{{Path: evil + ".go", Added: 3, Deleted: 1}, {Path: "logo.png", Added: -1, Deleted: -1}}, Added: 3, Deleted: 1},
		Snapshot: evidence.Snapshot{ID: "snap-1", Commit: strings.Repeat("b", 40), Store: "dir", Age: time.Hour, Drift: true, Restore: 120 * time.Millisecond},
		Harness:  evidence.Harness{Kind: "command", Label: "scripted"}, Sandbox: evidence.Sandbox{Tier: "bubblewrap 0.8.0", Limits: "enforced"},
		Agent:        evidence.Agent{ToolCalls: 14, Commands: 6, FailedCommands: 1, FilesTouched: 3},
		Model:        evidence.Model{Name: "anthropic/sonnet " + evil, Calls: 7, InputTokens: 120_345, OutputTokens: 2_310, Cost: 123_400_000, Priced: true, Budget: 5_000_000_000, PricesAsOf: "2026-11-01"},
		Instructions: strings.Repeat("7", 64),
		Egress: evidence.Egress{Declared: []string{"npm", "x" + evil}, Allowed: 12, More: 2, Refused: []evidence.Refused{
			{Host: "registry.example", Port: 443, Command: "npm ci " + evil, Reason: evidence.NotListed, Count: 3},
			{Host: "models.example", Port: 443, Command: "opencode serve", Count: 4, Noise: true},
		}},
	}
	body, _, err := m.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	manifest := s.blob(id, string(body))
	for name, sum := range map[string]string{"manifest.json": manifest, "change.patch": patch} {
		s.sql(`INSERT INTO evidence (session_id, name, sha256, bytes) VALUES ($1, $2, $3, 5)`, id, name, sum)
	}
	s.sql(`INSERT INTO artifacts (session_id, sha256, bytes) VALUES ($1, $2, $3)`, id, stdout, len("output "+evil))
	s.sql(`INSERT INTO attempts (session_id, generation, engine, node, deadline, work_deadline, taken, drifted, restore) VALUES ($1, 1, 'local', 'n1', now(), now(), $2, $3, $4)`,
		id, s.json(scheduler.Taken{Why: "it is stale " + evil, Image: evil}),
		s.json(wire.Drifted{Manifests: []string{evil}, Steps: []string{evil}, Lockfiles: []wire.Lockfile{{Path: evil, SHA256: evil}}}), s.json(wire.Restored{Purpose: "work", Tier: "bubblewrap 0.8.0", Limits: "enforced", Duration: 120 * time.Millisecond}))
	outcome := wire.Outcome{Kind: "verified", Words: "done", Results: []wire.VerifyResult{{Name: "unit", Stdout: stdout}}, Times: wire.Times{Restore: 120 * time.Millisecond, Work: 2 * time.Second, Verify: 3 * time.Second}}
	receipt := scheduler.Receipt{Branch: "inspect/12-x", HeadSHA: strings.Repeat("c", 40), Tree: strings.Repeat("d", 40), PullRequest: 13,
		URL: "https://github.com/octocat/parcel/pull/13", Evidence: manifest, EventsHead: "ee", EventsCount: 9, Withheld: []string{".github/workflows/" + evil}}
	pinned := spec.Spec{Harness: spec.Harness{Kind: "command", Label: "scripted"}, Services: []spec.Service{{Name: "postgres" + evil}}, Data: spec.Data{Provenance: "synthetic" + evil}}
	s.sql(`UPDATE sessions SET spec = $2 WHERE id = $1`, id, s.json(pinned))
	s.sql(`UPDATE sessions SET state = 'delivered', words = $2, generation = 1, outcome = $3, receipt = $4, branch = 'inspect/12-x', head_sha = $5,
		pull_request = 13, check_run_id = 77, comment_id = 5, started_at = $6, finished_at = $6, reported_at = $6, events_count = 9 WHERE id = $1`,
		id, "Words "+evil, s.json(outcome), s.json(receipt), receipt.HeadSHA, s.clock.Now())
	for i, e := range []struct {
		kind string
		data any
	}{
		{"created", map[string]any{"requester": "monalisa", "spec_source": evil, "base_sha": "abc"}},
		{"state", map[string]any{"from": "queued", "to": "working", "words": evil}},
		{"restore", wire.Restored{Purpose: "work", Snapshot: "snap-1", Duration: time.Second}},
		{"command", wire.Command{Step: "harness", Line: evil, ExitCode: 1, Output: evil}},
		{"output", wire.Output{Stream: "stdout", Text: "one "}},
		{"output", wire.Output{Stream: "stdout", Text: "two " + evil}},
		{"note", wire.Note{Words: evil}},
		{"turn", wire.Turn{Turn: 1, Tip: "abc"}},
		{"message", wire.Message{Text: "I found it.\n" + evil}},
		{"tool", wire.Tool{Name: "bash", Command: evil, ExitCode: new(int), Output: evil, Files: []string{evil}}},
		{"prompt", wire.Prompted{Prompt: 2, Author: "monalisa", Text: evil}},
		{"usage", wire.Usage{Model: evil, Cost: 1}},
		{"egress", wire.Egress{Host: evil, Port: 443, Command: evil, Reason: evil}},
		{"service", wire.ServiceState{Name: evil, State: "failed", Words: evil, Output: evil}},
		{"a kind of tomorrow" + evil, map[string]any{"x": evil}},
	} {
		s.event(id, i+1, e.kind, e.data)
	}
	return stdout
}

// get asks as somebody who holds the token, changed by edit.
func (s *site) get(path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Authorization", "Bearer "+accessToken)
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestSessionPage(t *testing.T) {
	s := newSite(t)
	s.delivered("abcdefghij")
	w := s.get("/sessions/abcdefghij")
	if w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	body := w.Body.String()
	for _, want := range []string{
		"Delivered", "#13", `href="https://github.com/octocat/parcel/pull/13"`, `href="https://github.com/octocat/parcel/issues/12"`,
		"42 tests passed", "logo.png", "binary", "snap-1", "1 h 0 min old", "restored in 120 ms", "older than the commit",
		"scripted", "bubblewrap 0.8.0", "enforced", strings.Repeat("c", 40), "change.patch", "manifest.json",
		"one two ", "Attempt", "77", "head of the chain",
		"14 tool calls, 6 commands (1 failed), 3 files touched", "120345 tokens in, 2310 out", "$0.1234 by the provider", "prices as of 2026-11-01",
		"no agent; network only to <code>npm</code>", "12 connections allowed", "<code>registry.example:443</code>, asked for by <code>npm ci", "3 times",
		"1 refused that were the harness", "2 further destinations", "postgres", "synthetic", strings.Repeat("7", 64),
	} {
		if want == "Attempt" {
			want = "1 attempt"
		}
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "http-equiv") {
		t.Error("a page that is over is read again and again")
	}
	checkHTML(t, body)
}

var voids = regexp.MustCompile(`^(meta|link|br|hr|img|input)$`)

// checkHTML reads a page as a browser would: nothing of evil may have become
// markup, tags must be closed, and there must be landmarks.
func checkHTML(t *testing.T, body string) {
	t.Helper()
	z := html.NewTokenizer(strings.NewReader(body))
	var open []string
	seen := map[string]int{}
	for {
		tt := z.Next()
		if tt == html.ErrorToken {
			if z.Err() != io.EOF {
				t.Fatal(z.Err())
			}
			break
		}
		tok := z.Token()
		switch tt {
		case html.StartTagToken:
			switch ours := tok.String(); ours { // script and forms of ours, as they are
			case `<script src="/live.js" defer="">`, `<form class="filter" method="get" action="/" role="search">`:
			default:
				seen[tok.Data]++
			}
			for _, a := range tok.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc" {
					t.Errorf("<%s %s=%q>", tok.Data, a.Key, a.Val)
				}
				if (a.Key == "href" || a.Key == "src") && strings.HasPrefix(strings.ToLower(a.Val), "javascript:") {
					t.Errorf("<%s %s=%q>", tok.Data, a.Key, a.Val)
				}
			}
			if !voids.MatchString(tok.Data) {
				open = append(open, tok.Data)
			}
		case html.EndTagToken:
			if len(open) == 0 || open[len(open)-1] != tok.Data {
				t.Fatalf("</%s> where %q is open", tok.Data, open)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("not closed: %q", open)
	}
	for _, never := range []string{"script", "img", "iframe", "form", "style"} {
		if seen[never] > 0 {
			t.Errorf("%d <%s> on the page", seen[never], never)
		}
	}
	for _, once := range []string{"main", "h1", "title"} {
		if seen[once] != 1 {
			t.Errorf("%d <%s> on the page", seen[once], once)
		}
	}
	if !strings.Contains(body, `<html lang="en">`) || !strings.Contains(body, `name="viewport"`) {
		t.Error("no language or no viewport")
	}
}

func TestSessionAsJSON(t *testing.T) {
	s := newSite(t)
	stdout := s.delivered("abcdefghij")
	w := s.get("/sessions/abcdefghij.json")
	var got SessionJSON
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err, w.Body)
	}
	if got.Session != "abcdefghij" || got.State != "delivered" || !got.Terminal || !got.Reported || got.Conclusion != "success" ||
		got.PullRequest != 13 || got.Branch != "inspect/12-x" || got.HeadSHA != strings.Repeat("c", 40) || got.CheckRunID != 77 ||
		got.Verify.Passed != 42 || got.Verify.Failed != 0 || got.Verify.Skipped != 1 || len(got.Verify.Commands) != 1 ||
		got.Harness != "scripted" || got.Generation != 1 || got.Times.RestoreMS != 120 || got.Times.WorkMS != 2000 || got.Times.Finished == nil ||
		got.Agent.ToolCalls != 14 || got.Model == nil || got.Model.Cost != 123_400_000 || len(got.Egress.Refused) != 2 || got.Instructions != strings.Repeat("7", 64) ||
		len(got.Services) != 1 || got.Data == "" || got.Receipt == nil || got.Receipt.PullRequest != 13 || got.Snapshot == nil || !got.Snapshot.Drift || got.Repository != "octocat/parcel" || got.Issue != 12 {
		t.Errorf("got %s", w.Body)
	}
	found := false
	for _, f := range got.Files {
		found = found || f.SHA256 == stdout && f.URL != "" && f.Bytes == int64(len("output "+evil))
	}
	if !found {
		t.Errorf("the output of a command is not listed: %+v", got.Files)
	}
	if ct := w.Header().Get("Content-Type"); ct != "application/json" {
		t.Errorf("type %s", ct)
	}
	if w := s.get("/sessions/nosuchone.json"); w.Code != 404 || !json.Valid(w.Body.Bytes()) {
		t.Errorf("missing: %d %s", w.Code, w.Body)
	}
}

func TestLivePageReadsItselfAgain(t *testing.T) {
	s := newSite(t)
	s.session("waiting", "Mend it")
	w := s.get("/sessions/waiting")
	body := w.Body.String()
	if !strings.Contains(body, `http-equiv="refresh"`) || !strings.Contains(body, "two others are before it") || !strings.Contains(body, "Nothing has happened yet") {
		t.Errorf("got %s", body)
	}
	checkHTML(t, body)
	if b := s.get("/sessions/waiting?still").Body.String(); strings.Contains(b, "http-equiv") || !strings.Contains(b, "holds still") {
		t.Error("the page does not hold still")
	}
	// The end counts once it is told on GitHub.
	s.sql(`UPDATE sessions SET state = 'failed', finished_at = now() WHERE id = 'waiting'`)
	if b := s.get("/sessions/waiting").Body.String(); !strings.Contains(b, "http-equiv") {
		t.Error("the page stops before the end was told")
	}
	s.sql(`UPDATE sessions SET reported_at = now() WHERE id = 'waiting'`)
	if b := s.get("/sessions/waiting").Body.String(); strings.Contains(b, "http-equiv") {
		t.Error("the page goes on for ever")
	}
}

func TestEverySessionStateHasATitleAndAConclusion(t *testing.T) {
	for _, st := range storage.AllSessionStateValues() {
		v := stateView(st)
		if v.Title == string(st) || v.Title == "" {
			t.Errorf("%s has no title", st)
		}
		told := render.StateOf(string(st))
		if told.Ended != scheduler.Terminal(st) {
			t.Errorf("%s: people are told that it has ended: %v", st, told.Ended)
		}
		if (told.Conclusion == "") != (v.Class == "live" && st != scheduler.NeedsApproval) {
			t.Errorf("%s: conclusion %q, class %s", st, told.Conclusion, v.Class)
		}
	}
}

func TestBrokenColumnsDoNotBreakThePage(t *testing.T) {
	s := newSite(t)
	s.session("broken", "Mend it")
	s.sql(`UPDATE sessions SET outcome = '"x"', receipt = '[1]', spec = '7', snapshot_id = 'gone', words = 'still there' WHERE id = 'broken'`)
	s.sql(`INSERT INTO evidence (session_id, name, sha256, bytes) VALUES ('broken', 'manifest.json', $1, 5)`, sum64)
	s.event("broken", 1, "command", "not an object")
	s.event("broken", 2, "output", map[string]any{"text": 7})
	s.event("broken", 3, "state", nil)
	w := s.get("/sessions/broken")
	if w.Code != 200 || !strings.Contains(w.Body.String(), "still there") {
		t.Fatal(w.Code, w.Body)
	}
	checkHTML(t, w.Body.String())
	if w := s.get("/sessions/broken.json"); w.Code != 200 {
		t.Error(w.Code)
	}
}

func TestTimelineInPages(t *testing.T) {
	s := newSite(t)
	s.session("many", "Mend it")
	for i := 1; i <= eventsOnPage+20; i++ {
		s.event("many", i, "note", wire.Note{Words: fmt.Sprintf("note %d.", i)})
	}
	body := s.get("/sessions/many").Body.String()
	if strings.Contains(body, "note 20.") || !strings.Contains(body, "note 21.") || !strings.Contains(body, "before=21") {
		t.Error("the newest events are not the ones shown")
	}
	older := s.get("/sessions/many?before=21").Body.String()
	if !strings.Contains(older, "note 20.") || strings.Contains(older, "note 21.") || strings.Contains(older, "Earlier events") || strings.Contains(older, "http-equiv") {
		t.Error("the older page is wrong")
	}
	for _, bad := range []string{"x", "0", "-1", "99999999999999999999"} {
		if w := s.get("/sessions/many?before=" + bad); w.Code != 400 {
			t.Errorf("before=%s: %d", bad, w.Code)
		}
	}
}

// What happened reads as a sentence, and what is bad is marked.
func TestTimelineWords(t *testing.T) {
	zero, two := 0, 2
	for _, c := range []struct {
		kind          string
		data          any
		title, detail string
		mark          string // bad, quiet
	}{
		{wire.EventMessage, wire.Message{Text: "The tests pass."}, "The agent: The tests pass.", "", ""},
		{wire.EventMessage, wire.Message{Text: "One.\nTwo."}, "The agent: One. Two.", "One.\nTwo.", ""},
		{wire.EventTool, wire.Tool{Name: "bash", Title: "Run the tests", Command: "npm test", ExitCode: &two, Duration: 2300 * time.Millisecond, Output: "1 failing"},
			"bash: npm test (exit status 2, 2.3 s)", "1 failing", "bad"},
		{wire.EventTool, wire.Tool{Name: "bash", Command: "cd a\nmake", ExitCode: &zero, Output: "ok"}, "bash: cd a make (done)", "cd a\nmake\n\nok", ""},
		{wire.EventTool, wire.Tool{Name: "edit", Title: "add.go", Files: []string{"add.go"}}, "edit: add.go", "", ""},
		{wire.EventTool, wire.Tool{Name: "patch", Files: []string{"a.go", "b.go"}}, "patch: a.go", "touched: a.go, b.go", ""},
		{wire.EventTool, wire.Tool{Name: "read", Title: "gone.go", Failed: true, Output: "no such file"}, "read: gone.go (failed)", "no such file", "bad"},
		{wire.EventTool, wire.Tool{Name: "todo"}, "todo", "", ""},
		{wire.EventPrompt, wire.Prompted{Prompt: 1}, "The agent was given its first prompt", "", ""},
		{wire.EventPrompt, wire.Prompted{Prompt: 1, Done: true}, "Prompt 1 is done", "", ""},
		{wire.EventPrompt, wire.Prompted{Prompt: 2, Author: "monalisa", Text: "And now?"}, "The agent was given prompt 2, of monalisa", "And now?", ""},
		{wire.EventPrompt, wire.Prompted{Prompt: 3, Text: "Wrap up."}, "The agent was given prompt 3, in our own words", "Wrap up.", ""},
		{wire.EventPrompt, wire.Prompted{Prompt: 2, Done: true, Failed: "the model refused"}, "Prompt 2 could not be worked on: the model refused", "", "bad"},
		{wire.EventUsage, wire.Usage{Model: "m", InputTokens: 100, CacheReadTokens: 20, OutputTokens: 5, Cost: 12_300_000, Priced: true, Reported: true, Spent: 20_000_000},
			"Model call: m, 120 tokens in (20 from the cache), 5 out; $0.0123, $0.02 so far", "", "quiet"},
		{wire.EventUsage, wire.Usage{Model: "m", InputTokens: 1, Cost: 10_000_000, Priced: true, Spent: 20_000_000},
			"Model call: m, 1 token in, 0 out; the provider never reported it, so it is counted with $0.01, $0.02 so far", "", "quiet"},
		{wire.EventUsage, wire.Usage{Model: "m", InputTokens: 9, OutputTokens: 1, Reported: true}, "Model call: m, 9 tokens in, 1 out; no price is configured", "", "quiet"},
		{wire.EventUsage, wire.Usage{Model: "m", Priced: true, Spent: 20_000_000}, "Model call: m, came to nothing", "", "quiet"},
		{wire.EventEgress, wire.Egress{Host: "proxy.golang.org", Port: 443, Allowed: true, Command: "go mod download"}, "Reached: proxy.golang.org:443 (go mod download)", "", "quiet"},
		{wire.EventEgress, wire.Egress{Host: "a.example", Port: 443, Reason: evidence.NotListed}, "Refused: a.example:443, because it is not in the environment's egress", "", "bad"},
		{wire.EventEgress, wire.Egress{Host: "a.example", Port: 443, Noise: true}, "Refused: a.example:443; the harness's own doing, not the agent's", "", "quiet"},
		{wire.EventEgress, wire.Egress{Reason: "5000 decisions were told"}, "Egress: 5000 decisions were told", "", "quiet"},
		{wire.EventService, wire.ServiceState{Name: "postgres", State: "ready", After: 1200 * time.Millisecond}, "Service postgres is ready, after 1.2 s", "", ""},
		{wire.EventService, wire.ServiceState{Name: "web", State: "failed", After: time.Second, Words: "it ended with status 1", Output: "EADDRINUSE"}, "Service web failed, after 1.0 s: it ended with status 1", "EADDRINUSE", "bad"},
		{scheduler.EventBuild, map[string]any{"pipeline": "acme/web", "number": 7, "state": "failed", "sha": "abc"}, "Build 7 of acme/web: failed", "of commit abc", ""},
		{wire.EventService, wire.ServiceState{Name: "web", State: "stopped", After: 120 * time.Millisecond}, "Service web stopped, in 120 ms", "", ""},
	} {
		data, err := json.Marshal(c.data)
		if err != nil {
			t.Fatal(err)
		}
		v := timeline([]storage.WebEventsRow{{Seq: 1, Kind: c.kind, Data: data}})[0]
		if v.Title != c.title || v.Detail != c.detail || v.Bad != (c.mark == "bad") || v.Quiet != (c.mark == "quiet") {
			t.Errorf("%s %s: %q, %q, bad %v, quiet %v", c.kind, data, v.Title, v.Detail, v.Bad, v.Quiet)
		}
	}
	// However much an event has, little of it is shown, and the end of output is.
	long := wire.Tool{Name: "bash", Command: strings.Repeat("c", 60<<10), Files: slices.Repeat([]string{"f"}, 10_000), Output: strings.Repeat("o\n", 20<<10) + "the end"}
	data, _ := json.Marshal(long)
	if v := timeline([]storage.WebEventsRow{{Kind: wire.EventTool, Data: data}})[0]; len(v.Title) > 300 || len(v.Detail) > maxDetail || !strings.HasSuffix(v.Detail, "the end") {
		t.Errorf("%d and %d bytes, %.40q", len(v.Title), len(v.Detail), v.Detail[len(v.Detail)-40:])
	}
}

// While a session runs, its page adds up what there is.
func TestWhatARunningSessionUses(t *testing.T) {
	s := newSite(t)
	s.session("running", "Mend it")
	pinned := spec.Spec{Harness: spec.Harness{Kind: "opencode", Model: "m"}, Egress: []string{"go"}, EgressGuessed: true}
	s.sql(`UPDATE sessions SET state = 'working', generation = 2, spec = $1, budget = 5000000000, spent = 30000000, held = 7, started_at = $2, snapshot_id = 'snap-1' WHERE id = 'running'`, s.json(pinned), s.clock.Now())
	s.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, created_at, published_at) VALUES ('snap-1', 'env-7-x', 'n1', 1, 'abc', 'd', 'ready', $1, $1)`, s.clock.Now())
	s.sql(`INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, state, cost, input_tokens, output_tokens, started_at) VALUES
		('running', 1, 'm', true, 9, 9, 'reported', 10000000, 100, 10, now()), ('running', 2, 'm', true, 9, 9, 'unreported', 20000000, 50, 0, now()),
		('running', 2, 'm', true, 9, 9, 'unreported', 0, 0, 0, now()), ('running', 2, 'm', true, 7, 3, 'open', 0, 0, 0, now())`)
	zero := 0
	for i, e := range []struct {
		kind string
		data any
	}{
		{"tool", wire.Tool{Name: "bash", Command: "make", ExitCode: &zero}},
		{"egress", wire.Egress{Host: "a.example", Port: 443, Command: "curl"}},
		{"phase", wire.Phase{Phase: "verifying"}},
		{"egress", wire.Egress{Host: "a.example", Port: 443, Command: "curl"}},
		{"egress", wire.Egress{Host: "noise.example", Port: 443, Noise: true}},
		{"egress", wire.Egress{Host: "b.example", Port: 443, Allowed: true}},
		{"egress", "broken"}, {"tool", nil}, {"tool", map[string]any{"name": 7, "files": "x", "command": true}},
	} {
		s.event("running", i+1, e.kind, e.data)
	}
	var got SessionJSON
	if err := json.Unmarshal(s.get("/sessions/running.json").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := evidence.Model{Name: "m", Calls: 1, InputTokens: 100, OutputTokens: 10, Cost: 10_000_000, Unreported: 2, UnreportedCost: 20_000_007, Failed: 1, Priced: true, Budget: 5_000_000_000}
	if got.Model == nil || *got.Model != want || got.Spent != 30_000_000 {
		t.Errorf("model %+v, spent %d", got.Model, got.Spent)
	}
	if d := cmp.Diff(evidence.Egress{Setup: []string{"go"}, Allowed: 1, Refused: []evidence.Refused{
		{Host: "a.example", Port: 443, Command: "curl", Count: 1},
		{Host: "a.example", Port: 443, Command: "curl", Count: 1, Verification: true},
		{Host: "noise.example", Port: 443, Count: 1, Noise: true, Verification: true},
	}}, got.Egress); d != "" {
		t.Error(d)
	}
	if got.Agent.ToolCalls != 3 || got.Agent.Commands != 2 {
		t.Errorf("agent %+v", got.Agent)
	}
	body := s.get("/sessions/running").Body.String()
	for _, want := range []string{"$0.03 of $5.00 so far", "100 tokens in, 10 out", "nothing is declared; for setup alone, guessed: <code>go</code>", "in verification", "; just made"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	checkHTML(t, body)
}

// A result that went to a repository without a forge has no issue and no pull request.
func TestSessionWithoutAForge(t *testing.T) {
	s := newSite(t)
	s.session("local", "Mend it")
	s.sql(`UPDATE sessions SET issue_number = 0, state = 'delivered', receipt = $1, finished_at = now(), reported_at = now() WHERE id = 'local'`,
		s.json(scheduler.Receipt{Branch: "inspect/x", HeadSHA: strings.Repeat("c", 40)}))
	for _, path := range []string{"/sessions/local", "/"} {
		body := s.get(path).Body.String()
		if strings.Contains(body, "#0") || strings.Contains(body, "ull request #") || strings.Contains(body, "read back from GitHub") {
			t.Errorf("%s names what is not there:\n%s", path, body)
		}
	}
}

func TestListsAsJSON(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/sessions.json", "/environments.json"} {
		if w := s.get(path); w.Code != 200 || strings.TrimSpace(w.Body.String()) != "[]" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if w := s.get(path, header("Authorization", "")); w.Code != 401 {
			t.Errorf("%s without the token: %d", path, w.Code)
		}
	}
	s.session("abc", "Mend it")
	for i, state := range []string{"retired", "failed"} {
		s.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, error, phases, created_at)
			VALUES ($1, 'env-7-x', 'n1', $2, 'abc', 'd', $3, 'no such module', '{"setup": 1500000000}', $4)`,
			fmt.Sprintf("snap-%d", i), i, state, s.clock.Now().Add(time.Duration(i)*time.Minute))
	}
	var sessions []ListedJSON
	var environments []EnvironmentJSON
	for path, into := range map[string]any{"/sessions.json": &sessions, "/environments.json": &environments} {
		if err := json.Unmarshal(s.get(path).Body.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
	if len(sessions) != 1 || sessions[0].Session != "abc" || sessions[0].State != "queued" || sessions[0].Repository != "octocat/parcel" || sessions[0].Issue != 12 {
		t.Errorf("sessions %+v", sessions)
	}
	if len(environments) != 1 || environments[0].Snapshot != "snap-1" || environments[0].State != "failed" || environments[0].Error != "no such module" || environments[0].PhasesMS["setup"] != 1500 {
		t.Errorf("environments %+v", environments)
	}
}

func TestList(t *testing.T) {
	s := newSite(t)
	if b := s.get("/").Body.String(); !strings.Contains(b, "There is no session yet") {
		t.Error("an empty list says nothing")
	} else {
		checkHTML(t, b)
	}
	for i := range listLength + 3 {
		s.session(fmt.Sprintf("s%d", i), fmt.Sprintf("Title %d. %s", i, evil))
	}
	body := s.get("/").Body.String()
	checkHTML(t, body)
	if n := strings.Count(body, `href="/sessions/`); n != listLength {
		t.Errorf("%d sessions on the page", n)
	}
	older := regexp.MustCompile(`href="(/\?before=[^"]+)"`).FindStringSubmatch(body)
	if older == nil {
		t.Fatal("no way to older sessions")
	}
	rest := s.get(strings.ReplaceAll(older[1], "&amp;", "&")).Body.String()
	if n := strings.Count(rest, `href="/sessions/`); n != 3 {
		t.Errorf("%d sessions on the second page", n)
	}
	if w := s.get("/?before=x"); w.Code != 400 {
		t.Errorf("got %d", w.Code)
	}
}

func TestEvidenceIsGivenAwayNotShown(t *testing.T) {
	s := newSite(t)
	sum := s.delivered("abcdefghij")
	s.session("other", "Other")
	// What the agent committed; nobody has looked whether it holds a secret.
	bundle := s.blob("abcdefghij", "bundle")
	s.sql(`INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip) VALUES ('abcdefghij', 1, 1, $1, 6, 'abc')`, bundle)
	if w := s.get("/sessions/abcdefghij"); strings.Contains(w.Body.String(), bundle) {
		t.Error("the page leads to a bundle that is no evidence")
	}
	w := s.get("/sessions/abcdefghij/files/" + sum + "?name=" + url.QueryEscape("unit\"\r\nX-Evil: 1\n../../x.html"))
	if w.Code != 200 || w.Body.String() != "output "+evil {
		t.Fatal(w.Code, w.Body)
	}
	h := w.Header()
	if cd := h.Get("Content-Disposition"); !regexp.MustCompile(`^attachment; filename="inspect-abcdefghij-[A-Za-z0-9._-]+"$`).MatchString(cd) {
		t.Errorf("disposition %q", cd)
	}
	if h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") || h.Get("X-Evil") != "" {
		t.Errorf("headers %v", h)
	}
	for _, path := range []string{
		"/sessions/other/files/" + sum, // another session's
		"/sessions/abcdefghij/files/" + sum64,
		"/sessions/abcdefghij/files/" + bundle,
		"/sessions/abcdefghij/files/x",
		"/sessions/abcdefghij/files/..%2f..%2fetc",
		"/sessions/..%2f/files/" + sum,
	} {
		if w := s.get(path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestWithoutDatabase(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.db.Close()
	if w := s.get("/", func(r *http.Request) { *r = *r.WithContext(ctx) }); w.Code != 500 || strings.Contains(w.Body.String(), "pool") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := s.get("/healthz"); w.Code != 503 {
		t.Errorf("health: %d", w.Code)
	}
}

func TestShortTokensAreRefused(t *testing.T) {
	for _, token := range []string{"", "short"} {
		if _, err := NewPages(PagesOptions{Token: token}); err == nil {
			t.Errorf("%q was accepted", token)
		}
	}
}

// The patch that the runner uploaded may hold what publishing found to be a
// secret: people see the one of the evidence.
func TestTheRunnersPatchIsNotShown(t *testing.T) {
	s := newSite(t)
	s.delivered("done")
	raw := s.blob("done", "a patch with a secret in it")
	s.sql(`INSERT INTO artifacts (session_id, sha256, bytes) VALUES ('done', $1, 5)`, raw)
	s.sql(`UPDATE sessions SET outcome = jsonb_set(outcome::jsonb, '{patch}', to_jsonb($1::text)) WHERE id = 'done'`, raw)
	for _, path := range []string{"/sessions/done", "/sessions/done.json"} {
		if w := s.get(path); w.Code != http.StatusOK || strings.Contains(w.Body.String(), raw) || !strings.Contains(w.Body.String(), "change.patch") {
			t.Errorf("%s: %d, or the runner's patch is among the files", path, w.Code)
		}
	}
}
