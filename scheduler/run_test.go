package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/wire"
	"inspect/storage"
)

// runs starts a scheduler and returns the function that ends it.
func runs(t *testing.T, s *Scheduler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("running: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// eventually waits for the queue, whose time is the machine's.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(90 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			var states string
			rows, _ := w.db.SQL().Query("SELECT state || ' ' || queue_reason || ' ' || words, count(*) FROM sessions GROUP BY 1")
			for rows != nil && rows.Next() {
				var k string
				var n int
				_ = rows.Scan(&k, &n)
				states += fmt.Sprintf("\n%d× %s", n, k)
			}
			w.t.Fatalf("never: %s%s", what, states)
		}
	}
}

func (w *world) state(id string) State { return w.get(id).State }

// fast makes the world use the machine's clock and short waits.
func (w *world) fast() {
	w.o.Clock = proc.System()
	w.o.Times = Times{Check: 100 * time.Millisecond, Sweep: 50 * time.Millisecond, Drain: 5 * time.Second}
}

func TestFiftySessionsUnderLimitsByTwoSchedulers(t *testing.T) {
	w := newWorld(t)
	w.fast()
	w.o.Limits = Limits{Total: 5, PerRepository: 3}
	a, b := w.scheduler(), w.scheduler()
	w.nodeAlive(a)

	// A runner for each attempt: it works, and a fifth of them die once.
	var mu sync.Mutex
	var runners sync.WaitGroup
	active, most, died := map[int64]int{}, map[int64]int{}, map[string]bool{}
	total, mostTotal := 0, 0
	repositoryOf := func(id string) int64 { return w.get(id).RepositoryID }
	work := func(at Attempt) {
		ctx := context.Background()
		repo := repositoryOf(at.Session)
		mu.Lock()
		active[repo]++
		total++
		most[repo], mostTotal = max(most[repo], active[repo]), max(mostTotal, total)
		n := len(died)
		die := at.Generation == 1 && n < 10
		if die {
			died[at.Session] = true
		}
		mu.Unlock()
		over := func() { // before the scheduler can know of it
			mu.Lock()
			active[repo]--
			total--
			mu.Unlock()
		}
		reply, err := b.Exchange(ctx, wire.TokenRequest{Session: at.Session, Generation: at.Generation, Secret: at.Secret})
		if err != nil {
			t.Errorf("exchanging: %v", err)
			return
		}
		r, err := a.Authenticate(ctx, reply.Token)
		if err != nil {
			t.Errorf("authenticating: %v", err)
			return
		}
		if _, err := a.AppendEvents(ctx, r, []wire.Event{{Number: 1, Kind: wire.EventPhase, At: time.Now(), Data: wire.Phase{Phase: "working"}}}); err != nil {
			t.Errorf("telling of work: %v", err)
		}
		if die {
			over()
			w.engine.mu.Lock()
			w.engine.attempts[fmt.Sprintf("%s/%d", at.Session, at.Generation)].gone = true
			w.engine.mu.Unlock()
			return
		}
		sum := w.bundle(b, r, 1, "a bundle of "+at.Session)
		over()
		if err := b.Outcome(ctx, r, goodOutcome(sum)); err != nil {
			t.Errorf("telling the outcome: %v", err)
		}
		w.engine.kill(at.Session)
	}
	w.engine.onStart = func(at Attempt) { runners.Go(func() { work(at) }) }
	w.effects.lost = 7 // answers of publishes that get lost

	nodeCtx, nodeEnd := context.WithCancel(context.Background())
	defer nodeEnd()
	var node sync.WaitGroup
	node.Go(func() {
		for nodeCtx.Err() == nil {
			work, err := a.NextWork(nodeCtx, "n1")
			if err != nil || work == nil {
				continue
			}
			if work.Refresh != nil {
				err = a.Offer(nodeCtx, "n1", offerOf(work))
			} else {
				err = a.WorkDone(nodeCtx, "n1", work.ID, wire.WorkResult{OK: true})
			}
			if err != nil && nodeCtx.Err() == nil {
				t.Errorf("the node's work: %v", err)
			}
		}
	})
	defer node.Wait()
	defer nodeEnd()

	stopA, stopB := runs(t, a), runs(t, b)
	const sessions = 50
	for i := range sessions {
		w.create(a, func(n *NewSession) { n.RepositoryID = 42 + int64(i%2) })
		if i%10 == 0 {
			w.nodeAlive(a)
		}
	}
	w.eventually("all sessions are delivered and told", func() bool {
		if err := a.NodeState(context.Background(), "n1", wire.NodeState{Work: []int64{}}); err != nil {
			t.Errorf("the node's state: %v", err)
		}
		var n int
		if err := w.db.SQL().QueryRow("SELECT count(*) FROM sessions WHERE state = 'delivered' AND reported_at IS NOT NULL").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == sessions
	})
	runners.Wait()
	stopA()
	stopB()
	if mostTotal > 5 || most[42] > 3 || most[43] > 3 {
		t.Errorf("at most %d ran at once, %v by repository; the limits are 5 and 3", mostTotal, most)
	}
	if mostTotal < 2 {
		t.Errorf("never more than %d ran at once", mostTotal)
	}
	for id, n := range w.effects.pushed {
		if n != 1 {
			t.Errorf("session %s was pushed %d times", id, n)
		}
	}
	if len(w.effects.pushed) != sessions {
		t.Errorf("%d sessions pushed", len(w.effects.pushed))
	}
	for key, at := range w.engine.attempts {
		if at.starts != 1 {
			t.Errorf("attempt %s was started %d times", key, at.starts)
		}
		if want := map[bool]int{true: 2, false: 1}[died[at.Session]]; at.Generation > want {
			t.Errorf("session %s needed %d attempts", at.Session, at.Generation)
		}
	}
	rows, err := w.db.SQL().Query("SELECT id FROM sessions")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		if err := VerifyEvents(context.Background(), w.db.Q(), id, "", 0); err != nil {
			t.Error(err)
		}
	}
}

