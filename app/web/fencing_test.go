package web

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/gateway"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
	"inspect/storage/storagetest"
)

// headEngine runs attempts in its head.
type headEngine struct {
	mu   sync.Mutex
	runs map[string]scheduler.Attempt // by session
	gone map[string]bool              // by reference
}

func (e *headEngine) Name() string { return "head" }

func (e *headEngine) Start(_ context.Context, a scheduler.Attempt) (json.RawMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs[a.Session] = a
	return json.Marshal(fmt.Sprintf("%s-g%d", a.Session, a.Generation))
}

func (e *headEngine) Stop(_ context.Context, ref json.RawMessage) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone[string(ref)] = true
	return nil
}

func (e *headEngine) State(_ context.Context, ref json.RawMessage) (scheduler.EngineState, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone[string(ref)] {
		return scheduler.EngineGone, nil
	}
	return scheduler.EngineRunning, nil
}

func (e *headEngine) Logs(context.Context, json.RawMessage, int) ([]byte, error) { return nil, nil }
func (e *headEngine) List(context.Context) ([]scheduler.Listed, error)           { return nil, nil }
func (e *headEngine) Forget(ctx context.Context, ref json.RawMessage) error      { return e.Stop(ctx, ref) }

// signingEngine vouches: its token is what it says.
type signingEngine struct{ *headEngine }

func (signingEngine) Identify(_ context.Context, token string) (scheduler.Identity, error) {
	session, generation, _ := strings.Cut(token, "/")
	g, err := strconv.Atoi(generation)
	return scheduler.Identity{Session: session, Generation: g, Allocation: "alloc of " + token, Node: "n1"}, err
}

type noEffects struct{}

func (noEffects) Publish(context.Context, storage.Session) (scheduler.Published, error) {
	return scheduler.Published{}, errors.New("nothing is published here")
}
func (noEffects) Report(context.Context, storage.Session) error { return nil }
func (noEffects) GitToken(context.Context, int64, int64) (wire.GitToken, error) {
	return wire.GitToken{}, nil
}
func (noEffects) GitTokenDone(context.Context, int64) {}

// Everything that an attempt which was replaced says is refused with 409, by the
// real API over the real scheduler; the same calls of the present one are not.
func TestEverythingOfAnOldGenerationIsRefused(t *testing.T) {
	for _, vouches := range []bool{false, true} {
		t.Run(fmt.Sprintf("vouches=%v", vouches), func(t *testing.T) { testFencing(t, vouches) })
	}
}

