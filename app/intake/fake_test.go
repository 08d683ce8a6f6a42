package intake

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/app/command"
	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/scheduler/secrets"
	"inspect/storage"
	"inspect/storage/seal"
	"inspect/storage/storagetest"
)

const (
	appID        = 7
	octocat      = 101 // may write
	hubot        = 102 // may read
	monalisa     = 103 // may do nothing
	bot          = 104
	repositoryID = 22
	head         = "0123456789abcdef0123456789abcdef01234567"
	otherHead    = "89abcdef0123456789abcdef0123456789abcdef"
)

const goodSpec = "version: 1\nsetup: [go build ./...]\nverify:\n  - {name: unit, run: \"go test -json ./...\", report: gotest}\n"

// fakeGitHub answers from fields and records what is asked. fail names calls
// that go wrong; a call in lost happens, but its answer is lost.
type fakeGitHub struct {
	mu       sync.Mutex
	calls    []string
	comments []github.Comment
	files    map[string]string // nil: the repository does not exist
	branches map[string]string
	root     []string
	rules    []github.Rule
	bypass   string
	archived bool // every repository
	fail     map[string]error
	lost     map[string]bool
	apps     map[string]int64 // slug -> number

	issues    map[int]github.Issue
	pulls     map[int]github.PullRequest
	made      map[string]time.Time // commits
	protected map[string]bool
	reviews   []github.Review
	remarks   []github.ReviewComment
	failed    []github.FailedCheck
	threads   github.Threads
	logs      map[int64]string
}

func (f *fakeGitHub) PullRequest(_ context.Context, _ github.Repo, number int) (github.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("PullRequest", number); err != nil {
		return github.PullRequest{}, err
	}
	if pr, ok := f.pulls[number]; ok {
		return pr, nil
	}
	return github.PullRequest{}, github.ErrNotFound
}

func (f *fakeGitHub) Issue(_ context.Context, _ github.Repo, number int) (github.Issue, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("Issue", number); err != nil {
		return github.Issue{}, err
	}
	if i, ok := f.issues[number]; ok {
		return i, nil
	}
	return github.Issue{}, github.ErrNotFound
}

func (f *fakeGitHub) CommitTime(_ context.Context, _ github.Repo, sha string) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[sha], f.call("CommitTime", sha)
}

func (f *fakeGitHub) Protected(_ context.Context, _ github.Repo, branch string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.protected[branch], f.call("Protected", branch)
}

func (f *fakeGitHub) Reviews(context.Context, github.Repo, int) ([]github.Review, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reviews, f.call("Reviews")
}

func (f *fakeGitHub) ReviewComments(context.Context, github.Repo, int) ([]github.ReviewComment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.remarks, f.call("ReviewComments")
}

func (f *fakeGitHub) Threads(context.Context, github.Repo, int) (github.Threads, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.threads, f.call("Threads")
}

func (f *fakeGitHub) FailedChecks(_ context.Context, _ github.Repo, sha string) ([]github.FailedCheck, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed, f.call("FailedChecks", sha)
}

func (f *fakeGitHub) JobLog(_ context.Context, _ github.Repo, job int64, _ int) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("JobLog", job); err != nil {
		return "", err
	}
	if log, ok := f.logs[job]; ok {
		return log, nil
	}
	return "", github.ErrDenied
}

func (f *fakeGitHub) ReactReviewComment(_ context.Context, _ github.Repo, id int64, content string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call("ReactReviewComment", id, content)
}

func (f *fakeGitHub) call(name string, args ...any) error {
	f.calls = append(f.calls, strings.TrimSpace(name+" "+strings.TrimSpace(fmt.Sprintln(args...))))
	return f.fail[name]
}

func (f *fakeGitHub) AppID(_ context.Context, slug string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apps[slug], f.call("AppID", slug)
}

func (f *fakeGitHub) Permission(_ context.Context, _ github.Repo, login string) (github.Permission, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.call("Permission", login)
	switch login {
	case "octocat":
		return github.Permission{Level: "write", Write: true, Read: true, UserID: octocat}, err
	case "hubot":
		return github.Permission{Level: "read", Read: true, UserID: hubot}, err
	}
	return github.Permission{Level: "none"}, err
}

func (f *fakeGitHub) Repository(_ context.Context, id int64) (github.RepoInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return github.RepoInfo{Repo: github.Repo{ID: id, Owner: "octocat", Name: fmt.Sprintf("r%d", id)}, DefaultBranch: "main", Archived: f.archived || id == 99}, f.call("Repository", id)
}

func (f *fakeGitHub) BranchHead(_ context.Context, _ github.Repo, branch string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("BranchHead", branch); err != nil {
		return "", err
	}
	if sha := f.branches[branch]; sha != "" {
		return sha, nil
	}
	return "", github.ErrNotFound
}

func (f *fakeGitHub) File(_ context.Context, _ github.Repo, path, ref string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("File", path, ref); err != nil {
		return nil, err
	}
	if body, ok := f.files[path]; ok {
		return []byte(body), nil
	}
	return nil, github.ErrNotFound
}

