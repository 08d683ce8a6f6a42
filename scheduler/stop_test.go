package scheduler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

func TestEveryDeadlineEndsInWords(t *testing.T) {
	for _, c := range []struct {
		name   string
		phases []string
		state  State
		reason string
		again  bool // another attempt first
	}{
		{"placing", nil, Infrastructure, ReasonAttemptsExhausted, true},
		{"restoring", []string{"restoring"}, Infrastructure, ReasonAttemptsExhausted, true},
		{"working", []string{"restoring", "working"}, TimedOut, ReasonTimeout, false},
		{"verifying", []string{"verifying"}, TimedOut, ReasonTimeout, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			s := w.scheduler()
			sess, r := w.running(s)
			for g := 1; ; g++ {
				w.phase(s, r, c.phases...)
				w.clock.Set(w.get(sess.ID).Deadline)
				w.nodeAlive(s)
				w.look(s, sess.ID)
				if !c.again || g == MaxAttempts {
					break
				}
				if fa := w.engine.attempts[fmt.Sprintf("%s/%d", sess.ID, g)]; !fa.gone {
					t.Fatal("a new attempt began beside the old one")
				}
				w.look(s, sess.ID)
				r = w.runner(s, sess.ID)
			}
			got := w.want(sess.ID, c.state, c.reason)
			if fa, _ := w.engine.last(sess.ID); !fa.gone || got.Words == "" {
				t.Fatalf("gone %v, words %q", fa.gone, got.Words)
			}
		})
	}
	t.Run("queued", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess := w.create(s)
		w.look(s, sess.ID)
		w.clock.Advance(24 * time.Hour)
		w.look(s, sess.ID)
		if got := w.want(sess.ID, TimedOut, ReasonQueueTimeout); !strings.Contains(got.Words, "building the snapshot") {
			t.Fatalf("words %q", got.Words)
		}
	})
	t.Run("publishing", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.verified(s, r)
		w.effects.publishErr = errFake
		w.look(s, sess.ID)
		w.want(sess.ID, Publishing, "")
		w.clock.Advance(time.Hour)
		w.look(s, sess.ID)
		w.want(sess.ID, Infrastructure, ReasonPublishTimeout)
	})
	t.Run("an outcome beats the clock", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.phase(s, r, "working")
		w.verified(s, r)
		w.clock.Set(w.get(sess.ID).Deadline.Add(time.Minute))
		w.look(s, sess.ID)
		w.want(sess.ID, Delivered, "")
	})
}

func TestStopFromEveryState(t *testing.T) {
	ctx := context.Background()
	stop := func(t *testing.T, s *Scheduler, id string) {
		t.Helper()
		for range 2 { // asking twice is asking once
			if err := s.Stop(ctx, id, "hubot", "Not needed."); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Run("queued", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess := w.create(s)
		stop(t, s, sess.ID)
		w.look(s, sess.ID)
		if got := w.want(sess.ID, Stopped, ReasonStopped); got.Words != "Stopped by hubot. Not needed." {
			t.Fatalf("words %q", got.Words)
		}
	})
	t.Run("placing", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess := w.create(s)
		w.prepare(s)
		w.want(sess.ID, Placing, "")
		stop(t, s, sess.ID)
		w.look(s, sess.ID)
		w.want(sess.ID, Stopped, ReasonStopped)
		if _, started := w.engine.last(sess.ID); started {
			t.Fatal("a stopped session was started")
		}
	})
	t.Run("working, obeyed", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.phase(s, r, "working")
		stop(t, s, sess.ID)
		d, err := s.Directives(ctx, r, 0)
		if err != nil || len(d.Directives) != 1 || d.Directives[0].Stop == nil || d.Directives[0].Stop.Grace != 30*time.Second {
			t.Fatalf("directives %+v, %v", d, err)
		}
		w.look(s, sess.ID)
		w.want(sess.ID, Working, "") // it has its grace
		sum := w.bundle(s, r, 1, "what there is")
		if err := s.Outcome(ctx, r, wire.Outcome{Kind: wire.OutcomeStopped, Bundle: sum, Tip: tipSHA}); err != nil {
			t.Fatal(err)
		}
		w.look(s, sess.ID)
		if got := w.want(sess.ID, Stopped, ReasonStopped); !got.Outcome.Valid {
			t.Fatal("the outcome, and with it the work, was not kept")
		}
	})
	t.Run("working, ignored", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.phase(s, r, "working")
		stop(t, s, sess.ID)
		w.look(s, sess.ID)
		if next := w.get(sess.ID).NextCheckAt; next.After(w.clock.Now().Add(30 * time.Second)) {
			t.Fatalf("looked at again only at %s", next)
		}
		w.clock.Advance(30 * time.Second)
		w.look(s, sess.ID)
		w.want(sess.ID, Stopped, ReasonStopped)
		if fa, _ := w.engine.last(sess.ID); !fa.gone {
			t.Fatal("the runner runs on")
		}
		if err := s.Outcome(ctx, r, goodOutcome("")); codeOf(err) != codeStale {
			t.Fatalf("late outcome: %v", err)
		}
	})
	t.Run("a verified result that comes after the stop is not published", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.phase(s, r, "working")
		stop(t, s, sess.ID)
		w.verified(s, r)
		w.look(s, sess.ID)
		w.want(sess.ID, Stopped, ReasonStopped)
		if w.effects.publishes != 0 {
			t.Fatal("published")
		}
	})
	t.Run("publishing, nothing in the world yet", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.verified(s, r)
		w.effects.publishErr = errFake
		w.look(s, sess.ID)
		stop(t, s, sess.ID)
		w.look(s, sess.ID)
		w.want(sess.ID, Stopped, ReasonStopped)
	})
	t.Run("publishing, pushed already", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.verified(s, r)
		w.effects.lost = 1
		w.look(s, sess.ID)
		w.want(sess.ID, Publishing, "")
		w.sql("INSERT INTO effects (key, session_id, state) VALUES ($1 || '/1/push', $1, 'started')", sess.ID)
		stop(t, s, sess.ID)
		w.clock.Advance(time.Minute)
		w.look(s, sess.ID)
		w.want(sess.ID, Delivered, "")
	})
	t.Run("over", func(t *testing.T) {
		w := newWorld(t)
		s := w.scheduler()
		sess, r := w.running(s)
		w.verified(s, r)
		w.look(s, sess.ID)
		stop(t, s, sess.ID)
		w.want(sess.ID, Delivered, "")
		if err := s.Stop(ctx, "aaaaaaaaaa", "hubot", ""); err == nil {
			t.Fatal("stopped a session that is not there")
		}
	})
}

// What an engine began without our hearing of it ends with its session.
func TestAStartThatWasNotHeardOfEndsWithItsSession(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	w.prepare(s)
	w.engine.lost = true
	w.look(s, sess.ID)
	if err := s.Stop(t.Context(), sess.ID, "octocat", ""); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Minute)
	w.look(s, sess.ID)
	w.want(sess.ID, Stopped, ReasonStopped)
	w.clock.Advance(reapGrace)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, ok := w.engine.last(sess.ID); !ok || !a.gone || a.forgotten != 1 {
		t.Errorf("what was begun is still there: %+v", a)
	}
}
