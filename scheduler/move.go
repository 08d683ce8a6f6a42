package scheduler

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"inspect/storage"
)

// errMoved says that a session was changed by somebody else since it was read;
// the caller reads it again.
var errMoved = errors.New("the session has moved on meanwhile")

// change is a change of a session's state.
type change struct {
	to          State
	move        Move
	reason      string
	words       string
	queueReason string
	// endWords, if set, end the current attempt: nothing it says counts after this.
	endWords string
	// with runs in the same transaction before the state is written.
	with func(q *storage.Queries, sess *storage.Session) error
	// waitsOn: its wait for a machine goes on; the queue timeout does not begin anew.
	waitsOn bool
}

// deadlineOf is when a session that enters a state now has been in it too long.
func (s *Scheduler) deadlineOf(sess storage.Session, to State, now time.Time) time.Time {
	if Terminal(to) {
		return now.Add(s.times.Report)
	}
	timeout, verify := s.workTimes(sess)
	switch to {
	case Placing:
		return now.Add(s.times.Place)
	case Restoring:
		return now.Add(s.times.Restore)
	case Working:
		return now.Add(timeout + s.times.WorkMargin)
	case Verifying:
		return now.Add(verify + s.times.WorkMargin)
	case Publishing:
		return now.Add(s.times.Publish)
	case NeedsApproval:
		return now.Add(s.times.Approval)
	default:
		return now.Add(s.times.Queue)
	}
}

// workTimes are how long the harness and the verification of a session may take.
func (s *Scheduler) workTimes(sess storage.Session) (work, verify time.Duration) {
	sp, err := sessionSpec(sess)
	if err != nil { // our own row; the session ends for it elsewhere
		return s.times.Verify, s.times.Verify
	}
	return sp.Limits.Timeout, max(sp.Limits.Timeout, s.times.Verify)
}

// apply changes a session's state by compare-and-set: the row must still have
// the version that sess has, else errMoved. It records the event in the same
// transaction. When a machine becomes free by it, the queue is looked at.
func (s *Scheduler) apply(ctx context.Context, sess storage.Session, c change) (storage.Session, error) {
	if !Allowed(sess.State, c.to, c.move) {
		return sess, fmt.Errorf("session %s cannot go from %s to %s", sess.ID, sess.State, c.to)
	}
	var after storage.Session
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		row, err := tx.Q().LockSession(ctx, sess.ID)
		if err != nil {
			return fmt.Errorf("reading session %s: %w", sess.ID, err)
		}
		if row.Version != sess.Version {
			return errMoved
		}
		after, err = s.applyLocked(ctx, tx, row, c)
		return err
	})
	if err == nil {
		s.logEnd("a session has ended", after)
	}
	if err == nil && OnMachine(sess.State) && !OnMachine(c.to) {
		s.readmit(ctx)
	}
	return after, err
}

// logEnd writes an end and the head of the chain into the process log, from
// where an operator's log store has it: nobody who can write to the database
// can change it there.
func (s *Scheduler) logEnd(msg string, sess storage.Session) {
	if !Terminal(sess.State) {
		return
	}
	attrs := []any{"session", sess.ID, "state", string(sess.State), "reason", sess.Reason,
		"events_count", sess.EventsCount, "events_head", hex.EncodeToString(sess.EventsHead)}
	var r Receipt
	if sess.Receipt.Valid && json.Unmarshal(sess.Receipt.RawMessage, &r) == nil {
		attrs = append(attrs, "evidence", r.Evidence, "head_sha", r.HeadSHA)
	}
	s.log.Info(msg, attrs...)
}

// applyLocked is apply inside a transaction that holds the row's lock; row is
// the row as it is.
func (s *Scheduler) applyLocked(ctx context.Context, tx *storage.Tx, row storage.Session, c change) (storage.Session, error) {
	q, now := tx.Q(), s.clock.Now()
	if c.with != nil {
		if err := c.with(q, &row); err != nil {
			return row, err
		}
	}
	if Terminal(c.to) || c.to == Publishing {
		// A result is never pushed while something waits for an answer.
		if err := s.closePending(ctx, q, &row, approvalVoid, "The work is over."); err != nil {
			return row, err
		}
	}
	if c.endWords != "" && row.Generation > 0 {
		if err := q.EndAttempt(ctx, storage.EndAttemptParams{
			SessionID: row.ID, Generation: row.Generation, Now: now, Words: clip(c.endWords, 1000),
		}); err != nil {
			return row, fmt.Errorf("ending an attempt: %w", err)
		}
	}
	deadline := s.deadlineOf(row, c.to, now)
	if c.waitsOn {
		deadline = s.queueEnd(row)
	}
	if err := s.keepScene(ctx, q, row, c.to, deadline); err != nil {
		return row, err
	}
	data := map[string]any{"from": row.State, "to": c.to}
	if c.reason != "" {
		data["reason"] = c.reason
	}
	if words := clip(c.words, maxWords); words != "" {
		data["words"] = words
	} else if c.queueReason != "" {
		data["words"] = c.queueReason
	}
	e, err := ownEvent(row.Generation, EventState, now, data)
	if err != nil {
		return row, err
	}
	if err := appendEvents(ctx, q, &row, e); err != nil {
		return row, err
	}
	p := storage.SetSessionStateParams{
		ID: row.ID, Version: row.Version, State: c.to, Reason: clip(c.reason, 100), Words: clip(c.words, maxWords),
		QueueReason: clip(c.queueReason, 500), Now: now, Deadline: deadline, NextCheckAt: now,
		WaitsAnew: c.to == Queued && !c.waitsOn,
	}
	if c.to == Placing {
		p.StartedAt = sql.NullTime{Time: now, Valid: true}
	}
	if Terminal(c.to) {
		p.FinishedAt = sql.NullTime{Time: now, Valid: true}
	}
	after, err := q.SetSessionState(ctx, p)
	if storage.IsMissing(err) {
		return row, errMoved
	}
	if err != nil {
		return row, fmt.Errorf("changing the state of session %s: %w", row.ID, err)
	}
	return after, nil
}

// maxWords bounds what is kept of words for people, in bytes.
const maxWords = 4000
