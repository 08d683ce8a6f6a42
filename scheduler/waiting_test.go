package scheduler

import (
	"strings"
	"testing"
	"time"
)

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
	got := w.look(s, sess.ID)
	if got.State != Placing || got.QueueReason != "Nomad does not answer" || !got.NextCheckAt.After(w.clock.Now()) || got.NextCheckAt.After(w.clock.Now().Add(time.Minute)) {
		t.Fatalf("%s: %q, next check %s", got.State, got.QueueReason, got.NextCheckAt)
	}
	p.set(func(p *fakePlacer) { p.waitErr, p.waiting[sess.ID] = nil, Wait{} })
	w.clock.Advance(10 * time.Second)
	got = w.look(s, sess.ID)
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
