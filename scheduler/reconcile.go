package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/storage"
)

// stopGrace is the usual time from a stop request to the engine's.
const stopGrace = 30 * time.Second

// waitCheck is between two looks at a session that waits for a person.
const waitCheck = time.Minute

// errBusy says that somebody else is looking at the session now.
var errBusy = errors.New("somebody else is looking at this session")

// errLater ends a look at a session: there is nothing to do before the time.
type errLater struct{ at time.Time }

func (e errLater) Error() string { return "nothing to do before " + e.at.Format(time.RFC3339) }

// maxSteps bounds the steps of one look; a session has fewer states.
const maxSteps = 24

// Reconcile looks at one session and moves it on as far as it goes now. It may
// be called at any time and as often as anybody likes. Whatever happens, the
// session keeps a time of its next check, so an error costs latency only.
func (s *Scheduler) Reconcile(ctx context.Context, session string) error {
	unlock, ok, err := s.locks.try(ctx, sessionLock(session))
	if err != nil {
		return fmt.Errorf("locking session %s: %w", session, err)
	}
	if !ok {
		return errBusy
	}
	defer unlock()
	for range maxSteps {
		sess, err := s.db.Q().GetSession(ctx, session)
		if storage.IsMissing(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading session %s: %w", session, err)
		}
		if sess.ReportedAt.Valid {
			return nil
		}
		err = s.step(ctx, sess)
		var later errLater
		switch {
		case err == nil, errors.Is(err, errMoved):
			continue
		case errors.As(err, &later):
			return s.rest(ctx, session, later.at)
		default:
			// The sweeper claimed the session by moving its check a little ahead,
			// or a step set one itself: it is looked at again.
			return err
		}
	}
	return fmt.Errorf("session %s did not come to rest in %d steps", session, maxSteps)
}

// rest reports where the session stands and sets its next check.
func (s *Scheduler) rest(ctx context.Context, session string, at time.Time) error {
	sess, err := s.db.Q().GetSession(ctx, session)
	if err != nil {
		return fmt.Errorf("reading session %s: %w", session, err)
	}
	if Terminal(sess.State) {
		return s.reportEnd(ctx, sess)
	}
	reportErr := s.reportProgress(ctx, sess)
	if sess.Deadline.Before(at) {
		at = sess.Deadline
	}
	if err := s.db.Q().SetSessionNextCheck(ctx, storage.SetSessionNextCheckParams{
		ID: session, Version: sess.Version, NextCheckAt: at,
	}); err != nil {
		return fmt.Errorf("setting the next check of session %s: %w", session, err)
	}
	return reportErr
}

// later ends a look; the session is looked at again after d.
func (s *Scheduler) later(d time.Duration) error { return errLater{s.clock.Now().Add(d)} }

// step does the one thing that is next for a session. It returns nil if the
// row has changed, errLater if there is nothing to do now.
func (s *Scheduler) step(ctx context.Context, sess storage.Session) error {
	if Terminal(sess.State) {
		return s.later(0) // rest reports it
	}
	if sess.StopAt.Valid {
		if late, err := s.tooLateToStop(ctx, sess); err != nil {
			return err
		} else if !late {
			return s.stepStop(ctx, sess)
		}
	}
	if now := s.clock.Now(); !now.Before(sess.Deadline) {
		// After an absence of ours runners first get to say what they did meanwhile.
		if heard := s.began.Add(s.times.Heartbeat); OnMachine(sess.State) && now.Before(heard) {
			return s.stepAttempt(ctx, sess)
		}
		return s.stepDeadline(ctx, sess)
	}
	switch sess.State {
	case Queued:
		return s.stepQueued(ctx, sess)
	case Placing, Restoring, Working, Verifying:
		return s.stepAttempt(ctx, sess)
	case Publishing:
		return s.stepPublish(ctx, sess)
	default: // a person is waited for, whose answer wakes the session
		return s.later(waitCheck)
	}
}

func (s *Scheduler) stepQueued(ctx context.Context, sess storage.Session) error {
	if err := s.admit(ctx); err != nil {
		return err
	}
	now, err := s.db.Q().GetSession(ctx, sess.ID)
	if err != nil {
		return fmt.Errorf("reading session %s: %w", sess.ID, err)
	}
	if now.Version != sess.Version {
		return nil
	}
	return s.later(s.times.Check)
}

