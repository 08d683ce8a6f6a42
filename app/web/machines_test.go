package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/scheduler"
)

// The API is served from the scheduler itself.
var _ Machines = (*scheduler.Scheduler)(nil)

const (
	goodToken = "runner-token-canary-1"
	nodeToken = "node-token-canary-2"
	sum64     = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	sha40     = "0123456789abcdef0123456789abcdef01234567"
)

// fake is a scheduler that remembers what it was told.
type fake struct {
	calls    []string
	events   []wire.Event
	err      error // of every call but authentication
	poll     func(ctx context.Context) error
	work     *wire.Work
	artifact []byte
	outcome  wire.Outcome
	bundle   io.ReadCloser
}

func (f *fake) note(format string, a ...any) error {
	f.calls = append(f.calls, fmt.Sprintf(format, a...))
	return f.err
}

func (f *fake) Exchange(_ context.Context, r wire.TokenRequest) (wire.TokenReply, error) {
	return wire.TokenReply{Token: goodToken}, f.note("exchange %s %d", r.Session, r.Generation)
}

func (f *fake) Authenticate(_ context.Context, bearer string) (scheduler.Runner, error) {
	switch bearer {
	case goodToken:
		return scheduler.Runner{Session: "s1", Generation: 2}, nil
	case "old":
		return scheduler.Runner{}, &wire.Error{Code: "stale_generation", Message: "attempt 1 is over"}
	}
	return scheduler.Runner{}, &wire.Error{Code: "unauthorized", Message: "unknown token"}
}

func (f *fake) AuthenticateBeat(ctx context.Context, bearer string) (scheduler.Runner, error) {
	if bearer == "expired" {
		bearer = goodToken
	}
	return f.Authenticate(ctx, bearer)
}

func (f *fake) Spec(_ context.Context, r scheduler.Runner) (wire.Spec, error) {
	return wire.Spec{Session: r.Session, Generation: r.Generation}, f.note("spec")
}

func (f *fake) AppendEvents(_ context.Context, _ scheduler.Runner, e []wire.Event) (wire.EventsReply, error) {
	f.events = append(f.events, e...)
	return wire.EventsReply{Acked: int64(len(f.events))}, f.note("events %d", len(e))
}

func (f *fake) PutArtifact(_ context.Context, _ scheduler.Runner, sum string, r io.Reader) error {
	if f.err == nil {
		var err error
		if f.artifact, err = io.ReadAll(r); err != nil {
			return fmt.Errorf("storing: %w", err)
		}
	}
	return f.note("artifact %.4s", sum)
}

func (f *fake) PutBundle(_ context.Context, _ scheduler.Runner, turn int, tip, sum string, r io.Reader) error {
	_, _ = io.Copy(io.Discard, r)
	return f.note("bundle %d %.4s %.4s", turn, tip, sum)
}

func (f *fake) Bundle(context.Context, scheduler.Runner, string) (io.ReadCloser, error) {
	return f.bundle, f.note("get bundle")
}

func (f *fake) Directives(ctx context.Context, _ scheduler.Runner, after int64) (wire.DirectivesReply, error) {
	if f.poll != nil {
		return wire.DirectivesReply{}, f.poll(ctx)
	}
	return wire.DirectivesReply{Directives: []wire.Directive{}}, f.note("directives %d", after)
}

func (f *fake) Beat(_ context.Context, _ scheduler.Runner, h wire.Heartbeat) (wire.HeartbeatReply, error) {
	return wire.HeartbeatReply{Token: goodToken}, f.note("beat %s", h.Phase)
}

func (f *fake) Outcome(_ context.Context, _ scheduler.Runner, o wire.Outcome) error {
	f.outcome = o
	return f.note("outcome %s", o.Kind)
}

func (f *fake) Secrets(_ context.Context, r scheduler.Runner, names []string) (wire.SecretsReply, error) {
	return wire.SecretsReply{Values: map[string]string{"A": "value canary"}}, f.note("secrets %s %d %v", r.Session, r.Generation, names)
}