func testFencing(t *testing.T, vouches bool) {
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db := storagetest.New(t)
	blobs, err := storage.OpenBlobs(ctx, "file://"+filepath.Join(t.TempDir(), "blobs"))
	ok(err)
	t.Cleanup(func() { _ = blobs.Close() })
	engine := &headEngine{runs: map[string]scheduler.Attempt{}, gone: map[string]bool{}}
	clock := proc.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	o := scheduler.Options{
		DB: db, Blobs: blobs, Effects: noEffects{}, Engine: engine, Clock: clock,
		GrantKey: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32)), RunnerUID: 1234, Limits: scheduler.Limits{Total: 1},
	}
	if vouches {
		o.Engine = signingEngine{engine}
	}
	s, err := scheduler.New(o)
	ok(err)
	model, err := gateway.NewHandler(gateway.HandlerOptions{Ledger: s, Authenticate: func(r *http.Request) (wire.ModelCaller, error) {
		run, err := RunnerOf(s, r)
		if err != nil {
			return wire.ModelCaller{}, err
		}
		return s.ModelCaller(r.Context(), run)
	}})
	ok(err)
	srv := httptest.NewServer(NewMachines(MachinesOptions{Machines: s, Model: model}))
	t.Cleanup(srv.Close)

	// A session on its first attempt.
	_, err = db.SQL().Exec("INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES (42, 7, 'octocat', 'hello', 'main')")
	ok(err)
	token := sha256.Sum256([]byte("token of n1"))
	ok(s.RegisterNode(ctx, "n1", token[:]))
	ok(s.NodeState(ctx, "n1", wire.NodeState{Version: 1, Work: []int64{}}))
	sp := spec.Default()
	sp.Harness = spec.Harness{Kind: "command", Command: "scripted", Label: "scripted"}
	sp.Verify = []spec.Verify{{Name: "unit", Run: "true", Report: spec.ReportExit}}
	var sess storage.Session
	ok(db.InTx(ctx, func(tx *storage.Tx) error {
		env, err := s.EnsureEnvironment(ctx, tx, 42, sp, "main", sha40)
		if err != nil {
			return err
		}
		sess, err = s.Create(ctx, tx, scheduler.NewSession{
			InstallationID: 7, RepositoryID: 42, IssueNumber: 1, IntentKey: "label:1", RequesterID: 1, RequesterLogin: "octocat",
			Title: "A bug", Request: "fix it", Prompt: "Fix the bug.", BaseBranch: "main", BaseSHA: sha40,
			Spec: sp, SpecSource: spec.FileName, EnvironmentID: env,
		})
		return err
	}))
	ok(s.Reconcile(ctx, sess.ID))
	work, err := s.NextWork(ctx, "n1")
	ok(err)
	r := work.Refresh
	ok(s.Offer(ctx, "n1", wire.SnapshotOffer{
		Work: work.ID, Snapshot: r.Snapshot, Environment: r.Environment, Generation: r.Generation, Commit: r.Commit,
		ConfigDigest: r.ConfigDigest, Store: "dir", Phases: map[string]time.Duration{},
	}))
	ok(s.Reconcile(ctx, sess.ID))

	// do makes a call as an attempt.
	do := func(generation int, bearer, method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, srv.URL+path, strings.NewReader(body))
		ok(err)
		req.Header.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
		req.Header.Set(wire.HeaderSession, sess.ID)
		req.Header.Set(wire.HeaderGeneration, strconv.Itoa(generation))
		req.Header.Set("Authorization", "Bearer "+bearer)
		resp, err := http.DefaultClient.Do(req)
		ok(err)
		defer resp.Body.Close()
		var out bytes.Buffer
		_, err = out.ReadFrom(resp.Body)
		ok(err)
		return resp.StatusCode, out.String()
	}
	proof := func(generation int) string {
		a := engine.runs[sess.ID]
		q := wire.TokenRequest{Session: sess.ID, Generation: generation, Secret: a.Secret}
		if vouches {
			q = wire.TokenRequest{Session: sess.ID, Generation: generation, JWT: fmt.Sprintf("%s/%d", sess.ID, generation)}
		}
		b, err := json.Marshal(q)
		ok(err)
		return string(b)
	}
	exchange := func(generation int) (bearer, proved string) {
		proved = proof(generation)
		status, out := do(generation, "", "POST", "/runner/v1/token", proved)
		var reply wire.TokenReply
		if err := json.Unmarshal([]byte(out), &reply); status != 200 || err != nil {
			t.Fatalf("%d %s", status, out)
		}
		return reply.Token, proved
	}
	sum := func(content string) string {
		b := sha256.Sum256([]byte(content))
		return hex.EncodeToString(b[:])
	}
	old, oldProof := exchange(1)
	bundle := "work of the first attempt"
	if status, out := do(1, old, "PUT", "/runner/v1/bundle/1?tip="+sha40+"&sha256="+sum(bundle), bundle); status != 204 {
		t.Fatalf("%d %s", status, out)
	}

	calls := []struct{ name, method, path, body string }{
		{"spec", "GET", "/runner/v1/spec", ""},
		{"events", "POST", "/runner/v1/events", `{"events":[{"number":1,"kind":"phase","at":"2026-03-01T12:00:00Z","data":{"phase":"working"}}]}`},
		{"artifact", "PUT", "/runner/v1/artifacts/" + sum("content"), "content"},
		{"bundle", "PUT", "/runner/v1/bundle/2?tip=" + sha40 + "&sha256=" + sum("more"), "more"},
		{"get bundle", "GET", "/runner/v1/bundle/" + sum(bundle), ""},
		{"secrets", "POST", "/runner/v1/secrets", `{"names":[]}`},
		{"heartbeat", "POST", "/runner/v1/heartbeat", `{"phase":"working"}`},
		{"models", "GET", "/model/v1/models", ""},
		{"model call", "POST", "/model/v1/chat/completions", `{"model":"x","messages":[]}`},
		{"directives", "GET", "/runner/v1/directives", ""},
		{"outcome", "POST", "/runner/v1/outcome", `{"kind":"no_change","words":"nothing","times":{"restore":0,"sync":0,"work":0,"bundle":0,"verify_restore":0,"verify":0}}`},
	}
	// The machine is silent and gone: another attempt begins.
	engine.mu.Lock()
	engine.gone[fmt.Sprintf("%q", sess.ID+"-g1")] = true
	engine.mu.Unlock()
	ok(s.Reconcile(ctx, sess.ID))
	ok(s.Reconcile(ctx, sess.ID))
	now, _ := exchange(2)
	for _, c := range calls {
		if status, out := do(1, old, c.method, c.path, c.body); status != http.StatusConflict {
			t.Errorf("%s of the old attempt: %d %s", c.name, status, out)
		}
		// Its token does not become the present one's by saying so, nor the other way round.
		if status, out := do(2, old, c.method, c.path, c.body); status != http.StatusConflict {
			t.Errorf("%s of the old attempt as the present one: %d %s", c.name, status, out)
		}
		if status, out := do(1, now, c.method, c.path, c.body); status != http.StatusConflict {
			t.Errorf("%s of the present attempt as the old one: %d %s", c.name, status, out)
		}
	}
	if status, out := do(1, "", "POST", "/runner/v1/token", oldProof); status != http.StatusConflict {
		t.Errorf("the old proof: %d %s", status, out)
	}
	refs, err := s.Refs(ctx, "n1")
	ok(err)
	if len(refs.Over) != 1 || refs.Over[0] != (wire.SessionRef{Session: sess.ID, Generation: 1}) {
		t.Errorf("the node is told that %v are over", refs.Over)
	}
	// The present attempt is heard: what was refused above was refused for its age.
	for _, c := range calls {
		if c.name == "directives" { // held while there is none
			continue
		}
		if status, out := do(2, now, c.method, c.path, c.body); status == http.StatusConflict || status == http.StatusUnauthorized {
			t.Errorf("%s of the present attempt: %d %s", c.name, status, out)
		}
	}
	// An expired token says so too: its runner is to end, not to ask on.
	clock.Advance(20 * time.Minute)
	if status, out := do(1, old, "POST", "/runner/v1/heartbeat", `{"phase":"working"}`); status != http.StatusConflict {
		t.Errorf("the old token after it expired: %d %s", status, out)
	}
}
