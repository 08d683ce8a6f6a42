package scheduler

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
	"inspect/storage/storagetest"
)

var (
	t0      = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	baseSHA = "1111111111111111111111111111111111111111"
	tipSHA  = "2222222222222222222222222222222222222222"
)

const nodeToken = "token of n1"

// world is everything around a scheduler, under the test's control.
type world struct {
	t       *testing.T
	db      *storage.DB
	blobs   *storage.Blobs
	clock   *proc.Fake
	engine  *fakeEngine
	effects *fakeEffects
	key     ed25519.PrivateKey
	o       Options
	n       int
}

// newWorld has a repository, a node that is alive, and no snapshot.
func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := context.Background()
	w := &world{t: t, db: storagetest.New(t), clock: proc.NewFake(t0), engine: newFakeEngine(), effects: newFakeEffects()}
	w.key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	blobs, err := storage.OpenBlobs(ctx, "file://"+filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	w.blobs = blobs
	w.sql("INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES (42, 7, 'octocat', 'hello', 'main'), (43, 7, 'octocat', 'other', 'main')")
	w.o = Options{
		DB: w.db, Blobs: blobs, Effects: w.effects, Engine: w.engine, Clock: w.clock,
		GrantKey: w.key, RunnerUID: 1234, Limits: Limits{Total: 2},
		CloneURL: func(r storage.Repository) string { return "https://git.example/" + r.Owner + "/" + r.Name + ".git" },
	}
	s := w.scheduler()
	if err := s.RegisterNode(ctx, "n1", hashOf(nodeToken)); err != nil {
		t.Fatal(err)
	}
	w.nodeAlive(s)
	return w
}

func (w *world) sql(q string, args ...any) {
	w.t.Helper()
	if _, err := w.db.SQL().Exec(q, args...); err != nil {
		w.t.Fatalf("%s: %v", q, err)
	}
}

// scheduler returns one more scheduler on the world's database.
func (w *world) scheduler() *Scheduler {
	w.t.Helper()
	s, err := New(w.o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.locks.close)
	return s
}

func (w *world) nodeAlive(s *Scheduler) {
	w.t.Helper()
	if err := s.NodeState(context.Background(), "n1", wire.NodeState{Version: 1, Work: []int64{}}); err != nil {
		w.t.Fatal(err)
	}
}

func testSpec() spec.Spec {
	sp := spec.Default()
	sp.Harness = spec.Harness{Kind: "command", Command: "scripted", Label: "scripted"}
	sp.Setup = spec.Steps("go build ./...")
	sp.Verify = []spec.Verify{{Name: "unit", Run: "go test ./...", Report: spec.ReportExit}}
	return sp
}

