package scheduler

import (
	"context"
	"sync"
	"testing"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// working is a session at work with a budget of one dollar, and its caller.
func (w *world) working(s *Scheduler, budget spec.Money) (storage.Session, wire.ModelCaller) {
	w.t.Helper()
	sess := w.create(s, func(n *NewSession) {
		n.Spec.Limits.Budget = budget
		n.Spec.Harness.Model = "anthropic/claude-sonnet"
	})
	w.prepare(s)
	w.look(s, sess.ID)
	return w.get(sess.ID), wire.ModelCaller{Session: sess.ID, Generation: 1, Model: "anthropic/claude-sonnet"}
}

func priced(want, least spec.Money) wire.ModelCall {
	return wire.ModelCall{Model: "m", Want: int64(want), Least: int64(least), Input: int64(least) / 2, Priced: true}
}

func TestBudget(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, c := w.working(s, spec.Dollar)
	first, err := s.Reserve(ctx, c, priced(spec.Dollar*6/10, spec.Dollar/10))
	if err != nil || first.Granted != int64(spec.Dollar*6/10) || first.Budget != int64(spec.Dollar) || first.Spent != first.Granted {
		t.Fatalf("got %+v, %v", first, err)
	}
	second, err := s.Reserve(ctx, c, priced(spec.Dollar*6/10, spec.Dollar/10))
	if err != nil || second.Granted != int64(spec.Dollar*4/10) {
		t.Fatalf("the second call was granted %d of what is left, %v", second.Granted, err)
	}
	if _, err := s.Reserve(ctx, c, priced(2, 1)); codeOf(err) != codeUnavailable {
		t.Fatalf("a call while others hold all the money: %v", err)
	}
	if err := s.Settle(ctx, c, first.ID, wire.Usage{InputTokens: 10, OutputTokens: 5, Cost: 123_456_789, Reported: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again changes nothing
		if err := s.Settle(ctx, c, second.ID, wire.Usage{Cost: 1, Reported: true}); err != nil {
			t.Fatal(err)
		}
	}
	got := w.get(sess.ID)
	if got.Spent != 123_456_790 || got.Held != 0 {
		t.Fatalf("spent %d, held %d", got.Spent, got.Held)
	}
	if _, err := s.Reserve(ctx, c, priced(spec.Dollar, spec.Dollar*9/10)); codeOf(err) != wire.CodeOverBudget {
		t.Fatalf("a call without money: %v", err)
	}
	sums, err := w.db.Q().ModelSums(ctx, sess.ID)
	if err != nil || sums.Calls != 2 || sums.Cost != 123_456_790 || sums.InputTokens != 10 || sums.Unreported != 0 {
		t.Fatalf("sums %+v, %v", sums, err)
	}
	if err := VerifyEvents(ctx, w.db.Q(), sess.ID, "", 0); err != nil {
		t.Fatal(err)
	}
}

// Many calls at once never get more than there is.
func TestBudgetIsNeverPassed(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, c := w.working(s, spec.Dollar)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				r, err := s.Reserve(ctx, c, priced(spec.Dollar/4, spec.Dollar/10))
				if err != nil {
					if codeOf(err) != wire.CodeOverBudget && codeOf(err) != codeUnavailable {
						t.Error(err)
					}
					continue
				}
				if err := s.Settle(ctx, c, r.ID, wire.Usage{Cost: r.Granted, Reported: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := w.get(sess.ID); got.Spent > int64(spec.Dollar) || got.Held != 0 || got.Spent < int64(spec.Dollar)*9/10 {
		t.Fatalf("spent %d of %d, held %d", got.Spent, spec.Dollar, got.Held)
	}
}

// What a control plane that died left open counts with its input, once.
func TestLostCalls(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, c := w.working(s, spec.Dollar)
	r, err := s.Reserve(ctx, c, priced(spec.Dollar/2, spec.Dollar/10))
	if err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Millisecond)
	for range 2 {
		if err := w.scheduler().SettleLost(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Settle(ctx, c, r.ID, wire.Usage{Cost: 99, Reported: true}); err != nil {
		t.Fatal(err)
	}
	if got := w.get(sess.ID); got.Spent != int64(spec.Dollar/20) || got.Held != 0 {
		t.Fatalf("spent %d, held %d", got.Spent, got.Held)
	}
	sums, _ := w.db.Q().ModelSums(ctx, sess.ID)
	if sums.Cost != 0 || sums.Unreported != 1 || sums.UnreportedCost != int64(spec.Dollar/20) {
		t.Fatalf("sums %+v", sums)
	}
}

// An attempt that was given up reserves nothing more; what it had reserved is
// still settled.
func TestStaleCalls(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	sess, c := w.working(s, spec.Dollar)
	r, err := s.Reserve(ctx, c, priced(spec.Dollar/2, 1))
	if err != nil {
		t.Fatal(err)
	}
	w.sql("UPDATE sessions SET generation = 2 WHERE id = $1", sess.ID)
	if _, err := s.Reserve(ctx, c, priced(2, 1)); codeOf(err) != codeStale {
		t.Fatalf("got %v", err)
	}
	if err := s.Settle(ctx, c, r.ID, wire.Usage{Cost: 7, Reported: true}); err != nil {
		t.Fatal(err)
	}
	if got := w.get(sess.ID); got.Spent != 7 {
		t.Fatalf("spent %d", got.Spent)
	}
}

// A model without a price costs nothing and is never refused for money.
func TestUnpriced(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	_, c := w.working(s, 0)
	if _, err := s.Reserve(ctx, c, wire.ModelCall{Model: "m"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reserve(ctx, c, priced(2, 1)); codeOf(err) != wire.CodeOverBudget {
		t.Fatalf("got %v", err)
	}
}
