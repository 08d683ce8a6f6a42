package intake

import (
	"strings"
	"testing"

	"inspect/storage"
)

func rerequested(event string, app int64, external string) object {
	o := common("rerequested")
	delete(o, "issue")
	if event == "check_suite" {
		o["check_suite"] = object{"id": 71, "head_sha": head, "app": object{"id": app}}
	} else {
		o["check_run"] = object{"id": 72, "name": "inspect", "head_sha": head, "external_id": external, "app": object{"id": app}}
	}
	return o
}

// A merge group's review is said anew when its run is asked for again.
func TestRerunOfAMergeGroup(t *testing.T) {
	reviews := &told{}
	w := setup(t, func(o *Options) { o.Reviews = reviews })
	for _, r := range []struct {
		pull int
		sha  string
	}{{0, head}, {12, otherHead}} {
		if _, err := w.db.SQL().Exec(`INSERT INTO reviews (repository_id, pull_request, head_sha, number, conclusion, words, check_run_id, created_at)
			VALUES ($1, $2, $3, 1, 'success', '', 72, now())`, repositoryID, r.pull, r.sha); err != nil {
			t.Fatal(err)
		}
	}
	for _, event := range []string{"check_run", "check_suite"} {
		reviews.again = nil
		w.deliver(event, body(by(rerequested(event, appID, "review/0/1"), octocat, "octocat")))
		if len(reviews.again) != 1 || reviews.again[0] != head || len(reviews.looks) != 0 {
			t.Errorf("%s: %+v", event, reviews)
		}
	}
	w.deliver("check_run", body(by(rerequested("check_run", appID, "review/0/1"), hubot, "hubot")))
	if len(reviews.again) != 1 {
		t.Error("somebody who may only read had it run again")
	}
}

// Who may write has what did not deliver run again; a result that was delivered
// stays, and its run is made anew because GitHub has cleared it.
func TestRerun(t *testing.T) {
	w := setup(t, nil)
	for name, c := range map[string]struct {
		event    string
		app      int64
		external string // $ stands for the session
		who      int64
		login    string
		state    storage.SessionState
		want     storage.SessionState
		anew     bool
	}{
		"a run":                    {"check_run", appID, "$", octocat, "octocat", "failed", "queued", true},
		"a suite":                  {"check_suite", appID, "", octocat, "octocat", "failed", "queued", true},
		"a run that delivered":     {"check_run", appID, "$", octocat, "octocat", "delivered", "delivered", true},
		"a run of the head":        {"check_run", appID, "$/head", octocat, "octocat", "timed_out", "queued", true},
		"another session's":        {"check_run", appID, "abcdefgh23", octocat, "octocat", "failed", "failed", false},
		"another App's run":        {"check_run", appID + 1, "$", octocat, "octocat", "failed", "failed", false},
		"another App's suite":      {"check_suite", appID + 1, "", octocat, "octocat", "failed", "failed", false},
		"by somebody who may read": {"check_run", appID, "$", hubot, "hubot", "failed", "failed", false},
		"at work":                  {"check_run", appID, "$", octocat, "octocat", "working", "working", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.fresh(t)
			w.deliver("issues", body(labeled()))
			s := w.one()
			w.set(string(c.state))
			if _, err := w.db.SQL().Exec(`UPDATE sessions SET head_sha = $1, check_run_id = 72, reported_at = now(), finished_at = now()`, head); err != nil {
				t.Fatal(err)
			}
			o := by(rerequested(c.event, c.app, strings.ReplaceAll(c.external, "$", s.ID)), c.who, c.login)
			w.deliver(c.event, body(o))
			w.deliver(c.event, body(o)) // another delivery is another press
			after, err := w.db.Q().GetSession(t.Context(), w.one().ID)
			if err != nil {
				t.Fatal(err)
			}
			if after.State != c.want || (after.CheckRunID == 0) != c.anew {
				t.Errorf("%s, check run %d; calls %q", after.State, after.CheckRunID, w.gh.calls)
			}
		})
	}
}