// create makes a session the way intake does.
func (w *world) create(s *Scheduler, edit ...func(*NewSession)) storage.Session {
	w.t.Helper()
	ctx := context.Background()
	w.n++
	w.clock.Advance(time.Microsecond) // no two are created at the same moment
	n := NewSession{
		InstallationID: 7, RepositoryID: 42, IssueNumber: w.n, IntentKey: fmt.Sprintf("label:%d", w.n),
		RequesterID: 1, RequesterLogin: "octocat", Title: "A bug", Request: "fix it", Prompt: "Fix the bug.",
		BaseBranch: "main", BaseSHA: baseSHA, Spec: testSpec(), SpecSource: spec.FileName,
	}
	for _, f := range edit {
		f(&n)
	}
	var sess storage.Session
	err := w.db.InTx(ctx, func(tx *storage.Tx) error {
		var err error
		if n.EnvironmentID, err = s.EnsureEnvironment(ctx, tx, n.RepositoryID, n.Spec, n.BaseBranch, n.BaseSHA); err != nil {
			return err
		}
		sess, err = s.Create(ctx, tx, n)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return sess
}

// get reads a session.
func (w *world) get(id string) storage.Session {
	w.t.Helper()
	s, err := w.db.Q().GetSession(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// look reconciles a session; errors of effects are the fakes' doing.
func (w *world) look(s *Scheduler, id string) storage.Session {
	w.t.Helper()
	if err := s.Reconcile(context.Background(), id); err != nil && !errors.Is(err, errFake) {
		w.t.Fatalf("reconciling: %v", err)
	}
	return w.get(id)
}

func (w *world) want(id string, state State, reason string) storage.Session {
	w.t.Helper()
	s := w.get(id)
	if s.State != state || s.Reason != reason {
		w.t.Fatalf("session is %s (%q: %s; queue: %s), want %s (%q)", s.State, s.Reason, s.Words, s.QueueReason, state, reason)
	}
	return s
}

// work takes the node's next item, which must be of the kind.
func (w *world) work(s *Scheduler, kind string) *wire.Work {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type answer struct {
		w   *wire.Work
		err error
	}
	got := make(chan answer, 1)
	go func() {
		work, err := s.NextWork(ctx, "n1")
		got <- answer{work, err}
	}()
	select {
	case a := <-got:
		if a.err != nil || a.w == nil || a.w.Kind != kind {
			w.t.Fatalf("the node got %+v (%v), want %s", a.w, a.err, kind)
		}
		return a.w
	case <-time.After(20 * time.Second):
		w.t.Fatalf("the node got no work, want %s", kind)
		return nil
	}
}

// prepare builds the snapshot that a node is asked for and publishes it.
func (w *world) prepare(s *Scheduler) string {
	w.t.Helper()
	work := w.work(s, wire.WorkRefresh)
	if err := s.Offer(context.Background(), "n1", offerOf(work)); err != nil {
		w.t.Fatal(err)
	}
	return work.Refresh.Snapshot
}

func offerOf(work *wire.Work) wire.SnapshotOffer {
	r := work.Refresh
	return wire.SnapshotOffer{
		Work: work.ID, Snapshot: r.Snapshot, Environment: r.Environment, Generation: r.Generation,
		Commit: r.Commit, ConfigDigest: r.ConfigDigest, Store: "dir", Bytes: 10,
		Phases: map[string]time.Duration{"setup": time.Second},
	}
}

// running brings a new session to its first attempt and returns its runner.
func (w *world) running(s *Scheduler, edit ...func(*NewSession)) (storage.Session, Runner) {
	w.t.Helper()
	sess := w.create(s, edit...)
	sess = w.look(s, sess.ID)
	if sess.State == Queued && sess.QueueReason == "building the snapshot" {
		w.prepare(s)
		sess = w.look(s, sess.ID)
	}
	if sess.State != Placing {
		w.t.Fatalf("session is %s: %s", sess.State, sess.QueueReason)
	}
	w.look(s, sess.ID)
	return w.get(sess.ID), w.runner(s, sess.ID)
}

// runner exchanges the secret of the attempt that the engine runs now.
func (w *world) runner(s *Scheduler, id string) Runner {
	w.t.Helper()
	ctx := context.Background()
	a, ok := w.engine.last(id)
	if !ok {
		w.t.Fatalf("the engine runs nothing for %s", id)
	}
	reply, err := s.Exchange(ctx, wire.TokenRequest{Session: a.Session, Generation: a.Generation, Secret: a.Secret})
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := s.Authenticate(ctx, reply.Token)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) phase(s *Scheduler, r Runner, phases ...string) {
	w.t.Helper()
	a, err := w.db.Q().GetAttempt(context.Background(), storage.GetAttemptParams{SessionID: r.Session, Generation: int32(r.Generation)})
	if err != nil {
		w.t.Fatal(err)
	}
	var events []wire.Event
	for i, p := range phases {
		events = append(events, wire.Event{Number: a.Acked + int64(i) + 1, Kind: wire.EventPhase, At: w.clock.Now(), Data: wire.Phase{Phase: p}})
	}
	reply, err := s.AppendEvents(context.Background(), r, events)
	if err != nil || reply.Acked != a.Acked+int64(len(phases)) {
		w.t.Fatalf("acked %d, %v", reply.Acked, err)
	}
}

// bundle uploads a bundle and returns its name.
func (w *world) bundle(s *Scheduler, r Runner, turn int, content string) string {
	w.t.Helper()
	sum := sumOf(content)
	if err := s.PutBundle(context.Background(), r, turn, tipSHA, sum, bytes.NewReader([]byte(content))); err != nil {
		w.t.Fatal(err)
	}
	return sum
}

func sumOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// verified uploads a bundle and reports a good outcome.
func (w *world) verified(s *Scheduler, r Runner) {
	w.t.Helper()
	sum := w.bundle(s, r, 1, "a bundle of "+r.Session)
	if err := s.Outcome(context.Background(), r, goodOutcome(sum)); err != nil {
		w.t.Fatal(err)
	}
}

func goodOutcome(bundle string) wire.Outcome {
	return wire.Outcome{
		Kind: wire.OutcomeVerified, Words: "Done.", Bundle: bundle, Tip: tipSHA, Tree: tipSHA,
		Results: []wire.VerifyResult{{Name: "unit", Run: "go test ./...", Report: "exit"}},
	}
}

// fakeEngine runs attempts in its head.
type fakeEngine struct {
	mu       sync.Mutex
	attempts map[string]*fakeAttempt // by session/generation
	order    []string
	startErr error
	stateErr error
	stopErr  error
	lost     bool // the answer to Start gets lost, once
	onStart  func(Attempt)
}

type fakeAttempt struct {
	Attempt
	starts int // processes really begun
	gone   bool
	stops  int
	log    string // what its runner wrote
	why    string // it is gone
	// forgotten counts how often the engine was told to let it go.
	forgotten int
}

func newFakeEngine() *fakeEngine { return &fakeEngine{attempts: map[string]*fakeAttempt{}} }

func (e *fakeEngine) Name() string { return "fake" }

func (e *fakeEngine) Start(_ context.Context, a Attempt) (json.RawMessage, error) {
	e.mu.Lock()
	if e.startErr != nil {
		defer e.mu.Unlock()
		return nil, e.startErr
	}
	key := fmt.Sprintf("%s/%d", a.Session, a.Generation)
	_, there := e.attempts[key]
	if !there {
		e.attempts[key] = &fakeAttempt{Attempt: a, starts: 1}
		e.order = append(e.order, key)
	}
	lost := e.lost
	e.lost = false
	onStart := e.onStart
	e.mu.Unlock()
	if lost {
		return nil, errFake
	}
	if onStart != nil && !there {
		onStart(a)
	}
	return json.Marshal(map[string]string{"key": key})
}

func (e *fakeEngine) by(ref json.RawMessage) *fakeAttempt {
	var r struct{ Key string }
	_ = json.Unmarshal(ref, &r)
	return e.attempts[r.Key]
}

func (e *fakeEngine) Stop(_ context.Context, ref json.RawMessage) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopErr != nil {
		return e.stopErr
	}
	if a := e.by(ref); a != nil {
		a.gone = true
		a.stops++
	}
	return nil
}

func (e *fakeEngine) State(_ context.Context, ref json.RawMessage) (EngineState, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stateErr != nil {
		return EngineUnknown, e.stateErr
	}
	if a := e.by(ref); a != nil && !a.gone {
		return EngineRunning, nil
	}
	return EngineGone, nil
}

func (e *fakeEngine) Logs(_ context.Context, ref json.RawMessage, max int) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.by(ref); a != nil {
		return []byte(a.log)[:min(len(a.log), max)], nil
	}
	return nil, nil
}

func (e *fakeEngine) List(context.Context) (out []Listed, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, a := range e.attempts {
		ref, _ := json.Marshal(map[string]string{"key": key})
		out = append(out, Listed{Session: a.Session, Generation: a.Generation, Ref: ref, Words: a.why})
	}
	return out, nil
}

func (e *fakeEngine) Forget(_ context.Context, ref json.RawMessage) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.by(ref); a != nil {
		a.gone = true
		a.forgotten++
	}
	return nil
}

// last is the newest attempt of a session that was started.
func (e *fakeEngine) last(session string) (fakeAttempt, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.order) - 1; i >= 0; i-- {
		if a := e.attempts[e.order[i]]; a.Session == session {
			return *a, true
		}
	}
	return fakeAttempt{}, false
}

