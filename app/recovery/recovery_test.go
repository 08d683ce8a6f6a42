package recovery

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/envs/proc"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/storage"
	"inspect/storage/storagetest"
)

const repoName = "octocat/hello"

func TestMain(m *testing.M) { goleak.VerifyTestMain(storagetest.Main(m)) }

// world is a GitHub, and what was made of what it did not tell.
type world struct {
	t       *testing.T
	server  *githubd.Server
	app     *github.App
	db      *storage.DB
	clock   *proc.Fake
	repo    int64
	install int64
	r       *Recovery

	missed []intake.Missed
	pulls  []int
	fail   error // of Missed

	working []int
	lost    []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	// Ahead of GitHub: what has just happened has its time to be told.
	w := &world{t: t, clock: proc.NewFake(time.Now().Add(5 * time.Minute)), db: storagetest.New(t)}
	w.server = githubdtest.New(t, githubd.Options{})
	var err error
	w.repo, err = w.server.AddRepository("octocat", "hello", githubd.Seed{Files: map[string]string{"README.md": "x\n"}})
	w.ok(err)
	w.install, err = w.server.Install("octocat", "hello")
	w.ok(err)
	w.app, err = github.New(github.Options{
		AppID: 12345, Key: w.server.KeyPEM(), APIBase: w.server.URL(), GitBase: w.server.URL(), WriteSpacing: -1,
		Reads: proc.Policy{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	})
	w.ok(err)
	fates, err := fate.New(fate.Options{DB: w.db, Clock: w.clock, GitHub: func(id int64) fate.GitHub { return w.app.Installation(id) }})
	w.ok(err)
	w.r, err = New(Options{
		Fates: fates, Unreachable: func(_ context.Context, s string) error { w.lost = append(w.lost, s); return nil },
		Working: func(_ context.Context, _ int64, _ github.Repo, n int) error {
			w.working = append(w.working, n)
			return nil
		},
		DB: w.db, App: w.app, GitHub: func(id int64) GitHub { return w.app.Installation(id) }, Labels: []string{"inspect"}, Clock: w.clock,
		Missed: func(_ context.Context, m intake.Missed) error { w.missed = append(w.missed, m); return w.fail },
		Pull:   func(_ context.Context, _ int64, _ github.Repo, n int) error { w.pulls = append(w.pulls, n); return nil },
		Log:    slog.New(slog.DiscardHandler),
	})
	w.ok(err)
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// look looks, some time later.
func (w *world) look() {
	w.t.Helper()
	w.clock.Advance(Every)
	w.ok(w.r.Look(w.t.Context()))
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.db.SQL().Exec(query, args...)
	w.ok(err)
}

func (w *world) is(query string, args ...any) bool {
	w.t.Helper()
	var yes bool
	w.ok(w.db.SQL().QueryRow("SELECT EXISTS ("+query+")", args...).Scan(&yes))
	return yes
}

func (w *world) label(issue int, name, who string) {
	w.t.Helper()
	_, err := w.server.Label(repoName, issue, name, who)
	w.ok(err)
}

// A label whose event was never sent is found, with who put it on, once it is
// not worked on already.
func TestLabelThatNobodyToldOf(t *testing.T) {
	w := newWorld(t)
	issue, err := w.server.OpenIssue(repoName, "monalisa", "Add is wrong", "It subtracts.")
	w.ok(err)
	other, err := w.server.OpenIssue(repoName, "monalisa", "Another", "")
	w.ok(err)
	closed, err := w.server.OpenIssue(repoName, "monalisa", "Done", "")
	w.ok(err)
	w.label(issue, "Inspect", "octocat")
	w.label(other, "bug", "octocat")
	w.label(closed, "inspect", "octocat")
	w.ok(w.server.SetState(repoName, closed, "octocat", "closed"))

	w.fail = errors.New("not now")
	w.clock.Advance(Every)
	if err := w.r.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("%v", err)
	}
	w.fail = nil
	w.look() // what failed is looked for again
	if len(w.missed) != 2 {
		t.Fatalf("%+v", w.missed)
	}
	m := w.missed[1]
	if m.Issue.Number != issue || m.Actor.Login != "octocat" || m.Actor.ID == 0 || m.Installation != w.install || m.Repo.ID != w.repo ||
		m.DefaultBranch != "main" || m.Issue.Title != "Add is wrong" || m.Issue.Author != "monalisa" || len(m.Issue.Labels) != 1 || m.Issue.Labels[0].ID == 0 {
		t.Errorf("%+v", m)
	}
	w.look() // it did not change since
	if len(w.missed) != 2 {
		t.Errorf("%+v", w.missed)
	}
}

func TestLabelThatIsKnown(t *testing.T) {
	w := newWorld(t)
	issue, err := w.server.OpenIssue(repoName, "monalisa", "Add is wrong", "")
	w.ok(err)
	w.label(issue, "inspect", "octocat")
	w.exec(`INSERT INTO intents (key, delivery_guid, repository_id, issue_number, actor_id, actor_login, kind) VALUES ('k', 'g', $1, $2, 1, 'octocat', 'label')`, w.repo, issue)
	w.look()
	if len(w.missed) != 0 {
		t.Errorf("%+v", w.missed)
	}
}

// What GitHub itself would have forgotten is nobody's wish any more, and what
// has just happened may still be told.
func TestLabelTooOldOrTooYoung(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"old": KeptByGitHub + time.Hour, "young": -Every} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			issue, err := w.server.OpenIssue(repoName, "monalisa", "Add is wrong", "")
			w.ok(err)
			w.label(issue, "inspect", "octocat")
			w.clock.Advance(ahead - 5*time.Minute)
			w.look()
			if len(w.missed) != 0 {
				t.Errorf("%+v", w.missed)
			}
		})
	}
}

