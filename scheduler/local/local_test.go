package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/envs/proc"
	"inspect/scheduler"
	"inspect/scheduler/enginetest"
)

func TestMain(m *testing.M) {
	if enginetest.IsRunner() && slices.Contains(os.Args, "--tell") {
		os.Exit(enginetest.Runner())
	}
	if enginetest.IsRunner() {
		os.Exit(fakeRunner(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// fakeRunner is what the engine starts in these tests. It writes what it was
// given into its spool and then does as its last argument says.
func fakeRunner(args []string) int {
	var spool string
	for i, a := range args {
		if a == "--spool" {
			spool = args[i+1]
		}
	}
	_ = os.MkdirAll(spool, 0o700)
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	how := args[len(args)-1]
	if how == "stubborn" || how == "family" {
		signal.Ignore(syscall.SIGTERM)
	}
	if how == "family" {
		// A descendant in a process group of its own, and one that was orphaned.
		cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; sleep 600 & exec sleep 600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return 1
		}
	}
	if how == "escapes" { // forks twice, the second time from a session of its own
		cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; sleep 600 &")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Run(); err != nil {
			return 1
		}
	}
	if how == "chatty" {
		fmt.Fprint(os.Stderr, strings.Repeat("noise ", 1<<18))
	}
	told, _ := json.Marshal(map[string]any{"args": args, "env": os.Environ(), "secret": line, "pid": os.Getpid()})
	_ = os.WriteFile(filepath.Join(spool, "told.new"), told, 0o600)
	_ = os.Rename(filepath.Join(spool, "told.new"), filepath.Join(spool, "told"))
	if how == "brief" {
		return 3
	}
	for { // until it is ended
		time.Sleep(time.Hour)
	}
}

const session = "abcdefghij"

func newEngine(t *testing.T, dir, how string) *Engine {
	t.Helper()
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Options{
		Binary: bin, ControlURL: "http://127.0.0.1:1", NodeSocket: "/run/node.sock", Dir: dir,
		Grace: 300 * time.Millisecond, Args: []string{how},
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func start(t *testing.T, e *Engine, generation int) json.RawMessage {
	t.Helper()
	ref, err := e.Start(context.Background(), scheduler.Attempt{Session: session, Generation: generation, Node: "n1", Secret: "the secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Stop(context.Background(), ref) })
	return ref
}

type told struct {
	Args, Env []string
	Secret    string
	PID       int
}

// hear waits for what the runner was told.
func hear(t *testing.T, dir string, generation int) told {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("%s-g%d", session, generation), "own", "spool", "told")
	var got told
	eventually(t, "the runner speaks", func() bool {
		b, err := os.ReadFile(path)
		return err == nil && json.Unmarshal(b, &got) == nil
	})
	return got
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never: %s", what)
		}
	}
}

func state(t *testing.T, e *Engine, ref json.RawMessage) scheduler.EngineState {
	t.Helper()
	s, err := e.State(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRunnerGetsWhatItNeedsAndNoMore(t *testing.T) {
	t.Setenv("CANARY_TOKEN", "ghs_canary")
	dir := t.TempDir()
	e := newEngine(t, dir, "waits")
	ref := start(t, e, 2)
	got := hear(t, dir, 2)
	want := "--control http://127.0.0.1:1 --session " + session + " --generation 2 --node-socket /run/node.sock --spool " +
		filepath.Join(dir, session+"-g2", "own", "spool") + " waits"
	if strings.Join(got.Args, " ") != want {
		t.Errorf("arguments %q", got.Args)
	}
	if len(got.Env) != 1 || !strings.HasPrefix(got.Env[0], "PATH=") {
		t.Errorf("environment %q", got.Env)
	}
	if got.Secret != "the secret\n" {
		t.Errorf("secret %q", got.Secret)
	}
	if strings.Contains(string(ref), "secret") {
		t.Errorf("the secret is in the reference: %s", ref)
	}
	if fi, err := os.Stat(filepath.Join(dir, session+"-g2", "own")); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the attempt's directory: %v, %v", fi.Mode(), err)
	}
	if st, err := readStat(got.PID); err != nil || st.session != got.PID {
		t.Errorf("no process session of its own: %+v, %v", st, err)
	}
	if s := state(t, e, ref); s != scheduler.EngineRunning {
		t.Fatalf("state %d", s)
	}
	for range 2 { // not found is success
		if err := e.Stop(context.Background(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if s := state(t, e, ref); s != scheduler.EngineGone {
		t.Fatalf("state after a stop %d", s)
	}
	if _, err := os.Stat(filepath.Join(dir, session+"-g2", "own", "spool")); !os.IsNotExist(err) {
		t.Errorf("the spool is still there: %v", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", got.PID)); !os.IsNotExist(err) {
		t.Errorf("a zombie is left: %v", err)
	}
}

func TestAttemptIsStartedOnce(t *testing.T) {
	dir := t.TempDir()
	first := newEngine(t, dir, "waits")
	ref := start(t, first, 1)
	pid := hear(t, dir, 1).PID
	for name, prepare := range map[string]func(){
		"asked again":                  func() {},
		"by a control plane that died": func() { first = newEngine(t, dir, "waits") },
		"before it was recorded": func() {
			first = newEngine(t, dir, "waits")
			if err := os.Remove(filepath.Join(dir, session+"-g1", refName)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		prepare()
		again := start(t, first, 1)
		if string(again) != string(ref) {
			t.Errorf("%s: %s, first it was %s", name, again, ref)
		}
		var r struct{ PID int }
		if err := json.Unmarshal(again, &r); err != nil || r.PID != pid {
			t.Errorf("%s: another process: %s", name, again)
		}
	}
	if other := start(t, first, 2); string(other) == string(ref) {
		t.Fatal("another generation is the same process")
	}
}

func TestEndIsSeenWhoeverStartedIt(t *testing.T) {
	dir := t.TempDir()
	first := newEngine(t, dir, "waits")
	ref := start(t, first, 1)
	pid := hear(t, dir, 1).PID
	second := newEngine(t, dir, "waits") // as after a restart; it has no children
	if s := state(t, second, ref); s != scheduler.EngineRunning {
		t.Fatalf("state %d", s)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second engine sees the end", func() bool { return state(t, second, ref) == scheduler.EngineGone })
	if s := state(t, first, ref); s != scheduler.EngineGone {
		t.Fatalf("state %d", s)
	}
	brief := newEngine(t, dir, "brief")
	ref = start(t, brief, 7)
	eventually(t, "the end of a brief runner is seen", func() bool { return state(t, brief, ref) == scheduler.EngineGone })
	if again := start(t, brief, 7); string(again) != string(ref) {
		t.Fatal("an attempt that is over was started again")
	}
}

// members are an account's processes in a process session.
func members(t *testing.T, session, uid int) []int {
	t.Helper()
	in, _, err := processes(session, uid)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestStopEndsTheWholeProcessSession(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, dir, "family")
	ref := start(t, e, 1)
	pid := hear(t, dir, 1).PID
	var family []int
	eventually(t, "the family is complete", func() bool {
		family = members(t, pid, os.Geteuid())
		return len(family) == 3
	})
	if err := e.Stop(context.Background(), ref); err != nil {
		t.Fatal(err)
	}
	for _, p := range family {
		if st, err := readStat(p); err == nil && !st.dead() {
			t.Errorf("process %d lives on", p)
		}
	}
}

func TestStopOfWhatARunnerLeftBehind(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, dir, "family")
	ref := start(t, e, 1)
	pid := hear(t, dir, 1).PID
	eventually(t, "the family is complete", func() bool { return len(members(t, pid, os.Geteuid())) == 3 })
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the runner is gone", func() bool { return state(t, e, ref) == scheduler.EngineGone })
	if err := newEngine(t, dir, "family").Stop(context.Background(), ref); err != nil {
		t.Fatal(err)
	}
	if f := members(t, pid, os.Geteuid()); len(f) != 0 {
		t.Fatalf("left: %v", f)
	}
}

func TestNobodyElseIsEnded(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	e := newEngine(t, t.TempDir(), "waits")
	st, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]ref{
		"number given away": {PID: cmd.Process.Pid, Start: st.start - 1, Boot: e.boot, Dir: "x"},
		"before a reboot":   {PID: cmd.Process.Pid, Start: st.start, Boot: "another", Dir: "x"},
		"never recorded":    {PID: cmd.Process.Pid, Boot: e.boot, Dir: "x"},
		"init":              {PID: 1, Start: 1, Boot: e.boot, Dir: "x"},
		"none":              {Boot: e.boot, Dir: "x"},
	} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if s := state(t, e, b); s != scheduler.EngineGone {
			t.Errorf("%s: state %d", name, s)
		}
		if err := e.Stop(context.Background(), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st, err := readStat(cmd.Process.Pid); err != nil || st.dead() {
		t.Fatal("a stranger was ended")
	}
	if _, err := e.State(context.Background(), json.RawMessage(`{"pid":`)); err == nil {
		t.Error("a broken reference was taken")
	}
	// A process that only has the right words is not the runner.
	if _, _, ok := e.find(scheduler.Attempt{Session: session, Generation: 1}); ok {
		t.Error("found a runner that is none")
	}
}

func TestLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, dir, "chatty")
	ref := start(t, e, 1)
	hear(t, dir, 1)
	log := filepath.Join(dir, session+"-g1", logName)
	if fi, err := os.Stat(log); err != nil || fi.Size() <= maxLogBytes {
		t.Fatalf("the log has %v bytes (%v); this test needs more", fi.Size(), err)
	}
	state(t, e, ref)
	fi, err := os.Stat(log)
	old, err2 := os.Stat(log + ".1")
	if err != nil || err2 != nil || fi.Size() != 0 || old.Size() != maxLogBytes/2 {
		t.Fatalf("log %d bytes, old log %d (%v, %v)", fi.Size(), old.Size(), err, err2)
	}
}

func TestOldDirectoriesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, dir, "waits")
	start(t, e, 1)
	pid := hear(t, dir, 1).PID
	if err := os.MkdirAll(filepath.Join(dir, "oldoldoldo-g1", "spool"), 0o700); err != nil {
		t.Fatal(err)
	}
	clock := proc.NewFake(time.Now().Add(73 * time.Hour))
	e.o.Clock = clock
	start(t, e, 2)
	if _, err := os.Stat(filepath.Join(dir, "oldoldoldo-g1")); !os.IsNotExist(err) {
		t.Errorf("the old directory stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, session+"-g1", refName)); err != nil {
		t.Errorf("the directory of runner %d, which lives, was removed: %v", pid, err)
	}
	e.o.Clock = proc.System()
}

func TestStatOfOddNames(t *testing.T) {
	line := "42 (a ) R (x) Z) S 1 7 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 " + strconv.Itoa(987654) + " 1 2\n"
	st, err := parseStat([]byte(line))
	if err != nil || st.state != 'S' || st.session != 42 || st.start != 987654 {
		t.Fatalf("got %+v, %v", st, err)
	}
	for _, bad := range []string{"", "42", "42 (x)", "42 (x) S 1 2", "42 (x) S 1 2 x 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9 1"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}

func TestEngineRefuses(t *testing.T) {
	if _, err := New(Options{Binary: "x"}); err == nil {
		t.Error("half of the options were enough")
	}
	e := newEngine(t, t.TempDir(), "waits")
	for _, a := range []scheduler.Attempt{{Session: "../x", Generation: 1}, {Session: session}, {Session: "", Generation: 1}} {
		if _, err := e.Start(context.Background(), a); err == nil {
			t.Errorf("started %+v", a)
		}
	}
	e.o.Binary = "/nonexistent/inspect"
	if _, err := e.Start(context.Background(), scheduler.Attempt{Session: session, Generation: 1}); err == nil {
		t.Error("started a program that is not there")
	}
}

// apart is an engine with two accounts for runners, 60650 and 60651, and its directory.
func apart(t *testing.T, how string) (*Engine, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start processes of other accounts")
	}
	dir, err := os.MkdirTemp("", "inspect-local")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "runner")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(dir, "spool")
	e, err := New(Options{Binary: bin, ControlURL: "http://127.0.0.1:1", NodeSocket: "/run/node.sock", Dir: spool, UID: 60650, UIDs: 2, Grace: 300 * time.Millisecond, Args: []string{how}})
	if err != nil {
		t.Fatal(err)
	}
	return e, spool
}

// accountsProcesses are the living ones of an account.
func accountsProcesses(t *testing.T, uid int) []int {
	t.Helper()
	_, all, err := processes(0, uid)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A runner cannot leave anything behind by leaving its process session, and the
// next runner of the same account is not taken for it.
func TestStopEndsWhatLeftTheProcessSession(t *testing.T) {
	for name, killed := range map[string]bool{"runs": false, "was killed": true} {
		t.Run(name, func(t *testing.T) {
			e, spool := apart(t, "escapes")
			ref := start(t, e, 1)
			pid := hear(t, spool, 1).PID
			eventually(t, "the runner's child has left", func() bool {
				return len(accountsProcesses(t, 60650)) == 2 && len(members(t, pid, 60650)) == 1
			})
			if killed {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the runner is gone", func() bool { return state(t, e, ref) == scheduler.EngineGone })
			}
			if err := e.Stop(context.Background(), ref); err != nil {
				t.Fatal(err)
			}
			if left := accountsProcesses(t, 60650); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			eventually(t, "the account is free", func() bool { uid, _ := e.account(); return uid == 60650 })
			start(t, e, 2)
			if uid, ok := e.RunsAs(session, 2); !ok || uid != 60650 {
				t.Fatalf("the next runner is %d, %v", uid, ok)
			}
			for _, e := range []*Engine{e, newEngine(t, spool, "escapes")} {
				if err := e.Stop(context.Background(), ref); err != nil {
					t.Fatal(err)
				}
				if _, ok := e.RunsAs(session, 2); !ok {
					t.Fatal("the end of one runner was that of the next")
				}
			}
		})
	}
}

// Once a runner is over, its number is soon another's, and so may be that of a
// process session whose first process has ended.
func TestAStrangersSessionIsNotEnded(t *testing.T) {
	e, spool := apart(t, "waits")
	for name, c := range map[string]struct {
		owner int
		ended bool
	}{"of another account": {60652, false}, "of the same, after the end was seen": {60650, true}} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/bin/sh", "-c", "sleep 600 & read line")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(c.owner), Gid: uint32(c.owner)}}
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			eventually(t, "the stranger has a child", func() bool { return len(members(t, pid, c.owner)) == 2 })
			in.Close()
			_ = cmd.Wait() // read has found no line
			child := members(t, pid, c.owner)
			if len(child) != 1 {
				t.Fatalf("the stranger's are %v", child)
			}
			defer syscall.Kill(child[0], syscall.SIGKILL)
			r := ref{PID: pid, Start: 1, Boot: e.boot, Dir: session + "-g7", UID: 60650}
			if err := os.MkdirAll(filepath.Join(spool, r.Dir), 0o711); err != nil {
				t.Fatal(err)
			}
			stored := r
			stored.Ended = c.ended
			if _, err := e.write(stored); err != nil {
				t.Fatal(err)
			}
			b, _ := json.Marshal(r)
			if err := e.Stop(context.Background(), b); err != nil {
				t.Fatal(err)
			}
			e.StopAll(context.Background())
			if left := members(t, pid, c.owner); len(left) != 1 {
				t.Error("a stranger was ended")
			}
			if r, ok := e.stored(r.Dir); !ok || !r.Ended {
				t.Errorf("the end is not recorded: %+v", r)
			}
			if again, ok := e.Find(session, 7); !ok || string(again) != string(b) {
				t.Errorf("the reference is now %s", again)
			}
		})
	}
}

// A runner that calls itself another's is not taken for it, also when that is
// just being started.
func TestARunnerCannotBeAnothers(t *testing.T) {
	e, spool := apart(t, "waits")
	cmd := exec.Command(e.o.Binary, "runner", "--session", session, "--generation", "5", "--spool", t.TempDir(), "waits")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: 60651, Gid: 60651}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	attempt := scheduler.Attempt{Session: session, Generation: 5}
	if pid, _, ok := e.find(attempt); ok {
		t.Errorf("process %d was taken for a runner that nobody started", pid)
	}
	own := filepath.Join(spool, session+"-g5", ownName)
	if err := errors.Join(os.MkdirAll(own, 0o711), os.Chown(own, 60650, 60650)); err != nil {
		t.Fatal(err)
	}
	if pid, _, ok := e.find(attempt); ok {
		t.Errorf("process %d was taken for another account's runner", pid)
	}
	if err := os.RemoveAll(own); err != nil { // which keeps the last account from others
		t.Fatal(err)
	}
	eventually(t, "an account is free", func() bool { _, err := e.account(); return err == nil })
	var r ref
	if err := json.Unmarshal(start(t, e, 5), &r); err != nil || r.PID == cmd.Process.Pid {
		t.Errorf("the runner is %+v, %v", r, err)
	}
}

// While old directories are removed, which may take long, runners are known.
func TestRemovingHoldsNobodyUp(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(t, dir, "waits")
	start(t, e, 1)
	if err := os.MkdirAll(filepath.Join(dir, "oldoldoldo-g1"), 0o700); err != nil {
		t.Fatal(err)
	}
	e.o.Clock = proc.NewFake(time.Now().Add(73 * time.Hour))
	removing, proceed, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	e.remove = func(dir string) error {
		close(removing)
		<-proceed
		return os.RemoveAll(dir)
	}
	go func() {
		defer close(done)
		if _, err := e.Start(context.Background(), scheduler.Attempt{Session: session, Generation: 2}); err != nil {
			t.Error(err)
		}
	}()
	<-removing
	known := make(chan bool)
	go func() {
		_, ok := e.RunsAs(session, 1)
		known <- ok
	}()
	select {
	case ok := <-known:
		if !ok {
			t.Error("the runner is not known")
		}
	case <-time.After(10 * time.Second):
		t.Error("the removal holds up who asks for a runner")
		defer func() { <-known }()
	}
	close(proceed)
	<-done
	e.o.Clock = proc.System()
	start(t, e, 2) // to be ended
	if left, _ := filepath.Glob(filepath.Join(dir, "*old*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Runners of living attempts are different accounts, none of which can read
// another's files or put anything in the place of our record of it; each is
// known by its account as long as it lives.
func TestEachRunnerIsAnAccountOfItsOwn(t *testing.T) {
	e, spool := apart(t, "waits")
	refs := []json.RawMessage{start(t, e, 1), start(t, e, 2)}
	uids := map[int]bool{}
	for g := 1; g <= 2; g++ {
		pid := hear(t, spool, g).PID
		uid, ok := e.RunsAs(session, g)
		if !ok || uid != ownerOf(pid) || uid < 60650 || uid > 60651 {
			t.Errorf("runner %d runs as %d, it is said %d, %v", g, ownerOf(pid), uid, ok)
		}
		uids[uid] = true
		body, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Groups:\t \n"} {
			if !strings.Contains(string(body), want) {
				t.Errorf("runner %d: no %q in\n%s", g, want, body)
			}
		}
		for name, mode := range map[string]os.FileMode{"": 0o711, refName: 0o600, logName: 0o600} {
			fi, err := os.Stat(filepath.Join(spool, fmt.Sprintf("%s-g%d", session, g), name))
			if err != nil || fi.Mode().Perm() != mode || fi.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("%q of runner %d: %v, %v", name, g, fi, err)
			}
		}
		own, err := os.Stat(filepath.Join(spool, fmt.Sprintf("%s-g%d", session, g), ownName))
		if err != nil || own.Mode().Perm() != 0o700 || int(own.Sys().(*syscall.Stat_t).Uid) != uid {
			t.Errorf("what is runner %d's own: %v, %v", g, own, err)
		}
	}
	if len(uids) != 2 {
		t.Errorf("two runners are %v", uids)
	}
	if _, err := e.Start(context.Background(), scheduler.Attempt{Session: session, Generation: 3}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a third runner of two accounts: %v", err)
	}
	if err := e.Stop(context.Background(), refs[0]); err != nil {
		t.Fatal(err)
	}
	if uid, ok := e.RunsAs(session, 1); ok {
		t.Errorf("a runner that has ended still runs as %d", uid)
	}
	start(t, e, 3)
	// A record that a runner could have written names any process it likes.
	forged := filepath.Join(spool, session+"-g9")
	if err := errors.Join(os.Mkdir(forged, 0o711), os.WriteFile(filepath.Join(forged, refName), refs[1], 0o600), os.Chown(forged, 60651, 60651)); err != nil {
		t.Fatal(err)
	}
	if ref, ok := e.Find(session, 9); ok {
		t.Errorf("a forged record is believed: %s", ref)
	}
	if again, ok := newEngine(t, spool, "waits").Find(session, 2); !ok || string(again) != string(refs[1]) {
		t.Errorf("found %s, %v", again, ok)
	}
}
