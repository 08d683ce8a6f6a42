package report

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/checks/render"
	"inspect/envs/spec"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// wants has the session's repository want builds.
func (w *world) wants(c spec.BuildkiteChecks) {
	w.t.Helper()
	sp := spec.Default()
	sp.Harness = spec.Harness{Kind: "command", Command: "agent", Label: "scripted"}
	sp.Checks.Buildkite = c
	body, err := json.Marshal(sp)
	w.ok(err)
	w.exec(`UPDATE sessions SET spec = $2 WHERE id = $1`, id, body)
}

// build is what is known of the build.
func (w *world) build(state string, number int, done, required bool) {
	w.t.Helper()
	q, now := w.db.Q(), w.clock.Now()
	w.ok(q.InsertSessionBuild(context.Background(), storage.InsertSessionBuildParams{
		SessionID: id, PipelineID: "p", Slug: "acme/web", Sha: w.head, Required: required, NextLookAt: now, Deadline: now, CreatedAt: now,
	}))
	result, err := json.Marshal(render.Build{URL: "https://buildkite.example/acme/web/builds/7", Jobs: []render.Job{{Name: "unit", State: state, Bad: state == "failed"}}})
	w.ok(err)
	p := storage.SetSessionBuildParams{SessionID: id, PipelineID: "p", Number: int32(number), State: state, NextLookAt: now}
	p.Result.RawMessage, p.Result.Valid = result, true
	if done {
		p.DoneAt.Time, p.DoneAt.Valid = now, true
	}
	w.ok(q.SetSessionBuild(context.Background(), p))
}

// said are the check runs that were sent to GitHub, in order.
func (w *world) said() (out []map[string]any) {
	w.t.Helper()
	for _, r := range w.server.Requests() {
		if r.Route == "checks/create" || r.Route == "checks/update" {
			var sent map[string]any
			w.ok(json.Unmarshal([]byte(r.Body), &sent))
			out = append(out, sent)
		}
	}
	return out
}

func summaryOf(sent map[string]any) string {
	s, _ := sent["output"].(map[string]any)["summary"].(string)
	return s
}

// A check run waits for a required build, and says success only if it passed.
func TestRequiredBuildDecides(t *testing.T) {
	for _, c := range []struct {
		name, state string
		done        bool
		conclusion  string // empty: it goes on
		title       string
	}{
		{"passed", "passed", true, "success", "3 pass"},
		{"failed", "failed", true, "failure", "The build failed: "},
		{"blocked is not passed", "blocked", true, "action_required", "The build has not passed: "},
		{"blocked, and may go on", "blocked", false, "", "Waits for the build: "},
		{"canceled", "canceled", true, "action_required", "The build has not passed: "},
		{"none in time", "pending", true, "action_required", "The build has not passed: "},
		{"runs", "pending", false, "", "Waits for the build: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.wants(spec.BuildkiteChecks{Builds: spec.BuildsFollow, Required: true})
			w.delivered()
			w.server.ResetRecord()
			w.report() // nobody has looked yet
			if all := w.said(); len(all) != 1 || all[0]["status"] != "in_progress" || all[0]["conclusion"] != nil {
				t.Fatalf("before the build it says %v", all)
			}
			w.build(c.state, 7, c.done, true)
			w.report()
			w.report() // told once
			all := w.said()
			if len(all) != 2 {
				t.Fatalf("%d requests", len(all))
			}
			last := all[1]
			if got, _ := last["conclusion"].(string); got != c.conclusion || (last["status"] == "completed") != (c.conclusion != "") {
				t.Errorf("it says %v %v", last["status"], last["conclusion"])
			}
			if title := last["output"].(map[string]any)["title"].(string); !strings.HasPrefix(title, c.title) {
				t.Errorf("title %q", title)
			}
			if s := summaryOf(last); !strings.Contains(s, "`acme/web`") || !strings.Contains(s, "[7](https://buildkite.example/acme/web/builds/7)") {
				t.Error(s)
			}
			told, err := w.r.Told(context.Background(), id)
			if want := c.conclusion; err != nil || want == "" && told.Conclusion != render.Neutral || want != "" && told.Conclusion != want {
				t.Errorf("a step is told %q, %v", told.Conclusion, err)
			}
			if n := w.server.Counts(); n.Warnings != 0 || n.Unknown != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// A build that is not required is told and decides nothing.
func TestOtherBuildIsTold(t *testing.T) {
	w := newWorld(t)
	w.wants(spec.BuildkiteChecks{Builds: spec.BuildsFollow})
	w.delivered()
	w.server.ResetRecord()
	w.report()
	w.build("failed", 7, true, false)
	w.report()
	all := w.said()
	if len(all) != 2 || all[0]["conclusion"] != "success" || all[1]["conclusion"] != "success" || !strings.Contains(summaryOf(all[1]), "not required") {
		t.Errorf("%v", all)
	}
}

// An update whose answer is lost is made again; a check run that is gone is let be.
func TestBuildIsToldThroughFaults(t *testing.T) {
	w := newWorld(t)
	w.wants(spec.BuildkiteChecks{Builds: spec.BuildsFollow, Required: true})
	w.delivered()
	w.report()
	w.build("passed", 7, true, true)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "PATCH", Path: "/repos/*/*/check-runs/*", Count: 1})
	w.ok(err)
	if err := w.r.Report(context.Background(), w.session()); err == nil {
		t.Error("a lost answer is no error")
	}
	w.reporter()
	w.report()
	all := w.said()
	if last := all[len(all)-1]; last["conclusion"] != "success" {
		t.Errorf("%v", last)
	}
}

// A text that GitHub refuses does not keep the check run waiting for ever.
func TestBuildIsToldShortly(t *testing.T) {
	w := newWorld(t)
	w.wants(spec.BuildkiteChecks{Builds: spec.BuildsFollow, Required: true})
	w.delivered()
	w.report()
	w.build("passed", 7, true, true)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 422, Method: "PATCH", Path: "/repos/*/*/check-runs/*", Count: 1})
	w.ok(err)
	w.report()
	all := w.said()
	if last := all[len(all)-1]; last["conclusion"] != "success" || !strings.HasPrefix(summaryOf(last), "The full text was refused by GitHub") {
		t.Errorf("%v", last)
	}
}

