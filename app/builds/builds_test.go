package builds

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/buildkite"
	"inspect/checks/render"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/buildkited"
	"inspect/scheduler"
	"inspect/scheduler/secrets"
	"inspect/storage"
	"inspect/storage/seal"
	"inspect/storage/storagetest"
)

func TestMain(m *testing.M) { os.Exit(storagetest.Main(m).Run()) }

const (
	sha   = "0123456789abcdef0123456789abcdef01234567"
	other = "89abcdef0123456789abcdef0123456789abcdef"
	from  = "git@github.example:octocat/hello.git"
)

type idle struct{}

func (idle) Publish(context.Context, storage.Session) (scheduler.Published, error) {
	return scheduler.Published{}, nil
}
func (idle) Report(context.Context, storage.Session) error { return nil }
func (idle) GitTokenDone(context.Context, int64)           {}
func (idle) GitToken(context.Context, int64, int64) (wire.GitToken, error) {
	return wire.GitToken{}, nil
}
func (idle) Name() string { return "idle" }
func (idle) Start(context.Context, scheduler.Attempt) (json.RawMessage, error) {
	return nil, nil
}
func (idle) Stop(context.Context, json.RawMessage) error                { return nil }
func (idle) Logs(context.Context, json.RawMessage, int) ([]byte, error) { return nil, nil }
func (idle) List(context.Context) ([]scheduler.Listed, error)           { return nil, nil }
func (idle) Forget(context.Context, json.RawMessage) error              { return nil }
func (idle) State(context.Context, json.RawMessage) (scheduler.EngineState, error) {
	return scheduler.EngineUnknown, nil
}

type world struct {
	t        *testing.T
	db       *storage.DB
	sched    *scheduler.Scheduler
	bk       *buildkited.Server
	web      buildkited.Pipeline
	clock    *proc.Fake
	floor    policy.Floor
	f        *Follower
	reported int
	kept     map[string]string
	fail     error // of reports
}

