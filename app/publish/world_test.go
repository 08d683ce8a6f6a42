package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/storage"
	"inspect/storage/storagetest"
)

const repoName = "octocat/hello"

// world is a GitHub with one repository, a database and a publisher.
type world struct {
	t       *testing.T
	server  *githubd.Server
	app     *github.App
	db      *storage.DB
	blobs   *storage.Blobs
	clock   *proc.Fake
	work    gitDir
	mirror  string
	base    string
	repo    int64
	install int64
	issue   int
	writer  int64 // id of monalisa
	log     *bytes.Buffer
	opts    Options

	appOptions github.Options
	p          *Publisher
	n          *int // sessions so far
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, n: new(int), log: &bytes.Buffer{}, clock: proc.NewFake(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC))}
	var firstMirror string
	w.work, firstMirror, w.base = newRepo(t)
	var err error
	w.server = githubdtest.New(t, githubd.Options{})
	if w.repo, err = w.server.AddRepository("octocat", "hello", githubd.Seed{Dir: w.work.path}); err != nil {
		t.Fatal(err)
	}
	if w.install, err = w.server.Install("octocat", "hello"); err != nil {
		t.Fatal(err)
	}
	w.ok(w.server.SetPermission(repoName, "monalisa", "write"))
	if w.issue, err = w.server.OpenIssue(repoName, "hubot", "Add is wrong", "It subtracts."); err != nil {
		t.Fatal(err)
	}
	redactor := redact.New()
	w.appOptions = github.Options{
		AppID: 12345, Key: w.server.KeyPEM(), APIBase: w.server.URL(), GitBase: w.server.URL(), WriteSpacing: -1,
		Redactor: redactor, Reads: proc.Policy{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}, Log: slog.New(slog.DiscardHandler),
	}
	w.app, err = github.New(w.appOptions)
	w.ok(err)
	_, err = w.app.Bot(context.Background()) // as when the program starts
	w.ok(err)
	perm, err := w.app.Installation(w.install).Permission(context.Background(), w.githubRepo(), "monalisa")
	w.ok(err)
	w.writer = perm.UserID
	w.db = storagetest.New(t)
	w.blobs, err = storage.OpenBlobs(context.Background(), "file://"+t.TempDir())
	w.ok(err)
	t.Cleanup(func() { w.blobs.Close() })
	w.mirror = filepath.Join(filepath.Dir(firstMirror), fmt.Sprint(w.repo)+".git")
	w.work.must("", "git", "clone", "-q", "--bare", firstMirror, w.mirror)
	q := w.db.Q()
	w.ok(q.SawInstallation(context.Background(), storage.SawInstallationParams{ID: w.install, Account: "octocat"}))
	w.ok(q.SawRepository(context.Background(), storage.SawRepositoryParams{ID: w.repo, InstallationID: w.install, Owner: "octocat", Name: "hello", DefaultBranch: "main"}))
	w.exec(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-1', $1, 'd', '{}')`, w.repo)
	w.exec(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, store, created_at, published_at)
		VALUES ('snap-1', 'env-1', 'node-1', 1, $1, 'd', 'ready', 'dir', $2, $2)`, w.base, w.clock.Now().Add(-time.Hour))
	w.opts = Options{
		DB: w.db, Blobs: w.blobs, GitHub: func(id int64) GitHub { return w.app.Installation(id) }, CloneURL: w.app.CloneURL, Bot: w.app.Bot,
		Quarantine: light{}, Mirrors: filepath.Dir(w.mirror), WorkDir: openDir(t), Redactor: redactor, Clock: w.clock,
		SessionURL: func(s string) string { return "http://127.0.0.1:8321/sessions/" + s },
		Log:        slog.New(slog.NewTextHandler(w.log, nil)),
	}
	w.publisher()
	w.server.ResetRecord()
	return w
}

// publisher makes a publisher of the present options, as a restart would.
func (w *world) publisher() {
	w.t.Helper()
	p, err := New(w.opts)
	w.ok(err)
	w.p = p
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

func (w *world) githubRepo() github.Repo {
	return github.Repo{ID: w.repo, Owner: "octocat", Name: "hello"}
}

// put stores a blob of a session.
func (w *world) put(session string, content []byte) string {
	w.t.Helper()
	sum, _, err := w.blobs.Put(context.Background(), session, bytes.NewReader(content), 1<<30)
	w.ok(err)
	return sum
}

// goTest is the report of one passing test.
const goTest = `{"Action":"run","Package":"example/calc","Test":"TestAdd"}
{"Action":"pass","Package":"example/calc","Test":"TestAdd","Elapsed":0}
{"Action":"pass","Package":"example/calc","Elapsed":0.1}
`

// session makes a session in state publishing whose result is tip.
func (w *world) session(tip string, change func(*storage.Session, *spec.Spec, *wire.Outcome)) storage.Session {
	w.t.Helper()
	return w.sessionOf(tip, w.work.bundle(tip, w.base), change)
}

func (w *world) sessionOf(tip string, bundle []byte, change func(*storage.Session, *spec.Spec, *wire.Outcome)) storage.Session {
	w.t.Helper()
	*w.n++
	id := "abcdefgh2" + string(rune('a'+*w.n))
	tree, err := w.work.run("", "git", "rev-parse", tip+"^{tree}")
	w.ok(err)
	sp := spec.Default()
	sp.Verify = []spec.Verify{{Name: "unit", Run: "go test -json ./...", Report: spec.ReportGoTest}}
	sp.Harness = spec.Harness{Kind: "command", Command: "agent"}
	o := wire.Outcome{
		Kind: wire.OutcomeVerified, Words: "done", Bundle: w.put(id, bundle), Tip: tip, Tree: strings.TrimSpace(tree),
		Results: []wire.VerifyResult{{Name: "unit", Run: "go test -json ./...", Report: "gotest", Stdout: w.put(id, []byte(goTest)), Stderr: w.put(id, nil), Duration: time.Second}},
	}
	o.Base, o.BaseTests = &wire.Column{Results: o.Results}, &wire.Column{Same: true}
	s := storage.Session{
		ID: id, RequesterID: w.writer, RequesterLogin: "monalisa", Title: "Add is wrong", Request: "Make Add add.",
		BaseBranch: "main", BaseSha: w.base, State: "publishing", IssueNumber: int32(w.issue),
	}
	if change != nil {
		change(&s, &sp, &o)
	}
	specJSON, err := json.Marshal(sp)
	w.ok(err)
	outcome, err := json.Marshal(o)
	w.ok(err)
	w.exec(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		context_digest, base_branch, base_sha, environment_id, spec, spec_source, state, generation, snapshot_id, node, outcome, events_count, events_head, created_at, deadline)
		VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,'prompt','c0ffee',$10,$11,'env-1',$12,'.inspect.yml',$13,1,'snap-1','node-1',$14,17,'\xabcd',$15,$15)`,
		s.ID, w.install, w.repo, s.IssueNumber, "intent-"+s.ID, s.RequesterID, s.RequesterLogin, s.Title, s.Request,
		s.BaseBranch, s.BaseSha, specJSON, string(s.State), outcome, w.clock.Now())
	restored, err := json.Marshal(wire.Restored{Purpose: "work", Snapshot: "snap-1", Commit: w.base, Store: "dir", Tier: "bubblewrap 0.8.0", Limits: "enforced", Duration: 120 * time.Millisecond})
	w.ok(err)
	w.exec(`INSERT INTO attempts (session_id, generation, engine, node, snapshot_id, started_at, work_deadline, deadline, restore, taken, drifted) VALUES ($1,1,'local','node-1','snap-1',$2,$2,$2,$3,$4,$5)`,
		s.ID, w.clock.Now(), restored, `{"why":"it is 3 commits behind","stale":true,"drift":{"commits":3},"image":"dev@sha256:ab"}`, `{"lockfiles":[{"path":"go.sum","sha256":"cd"}]}`)
	w.exec(`INSERT INTO bundles (session_id, generation, turn, sha256, bytes, tip) VALUES ($1,1,1,$2,$3,$4)`, s.ID, o.Bundle, len(bundle), tip)
	row, err := w.db.Q().PublishSession(context.Background(), s.ID)
	w.ok(err)
	return row
}