func TestRestartInTheMiddleOfPublishing(t *testing.T) {
	w := newWorld(t)
	setup := w.scheduler()
	sess, r := w.running(setup)
	w.fast()
	w.o.Times.Drain = time.Millisecond
	w.effects.begun, w.effects.hold = make(chan struct{}, 10), make(chan struct{})
	w.verified(setup, r)

	first := w.scheduler()
	stop := runs(t, first)
	<-w.effects.begun // and there it hangs
	stop()            // like a kill: the step is cut off
	w.want(sess.ID, Publishing, "")
	close(w.effects.hold)
	w.effects.set(func(f *fakeEffects) { f.begun = nil })
	runs(t, w.scheduler())
	w.eventually("delivered after the restart", func() bool { return w.state(sess.ID) == Delivered })
	if w.effects.pushed[sess.ID] != 1 {
		t.Fatalf("pushed %d times", w.effects.pushed[sess.ID])
	}
}

func TestDrainWaitsForRunningSteps(t *testing.T) {
	w := newWorld(t)
	setup := w.scheduler()
	sess, r := w.running(setup)
	w.fast()
	w.o.Times.Drain = time.Minute
	w.effects.begun, w.effects.hold = make(chan struct{}, 10), make(chan struct{})
	w.verified(setup, r)
	stop := runs(t, w.scheduler())
	<-w.effects.begun
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	close(w.effects.hold)
	<-stopped
	w.want(sess.ID, Delivered, "")
}

func TestASessionIsPublishedByOneSchedulerAtATime(t *testing.T) {
	w := newWorld(t)
	a, b := w.scheduler(), w.scheduler()
	sess, r := w.running(a)
	w.verified(a, r)
	w.effects.begun, w.effects.hold = make(chan struct{}, 10), make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- a.Reconcile(context.Background(), sess.ID) }()
	<-w.effects.begun
	for _, s := range []*Scheduler{a, b} {
		if err := s.Reconcile(context.Background(), sess.ID); !errors.Is(err, errBusy) {
			t.Errorf("a second one at the same time: %v", err)
		}
	}
	// The database connection that holds the lock is lost; the process lives on.
	w.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()")
	if err := a.Reconcile(context.Background(), sess.ID); !errors.Is(err, errBusy) {
		t.Errorf("after a lost connection: %v", err)
	}
	close(w.effects.hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.want(sess.ID, Delivered, "")
	if w.effects.publishes != 1 {
		t.Fatalf("published %d times", w.effects.publishes)
	}
}