func newWorld(t *testing.T, most string, change func(*Options)) *world {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, db: storagetest.New(t), clock: proc.NewFake(time.Now()), kept: map[string]string{}}
	var err error
	w.bk, err = buildkited.New(buildkited.Options{Clock: w.clock})
	must(err)
	must(w.bk.Start("127.0.0.1:0"))
	t.Cleanup(func() { _ = w.bk.Close() })
	w.web = w.bk.AddPipeline("web", from)
	var problems policy.Problems
	w.floor, problems = policy.ParseFloor([]byte("version: 1\nbuildkite:\n  pipelines:\n    - {organization_id: " + w.bk.OrganizationID() + ", pipeline_id: " + w.web.ID +
		", slug: acme/web, repositories: [octocat/hello]" + most + "}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	blobs, err := storage.OpenBlobs(t.Context(), "file://"+t.TempDir())
	must(err)
	key := seal.NewKey()
	w.sched, err = scheduler.New(scheduler.Options{
		DB: w.db, Blobs: blobs, Effects: idle{}, Engine: idle{}, GrantKey: ed25519.NewKeyFromSeed(make([]byte, 32)),
		Secrets: secrets.New(secrets.Options{DB: w.db, Keys: func() (*seal.Keys, error) { return seal.ParseKeys(key) }}),
	})
	must(err)
	client, err := buildkite.New(buildkite.Options{
		URL: w.bk.URL(), Token: func(context.Context) (string, error) { return w.bk.APIToken(), nil }, Retry: proc.Policy{Attempts: 1, Total: 10 * time.Second},
	})
	must(err)
	o := Options{
		DB: w.db, Buildkite: client, Clock: w.clock, Record: w.sched.Record,
		Wanted: func(id int64, name string, c spec.BuildkiteChecks) []policy.BuildWanted {
			return w.floor.Builds(id, name, c)
		},
		CloneURL: func(r github.Repo) string { return "https://github.example/" + r.String() + ".git" },
		Keep: func(_ context.Context, _ string, body []byte) (string, error) {
			sum := sha256.Sum256(body)
			name := hex.EncodeToString(sum[:])
			w.kept[name] = string(body)
			return name, nil
		},
		Report: func(context.Context, storage.Session) error { w.reported++; return w.fail },
	}
	if change != nil {
		change(&o)
	}
	w.f, err = New(o)
	must(err)
	q := w.db.Q()
	must(q.SawInstallation(t.Context(), storage.SawInstallationParams{ID: 5, Account: "octocat"}))
	must(q.SawRepository(t.Context(), storage.SawRepositoryParams{ID: 22, InstallationID: 5, Owner: "octocat", Name: "hello", DefaultBranch: "main"}))
	return w
}

// delivered is a session that pushed sha.
func (w *world) delivered(c spec.BuildkiteChecks) storage.Session {
	w.t.Helper()
	sp := spec.Default()
	sp.Verify = []spec.Verify{{Name: "unit", Run: "true"}}
	sp.Checks.Buildkite = c
	var s storage.Session
	err := w.db.InTx(w.t.Context(), func(tx *storage.Tx) error {
		env, err := w.sched.EnsureEnvironment(w.t.Context(), tx, 22, sp, "main", other)
		if err != nil {
			return err
		}
		s, err = w.sched.Create(w.t.Context(), tx, scheduler.NewSession{
			InstallationID: 5, RepositoryID: 22, IssueNumber: 3, IntentKey: "i", RequesterID: 101, RequesterLogin: "octocat", Title: "x", Request: "x", Prompt: "x",
			BaseBranch: "main", BaseSHA: other, EnvironmentID: env, Spec: sp, SpecSource: ".inspect.yml",
		})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.db.SQL().Exec("UPDATE sessions SET state = 'delivered', finished_at = $2, reported_at = $2, branch = 'inspect/3-x', head_sha = $3 WHERE id = $1", s.ID, w.clock.Now(), sha); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) look() error { return w.f.Look(w.t.Context()) }

// after looks, and returns what is known of the one build.
func (w *world) after(s storage.Session) storage.SessionBuild {
	w.t.Helper()
	if err := w.look(); err != nil {
		w.t.Fatal(err)
	}
	return w.row(s)
}

func (w *world) row(s storage.Session) storage.SessionBuild {
	w.t.Helper()
	rows, err := w.db.Q().SessionBuilds(w.t.Context(), s.ID)
	if err != nil || len(rows) != 1 {
		w.t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows[0]
}

var follow = spec.BuildkiteChecks{Builds: spec.BuildsFollow, Required: true, Timeout: 30 * time.Minute}

func TestBuildIsFollowed(t *testing.T) {
	w := newWorld(t, ", builds: follow", nil)
	s := w.delivered(follow)
	if row := w.after(s); row.State != "pending" || row.Number != 0 || row.DoneAt.Valid || !row.Required || w.reported == 0 {
		t.Fatalf("%+v", row)
	}
	// Builds of other commits, pipelines, repositories and forks prove nothing.
	w.bk.AddBuild("web", buildkited.Build{State: "passed", Commit: other, Branch: "inspect/3-x"})
	w.bk.AddBuild("web", buildkited.Build{State: "passed", Commit: sha, Branch: "inspect/3-x", PullRequest: &buildkited.PullRequest{Number: 4, Repository: "git://github.example/hubot/hello"}})
	w.bk.AddPipeline("easy", from)
	w.bk.AddBuild("easy", buildkited.Build{State: "passed", Commit: sha, Branch: "inspect/3-x"})
	w.clock.Advance(Between)
	if row := w.after(s); row.State != "pending" || row.Number != 0 {
		t.Fatalf("another build counts: %+v", row)
	}
	b := w.bk.AddBuild("web", buildkited.Build{State: "running", Commit: sha, Branch: "inspect/3-x", Jobs: []buildkited.Job{{Name: "unit", State: "running"}, {Name: "lint", State: "passed"}}})
	w.clock.Advance(Between)
	before := w.reported
	if row := w.after(s); row.State != "pending" || int(row.Number) != b.Number || w.reported != before+1 {
		t.Fatalf("%+v, %d reports", row, w.reported-before)
	}
	w.clock.Advance(Between)
	if w.after(s); w.reported != before+1 {
		t.Error("nothing has changed, and it is told again")
	}
	w.bk.AddArtifact("web", b.Number, b.Jobs[0].ID, "junit.xml", `<testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase></testsuite>`)
	w.bk.AddArtifact("web", b.Number, b.Jobs[0].ID, "bad.xml", `<testsuite>`)
	w.bk.Change("web", b.Number, func(b *buildkited.Build) { b.Jobs[0].State = "passed" })
	w.bk.Finish("web", b.Number, "passed")
	w.clock.Advance(Between)
	row := w.after(s)
	if row.State != "passed" || !row.DoneAt.Valid || w.reported != before+2 {
		t.Fatalf("%+v", row)
	}
	var shown render.Build
	if err := json.Unmarshal(row.Result.RawMessage, &shown); err != nil {
		t.Fatal(err)
	}
	if shown.SHA != sha || !shown.Done || len(shown.Jobs) != 2 || shown.Tests == nil || *shown.Tests != (render.BuildTests{Reports: 1, Total: 2, Skipped: 1, Unread: 1}) {
		t.Errorf("%+v %+v", shown, shown.Tests)
	}
	// It joins the evidence and the record.
	file, err := w.db.Q().EvidenceFile(t.Context(), storage.EvidenceFileParams{SessionID: s.ID, Name: "build-web-3.json"})
	if err != nil || !strings.Contains(w.kept[file.Sha256], `"state": "passed"`) {
		t.Errorf("%+v, %v", file, err)
	}
	var events int
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM events WHERE session_id = $1 AND kind = 'build' AND data->>'sha256' = $2", s.ID, file.Sha256).Scan(&events); err != nil || events != 1 {
		t.Errorf("%d events, %v", events, err)
	}
	requests := len(w.bk.Requests(""))
	w.clock.Advance(time.Hour)
	if w.after(s); len(w.bk.Requests("")) != requests {
		t.Error("a build that has ended is asked for again")
	}
}

func TestBuildVerdicts(t *testing.T) {
	for _, c := range []struct {
		name, state string
		blocked     bool
		want        string
		done        bool
		words       string // at the end of its time
		end         string // state then; empty: it has ended before
	}{
		{name: "failed", state: "failed", want: "failed", done: true},
		{name: "canceled", state: "canceled", want: "canceled", done: true},
		{name: "skipped", state: "skipped", want: "canceled", done: true},
		{name: "blocked", state: "blocked", blocked: true, want: "blocked", end: "blocked"},
		{name: "passed and blocked", state: "passed", blocked: true, want: "blocked", end: "blocked"},
		{name: "failing", state: "failing", want: "pending", end: "pending", words: "did not end in time"},
		{name: "a state of next year's", state: "pondering", want: "pending", end: "pending", words: "did not end in time"},
		{name: "none", want: "pending", end: "pending", words: "no build of this commit in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, ", builds: follow", nil)
			s := w.delivered(follow)
			if c.state != "" {
				w.bk.AddBuild("web", buildkited.Build{State: c.state, Blocked: c.blocked, Commit: sha, Branch: "inspect/3-x"})
			}
			row := w.after(s)
			if row.State != c.want || row.DoneAt.Valid != c.done {
				t.Fatalf("%+v", row)
			}
			if c.end == "" {
				return
			}
			w.clock.Advance(follow.Timeout)
			if row = w.after(s); !row.DoneAt.Valid || row.State != c.end || !strings.Contains(row.Words, c.words) {
				t.Errorf("at the end of its time: %+v", row)
			}
		})
	}
}

// Whoever repairs builds is told of one that failed, until that was heard.
func TestFailedIsTold(t *testing.T) {
	var told []int
	var fail error
	w := newWorld(t, ", builds: follow", func(o *Options) {
		o.Failed = func(_ context.Context, _ string, number int) error { told = append(told, number); return fail }
	})
	s := w.delivered(follow)
	b := w.bk.AddBuild("web", buildkited.Build{State: "failed", Commit: sha, Branch: "inspect/3-x"})
	fail = errors.New("away")
	if err := w.look(); err == nil || w.row(s).DoneAt.Valid {
		t.Errorf("nobody heard it, and it is done: %v", err)
	}
	fail = nil
	if row := w.after(s); row.State != "failed" || !row.DoneAt.Valid || len(told) != 2 || told[1] != b.Number {
		t.Errorf("%+v, told %v", row, told)
	}
	if w.after(s); len(told) != 2 {
		t.Error("it is told again")
	}
}

// A person lets a blocked build go on: it is followed to its end.
func TestBlockedBuildGoesOn(t *testing.T) {
	w := newWorld(t, ", builds: follow", nil)
	s := w.delivered(follow)
	b := w.bk.AddBuild("web", buildkited.Build{State: "blocked", Blocked: true, Commit: sha, Branch: "inspect/3-x"})
	w.after(s)
	w.bk.Finish("web", b.Number, "passed")
	w.clock.Advance(Between)
	if row := w.after(s); row.State != "passed" || !row.DoneAt.Valid || row.Changes < 2 {
		t.Errorf("%+v", row)
	}
}

// A build is asked for once, after its own has been waited for, and only where
// the operator and the repository both say so.
func TestBuildIsAskedFor(t *testing.T) {
	create := follow
	create.Builds = spec.BuildsCreate
	for _, c := range []struct {
		most, name string
		checks     spec.BuildkiteChecks
		fault      string
		builds     int
	}{
		{most: ", builds: create", name: "both say so", checks: create, builds: 1},
		{most: ", builds: create", name: "and the answer is lost", checks: create, fault: buildkited.FaultLost, builds: 1},
		{most: ", builds: follow", name: "the operator does not", checks: create},
		{most: ", builds: create", name: "the repository does not", checks: follow},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.most, nil)
			s := w.delivered(c.checks)
			w.after(s)
			if w.bk.Builds("web") > 0 {
				t.Fatal("it is asked for at once")
			}
			if c.fault != "" {
				w.bk.AddFault(buildkited.Fault{Kind: c.fault, Method: "POST"})
			}
			for range 4 {
				w.clock.Advance(grace)
				_ = w.look()
			}
			if n := w.bk.Builds("web"); n != c.builds {
				t.Fatalf("%d builds", n)
			}
			if c.builds == 0 {
				return
			}
			if b := w.bk.Build("web", 1); b.Commit != sha || b.Branch != "inspect/3-x" || b.MetaData["inspect:session"] != s.ID {
				t.Errorf("%+v", b)
			}
			w.bk.Finish("web", 1, "passed")
			w.clock.Advance(slowest)
			if row := w.after(s); row.State != "passed" || row.Number != 1 {
				t.Errorf("%+v", row)
			}
		})
	}
}