// A delivery that met a closed door is asked for again until it is stored.
func TestFailedDeliveries(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	var guids []string
	hook := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("X-GitHub-Event") != "ping" {
			return
		}
		guids = append(guids, r.Header.Get("X-GitHub-Delivery"))
		rw.WriteHeader(http.StatusInternalServerError)
	}))
	defer hook.Close()
	w.server.SetWebhookURL(hook.URL)
	w.server.Ping()
	drain := func() []string {
		w.ok(w.server.Drain(t.Context()))
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(guids)
	}
	if got := drain(); len(got) != 1 {
		t.Fatalf("%q", got)
	}
	w.look()
	if got := drain(); len(got) != 2 || got[1] != got[0] {
		t.Errorf("%q", got)
	}
	w.look() // it failed again
	if got := drain(); len(got) != 3 {
		t.Errorf("%q", got)
	}
	// It was stored, though the answer did not arrive.
	w.exec(`INSERT INTO deliveries (guid, event, payload) VALUES ($1, 'ping', '{}')`, guids[0])
	w.look()
	if got := drain(); len(got) != 3 {
		t.Errorf("%q", got)
	}
	w.exec(`DELETE FROM deliveries`)
	w.clock.Advance(KeptByGitHub)
	w.look() // GitHub has forgotten it
	if got := drain(); len(got) != 3 {
		t.Errorf("%q", got)
	}
}

// What became of installations and repositories is learnt without an event, and
// one that is closed keeps nobody else from being looked at.
func TestInstallations(t *testing.T) {
	w := newWorld(t)
	_, err := w.server.AddRepository("octocat", "spare", githubd.Seed{Files: map[string]string{"README.md": "x\n"}})
	w.ok(err)
	w.ok(w.server.AddToInstallation(w.install, "spare"))
	_, err = w.server.AddUser("acme", "Organization")
	w.ok(err)
	_, err = w.server.AddRepository("acme", "shop", githubd.Seed{Files: map[string]string{"README.md": "x\n"}})
	w.ok(err)
	acme, err := w.server.Install("acme", "shop")
	w.ok(err)
	w.look()
	for _, name := range []string{"hello", "spare", "shop"} {
		if !w.is("SELECT FROM repositories WHERE name = $1 AND removed_at IS NULL", name) {
			t.Errorf("%s is not known", name)
		}
	}
	w.ok(w.server.Suspend(acme, "octocat"))
	w.ok(w.server.RemoveFromInstallation(w.install, "spare"))
	w.ok(w.server.RenameRepository(repoName, "parcel", 307))
	w.exec("UPDATE repositories SET issues_seen_at = NULL") // our clock is ahead of GitHub's
	issue, err := w.server.OpenIssue("octocat/parcel", "monalisa", "Add is wrong", "")
	w.ok(err)
	_, err = w.server.Label("octocat/parcel", issue, "inspect", "octocat")
	w.ok(err)
	w.look()
	switch {
	case !w.is("SELECT FROM installations WHERE id = $1 AND suspended_at IS NOT NULL", acme):
		t.Error("the suspension is not known")
	case !w.is("SELECT FROM repositories WHERE name = 'spare' AND removed_at IS NOT NULL"):
		t.Error("the removal is not known")
	case !w.is("SELECT FROM repositories WHERE id = $1 AND name = 'parcel'", w.repo):
		t.Error("the new name is not known")
	case len(w.missed) != 1 || w.missed[0].Repo.Name != "parcel":
		t.Errorf("%+v", w.missed)
	}
	w.ok(w.server.Unsuspend(acme, "octocat"))
	w.ok(w.server.Uninstall(w.install, "octocat"))
	w.look()
	switch {
	case !w.is("SELECT FROM installations WHERE id = $1 AND suspended_at IS NULL AND deleted_at IS NULL", acme):
		t.Error("the end of the suspension is not known")
	case !w.is("SELECT FROM installations WHERE id = $1 AND deleted_at IS NOT NULL", w.install):
		t.Error("the end of the installation is not known")
	case w.is("SELECT FROM repositories WHERE installation_id = $1 AND removed_at IS NULL", w.install):
		t.Error("its repositories are still there")
	}
}