func (f *fakeGitHub) Files(_ context.Context, _ github.Repo, path, ref string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return nil, cmp.Or(f.call("Files", path, ref), github.ErrNotFound)
}

func (f *fakeGitHub) RootFiles(_ context.Context, _ github.Repo, ref string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.root, f.call("RootFiles", ref)
}

func (f *fakeGitHub) ReactIssue(_ context.Context, _ github.Repo, issue int, content string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call("ReactIssue", issue, content)
}

func (f *fakeGitHub) ReactComment(_ context.Context, _ github.Repo, id int64, content string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.call("ReactComment", id, content)
}

func (f *fakeGitHub) Comments(context.Context, github.Repo, int) ([]github.Comment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]github.Comment(nil), f.comments...), f.call("Comments")
}

func (f *fakeGitHub) CreateComment(_ context.Context, _ github.Repo, _ int, body string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("CreateComment"); err != nil {
		return 0, err
	}
	id := int64(5000 + len(f.comments))
	f.comments = append(f.comments, github.Comment{ID: id, AppID: appID, Bot: true, Body: body})
	if f.lost["CreateComment"] {
		return 0, github.ErrAmbiguous
	}
	return id, nil
}

func (f *fakeGitHub) FindComment(_ context.Context, _ github.Repo, _ int, marker string) (int64, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("FindComment"); err != nil {
		return 0, false, err
	}
	for _, c := range f.comments {
		if c.AppID == appID && strings.Contains(c.Body, marker) {
			return c.ID, true, nil
		}
	}
	return 0, false, nil
}

func (f *fakeGitHub) BranchRules(_ context.Context, _ github.Repo, branch string) ([]github.Rule, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules, f.call("BranchRules", branch)
}

func (f *fakeGitHub) Bypass(_ context.Context, _ github.Repo, ruleset int64) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bypass, f.call("Bypass", ruleset)
}

func (f *fakeGitHub) BranchProtected(_ context.Context, _ github.Repo, branch string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return false, f.call("BranchProtected", branch)
}

// replies are the comments we wrote.
func (f *fakeGitHub) replies() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.comments {
		if c.AppID == appID {
			out = append(out, c.Body)
		}
	}
	return out
}

func (f *fakeGitHub) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if strings.HasPrefix(c, call) {
			n++
		}
	}
	return n
}

// idle is a world in which nothing is done.
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
	t       *testing.T
	db      *storage.DB
	gh      *fakeGitHub
	sched   *scheduler.Scheduler
	secrets *secrets.Store
	in      *Intake
	log     *bytes.Buffer
	next    int
}