// fixed is a result that puts Add right.
func (w *world) fixed() string {
	w.t.Helper()
	w.work.must("", "git", "checkout", "-q", "-f", w.base)
	w.work.must("", "git", "clean", "-fdq")
	w.work.write("calc/add.go", "package calc\n\nfunc Add(a, b int) int { return a + b }\n")
	w.work.write("calc/add_test.go", "package calc\n")
	return w.work.commit("Make Add add\n\nFixes #1, cc @octocat\nCo-authored-by: eve <eve@example.com>")
}

// changed is a result with the files changed by fn.
func (w *world) changed(fn func(gitDir)) string {
	w.t.Helper()
	w.work.must("", "git", "checkout", "-q", "-f", w.base)
	w.work.must("", "git", "clean", "-fdq")
	fn(w.work)
	return w.work.commit("work")
}

// file reads an evidence file by name.
func (w *world) file(session, name string) string {
	w.t.Helper()
	f, err := w.db.Q().EvidenceFile(context.Background(), storage.EvidenceFileParams{SessionID: session, Name: name})
	if err != nil {
		w.t.Fatalf("evidence file %s: %v", name, err)
	}
	r, err := w.blobs.Get(context.Background(), session, f.Sha256)
	w.ok(err)
	defer r.Close()
	body, err := io.ReadAll(r)
	w.ok(err)
	if int64(len(body)) != f.Bytes {
		w.t.Errorf("%s is listed with %d bytes and has %d", name, f.Bytes, len(body))
	}
	return string(body)
}

// pushes are the ref updates the App sent.
func (w *world) pushes() []githubd.RefUpdate {
	var out []githubd.RefUpdate
	for _, r := range w.server.Requests() {
		if r.FromApp() {
			out = append(out, r.Push...)
		}
	}
	return out
}

// clone is a fresh clone of a branch, as a person makes it.
func (w *world) clone(branch string) gitDir {
	w.t.Helper()
	token, err := w.server.UserToken("octocat")
	w.ok(err)
	g := gitDir{w.t, filepath.Join(w.t.TempDir(), "clone")}
	url := strings.Replace(w.server.CloneURL(repoName), "://", "://octocat:"+token+"@", 1)
	g.must("", "git", "clone", "-q", "-b", branch, url, g.path)
	return g
}
