package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/publish"
	"inspect/checks/evidence"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/scheduler"
	"inspect/storage"
	"inspect/storage/storagetest"
)

const (
	repoName = "octocat/hello"
	id       = "abcdefgh23"
)

// kept is an Evidence that has what it is given.
type kept struct {
	manifest evidence.Manifest
	err      error
	keeps    int
}

func (k *kept) Keep(context.Context, storage.Session) (publish.Kept, error) {
	k.keeps++
	return publish.Kept{Manifest: k.manifest, Digest: strings.Repeat("ab", 32)}, k.err
}

func (k *kept) Kept(_ context.Context, _, digest string) (publish.Kept, error) {
	return publish.Kept{Manifest: k.manifest, Digest: digest}, k.err
}

func (k *kept) Provenance(context.Context, storage.Session) (publish.Provenance, error) {
	return publish.Provenance{
		Snapshot: evidence.Snapshot{ID: "snap-1", Commit: strings.Repeat("1", 40), Age: time.Hour, Store: "dir", Restore: 120 * time.Millisecond},
		Sandbox:  evidence.Sandbox{Tier: "bubblewrap 0.8.0", Limits: "enforced"},
	}, nil
}

type world struct {
	t       *testing.T
	server  *githubd.Server
	app     *github.App
	db      *storage.DB
	clock   *proc.Fake
	kept    *kept
	repo    int64
	install int64
	issue   int
	head    string
	r       *Reporter
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: proc.NewFake(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)), kept: &kept{}}
	var err error
	w.server = githubdtest.New(t, githubd.Options{})
	w.repo, err = w.server.AddRepository("octocat", "hello", githubd.Seed{Files: map[string]string{"README.md": "x\n"}})
	w.ok(err)
	w.install, err = w.server.Install("octocat", "hello")
	w.ok(err)
	w.issue, err = w.server.OpenIssue(repoName, "hubot", "Add is wrong", "It subtracts.")
	w.ok(err)
	w.app, err = github.New(github.Options{
		AppID: 12345, Key: w.server.KeyPEM(), APIBase: w.server.URL(), GitBase: w.server.URL(), WriteSpacing: -1,
		Reads: proc.Policy{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	})
	w.ok(err)
	w.head, err = w.client().BranchHead(context.Background(), w.githubRepo(), "main")
	w.ok(err)
	w.db = storagetest.New(t)
	ctx := context.Background()
	w.ok(w.db.Q().SawInstallation(ctx, storage.SawInstallationParams{ID: w.install, Account: "octocat"}))
	w.ok(w.db.Q().SawRepository(ctx, storage.SawRepositoryParams{ID: w.repo, InstallationID: w.install, Owner: "octocat", Name: "hello", DefaultBranch: "main"}))
	pinned := spec.Default()
	pinned.Harness = spec.Harness{Kind: "command", Command: "agent", Label: "scripted"}
	sp, err := json.Marshal(pinned)
	w.ok(err)
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', $1, 'd', '{}')`, w.repo)
	w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, state, queue_reason, created_at, deadline)
		VALUES ($1,$2,$3,$4,'i',1,'monalisa','Add is wrong','Make Add add','p','main',$5,'env-1',$6,'.inspect.yml','queued','waiting for its turn',$7,$7)`,
		id, w.install, w.repo, w.issue, w.head, sp, w.clock.Now())
	w.reporter()
	w.server.ResetRecord()
	return w
}

// reporter makes a reporter, as a restart would.
func (w *world) reporter() {
	w.t.Helper()
	var err error
	w.r, err = New(Options{
		DB: w.db, GitHub: func(i int64) GitHub { return w.app.Installation(i) }, Evidence: w.kept, Clock: w.clock,
		SessionURL:    func(s string) string { return "http://127.0.0.1:8321/sessions/" + s },
		RepositoryURL: func(r github.Repo) string { return "https://github.com/" + r.String() },
		Log:           slog.New(slog.DiscardHandler),
	})
	w.ok(err)
}

func (w *world) client() *github.Client { return w.app.Installation(w.install) }

func (w *world) githubRepo() github.Repo {
	return github.Repo{ID: w.repo, Owner: "octocat", Name: "hello"}
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.db.SQL().Exec(query, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) session() storage.Session {
	w.t.Helper()
	s, err := w.db.Q().PublishSession(context.Background(), id)
	w.ok(err)
	return s
}

// to moves the session to a state, as the scheduler does.
func (w *world) to(state storage.SessionState, reason, words string) {
	w.t.Helper()
	w.exec(`UPDATE sessions SET state = $2, reason = $3, words = $4, generation = 1, version = version + 1, finished_at = $5 WHERE id = $1`,
		id, string(state), reason, words, map[bool]any{true: w.clock.Now(), false: nil}[scheduler.Terminal(state)])
}

func (w *world) delivered() {
	w.t.Helper()
	receipt, err := json.Marshal(scheduler.Receipt{
		Branch: "inspect/1-x-" + id, HeadSHA: w.head, Tree: w.head, PullRequest: 2, URL: w.server.URL() + "/octocat/hello/pull/2",
		Evidence: strings.Repeat("cd", 32), EventsHead: "abcd", EventsCount: 17,
	})
	w.ok(err)
	w.exec(`UPDATE sessions SET receipt = $2, branch = 'inspect/1-x', head_sha = $3, pull_request = 2 WHERE id = $1`, id, receipt, w.head)
	w.kept.manifest = evidence.Manifest{
		Session: id, BaseSHA: w.head, BaseBranch: "main", Tree: w.head,
		Verdict: evidence.Verdict{Kind: evidence.Passed, Passed: 3},
		Checks:  []evidence.Check{{Name: "unit", Run: "go test ./...", Passed: true, Words: "3 tests passed"}},
		Change:  evidence.Change{Files: []evidence.ChangedFile{{Path: "a.go", Added: 2, Deleted: 1}}, Added: 2, Deleted: 1},
		Files:   []evidence.File{{Name: publish.FilePatch, SHA256: strings.Repeat("ee", 32)}, {Name: publish.FileBundle, SHA256: strings.Repeat("ff", 32)}},
	}
	w.to(scheduler.Delivered, "", "")
}

func (w *world) report() {
	w.t.Helper()
	w.ok(w.r.Report(context.Background(), w.session()))
}

// comments are what is under the issue.
func (w *world) comments() []string {
	w.t.Helper()
	all, err := w.client().Comments(context.Background(), w.githubRepo(), w.issue)
	w.ok(err)
	var out []string
	for _, c := range all {
		out = append(out, c.Body)
	}
	return out
}

func (w *world) only(want ...string) string {
	w.t.Helper()
	all := w.comments()
	if len(all) != 1 {
		w.t.Fatalf("%d comments: %q", len(all), all)
	}
	for _, s := range want {
		if !strings.Contains(all[0], s) {
			w.t.Errorf("the comment lacks %q:\n%s", s, all[0])
		}
	}
	return all[0]
}

func (w *world) writes() int { return w.server.Counts().Writes }

func TestOneCommentEditedInPlace(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.only(comment.Marker(id), "Queued", "waiting for its turn")
	if s := w.session(); s.CommentID == 0 || s.CommentDigest == "" || !s.CommentAt.Time.Equal(w.clock.Now()) || s.Version != 1 {
		t.Errorf("%+v", s)
	}
	w.report() // nothing new
	w.to(scheduler.Working, "", "")
	w.report() // too soon
	if n := w.writes(); n != 1 {
		t.Errorf("%d writes within a minute", n)
	}
	w.clock.Advance(Debounce)
	w.report()
	w.only("Working", "bubblewrap 0.8.0", "scripted")
	if n := w.writes(); n != 2 {
		t.Errorf("%d writes", n)
	}
	w.kept.manifest.Files = []evidence.File{{Name: publish.FilePatch, SHA256: strings.Repeat("ee", 32)}, {Name: publish.FileBundle, SHA256: strings.Repeat("ff", 32)}}
	w.to(scheduler.Failed, "harness_exit", "The agent ended with status 3. @octocat Fixes #1 ghs_"+strings.Repeat("a1B2", 9))
	w.report() // an end is never too soon
	body := w.only("Failed", "harness_exit", "/sessions/"+id+"/files/"+strings.Repeat("ee", 32)+"?name=change.patch", strings.Repeat("ff", 32))
	if strings.Contains(body, "@octocat") || strings.Contains(body, "Fixes #1") || strings.Contains(body, "a1B2a1B2") {
		t.Errorf("live markup in %s", body)
	}
	if n := w.writes(); n != 3 {
		t.Errorf("%d writes", n)
	}
	w.report()
	if n := w.writes(); n != 3 || w.session().CheckRunID != 0 {
		t.Errorf("%d writes, check run %d for a session that pushed nothing", n, w.session().CheckRunID)
	}
}

func TestDeliveredHasOneCheckRun(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.delivered()
	w.server.ResetRecord()
	w.report()
	w.only("Delivered", "draft pull request", "3 tests passed")
	run := w.session().CheckRunID
	w.only(fmt.Sprintf("https://github.com/octocat/hello/runs/%d", run))
	found, ok, err := w.client().FindCheckRun(context.Background(), w.githubRepo(), w.head, id)
	if err != nil || !ok || found != run || run == 0 {
		t.Errorf("check run %d, found %d %v %v", run, found, ok, err)
	}
	var sent map[string]any
	for _, r := range w.server.Requests() {
		if r.Route == "checks/create" {
			w.ok(json.Unmarshal([]byte(r.Body), &sent))
		}
	}
	if sent["status"] != "completed" || sent["conclusion"] != "success" || sent["external_id"] != id || sent["name"] != CheckName || sent["head_sha"] != w.head {
		t.Errorf("sent %v", sent)
	}
	if c := w.server.Counts(); c.Writes != 2 || c.Warnings != 0 || c.Unknown != 0 {
		t.Errorf("%+v", c)
	}
	if w.kept.keeps != 0 {
		t.Error("the evidence of a delivery was made again")
	}
	w.report()
	if n := w.writes(); n != 2 {
		t.Errorf("%d writes after a second report", n)
	}
}

func TestLostAnswers(t *testing.T) {
	for name, f := range map[string]githubd.Fault{
		"comment written, answer lost": {Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/issues/*/comments"},
		"comment cut before":           {Kind: githubd.FaultCut, Method: "POST", Path: "/repos/*/*/issues/*/comments"},
		"comment answered 502":         {Kind: githubd.FaultStatus, Method: "POST", Path: "/repos/*/*/issues/*/comments"},
		"check run made, answer lost":  {Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/check-runs"},
		"check run answered 502":       {Kind: githubd.FaultStatus, Method: "POST", Path: "/repos/*/*/check-runs"},
		"edit lost":                    {Kind: githubd.FaultLost, Method: "PATCH"},
		"looking up fails too":         {Kind: githubd.FaultLost, Path: "/repos/*/*/issues/*/comments", Count: 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, err := w.server.AddFault(f)
			w.ok(err)
			untilDone := func() {
				t.Helper()
				for range 4 {
					w.reporter()
					if err = w.r.Report(context.Background(), w.session()); err == nil {
						return
					}
				}
				t.Fatal(err)
			}
			untilDone()
			w.delivered()
			untilDone()
			w.only("Delivered")
			runs := 0
			for _, r := range w.server.Requests() {
				if r.Route == "checks/create" && (r.Status == 201 || r.Fault == githubd.FaultLost) {
					runs++
				}
			}
			if runs != 1 {
				t.Errorf("%d check runs", runs)
			}
		})
	}
}

// A process that ends between the write on GitHub and the record of it.
func TestCrashAfterTheWrite(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.exec(`UPDATE sessions SET comment_id = 0, comment_digest = '', comment_at = NULL WHERE id = $1`, id)
	w.exec(`UPDATE effects SET state = 'started', result = NULL, done_at = NULL`)
	w.report()
	w.only("Queued")
	w.exec(`UPDATE sessions SET comment_id = 0, comment_digest = '', comment_at = NULL WHERE id = $1`, id) // only this is lost
	w.report()
	w.only("Queued")
	if w.session().CommentID == 0 {
		t.Error("the comment was not found again")
	}
	w.delivered()
	w.report()
	first := w.session().CheckRunID
	w.exec(`UPDATE sessions SET check_run_id = 0 WHERE id = $1`, id)
	w.report()
	w.exec(`UPDATE sessions SET check_run_id = 0 WHERE id = $1`, id)
	w.exec(`UPDATE effects SET state = 'started', result = NULL, done_at = NULL WHERE key LIKE '%/check'`)
	w.report()
	if again := w.session().CheckRunID; again != first {
		t.Errorf("check run %d, then %d", first, again)
	}
}

func TestIssuesThatTakeNoComment(t *testing.T) {
	w := newWorld(t)
	for _, f := range []githubd.Fault{
		{Kind: githubd.FaultStatus, Method: "POST", Path: "/repos/*/*/issues/*/comments", Status: 403, Message: "Unable to create comment because issue is locked."},
	} {
		_, err := w.server.AddFault(f)
		w.ok(err)
	}
	w.report()
	w.report()
	w.delivered()
	w.report()
	if all := w.comments(); len(all) != 0 {
		t.Errorf("comments %q", all)
	}
	if w.session().CheckRunID == 0 {
		t.Error("no check run, though a commit was pushed")
	}
	created := 0
	for _, r := range w.server.Requests() {
		if r.Route == "issues/create-comment" {
			created++
		}
	}
	if created != 1 {
		t.Errorf("the locked issue was tried %d times", created)
	}
}

func TestDeletedCommentIsNotWrittenAgain(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.ok(w.server.DeleteComment(repoName, w.session().CommentID, "octocat"))
	w.delivered()
	w.report()
	w.report()
	if all := w.comments(); len(all) != 0 {
		t.Errorf("comments %q", all)
	}
}

func TestNothingIsWrittenAfterRemoval(t *testing.T) {
	w := newWorld(t)
	for _, q := range []string{`UPDATE installations SET suspended_at = now()`, `UPDATE installations SET suspended_at = NULL, deleted_at = now()`,
		`UPDATE installations SET deleted_at = NULL`, `UPDATE repositories SET removed_at = now()`} {
		w.exec(q)
		if strings.HasSuffix(q, "deleted_at = NULL") {
			continue
		}
		w.report()
	}
	if c := w.server.Counts(); c.Total != 0 {
		t.Errorf("%+v", c)
	}
}

func TestEvidenceFailureIsToldLater(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.kept.err = errors.New("the store is away")
	w.to(scheduler.Failed, "conflict", "The agent left a conflict.")
	if err := w.r.Report(context.Background(), w.session()); err == nil {
		t.Error("the missing evidence was forgotten")
	}
	w.only("Failed", "conflict") // people are told all the same
	w.kept.err = nil
	w.kept.manifest.Files = []evidence.File{{Name: publish.FilePatch, SHA256: strings.Repeat("ee", 32)}}
	w.report()
	w.only("change.patch")
}

func TestPushedButNotDelivered(t *testing.T) {
	for state, want := range map[storage.SessionState]string{
		scheduler.Failed: "failure", scheduler.Stopped: "cancelled", scheduler.TimedOut: "timed_out", scheduler.Infrastructure: "neutral",
		scheduler.OverBudget: "neutral", scheduler.NoChange: "neutral", "a state of tomorrow": "neutral",
		scheduler.Delivered: "neutral", // success is said in one place only
	} {
		if got := conclusion(state); got != want {
			t.Errorf("%s: %s, want %s", state, got, want)
		}
	}
	w := newWorld(t)
	w.exec(`UPDATE sessions SET head_sha = $2, branch = 'inspect/x' WHERE id = $1`, id, w.head)
	w.to(scheduler.Failed, "pull_request_refused", "GitHub refused the pull request.")
	w.report()
	for _, r := range w.server.Requests() {
		if r.Route == "checks/create" && (strings.Contains(r.Body, `"success"`) || !strings.Contains(r.Body, `"failure"`)) {
			t.Errorf("sent %s", r.Body)
		}
	}
	// No receipt for this very commit: no success, whatever the state says.
	w = newWorld(t)
	w.delivered()
	w.exec(`UPDATE sessions SET head_sha = $2 WHERE id = $1`, id, strings.Repeat("9", 40))
	if err := w.r.Report(context.Background(), w.session()); err == nil {
		t.Error("a delivery without a receipt was reported")
	}
	for _, r := range w.server.Requests() {
		if r.Route == "checks/create" {
			t.Errorf("sent %s", r.Body)
		}
	}
}

// A session with a model says while it runs what it does and has spent, and at
// its end what it cost, what it could not reach and where its work is.
func TestModelAndEgressAreTold(t *testing.T) {
	w := newWorld(t)
	pinned := spec.Default()
	pinned.Harness = spec.Harness{Kind: spec.HarnessOpenCode, Model: "anthropic/claude-sonnet"}
	sp, err := json.Marshal(pinned)
	w.ok(err)
	w.exec(`UPDATE sessions SET spec = $2, budget = 5000000000, spent = 143400000, events_count = 3 WHERE id = $1`, id, sp)
	for i, e := range []struct {
		kind string
		data any
	}{
		{wire.EventTool, wire.Tool{Name: "bash", Command: "npm test --token ghs_" + strings.Repeat("a1B2", 9), Output: "1 failing"}},
		{wire.EventCommand, wire.Command{Step: "bundle", Line: "git bundle create"}},
		{wire.EventMessage, wire.Message{Text: "Now the tests pass."}},
	} {
		data, err := json.Marshal(e.data)
		w.ok(err)
		w.exec(`INSERT INTO events (session_id, seq, generation, number, kind, data, at, hash) VALUES ($1, $2, 1, $2, $3, $4, now(), '')`, id, i+1, e.kind, string(data))
	}
	w.to(scheduler.Working, "", "")
	w.report()
	w.only("**Working**, last: `npm test --token [redacted]`", "*opencode* with `anthropic/claude-sonnet`", "spent so far: \\$0.1434 of \\$5.00")

	w.exec(`INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, state, cost, started_at) VALUES ($1, 1, 'm', true, 9, 9, 'reported', 143400000, now())`, id)
	w.kept.manifest = evidence.Manifest{
		Model: evidence.Model{Name: "anthropic/claude-sonnet", Calls: 7, Cost: 123_400_000, Priced: true, Unreported: 1, UnreportedCost: 20_000_000, Budget: 5_000_000_000, PricesAsOf: "2026-11-01"},
		Egress: evidence.Egress{Refused: []evidence.Refused{
			{Host: "registry.example", Port: 443, Command: "npm ci", Reason: evidence.NotListed, Count: 3},
			{Host: "models.example", Port: 443, Command: "opencode serve", Reason: evidence.NotListed, Count: 9, Noise: true},
		}},
		Files: []evidence.File{{Name: publish.FilePatch, SHA256: strings.Repeat("ee", 32)}, {Name: publish.FileInstructions, SHA256: strings.Repeat("dd", 32)}},
	}
	w.kept.err = errors.New("the store is away")
	w.to(scheduler.OverBudget, scheduler.ReasonBudget, "The agent was not done when the budget for model calls was used up; nothing was verified. Its work is kept.")
	if err := w.r.Report(context.Background(), w.session()); err == nil {
		t.Error("the missing evidence was forgotten")
	}
	w.only("Over budget", "Cost: \\$0.1434 by the provider's numbers for 1 call") // from the ledger
	w.kept.err = nil
	w.report()
	body := w.only("**Over budget** (`budget`).", "nothing was verified", "The work so far is kept: [patch](http://127.0.0.1:8321/sessions/"+id+"/files/",
		"Refused on the way out: `registry.example:443` (`npm ci`) ×3. Add it to `egress` in `.inspect.yml` if it should be allowed.",
		"Cost: \\$0.1234 by the provider's numbers for 7 calls; 1 further call, counted with \\$0.02, was never reported; budget \\$5.00; prices as of 2026-11-01.")
	for _, never := range []string{"models.example", "spent so far", "last:"} {
		if strings.Contains(body, never) {
			t.Errorf("the comment has %q:\n%s", never, body)
		}
	}
	if w.session().CheckRunID != 0 {
		t.Error("a check run for a session that pushed nothing")
	}
}

// A session that takes as long as it may costs two edits: one when the agent has
// begun, and one at the end. What a person waits for is told within a minute.
func TestLongSessionsAreQuiet(t *testing.T) {
	w := newWorld(t)
	edits := func(d time.Duration) int { // what is edited while the agent is busy
		t.Helper()
		before := w.writes()
		for end := w.clock.Now().Add(d); w.clock.Now().Before(end); w.clock.Advance(10 * time.Second) {
			w.exec(`UPDATE sessions SET events_count = events_count + 1 WHERE id = $1`, id)
			w.exec(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash)
				SELECT $1, events_count, 1, 'tool', jsonb_build_object('name', 'edit', 'title', 'try ' || events_count), now(), '' FROM sessions WHERE id = $1`, id)
			w.report()
		}
		return w.writes() - before
	}
	if n := edits(9 * time.Minute); n != 1 {
		t.Errorf("%d writes while it is queued", n)
	}
	w.exec(`UPDATE sessions SET queue_reason = 'no node has 32 GiB' WHERE id = $1`, id)
	if n := edits(5 * time.Minute); n != 1 {
		t.Errorf("%d writes while it waits for another reason", n)
	}
	w.to(scheduler.Working, "", "")
	if n := edits(45 * time.Minute); n != 1 {
		t.Errorf("%d writes while the agent works", n)
	}
	w.only("**Working**, last:", "shows it live")
	w.to(scheduler.Verifying, "", "")
	if n := edits(5 * time.Minute); n != 0 {
		t.Errorf("%d writes while it is verified", n)
	}
	w.ok(w.db.Q().AskSessionComment(t.Context(), id)) // /inspect status
	if n := edits(5 * time.Minute); n != 1 {
		t.Errorf("%d writes when somebody asks", n)
	}
	w.only("clean clone**")
	w.to(scheduler.NeedsApproval, "", "")
	if n := edits(5 * time.Minute); n != 1 {
		t.Errorf("%d writes when an answer is wanted", n)
	}
	w.to(scheduler.Stopped, "", "")
	if n := edits(5 * time.Minute); n != 1 {
		t.Errorf("%d writes at the end", n)
	}
}