// stepAttempt starts the attempt of a session if that is not done, takes its
// outcome, and finds out whether it was lost.
func (s *Scheduler) stepAttempt(ctx context.Context, sess storage.Session) error {
	a, err := s.attempt(ctx, sess)
	if err != nil {
		return err
	}
	if a.Outcome.Valid {
		return s.finish(ctx, sess, a)
	}
	if !a.EngineRef.Valid {
		return s.start(ctx, sess, a)
	}
	if err := s.waits(ctx, sess, a); err != nil {
		return err
	}
	// A runner that speaks is there; the engine is asked when it is silent or new.
	silent := !a.HeartbeatAt.Valid || s.clock.Now().Sub(a.HeartbeatAt.Time) > s.times.Heartbeat
	state, err := s.o.Engine.State(ctx, a.EngineRef.RawMessage)
	if err != nil {
		s.log.Warn("the engine cannot tell how an attempt is", "session", sess.ID, "generation", a.Generation, "error", err)
		state = EngineUnknown
	}
	if state != EngineGone {
		if silent && a.HeartbeatAt.Valid && state == EngineRunning {
			s.log.Warn("a runner is silent but its process lives", "session", sess.ID, "generation", a.Generation)
		}
		return s.later(s.times.Check)
	}
	// Its last words may have arrived while we asked.
	if a, err = s.attempt(ctx, sess); err != nil {
		return err
	}
	if a.Outcome.Valid {
		return s.finish(ctx, sess, a)
	}
	words := "the runner ended without saying what came of the work"
	if why := s.whyGone(ctx, a); why != "" {
		words += ": " + why
	}
	return s.tryAgain(ctx, sess, words)
}

// whyGone is what the engine knows of the end of an attempt. It is no outcome,
// but all that there is to say of a runner that never began.
func (s *Scheduler) whyGone(ctx context.Context, a storage.Attempt) string {
	list, err := s.o.Engine.List(ctx)
	if err != nil {
		s.log.Warn("the engine cannot tell why an attempt has ended", "session", a.SessionID, "generation", a.Generation, "error", err)
	}
	i := slices.IndexFunc(list, func(l Listed) bool { return l.Session == a.SessionID && l.Generation == int(a.Generation) })
	if i < 0 {
		return ""
	}
	return clip(s.o.Redactor.String(list[i].Words), 300)
}

func (s *Scheduler) attempt(ctx context.Context, sess storage.Session) (storage.Attempt, error) {
	a, err := s.db.Q().GetAttempt(ctx, storage.GetAttemptParams{SessionID: sess.ID, Generation: sess.Generation})
	if err != nil {
		return a, fmt.Errorf("reading attempt %d of session %s: %w", sess.Generation, sess.ID, err)
	}
	return a, nil
}

// start asks the engine to run an attempt whose row and deadline are written.
// The secret is derived, so that a repetition after a crash finds the same.
func (s *Scheduler) start(ctx context.Context, sess storage.Session, a storage.Attempt) error {
	sp, err := sessionSpec(sess)
	if err != nil {
		return err
	}
	repo, err := s.db.Q().GetRepositoryRow(ctx, sess.RepositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
	}
	var taken Taken
	if err := json.Unmarshal(a.Taken.RawMessage, &taken); err != nil {
		return fmt.Errorf("reading what attempt %d of session %s was placed for: %w", a.Generation, sess.ID, err)
	}
	ref, err := s.o.Engine.Start(ctx, Attempt{
		Session: sess.ID, Generation: int(a.Generation), Node: a.Node,
		Repository: repo.Owner + "/" + repo.Name, Environment: sess.EnvironmentID, Commit: taken.Commit,
		CPU: sp.Limits.CPU, Memory: sp.Limits.MemoryBytes, Priority: int(sess.Priority), Deadline: a.Deadline,
		Secret: s.oneTimeSecret(sess.ID, a.Generation),
	})
	if err != nil && s.placer() != nil {
		return s.notStarted(ctx, sess, err)
	}
	if err != nil {
		return s.tryLater(ctx, sess, fmt.Errorf("starting attempt %d of session %s: %w", a.Generation, sess.ID, err), 30*time.Second)
	}
	if err := s.db.Q().SetAttemptRef(context.WithoutCancel(ctx), storage.SetAttemptRefParams{
		SessionID: sess.ID, Generation: a.Generation,
		EngineRef: pqtype.NullRawMessage{RawMessage: ref, Valid: true},
	}); err != nil {
		return fmt.Errorf("storing what attempt %d of session %s runs as: %w", a.Generation, sess.ID, err)
	}
	if s.placer() != nil { // it may have waited for the engine
		if err := s.hold(ctx, sess, "", Wait{}, false, s.clock.Now().Add(s.times.Check)); err != nil {
			return err
		}
	}
	return s.later(s.times.Check)
}

