package node_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/egress"
	"inspect/envs/image/pull"
	"inspect/envs/node"
	"inspect/envs/node/dial"
	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/dir"
	"inspect/envs/snapshot/zfs"
	"inspect/envs/snapshot/zfs/zfstest"
	"inspect/envs/wire"
)

const (
	nodeName   = "node-1"
	nodeToken  = "node-token"
	owner      = "installation-1"
	repository = 4242
	// As long as GitHub's, so that nothing depends on a short one.
	readToken = "ghs_" + "canaryCANARYcanaryCANARYcanaryCANARY0123456789"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sandbox-init":
			os.Exit(inside.Main(os.Args[2:]))
		case egress.Command:
			os.Exit(egressMain())
		case pull.Command:
			os.Exit(pullMain())
		case "node-daemon":
			os.Exit(daemonMain(os.Args[2]))
		}
	}
	if os.Getenv(onZFSEnv) != "" {
		os.Exit(zfstest.Main(func(w *zfstest.World) int {
			pool = w.Pool
			return m.Run()
		}))
	}
	os.Exit(m.Run())
}

// world is a control plane's double, a git host, and a place for a node.
type world struct {
	t      *testing.T
	root   string // of the node
	socket string
	plane  *plane
	git    *gitHost
	key    ed25519.PrivateKey
	clock  proc.Clock
	tier   string // of the sandboxes of daemons in this process; "": bubblewrap
}

func newWorld(t *testing.T) *world {
	t.Helper()
	// The sandbox's uid must pass: t.TempDir's parent is closed to others.
	tmp, err := os.MkdirTemp("", "inspect-node")
	must(t, err)
	w := &world{
		t: t, root: filepath.Join(tmp, "node"), socket: filepath.Join(tmp, "node", "node.sock"),
		plane: newPlane(t), git: newGitHost(t), clock: proc.System(),
	}
	t.Cleanup(func() {
		if pool != "" {
			w.discardAll()
		}
		_ = os.RemoveAll(tmp)
		// What a killed daemon could not clean up: the last processes may just
		// be ending.
		until(t, "the test's cgroups are empty", func() bool { return removeGroups(filepath.Base(tmp)) })
	})
	must(t, os.Chmod(tmp, 0o711))
	_, w.key, err = ed25519.GenerateKey(nil)
	must(t, err)
	return w
}

// removeGroups removes a test's cgroups, children first.
func removeGroups(name string) bool {
	gone := true
	for _, pattern := range []string{"/sys/fs/cgroup/inspect-test", "/sys/fs/cgroup/*/inspect-test"} {
		parents, _ := filepath.Glob(pattern)
		for _, parent := range parents {
			var dirs []string
			_ = filepath.WalkDir(filepath.Join(parent, name), func(p string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, p)
				}
				return nil
			})
			slices.Reverse(dirs)
			for _, d := range dirs {
				if err := os.Remove(d); err != nil {
					gone = false
				}
			}
			_ = os.Remove(parent) // if no other test uses it
		}
	}
	return gone
}

// sandboxAccount is who sandboxes run as.
func sandboxAccount() (uid, gid int) {
	if os.Geteuid() == 0 {
		return 64321, 64321
	}
	return os.Getuid(), os.Getgid()
}

// daemonOptions is all a daemon in another process needs to be told.
type daemonOptions struct {
	Root, Socket, Control, GitBase, Cgroups string
	Tier                                    string // of sandboxes; "": bubblewrap
	Key                                     []byte // public
	CollectEvery, Grace                     time.Duration
	Dataset                                 string // of the zfs store; "": the dir store
}

func (w *world) daemonOptions() daemonOptions {
	d := daemonOptions{
		Root: w.root, Socket: w.socket, Control: w.plane.srv.URL, GitBase: w.git.srv.URL,
		Cgroups: "/inspect-test/" + filepath.Base(filepath.Dir(w.root)), Key: w.key.Public().(ed25519.PublicKey),
	}
	if pool != "" {
		d.Dataset = pool + "/" + filepath.Base(filepath.Dir(w.root))
	}
	return d
}

// runsc is gVisor's program: the one that is named, or where make setup builds it.
func runsc() string {
	if p := os.Getenv("INSPECT_TEST_RUNSC"); p != "" {
		return p
	}
	built, _ := filepath.Glob("../../.tools/runsc-*/runsc") // the pattern is in order
	if len(built) == 0 {
		return "runsc-is-missing-run-make-setup"
	}
	return built[len(built)-1]
}