func (e *fakeEngine) kill(session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.attempts {
		if a.Session == session {
			a.gone, a.why = true, "it could not be started: permission denied"
		}
	}
}

// fakeEffects does to a map what the real ones do to GitHub.
type fakeEffects struct {
	mu         sync.Mutex
	pushed     map[string]int // pushes really made
	publishes  int            // calls
	publishErr error          // before the effect
	lost       int            // this many answers get lost after the effect
	answer     func(storage.Session) (Published, error)
	begun      chan struct{} // told when a publish has begun, if set
	hold       chan struct{} // a publish waits for it, if set
	reports    map[string][]State
	reportErr  error
	tokens     int
	tokensDone []int64 // repositories
}

var errFake = errors.New("the fake fails as it was told")

func newFakeEffects() *fakeEffects {
	return &fakeEffects{pushed: map[string]int{}, reports: map[string][]State{}}
}

func (f *fakeEffects) Publish(ctx context.Context, s storage.Session) (Published, error) {
	f.mu.Lock()
	f.publishes++
	begun, hold := f.begun, f.hold
	f.mu.Unlock()
	if begun != nil {
		begun <- struct{}{}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return Published{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.publishErr != nil {
		return Published{}, f.publishErr
	}
	if f.answer != nil {
		return f.answer(s)
	}
	if f.pushed[s.ID] == 0 { // looked up before it is done again
		f.pushed[s.ID]++
	}
	if f.lost > 0 {
		f.lost--
		return Published{}, errFake
	}
	return Published{Receipt: &Receipt{
		Branch: "inspect/1-a-bug-" + s.ID, HeadSHA: tipSHA, Tree: tipSHA, PullRequest: 5, URL: "https://example/pull/5",
		EventsHead: hex.EncodeToString(s.EventsHead), EventsCount: s.EventsCount,
	}}, nil
}

func (f *fakeEffects) Report(_ context.Context, s storage.Session) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reportErr != nil {
		return f.reportErr
	}
	f.reports[s.ID] = append(f.reports[s.ID], s.State)
	return nil
}

func (f *fakeEffects) GitTokenDone(_ context.Context, repository int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokensDone = append(f.tokensDone, repository)
}

func (f *fakeEffects) GitToken(_ context.Context, repository, of int64) (wire.GitToken, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens++
	if of != repository {
		return wire.GitToken{Token: fmt.Sprintf("ghs_%d for %d", repository, of)}, nil
	}
	return wire.GitToken{Token: fmt.Sprintf("ghs_%d", repository)}, nil
}

func (f *fakeEffects) lastReport(id string) State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.reports[id]; len(r) > 0 {
		return r[len(r)-1]
	}
	return ""
}

func (f *fakeEffects) set(fn func(*fakeEffects)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
}

// codeOf is the code of a machine call's refusal.
func codeOf(err error) string {
	var we *wire.Error
	if errors.As(err, &we) {
		return we.Code
	}
	if err != nil {
		return "not a wire.Error: " + err.Error()
	}
	return ""
}