// tryLater counts a failed try of the present step and sets the time of the next.
func (s *Scheduler) tryLater(ctx context.Context, sess storage.Session, cause error, limit time.Duration) error {
	at := retryTime(s.clock.Now(), cause, int(sess.EffectTries), limit)
	if sess.Deadline.Before(at) {
		at = sess.Deadline
	}
	err := s.db.Q().SetSessionEffectTry(context.WithoutCancel(ctx), storage.SetSessionEffectTryParams{
		ID: sess.ID, Version: sess.Version, NextCheckAt: at,
	})
	return errors.Join(cause, err)
}

// tryAgain gives the current attempt up. The session goes back into the queue
// for another one, or ends if it had enough of them.
func (s *Scheduler) tryAgain(ctx context.Context, sess storage.Session, words string) error {
	tried, err := s.tried(ctx, sess)
	if err != nil {
		return err
	}
	if tried >= MaxAttempts {
		return s.giveUp(ctx, sess, change{
			to: Infrastructure, reason: ReasonAttemptsExhausted, endWords: words,
			words: fmt.Sprintf("All %d attempts failed through no fault of the work; the last one because %s.", MaxAttempts, words),
		})
	}
	return s.giveUp(ctx, sess, change{
		to: Queued, move: NewAttempt, endWords: words,
		queueReason: fmt.Sprintf("attempt %d of %d follows: %s", tried+1, MaxAttempts, words),
	})
}

// engineStop is how long the end of an attempt that does not count any more is
// waited for.
const engineStop = 20 * time.Second

// giveUp applies a change that ends the current attempt, and only then has the
// engine end its processes: nothing it says counts from here on, so a machine
// that cannot be reached holds no session up. Where it can, nothing of the old
// attempt runs beside the next one, which is started after this. What is not
// ended now the sweep ends.
func (s *Scheduler) giveUp(ctx context.Context, sess storage.Session, c change) error {
	if _, err := s.apply(ctx, sess, c); err != nil {
		return err
	}
	if !OnMachine(sess.State) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, engineStop)
	defer cancel()
	a, err := s.attempt(ctx, sess)
	if err == nil && a.EngineRef.Valid {
		err = s.o.Engine.Stop(ctx, a.EngineRef.RawMessage)
	}
	if err != nil {
		s.log.Warn("an attempt that does not count any more could not be ended yet", "session", sess.ID, "generation", sess.Generation, "error", err)
	}
	return nil
}

// stepDeadline ends what took too long in the way that fits the state.
func (s *Scheduler) stepDeadline(ctx context.Context, sess storage.Session) error {
	if OnMachine(sess.State) {
		// An outcome that is already there is better than the clock.
		a, err := s.attempt(ctx, sess)
		if err != nil {
			return err
		}
		if a.Outcome.Valid {
			return s.finish(ctx, sess, a)
		}
	}
	var c change
	switch sess.State {
	case Queued:
		c = s.queueTimeout(sess)
	case Placing:
		late, err := s.latePlacing(ctx, sess)
		if err != nil {
			return err
		}
		if late == nil {
			return s.tryAgain(ctx, sess, "the runner did not start in time")
		}
		c = *late
	case Restoring:
		return s.tryAgain(ctx, sess, "the environment was not restored in time")
	case Working, Verifying:
		words := "The work was not over in time. What was uploaded last is kept in the evidence."
		if sess.State == Verifying {
			words = "The verification was not over in time. The work is kept in the evidence."
		}
		c = change{to: TimedOut, reason: ReasonTimeout, words: words, endWords: "ended at its deadline"}
	case Publishing:
		c = change{to: Infrastructure, reason: ReasonPublishTimeout, words: "The result could not be published in time. It is kept in the evidence."}
	default:
		c = change{to: Stopped, reason: ReasonApprovalExpired, words: "Nobody answered in time. Nothing was pushed; the work is kept in the evidence.",
			with: func(q *storage.Queries, row *storage.Session) error {
				return s.closePending(ctx, q, row, approvalExpired, "Nobody answered in time.")
			}}
	}
	return s.giveUp(ctx, sess, c)
}