func setup(t *testing.T, change func(*Options)) *world {
	t.Helper()
	w := &world{t: t, db: storagetest.New(t), log: &bytes.Buffer{}, gh: newGitHub()}
	blobs, err := storage.OpenBlobs(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key := seal.NewKey()
	w.secrets = secrets.New(secrets.Options{DB: w.db, Keys: func() (*seal.Keys, error) { return seal.ParseKeys(key) }})
	w.sched, err = scheduler.New(scheduler.Options{
		DB: w.db, Blobs: blobs, Effects: idle{}, Engine: idle{}, GrantKey: ed25519.NewKeyFromSeed(make([]byte, 32)), Secrets: w.secrets,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		DB: w.db, Sessions: w.sched, GitHub: func(int64) GitHub { return w.gh }, AppID: appID,
		Harness:    spec.Harness{Kind: spec.HarnessCommand, Command: "agent", Label: "scripted"},
		SessionURL: func(id string) string { return "http://127.0.0.1:8321/sessions/" + id },
		Log:        slog.New(slog.NewTextHandler(w.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	if w.in, err = New(o); err != nil {
		t.Fatal(err)
	}
	w.in.now = func() time.Time { return moment(labelAt).Add(time.Minute) }
	return w
}

func newGitHub() *fakeGitHub {
	return &fakeGitHub{
		files: map[string]string{".inspect.yml": goodSpec}, branches: map[string]string{"main": head, "release/1": otherHead},
		fail: map[string]error{}, lost: map[string]bool{},
		pulls: map[int]github.PullRequest{9: {
			Number: 9, State: "open", HeadRef: "feature/sum", HeadSHA: otherHead, BaseRef: "main", HeadRepoID: repositoryID, Title: "Mend the sum",
		}},
	}
}

// fresh empties the world for a further test; making another database would
// take most of a second.
func (w *world) fresh(t *testing.T) *world {
	t.Helper()
	_, err := w.db.SQL().Exec("TRUNCATE deliveries, intents, installations, repositories, environments, snapshots, node_work, sessions, attempts, events, effects, secrets, river_job CASCADE")
	if err != nil {
		t.Fatal(err)
	}
	w.t, w.gh = t, newGitHub()
	w.log.Reset()
	return w
}

// store puts a delivery where the webhook would and returns its GUID.
func (w *world) store(event, body string) string {
	w.t.Helper()
	w.next++
	guid := fmt.Sprintf("00000000-0000-0000-0000-%012d", w.next)
	_, err := w.db.Q().StoreDelivery(w.t.Context(), storage.StoreDeliveryParams{Guid: guid, Event: event, Payload: []byte(body), Status: "pending"})
	if err != nil {
		w.t.Fatal(err)
	}
	return guid
}

// deliver works on a new delivery until it is finished.
func (w *world) deliver(event, body string) storage.Delivery {
	w.t.Helper()
	guid := w.store(event, body)
	if err := w.in.Deliver(w.t.Context(), guid); err != nil {
		w.t.Fatalf("delivery: %v", err)
	}
	return w.delivery(guid)
}

func (w *world) delivery(guid string) storage.Delivery {
	w.t.Helper()
	d, err := w.db.Q().DeliveryByGUID(w.t.Context(), guid)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) sessions() []storage.Session {
	w.t.Helper()
	rows, err := w.db.SQL().Query("SELECT id FROM sessions ORDER BY created_at, id")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	var out []storage.Session
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			w.t.Fatal(err)
		}
		var s storage.Session
		r := w.db.SQL().QueryRow("SELECT id, state, title, request, prompt, context_digest, base_branch, base_sha, spec, spec_source, requester_id, requester_login, issue_number, intent_key, environment_id, installation_id, budget, instructions_sha, priority FROM sessions WHERE id = $1", id)
		if err := r.Scan(&s.ID, &s.State, &s.Title, &s.Request, &s.Prompt, &s.ContextDigest, &s.BaseBranch, &s.BaseSha, &s.Spec, &s.SpecSource, &s.RequesterID, &s.RequesterLogin, &s.IssueNumber, &s.IntentKey, &s.EnvironmentID, &s.InstallationID, &s.Budget, &s.InstructionsSha, &s.Priority); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// one returns the only session.
func (w *world) one() storage.Session {
	w.t.Helper()
	all := w.sessions()
	if len(all) != 1 {
		w.t.Fatalf("%d sessions, want one; the log says:\n%s", len(all), w.log)
	}
	return all[0]
}

func (w *world) intent(key string) storage.Intent {
	w.t.Helper()
	i, err := w.db.Q().IntentByKey(w.t.Context(), key)
	if err != nil {
		w.t.Fatalf("intent %s: %v", key, err)
	}
	return i
}

// oneReply returns the only reply, without its marker.
func (w *world) oneReply() string {
	w.t.Helper()
	all := w.gh.replies()
	if len(all) != 1 {
		w.t.Fatalf("%d replies, want one: %q", len(all), all)
	}
	marker, words, _ := strings.Cut(all[0], "\n")
	if !strings.HasPrefix(marker, "<!-- inspect:reply=") {
		w.t.Errorf("no marker: %q", marker)
	}
	if got := command.Parse(all[0]); got[0] != (command.Ignore{}) {
		w.t.Errorf("the reply reads as a command: %q", all[0])
	}
	return words
}

// set gives the session of the issue a state.
func (w *world) set(state string) {
	w.t.Helper()
	if _, err := w.db.SQL().Exec("UPDATE sessions SET state = $1::session_state", state); err != nil {
		w.t.Fatal(err)
	}
}

const labelAt = "2027-01-02T03:04:05Z"

// object is a payload that tests change.
type object = map[string]any

func at(o object, path string) object {
	for _, key := range strings.Split(path, ".") {
		o = o[key].(object)
	}
	return o
}

func body(o object) string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func user(id int64, login string) object {
	kind := "User"
	if id == bot {
		kind = "Bot"
	}
	return object{"id": id, "login": login, "type": kind}
}

func common(action string) object {
	return object{
		"action": action, "installation": object{"id": 11},
		"repository": object{"id": repositoryID, "name": "hello", "full_name": "octocat/hello", "owner": user(octocat, "octocat"), "default_branch": "main", "archived": false},
		"sender":     user(octocat, "octocat"),
		"issue": object{"id": 3001, "number": 3, "title": "Sum is wrong", "body": "1+1 gives 3", "user": user(monalisa, "monalisa"), "state": "open",
			"locked": false, "comments": 0, "updated_at": labelAt},
	}
}

func labeled() object {
	o := common("labeled")
	o["label"] = object{"id": 401, "name": "inspect"}
	return o
}

func labelIntent() string { return "label:22:3001:401:" + labelAt }

func commented(text string) object {
	o := common("created")
	o["comment"] = object{"id": 501, "body": text, "user": user(octocat, "octocat"), "created_at": "2027-01-02T03:04:05Z", "performed_via_github_app": nil}
	at(o, "issue")["comments"] = 1
	return o
}

func by(o object, id int64, login string) object {
	o["sender"] = user(id, login)
	if c, ok := o["comment"].(object); ok {
		c["user"] = user(id, login)
	}
	return o
}

// moments for comments around the label.
func moments() (before, after time.Time) {
	t, err := time.Parse(time.RFC3339, labelAt)
	if err != nil {
		panic(err)
	}
	return t.Add(-time.Hour), t.Add(time.Hour)
}

// payloadSeeds are where the fuzzer starts.
func payloadSeeds() []string {
	return []string{"null", "{}", `{"action":"labeled","issue":null}`, body(labeled()), body(commented("/inspect fix it")), body(installed())}
}
