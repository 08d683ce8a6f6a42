package review

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/measure"
	"inspect/app/policy"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/fixtures/webhooks"
	"inspect/storage"
	"inspect/storage/storagetest"
)

const repoName = "octocat/hello"

type world struct {
	t       *testing.T
	server  *githubd.Server
	app     *github.App
	db      *storage.DB
	repo    github.Repo
	install int64
	pull    int
	head    string
	floor   policy.Floor
	fates   *fate.Desk
	d       *Desk
}

// newWorld has a pull request of a session that hubot started.
func newWorld(t *testing.T, fourEyes bool) *world {
	t.Helper()
	w := &world{t: t}
	var err error
	w.server = githubdtest.New(t, githubd.Options{})
	id, err := w.server.AddRepository("octocat", "hello", githubd.Seed{Files: map[string]string{"README.md": "x\n"}})
	w.ok(err)
	w.repo = github.Repo{ID: id, Owner: "octocat", Name: "hello"}
	w.install, err = w.server.Install("octocat", "hello")
	w.ok(err)
	for _, login := range []string{"hubot", "monalisa"} {
		w.ok(w.server.SetPermission(repoName, login, "write"))
	}
	w.app, err = github.New(github.Options{
		AppID: 12345, Key: w.server.KeyPEM(), APIBase: w.server.URL(), GitBase: w.server.URL(), WriteSpacing: -1,
		Reads: proc.Policy{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	})
	w.ok(err)
	w.head = w.push("inspect/1-x")
	bot, err := w.app.Bot(context.Background())
	w.ok(err)
	w.pull, err = w.server.OpenPullRequest(repoName, bot.Login, "inspect/1-x", "main", "x", "x", true)
	w.ok(err)
	w.db = storagetest.New(t)
	ctx := context.Background()
	w.ok(w.db.Q().SawInstallation(ctx, storage.SawInstallationParams{ID: w.install, Account: "octocat"}))
	w.ok(w.db.Q().SawRepository(ctx, storage.SawRepositoryParams{ID: id, InstallationID: w.install, Owner: "octocat", Name: "hello", DefaultBranch: "main"}))
	sp := spec.Default()
	sp.Publish.FourEyes = fourEyes
	body, err := json.Marshal(sp)
	w.ok(err)
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', $1, 'd', '{}')`, id)
	w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, state, branch, head_sha, pull_request, deadline)
		VALUES ('abcdefgh23',$1,$2,1,'i',1,'hubot','t','r','p','main',$3,'env-1',$4,'.inspect.yml','delivered','inspect/1-x',$3,$5,now())`,
		w.install, id, w.head, body, w.pull)
	w.requester("hubot", "started")
	w.desk()
	w.server.ResetRecord()
	return w
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

// desk makes a desk, as a restart would.
func (w *world) desk() {
	w.t.Helper()
	var err error
	w.fates, err = fate.New(fate.Options{DB: w.db, GitHub: func(i int64) fate.GitHub { return w.app.Installation(i) }})
	w.ok(err)
	w.d, err = New(Options{
		DB: w.db, Fates: w.fates, GitHub: func(i int64) GitHub { return w.app.Installation(i) },
		Floor: func(id int64, name string) (policy.Bounds, bool) { return w.floor.For(id, name) },
		Decide: func(ctx context.Context, i int64, repo github.Repo, a policy.Actor, need policy.Need) (policy.ActorDecision, error) {
			p, err := w.app.Installation(i).Permission(ctx, repo, a.Login)
			if err != nil {
				return policy.ActorDecision{}, err
			}
			return policy.DecideActor(a, policy.Permission{Known: p.UserID == a.ID, Read: p.Read, Write: p.Write}, need, policy.ActorRules{}), nil
		},
	})
	w.ok(err)
}

func (w *world) push(branch string) string { w.t.Helper(); return w.pushBy("octocat", branch) }

func (w *world) pushBy(login, branch string) string {
	w.t.Helper()
	sha, err := w.server.PushCommit(repoName, login, branch, "work", map[string]githubd.File{"a.txt": {Body: fmt.Sprint(time.Now().UnixNano()), Mode: 0o100644}})
	w.ok(err)
	return sha
}

func (w *world) requester(login, role string) {
	w.t.Helper()
	p, err := w.app.Installation(w.install).Permission(context.Background(), w.repo, login)
	w.ok(err)
	w.exec(`INSERT INTO session_people (session_id, user_id, login, role) VALUES ('abcdefgh23', $1, $2, $3)`, p.UserID, login, role)
}

func (w *world) review(login, state string) int64 {
	w.t.Helper()
	id, err := w.server.SubmitReview(repoName, w.pull, login, state, "")
	w.ok(err)
	return id
}

func (w *world) look() {
	w.t.Helper()
	w.ok(w.d.Look(context.Background(), w.install, w.repo, w.pull))
}

func (w *world) runs() []webhooks.CheckRun {
	w.t.Helper()
	all, err := w.server.CheckRuns(repoName)
	w.ok(err)
	return all
}

// want looks, and wants the newest run to be on the head with a conclusion.
func (w *world) want(conclusion string, words ...string) {
	w.t.Helper()
	w.look()
	all := w.runs()
	if len(all) == 0 {
		w.t.Fatal("there is no check run")
	}
	last := all[len(all)-1]
	if last.Name != "inspect / independent review" || last.Status != "completed" || last.Conclusion != conclusion || last.HeadSHA != w.head {
		w.t.Fatalf("%+v, want %s", last, conclusion)
	}
	for _, word := range words {
		if !strings.Contains(last.Summary, word) {
			w.t.Errorf("the summary %q lacks %q", last.Summary, word)
		}
	}
}

func TestIndependentReviewOfAPullRequest(t *testing.T) {
	w := newWorld(t, true)
	w.want("action_required", "must approve the present head")
	w.want("action_required")
	if n := len(w.runs()); n != 1 {
		t.Fatalf("%d runs for one answer", n)
	}
	w.review("hubot", "APPROVED")
	w.want("action_required", "hubot", "a requester")
	if n := len(w.runs()); n != 1 {
		t.Fatalf("%d runs where only the words changed", n)
	}
	id := w.review("monalisa", "APPROVED")
	w.want("success", "monalisa")
	w.ok(w.server.DismissReview(repoName, w.pull, id, "octocat"))
	w.want("action_required")
	w.review("monalisa", "APPROVED")
	w.want("success")
	w.review("monalisa", "CHANGES_REQUESTED")
	w.want("action_required", "Changes are requested")
	w.review("monalisa", "APPROVED")
	w.want("success")
	w.head = w.pushBy("hubot", "inspect/1-x") // somebody pushes: it is another head
	w.want("action_required", "earlier head")
	w.review("monalisa", "APPROVED")
	w.want("success")
	w.requester("monalisa", "pushed")
	w.want("action_required", "a requester")
	w.review("octocat", "APPROVED")
	w.want("success", "octocat")
	w.ok(w.server.SetPermission(repoName, "octocat", "read"))
	if c := w.server.Counts(); c.Unknown != 0 || c.Warnings != 0 {
		t.Errorf("%+v", c)
	}
}

// Sessions that no person started need two.
func TestStartedByAMachine(t *testing.T) {
	w := newWorld(t, true)
	w.exec(`DELETE FROM session_people`)
	w.review("hubot", "APPROVED")
	w.want("action_required", "two people")
	w.review("monalisa", "APPROVED")
	w.want("success")
}

func TestWhoNeedsNoReview(t *testing.T) {
	w := newWorld(t, false)
	w.look()
	if n := len(w.runs()); n != 0 {
		t.Fatalf("%d runs where nobody asks for four eyes", n)
	}
	var problems policy.Problems
	w.floor, problems = policy.ParseFloor([]byte("version: 1\ndefaults: {publish: {four_eyes: true}}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	w.want("action_required") // the operator does now

	// Somebody else's pull request gets no run, but one from our branch is ours.
	other := w.push("people/1")
	var err error
	w.pull, err = w.server.OpenPullRequest(repoName, "hubot", "people/1", "main", "y", "y", false)
	w.ok(err)
	before := len(w.runs())
	w.look()
	if n := len(w.runs()); n != before {
		t.Errorf("a run on a pull request that is not ours")
	}
	w.ok(w.server.AddRule(repoName, githubd.Rule{Branch: "main", Type: "required_status_checks", Parameters: map[string]any{
		"required_status_checks": []any{map[string]any{"context": Name}}, "strict_required_status_checks_policy": false,
	}}))
	w.head = other
	w.want("success", "No session of Inspect had a hand")
}

// A request that was lost is sent again; an answer that was lost, and a process
// that ended in between, make no second run.
func TestOneRunWhateverHappens(t *testing.T) {
	w := newWorld(t, true)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultCut, Method: "POST", Path: "/repos/*/*/check-runs"})
	w.ok(err)
	if err := w.d.Look(context.Background(), w.install, w.repo, w.pull); err == nil || len(w.runs()) != 0 {
		t.Fatalf("%d runs, %v", len(w.runs()), err)
	}
	w.desk()
	w.want("action_required")
	w.head = w.push("inspect/1-x")
	_, err = w.server.AddFault(githubd.Fault{Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/check-runs"})
	w.ok(err)
	_ = w.d.Look(context.Background(), w.install, w.repo, w.pull)
	w.desk()
	w.want("action_required")
	w.exec(`UPDATE reviews SET check_run_id = 0`) // ended before it was written down
	w.desk()
	w.want("action_required")
	if n := len(w.runs()); n != 2 {
		t.Fatalf("%d runs for two heads", n)
	}
	w.exec(`UPDATE reviews SET check_run_id = 0`)
	w.review("monalisa", "APPROVED") // and the answer has changed since
	w.want("success")
	if n := len(w.runs()); n != 3 {
		t.Fatalf("%d runs", n)
	}
}

func TestMergeGroup(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		fourEyes, rule bool
		ref            string
		runs           int
	}{
		"nobody wants it": {false, false, "refs/heads/gh-readonly-queue/main/pr-%d-" + strings.Repeat("a", 40), 0},
		"a rule wants it": {false, true, "refs/heads/gh-readonly-queue/main/odd", 1},
		"ours is in it":   {true, false, "refs/heads/gh-readonly-queue/main/pr-%d-" + strings.Repeat("a", 40), 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.fourEyes)
			if c.rule {
				w.ok(w.server.AddRule(repoName, githubd.Rule{Branch: "main", Type: "required_status_checks", Parameters: map[string]any{
					"required_status_checks": []any{map[string]any{"context": Name}}, "strict_required_status_checks_policy": false,
				}}))
			}
			ref := c.ref
			if strings.Contains(ref, "%d") {
				ref = fmt.Sprintf(ref, w.pull)
			}
			for range 2 {
				w.ok(w.d.MergeGroup(ctx, w.install, w.repo, w.head, ref, "refs/heads/main"))
			}
			all := w.runs()
			if len(all) != c.runs {
				t.Fatalf("%d runs", len(all))
			}
			if c.runs > 0 && (all[0].Conclusion != "success" || all[0].Name != Name || all[0].HeadSHA != w.head) {
				t.Errorf("%+v", all[0])
			}
		})
	}
}

// told has the pull request's events recorded as the intake does.
func (w *world) told(p fate.Pull, events ...measure.Event) {
	w.t.Helper()
	p.Number = w.pull
	w.ok(w.fates.Saw(context.Background(), w.repo, p, events...))
}

func (w *world) id(login string) int64 {
	w.t.Helper()
	p, err := w.app.Installation(w.install).Permission(context.Background(), w.repo, login)
	w.ok(err)
	return p.UserID
}

// A push whose event was lost is found out about: whoever made it does not
// approve it. What GitHub does not tell either takes one more person.
func TestPushThatNobodyToldOf(t *testing.T) {
	w := newWorld(t, true)
	w.pushBy("monalisa", "inspect/1-x")
	w.head = w.push("inspect/1-x") // by octocat
	w.review("monalisa", "APPROVED")
	w.want("action_required", "The review of monalisa does not count")
	mark := w.server.Mark()
	w.want("action_required")
	for _, r := range w.server.RequestsSince(mark) {
		if strings.HasSuffix(r.Path, "/activity") {
			t.Error("asked who pushed, which is known by now")
		}
	}
	w.ok(w.server.SetPermission(repoName, "hubot", "write"))
	w.exec(`DELETE FROM session_people`)
	w.requester("octocat", "started")
	w.review("hubot", "APPROVED")
	w.want("success", "hubot")

	// GitHub does not tell.
	w.head = w.push("inspect/1-x")
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 404, Method: "GET", Path: "/repos/*/*/activity", Count: -1})
	w.ok(err)
	w.review("hubot", "APPROVED")
	w.want("action_required", "two people", "Somebody pushed of whom nothing is known")
	w.told(fate.Pull{}, fate.Pushed(w.lastHead(), w.head, w.id("octocat"), "octocat", false, time.Now())) // its event was only late
	w.want("success", "hubot")
}

// lastHead is the head before the present one.
func (w *world) lastHead() string {
	w.t.Helper()
	all := w.runs()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].HeadSHA != w.head {
			return all[i].HeadSHA
		}
	}
	w.t.Fatal("there was no other head")
	return ""
}

// What was approved for one base was not approved for another, whether the event
// that tells of the change came or not.
func TestRetargeted(t *testing.T) {
	w := newWorld(t, true)
	_, err := w.server.PushCommit(repoName, "octocat", "release", "x", map[string]githubd.File{"c.txt": {Body: "c\n", Mode: 0o100644}})
	w.ok(err)
	w.told(fate.Pull{BaseRef: "main"})
	w.review("monalisa", "APPROVED")
	w.want("success")
	w.server.Advance(time.Minute)
	at := time.Now().Add(time.Minute)
	w.told(fate.Pull{BaseRef: "release", Retargeted: at})
	w.want("action_required", "before the base was changed")
	w.told(fate.Pull{BaseRef: "main", Retargeted: at.Add(-time.Hour)}) // a late one
	w.want("action_required", "before the base was changed")
	w.server.Advance(2 * time.Minute)
	w.review("monalisa", "APPROVED")
	w.want("success")
}

// A session that a bot asked for needs two, and so does one that a pipeline
// started, whoever took it on.
func TestNobodyHumanAsked(t *testing.T) {
	w := newWorld(t, true)
	w.exec(`UPDATE session_people SET login = 'ci[bot]', user_id = 999`)
	w.review("hubot", "APPROVED")
	w.want("action_required", "two people", "No person asked for the session")
	w.review("monalisa", "APPROVED")
	w.want("success")
	w.requester("monalisa", "prompted")
	w.want("action_required", "monalisa does not count")
	w.review("octocat", "APPROVED")
	w.want("success", "hubot", "octocat")
}

// The repository may ask for four eyes since the session began.
func TestFourEyesOfThePresentConfiguration(t *testing.T) {
	w := newWorld(t, false)
	w.look()
	if n := len(w.runs()); n != 0 {
		t.Fatalf("%d runs", n)
	}
	sp := spec.Default()
	sp.Publish.FourEyes = true
	body, err := json.Marshal(sp)
	w.ok(err)
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-2', $1, 'e', $2)`, w.repo.ID, body)
	w.exec(`UPDATE repositories SET head_environment = 'env-2'`)
	w.want("action_required")
}

// A re-run of a merge group's run says in another run what the first one said.
func TestMergeGroupAgain(t *testing.T) {
	w := newWorld(t, true)
	ctx := context.Background()
	w.ok(w.d.MergeGroup(ctx, w.install, w.repo, w.head, fmt.Sprintf("refs/heads/gh-readonly-queue/main/pr-%d-%s", w.pull, strings.Repeat("a", 40)), "refs/heads/main"))
	again, err := w.db.Q().ReviewsAskedAgain(ctx, storage.ReviewsAskedAgainParams{RepositoryID: w.repo.ID, Sha: w.head})
	if err != nil || len(again) != 1 || again[0] != 0 {
		t.Fatalf("%v %v", again, err)
	}
	for range 2 {
		w.ok(w.d.GroupAgain(ctx, w.install, w.repo, w.head))
	}
	all := w.runs()
	if len(all) != 2 || all[1].Conclusion != "success" || all[1].Summary != all[0].Summary || all[1].Name != Name {
		t.Errorf("%+v", all)
	}
}
