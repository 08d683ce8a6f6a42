package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"inspect/storage"
)

func TestPublishing(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(storage.Session) (Published, error)
		state  State
		reason string
	}{
		"refused": {func(storage.Session) (Published, error) {
			return Published{Refusal: &Refusal{State: Failed, Reason: "protected_path", Words: "It touches .github."}}, nil
		}, Failed, "protected_path"},
		"for good": {func(storage.Session) (Published, error) {
			return Published{}, fmt.Errorf("archived: %w", ErrPermanent)
		}, Failed, ReasonPublishRefused},
		"neither": {func(storage.Session) (Published, error) { return Published{}, nil }, Publishing, ""},
		"both": {func(storage.Session) (Published, error) {
			return Published{Receipt: &Receipt{Branch: "b", HeadSHA: "h", PullRequest: 1}, Refusal: &Refusal{State: Failed}}, nil
		}, Publishing, ""},
		"no proof":        {func(storage.Session) (Published, error) { return Published{Receipt: &Receipt{Branch: "b"}}, nil }, Publishing, ""},
		"refused as done": {func(storage.Session) (Published, error) { return Published{Refusal: &Refusal{State: Delivered}}, nil }, Publishing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.scheduler()
			sess, r := w.running(s)
			w.verified(s, r)
			w.effects.answer = c.answer
			_ = s.Reconcile(context.Background(), sess.ID)
			got := w.want(sess.ID, c.state, c.reason)
			if c.state == Publishing && !got.NextCheckAt.After(w.clock.Now()) {
				t.Fatalf("no backoff: next check at %s", got.NextCheckAt)
			}
		})
	}
}

// Without a forge, and only then, a receipt needs no pull request.
func TestReceiptWithoutForge(t *testing.T) {
	branch := Published{Receipt: &Receipt{Branch: "inspect/x", HeadSHA: "h"}}
	pull := Published{Receipt: &Receipt{Branch: "inspect/x", HeadSHA: "h", PullRequest: 1}}
	for _, c := range []struct {
		p       Published
		noForge bool
		ok      bool
	}{{branch, true, true}, {branch, false, false}, {pull, false, true}, {pull, true, false}, {Published{Receipt: &Receipt{Branch: "b"}}, true, false}} {
		if err := c.p.check(c.noForge); (err == nil) != c.ok {
			t.Errorf("%+v, no forge %v: %v", *c.p.Receipt, c.noForge, err)
		}
	}
}

func TestLostAnswersRepeatNoEffect(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	w.prepare(s)
	w.engine.lost = true
	w.look(s, sess.ID) // started, and the answer lost
	w.clock.Advance(time.Minute)
	w.nodeAlive(s)
	w.look(s, sess.ID)
	r := w.runner(s, sess.ID)
	if fa, _ := w.engine.last(sess.ID); fa.starts != 1 || fa.Generation != 1 || !w.attemptOf(sess.ID).EngineRef.Valid {
		t.Fatalf("started %d times, generation %d", fa.starts, fa.Generation)
	}
	w.verified(s, r)
	w.effects.lost = 3
	for range 4 {
		w.look(s, sess.ID)
		w.clock.Advance(2 * time.Minute)
	}
	w.want(sess.ID, Delivered, "")
	if w.effects.pushed[sess.ID] != 1 || w.effects.publishes != 4 {
		t.Fatalf("%d pushes in %d calls", w.effects.pushed[sess.ID], w.effects.publishes)
	}
}

type laterErr struct{ at time.Time }

func (laterErr) Error() string { return "rate limited" }

func (e laterErr) RetryAt() time.Time { return e.at }

func TestReportsAreRepeatedUntilTheEndIsTold(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.effects.reportErr = errFake
	w.verified(s, r)
	w.look(s, sess.ID)
	got := w.want(sess.ID, Delivered, "") // a comment that cannot be written holds nothing up
	if got.ReportedAt.Valid || !got.NextCheckAt.After(w.clock.Now()) || got.ReportTries != 1 {
		t.Fatalf("reported %v, next check %s", got.ReportedAt, got.NextCheckAt)
	}
	w.look(s, sess.ID) // too early: not asked again
	if again := w.get(sess.ID); again.ReportTries != 1 {
		t.Fatalf("%d tries", again.ReportTries)
	}
	w.clock.Set(got.NextCheckAt)
	until := w.clock.Now().Add(5 * time.Minute)
	w.effects.reportErr = errors.Join(errFake, laterErr{until})
	w.look(s, sess.ID)
	if got = w.get(sess.ID); !got.NextCheckAt.Equal(until) {
		t.Fatalf("next check %s, rate limited until %s", got.NextCheckAt, until)
	}
	w.clock.Set(until)
	w.effects.reportErr = nil
	w.look(s, sess.ID)
	if got = w.get(sess.ID); !got.ReportedAt.Valid {
		t.Fatal("not reported")
	}
}

func TestReportThatCannotSucceedIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		wait time.Duration
	}{"permanent": {fmt.Errorf("locked: %w", ErrPermanent), 0}, "for three days": {errFake, 72 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.scheduler()
			sess := w.create(s)
			if err := s.Stop(context.Background(), sess.ID, "octocat", ""); err != nil {
				t.Fatal(err)
			}
			w.effects.reportErr = c.err
			w.look(s, sess.ID)
			w.clock.Advance(c.wait)
			w.look(s, sess.ID)
			if got := w.want(sess.ID, Stopped, ReasonStopped); !got.ReportedAt.Valid {
				t.Fatal("tried for ever")
			}
		})
	}
}
