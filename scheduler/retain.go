package scheduler

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"inspect/scheduler/audit"
	"inspect/storage"
)

const (
	// retainEvery is how often old events are looked for.
	retainEvery = time.Hour
	// retainBatch is how many events one statement removes, and how many
	// sessions are looked at together.
	retainBatch = 1000
)

// retainLock keeps two processes from removing at once. Session locks are
// hashes of ids; that one of them is the same costs a look later.
var retainLock = sessionLock("the removal of old events")

// retainLoop removes old events until ctx ends.
func (s *Scheduler) retainLoop(ctx context.Context) {
	for {
		if err := s.Retain(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("old events were not all removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(retainEvery):
		}
	}
}

// Retain removes the events of sessions that ended longer ago than
// Options.KeepEvents. Of each chain the count, the last hash and those of its
// changes of state are written down first. A chain that is broken is left as it
// is: it is evidence. Run does this once an hour.
func (s *Scheduler) Retain(ctx context.Context) error {
	unlock, ok, err := s.locks.try(ctx, retainLock)
	if err != nil || !ok {
		return err
	}
	defer unlock()
	errs := []error{s.removeOpen(ctx)}
	last := storage.OldSessionsParams{Before: s.clock.Now().Add(-s.o.KeepEvents), AtMost: retainBatch}
	for {
		old, err := s.db.Q().OldSessions(ctx, last)
		if err != nil {
			return fmt.Errorf("looking for old events: %w", err)
		}
		for _, o := range old {
			last.After, last.AfterID = o.FinishedAt, o.ID
			err := s.beginRemoval(ctx, o.ID)
			if err == nil {
				err = s.removeOpen(ctx)
			}
			if errors.Is(err, audit.ErrBroken) {
				s.log.Error("the events of a session are old, but were changed; they are not removed", "session", o.ID, "error", err)
			} else if err != nil {
				errs = append(errs, err)
			}
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
		if len(old) < retainBatch {
			return errors.Join(errs...)
		}
	}
}

// beginRemoval writes down what is left of a session's events.
func (s *Scheduler) beginRemoval(ctx context.Context, session string) error {
	return s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		row, err := tx.Q().LockSession(ctx, session)
		if err != nil {
			return fmt.Errorf("reading session %s: %w", session, err)
		}
		_, found, err := CheckChain(ctx, tx.Q(), session, nil)
		if err != nil {
			return err
		}
		if err := tx.Q().InsertEventsRemoved(ctx, storage.InsertEventsRemovedParams{
			SessionID: session, Count: row.EventsCount, Head: row.EventsHead, Points: encode(found.Points),
			Keep: int64(s.o.KeepEvents / time.Second), Now: s.clock.Now(),
		}); err != nil {
			return fmt.Errorf("writing down what is left of the events of session %s: %w", session, err)
		}
		return nil
	})
}

// removeOpen removes what is written down as removed, a batch at a time.
func (s *Scheduler) removeOpen(ctx context.Context) error {
	open, err := s.db.Q().OpenRemovals(ctx, retainBatch)
	if err != nil {
		return fmt.Errorf("looking for events to remove: %w", err)
	}
	for _, o := range open {
		for n := int64(retainBatch); n == retainBatch; {
			if n, err = s.db.Q().DeleteEvents(ctx, storage.DeleteEventsParams{SessionID: o.SessionID, Count: o.Count, AtMost: retainBatch}); err != nil {
				return fmt.Errorf("removing old events of session %s: %w", o.SessionID, err)
			}
		}
		if err := s.db.Q().EndRemoval(ctx, storage.EndRemovalParams{SessionID: o.SessionID, Now: s.clock.Now()}); err != nil {
			return fmt.Errorf("removing old events of session %s: %w", o.SessionID, err)
		}
		row, err := s.db.Q().AuditSession(ctx, o.SessionID)
		if err != nil {
			return fmt.Errorf("reading session %s: %w", o.SessionID, err)
		}
		s.log.Info("old events of a session were removed", "session", o.SessionID, "events_removed", o.Count,
			"finished", row.FinishedAt.Time, "keep", s.o.KeepEvents, "events_count", row.RemovedCount.Int64, "events_head", hex.EncodeToString(row.RemovedHead))
	}
	return nil
}
