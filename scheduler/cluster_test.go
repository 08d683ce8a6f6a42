package scheduler

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

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