// What Buildkite does not answer is asked again, less often, until the time is over.
func TestBuildWhileBuildkiteIsAway(t *testing.T) {
	w := newWorld(t, ", builds: follow", nil)
	s := w.delivered(follow)
	b := w.bk.AddBuild("web", buildkited.Build{State: "passed", Commit: sha, Branch: "inspect/3-x"})
	for _, f := range []buildkited.Fault{
		{Kind: buildkited.FaultStatus, Status: 503, Count: -1}, {Kind: buildkited.FaultStatus, Status: 429, Reset: 50, Count: -1}, {Kind: buildkited.FaultTruncated, Count: -1}, {Kind: buildkited.FaultStatus, Status: 401, Count: -1},
	} {
		w.bk.AddFault(f)
		if err := w.look(); err == nil {
			t.Errorf("%+v: nothing is said", f)
		}
		w.bk.ClearFaults()
		if row := w.row(s); row.State != "pending" || row.DoneAt.Valid || row.Looks == 0 {
			t.Errorf("%+v: %+v", f, row)
		}
		requests := len(w.bk.Requests(""))
		if err := w.look(); err != nil || len(w.bk.Requests("")) != requests {
			t.Errorf("%+v: asked again at once, %v", f, err)
		}
		w.clock.Advance(slowest)
	}
	if row := w.after(s); row.State != "passed" || int(row.Number) != b.Number || row.Looks != 0 {
		t.Errorf("%+v", row)
	}
	away := newWorld(t, ", builds: follow", nil)
	s = away.delivered(follow)
	away.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultStatus, Status: 500, Count: -1})
	_ = away.look()
	away.clock.Advance(follow.Timeout)
	_ = away.look()
	if row := away.row(s); !row.DoneAt.Valid || row.State != "pending" || !strings.Contains(row.Words, "did not answer") {
		t.Errorf("%+v", row)
	}
}

