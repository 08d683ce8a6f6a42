package scheduler

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

// fakePlacer is a fakeEngine with several machines.
type fakePlacer struct {
	*fakeEngine
	mu      sync.Mutex
	room    []NodeRoom
	roomErr error
	asked   int
	waiting map[string]Wait // by session
	waitErr error
}

func (p *fakePlacer) Room(context.Context) ([]NodeRoom, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	return p.room, p.roomErr
}

func (p *fakePlacer) Waits(_ context.Context, ref json.RawMessage) (Wait, error) {
	p.fakeEngine.mu.Lock()
	a := p.by(ref)
	p.fakeEngine.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting[a.Session], p.waitErr
}

func (p *fakePlacer) set(fn func(*fakePlacer)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(p)
}

const gib = 1 << 30

// machine is a node that has room for two usual sessions.
func machine(name string) NodeRoom {
	return NodeRoom{Node: name, Eligible: true, CPU: 8, Memory: 10 * gib, OthersCPU: 1, OthersMemory: gib, Overhead: 256 << 20}
}

// newCluster is a world whose engine has machines.
func newCluster(t *testing.T, room ...NodeRoom) (*world, *fakePlacer, *Scheduler) {
	t.Helper()
	w := newWorld(t)
	p := &fakePlacer{fakeEngine: w.engine, room: room, waiting: map[string]Wait{}}
	w.o.Engine, w.o.Limits.Total = p, 10
	return w, p, w.scheduler()
}

// node registers one more and has it heard of, with the snapshots it has.
func (w *world) node(s *Scheduler, name string, snapshots ...string) {
	w.t.Helper()
	ctx := context.Background()
	if err := s.RegisterNode(ctx, name, hashOf("token of "+name)); err != nil {
		w.t.Fatal(err)
	}
	if err := s.NodeState(ctx, name, wire.NodeState{Version: 1, Work: []int64{}, Snapshots: snapshots}); err != nil {
		w.t.Fatal(err)
	}
}

// ready has a snapshot of the sessions' environment on the node n1.
func (w *world) ready(s *Scheduler) string {
	w.t.Helper()
	w.create(s)
	snapshot := w.prepare(s)
	w.sql("DELETE FROM events")
	w.sql("DELETE FROM attempts")
	w.sql("DELETE FROM sessions")
	return snapshot
}