// A step is told how every session ended, also of one that pushed nothing.
func TestToldOfEveryEnd(t *testing.T) {
	for state, want := range map[storage.SessionState]string{
		scheduler.Failed: "failure", scheduler.Stopped: "cancelled", scheduler.TimedOut: "timed_out", scheduler.NoChange: "neutral",
		scheduler.OverBudget: "neutral", scheduler.Infrastructure: "neutral", scheduler.NeedsApproval: "action_required",
	} {
		w := newWorld(t)
		w.to(state, "x", "words <!-- of it -->")
		told, err := w.r.Told(context.Background(), id)
		if err != nil || told.Conclusion != want || !strings.Contains(told.Title, "words") || strings.Contains(told.Summary, "<!--") {
			t.Errorf("%s: %+v, %v", state, told, err)
		}
	}
}

// A session of a pipeline has no issue: the pull request that it leads to is its
// conversation, and until there is one nothing is written anywhere.
func TestPipelinesConversationIsThePullRequest(t *testing.T) {
	w := newWorld(t)
	w.exec(`UPDATE sessions SET issue_number = 0, requester_id = 0, requester_login = 'Buildkite acme/web' WHERE id = $1`, id)
	w.report()
	if n := w.writes(); n != 0 {
		t.Fatalf("%d writes before there is a pull request", n)
	}
	_, err := w.server.PushCommit(repoName, "octocat", "inspect/1-x", "x", map[string]githubd.File{"x": {Body: "x"}})
	w.ok(err)
	pull, err := w.server.OpenPullRequest(repoName, "octocat", "inspect/1-x", "main", "x", "x", true)
	w.ok(err)
	w.delivered()
	w.exec(`UPDATE sessions SET pull_request = $2 WHERE id = $1`, id, pull)
	w.clock.Advance(time.Hour)
	w.report()
	w.report()
	all, err := w.client().Comments(github.OnPull(context.Background()), w.githubRepo(), pull)
	if err != nil || len(all) != 1 || !strings.Contains(all[0].Body, "Buildkite acme/web") {
		t.Errorf("%+v, %v", all, err)
	}
	if c := w.server.Counts(); c.Warnings != 0 || c.Unknown != 0 {
		t.Errorf("%+v", c)
	}
}