func (f *fake) NodeSecrets(_ context.Context, node string, id int64, names []string) (wire.SecretsReply, error) {
	return wire.SecretsReply{Values: map[string]string{"A": "value canary"}}, f.note("secrets %s %d %v", node, id, names)
}

func (f *fake) AuthenticateNode(_ context.Context, bearer string) (string, error) {
	if bearer != nodeToken {
		return "", &wire.Error{Code: "unauthorized", Message: "unknown node"}
	}
	return "n1", nil
}

func (f *fake) NodeState(_ context.Context, node string, s wire.NodeState) error {
	return f.note("state %s %s", node, s.Store)
}
func (f *fake) Refs(context.Context, string) (wire.Refs, error) { return wire.Refs{}, f.note("refs") }
func (f *fake) NextWork(context.Context, string) (*wire.Work, error) {
	return f.work, f.note("work")
}

func (f *fake) WorkDone(_ context.Context, _ string, id int64, r wire.WorkResult) error {
	return f.note("done %d %v", id, r.OK)
}

func (f *fake) Offer(_ context.Context, _ string, o wire.SnapshotOffer) error {
	return f.note("offer %s", o.Snapshot)
}

func (f *fake) NodeGitToken(_ context.Context, _ string, r wire.GitTokenRequest) (wire.GitToken, error) {
	return wire.GitToken{Token: "t"}, f.note("git token %d", r.RepositoryID)
}

type machine struct {
	*httptest.Server
	f   *fake
	log *bytes.Buffer
}

