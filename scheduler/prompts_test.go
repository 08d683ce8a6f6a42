package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"inspect/envs/wire"
	"inspect/storage"
)

func (w *world) ask(s *Scheduler, session, text string) bool {
	w.t.Helper()
	var ok bool
	err := w.db.InTx(context.Background(), func(tx *storage.Tx) (err error) {
		ok, err = s.Ask(context.Background(), tx, session, Prompt{By: Person{9, "hubot"}, Text: text, Comment: 5, Intent: "comment:" + text})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return ok
}

// prompted are the prompts that the runner of an attempt was given.
func (w *world) prompted(s *Scheduler, r Runner) (out []string) {
	w.t.Helper()
	rows, err := w.db.Q().DirectivesAfter(context.Background(), storage.DirectivesAfterParams{SessionID: r.Session, Generation: int32(r.Generation)})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, row := range rows {
		var p wire.PromptDirective
		if err := json.Unmarshal(row.Data.RawMessage, &p); err != nil || row.Kind != wire.DirectivePrompt {
			w.t.Fatalf("directive %+v: %v", row, err)
		}
		out = append(out, p.Author+": "+p.Text[strings.LastIndex(p.Text, "\n")+1:])
	}
	return out
}

func TestPromptsReachEveryAttempt(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "restoring", "working")
	for _, text := range []string{"one", "two", "one"} { // the same wish counts once
		if !w.ask(s, sess.ID, text) {
			t.Fatal("it is not taken")
		}
	}
	if got := strings.Join(w.prompted(s, r), "|"); got != "hubot: one|hubot: two" {
		t.Fatalf("told %q", got)
	}
	people, err := Requesters(context.Background(), w.db.Q(), sess.ID)
	if err != nil || people[len(people)-1].Role != string(RolePrompted) || people[len(people)-1].UserID != 9 {
		t.Errorf("requesters %+v, %v", people, err)
	}
	// A lost attempt's successor knows nothing and is told all, in order.
	w.bundle(s, r, 1, "work")
	w.outcome(s, r, wire.OutcomeInfrastructure)
	w.look(s, sess.ID)
	w.look(s, sess.ID)
	next := Runner{Session: sess.ID, Generation: 2}
	if got := w.get(sess.ID); got.Generation != 2 {
		t.Fatalf("session %+v", got)
	}
	if got := strings.Join(w.prompted(s, next), "|"); got != "hubot: one|hubot: two" {
		t.Errorf("told %q", got)
	}
}

// What was asked when the agent had ended is not lost with a result that knows
// nothing of it.
func TestLatePromptGetsAnotherAttempt(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	w.phase(s, r, "restoring", "working")
	w.ask(s, sess.ID, "heard")
	if _, err := s.AppendEvents(context.Background(), r, []wire.Event{
		{Number: 3, Kind: wire.EventPrompt, At: w.clock.Now(), Data: wire.Prompted{Prompt: 2, Author: "hubot", Done: true}},
	}); err != nil {
		t.Fatal(err)
	}
	w.phase(s, r, "verifying")
	if !w.ask(s, sess.ID, "late") {
		t.Fatal("it is not taken")
	}
	w.verified(s, r)
	w.look(s, sess.ID)
	if got := w.get(sess.ID); got.State != Placing && got.State != Queued {
		t.Fatalf("state %s, %s", got.State, got.Words)
	}
}

func TestNoPromptAfterTheWork(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess, r := w.running(s)
	for i := range wire.MaxPrompts {
		w.ask(s, sess.ID, fmt.Sprint(i))
	}
	err := w.db.InTx(context.Background(), func(tx *storage.Tx) error {
		_, err := s.Ask(context.Background(), tx, sess.ID, Prompt{By: Person{9, "hubot"}, Text: "more", Intent: "more"})
		return err
	})
	if !IsPointError(err) {
		t.Errorf("one too many: %v", err)
	}
	w.outcome(s, r, wire.OutcomeFailed)
	w.look(s, sess.ID)
	if w.ask(s, sess.ID, "after the end") {
		t.Error("a session that has ended takes it")
	}
}

func TestSupersede(t *testing.T) {
	w := newWorld(t)
	s := w.scheduler()
	sess := w.create(s)
	if err := s.Supersede(context.Background(), sess.ID, ReasonSuperseded, "hubot pushed."); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	if got := w.want(sess.ID, Stopped, ReasonSuperseded); got.Words != "hubot pushed." {
		t.Errorf("words %q", got.Words)
	}
}