// stepStop realises a stop that somebody asked for: the runner is given a
// grace to upload what there is, then the engine ends it.
func (s *Scheduler) stepStop(ctx context.Context, sess storage.Session) error {
	c := change{to: Stopped, reason: orWords(sess.StopReason, ReasonStopped), words: stopWords(sess), endWords: "stopped"}
	if OnMachine(sess.State) {
		a, err := s.attempt(ctx, sess)
		if err != nil {
			return err
		}
		end := sess.StopAt.Time.Add(s.times.StopGrace)
		switch {
		case a.Outcome.Valid:
			c.with = func(q *storage.Queries, row *storage.Session) error { return keepOutcome(ctx, q, row, a) }
		case a.EngineRef.Valid && s.clock.Now().Before(end):
			state, err := s.o.Engine.State(ctx, a.EngineRef.RawMessage)
			if err != nil || state != EngineGone {
				return errLater{earlier(end, s.clock.Now().Add(s.times.Check))}
			}
			if a, err = s.attempt(ctx, sess); err != nil {
				return err
			}
			if a.Outcome.Valid {
				return nil // taken in the next step
			}
		}
	}
	return s.giveUp(ctx, sess, c)
}

// tooLateToStop tells whether something of the result may be in the world
// already: then publishing goes on, and the session ends as what is there.
func (s *Scheduler) tooLateToStop(ctx context.Context, sess storage.Session) (bool, error) {
	if sess.State != Publishing {
		return false, nil
	}
	begun, err := s.db.Q().PublishBegun(ctx, sess.ID)
	if err != nil {
		return false, fmt.Errorf("looking for what session %s published: %w", sess.ID, err)
	}
	return begun, nil
}

func stopWords(sess storage.Session) string {
	if sess.StopReason != "" {
		return sess.StopWords
	}
	words := "Stopped by " + sess.StopBy + "."
	if sess.StopWords != "" {
		words += " " + sess.StopWords
	}
	return words
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Stop asks for the end of a session, from any state, in the name of who. The
// work is kept. Stopping a session that is over changes nothing.
func (s *Scheduler) Stop(ctx context.Context, session, who, words string) error {
	return s.stop(ctx, session, who, "", words)
}

// Supersede asks for the end of a session like Stop, for a reason that is no
// person's wish: what it works on has moved or is closed. words are all that is
// said of it.
func (s *Scheduler) Supersede(ctx context.Context, session, reason, words string) error {
	return s.stop(ctx, session, "Inspect", reason, words)
}

func (s *Scheduler) stop(ctx context.Context, session, who, reason, words string) error {
	defer s.wakes.wake("session:" + session)
	return s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		asked, err := askToStop(ctx, tx.Q(), session, who, reason, words, s.clock.Now(), s.times.StopGrace)
		if err != nil || !asked {
			return err
		}
		return s.InsertReconcile(ctx, tx, session)
	})
}

// StopByOperator is Stop from beside a control plane, which learns of it at its
// next look. false: the session is over, or was asked to stop before.
func StopByOperator(ctx context.Context, db *storage.DB, session, who string, now time.Time) (asked bool, err error) {
	err = db.InLockTx(ctx, func(tx *storage.Tx) (err error) {
		asked, err = askToStop(ctx, tx.Q(), session, who, "", "", now, stopGrace)
		return err
	})
	return asked, err
}

// askToStop records that a session is to end, and tells its runner. false: it is
// over, or was asked before.
func askToStop(ctx context.Context, q *storage.Queries, session, who, reason, words string, now time.Time, grace time.Duration) (bool, error) {
	if _, err := q.LockSession(ctx, session); err != nil {
		return false, fmt.Errorf("reading session %s: %w", session, err)
	}
	row, err := q.SetStopRequest(ctx, storage.SetStopRequestParams{
		ID: session, Now: now, Who: clip(who, 100), Words: clip(words, 1000),
	})
	if storage.IsMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stopping session %s: %w", session, err)
	}
	if row.StopReason = reason; reason != "" {
		if err := q.SetStopReason(ctx, storage.SetStopReasonParams{ID: session, StopReason: reason}); err != nil {
			return false, fmt.Errorf("stopping session %s: %w", session, err)
		}
	}
	e, err := ownEvent(row.Generation, EventStop, now, map[string]any{"who": row.StopBy, "words": row.StopWords})
	if err != nil {
		return false, err
	}
	if err := appendEvents(ctx, q, &row, e); err != nil {
		return false, err
	}
	if !OnMachine(row.State) {
		return true, nil
	}
	data := encode(wire.StopDirective{Reason: stopWords(row), Grace: grace})
	if _, err := q.InsertDirective(ctx, storage.InsertDirectiveParams{
		SessionID: row.ID, Generation: row.Generation, Kind: wire.DirectiveStop,
		Data: pqtype.NullRawMessage{RawMessage: json.RawMessage(data), Valid: true}, CreatedAt: now,
	}); err != nil {
		return false, fmt.Errorf("telling the runner of session %s to stop: %w", session, err)
	}
	return true, nil
}