func newMachine(t *testing.T) *machine {
	m := &machine{f: &fake{}, log: &bytes.Buffer{}}
	h := NewMachines(MachinesOptions{Machines: m.f, Log: slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	m.Server = httptest.NewUnstartedServer(nil)
	m.Config = NewServer(h)
	m.Start()
	t.Cleanup(m.Close)
	return m
}

// do sends a request of a runner, or of a node for its paths, changed by edit.
func (m *machine) do(t *testing.T, method, path, body string, edit ...func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, m.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
	if strings.HasPrefix(path, "/node/") {
		req.Header.Set("Authorization", "Bearer "+nodeToken)
	} else {
		req.Header.Set("Authorization", "Bearer "+goodToken)
		req.Header.Set(wire.HeaderSession, "s1")
		req.Header.Set(wire.HeaderGeneration, "2")
	}
	for _, e := range edit {
		e(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(out)
}

func header(k, v string) func(*http.Request) {
	return func(r *http.Request) {
		if v == "" {
			r.Header.Del(k)
			return
		}
		r.Header.Set(k, v)
	}
}

func TestEveryRoute(t *testing.T) {
	for _, c := range []struct {
		method, path, body string
		status             int
		call, reply        string
	}{
		{"POST", "/runner/v1/token", `{"session":"s1","generation":2,"secret":"x"}`, 200, "exchange s1 2", `"token"`},
		{"GET", "/runner/v1/spec", "", 200, "spec", `"session":"s1"`},
		{"POST", "/runner/v1/events", `{"events":[{"number":1,"kind":"note","at":"2026-01-02T03:04:05Z","data":{"words":"hi","more":[1]}}]}`, 200, "events 1", `"acked":1`},
		{"PUT", "/runner/v1/artifacts/" + sum64, "content", 204, "artifact 0123", ""},
		{"PUT", "/runner/v1/bundle/3?tip=" + sha40 + "&sha256=" + sum64, "content", 204, "bundle 3 0123 0123", ""},
		{"GET", "/runner/v1/bundle/" + sum64, "", 200, "get bundle", "bundle content"},
		{"GET", "/runner/v1/directives?after=7", "", 200, "directives 7", `{"directives":[]}`},
		{"GET", "/runner/v1/directives", "", 200, "directives 0", `{"directives":[]}`},
		{"POST", "/runner/v1/secrets", `{"names":["A","B"]}`, 200, "secrets s1 2 [A B]", `{"values":{"A":"value canary"}}`},
		{"POST", "/node/v1/work/5/secrets", `{"names":["A"]}`, 200, "secrets n1 5 [A]", `{"values":{"A":"value canary"}}`},
		{"POST", "/runner/v1/heartbeat", `{"phase":"working"}`, 200, "beat working", `"token"`},
		{"POST", "/runner/v1/outcome", `{"kind":"no_change","words":"nothing","times":{"restore":0,"sync":0,"work":0,"bundle":0,"verify_restore":0,"verify":0}}`, 204, "outcome no_change", ""},
		{"GET", "/node/v1/refs", "", 200, "refs", `"sessions"`},
		{"GET", "/node/v1/work", "", 204, "work", ""},
		{"POST", "/node/v1/work/5", `{"ok":true}`, 204, "done 5 true", ""},
		{"POST", "/node/v1/snapshots", `{"work":1,"snapshot":"snap","environment":"e","generation":1,"commit":"c","config_digest":"d","store":"dir","bytes":1,"phases":{}}`, 204, "offer snap", ""},
		{"POST", "/node/v1/token", `{"repository_id":7}`, 200, "git token 7", `"token":"t"`},
		{"POST", "/node/v1/state", `{"node":"n1","version":1,"store":"dir","tier":"","limits":"","free_bytes":1,"clones":[],"snapshots":[]}`, 204, "state n1 dir", ""},
		{"GET", "/healthz", "", 200, "", "ok"},
	} {
		m := newMachine(t)
		m.f.bundle = io.NopCloser(strings.NewReader("bundle content"))
		status, out := m.do(t, c.method, c.path, c.body)
		if status != c.status || !strings.Contains(out, c.reply) {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, out)
		}
		if got := strings.Join(m.f.calls, ";"); got != c.call {
			t.Errorf("%s %s: called %q, want %q", c.method, c.path, got, c.call)
		}
		if strings.Contains(m.log.String(), "canary") {
			t.Errorf("%s %s: a body was logged", c.method, c.path)
		}
	}
}

// Neighbours are served, and what a newer machine says beyond what is known
// here is passed over. Every answer says our version; a refusal says both and
// what to update.
func TestVersionsOfMachines(t *testing.T) {
	const body = `{"phase":"working","of_tomorrow":true}`
	for _, c := range []struct {
		version, status int
		words           string
	}{
		{wire.Version - 2, 426, "update inspect on the node"},
		{wire.Version, 400, "not the JSON"},
		{wire.Version + 1, 200, ""},
		{wire.Version + 2, 426, "update the control plane"},
	} {
		m := newMachine(t)
		req, err := http.NewRequestWithContext(t.Context(), "POST", m.URL+"/runner/v1/heartbeat", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{
			"Authorization": "Bearer expired", wire.HeaderSession: "s1", wire.HeaderGeneration: "2", wire.HeaderVersion: strconv.Itoa(c.version),
		} {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.status || !strings.Contains(string(out), c.words) || resp.Header.Get(wire.HeaderVersion) != strconv.Itoa(wire.Version) {
			t.Errorf("version %d: %d, answered as version %q: %s", c.version, resp.StatusCode, resp.Header.Get(wire.HeaderVersion), out)
		}
		if c.status == 426 && !strings.Contains(string(out), fmt.Sprintf("version %d of the protocol and the control plane version %d", c.version, wire.Version)) {
			t.Errorf("version %d: %s", c.version, out)
		}
	}
}

func TestEventDataStaysAsItCame(t *testing.T) {
	m := newMachine(t)
	const data = `{"words":"hi","n":12345678901234567890,"deep":[{}]}`
	if status, out := m.do(t, "POST", "/runner/v1/events", `{"events":[{"number":1,"kind":"note","at":"2026-01-02T03:04:05Z","data":`+data+`}]}`); status != 200 {
		t.Fatal(status, out)
	}
	if raw, ok := m.f.events[0].Data.(json.RawMessage); !ok || string(raw) != data {
		t.Errorf("got %T %v", m.f.events[0].Data, m.f.events[0].Data)
	}
}

func TestWorkIsHandedOut(t *testing.T) {
	m := newMachine(t)
	m.f.work = &wire.Work{ID: 9, Kind: wire.WorkDiscard, Discard: &wire.SessionRef{Session: "s1"}}
	if status, out := m.do(t, "GET", "/node/v1/work", ""); status != 200 || !strings.Contains(out, `"id":9`) {
		t.Errorf("%d %s", status, out)
	}
}

func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", maxSmallBody)
	many := "[" + strings.Repeat(`{},`, maxBatch) + "{}]"
	for name, c := range map[string]struct {
		method, path, body string
		edit               func(*http.Request)
		status             int
		code               string
	}{
		"no version":            {"GET", "/runner/v1/spec", "", header(wire.HeaderVersion, ""), 426, "version"},
		"version of tomorrow":   {"GET", "/runner/v1/spec", "", header(wire.HeaderVersion, strconv.Itoa(wire.Version+2)), 426, "version"},
		"expired token":         {"GET", "/runner/v1/spec", "", header("Authorization", "Bearer expired"), 401, "unauthorized"},
		"version too old":       {"GET", "/runner/v1/spec", "", header(wire.HeaderVersion, strconv.Itoa(wire.Version-2)), 426, "version"},
		"version, for a token":  {"POST", "/runner/v1/token", "{}", header(wire.HeaderVersion, "x"), 426, "version"},
		"no token":              {"GET", "/runner/v1/spec", "", header("Authorization", ""), 401, "unauthorized"},
		"basic":                 {"GET", "/runner/v1/spec", "", header("Authorization", "Basic "+goodToken), 401, "unauthorized"},
		"wrong token":           {"GET", "/runner/v1/spec", "", header("Authorization", "Bearer nope"), 401, "unauthorized"},
		"endless token":         {"GET", "/runner/v1/spec", "", header("Authorization", "Bearer "+strings.Repeat("x", 5000)), 401, "unauthorized"},
		"a node's token":        {"GET", "/runner/v1/spec", "", header("Authorization", "Bearer "+nodeToken), 401, "unauthorized"},
		"a runner's token":      {"GET", "/node/v1/refs", "", header("Authorization", "Bearer "+goodToken), 401, "unauthorized"},
		"old attempt":           {"POST", "/runner/v1/outcome", "{}", header("Authorization", "Bearer old"), 409, "stale_generation"},
		"another generation":    {"GET", "/runner/v1/spec", "", header(wire.HeaderGeneration, "1"), 409, "stale_generation"},
		"no generation":         {"GET", "/runner/v1/spec", "", header(wire.HeaderGeneration, ""), 400, "bad_request"},
		"another session":       {"GET", "/runner/v1/spec", "", header(wire.HeaderSession, "s2"), 401, "unauthorized"},
		"no such path":          {"GET", "/runner/v1/nothing", "", nil, 404, "not_found"},
		"no such method":        {"DELETE", "/runner/v1/spec", "", nil, 404, "not_found"},
		"no JSON":               {"POST", "/runner/v1/heartbeat", "{", nil, 400, "bad_request"},
		"empty":                 {"POST", "/runner/v1/heartbeat", "", nil, 400, "bad_request"},
		"unknown member":        {"POST", "/runner/v1/heartbeat", `{"phase":"x","admin":true}`, nil, 400, "bad_request"},
		"two values":            {"POST", "/runner/v1/heartbeat", `{"phase":"x"}{}`, nil, 400, "bad_request"},
		"too large":             {"POST", "/runner/v1/heartbeat", `{"phase":"` + long + `"}`, nil, 413, "too_large"},
		"too large, after JSON": {"POST", "/runner/v1/heartbeat", `{"phase":"x"}` + strings.Repeat(" ", maxSmallBody), nil, 413, "too_large"},
		"token, too large":      {"POST", "/runner/v1/token", `{"secret":"` + long + `"}`, nil, 413, "too_large"},
		"too many events":       {"POST", "/runner/v1/events", `{"events":` + many + `}`, nil, 413, "too_large"},
		"event no JSON":         {"POST", "/runner/v1/events", `{"events":[{"number":"one"}]}`, nil, 400, "bad_request"},
		"artifact, bad name":    {"PUT", "/runner/v1/artifacts/..%2f..%2fetc", "x", nil, 400, "bad_request"},
		"artifact, upper case":  {"PUT", "/runner/v1/artifacts/" + strings.ToUpper(sum64), "x", nil, 400, "bad_request"},
		"bundle, no turn":       {"PUT", "/runner/v1/bundle/x?tip=" + sha40 + "&sha256=" + sum64, "x", nil, 400, "bad_request"},
		"bundle, turn -1":       {"PUT", "/runner/v1/bundle/-1?tip=" + sha40 + "&sha256=" + sum64, "x", nil, 400, "bad_request"},
		"bundle, no tip":        {"PUT", "/runner/v1/bundle/1?sha256=" + sum64, "x", nil, 400, "bad_request"},
		"bundle, tip no commit": {"PUT", "/runner/v1/bundle/1?tip=main&sha256=" + sum64, "x", nil, 400, "bad_request"},
		"bundle, no digest":     {"GET", "/runner/v1/bundle/1", "", nil, 400, "bad_request"},
		"after no number":       {"GET", "/runner/v1/directives?after=x", "", nil, 400, "bad_request"},
		"after negative":        {"GET", "/runner/v1/directives?after=-1", "", nil, 400, "bad_request"},
		"work no number":        {"POST", "/node/v1/work/x", "{}", nil, 400, "bad_request"},
		"secrets of no number":  {"POST", "/node/v1/work/x/secrets", "{}", nil, 400, "bad_request"},
		"secrets, no names":     {"POST", "/runner/v1/secrets", `{"names":"A"}`, nil, 400, "bad_request"},
		"secrets, unknown":      {"POST", "/runner/v1/secrets", "{}", header("Authorization", "Bearer "+nodeToken), 401, "unauthorized"},
		"secrets of the other":  {"POST", "/node/v1/work/5/secrets", "{}", header("Authorization", "Bearer "+goodToken), 401, "unauthorized"},
		"secrets, old attempt":  {"POST", "/runner/v1/secrets", `{"names":["A"]}`, header("Authorization", "Bearer old"), 409, "stale_generation"},
		"secrets, too many":     {"POST", "/runner/v1/secrets", `{"names":["` + long + `"]}`, nil, 413, "too_large"},
		"state of another node": {"POST", "/node/v1/state", `{"node":"n2"}`, nil, 400, "bad_request"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if c.edit == nil {
				c.edit = func(*http.Request) {}
			}
			status, out := m.do(t, c.method, c.path, c.body, c.edit)
			var e wire.Error
			if err := json.Unmarshal([]byte(out), &e); err != nil {
				t.Fatalf("%d %q: %v", status, out, err)
			}
			if status != c.status || e.Code != c.code || e.Message == "" {
				t.Errorf("got %d %+v, want %d %s", status, e, c.status, c.code)
			}
			if len(m.f.calls) > 0 {
				t.Errorf("called %q", m.f.calls)
			}
		})
	}
}

func TestErrorsOfTheScheduler(t *testing.T) {
	for code, status := range map[string]int{
		"stale_generation": 409, "unauthorized": 401, "too_large": 413, "not_found": 404, "version": 426,
		"bad_request": 400, "forbidden": 403, "unavailable": 503, "a code of tomorrow": 503,
	} {
		m := newMachine(t)
		m.f.err = fmt.Errorf("wrapped: %w", &wire.Error{Code: code, Message: "words"})
		got, out := m.do(t, "POST", "/runner/v1/heartbeat", `{"phase":"working"}`)
		if got != status || !strings.Contains(out, code) || !strings.Contains(out, "words") {
			t.Errorf("%s: %d %s", code, got, out)
		}
	}
	m := newMachine(t)
	m.f.err = errors.New("pq: password authentication failed for canary")
	if got, out := m.do(t, "GET", "/runner/v1/spec", ""); got != 503 || strings.Contains(out, "canary") || !strings.Contains(out, "unavailable") {
		t.Errorf("%d %s", got, out)
	}
	if !strings.Contains(m.log.String(), "password authentication failed") {
		t.Error("our own failure is not logged")
	}
}

// zeros is a body of n bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestUploadsAreBounded(t *testing.T) {
	m := newMachine(t)
	status, out := m.do(t, "PUT", "/runner/v1/bundle/1?tip="+sha40+"&sha256="+sum64, "", func(r *http.Request) {
		r.Body = io.NopCloser(zeros(wire.MaxBundleBytes + 1))
		r.ContentLength = wire.MaxBundleBytes + 1
		r.Header.Set("Expect", "100-continue")
	})
	if status != 413 || !strings.Contains(out, "too_large") || len(m.f.calls) > 0 {
		t.Errorf("announced: %d %s, called %q", status, out, m.f.calls)
	}
	// A body longer than it may be is an error to whoever stores it.
	rec := httptest.NewRecorder()
	c := &call{w: rec, r: httptest.NewRequest("PUT", "/", zeros(100))}
	c.r.ContentLength = -1
	err := c.upload(99, func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err })
	var tooLarge *http.MaxBytesError
	if !errors.As(err, &tooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestUploadNobodyWantsIsAnsweredAllTheSame(t *testing.T) {
	m := newMachine(t)
	m.f.err = &wire.Error{Code: "stale_generation", Message: "over"}
	status, _ := m.do(t, "PUT", "/runner/v1/artifacts/"+sum64, strings.Repeat("x", 900<<10))
	if status != 409 {
		t.Errorf("got %d", status)
	}
}

func TestLongPollEndsWithItsClient(t *testing.T) {
	m := newMachine(t)
	polling, ended := make(chan struct{}), make(chan error, 1)
	m.f.poll = func(ctx context.Context) error {
		close(polling)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-polling; cancel() }()
	req, err := http.NewRequestWithContext(ctx, "GET", m.URL+"/runner/v1/directives", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
	req.Header.Set("Authorization", "Bearer "+goodToken)
	req.Header.Set(wire.HeaderSession, "s1")
	req.Header.Set(wire.HeaderGeneration, "2")
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error("the client was not cancelled")
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the poll goes on without its client")
	}
}

type brokenBody struct{ n int }

func (b *brokenBody) Read(p []byte) (int, error) {
	if b.n++; b.n > 3 {
		return 0, errors.New("disk on fire")
	}
	return copy(p, "some bytes"), nil
}
func (b *brokenBody) Close() error { return nil }

func TestHalfABundleIsNotTakenForAWholeOne(t *testing.T) {
	m := newMachine(t)
	m.f.bundle = &brokenBody{}
	req, err := http.NewRequestWithContext(t.Context(), "GET", m.URL+"/runner/v1/bundle/"+sum64, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
	req.Header.Set("Authorization", "Bearer "+goodToken)
	req.Header.Set(wire.HeaderSession, "s1")
	req.Header.Set(wire.HeaderGeneration, "2")
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Error("the client does not see that it is half")
	}
}

func TestNoSecretIsLogged(t *testing.T) {
	m := newMachine(t)
	m.f.err = errors.New("something")
	m.do(t, "POST", "/runner/v1/token", `{"session":"s1","generation":2,"secret":"one-time-canary"}`)
	m.do(t, "GET", "/runner/v1/spec", "")
	m.do(t, "GET", "/node/v1/refs", "")
	m.do(t, "GET", "/runner/v1/spec", "", header("Authorization", "Bearer wrong-canary"))
	if log := m.log.String(); log == "" || strings.Contains(log, "canary") {
		t.Errorf("logged %s", log)
	}
}

func TestUnhealthy(t *testing.T) {
	h := NewMachines(MachinesOptions{Machines: &fake{}, Healthy: func(context.Context) error { return errors.New("no database") }})
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest("GET", "/healthz", nil))
	if rec.Code != 503 || strings.Contains(rec.Body.String(), "database") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}
