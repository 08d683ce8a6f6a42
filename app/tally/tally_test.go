package tally

import (
	"context"
	"encoding/json"
	"math"
	"testing"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
	"inspect/storage/storagetest"
)

type world struct {
	t  *testing.T
	db *storage.DB
	n  map[string]int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: storagetest.New(t), n: map[string]int{}}
	w.exec(`INSERT INTO repositories (id, installation_id, owner, name) VALUES (7, 1, 'octocat', 'hello')`)
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', 7, 'd', '{}')`)
	for _, id := range []string{"one", "other"} {
		w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
			base_branch, base_sha, environment_id, spec, spec_source, deadline) VALUES ($1, 1, 7, 1, 'i-' || $1, 1, 'monalisa', 't', 'r', 'p', 'main', 'a', 'env-1', '{}', 's', now())`, id)
	}
	return w
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.db.SQL().Exec(query, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) event(session string, generation int, kind string, data any) {
	w.t.Helper()
	body, err := json.Marshal(data)
	if err != nil {
		w.t.Fatal(err)
	}
	w.n[session]++
	w.exec(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash) VALUES ($1, $2, $3, $4, $5, now(), '')`, session, w.n[session], generation, kind, string(body))
	w.exec(`UPDATE sessions SET events_count = $2 WHERE id = $1`, session, w.n[session])
}

