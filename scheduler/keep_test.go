package scheduler

import (
	"context"
	"slices"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

func keep(d time.Duration) func(*NewSession) {
	return func(n *NewSession) { n.Spec.KeepFailed = d }
}

// referenced tells whether the node is to keep an attempt's clones, after a sweep.
func (w *world) referenced(s *Scheduler, id string) bool {
	w.t.Helper()
	if err := s.sweepAttempts(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	refs, err := s.Refs(context.Background(), "n1")
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.ContainsFunc(refs.Sessions, func(r wire.SessionRef) bool { return r.Session == id })
}

func (w *world) discards() (n int) {
	w.t.Helper()
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM node_work WHERE kind = 'discard'").Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) outcome(s *Scheduler, r Runner, kind string) {
	w.t.Helper()
	if err := s.Outcome(context.Background(), r, wire.Outcome{Kind: kind, Words: "so it ended"}); err != nil {
		w.t.Fatal(err)
	}
	w.look(s, r.Session)
	w.clock.Advance(reapGrace + time.Second) // the runner has ended by then
}

func TestFailedScenesAreKept(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		outcome string
		kept    bool
	}{
		{wire.OutcomeFailed, true}, {wire.OutcomeTimedOut, true}, {wire.OutcomeOverBudget, true},
		{wire.OutcomeNoChange, false}, {wire.OutcomeStopped, false},
	} {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s, keep(2*time.Hour))
		w.phase(s, r, "restoring", "working")
		sp, err := s.Spec(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		g, err := wire.OpenGrant(publicKey(w), sp.WorkGrant, "n1", wire.VerbTurn, 1234, w.clock.Now())
		if err != nil || slices.Contains(g.Verbs, wire.VerbDiscard) {
			t.Errorf("the work grant allows %v (%v)", g.Verbs, err)
		}
		if g, err = wire.OpenGrant(publicKey(w), sp.VerifyGrant, "n1", wire.VerbDiscard, 1234, w.clock.Now()); err != nil || slices.Contains(g.Verbs, wire.VerbTurn) {
			t.Errorf("the grant for verification allows %v (%v)", g.Verbs, err)
		}
		w.outcome(s, r, c.outcome)
		if got := w.referenced(s, sess.ID); got != c.kept || (w.discards() == 0) != c.kept {
			t.Fatalf("%s: kept %v, %d discards", c.outcome, got, w.discards())
		}
		if a, _ := w.engine.last(sess.ID); !a.gone || a.stops != 1 || a.forgotten != 1 {
			t.Errorf("%s: it was stopped %d times and forgotten %d times", c.outcome, a.stops, a.forgotten)
		}
		if !c.kept {
			continue
		}
		w.referenced(s, sess.ID)
		if a, _ := w.engine.last(sess.ID); a.stops != 1 {
			t.Errorf("what is kept is stopped again and again")
		}
		w.clock.Advance(2*time.Hour - reapGrace - 2*time.Second)
		if !w.referenced(s, sess.ID) {
			t.Error("let go before its time")
		}
		w.clock.Advance(2 * time.Second)
		if w.referenced(s, sess.ID) || w.discards() != 1 {
			t.Errorf("still there after its time, %d discards", w.discards())
		}
	}
}

// Whether a result could be published is known only after its attempt's end.
func TestSceneOfWhatCouldNotBePublished(t *testing.T) {
	ctx := context.Background()
	for _, fails := range []bool{true, false} {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s, keep(time.Hour))
		w.effects.set(func(f *fakeEffects) { f.publishErr = errFake })
		w.verified(s, r)
		w.look(s, sess.ID)
		w.want(sess.ID, Publishing, "")
		w.clock.Advance(10 * time.Minute)
		if !w.referenced(s, sess.ID) {
			t.Fatal("discarded before it is known what becomes of it")
		}
		w.effects.set(func(f *fakeEffects) {
			if f.publishErr = nil; fails {
				f.publishErr = ErrPermanent
			}
		})
		w.look(s, sess.ID)
		if got := w.referenced(s, sess.ID); got != fails {
			t.Errorf("%s, kept: %v", w.state(sess.ID), got)
		}
		if !fails {
			continue
		}
		w.clock.Advance(59 * time.Minute)
		if !w.referenced(s, sess.ID) {
			t.Error("let go before its time")
		}
		for range 2 {
			done, err := ReleaseScene(ctx, w.db.Q(), sess.ID)
			if err != nil || done == (w.discards() == 1) {
				t.Errorf("released: %v (%v)", done, err)
			}
			if w.referenced(s, sess.ID) {
				t.Error("kept though a person let it go")
			}
		}
	}
}

func TestSupersededAttemptsAreNotKept(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s, keep(time.Hour))
	w.phase(s, r, "restoring", "working")
	w.outcome(s, r, wire.OutcomeInfrastructure) // another attempt follows
	if err := s.sweepAttempts(context.Background()); err != nil {
		t.Fatal(err)
	}
	if w.discards() != 1 {
		t.Errorf("%d discards", w.discards())
	}
	if a, err := w.db.Q().GetAttempt(context.Background(), storage.GetAttemptParams{SessionID: sess.ID, Generation: 1}); err != nil || !a.ReapedAt.Valid {
		t.Errorf("the first attempt %+v (%v)", a, err)
	}
	if released, err := ReleaseScene(context.Background(), w.db.Q(), sess.ID); released || err != nil {
		t.Errorf("released of a session at work: %v (%v)", released, err)
	}
}

// A node is told which attempts count no more, so that it obeys no grant of
// theirs; but people may look into a clone that is kept for them.
func TestNodesLearnWhichAttemptsAreOver(t *testing.T) {
	for _, kept := range []time.Duration{0, 2 * time.Hour} {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s, keep(kept))
		w.phase(s, r, "restoring", "working")
		w.clock.Advance(time.Second)
		w.sql("UPDATE sessions SET deadline = $1 WHERE id = $2", w.clock.Now(), sess.ID)
		s.began = w.clock.Now().Add(-s.times.Heartbeat) // runners had their time to be heard
		w.look(s, sess.ID)
		w.want(sess.ID, TimedOut, ReasonTimeout)
		refs, err := s.Refs(t.Context(), "n1")
		if err != nil {
			t.Fatal(err)
		}
		over := slices.Contains(refs.Over, wire.SessionRef{Session: sess.ID, Generation: 1})
		if over != (kept == 0) {
			t.Errorf("kept for %s: the attempt is over for its node: %v", kept, over)
		}
	}
}
