package scheduler

import (
	"context"
	"fmt"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// The money of sessions. A call of a model is written down with what it may
// cost before it is made, and settled with the provider's numbers after it, so
// that a session never spends more than its budget however many calls it makes
// at once, and whatever dies in between.

// maxTokens bounds what one call is believed to have used of anything.
const maxTokens = 1 << 40

// ModelCaller is what the model gateway knows of a runner that calls. A
// session has one model, pinned when it was created.
func (s *Scheduler) ModelCaller(ctx context.Context, r Runner) (wire.ModelCaller, error) {
	sess, a, err := s.peek(ctx, r)
	if err != nil {
		return wire.ModelCaller{}, err
	}
	if Terminal(sess.State) || a.Outcome.Valid {
		return wire.ModelCaller{}, refuse(codeForbidden, "the work of this attempt is over; it calls no models any more")
	}
	sp, err := sessionSpec(sess)
	if err != nil {
		return wire.ModelCaller{}, s.unavailable(ctx, err)
	}
	return wire.ModelCaller{Session: r.Session, Generation: r.Generation, Model: sp.Harness.Model}, nil
}

// Reserve sets money aside for a call. The error is a *wire.Error of code
// wire.CodeOverBudget if the session has less than the call's least, and of
// code "stale_generation" if the attempt does not count any more.
func (s *Scheduler) Reserve(ctx context.Context, c wire.ModelCaller, call wire.ModelCall) (wire.Reservation, error) {
	var out wire.Reservation
	if call.Least < 0 || call.Want < call.Least || call.Input < 0 {
		return out, refuse(codeBadRequest, "the call's bounds are not in order")
	}
	err := s.current(ctx, Runner{Session: c.Session, Generation: c.Generation}, func(tx *storage.Tx, sess storage.Session, a storage.Attempt) error {
		if Terminal(sess.State) || a.Outcome.Valid {
			return errStale
		}
		free := sess.Budget - sess.Spent - sess.Held
		out = wire.Reservation{Budget: sess.Budget, Spent: sess.Spent + sess.Held}
		if call.Priced {
			least := max(call.Least, 1)
			if free < least && sess.Held > 0 && sess.Budget-sess.Spent >= least {
				// What other calls do not use of theirs may do for this one.
				return refuse(codeUnavailable, "the rest of the session's budget is set aside for calls that are going on; try again")
			}
			if free < least {
				return refuse(wire.CodeOverBudget, "the session's budget of %s is used up: %s are spent, and a further call may cost %s",
					spec.Money(sess.Budget), spec.Money(sess.Spent+sess.Held), spec.Money(call.Least))
			}
			out.Granted = min(call.Want, free)
			out.Spent += out.Granted
		}
		var err error
		out.ID, err = tx.Q().InsertModelCall(ctx, storage.InsertModelCallParams{
			SessionID: sess.ID, Generation: a.Generation, Model: clip(call.Model, 200), Priced: call.Priced,
			Reserved: out.Granted, Input: min(call.Input, out.Granted), StartedAt: s.clock.Now(),
		})
		if err != nil {
			return fmt.Errorf("writing down a model call: %w", err)
		}
		return tx.Q().SetSessionSpending(ctx, storage.SetSessionSpendingParams{ID: sess.ID, Spent: sess.Spent, Held: sess.Held + out.Granted})
	})
	return out, err
}

// Settle ends a call that was reserved. It is taken from old attempts too: what
// was used was used. Settling again changes nothing.
func (s *Scheduler) Settle(ctx context.Context, c wire.ModelCaller, id int64, u wire.Usage) error {
	for _, n := range []*int64{&u.InputTokens, &u.CacheReadTokens, &u.CacheWriteTokens, &u.OutputTokens} {
		*n = min(max(*n, 0), maxTokens)
	}
	u.Cost = max(u.Cost, 0)
	return s.settle(ctx, c.Session, id, func(storage.ModelCall) wire.Usage { return u })
}

func (s *Scheduler) settle(ctx context.Context, session string, id int64, usage func(storage.ModelCall) wire.Usage) error {
	return s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		sess, err := q.LockSession(ctx, session)
		if err != nil {
			return fmt.Errorf("settling a model call of session %s: %w", session, err)
		}
		call, err := q.LockModelCall(ctx, storage.LockModelCallParams{ID: id, SessionID: session})
		if err != nil {
			return fmt.Errorf("settling model call %d of session %s: %w", id, session, err)
		}
		if call.State != callOpen {
			return nil
		}
		u := usage(call)
		state := callReported
		if !u.Reported {
			state = callUnreported
		}
		if err := q.SettleModelCall(ctx, storage.SettleModelCallParams{
			ID: id, State: state, Cost: u.Cost, InputTokens: u.InputTokens, CacheReadTokens: u.CacheReadTokens,
			CacheWriteTokens: u.CacheWriteTokens, OutputTokens: u.OutputTokens, Now: s.clock.Now(),
		}); err != nil {
			return fmt.Errorf("settling model call %d: %w", id, err)
		}
		sess.Spent, sess.Held = sess.Spent+u.Cost, max(sess.Held-call.Reserved, 0)
		if err := q.SetSessionSpending(ctx, storage.SetSessionSpendingParams{ID: session, Spent: sess.Spent, Held: sess.Held}); err != nil {
			return fmt.Errorf("settling model call %d: %w", id, err)
		}
		u.Model, u.Priced, u.Spent = call.Model, call.Priced, sess.Spent
		if sess.EventsCount >= wire.MaxEvents {
			return nil
		}
		e, err := ownEvent(call.Generation, wire.EventUsage, s.clock.Now(), u)
		if err != nil {
			return err
		}
		return appendEvents(ctx, q, &sess, e)
	})
}

// States of a model call's row.
const (
	callOpen       = "open"
	callReported   = "reported"
	callUnreported = "unreported"
)

// SettleLost settles the calls that a control plane which is gone left open:
// their streams ended with it, and nobody will say what they came to. Each
// counts with its input, which the provider got. It is called before the model
// gateway serves.
func (s *Scheduler) SettleLost(ctx context.Context) error {
	for {
		open, err := s.db.Q().OpenModelCalls(ctx, s.clock.Now())
		if err != nil {
			return fmt.Errorf("looking for model calls that were cut off: %w", err)
		}
		for _, c := range open {
			if err := s.settle(ctx, c.SessionID, c.ID, func(call storage.ModelCall) wire.Usage { return wire.Usage{Cost: call.Input} }); err != nil {
				return err
			}
		}
		if len(open) == 0 {
			return nil
		}
	}
}