// Where there is nothing to look at, that is what is said; required then means
// that the build has not passed.
func TestNothingToFollow(t *testing.T) {
	for name, c := range map[string]struct {
		most   string
		change func(*Options)
		words  string
	}{
		"no pipeline's builds": {"", nil, "binds no pipeline"},
		"no API access token":  {", builds: follow", func(o *Options) { o.Buildkite = nil }, "no API access token"},
		"the policy changes":   {", builds: follow", nil, "any more"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.most, c.change)
			s := w.delivered(follow)
			row := w.after(s)
			if name == "the policy changes" {
				w.floor = policy.Floor{}
				w.clock.Advance(Between)
				row = w.after(s)
			}
			if !row.DoneAt.Valid || !strings.Contains(row.Words, c.words) || row.State != "pending" || w.reported == 0 {
				t.Errorf("%+v, %d reports", row, w.reported)
			}
		})
	}
	w := newWorld(t, ", builds: follow", nil)
	w.delivered(spec.BuildkiteChecks{})
	if err := w.look(); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := w.db.SQL().QueryRow("SELECT count(*) FROM session_builds").Scan(&n); err != nil || n > 0 {
		t.Errorf("%d builds of a session that wants none, %v", n, err)
	}
}

// A webhook only hurries what would be found anyway.
func TestHurried(t *testing.T) {
	w := newWorld(t, ", builds: follow", nil)
	s := w.delivered(follow)
	w.after(s)
	w.bk.AddBuild("web", buildkited.Build{State: "passed", Commit: sha, Branch: "inspect/3-x"})
	if row := w.after(s); row.State != "pending" {
		t.Fatalf("%+v", row)
	}
	for commit, want := range map[string]int64{other: 0, sha: 1} {
		n, err := w.db.Q().HurrySessionBuilds(t.Context(), storage.HurrySessionBuildsParams{Now: w.clock.Now(), Sha: commit, PipelineID: w.web.ID})
		if err != nil || n != want {
			t.Errorf("%s: %d, %v", commit, n, err)
		}
	}
	if row := w.after(s); row.State != "passed" {
		t.Errorf("%+v", row)
	}
}

func TestFileName(t *testing.T) {
	if got := FileOf(render.Build{Pipeline: "acme/web", Number: 7}); got != "build-web-7.json" {
		t.Error(got)
	}
}
