package report

import (
	"strings"
	"testing"

	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// onPull makes the session one on a pull request.
func (w *world) onPull() {
	w.t.Helper()
	head, err := w.server.PushCommit(repoName, "octocat", "feature", "Add", map[string]githubd.File{"a.txt": {Body: "a"}})
	w.ok(err)
	w.issue, err = w.server.OpenPullRequest(repoName, "octocat", "feature", "main", "Add", "It adds.", false)
	w.ok(err)
	w.head = head
	w.exec(`UPDATE sessions SET issue_number = $2, pull_number = $2, head_repo_id = $3, base_branch = 'feature', base_sha = $4 WHERE id = $1`, id, w.issue, w.repo, head)
	w.server.ResetRecord()
}

// The check run of the head that a session worked on is neutral whatever came of
// the work; the comment is on the pull request.
func TestSessionOnPullRequest(t *testing.T) {
	for _, c := range []struct {
		state         storage.SessionState
		reason, words string
		want          string
	}{
		{scheduler.Failed, "verify_failed", "The change did not pass.", "Failed"},
		{scheduler.Stopped, "superseded", "hubot pushed.", "Stopped"},
		{scheduler.NoChange, "patch", "The result is kept as a patch.", "the result is a patch, nothing was pushed"},
	} {
		w := newWorld(t)
		w.onPull()
		w.exec(`UPDATE sessions SET deliver = 'patch' WHERE id = $1`, id)
		w.to(c.state, c.reason, c.words)
		w.report()
		w.report()
		said, err := w.server.Comments(repoName, w.issue)
		if err != nil || len(said) != 1 || !strings.Contains(said[0].Body, c.want) {
			t.Errorf("comments %+v, %v", said, err)
		}
		n := 0
		for _, r := range w.server.Requests() {
			if r.Route == "checks/create" {
				if n++; !strings.Contains(r.Body, `"conclusion":"neutral"`) || !strings.Contains(r.Body, w.head) || !strings.Contains(r.Body, c.words) {
					t.Errorf("%s: sent %s", c.state, r.Body)
				}
			}
		}
		if n != 1 {
			t.Errorf("%s: %d check runs", c.state, n)
		}
	}
}

// Nothing is written into a conversation that is locked: the check run tells.
func TestLockedConversation(t *testing.T) {
	w := newWorld(t)
	w.onPull()
	w.exec(`UPDATE sessions SET locked = true WHERE id = $1`, id)
	w.report()
	w.to(scheduler.Failed, "verify_failed", "The change did not pass.")
	w.report()
	if all, _ := w.server.Comments(repoName, w.issue); len(all) != 0 || w.session().HeadCheckRunID == 0 {
		t.Errorf("comments %+v, check run %d", all, w.session().HeadCheckRunID)
	}
}

func TestPushedOntoTheHead(t *testing.T) {
	w := newWorld(t)
	w.exec(`UPDATE sessions SET deliver = 'head' WHERE id = $1`, id)
	w.delivered()
	w.report()
	w.only("Delivered", "pushed onto pull request")
}
