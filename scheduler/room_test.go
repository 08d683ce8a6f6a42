package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

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