// Where GitHub makes the commit the edit that says that the agent has begun is left
// out; what asks a person is not.
func TestPaceWhereGitHubSigns(t *testing.T) {
	for _, c := range []struct {
		signs bool
		was   string
		state storage.SessionState
		want  time.Duration
	}{
		{false, "wait:x", scheduler.Working, Debounce},
		{true, "wait:x", scheduler.Working, Calm},
		{true, "work:x", scheduler.NeedsApproval, Debounce},
		{true, "", scheduler.Working, Debounce},
		{true, "wait:x", scheduler.Queued, Patience},
	} {
		st := &story{signs: c.signs, session: storage.Session{State: c.state}}
		if got := st.pace(c.was); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// While a verify command runs, the one before it is what happened last.
func TestLastActionOfVerification(t *testing.T) {
	w := newWorld(t)
	w.exec(`UPDATE sessions SET events_count = 2 WHERE id = $1`, id)
	w.exec(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash) VALUES
		($1, 1, 1, 'tool', '{"name": "edit", "title": "add.go"}', now(), ''), ($1, 2, 1, 'command', '{"step": "verify:lint", "line": "make lint"}', now(), '')`, id)
	w.to(scheduler.Verifying, "", "")
	w.report()
	w.only("clean clone**, last: `make lint`")
	w.exec(`DELETE FROM events WHERE seq = 2`)
	w.exec(`UPDATE events SET data = '"broken"'`)
	w.clock.Advance(Calm)
	w.to(scheduler.Publishing, "", "")
	w.report()
	w.to(scheduler.Working, "", "")
	w.clock.Advance(Calm)
	w.report()
	w.only("**Working**.")
}

func TestRateLimitSaysWhen(t *testing.T) {
	w := newWorld(t)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultSecondary, Method: "POST", RetryAfter: 90, Path: "/repos/**"})
	w.ok(err)
	err = w.r.Report(context.Background(), w.session())
	var at scheduler.RetryAt
	if !errors.As(err, &at) || time.Until(at.RetryAt()) < 30*time.Second {
		t.Errorf("%v", err)
	}
}

// What GitHub refuses once it refuses always: the report ends without it.
func TestAnnotationsThatAreRefused(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.delivered()
	for i := range 120 {
		w.kept.manifest.Checks[0].Findings = append(w.kept.manifest.Checks[0].Findings, evidence.Finding{Path: "a.go", Line: i + 1, Level: "error", Rule: "R", Message: "bad"})
	}
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 422, Method: "PATCH", Path: "/repos/*/*/check-runs/*", Count: -1})
	w.ok(err)
	w.report()
	before := w.writes()
	w.report()
	if w.writes() != before {
		t.Error("something was sent again")
	}
}

// Annotations go in batches of fifty; whoever is interrupted between two goes on
// where GitHub is, and sends none twice.
func TestAnnotationsInBatches(t *testing.T) {
	w := newWorld(t)
	w.report()
	w.delivered()
	for i := range 3000 {
		w.kept.manifest.Checks[0].Findings = append(w.kept.manifest.Checks[0].Findings, evidence.Finding{Path: "a.go", Line: i + 1, Level: "error", Rule: "R😀", Message: strings.Repeat("😀", 500)})
	}
	w.kept.manifest.Checks[0].FindingsTotal = 3000
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "PATCH", Path: "/repos/*/*/check-runs/*", Count: 2})
	w.ok(err)
	for range 5 {
		w.reporter()
		if err = w.r.Report(context.Background(), w.session()); err == nil {
			break
		}
	}
	w.ok(err)
	n, err := w.client().CountAnnotations(context.Background(), w.githubRepo(), w.head, id)
	if err != nil || n != 250 {
		t.Errorf("%d annotations, %v", n, err)
	}
	if c := w.server.Counts(); c.Warnings != 0 || c.Unknown != 0 {
		t.Errorf("%+v", c)
	}
	before := w.writes()
	w.report()
	if w.writes() != before {
		t.Error("something was sent again")
	}
}
