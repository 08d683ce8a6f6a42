package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/storage"
)

// sweepLoop sweeps until ctx ends.
func (s *Scheduler) sweepLoop(ctx context.Context) {
	for {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("a sweep was not complete", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(s.times.Sweep):
		}
	}
}

const (
	// A due session is claimed for this long by the sweep that enqueues it.
	sweepClaim = 15 * time.Second
	sweepBatch = 200
)

// Sweep enqueues a look at everything that is due: sessions, deliveries whose
// job was lost, attempts that are over and whose processes may still run,
// environments that lost their snapshot to a changed secret, and repositories
// whose snapshots may be old. Run does it once a second.
func (s *Scheduler) Sweep(ctx context.Context) error {
	return errors.Join(s.sweepSessions(ctx), s.sweepDeliveries(ctx), s.sweepAttempts(ctx), s.sweepApprovals(ctx), s.sweepQueue(ctx), s.sweepRenewals(ctx), s.sweepLooks(ctx), s.sweepCold(ctx))
}

func (s *Scheduler) sweepSessions(ctx context.Context) error {
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		now := s.clock.Now()
		ids, err := tx.Q().DueSessions(ctx, storage.DueSessionsParams{Now: now, ClaimUntil: now.Add(sweepClaim), AtMost: sweepBatch})
		if err != nil {
			return err
		}
		var jobs []river.InsertManyParams
		for _, id := range ids {
			jobs = append(jobs, river.InsertManyParams{Args: ReconcileArgs{Session: id, Swept: true}, InsertOpts: reconcileOpts()})
		}
		return s.insertMany(ctx, tx, jobs)
	})
	if err != nil {
		return fmt.Errorf("sweeping sessions: %w", err)
	}
	return nil
}

// sweepQueue has the queue looked at while a slot is free and somebody waits:
// what kept them waiting may be gone without anybody having told us.
func (s *Scheduler) sweepQueue(ctx context.Context) error {
	s.askRoom(ctx) // what drains in the cluster gets no refreshes either
	waited, err := s.db.Q().SlotsWaitedFor(ctx, int64(s.o.Limits.Total))
	if err != nil || !waited {
		return err
	}
	return s.admit(ctx)
}

func (s *Scheduler) sweepDeliveries(ctx context.Context) error {
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		now := s.clock.Now()
		guids, err := tx.Q().DueDeliveries(ctx, storage.DueDeliveriesParams{Now: now, ClaimUntil: now.Add(deliveryClaim), AtMost: sweepBatch})
		if err != nil {
			return err
		}
		var jobs []river.InsertManyParams
		for _, guid := range guids {
			jobs = append(jobs, river.InsertManyParams{Args: DeliveryArgs{GUID: guid}, InsertOpts: deliveryOpts()})
		}
		return s.insertMany(ctx, tx, jobs)
	})
	if err != nil {
		return fmt.Errorf("sweeping deliveries: %w", err)
	}
	return nil
}

func (s *Scheduler) insertMany(ctx context.Context, tx *storage.Tx, jobs []river.InsertManyParams) error {
	if len(jobs) == 0 {
		return nil
	}
	_, err := s.insert.InsertManyTx(ctx, tx.SQL(), jobs)
	return err
}

// reapGrace is how long a runner may take to end by itself after its outcome
// was taken; it discards its clones then.
const reapGrace = 30 * time.Second

// sweepAttempts makes sure that nothing runs any more of attempts that are
// over, and then has their clones discarded that are not kept.
func (s *Scheduler) sweepAttempts(ctx context.Context) error {
	rows, err := s.db.Q().UnreapedAttempts(ctx, storage.UnreapedAttemptsParams{Now: s.clock.Now(), AtMost: sweepBatch})
	if err != nil {
		return fmt.Errorf("sweeping attempts: %w", err)
	}
	var errs []error
	for _, a := range rows {
		if err := s.reap(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("cleaning up after attempt %d of session %s: %w", a.Generation, a.SessionID, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Scheduler) reap(ctx context.Context, a storage.Attempt) error {
	if !a.EngineRef.Valid && !a.StoppedAt.Valid {
		// The engine may have begun it without our hearing of it.
		ref, err := s.begun(ctx, a)
		if err != nil {
			return err
		}
		a.EngineRef = ref
	}
	if a.EngineRef.Valid && !a.StoppedAt.Valid {
		state, err := s.o.Engine.State(ctx, a.EngineRef.RawMessage)
		if err != nil {
			return err
		}
		if state != EngineGone && s.clock.Now().Sub(a.EndedAt.Time) < reapGrace {
			return nil
		}
		// Also of one that is gone: what it left is cleared away.
		if err := s.o.Engine.Stop(ctx, a.EngineRef.RawMessage); err != nil {
			return err
		}
		s.keepLog(ctx, a)
		if err := s.o.Engine.Forget(ctx, a.EngineRef.RawMessage); err != nil {
			return err
		}
	}
	return s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		if err := tx.Q().SetAttemptStopped(ctx, storage.SetAttemptStoppedParams{SessionID: a.SessionID, Generation: a.Generation, Now: s.clock.Now()}); err != nil {
			return err
		}
		reaped, err := tx.Q().SetAttemptReaped(ctx, storage.SetAttemptReapedParams{
			SessionID: a.SessionID, Generation: a.Generation, Now: s.clock.Now(),
		})
		if err != nil || reaped == 0 { // its clones are kept
			return err
		}
		return s.addWork(ctx, tx.Q(), a.Node, wire.WorkDiscard, fmt.Sprintf("discard:%s:%d", a.SessionID, a.Generation),
			wire.Work{Discard: &wire.SessionRef{Session: a.SessionID, Generation: int(a.Generation)}})
	})
}

// begun asks the engine itself for its reference to an attempt.
func (s *Scheduler) begun(ctx context.Context, a storage.Attempt) (ref pqtype.NullRawMessage, err error) {
	list, err := s.o.Engine.List(ctx)
	if err != nil {
		return ref, fmt.Errorf("listing what the engine runs: %w", err)
	}
	for _, l := range list {
		if l.Session == a.SessionID && l.Generation == int(a.Generation) {
			ref = pqtype.NullRawMessage{RawMessage: l.Ref, Valid: true}
		}
	}
	return ref, nil
}

// keptLog is how much is kept of what a runner wrote, in bytes.
const keptLog = 16 << 10

// keepLog puts the end of what a runner wrote into our own log, before the
// engine lets it go, if the runner did not say itself what came of its work.
// That nothing can be had of it keeps nobody from cleaning up.
func (s *Scheduler) keepLog(ctx context.Context, a storage.Attempt) {
	if a.Outcome.Valid {
		return
	}
	log, err := s.o.Engine.Logs(ctx, a.EngineRef.RawMessage, keptLog)
	if err == nil {
		err = s.learn(ctx)
	}
	if err != nil {
		s.log.Warn("the log of a runner that ended without an outcome could not be had", "session", a.SessionID, "generation", a.Generation, "error", err)
		return
	}
	s.log.Warn("a runner ended without an outcome", "session", a.SessionID, "generation", a.Generation, "log", s.o.Redactor.String(string(log)))
}
