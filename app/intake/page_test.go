package intake

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"inspect/app/comment"
	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// press has somebody press a button of a session's page, and says what the page
// would show: the outcome and the words.
func (w *world) press(n int, p Pressed) storage.Intent {
	w.t.Helper()
	p.ID = fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
	if err := w.in.Press(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
	if err := w.in.Deliver(w.t.Context(), p.ID); err != nil {
		w.t.Fatal(err)
	}
	return w.intent(PageKey(p.ID))
}

func TestPage(t *testing.T) {
	w := setup(t, nil)
	w.deliver("issues", body(labeled()))
	s := w.one()

	if i := w.press(1, Pressed{Session: s.ID, Do: "request", Text: " and the test \n", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomePrompted {
		t.Errorf("a request ends %+v", i)
	}
	if got := w.prompts(s.ID); len(got) != 1 || got[0] != "octocat: and the test" {
		t.Errorf("prompts %q", got)
	}
	w.press(1, Pressed{Session: s.ID, Do: "request", Text: "the form was sent twice", ActorID: octocat, Login: "octocat"})
	if got := w.prompts(s.ID); len(got) != 1 {
		t.Errorf("prompts %q", got)
	}
	for n, c := range map[int]struct {
		p             Pressed
		outcome, note string
	}{
		2: {Pressed{Session: s.ID, Do: "request", Text: " ", ActorID: octocat, Login: "octocat"}, outcomeReplied, "say what is to be done"},
		3: {Pressed{Session: s.ID, Do: "request", Text: strings.Repeat("a", MaxAsk+1), ActorID: octocat, Login: "octocat"}, outcomeReplied, "at most"},
		4: {Pressed{Session: s.ID, Do: "stop", ActorID: hubot, Login: "hubot"}, outcomeDenied, ""},   // may not write
		5: {Pressed{Session: s.ID, Do: "stop", ActorID: octocat, Login: "hubot"}, outcomeDenied, ""}, // the login is another's by now
		6: {Pressed{Session: s.ID, Do: "approve", ActorID: octocat, Login: "octocat"}, outcomeReplied, "Nothing waits"},
		7: {Pressed{Session: s.ID, Do: "retry", ActorID: octocat, Login: "octocat"}, outcomeReplied, "Nothing was done"},
	} {
		if i := w.press(n, c.p); i.Outcome != c.outcome || !strings.Contains(i.Note, c.note) {
			t.Errorf("%+v ends %s: %q", c.p, i.Outcome, i.Note)
		}
	}
	if _, err := w.db.Q().IntentByKey(t.Context(), PageKey("00000000-0000-4000-8000-000000000008")); !storage.IsMissing(err) {
		t.Error(err)
	}
	p := Pressed{ID: "00000000-0000-4000-8000-000000000008", Session: s.ID, Do: "refresh", ActorID: octocat, Login: "octocat"}
	if err := w.in.Press(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := w.in.Deliver(t.Context(), p.ID); err != nil || w.delivery(p.ID).Status != ignored {
		t.Errorf("what has no button is obeyed: %v", err)
	}

	w.say(20, "octocat", octocat, "/inspect allow a.example")
	w.gh.calls = nil
	waits := w.waits(s.ID)
	if i := w.press(9, Pressed{Session: s.ID, Do: "reject", Digest: waits[0].Digest, ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeReplied || i.Note != "" || len(w.waits(s.ID)) != 0 {
		t.Errorf("a rejection ends %+v", i)
	}
	var how string
	if err := w.db.SQL().QueryRowContext(t.Context(), `SELECT answered_how FROM approvals WHERE id = $1`, waits[0].ID).Scan(&how); err != nil || how != scheduler.ByPage {
		t.Errorf("answered by %q: %v", how, err)
	}
	if i := w.press(10, Pressed{Session: s.ID, Do: "stop", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeReplied || i.Note != "" {
		t.Errorf("a stop ends %+v", i)
	}
	var stopped bool
	if err := w.db.SQL().QueryRowContext(t.Context(), `SELECT stop_at IS NOT NULL FROM sessions WHERE id = $1`, s.ID).Scan(&stopped); err != nil || !stopped {
		t.Errorf("the session goes on: %v", err)
	}
	for _, c := range w.gh.calls {
		if strings.HasPrefix(c, "React") || strings.HasPrefix(c, "CreateComment") {
			t.Errorf("a page has %q written on GitHub", c)
		}
	}

	w.exec("UPDATE sessions SET state = 'failed', finished_at = now(), stop_at = NULL, generation = 1 WHERE id = $1", s.ID)
	w.exec("INSERT INTO attempts (session_id, generation, engine, work_deadline, deadline, ended_at) VALUES ($1, 1, 'idle', now(), now(), now())", s.ID)
	w.exec("INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip) VALUES ($1, 1, 1, $2, 1, $3)", s.ID, strings.Repeat("a", 64), head)
	if i := w.press(11, Pressed{Session: s.ID, Do: "request", Text: "go on", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeStarted || w.session().State != scheduler.Queued {
		t.Errorf("going on ends %+v", i)
	}
	w.exec("UPDATE sessions SET state = 'failed', finished_at = now() WHERE id = $1", s.ID)
	if i := w.press(12, Pressed{Session: s.ID, Do: "retry", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeStarted || w.session().State != scheduler.Queued {
		t.Errorf("a retry ends %+v", i)
	}
	w.exec("UPDATE sessions SET state = 'delivered', finished_at = now() WHERE id = $1", s.ID)
	if i := w.press(13, Pressed{Session: s.ID, Do: "request", Text: "more", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeReplied || !strings.Contains(i.Note, "does not go on") || len(w.sessions()) != 1 {
		t.Errorf("more of a delivered session ends %+v", i)
	}
	w.say(30, "octocat", octocat, "/inspect another one")
	if n := len(w.sessions()); n != 2 {
		t.Fatalf("%d sessions", n)
	}
	if i := w.press(14, Pressed{Session: s.ID, Do: "stop", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeReplied || !strings.Contains(i.Note, "a newer session") {
		t.Errorf("stopping an old session ends %+v", i)
	}
}

// What a form can hold and a database cannot is a character of its text; and a
// repository that may not use Inspect any more has no session go on.
func TestPageOddities(t *testing.T) {
	var allowed atomic.Bool
	allowed.Store(true)
	w := setup(t, func(o *Options) {
		o.Floor = func(int64, string) (policy.Bounds, bool) { return nil, allowed.Load() }
	})
	w.deliver("issues", body(labeled()))
	s := w.one()
	if i := w.press(1, Pressed{Session: s.ID, Do: "request", Text: "one\x00two\xff", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomePrompted {
		t.Errorf("a request ends %+v", i)
	}
	if got := w.prompts(s.ID); len(got) != 1 || got[0] != "octocat: one\uFFFDtwo\uFFFD" {
		t.Errorf("prompts %q", got)
	}
	w.exec("UPDATE sessions SET state = 'failed', finished_at = now(), generation = 1 WHERE id = $1", s.ID)
	w.exec("INSERT INTO attempts (session_id, generation, engine, work_deadline, deadline, ended_at) VALUES ($1, 1, 'idle', now(), now(), now())", s.ID)
	w.exec("INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip) VALUES ($1, 1, 1, $2, 1, $3)", s.ID, strings.Repeat("a", 64), head)
	allowed.Store(false)
	for n, do := range []string{"retry", "request"} {
		if i := w.press(2+n, Pressed{Session: s.ID, Do: do, Text: "go on", ActorID: octocat, Login: "octocat"}); i.Outcome != outcomeReplied || i.Note != comment.NotAllowed() {
			t.Errorf("%s ends %+v", do, i)
		}
	}
}

// Nobody outside makes such a delivery: the webhook knows no event with a dot.
func TestPageIsNoEvent(t *testing.T) {
	for _, e := range Events() {
		if e == pageEvent || strings.Contains(e, ".") {
			t.Errorf("GitHub may tell of %s", e)
		}
	}
}
