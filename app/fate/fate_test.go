package fate_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/measure"
	"inspect/envs/proc"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/storage"
	"inspect/storage/storagetest"
)

const repoName = "octocat/hello"

func TestMain(m *testing.M) { goleak.VerifyTestMain(storagetest.Main(m)) }

// sessions is a scheduler that nobody asks anything here.
type sessions struct{ intake.Sessions }

func (sessions) Pushed(context.Context, *storage.Tx, int64) error { return nil }

// world is a GitHub with a pull request that session abcdefgh23 delivered.
type world struct {
	t       *testing.T
	server  *githubd.Server
	app     *github.App
	db      *storage.DB
	clock   *proc.Fake
	repo    github.Repo
	install int64
	pull    int
	d       *fate.Desk
	in      *intake.Intake
	mu      sync.Mutex
	told    []told // since the last deliver
}

// told is a delivery as it comes in.
type told struct {
	event, guid string
	body        []byte
}

// ServeHTTP takes deliveries as our webhook would.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, told{r.Header.Get("X-GitHub-Event"), r.Header.Get("X-GitHub-Delivery"), body})
	rw.WriteHeader(http.StatusAccepted)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: proc.NewFake(time.Now()), db: storagetest.New(t)}
	hook := httptest.NewServer(w)
	t.Cleanup(hook.Close)
	w.server = githubdtest.New(t, githubd.Options{WebhookSecret: "s", WebhookURL: hook.URL})
	id, err := w.server.AddRepository("octocat", "hello", githubd.Seed{Unprotected: true, Files: map[string]string{"sum.go": "x\n", "other.go": "x\n"}})
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
	bot, err := w.app.Bot(context.Background())
	w.ok(err)
	head := w.push(bot.Login, "inspect/1-x", "Add a sum", "sum.go")
	w.pull, err = w.server.OpenPullRequest(repoName, bot.Login, "inspect/1-x", "main", "Add a sum", "x", true)
	w.ok(err)
	w.desks()
	w.exec(`INSERT INTO installations (id, account) VALUES ($1, 'octocat')`, w.install)
	w.exec(`INSERT INTO repositories (id, installation_id, owner, name, default_branch) VALUES ($1, $2, 'octocat', 'hello', 'main')`, id, w.install)
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', $1, 'd', '{}')`, id)
	for i, session := range []string{"abcdefgh23", "abcdefgh24"} { // the second went on with it
		w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
			base_branch, base_sha, environment_id, spec, spec_source, state, branch, head_sha, pull_request, pull_number, deliver, deadline, finished_at)
			VALUES ($1,$2,$3,77,$1,1,'hubot','t','r','p','main',$4,'env-1','{}','.inspect.yml','delivered','inspect/1-x',$4,$5,$6,$7,now(),now())`,
			session, w.install, id, head, []int{w.pull, 0}[i], []int{0, w.pull}[i], []string{"pull", "head"}[i])
	}
	return w
}

// desks makes them as a restart would.
func (w *world) desks() {
	w.t.Helper()
	var err error
	w.d, err = fate.New(fate.Options{DB: w.db, GitHub: func(id int64) fate.GitHub { return w.app.Installation(id) }, Clock: w.clock})
	w.ok(err)
	w.in, err = intake.New(intake.Options{
		DB: w.db, Sessions: sessions{}, AppID: 12345, Fates: w.d, GitHub: func(id int64) intake.GitHub { return w.app.Installation(id) },
	})
	w.ok(err)
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.db.SQL().Exec(query, args...)
	w.ok(err)
}

func (w *world) push(login, branch, message string, paths ...string) string {
	w.t.Helper()
	files := map[string]githubd.File{}
	for _, p := range paths {
		files[p] = githubd.File{Body: fmt.Sprint(rand.Int64()), Mode: 0o100644}
	}
	sha, err := w.server.PushCommit(repoName, login, branch, message, files)
	w.ok(err)
	return sha
}

// later moves both clocks.
func (w *world) later(d time.Duration) {
	w.server.Advance(d)
	w.clock.Advance(d)
}

// deliver has what GitHub told since worked on, each twice, in an order of
// somebody's choice.
func (w *world) deliver(order func([]told)) {
	w.t.Helper()
	w.ok(w.server.Drain(w.t.Context()))
	w.mu.Lock()
	fresh := w.told
	w.told = nil
	w.mu.Unlock()
	if order != nil {
		order(fresh)
	}
	for _, d := range fresh {
		for _, again := range []string{"", "again "} {
			_, err := w.db.Q().StoreDelivery(w.t.Context(), storage.StoreDeliveryParams{Guid: again + d.guid, Event: d.event, Payload: d.body, Status: "pending"})
			w.ok(err)
			if err := w.in.Deliver(w.t.Context(), again+d.guid); err != nil {
				w.t.Fatalf("%s: %v", d.event, err)
			}
		}
	}
}

func (w *world) outcome(session string) storage.SessionOutcome {
	w.t.Helper()
	o, err := w.db.Q().SessionOutcome(w.t.Context(), session)
	w.ok(err)
	return o
}

// life is what happens to a pull request from the draft to a revert.
func (w *world) life() {
	w.t.Helper()
	w.later(time.Minute)
	w.ok(w.server.ReadyForReview(repoName, w.pull, "octocat"))
	w.later(10 * time.Minute)
	_, err := w.server.ReviewComment(repoName, w.pull, "monalisa", "sum.go", 1, "why?")
	w.ok(err)
	w.later(5 * time.Minute)
	_, err = w.server.SubmitReview(repoName, w.pull, "monalisa", "CHANGES_REQUESTED", "no")
	w.ok(err)
	w.later(time.Hour)
	w.push("hubot", "inspect/1-x", "Better", "sum.go")
	w.later(time.Hour)
	_, err = w.server.SubmitReview(repoName, w.pull, "monalisa", "APPROVED", "")
	w.ok(err)
	w.later(time.Minute)
	_, err = w.server.MergePullRequest(repoName, w.pull, "monalisa")
	w.ok(err)
	w.later(time.Hour)
	w.push("hubot", "main", "Add something else", "sum.go")
	w.push("hubot", "main", "Fix something else", "other.go")
	w.push("hubot", "main", "Fix the sum", "sum.go")
	w.push("hubot", "main", fmt.Sprintf("Fix what #%d broke", w.pull), "new.go")
	w.push("hubot", "rest", "Revert the sum", "sum.go")
	n, err := w.server.OpenPullRequest(repoName, "hubot", "rest", "main", `Revert "Add a sum"`, fmt.Sprintf("Reverts %s#%d", repoName, w.pull), false)
	w.ok(err)
	_, err = w.server.MergePullRequest(repoName, n, "octocat")
	w.ok(err)
}

func (w *world) wantLife() {
	w.t.Helper()
	o := w.outcome("abcdefgh23")
	if !o.Opened || !o.OpenedAt.Valid || !o.MergedAt.Valid || o.ClosedAt.Valid || !o.RevertedAt.Valid {
		w.t.Errorf("%+v", o)
	}
	// 10 before the first act and 5 to the review; 15 before the approval and 1 to the merge.
	if o.ReviewSeconds/60 != 31 && o.ReviewSeconds/60 != 32 || o.Rounds != 2 || o.Pushes != 1 || o.Fixes != 2 {
		w.t.Errorf("%d s of review, %d rounds, %d pushes, %d fixes", o.ReviewSeconds, o.Rounds, o.Pushes, o.Fixes)
	}
	// Whoever went on with it shares its fate; what it took is counted once.
	second := w.outcome("abcdefgh24")
	if second.Opened || !second.MergedAt.Valid || !second.RevertedAt.Valid || second.ReviewSeconds+second.Rounds+second.Pushes+second.Fixes != 0 {
		w.t.Errorf("%+v", second)
	}
}

// However deliveries come, each twice, what is counted is the same.
func TestOutcomeFromDeliveries(t *testing.T) {
	for name, order := range map[string]func([]told){
		"in order": nil, "backwards": slices.Reverse[[]told],
		"in no order": func(all []told) {
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.life()
			w.deliver(order)
			w.later(8 * time.Hour)
			w.ok(w.d.Look(t.Context(), w.install)) // what fixes it may have been told before it was known to be merged
			w.wantLife()
			w.later(15 * 24 * time.Hour)
			w.push("hubot", "main", "Fix the sum at last", "sum.go")
			w.deliver(nil)
			w.wantLife()
		})
	}
}

// Without a single delivery recovery finds out what there is to know.
func TestOutcomeThatNobodyToldOf(t *testing.T) {
	w := newWorld(t)
	w.life()
	ctx := t.Context()
	pr, err := w.app.Installation(w.install).PullRequest(ctx, w.repo, w.pull)
	w.ok(err)
	for range 2 {
		w.ok(w.d.Saw(ctx, w.repo, fate.Pull{Number: pr.Number, HeadRef: pr.HeadRef, HeadSHA: pr.HeadSHA, BaseRef: pr.BaseRef}, fate.Ended(pr)))
	}
	w.later(8 * time.Hour)
	mark := w.server.Mark()
	w.ok(w.d.Look(ctx, w.install))
	n := len(w.server.RequestsSince(mark))
	o := w.outcome("abcdefgh23")
	if !o.MergedAt.Valid || o.Rounds != 2 || o.Fixes != 2 || n > 12 {
		t.Errorf("%+v after %d requests", o, n)
	}
	mark = w.server.Mark()
	w.ok(w.d.Look(ctx, w.install))
	if n := len(w.server.RequestsSince(mark)); n != 0 {
		t.Errorf("%d requests where nothing is due", n)
	}
}

// Closed and opened again, and an issue that was opened again.
func TestClosedAndReopened(t *testing.T) {
	w := newWorld(t)
	w.ok(w.server.SetState(repoName, w.pull, "octocat", "closed"))
	w.deliver(nil)
	if o := w.outcome("abcdefgh23"); !o.ClosedAt.Valid || o.MergedAt.Valid {
		t.Errorf("%+v", o)
	}
	w.later(time.Minute)
	w.ok(w.server.SetState(repoName, w.pull, "octocat", "open"))
	w.deliver(nil)
	if o := w.outcome("abcdefgh23"); o.ClosedAt.Valid {
		t.Errorf("%+v", o)
	}
	w.later(time.Minute)
	_, err := w.server.MergePullRequest(repoName, w.pull, "octocat")
	w.ok(err)
	issue, err := w.server.OpenIssue(repoName, "octocat", "Sums", "x")
	w.ok(err)
	w.exec(`UPDATE sessions SET issue_number = $1`, issue)
	w.ok(w.server.SetState(repoName, issue, "octocat", "closed"))
	w.later(time.Hour)
	w.ok(w.server.SetState(repoName, issue, "octocat", "open"))
	w.deliver(nil)
	if o := w.outcome("abcdefgh23"); o.Fixes != 1 || !o.MergedAt.Valid {
		t.Errorf("%+v", o)
	}
}

// A pull request that no session had a hand in is nobody's business.
func TestOthersPullRequests(t *testing.T) {
	w := newWorld(t)
	w.push("hubot", "people/1", "Mine", "other.go")
	n, err := w.server.OpenPullRequest(repoName, "hubot", "people/1", "main", "Mine", "x", false)
	w.ok(err)
	_, err = w.server.SubmitReview(repoName, n, "octocat", "APPROVED", "")
	w.ok(err)
	w.deliver(nil)
	if _, err := w.db.Q().PullRow(t.Context(), storage.PullRowParams{RepositoryID: w.repo.ID, Number: int32(n)}); !storage.IsMissing(err) {
		t.Errorf("it is recorded: %v", err)
	}
}

// reads counts what is asked of GitHub.
type reads struct {
	fate.GitHub
	commits map[string]int
}

func (r *reads) PullPaths(context.Context, github.Repo, int) ([]string, error) {
	return []string{"a.go"}, nil
}

func (r *reads) CommitPaths(_ context.Context, _ github.Repo, sha string) ([]string, error) {
	r.commits[sha]++
	return nil, nil
}

// However many pull requests were merged lately, few commits are read for them,
// and each once.
func TestFewCommitsAreRead(t *testing.T) {
	db, gh, now := storagetest.New(t), &reads{commits: map[string]int{}}, time.Now()
	d, err := fate.New(fate.Options{DB: db, GitHub: func(int64) fate.GitHub { return gh }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.SQL().Exec(`INSERT INTO pulls (repository_id, number, base_ref, merged_at) SELECT 7, n, 'main', $1 FROM generate_series(1, 5) n`, now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	var commits []measure.Commit
	for i := range 30 {
		commits = append(commits, measure.Commit{SHA: fmt.Sprintf("%040d", i), Message: "Fix it", At: now})
	}
	if err := d.Landed(t.Context(), 1, github.Repo{ID: 7, Owner: "octocat", Name: "parcel"}, "main", commits); err != nil {
		t.Fatal(err)
	}
	for sha, n := range gh.commits {
		if n != 1 {
			t.Errorf("%s is read %d times", sha, n)
		}
	}
	if len(gh.commits) != 10 {
		t.Errorf("%d commits are read", len(gh.commits))
	}
}