// offerOn publishes the snapshot that a node was asked for.
func (w *world) offerOn(s *Scheduler, node string, row storage.NodeWork) {
	w.t.Helper()
	var work wire.Work
	if err := json.Unmarshal(row.Data, &work); err != nil {
		w.t.Fatal(err)
	}
	work.ID = row.ID
	if err := s.Offer(context.Background(), node, offerOf(&work)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) sweep(s *Scheduler) {
	w.t.Helper()
	if err := s.Sweep(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) waits(id, reason string) storage.Session {
	w.t.Helper()
	sess := w.want(id, Queued, "")
	if sess.QueueReason != reason {
		w.t.Fatalf("it waits for %q, want %q", sess.QueueReason, reason)
	}
	return sess
}

func memory(n int64) func(*NewSession) {
	return func(s *NewSession) { s.Spec.Limits.MemoryBytes, s.Spec.Limits.Concurrent = n, 100 }
}

// over ends a session's attempt for good, with its processes.
func (w *world) over(s *Scheduler, id string) {
	w.t.Helper()
	if err := s.Stop(context.Background(), id, "hubot", ""); err != nil {
		w.t.Fatal(err)
	}
	w.engine.kill(id)
	w.look(s, id)
	w.want(id, Stopped, ReasonStopped)
}

func TestSessionsArePlacedByRoom(t *testing.T) {
	w, p, s := newCluster(t, machine("n1"))
	w.ready(s)
	first := w.create(s, memory(4*gib))
	second := w.create(s, memory(4*gib))
	third := w.create(s, memory(4*gib))
	w.look(s, third.ID)
	w.want(first.ID, Placing, "")
	w.want(second.ID, Placing, "")
	w.waits(third.ID, "no node has 4 GiB and 2 cores free now")

	// What was stopped holds its room until the engine has confirmed it.
	w.look(s, first.ID)
	p.fakeEngine.mu.Lock()
	p.stateErr, p.stopErr = errFake, errFake
	p.fakeEngine.mu.Unlock()
	w.phase(s, w.runner(s, first.ID), "working")
	w.sql("UPDATE sessions SET state = 'failed', finished_at = now(), version = version + 1 WHERE id = $1", first.ID)
	w.sql("UPDATE attempts SET ended_at = now() WHERE session_id = $1", first.ID)
	if err := s.Sweep(context.Background()); !errors.Is(err, errFake) {
		t.Fatal(err)
	}
	w.waits(third.ID, "no node has 4 GiB and 2 cores free now")
	p.fakeEngine.mu.Lock()
	p.stateErr, p.stopErr = nil, nil
	p.fakeEngine.mu.Unlock()
	w.engine.kill(first.ID)
	w.sweep(s) // nobody else told that there is room
	if got := w.want(third.ID, Placing, ""); got.QueueReason != "" || got.QueueAt.Valid || got.QueuePosition != 0 {
		t.Errorf("it is placed and waits for %q", got.QueueReason)
	}
	w.look(s, third.ID)
	a, _ := w.engine.last(third.ID)
	if a.Node != "n1" || a.Repository != "octocat/hello" || a.Environment != third.EnvironmentID || a.Commit != baseSHA ||
		a.CPU != 2 || a.Memory != 4*gib || !a.Deadline.After(w.clock.Now()) {
		t.Errorf("the engine was asked for %+v", a.Attempt)
	}
}

func TestWhatFitsNowhereHoldsNobodyUp(t *testing.T) {
	w, _, s := newCluster(t, machine("n1"))
	w.ready(s)
	huge := w.create(s, memory(32*gib), func(n *NewSession) { n.Priority = 5 })
	wide := w.create(s, memory(4*gib), func(n *NewSession) { n.Spec.Limits.CPU = 16 })
	both := w.create(s, memory(32*gib), func(n *NewSession) { n.Spec.Limits.CPU = 16 })
	small := w.create(s, memory(4*gib))
	w.look(s, small.ID)
	w.waits(huge.ID, "no node with 32 GiB")
	w.waits(wide.ID, "no node with 16 cores")
	w.waits(both.ID, "no node with 32 GiB and 16 cores")
	w.want(small.ID, Placing, "")
}

func TestSmallSessionsDoNotStarveABigOne(t *testing.T) {
	w, _, s := newCluster(t, machine("n1"))
	w.ready(s)
	first := w.create(s, memory(4*gib))
	w.look(s, first.ID)
	w.want(first.ID, Placing, "")
	w.look(s, first.ID)
	big := w.create(s, memory(8*gib))
	small := w.create(s, memory(4*gib)) // would have room
	w.look(s, small.ID)
	w.waits(big.ID, "no node has 8 GiB and 2 cores free now")
	w.waits(small.ID, "no node has 4 GiB and 2 cores free now")
	urgent := w.create(s, memory(4*gib), func(n *NewSession) { n.Priority = 1 })
	w.look(s, urgent.ID)
	w.want(urgent.ID, Placing, "") // goes ahead of it
	w.look(s, urgent.ID)
	w.over(s, first.ID)
	w.over(s, urgent.ID)
	w.sweep(s)
	w.want(big.ID, Placing, "")
	w.waits(small.ID, "no node has 4 GiB and 2 cores free now")
}

func TestAnotherNodeWithRoomPrepares(t *testing.T) {
	w, _, s := newCluster(t, NodeRoom{Node: "n1", Eligible: true, CPU: 2, Memory: 5 * gib}, machine("n2"))
	w.node(s, "n2")
	w.ready(s)
	first, second := w.create(s, memory(4*gib)), w.create(s, memory(4*gib))
	w.look(s, second.ID)
	w.want(first.ID, Placing, "")
	w.waits(second.ID, "no node has 4 GiB and 2 cores free now")
	row, err := s.takeWork(context.Background(), "n2", w.clock.Now())
	if err != nil || row.Kind != wire.WorkRefresh {
		t.Fatalf("%+v, %v", row, err)
	}
	w.offerOn(s, "n2", row)
	if got := w.want(second.ID, Placing, ""); got.Node != "n2" {
		t.Errorf("placed on %s", got.Node)
	}
}

func TestDraining(t *testing.T) {
	w, p, s := newCluster(t, machine("n1"), machine("n2"))
	w.ready(s)
	running := w.create(s)
	w.look(s, running.ID)
	w.look(s, running.ID)
	w.sql("UPDATE nodes SET draining = true")
	sess := w.create(s)
	w.look(s, sess.ID)
	w.waits(sess.ID, "no node takes sessions now: n1 is draining")
	w.phase(s, w.runner(s, running.ID), "working")
	w.want(running.ID, Working, "")
	// Nor does it prepare anything.
	other := w.create(s, func(n *NewSession) { n.RepositoryID = 43 })
	w.look(s, other.ID)
	w.sql("UPDATE nodes SET draining = false")
	p.set(func(p *fakePlacer) { p.room[0].Eligible = false })
	w.clock.Advance(time.Minute)
	w.nodeAlive(s)
	w.look(s, sess.ID)
	if got := w.waits(sess.ID, "no node takes sessions now: n1 is not ready or draining in the cluster"); got.QueuePosition != 1 {
		t.Errorf("position %d", got.QueuePosition)
	}
	if row, err := s.takeWork(context.Background(), "n1", w.clock.Now()); !storage.IsMissing(err) {
		t.Errorf("a draining node was given %+v, %v", row, err)
	}
	p.set(func(p *fakePlacer) { p.room = nil })
	w.look(s, sess.ID)
	w.waits(sess.ID, "no node takes sessions now: n1 is no node of the cluster")
	p.set(func(p *fakePlacer) { p.room = []NodeRoom{machine("n1")} })
	w.sweep(s)
	w.want(sess.ID, Placing, "")
}

func TestDrainingWithOneMachine(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	w.ready(s)
	w.sql("UPDATE nodes SET draining = true")
	sess := w.create(s)
	w.look(s, sess.ID)
	w.waits(sess.ID, "no node takes sessions now: n1 is draining")
	fresh := w.create(s, func(n *NewSession) { n.RepositoryID = 43 })
	w.look(s, fresh.ID)
	if row, err := s.takeWork(context.Background(), "n1", w.clock.Now()); !storage.IsMissing(err) {
		t.Errorf("a draining node was given %+v, %v", row, err)
	}
	w.sql("UPDATE nodes SET draining = false")
	w.sweep(s)
	w.want(sess.ID, Placing, "")
	w.waits(fresh.ID, "building the snapshot")
}

func TestAnEngineThatIsAway(t *testing.T) {
	w, p, s := newCluster(t, machine("n1"))
	w.ready(s)
	p.set(func(p *fakePlacer) {
		p.roomErr, p.asked = &EngineTrouble{Words: "Nomad does not answer", Cause: errFake}, 0
	})
	sess := w.create(s)
	w.look(s, sess.ID)
	since := w.waits(sess.ID, "Nomad does not answer").QueueAt.Time
	if !since.Equal(w.clock.Now()) {
		t.Errorf("it waits since %s", since)
	}
	w.clock.Advance(time.Second)
	w.look(s, sess.ID)
	if p.asked != 1 {
		t.Errorf("the engine was asked %d times", p.asked)
	}
	w.clock.Advance(9 * time.Second)
	w.look(s, sess.ID)
	if p.asked != 2 {
		t.Errorf("the engine was asked %d times", p.asked)
	}
	got := w.waits(sess.ID, "Nomad does not answer")
	if !got.QueueAt.Time.Equal(since) || !got.NextCheckAt.After(w.clock.Now()) || got.NextCheckAt.After(w.clock.Now().Add(time.Minute)) {
		t.Errorf("since %s, next check %s", got.QueueAt.Time, got.NextCheckAt)
	}
	p.set(func(p *fakePlacer) { p.roomErr = nil })
	w.clock.Advance(30 * time.Second)
	w.nodeAlive(s)
	w.sweep(s)
	w.want(sess.ID, Placing, "")
}

func TestAnAttemptThatCannotBeStartedWaits(t *testing.T) {
	w, _, s := newCluster(t, machine("n1"))
	w.ready(s)
	w.engine.startErr = &EngineTrouble{Words: "Nomad has no namespace inspect", Cause: errFake}
	sess := w.create(s)
	w.look(s, sess.ID)
	for range 40 { // much longer than a runner may take for its first word
		got := w.look(s, sess.ID)
		if got.State != Placing || got.Generation != 1 || got.QueueReason != "Nomad has no namespace inspect" {
			t.Fatalf("%s, attempt %d: %q", got.State, got.Generation, got.QueueReason)
		}
		if wait := got.NextCheckAt.Sub(w.clock.Now()); wait <= 0 || wait > 30*time.Second {
			t.Fatalf("it is looked at again in %s", wait)
		}
		w.clock.Set(got.NextCheckAt)
	}
	w.clock.Advance(5 * time.Minute) // the control plane was away
	w.look(s, sess.ID)
	w.want(sess.ID, Placing, "")
	w.engine.mu.Lock()
	w.engine.startErr = nil
	w.engine.mu.Unlock()
	w.clock.Advance(5 * time.Minute)
	got := w.look(s, sess.ID)
	a := w.attemptOf(sess.ID)
	if got.State != Placing || got.Generation != 1 || got.QueueReason != "" || !got.Deadline.Equal(w.clock.Now().Add(2*time.Minute)) ||
		!a.EngineRef.Valid || !a.WorkDeadline.Equal(w.clock.Now().Add(57*time.Minute)) {
		t.Fatalf("%s %q until %s, work until %s", got.State, got.QueueReason, got.Deadline, a.WorkDeadline)
	}
	// A runner that then does not speak is a lost attempt.
	w.clock.Advance(2 * time.Minute)
	w.nodeAlive(s)
	w.look(s, sess.ID)
	if got := w.get(sess.ID); got.Generation != 2 {
		t.Errorf("%s, attempt %d", got.State, got.Generation)
	}
}

func TestAnAttemptThatNeverStartsEndsAtItsQueueTimeout(t *testing.T) {
	w, p, s := newCluster(t, machine("n1"))
	w.ready(s)
	w.engine.startErr = &EngineTrouble{Words: "the token that Inspect has for Nomad has expired"}
	refused := w.create(s)
	w.look(s, refused.ID)
	w.look(s, refused.ID)
	w.engine.startErr = nil
	blocked := w.create(s)
	p.set(func(p *fakePlacer) { p.waiting[blocked.ID] = Wait{Waiting: true, Words: "no node with 4 GiB"} })
	w.look(s, blocked.ID)
	w.look(s, blocked.ID)
	w.engine.startErr = &EngineTrouble{Words: "the token that Inspect has for Nomad has expired"}
	w.clock.Set(blocked.CreatedAt.Add(24 * time.Hour))
	for _, id := range []string{refused.ID, blocked.ID} {
		w.look(s, id)
		got := w.want(id, TimedOut, ReasonQueueTimeout)
		if !strings.HasPrefix(got.Words, "The session waited too long in the queue, 24h: ") || got.Generation != 1 {
			t.Errorf("words %q", got.Words)
		}
	}
	w.clock.Advance(time.Minute)
	w.sweep(s)
	if a, _ := w.engine.last(blocked.ID); !a.gone {
		t.Error("the attempt still waits for a node")
	}
}

func TestAnAttemptWithoutAMachineKeepsItsPlace(t *testing.T) {
	w, p, s := newCluster(t, machine("n1"))
	w.ready(s)
	sess := w.create(s)
	p.set(func(p *fakePlacer) { p.waiting[sess.ID] = Wait{Waiting: true, Words: "no node with 4 GiB"} })
	w.look(s, sess.ID)
	since := time.Time{}
	for range 30 {
		got := w.look(s, sess.ID)
		if got.State != Placing || got.Generation != 1 || got.QueueReason != "no node with 4 GiB" {
			t.Fatalf("%s, attempt %d: %q", got.State, got.Generation, got.QueueReason)
		}
		if since.IsZero() {
			since = got.QueueAt.Time
		}
		if !got.QueueAt.Time.Equal(since) {
			t.Fatalf("it waits since %s, and since %s", since, got.QueueAt.Time)
		}
		w.clock.Set(got.NextCheckAt)
	}
	p.set(func(p *fakePlacer) { p.waitErr = &EngineTrouble{Words: "Nomad does not answer"} })
	if got := w.look(s, sess.ID); got.State != Placing || got.QueueReason != "Nomad does not answer" {
		t.Fatalf("%s: %q", got.State, got.QueueReason)
	}
	p.set(func(p *fakePlacer) { p.waitErr, p.waiting[sess.ID] = nil, Wait{} })
	w.clock.Advance(10 * time.Second)
	got := w.look(s, sess.ID)
	if a := w.attemptOf(sess.ID); got.QueueReason != "" || !got.Deadline.Equal(w.clock.Now().Add(2*time.Minute)) || !a.WorkDeadline.Equal(w.clock.Now().Add(57*time.Minute)) {
		t.Errorf("%q until %s, work until %s", got.QueueReason, got.Deadline, a.WorkDeadline)
	}
}

func TestAnAttemptThatNoNodeCanTakeHoldsNobodyUp(t *testing.T) {
	w, p, _ := newCluster(t, machine("n1"))
	w.o.Limits.Total = 1
	s := w.scheduler()
	w.ready(s)
	hopeless := w.create(s, memory(8*gib))
	p.set(func(p *fakePlacer) {
		p.waiting[hopeless.ID] = Wait{Waiting: true, Words: "no node with the driver raw_exec"}
	})
	w.look(s, hopeless.ID)
	w.look(s, hopeless.ID)
	next := w.create(s, memory(8*gib))
	w.look(s, next.ID)
	w.waits(next.ID, "the one slot is taken")
	p.set(func(p *fakePlacer) {
		p.waiting[hopeless.ID] = Wait{Waiting: true, Never: true, Words: "no node with the driver raw_exec"}
	})
	w.clock.Advance(10 * time.Second)
	w.look(s, hopeless.ID)
	w.want(next.ID, Placing, "")
	if got := w.want(hopeless.ID, Placing, ""); got.QueueReason != "no node with the driver raw_exec" {
		t.Errorf("it waits for %q", got.QueueReason)
	}
	// Should it start all the same, it counts.
	w.runner(s, hopeless.ID)
	third := w.create(s)
	w.look(s, third.ID)
	w.waits(third.ID, "the one slot is taken")
}

func missingOutcome() wire.Outcome {
	return wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: wire.ReasonSnapshotMissing, Words: "Restore: there is no snapshot."}
}

func TestAMissingSnapshotIsPreparedAndTheSessionPlacedAgain(t *testing.T) {
	ctx := context.Background()
	w, _, s := newCluster(t, machine("n1"), machine("n2"))
	w.node(s, "n2")
	snapshot := w.ready(s)
	sess, r := w.running(s)
	if err := s.NodeState(ctx, "n1", wire.NodeState{Version: 1, Work: []int64{}, Snapshots: []string{}}); err != nil {
		t.Fatal(err)
	}
	w.sql("UPDATE snapshots SET state = 'ready', is_current = true") // it was published just now
	if err := s.Outcome(ctx, r, missingOutcome()); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.waits(sess.ID, "building the snapshot")
	sn, err := w.db.Q().GetSnapshot(ctx, snapshot)
	if err != nil || sn.State != snapshotRetired {
		t.Fatalf("the snapshot is %s, %v", sn.State, err)
	}
	next := w.prepare(s)
	if got := w.want(sess.ID, Placing, ""); got.Generation != 2 || got.SnapshotID != next {
		t.Fatalf("attempt %d from %s", got.Generation, got.SnapshotID)
	}
	// None of this counts as a failed attempt.
	for range 2 {
		w.look(s, sess.ID)
		w.engine.kill(sess.ID)
		w.look(s, sess.ID)
		w.sweep(s)
		w.want(sess.ID, Placing, "")
	}
	if got := w.get(sess.ID); got.Generation != 4 {
		t.Fatalf("attempt %d", got.Generation)
	}
	w.look(s, sess.ID)
	w.engine.kill(sess.ID)
	w.look(s, sess.ID)
	w.want(sess.ID, Infrastructure, ReasonAttemptsExhausted)
}

func TestASnapshotThatANodeSaysItHasIsNotTakenAgain(t *testing.T) {
	ctx := context.Background()
	w, _, s := newCluster(t, machine("n1"))
	snapshot := w.ready(s)
	sess, r := w.running(s)
	if err := s.NodeState(ctx, "n1", wire.NodeState{Version: 1, Work: []int64{}, Snapshots: []string{snapshot}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Outcome(ctx, r, missingOutcome()); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.waits(sess.ID, "building the snapshot")
	if sn, err := w.db.Q().GetSnapshot(ctx, snapshot); err != nil || sn.State != snapshotReady {
		t.Fatalf("a runner's word retired a snapshot: %s, %v", sn.State, err)
	}
	if other := w.create(s); w.look(s, other.ID).State != Placing {
		t.Error("nobody else may have it any more")
	}
	if work := w.work(s, wire.WorkRefresh); work.Refresh.From != "" {
		t.Errorf("made from %s", work.Refresh.From)
	}
}

func TestMissingSnapshotsAreBounded(t *testing.T) {
	ctx := context.Background()
	w, _, s := newCluster(t, machine("n1"))
	w.ready(s)
	sess, r := w.running(s)
	created := sess.CreatedAt
	for n := 1; ; n++ {
		if err := s.Outcome(ctx, r, missingOutcome()); err != nil {
			t.Fatal(err)
		}
		w.engine.kill(sess.ID)
		w.clock.Advance(time.Second)
		got := w.look(s, sess.ID)
		if got.State == Infrastructure && n == maxMissing {
			break
		}
		if got.State != Queued || !got.Deadline.Equal(created.Add(24*time.Hour)) {
			t.Fatalf("after %d: %s until %s", n, got.State, got.Deadline)
		}
		row, err := s.takeWork(ctx, "n1", w.clock.Now())
		for ; err == nil && row.Kind != wire.WorkRefresh; row, err = s.takeWork(ctx, "n1", w.clock.Now()) {
		}
		if err != nil {
			t.Fatal(err)
		}
		w.offerOn(s, "n1", row)
		w.sweep(s)
		w.look(s, sess.ID)
		r = w.runner(s, sess.ID)
	}
	if got := w.want(sess.ID, Infrastructure, ReasonSnapshotMissing); !strings.Contains(got.Words, "5 times") {
		t.Errorf("words %q", got.Words)
	}
}

func TestLimitsOfOwnersAndInstallations(t *testing.T) {
	w := newWorld(t)
	w.o.Limits = Limits{Total: 10, PerOwner: 2, PerInstallation: 3}
	s := w.scheduler()
	w.sql("INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES (44, 7, 'hubot', 'app', 'main')")
	w.ready(s)
	one := w.create(s)
	two := w.create(s, func(n *NewSession) { n.RepositoryID = 43 })
	w.prepare(s)
	w.want(one.ID, Placing, "")
	w.want(two.ID, Placing, "")
	third := w.create(s)
	w.look(s, third.ID)
	w.waits(third.ID, "limit 2 of octocat reached")
	four := w.create(s, func(n *NewSession) { n.RepositoryID = 44 })
	w.prepare(s)
	w.want(four.ID, Placing, "")
	five := w.create(s, func(n *NewSession) { n.RepositoryID = 44 })
	w.look(s, five.ID)
	w.waits(five.ID, "limit 3 of installation 7 reached")
}

func TestOpenPullRequestsAwaitReview(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	w.ready(s)
	few := func(n *NewSession) { n.Spec.Limits.OpenPullRequests = 1 }
	first, r := w.running(s, few)
	w.verified(s, r)
	w.look(s, first.ID)
	w.want(first.ID, Delivered, "")
	sess := w.create(s, few)
	w.look(s, sess.ID)
	w.waits(sess.ID, "1 pull request of octocat/hello awaits review")
	free := w.create(s)
	w.look(s, free.ID)
	w.want(free.ID, Placing, "")
	if err := w.db.Q().SetPullRequestClosed(context.Background(), storage.SetPullRequestClosedParams{
		RepositoryID: 42, PullRequest: 5, ClosedAt: sql.NullTime{Time: w.clock.Now(), Valid: true},
	}); err != nil {
		t.Fatal(err)
	}
	w.sweep(s)
	w.want(sess.ID, Placing, "")
}

func TestPositionAndSince(t *testing.T) {
	w := newWorld(t)
	w.o.Limits.Total = 1
	s := w.scheduler()
	w.ready(s)
	running := w.create(s)
	w.look(s, running.ID)
	w.look(s, running.ID)
	var ids []string
	for i := range 20 {
		ids = append(ids, w.create(s, func(n *NewSession) { n.Priority = i % 2 }).ID)
	}
	w.look(s, ids[0])
	since := w.get(ids[0]).QueueAt.Time
	position := func(id string, want int32) {
		t.Helper()
		if got := w.waits(id, "the one slot is taken"); got.QueuePosition != want {
			t.Errorf("position %d, want %d", got.QueuePosition, want)
		}
	}
	position(ids[1], 1)
	position(ids[19], 10)
	position(ids[0], 11)
	position(ids[18], 20)
	w.clock.Advance(time.Minute)
	w.nodeAlive(s)
	w.over(s, running.ID)
	w.want(ids[1], Placing, "")
	position(ids[3], 1)
	position(ids[18], 19)
	if got := w.get(ids[0]); !got.QueueAt.Time.Equal(since) {
		t.Errorf("it waits since %s, and since %s", since, got.QueueAt.Time)
	}
}

func TestRefreshesAtOnce(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.o.MaxRefreshes = 3
	s := w.scheduler()
	w.node(s, "n2")
	w.node(s, "n3")
	take := func(node string) (storage.NodeWork, bool) {
		t.Helper()
		row, err := s.takeWork(ctx, node, w.clock.Now())
		if err != nil && !storage.IsMissing(err) {
			t.Fatal(err)
		}
		return row, err == nil
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		for i := range 3 {
			key := fmt.Sprintf("refresh:%s-%d", node, i)
			if err := s.addWork(ctx, w.db.Q(), node, wire.WorkRefresh, key, wire.Work{Refresh: &wire.RefreshWork{}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var taken []storage.NodeWork
	for _, node := range []string{"n1", "n1", "n2"} {
		row, ok := take(node)
		if !ok {
			t.Fatalf("%s was given nothing", node)
		}
		taken = append(taken, row)
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		if row, ok := take(node); ok {
			t.Errorf("%s was given %s beyond the bound", node, row.Key)
		}
	}
	// Other work is handed out all the same.
	if err := s.addWork(ctx, w.db.Q(), "n1", wire.WorkDiscard, "discard:x", wire.Work{Discard: &wire.SessionRef{}}); err != nil {
		t.Fatal(err)
	}
	if row, ok := take("n1"); !ok || row.Kind != wire.WorkDiscard {
		t.Errorf("n1 was given %+v", row)
	}
	if err := w.db.Q().EndWork(ctx, storage.EndWorkParams{ID: taken[2].ID, State: workDone, Now: w.clock.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, ok := take("n1"); ok {
		t.Error("a node prepares three at once")
	}
	if _, ok := take("n3"); !ok {
		t.Error("one is over and the next does not begin")
	}
	w.clock.Advance(2 * time.Minute) // the leases are over: the nodes died
	if _, ok := take("n2"); !ok {
		t.Error("what nobody has in hand counts")
	}
}

func TestRefreshesOfOneEnvironmentAreSpread(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	w.node(s, "n2")
	w.node(s, "n3")
	snapshot := w.ready(s)
	for _, node := range []string{"n2", "n3"} {
		w.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, is_current, published_at, newest_at)
			SELECT 'snap-' || $1, environment_id, $1, 1, commit_sha, config_digest, 'ready', true, published_at, newest_at FROM snapshots WHERE id = $2`, node, snapshot)
	}
	sn, err := w.db.Q().GetSnapshot(ctx, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	env, err := w.db.Q().LockEnvironment(ctx, sn.EnvironmentID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.refreshAll(ctx, w.db.Q(), env, wanted{branch: "main", commit: tipSHA}); err != nil {
		t.Fatal(err)
	}
	begun := map[string]time.Duration{}
	for at := time.Duration(0); at <= time.Minute; at += 10 * time.Second {
		for _, node := range []string{"n1", "n2", "n3"} {
			if row, err := s.takeWork(ctx, node, w.clock.Now()); err == nil && row.Attempts == 1 {
				begun[node] = at
			} else if err != nil && !storage.IsMissing(err) {
				t.Fatal(err)
			}
		}
		w.clock.Advance(10*time.Second + time.Millisecond)
	}
	if begun["n1"] != 0 || begun["n2"] != 20*time.Second || begun["n3"] != 40*time.Second {
		t.Errorf("begun at %v", begun)
	}
}

// Sixty sessions for four slots: they start in order of priority, then age, and
// no slot is free for long while one waits.
func TestSixtySessionsForFourSlots(t *testing.T) {
	w := newWorld(t)
	w.fast()
	w.o.Times.Check = 10 * time.Second // as in life: nobody is found by chance
	w.o.Times.Sweep = time.Second
	w.o.Limits.Total = 4
	p := &fakePlacer{fakeEngine: w.engine, room: []NodeRoom{{Node: "n1", Eligible: true, CPU: 100, Memory: 1000 * gib}}, waiting: map[string]Wait{}}
	w.o.Engine = p
	a, b := w.scheduler(), w.scheduler()
	w.nodeAlive(a)
	w.ready(a)
	w.sql("UPDATE nodes SET draining = true")
	for i := range 60 {
		w.create(a, func(n *NewSession) { n.Priority, n.Spec.Limits.Concurrent = i%3, 100 })
	}
	var runners sync.WaitGroup
	w.engine.onStart = func(at Attempt) {
		runners.Go(func() {
			ctx := context.Background()
			var reply wire.TokenReply
			w.eventually("a token", func() (ok bool) {
				var err error
				reply, err = a.Exchange(ctx, wire.TokenRequest{Session: at.Session, Generation: at.Generation, Secret: at.Secret})
				return err == nil
			})
			r, err := a.Authenticate(ctx, reply.Token)
			if err != nil {
				t.Error(err)
				return
			}
			sum := w.bundle(a, r, 1, "a bundle of "+at.Session)
			if err := b.Outcome(ctx, r, goodOutcome(sum)); err != nil {
				t.Error(err)
			}
			w.engine.kill(at.Session)
		})
	}
	runs(t, a)
	runs(t, b)
	w.sql("UPDATE nodes SET draining = false")
	w.eventually("all are delivered", func() bool {
		var n int
		_ = w.db.SQL().QueryRow("SELECT count(*) FROM sessions WHERE state = 'delivered'").Scan(&n)
		return n == 60
	})
	runners.Wait()
	rows, err := w.db.SQL().Query(`SELECT s.priority, s.created_at, a.started_at FROM attempts a JOIN sessions s ON s.id = a.session_id ORDER BY a.started_at`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var starts []time.Time
	lastPriority, lastCreated := 3, time.Time{}
	for rows.Next() {
		var priority int
		var created, started time.Time
		if err := rows.Scan(&priority, &created, &started); err != nil {
			t.Fatal(err)
		}
		if priority > lastPriority || priority == lastPriority && created.Before(lastCreated) {
			t.Errorf("start %d is of priority %d, created %s, after one of %d, created %s", len(starts)+1, priority, created, lastPriority, lastCreated)
		}
		lastPriority, lastCreated = priority, created
		starts = append(starts, started)
	}
	var ends []time.Time
	ended, err := w.db.SQL().Query("SELECT ended_at FROM attempts ORDER BY ended_at")
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Close()
	for ended.Next() {
		var at time.Time
		if err := ended.Scan(&at); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, at)
	}
	if len(starts) != 60 || len(ends) != 60 {
		t.Fatalf("%d starts, %d ends", len(starts), len(ends))
	}
	for i := 4; i < 60; i++ {
		if free := starts[i].Sub(ends[i-4]); free > 2*time.Second {
			t.Errorf("a slot was free for %s before start %d", free, i+1)
		}
	}
}
