package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"inspect/storage"
)

// reportProgress has the session's comment brought up to date. Its failure
// never holds the session up: it is tried again at a later look.
func (s *Scheduler) reportProgress(ctx context.Context, sess storage.Session) error {
	if sess.ReportAfter.Valid && s.clock.Now().Before(sess.ReportAfter.Time) {
		return nil
	}
	err := s.report(ctx, sess, progressTimeout)
	if err == nil {
		if sess.ReportTries == 0 {
			return nil
		}
		return s.db.Q().SetReported(ctx, storage.SetReportedParams{ID: sess.ID, Version: sess.Version, Now: s.clock.Now()})
	}
	after := retryTime(s.clock.Now(), err, int(sess.ReportTries), 2*time.Minute)
	return errors.Join(
		fmt.Errorf("reporting how session %s stands: %w", sess.ID, err),
		s.db.Q().SetReportTried(context.WithoutCancel(ctx), storage.SetReportTriedParams{ID: sess.ID, Version: sess.Version, After: after}),
	)
}

// reportEnd has the end of a session told, until that has succeeded or is hopeless.
func (s *Scheduler) reportEnd(ctx context.Context, sess storage.Session) error {
	now := s.clock.Now()
	if sess.ReportAfter.Valid && now.Before(sess.ReportAfter.Time) && now.Before(sess.Deadline) {
		return s.setNextCheck(ctx, sess, sess.ReportAfter.Time)
	}
	err := s.report(ctx, sess, endTimeout)
	ctx = context.WithoutCancel(ctx)
	hopeless := err != nil && (errors.Is(err, ErrPermanent) || !now.Before(sess.Deadline))
	if hopeless {
		s.log.Error("the end of a session cannot be told", "session", sess.ID, "state", sess.State, "error", err)
	}
	if err == nil || hopeless {
		// Written before it is recorded as told: each end has this line at least once.
		row, err := s.db.Q().GetSession(ctx, sess.ID)
		if err != nil {
			return fmt.Errorf("reading session %s: %w", sess.ID, err)
		}
		s.logEnd("the end of a session was reported", row)
		if err := s.db.Q().SetReported(ctx, storage.SetReportedParams{ID: sess.ID, Version: sess.Version, Now: s.clock.Now()}); err != nil {
			return fmt.Errorf("recording that the end of session %s was told: %w", sess.ID, err)
		}
		return nil
	}
	after := retryTime(s.clock.Now(), err, int(sess.ReportTries), 10*time.Minute)
	return errors.Join(
		fmt.Errorf("reporting the end of session %s: %w", sess.ID, err),
		s.db.Q().SetReportTried(ctx, storage.SetReportTriedParams{ID: sess.ID, Version: sess.Version, After: after}),
		s.setNextCheck(ctx, sess, after),
	)
}

// How long one report may take. Progress is short, because the session waits for it.
const (
	progressTimeout = 20 * time.Second
	endTimeout      = 2 * time.Minute
)

func (s *Scheduler) report(ctx context.Context, sess storage.Session, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.learn(ctx); err != nil {
		return err
	}
	return s.o.Effects.Report(ctx, sess)
}

func (s *Scheduler) setNextCheck(ctx context.Context, sess storage.Session, at time.Time) error {
	err := s.db.Q().SetSessionNextCheck(ctx, storage.SetSessionNextCheckParams{ID: sess.ID, Version: sess.Version, NextCheckAt: at})
	if err != nil {
		return fmt.Errorf("setting the next check of session %s: %w", sess.ID, err)
	}
	return nil
}