func (w *world) session(id string) storage.Session {
	w.t.Helper()
	s, err := w.db.Q().PublishSession(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// However many places an agent knocks at, what is kept is bounded, and the
// agent's own come first.
func TestRefusedIsBounded(t *testing.T) {
	w := newWorld(t)
	w.exec(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash)
		SELECT 'one', n, 1, 'egress', json_build_object('host', 'h' || n || '.example', 'port', 443, 'allowed', false, 'noise', n % 2 = 0), now(), '' FROM generate_series(1, 1000) n`)
	w.n["one"] = 1000
	for range 3 {
		w.event("one", 1, wire.EventEgress, wire.Egress{Host: "often.example", Port: 8443, Command: "npm ci", Reason: evidence.NotListed})
	}
	w.event("other", 1, wire.EventEgress, wire.Egress{Host: "else.example", Port: 443})
	e, err := Egress(context.Background(), w.db.Q(), w.session("one"), spec.Spec{Egress: []string{"npm"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Refused) != evidence.MaxRefused || e.More != 1001-evidence.MaxRefused || len(e.Declared) != 1 || e.Setup != nil {
		t.Fatalf("%d refused, %d more, declared %q", len(e.Refused), e.More, e.Declared)
	}
	if first := e.Refused[0]; first != (evidence.Refused{Host: "often.example", Port: 8443, Command: "npm ci", Reason: evidence.NotListed, Count: 3}) {
		t.Errorf("the first is %+v", first)
	}
	for _, r := range e.Refused {
		if r.Noise || r.Host == "else.example" {
			t.Errorf("%+v is among them", r)
		}
	}
}

// A lost attempt that verified does not make what the next one's agent tries
// an attempt of verification.
func TestVerificationIsOfItsAttempt(t *testing.T) {
	w := newWorld(t)
	w.event("one", 1, wire.EventPhase, wire.Phase{Phase: "working"})
	w.event("one", 1, wire.EventEgress, wire.Egress{Host: "a.example", Port: 443})
	w.event("one", 1, wire.EventPhase, wire.Phase{Phase: "verifying"})
	w.event("one", 1, wire.EventEgress, wire.Egress{Host: "b.example", Port: 443})
	w.event("one", 2, wire.EventPhase, wire.Phase{Phase: "working"})
	w.event("one", 2, wire.EventEgress, wire.Egress{Host: "c.example", Port: 443})
	e, err := Egress(context.Background(), w.db.Q(), w.session("one"), spec.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range e.Refused {
		if r.Verification != (r.Host == "b.example") {
			t.Errorf("%+v", r)
		}
	}
	if len(e.Refused) != 3 {
		t.Errorf("%+v", e.Refused)
	}
}

func TestModelOfASessionWithoutOne(t *testing.T) {
	w := newWorld(t)
	m, err := Model(context.Background(), w.db.Q(), w.session("one"), spec.Spec{})
	if err != nil || m != (evidence.Model{}) {
		t.Errorf("%+v, %v", m, err)
	}
	w.exec(`INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, state, cost, input_tokens, started_at) VALUES
		('one', 1, 'm', false, 0, 0, 'reported', 0, 10, now()), ('one', 1, 'm', true, 5, 2, 'reported', 4, 10, now()), ('other', 1, 'm', true, 5, 2, 'reported', 4, 10, now())`)
	m, err = Model(context.Background(), w.db.Q(), w.session("one"), spec.Spec{Harness: spec.Harness{Model: "m"}})
	if err != nil || m != (evidence.Model{Name: "m", Calls: 2, InputTokens: 20, Cost: 4, Unpriced: 1}) {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestLastAction(t *testing.T) {
	w := newWorld(t)
	last := func() string {
		t.Helper()
		got, err := LastAction(context.Background(), w.db.Q(), w.session("one"))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := last(); got != "" {
		t.Errorf("before anything: %q", got)
	}
	for _, c := range []struct {
		kind string
		data any
		want string
	}{
		{wire.EventTool, wire.Tool{Name: "todo"}, "todo"},
		{wire.EventTool, wire.Tool{Name: "edit", Title: "add.go"}, "edit: add.go"},
		{wire.EventTool, wire.Tool{Title: "Edit add.go"}, "Edit add.go"},
		{wire.EventTool, wire.Tool{Name: "patch", Files: []string{"a.go", "b.go"}}, "patch: a.go"},
		{wire.EventTool, wire.Tool{Name: "bash", Title: "Run the tests", Command: "go test ./..."}, "go test ./..."},
		{wire.EventCommand, wire.Command{Step: "bundle", Line: "git bundle create"}, "go test ./..."},
		{wire.EventMessage, wire.Message{Text: "Done."}, "go test ./..."},
		{wire.EventCommand, wire.Command{Step: "verify:unit", Line: "make test"}, "make test"},
		{wire.EventTool, "broken", ""},
	} {
		w.event("one", 1, c.kind, c.data)
		if got := last(); got != c.want {
			t.Errorf("after %s %+v: %q", c.kind, c.data, got)
		}
	}
	// What happened long ago is not looked for.
	w.event("one", 1, wire.EventTool, wire.Tool{Name: "old"})
	w.exec(`UPDATE sessions SET events_count = events_count + $1 WHERE id = 'one'`, lookBack)
	if got := last(); got != "" {
		t.Errorf("long after: %q", got)
	}
}

// A runner tells the sums of its attempt again and again: the last of each
// attempt counts. What cannot be true does no harm.
func TestBytesOfAllAttempts(t *testing.T) {
	w := newWorld(t)
	w.event("one", 1, wire.EventUse, wire.EgressUse{Sent: 10, Received: 100})
	w.event("one", 1, wire.EventUse, wire.EgressUse{Sent: 15, Received: 100})
	w.event("one", 2, wire.EventUse, wire.EgressUse{Sent: 1, Received: 7})
	w.event("other", 1, wire.EventUse, wire.EgressUse{Sent: 1000})
	e, err := Egress(context.Background(), w.db.Q(), w.session("one"), spec.Spec{})
	if err != nil || e.Sent != 16 || e.Received != 107 {
		t.Errorf("%d and %d, %v", e.Sent, e.Received, err)
	}
	for generation := range 3 {
		w.event("one", 3+generation, wire.EventUse, wire.EgressUse{Sent: math.MaxInt64, Received: math.MaxInt64})
	}
	if e, err = Egress(context.Background(), w.db.Q(), w.session("one"), spec.Spec{}); err != nil || e.Sent < 1e15 {
		t.Errorf("%+v, %v", e, err)
	}
}
