package scheduler

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"inspect/storage"
)

// An attempt that was placed and has not begun: the engine could not be told of
// it, or has no machine for it yet. It stays where it is until the queue
// timeout, and the time that a runner has for its first word does not run.

var counters = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// sameKind tells whether two queue reasons differ in their counters only.
func sameKind(a, b string) bool {
	return a != "" && counters.ReplaceAllString(a, "#") == counters.ReplaceAllString(b, "#")
}

// queueEnd is when a session has waited for a machine as long as it may.
func (s *Scheduler) queueEnd(sess storage.Session) time.Time {
	return sess.WaitingSince.Add(s.times.Queue)
}

// hold has a placed attempt wait on for a reason; without one it waits no more
// and its runner has the usual time from now on.
func (s *Scheduler) hold(ctx context.Context, sess storage.Session, words string, w Wait, failed bool, check time.Time) error {
	ctx = context.WithoutCancel(ctx)
	now := s.clock.Now()
	deadline := now.Add(s.times.Place)
	if words != "" {
		deadline = earlier(deadline, s.queueEnd(sess))
	}
	timeout, verify := s.workTimes(sess)
	work, end := s.attemptTimes(now, timeout, verify)
	if err := s.db.Q().SetAttemptWait(ctx, storage.SetAttemptWaitParams{
		SessionID: sess.ID, Generation: sess.Generation, WorkDeadline: work, Deadline: end, Hopeless: w.Never,
	}); err != nil {
		return fmt.Errorf("giving attempt %d of session %s more time: %w", sess.Generation, sess.ID, err)
	}
	if err := s.db.Q().SetPlacingWait(ctx, storage.SetPlacingWaitParams{
		ID: sess.ID, Version: sess.Version, QueueReason: clip(words, 500), SameKind: sameKind(sess.QueueReason, words), Failed: failed,
		Now: now, Deadline: deadline, NextCheckAt: earlier(check, deadline),
	}); err != nil {
		return fmt.Errorf("writing what session %s waits for: %w", sess.ID, err)
	}
	return nil
}

// attemptTimes are the deadlines of an attempt that is begun now: of its work,
// and of all of it.
func (s *Scheduler) attemptTimes(now time.Time, timeout, verify time.Duration) (work, end time.Time) {
	work = now.Add(s.times.Place + s.times.Restore + timeout)
	return work, work.Add(verify + 2*s.times.WorkMargin)
}

// notStarted takes an engine's error on the start of an attempt. One that has
// several machines is asked again until the queue timeout: what is wrong there
// (it is away, a namespace is missing, a token has expired) is no fault of the
// attempt.
func (s *Scheduler) notStarted(ctx context.Context, sess storage.Session, cause error) error {
	at := retryTime(s.clock.Now(), cause, int(sess.EffectTries), 30*time.Second)
	if err := s.hold(ctx, sess, s.engineWords(cause), Wait{}, true, at); err != nil {
		return err
	}
	s.log.Warn("an attempt cannot be started now", "session", sess.ID, "generation", sess.Generation, "error", cause)
	return errLater{at}
}

// waits finds out whether an attempt that the engine was told of has no machine
// yet. It returns nil if not, and else when to look again.
func (s *Scheduler) waits(ctx context.Context, sess storage.Session, a storage.Attempt) error {
	p := s.placer()
	if p == nil || sess.State != Placing || a.HeartbeatAt.Valid {
		return nil
	}
	at := s.clock.Now().Add(s.times.Check)
	w, err := p.Waits(ctx, a.EngineRef.RawMessage)
	words := ""
	switch {
	case err != nil:
		s.log.Warn("the engine cannot tell what an attempt waits for", "session", sess.ID, "generation", a.Generation, "error", err)
		words = s.engineWords(err)
	case w.Waiting:
		words = orWords(s.o.Redactor.String(w.Words), "waiting for a node")
	case sess.QueueReason == "":
		return nil
	}
	if err := s.hold(ctx, sess, words, w, false, at); err != nil {
		return err
	}
	if w.Never != a.Hopeless { // others may have its room, or not any more
		s.readmit(ctx)
	}
	return errLater{at}
}

// latePlacing looks at an attempt whose runner has not spoken in time. Without
// an error and a change it was really lost.
func (s *Scheduler) latePlacing(ctx context.Context, sess storage.Session) (*change, error) {
	a, err := s.attempt(ctx, sess)
	if err != nil || s.placer() == nil || a.HeartbeatAt.Valid {
		return nil, err
	}
	if sess.QueueReason != "" && !s.clock.Now().Before(s.queueEnd(sess)) {
		c := s.queueTimeout(sess)
		return &c, nil
	}
	if !a.EngineRef.Valid {
		return nil, s.start(ctx, sess, a)
	}
	return nil, s.waits(ctx, sess, a)
}

func (s *Scheduler) queueTimeout(sess storage.Session) change {
	return change{
		to: TimedOut, reason: ReasonQueueTimeout, endWords: "waited too long for a machine",
		words: fmt.Sprintf("The session waited too long in the queue, %s: %s.", short(s.times.Queue), orWords(sess.QueueReason, "no machine became free")),
	}
}