func TestFateOfPullRequests(t *testing.T) {
	w := newWorld(t)
	w.look()
	_, err := w.server.PushCommit(repoName, "octocat", "inspect/1-x", "x", map[string]githubd.File{"x": {Body: "x"}})
	w.ok(err)
	pull, err := w.server.OpenPullRequest(repoName, "octocat", "inspect/1-x", "main", "x", "x", true)
	w.ok(err)
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', $1, 'd', '{}')`, w.repo)
	w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, state, queue_reason, created_at, deadline, pull_request)
		VALUES ('abcdefgh23',$1,$2,1,'i',1,'monalisa','','','','main','','env-1','{}','','delivered','',$3,$3,$4)`, w.install, w.repo, w.clock.Now(), pull)
	closed := func() bool { return w.is("SELECT FROM sessions WHERE pull_closed_at IS NOT NULL") }
	w.look()
	if closed() || !slices.Equal(w.pulls, []int{pull}) {
		t.Errorf("closed %v, looked at %v", closed(), w.pulls)
	}
	w.ok(w.server.SetState(repoName, pull, "octocat", "closed"))
	w.look()
	if !closed() || len(w.pulls) != 1 {
		t.Errorf("closed %v, looked at %v", closed(), w.pulls)
	}
	if !w.is(`SELECT FROM session_outcomes WHERE session_id = 'abcdefgh23' AND opened AND opened_at IS NOT NULL AND closed_at IS NOT NULL AND merged_at IS NULL`) {
		t.Error("its outcome is not kept")
	}
	if len(w.working) != 0 {
		t.Errorf("looked at %v, which nobody works on", w.working)
	}
	w.exec(`UPDATE sessions SET state = 'working', pull_number = $1`, pull)
	w.look()
	if !slices.Equal(w.working, []int{pull}) {
		t.Errorf("looked at %v", w.working)
	}
	w.exec(`UPDATE sessions SET finished_at = now()`)
	w.look()
	if len(w.working) != 1 {
		t.Errorf("looked at %v", w.working)
	}
}

// A session whose repository is nowhere any more is ended; one whose repository
// only changed hands is not, and neither is one on its way.
func TestRepositoryOutOfReach(t *testing.T) {
	w := newWorld(t)
	w.look()
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', $1, 'd', '{}')`, w.repo)
	w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, state, queue_reason, created_at, deadline)
		VALUES ('abcdefgh23',$1,$2,1,'i',1,'monalisa','','','','main','','env-1','{}','','working','',$3,$3)`, w.install, w.repo, w.clock.Now())
	w.look()
	w.exec(`UPDATE repositories SET installation_id = 4711`) // it belonged to another account
	w.exec(`UPDATE sessions SET installation_id = 4711`)
	w.look()
	if !w.is(`SELECT FROM sessions WHERE installation_id = $1`, w.install) || len(w.lost) != 0 {
		t.Fatalf("the session did not go along, %v", w.lost)
	}
	w.ok(w.server.Uninstall(w.install, "octocat"))
	w.exec(`UPDATE repositories SET removed_at = $1`, w.clock.Now())
	w.exec(`UPDATE installations SET deleted_at = $1`, w.clock.Now())
	w.ok(w.r.Look(t.Context()))
	if len(w.lost) != 0 {
		t.Fatalf("%v, though the repository may be on its way", w.lost)
	}
	// What else goes wrong keeps nothing from ending.
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Path: "/app/hook/deliveries", Count: -1})
	w.ok(err)
	w.clock.Advance(Every)
	if err := w.r.Look(t.Context()); err == nil {
		t.Error("the deliveries could be listed")
	}
	if !slices.Equal(w.lost, []string{"abcdefgh23"}) {
		t.Errorf("%v", w.lost)
	}
}
