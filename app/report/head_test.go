package report

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// runs are the inspect runs on the head, as GitHub has them.
func (w *world) runs() (out []string) {
	w.t.Helper()
	all, err := w.server.CheckRuns(repoName)
	w.ok(err)
	for _, r := range all {
		if r.Name == CheckName && r.HeadSHA == w.head {
			out = append(out, r.Status+" "+r.Conclusion+" "+r.Title)
		}
	}
	return out
}

// The head that is worked on has one run from the start to the end.
func TestCheckRunOfTheHeadFollows(t *testing.T) {
	w := newWorld(t)
	w.onPull()
	one := func(want string) {
		t.Helper()
		if got := w.runs(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Fatalf("%q, want one of %q", got, want)
		}
	}
	updates := func() (n int) {
		for _, r := range w.server.Requests() {
			if r.Route == "checks/update" {
				n++
			}
		}
		return n
	}
	w.report()
	one("queued  Queued: waiting for its turn")
	w.to(scheduler.Working, "", "")
	w.report() // too soon
	one("queued ")
	w.clock.Advance(LeastBetween - time.Second)
	w.reporter() // a restart does not forget when that was
	w.report()
	one("queued ")
	w.clock.Advance(time.Second)
	w.report()
	one("in_progress  Working")
	w.clock.Advance(time.Hour)
	w.report() // nothing new
	if n := updates(); n != 1 {
		t.Errorf("%d updates", n)
	}
	w.to(scheduler.Verifying, "", "")
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "PATCH", Path: "/repos/*/*/check-runs/*"})
	w.ok(err)
	if err := w.r.Report(t.Context(), w.session()); err == nil {
		t.Error("a lost answer was taken for one")
	}
	w.reporter()
	w.report()
	one("in_progress  Verifying in a second, clean clone")
	first := w.session().HeadCheckRunID
	w.to(scheduler.Failed, "verify_failed", "The change did not pass.")
	w.report() // an end is never too soon
	one("completed neutral Failed: The change did not pass.")
	if w.session().HeadCheckRunID != first || first == 0 {
		t.Errorf("run %d, then %d", first, w.session().HeadCheckRunID)
	}
	sent := updates()
	w.report()
	if updates() != sent {
		t.Error("what it says already was sent again")
	}

	// A session that is taken up again has a run of its own: that one is completed.
	s := w.session()
	_, err = w.db.Q().ReopenSession(t.Context(), reopened(s, w.clock.Now()))
	w.ok(err)
	w.report()
	if got := w.runs(); len(got) != 2 || !strings.HasPrefix(got[1], "in_progress  Queued") {
		t.Errorf("%q", got)
	}
}

// Whoever dies between making the run and writing that down makes no second one.
func TestCheckRunOfTheHeadAfterACrash(t *testing.T) {
	w := newWorld(t)
	w.onPull()
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/check-runs"})
	w.ok(err)
	for range 3 {
		w.reporter()
		if err = w.r.Report(t.Context(), w.session()); err == nil {
			break
		}
	}
	w.ok(err)
	w.exec(`UPDATE effects SET state = 'started', result = NULL, done_at = NULL`)
	w.exec(`UPDATE sessions SET head_check_run_id = 0 WHERE id = $1`, id)
	w.to(scheduler.Working, "", "")
	w.report()
	if got := w.runs(); len(got) != 1 || !strings.HasPrefix(got[0], "in_progress  Working") || w.session().HeadCheckRunID == 0 {
		t.Errorf("%q", got)
	}
}

// A head that is gone, or a run that is, ends nothing else.
func TestHeadThatIsGone(t *testing.T) {
	for method, path := range map[string]string{"POST": "/repos/*/*/check-runs", "PATCH": "/repos/*/*/check-runs/*"} {
		w := newWorld(t)
		w.onPull()
		if method == "PATCH" {
			w.report()
			w.clock.Advance(time.Hour)
			w.to(scheduler.Working, "", "")
		}
		_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 422, Method: method, Path: path, Count: -1})
		w.ok(err)
		w.report()
		before := w.writes()
		w.to(scheduler.Stopped, "superseded", "hubot pushed.")
		w.report()
		if n := w.writes() - before; n != 1 { // the comment's
			t.Errorf("%s: %d writes", method, n)
		}
	}
}

// A text that GitHub refuses leaves no run in progress for ever.
func TestHeadWhoseTextIsRefused(t *testing.T) {
	w := newWorld(t)
	w.onPull()
	w.report()
	w.to(scheduler.Stopped, "superseded", "hubot pushed.")
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 422, Method: "PATCH", Path: "/repos/*/*/check-runs/*"})
	w.ok(err)
	w.report()
	if got := w.runs(); len(got) != 1 || !strings.HasPrefix(got[0], "completed neutral Stopped") {
		t.Errorf("%q", got)
	}
}

// What a question's run says is taken back when it is answered: it is newer than
// the session's own, and GitHub counts the newest.
func TestAnsweredQuestionIsTakenBack(t *testing.T) {
	w := newWorld(t)
	w.onPull()
	w.report()
	asked, err := json.Marshal(scheduler.Asked{Items: []scheduler.AskedItem{{Reason: "protected_path", What: "x"}}})
	w.ok(err)
	w.exec(`INSERT INTO approvals (session_id, kind, asked, words, digest, bundle, policy, base_sha, remote_head, asked_by, asked_login, requested_at, expires_at)
		VALUES ($1, 'publish', $2, 'It touches x.', repeat('ab', 32), '', '', '', '', 0, '', $3, $3)`, id, asked, w.clock.Now())
	w.to(scheduler.NeedsApproval, "", "It touches x.")
	w.report()
	w.report()
	if got := w.runs(); len(got) != 2 || !strings.HasPrefix(got[1], "completed action_required Held back") {
		t.Fatalf("%q", got)
	}
	w.exec(`UPDATE approvals SET state = 'approved', answered_login = 'octocat', answered_at = $1`, w.clock.Now())
	w.to(scheduler.Publishing, "", "")
	w.report()
	w.to(scheduler.Stopped, "stopped", "Stopped.")
	w.report()
	got := w.runs()
	if len(got) != 2 || !strings.HasPrefix(got[0], "completed neutral Stopped") || got[1] != "completed neutral Allowed by octocat" {
		t.Fatalf("%q", got)
	}
	n := 0
	for _, r := range w.server.Requests() {
		if r.Route == "checks/update" && strings.Contains(r.Body, "Allowed by") {
			if n++; !strings.Contains(r.Body, `"actions":[]`) {
				t.Errorf("the buttons stay: %s", r.Body)
			}
		}
	}
	if n != 1 {
		t.Errorf("taken back %d times", n)
	}
}

func reopened(s storage.Session, now time.Time) storage.ReopenSessionParams {
	return storage.ReopenSessionParams{ID: s.ID, Version: s.Version, Now: now, Deadline: now}
}