func TestSweeperFindsWhatWasLost(t *testing.T) {
	w := newWorld(t)
	setup := w.scheduler()
	sess, r := w.running(setup)
	w.verified(setup, r)
	w.fast()
	var mu sync.Mutex
	handled := map[string]int{}
	w.o.Delivery = func(_ context.Context, guid string) error {
		mu.Lock()
		defer mu.Unlock()
		if handled[guid]++; handled[guid] == 1 && guid == "fails once" {
			return errFake
		}
		if guid == "hopeless" {
			return fmt.Errorf("no: %w", ErrPermanent)
		}
		return nil
	}
	w.sql(`INSERT INTO deliveries (guid, event, payload, next_try_at) VALUES
		('lost', 'issues', '', now()), ('fails once', 'issues', '', now()), ('hopeless', 'issues', '', now())`)
	w.sql("DELETE FROM river_job") // every job is lost
	w.sql("UPDATE sessions SET next_check_at = now() - interval '1 minute'")
	runs(t, w.scheduler())
	w.eventually("the session is delivered", func() bool { return w.state(sess.ID) == Delivered })
	status := func() map[string]string {
		out := map[string]string{}
		rows, err := w.db.SQL().Query("SELECT guid, status FROM deliveries")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var g, s string
			if err := rows.Scan(&g, &s); err != nil {
				t.Fatal(err)
			}
			out[g] = s
		}
		return out
	}
	w.eventually("all deliveries are handled", func() bool {
		s := status()
		return s["lost"] == "done" && s["fails once"] == "done" && s["hopeless"] == "failed"
	})
	mu.Lock()
	defer mu.Unlock()
	if handled["lost"] != 1 || handled["fails once"] != 2 || handled["hopeless"] != 1 {
		t.Fatalf("handled %v", handled)
	}
}

func TestDeliveryIsHandledByOneAtATime(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	begun, hold := make(chan struct{}), make(chan struct{})
	calls := 0
	w.o.Delivery = func(context.Context, string) error {
		calls++
		close(begun)
		<-hold
		return nil
	}
	a, b := w.scheduler(), w.scheduler()
	err := w.db.InTx(ctx, func(tx *storage.Tx) error {
		if _, err := tx.SQL().Exec("INSERT INTO deliveries (guid, event, payload) VALUES ('g', 'issues', '')"); err != nil {
			return err
		}
		return a.InsertDelivery(ctx, tx, "g")
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.deliver(ctx, "g") }()
	<-begun
	for _, s := range []*Scheduler{a, b} {
		if err := s.deliver(ctx, "g"); err != nil {
			t.Errorf("a second time: %v", err)
		}
	}
	close(hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := b.deliver(ctx, "g"); err != nil || calls != 1 {
		t.Fatalf("handled %d times (%v)", calls, err)
	}
	if err := b.deliver(ctx, "unknown"); err != nil {
		t.Fatal(err)
	}
}

func TestRolledBackWorkIsNeverDone(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	err := w.db.InTx(ctx, func(tx *storage.Tx) error {
		if err := s.InsertDelivery(ctx, tx, "g"); err != nil {
			return err
		}
		return errFake
	})
	if !errors.Is(err, errFake) {
		t.Fatal(err)
	}
	var n int
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM river_job").Scan(&n); err != nil || n != 0 {
		t.Fatalf("%d jobs (%v)", n, err)
	}
}

func TestRunnersThatDoNotEndAreEnded(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.verified(s, r)
	w.look(s, sess.ID)
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if a, _ := w.engine.last(sess.ID); a.gone {
		t.Fatal("the runner got no time to end by itself")
	}
	w.clock.Advance(reapGrace)
	w.engine.stopErr = errFake
	if err := s.Sweep(ctx); !errors.Is(err, errFake) {
		t.Fatalf("an error was swallowed: %v", err)
	}
	if w.attemptOf(sess.ID).ReapedAt.Valid {
		t.Fatal("forgotten although it runs")
	}
	w.engine.stopErr = nil
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if a, _ := w.engine.last(sess.ID); !a.gone || !w.attemptOf(sess.ID).ReapedAt.Valid {
		t.Fatal("the runner runs on")
	}
}
