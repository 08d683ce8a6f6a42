package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// The sandboxes of these tests are this user's outside: one that no other run
// of them has at the same time, because some count its processes.
var testUID, testGID = testUser(os.Getuid()), testUser(os.Getgid())

// root starts sandboxes as another user, with limits that hold; anybody else
// as himself, without.
var root = os.Getuid() == 0

// testUserEnv hands it on to helper processes.
const testUserEnv = "INSPECT_TEST_UID"

func testUser(own int) int {
	if os.Getuid() != 0 { // root is not set yet
		return own
	}
	if n, err := strconv.Atoi(os.Getenv(testUserEnv)); err == nil {
		return n
	}
	return 200_000 + os.Getpid()%1_000_000
}

var (
	runDir     string // holds the copy of this test binary that is the init
	cgroupRoot = fmt.Sprintf("/inspect-test-%d", os.Getpid())
)

// TestMain lets the test binary be what the inspect binary is, the init, and
// beyond that the helpers of these tests.
func TestMain(m *testing.M) {
	if slowness > 1 {
		startTimeout, probeTimeout, cleanTimeout = patience(startTimeout), patience(probeTimeout), patience(cleanTimeout)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sandbox-init":
			os.Exit(inside.Main(os.Args[2:]))
		case "attempt":
			os.Exit(attempt(os.Args[2:]))
		case "client":
			os.Exit(client(os.Args[2:]))
		case "helper":
			os.Exit(helper(os.Args[2:]))
		}
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("/tmp", "inspect-sandbox-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	runDir = dir
	if err := os.Setenv(testUserEnv, strconv.Itoa(testUID)); err != nil {
		panic(err)
	}
	code := m.Run()
	if root {
		if left := leftCgroups(); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "cgroups left behind: %v\n", left)
			code = 1
		}
		if c, err := machineCgroups(cgroupRoot); err == nil {
			if err := c.close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	return code
}

// eachTier runs a test for each tier of sandboxes, as a subtest named by it.
func eachTier(t *testing.T, test func(t *testing.T)) {
	for _, tier := range tiers {
		t.Run(tier, test)
	}
}

var tiers = []string{wire.TierBubblewrap, wire.TierGVisor}

// tierOf is the tier a test is for: the one in its name, or bubblewrap.
func tierOf(t testing.TB) string {
	if strings.Contains(t.Name()+"/", "/"+wire.TierGVisor+"/") {
		return wire.TierGVisor
	}
	return wire.TierBubblewrap
}

// runscEnv names gVisor's program; without it PATH is searched, then where make
// setup builds it.
const runscEnv = "INSPECT_TEST_RUNSC"

func runsc() string {
	if p := os.Getenv(runscEnv); p != "" {
		return p
	}
	if p, err := exec.LookPath("runsc"); err == nil {
		return p
	}
	built, _ := filepath.Glob("../../.tools/runsc-*/runsc") // the pattern is in order
	if len(built) == 0 {
		return "runsc-is-missing-run-make-setup"
	}
	p, _ := filepath.Abs(built[len(built)-1]) // the working directory is there
	return p
}

func testOptions(t testing.TB) Options {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Options{
		Binary: exe, RunDir: filepath.Join(runDir, "run"), CgroupRoot: cgroupRoot,
		UID: testUID, GID: testGID, BestEffort: !root, Tier: tierOf(t), Runsc: runsc(),
	}
}

var launchers = map[string]*Launcher{}

// theLauncher is one for all tests of a tier.
func theLauncher(t testing.TB) *Launcher {
	t.Helper()
	tier := tierOf(t)
	if launchers[tier] == nil {
		l, err := New(testOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		launchers[tier] = l
	}
	return launchers[tier]
}

// newLauncher is a launcher of the test's own.
func newLauncher(t testing.TB, o Options) *Launcher {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the cgroups' root may be in use by another
	return l
}

// shared is a directory that the sandbox's uid can reach and owns.
func shared(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(runDir, "dir-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if root {
		if err := os.Chown(dir, testUID, testGID); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var ids int

func newID(t testing.TB) string {
	ids++
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, t.Name())
	return fmt.Sprintf("t%d-%.60s", ids, name)
}

// box is a running sandbox with a client on its control stream.
type box struct {
	*Sandbox
	*stream.Client
	work string // host directory of /workspace
}

func (b box) Done() <-chan struct{} { return b.Sandbox.Done() }

// start starts a sandbox that ends with the test.
func start(t testing.TB, change func(*Spec)) box {
	t.Helper()
	l := theLauncher(t)
	ours, theirs, err := stream.Pair()
	if err != nil {
		t.Fatal(err)
	}
	work := shared(t)
	s := Spec{
		ID: newID(t), Control: theirs, Mounts: []Mount{{Source: work, Target: Workspace, Writable: true}},
		Limits: wire.Limits{CPU: 2, MemoryBytes: 512 << 20, Pids: 200},
	}
	if change != nil {
		change(&s)
	}
	ctx := deadline(t)
	sb, err := l.Start(ctx, s)
	if err != nil {
		ours.Close()
		t.Fatal(err)
	}
	b := box{sb, stream.NewClient(ours), work}
	t.Cleanup(func() {
		_ = b.Client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience(30*time.Second))
		defer cancel()
		if err := sb.Kill(ctx); err != nil {
			t.Error(err)
		}
		if l.Alive(s.ID) {
			t.Errorf("processes of sandbox %s are left", s.ID)
		}
	})
	return b
}

// slowness is how much longer things may take: the machine of make test-cgroup2
// is emulated.
var slowness = map[bool]time.Duration{false: 1, true: 20}[os.Getenv(cgroupsEnv) == "2"]

func patience(d time.Duration) time.Duration { return d * slowness }

// cgroupsEnv says which version of cgroups this machine has.
const cgroupsEnv = "INSPECT_TEST_CGROUPS"

// deadline bounds what a test waits for.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience(3*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

type result struct {
	stream.Exit
	out, err string
}

// sh runs a shell line inside.
func (b box) sh(t testing.TB, script string) result {
	t.Helper()
	return b.exec(t, stream.Exec{Argv: []string{"sh", "-c", script}})
}

func (b box) exec(t testing.TB, e stream.Exec) result {
	t.Helper()
	var out, errs strings.Builder
	if e.Stdout == nil {
		e.Stdout = &out
	}
	if e.Stderr == nil {
		e.Stderr = &errs
	}
	x, err := b.Run(deadline(t), e)
	if err != nil {
		t.Fatalf("%v: %v", e.Argv, err)
	}
	return result{x, out.String(), errs.String()}
}

// must runs a shell line inside that has to succeed and returns its output.
func (b box) must(t testing.TB, script string) string {
	t.Helper()
	r := b.sh(t, script)
	if r.Code != 0 {
		t.Fatalf("%s: status %d: %s%s", script, r.Code, r.out, r.err)
	}
	return r.out
}

// processesOf is the host's processes of a uid, zombies left out.
func processesOf(t testing.TB, uid int) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && strings.Contains(string(b), fmt.Sprintf("\nUid:\t%d\t", uid)) &&
			!strings.Contains(string(b), "\nState:\tZ") && !strings.Contains(string(b), "\nState:\tX") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func leftCgroups() []string {
	c, err := machineCgroups(cgroupRoot)
	if err != nil {
		return nil
	}
	ids, _ := c.list()
	return ids
}

// helper is a process outside a sandbox that a test needs.
func helper(args []string) int {
	switch args[0] {
	case "hold": // holds descriptor 3 until it is killed
		_, _ = os.Stdout.WriteString("holding\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "launch":
		return helperLaunch(args[1:])
	case "serve":
		return helperServe(args[1:])
	case "join":
		return helperJoin(args[1:])
	case "ordinary":
		return helperOrdinary(args[1:])
	}
	return 2
}
