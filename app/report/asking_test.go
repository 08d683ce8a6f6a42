package report

import (
	"encoding/json"
	"strings"
	"testing"

	"inspect/fixtures/githubd"
	"inspect/scheduler"
)

// Where there is a commit to put it on, what holds a result back is a completed
// check run with buttons, one for each question.
func TestAskingHasOneRunWithButtons(t *testing.T) {
	w := newWorld(t)
	digest := strings.Repeat("0a1b2c3d", 8)
	ask := func(digest string) {
		w.exec(`UPDATE approvals SET state = 'void'`)
		w.exec(`INSERT INTO approvals (session_id, kind, asked, words, digest, requested_at, expires_at) VALUES ($1, 'publish', '{"items":[{"reason":"protected_path","what":"x @octocat"}]}', 'It touches protected paths.', $2, $3, $3)`,
			id, digest, w.clock.Now())
	}
	ask(digest)
	w.to(scheduler.NeedsApproval, "", "It touches protected paths.")
	w.report() // an issue's session has no commit
	w.only("Waiting for approval", "/inspect approve 0a1b2c3d0a1b")
	w.exec(`UPDATE sessions SET head_sha = $2 WHERE id = $1`, id, w.head)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/check-runs"})
	w.ok(err)
	_ = w.r.Report(t.Context(), w.session())
	w.reporter()
	w.report()
	w.report()
	runs, err := w.server.CheckRuns(repoName)
	w.ok(err)
	if len(runs) != 1 || runs[0].Status != "completed" || runs[0].Conclusion != "action_required" || runs[0].HeadSHA != w.head ||
		runs[0].ExternalID != id+"/approval/0a1b2c3d0a1b" || strings.Contains(runs[0].Summary, "@octocat") {
		t.Fatalf("%+v", runs)
	}
	var sent struct {
		Actions []struct{ Label, Description, Identifier string } `json:"actions"`
	}
	for _, r := range w.server.Requests() {
		if r.Route == "checks/create" {
			w.ok(json.Unmarshal([]byte(r.Body), &sent))
		}
	}
	if len(sent.Actions) != 2 || sent.Actions[0].Identifier != "approve-0a1b2c3d0a1b" || sent.Actions[1].Identifier != "reject-0a1b2c3d0a1b" {
		t.Errorf("%+v", sent)
	}
	for _, a := range sent.Actions {
		if len(a.Label) > 20 || len(a.Description) > 40 || len(a.Identifier) > 20 {
			t.Errorf("GitHub refuses %+v", a)
		}
	}
	ask(strings.Repeat("f", 64))
	w.report()
	if runs, err = w.server.CheckRuns(repoName); err != nil || len(runs) != 2 {
		t.Errorf("%d runs for two questions, %v", len(runs), err)
	}
	if c := w.server.Counts(); c.Warnings != 0 || c.Unknown != 0 {
		t.Errorf("%+v", c)
	}
}
