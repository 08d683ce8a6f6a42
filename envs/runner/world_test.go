package runner

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/sandboxtest"
	"inspect/envs/sandbox/stream"
	"inspect/envs/shot"
	"inspect/envs/wire"
	"inspect/fixtures/scripted"
)

// TestMain lets the test binary be what commands in its sandboxes can call, and the
// scripted agent.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case shot.Command:
			os.Exit(shot.Main(os.Args[2:], os.Stdout, os.Stderr))
		case "scripted":
			os.Exit(scripted.Main(os.Args[2:]))
		}
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("/tmp", "inspect-runner-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	theDir = dir
	code := sandboxtest.Main(m).Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup" + cgroupRoot, "/sys/fs/cgroup/*" + cgroupRoot} {
		groups, _ := filepath.Glob(pattern)
		for _, g := range groups {
			if err := os.Remove(g); err != nil {
				fmt.Fprintln(os.Stderr, "a sandbox left its cgroup:", err)
				code = 1
			}
		}
	}
	return code
}

var cgroupRoot = fmt.Sprintf("/inspect-runner-test-%d", os.Getpid())

var (
	theDir    string
	launchMu  sync.Mutex
	launchers = map[string]*sandbox.Launcher{} // by tier
)

// The sandboxes of these tests are this user's outside, if root runs them.
const testUID = 61827

func theLauncher(t *testing.T) *sandbox.Launcher {
	t.Helper()
	launchMu.Lock()
	defer launchMu.Unlock()
	tier := tierOf(t)
	if launchers[tier] == nil {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		launchers[tier], err = sandbox.New(sandbox.Options{
			Binary: sandboxtest.Init(t), Tool: exe, RunDir: filepath.Join(theDir, "run"), CgroupRoot: cgroupRoot,
			UID: testUID, GID: testUID, BestEffort: os.Geteuid() != 0, Tier: tier, Runsc: runsc(),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return launchers[tier]
}

// tierOf is the tier a test is for: the one it is named by, or bubblewrap.
func tierOf(t *testing.T) string {
	if strings.HasSuffix(t.Name(), "/"+wire.TierGVisor) {
		return wire.TierGVisor
	}
	return wire.TierBubblewrap
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

// sample is a repository of two commits: the snapshot is of the first, a
// session starts at the second.
type sample struct {
	snapshot string // directory with the first commit checked out
	mirror   string // bare, with both
	first    string
	second   string
}

const checkLine = `grep -q good state.txt || { echo "    state_test.go:3: state is bad"; exit 1; }`

var makeSample = sync.OnceValues(func() (sample, error) {
	s := sample{snapshot: filepath.Join(theDir, "snapshot"), mirror: filepath.Join(theDir, "mirror.git")}
	origin := filepath.Join(theDir, "origin")
	script := `set -e
git init -q -b main "$1"; cd "$1"
printf 'bad\n' >state.txt; printf 'one\ntwo\nthree\nfour\n' >state_test.go; printf 'cache/\n' >.gitignore
git add -A; git commit -q -m first
git clone -q "$1" "$2"
printf 'drifted\n' >drift.txt; git add -A; git commit -q -m second
git clone -q --bare "$1" "$3"
printf 'left by setup\n' >"$2/left over [1].txt"; mkdir "$2/cache"; echo built >"$2/cache/it"
`
	if _, err := hostGit("/", "sh", "-c", script, "sh", origin, s.snapshot, s.mirror); err != nil {
		return s, err
	}
	var err error
	if s.first, err = hostGit(s.snapshot, "git", "rev-parse", "HEAD"); err != nil {
		return s, err
	}
	s.second, err = hostGit(s.mirror, "git", "rev-parse", "main")
	return s, err
})

// hostGit runs a command on the host for the test's own repositories, in which
// nothing hostile ever was.
func hostGit(dir string, argv ...string) (string, error) {
	res, err := proc.Run(context.Background(), proc.Command{
		Argv: argv, Dir: dir,
		Env: []string{
			"PATH=" + proc.DefaultPath, "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_AUTHOR_NAME=monalisa", "GIT_AUTHOR_EMAIL=monalisa@users.noreply.github.com",
			"GIT_COMMITTER_NAME=monalisa", "GIT_COMMITTER_EMAIL=monalisa@users.noreply.github.com",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
	})
	return strings.TrimSpace(string(res.Stdout)), err
}

// testNode does what the node daemon does, with real sandboxes over copies of
// the sample.
type testNode struct {
	t      *testing.T
	l      *sandbox.Launcher
	sample sample
	dir    string
	limits wire.Limits

	mu      sync.Mutex
	n       int
	boxes   []*sandbox.Sandbox
	clients []*stream.Client
	starts  map[string]int
	gone    map[string]bool
	running map[string]string // id of the last sandbox of a purpose

	// onSandbox, if set, may change what the runner gets for its nth sandbox
	// of a purpose, counted from 1.
	onSandbox func(purpose string, n int, sb Sandbox, end <-chan wire.SandboxEnd) (Sandbox, <-chan wire.SandboxEnd, error)
	onRestore func(ctx context.Context, purpose string) error
	onTurn    func(turn int) error
	commit    string // of the snapshot, as it is told; empty: as it is
	forked    string // shell lines that make the clone for work, in it, what another was after a turn; $3 is the mirror
	// addWay, if set, adds ways out to a sandbox.
	addWay func(ask wire.SandboxRequest, s *sandbox.Spec) map[string]net.Listener
}

func (n *testNode) clone(purpose string) string { return filepath.Join(n.dir, purpose) }

func (n *testNode) Restore(ctx context.Context, purpose string) (wire.RestoreReply, error) {
	if n.onRestore != nil {
		if err := n.onRestore(ctx, purpose); err != nil {
			return wire.RestoreReply{}, err
		}
	}
	script := `set -e; mkdir -p "$2/work" "$2/home"; cp -a "$1/." "$2/work"; chmod 755 "$2" "$2/work" "$2/home"`
	if purpose == wire.PurposeWork && n.forked != "" {
		script += "; (cd \"$2/work\"\n" + n.forked + "\n)"
	}
	if os.Geteuid() == 0 {
		script += fmt.Sprintf(`; chown -R %d:%d "$2"`, testUID, testUID)
	}
	if _, err := hostGit("/", "sh", "-c", script, "sh", n.sample.snapshot, n.clone(purpose), n.sample.mirror); err != nil {
		return wire.RestoreReply{}, err
	}
	return wire.RestoreReply{Commit: cmp.Or(n.commit, n.sample.first), Store: "dir", Tier: "test", Limits: "enforced", Duration: time.Millisecond}, nil
}

func (n *testNode) Beside(ctx context.Context, purpose, name string) (Sandbox, <-chan wire.SandboxEnd, error) {
	n.mu.Lock()
	beside := n.running[purpose]
	n.mu.Unlock()
	client, ends, err := n.start(ctx, purpose, beside+"-"+name, beside, func(*sandbox.Spec) {})
	if err != nil {
		return nil, nil, err
	}
	return client, ends, nil
}

func (n *testNode) Sandbox(ctx context.Context, ask wire.SandboxRequest) (Sandbox, <-chan wire.SandboxEnd, map[string]net.Listener, error) {
	purpose := ask.Grant
	n.mu.Lock()
	n.n++
	n.starts[purpose]++
	id, nth := fmt.Sprintf("s%d-%s", n.n, strings.ReplaceAll(filepath.Base(n.dir), "/", "-")), n.starts[purpose]
	n.mu.Unlock()
	var ways map[string]net.Listener
	client, ends, err := n.start(ctx, purpose, id, "", func(s *sandbox.Spec) {
		if n.addWay != nil {
			ways = n.addWay(ask, s)
		}
	})
	if err != nil {
		return nil, nil, nil, err
	}
	n.mu.Lock()
	n.running[purpose] = id
	n.mu.Unlock()
	if n.onSandbox != nil {
		sb, end, err := n.onSandbox(purpose, nth, client, ends)
		return sb, end, ways, err
	}
	return client, ends, ways, nil
}

func (n *testNode) start(ctx context.Context, purpose, id, beside string, more func(*sandbox.Spec)) (*stream.Client, <-chan wire.SandboxEnd, error) {
	ours, theirs, err := stream.Pair()
	if err != nil {
		return nil, nil, err
	}
	clone := n.clone(purpose)
	s := sandbox.Spec{
		ID: id, Beside: beside, Control: theirs, Limits: n.limits,
		Mounts: []sandbox.Mount{
			{Source: clone + "/work", Target: sandbox.Workspace, Writable: true},
			{Source: clone + "/home", Target: sandbox.Home, Writable: true},
			{Source: n.sample.mirror, Target: sandbox.MirrorPath},
		},
	}
	more(&s)
	box, err := n.l.Start(ctx, s)
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	client := stream.NewClient(ours)
	ends := make(chan wire.SandboxEnd, 1)
	go func() { ends <- box.Wait() }()
	n.mu.Lock()
	n.boxes, n.clients = append(n.boxes, box), append(n.clients, client)
	n.mu.Unlock()
	return client, ends, nil
}

func (n *testNode) KeepTurn(ctx context.Context, purpose string, turn int) error {
	if n.onTurn == nil {
		return &wire.Error{Code: "unsupported", Message: "says the test"}
	}
	return n.onTurn(turn)
}

func (n *testNode) Discard(_ context.Context, purpose string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone[purpose] = true
	if purpose == wire.PurposeVerify { // it may be restored again
		gone := n.clone(purpose)
		if err := os.Rename(gone, fmt.Sprintf("%s-gone%d", gone, n.n)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// world is everything around one runner.
type world struct {
	t       *testing.T
	control *controlPlane
	node    *testNode
	sample  sample
	spec    wire.Spec
	opt     Options
	log     bytes.Buffer

	meanwhile []func()
}

// newWorld makes a world in which the scripted agent has the given flags.
func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	s, err := makeSample()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(theDir, "w")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, sample: s,
		node: &testNode{
			t: t, l: theLauncher(t), sample: s, dir: dir, starts: map[string]int{}, gone: map[string]bool{}, running: map[string]string{},
			limits: wire.Limits{CPU: 2, MemoryBytes: 512 << 20, Pids: 200},
		},
	}
	w.control = newControlPlane(t, w)
	w.spec = wire.Spec{
		Session: "abcdefghij", Generation: 1, Repository: "octocat/sample", RepositoryID: 7,
		BaseBranch: "main", BaseSHA: s.second, SnapshotID: "snap-1", SnapshotCommit: s.first, Environment: "env-7-1",
		Prompt: "make the state good", AuthorName: "inspect[bot]", AuthorEmail: "1+inspect[bot]@users.noreply.github.com",
		Harness: wire.Harness{Kind: "command", Label: "scripted", Command: append([]string{
			sandbox.ToolPath, "scripted", "--edit", "state.txt", "--replace", "bad", "--with", "good", "--test", checkLine,
		}, flags...)},
		Verify:       []wire.Verify{{Name: "state", Run: checkLine + "; echo fine; echo careful >&2", Report: "exit"}},
		Limits:       wire.Limits{OutputBytes: 1 << 20},
		WorkDeadline: time.Now().Add(time.Minute), EndDeadline: time.Now().Add(3 * time.Minute),
		WorkGrant: "work", VerifyGrant: "verify",
	}
	w.opt = Options{
		ControlURL: w.control.url(), Session: w.spec.Session, Generation: 1, Secret: testSecret,
		Spool: filepath.Join(dir, "spool"), Node: w.node,
		Log:  slog.New(slog.NewTextHandler(&syncWriter{w: &w.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		pace: pace{heartbeat: 50 * time.Millisecond, retryMax: 50 * time.Millisecond, interrupt: 300 * time.Millisecond, events: time.Microsecond},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the runner:\n%s", w.log.String())
			for _, e := range w.control.events() {
				t.Logf("event %d %s %s", e.Number, e.Kind, e.Data)
			}
		}
		w.node.end()
	})
	return w
}

// end ends what a test left and complains about it.
func (n *testNode) end() {
	for i, b := range n.boxes {
		select {
		case <-b.Done():
		case <-time.After(10 * time.Second): // it ends a little after its stream
			n.t.Errorf("sandbox %s still runs", b.ID())
			_ = n.clients[i].Close()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			_ = b.Kill(ctx)
			cancel()
		}
	}
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Error(err)
	}
}

type syncWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// beside has f run while the runner runs.
func (w *world) beside(f func()) { w.meanwhile = append(w.meanwhile, f) }

// run runs the runner to its end.
func (w *world) run() error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range w.meanwhile {
		wg.Go(f)
	}
	defer wg.Wait()
	return Run(ctx, w.opt)
}

// outcome runs the runner and returns the outcome it reported, after looking
// at what must be so after every run.
func (w *world) outcome() wire.Outcome {
	w.t.Helper()
	if err := w.run(); err != nil {
		w.t.Fatalf("the runner failed: %v", err)
	}
	if w.control.result == nil {
		w.t.Fatal("there is no outcome")
	}
	w.checkAfter()
	return *w.control.result
}

func (w *world) checkAfter() {
	w.t.Helper()
	for _, purpose := range []string{"work", "verify"} {
		if !w.node.gone[purpose] {
			w.t.Errorf("the clone %s was not discarded", purpose)
		}
	}
	if _, err := os.Stat(w.opt.Spool); !os.IsNotExist(err) {
		w.t.Errorf("the spool directory is still there: %v", err)
	}
	for i, e := range w.control.events() {
		if e.Number != int64(i+1) {
			w.t.Fatalf("event %d has number %d", i+1, e.Number)
		}
	}
}

// unbundle opens a bundle of an outcome on the host and returns a directory in
// which its tip is checked out.
func (w *world) unbundle(sha256 string) string {
	w.t.Helper()
	body, ok := w.control.bundle(sha256)
	if !ok {
		w.t.Fatalf("no bundle %q was uploaded", sha256)
	}
	dir := w.t.TempDir()
	file := filepath.Join(dir, "b")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		w.t.Fatal(err)
	}
	out := filepath.Join(dir, "repo")
	for _, argv := range [][]string{
		{"git", "clone", "-q", w.sample.mirror, out},
		{"git", "-C", out, "fetch", "-q", file, resultRef},
		{"git", "-C", out, "checkout", "-q", "FETCH_HEAD"},
	} {
		if _, err := hostGit("/", argv...); err != nil {
			w.t.Fatalf("%v: %v", argv, err)
		}
	}
	return out
}

func (w *world) file(dir, name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(b)
}

// hurry gives the runner a clock whose long timers can be made to fire early.
func (w *world) hurry() *jumpClock {
	c := &jumpClock{Clock: proc.System()}
	w.opt.Clock = c
	return c
}

// jumpClock is the system's clock, but that timers can be made to fire early.
type jumpClock struct {
	proc.Clock
	mu     sync.Mutex
	timers []jumpTimer
}

type jumpTimer struct {
	after time.Duration
	c     chan time.Time
}

func (c *jumpClock) After(d time.Duration) <-chan time.Time {
	if d < time.Minute {
		return c.Clock.After(d) // only the long ones are ever hurried
	}
	out := make(chan time.Time, 1)
	time.AfterFunc(d, func() { fire(out, c.Now()) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = append(c.timers, jumpTimer{d, out})
	return out
}

// jump fires the timers that were set for at least from and less than to.
func (c *jumpClock) jump(from, to time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		if t.after >= from && t.after < to {
			fire(t.c, c.Now())
		}
	}
}

func fire(c chan time.Time, t time.Time) {
	select {
	case c <- t:
	default: // it has fired
	}
}