// openStore opens the store of a daemon.
func openStore(d daemonOptions, clock proc.Clock, log *slog.Logger) (snapshot.Store, error) {
	if d.Dataset == "" {
		return dir.Open(dir.Options{Root: d.Root, Owner: owner, Now: clock.Now, Log: log})
	}
	return zfs.Open(context.Background(), zfs.Options{
		Dataset: d.Dataset, Mounts: filepath.Join(d.Root, "zfs"), Owner: owner, Clock: nowOf{proc.System(), clock}, Log: log,
	})
}

// nowOf tells the time of another clock; what waits does so by this one.
type nowOf struct {
	proc.Clock
	other proc.Clock
}

func (c nowOf) Now() time.Time { return c.other.Now() }

// realOptions are a daemon's with real sandboxes.
func realOptions(d daemonOptions, log *slog.Logger) (node.Options, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return node.Options{}, nil, err
	}
	uid, gid := sandboxAccount()
	l, err := sandbox.New(sandbox.Options{
		Binary: self, RunDir: filepath.Join(d.Root, "run"), CgroupRoot: d.Cgroups, UID: uid, GID: gid,
		BestEffort: os.Geteuid() != 0, Log: log, Tier: d.Tier, Runsc: runsc(),
	})
	if err != nil {
		return node.Options{}, nil, err
	}
	store, err := openStore(d, proc.System(), log)
	if err != nil {
		return node.Options{}, nil, err
	}
	return node.Options{
		Name: nodeName, Root: d.Root, Socket: d.Socket, ControlURL: d.Control, Token: nodeToken,
		GrantKey: d.Key, GitBase: d.GitBase, Store: store, Launcher: node.Sandboxes(l),
		SandboxUID: uid, SandboxGID: gid, Binary: filepath.Join(d.Root, "run", "init"), MinFree: -1, CollectEvery: d.CollectEvery, Grace: d.Grace, Log: log,
	}, func() { _ = store.Close() }, nil
}

// start runs a daemon in this process; stop ends it (sandboxes too) and waits.
func (w *world) start(change ...func(*node.Options)) (stop func()) {
	w.t.Helper()
	must(w.t, os.MkdirAll(w.root, 0o711))
	d := w.daemonOptions()
	d.Tier = w.tier
	o, done, err := realOptions(d, testLog(w.t))
	must(w.t, err)
	for _, c := range change {
		c(&o)
	}
	return w.run(o, done)
}

func (w *world) run(o node.Options, done func()) (stop func()) {
	w.t.Helper()
	n, err := node.New(o)
	must(w.t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel(node.ErrStopAll)
		if err := <-ended; err != nil {
			w.t.Errorf("the daemon ended with: %v", err)
		}
		done()
	})
	w.t.Cleanup(stop)
	return stop
}

// grant signs one as the control plane does.
func (w *world) grant(session, purpose, snapshotID string, change ...func(*wire.Grant)) string {
	w.t.Helper()
	g := wire.Grant{
		Verbs: []string{wire.VerbRestore, wire.VerbSandbox, wire.VerbDiscard}, Node: nodeName, Session: session, Generation: 1,
		Purpose: purpose, Environment: "env-1", Snapshot: snapshotID, RepositoryID: repository, PeerUID: os.Getuid(),
		Limits:  wire.Limits{CPU: 1, MemoryBytes: 512 << 20, Pids: 128, DiskBytes: 1 << 30},
		Expires: w.clock.Now().Add(time.Hour),
	}
	for _, c := range change {
		c(&g)
	}
	s, err := wire.SignGrant(w.key, g)
	must(w.t, err)
	return s
}

// refreshWork is a refresh of the git host's repository at its head.
func (w *world) refreshWork(id int64, snapshotID string, setup ...string) wire.Work {
	return wire.Work{ID: id, Kind: wire.WorkRefresh, Refresh: &wire.RefreshWork{
		Snapshot: snapshotID, Environment: "env-1", Generation: int(id),
		Remote: wire.Remote{RepositoryID: repository, URL: w.git.srv.URL + "/octocat/hello.git", Branch: "main"},
		Commit: w.git.head(), ConfigDigest: "digest", Setup: steps(setup),
		Limits:  wire.Limits{CPU: 2, MemoryBytes: 1 << 30, Pids: 256, DiskBytes: 1 << 30},
		Timeout: time.Minute,
	}}
}

// refreshed has the daemon make a snapshot and waits for the offer.
func (w *world) refreshed(id int64, snapshotID string, setup ...string) wire.SnapshotOffer {
	w.t.Helper()
	w.plane.give(w.refreshWork(id, snapshotID, setup...))
	select {
	case o := <-w.plane.offers:
		return o
	case r := <-w.plane.results:
		w.t.Fatalf("the refresh failed: %s", r.Words)
	case <-time.After(60 * time.Second):
		w.t.Fatal("no offer within a minute")
	}
	panic("unreachable")
}

// plane is a double of the control plane's /node/v1.
type plane struct {
	srv     *httptest.Server
	work    chan wire.Work
	offers  chan wire.SnapshotOffer
	results chan wire.WorkResult
	asked   chan struct{} // one for each refs call

	mu      sync.Mutex
	refs    wire.Refs
	states  []wire.NodeState
	down    bool // answers 503 to everything
	refuse  bool // refuses offers
	tokens  int
	secrets map[string]string
	modules map[string]string // tokens of submodules by address
}

func newPlane(t *testing.T) *plane {
	p := &plane{
		work: make(chan wire.Work, 16), offers: make(chan wire.SnapshotOffer, 16), results: make(chan wire.WorkResult, 16),
		asked: make(chan struct{}, 1024),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /node/v1/refs", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = json.NewEncoder(w).Encode(p.refs)
		select {
		case p.asked <- struct{}{}:
		default:
		}
	})
	mux.HandleFunc("GET /node/v1/work", func(w http.ResponseWriter, r *http.Request) {
		select {
		case work := <-p.work:
			_ = json.NewEncoder(w).Encode(work)
		case <-r.Context().Done():
		case <-time.After(20 * time.Second):
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux.HandleFunc("POST /node/v1/work/{id}", func(w http.ResponseWriter, r *http.Request) {
		var res wire.WorkResult
		decode(t, r, &res)
		p.results <- res
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /node/v1/work/{id}/secrets", p.giveSecrets)
	mux.HandleFunc("POST /node/v1/snapshots", func(w http.ResponseWriter, r *http.Request) {
		var o wire.SnapshotOffer
		decode(t, r, &o)
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(wire.Error{Code: "stale_generation", Message: "a newer one is there"})
		}
		p.offers <- o
	})
	mux.HandleFunc("POST /node/v1/token", func(w http.ResponseWriter, r *http.Request) {
		var req wire.GitTokenRequest
		decode(t, r, &req)
		if req.RepositoryID != repository {
			t.Errorf("a token for repository %d", req.RepositoryID)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tokens++
		token := readToken
		if req.URL != "" {
			token = p.modules[req.URL] // of others than those that are listed it is empty
		}
		_ = json.NewEncoder(w).Encode(wire.GitToken{Token: token, Expires: time.Now().Add(time.Hour)})
	})
	mux.HandleFunc("POST /node/v1/state", func(w http.ResponseWriter, r *http.Request) {
		var s wire.NodeState
		decode(t, r, &s)
		p.mu.Lock()
		p.states = append(p.states, s)
		p.mu.Unlock()
	})
	p.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+nodeToken || r.Header.Get(wire.HeaderVersion) != strconv.Itoa(wire.Version) {
			w.WriteHeader(http.StatusUnauthorized)
			_ = json.NewEncoder(w).Encode(wire.Error{Code: "unauthorized", Message: "who?"})
			return
		}
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { p.srv.CloseClientConnections(); p.srv.Close() })
	return p
}

func decode(t *testing.T, r *http.Request, v any) {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
	}
}

func (p *plane) give(w wire.Work) { p.work <- w }

func (p *plane) set(change func(*plane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// collected waits until the daemon has finished a collection that began after
// the call: it asks for refs once in each.
func (p *plane) collected(t *testing.T) {
	t.Helper()
	for len(p.asked) > 0 {
		<-p.asked
	}
	for range 2 {
		select {
		case <-p.asked:
		case <-time.After(20 * time.Second):
			t.Fatal("the daemon does not collect")
		}
	}
}

// gitHost serves one repository by smart HTTP, to who has the token.
type gitHost struct {
	t    *testing.T
	srv  *httptest.Server
	repo string

	mu       sync.Mutex
	requests int
	redirect string
	tokens   map[string]string // of other repositories than the first, by the path; empty: everybody may read it
}

func newGitHost(t *testing.T) *gitHost {
	g := &gitHost{t: t}
	root := t.TempDir()
	g.repo = filepath.Join(root, "octocat", "hello.git")
	must(t, os.MkdirAll(filepath.Dir(g.repo), 0o755))
	g.run(root, "init", "--quiet", "--bare", "-b", "main", g.repo)
	g.run(g.repo, "config", "uploadpack.allowAnySHA1InWant", "true")
	g.commit("main", map[string]string{"README.md": "hello\n", "main.go": "package main\n", ".gitignore": "built/\n"})
	handler := &cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + root, "GIT_CONFIG_NOSYSTEM=1", "PATH=/usr/bin:/bin"},
	}
	g.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.requests++
		redirect := g.redirect
		g.mu.Unlock()
		if redirect != "" {
			http.Redirect(w, r, redirect+r.URL.RequestURI(), http.StatusFound)
			return
		}
		token := readToken
		g.mu.Lock()
		for path, t := range g.tokens {
			if strings.HasPrefix(r.URL.Path, path+"/") {
				token = t
			}
		}
		g.mu.Unlock()
		if token == "" {
			if h := r.Header.Get("Authorization"); h != "" {
				t.Errorf("%s is asked for with %q", r.URL.Path, h)
			}
			handler.ServeHTTP(w, r)
			return
		}
		user, password, ok := r.BasicAuth()
		if !ok || user != "x-access-token" || password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(g.srv.Close)
	return g
}

func (g *gitHost) run(dir string, args ...string) string {
	g.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=octocat", "GIT_AUTHOR_EMAIL=octocat@example.com", "GIT_COMMITTER_NAME=octocat", "GIT_COMMITTER_EMAIL=octocat@example.com",
		// A mirror is another account's.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit adds one on a branch and returns its id.
func (g *gitHost) commit(branch string, files map[string]string) string {
	g.t.Helper()
	w := g.t.TempDir()
	g.run(w, "init", "--quiet", "-b", branch, ".")
	g.run(w, "remote", "add", "origin", g.repo)
	if g.run(g.repo, "for-each-ref", "refs/heads/"+branch) != "" {
		g.run(w, "fetch", "--quiet", "origin", branch)
		g.run(w, "reset", "--quiet", "--hard", "FETCH_HEAD")
	}
	for name, content := range files {
		must(g.t, os.MkdirAll(filepath.Dir(filepath.Join(w, name)), 0o755))
		must(g.t, os.WriteFile(filepath.Join(w, name), []byte(content), 0o644))
	}
	g.run(w, "add", "-A")
	g.run(w, "commit", "--quiet", "-m", "a commit")
	g.run(w, "push", "--quiet", "origin", "HEAD:refs/heads/"+branch)
	return g.run(w, "rev-parse", "HEAD")
}

func (g *gitHost) head() string { return g.run(g.repo, "rev-parse", "main") }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for a condition that another process brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // polls; what it waits for has no signal
	}
}

// testLog writes to the test's log while the test runs.
func testLog(t *testing.T) *slog.Logger {
	l := &logTo{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t = nil
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logTo struct {
	mu sync.Mutex
	t  *testing.T
}

func (l *logTo) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Log(string(bytes.TrimSpace(b)))
	}
	return len(b), nil
}

// listed is what the store holds, seen from outside while the daemon has it open.
func (w *world) listed(kind string) (names []string) {
	w.t.Helper()
	if d := w.daemonOptions().Dataset; d != "" {
		printed, err := zfstest.Try("zfs", "list", "-H", "-o", "name", "-r", d+"/"+kind)
		must(w.t, err)
		for _, name := range strings.Fields(printed) {
			if id, ok := strings.CutPrefix(name, d+"/"+kind+"/"); ok {
				names = append(names, id)
			}
		}
		return names
	}
	entries, err := os.ReadDir(filepath.Join(w.root, kind))
	must(w.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// tree is where a base or session of the store is seen.
func (w *world) tree(kind, id string) string {
	if pool != "" {
		return filepath.Join(w.root, "zfs", kind, id)
	}
	return filepath.Join(w.root, kind, id, "tree")
}

func work(session string) snapshot.CloneID {
	return snapshot.CloneID{Session: session, Generation: 1, Purpose: wire.PurposeWork}
}

type nodeOptions = node.Options

// dialSandbox starts a sandbox without ways out of it.
func dialSandbox(ctx context.Context, socket, grant string) (*stream.Client, <-chan wire.SandboxEnd, error) {
	r, err := dial.Sandbox(ctx, socket, grant)
	return r.Client, r.Ends, err
}

func steps(lines []string) (out []wire.Step) {
	for _, l := range lines {
		out = append(out, wire.Step{Run: l})
	}
	return out
}
