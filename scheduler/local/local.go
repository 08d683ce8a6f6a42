// Package local is the engine that runs attempts as processes of this machine:
// one runner for each attempt, in its own process session, so that it outlives
// a restart of the control plane and is found again. In come attempts with
// their one-time secret; out goes whether a runner still lives. What came of
// the work is said by the runner itself, to the control plane.
package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/scheduler"
)

// Options of an Engine.
type Options struct {
	Binary     string // the inspect binary
	ControlURL string // base address of the machines' API
	NodeSocket string // the node daemon's socket
	// Dir holds one directory for each attempt: the runner's spool, its log, and
	// what it runs as.
	Dir string
	// UID is whom runners run as, where this process is root; 0: ourselves.
	UID int
	// UIDs, if more than one, is how many accounts from UID on there are for
	// runners: of those that live no two are the same.
	UIDs int
	// Grace is what a runner gets between SIGTERM and SIGKILL; zero: 5 s.
	Grace time.Duration
	// Keep is how long the directory of an attempt stays after its end, for its
	// log; zero: 72 h.
	Keep  time.Duration
	Args  []string   // further arguments for the runner
	Clock proc.Clock // zero: the machine's
	Log   *slog.Logger
}

// Engine runs attempts on this machine. It implements scheduler.Engine.
type Engine struct {
	o    Options
	boot string

	remove func(dir string) error // os.RemoveAll, but in tests

	mu       sync.Mutex
	children map[int]bool // started by this process and not waited for yet
}

var _ scheduler.Engine = (*Engine)(nil)

// ref is what is stored to find a runner again.
type ref struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/PID/stat
	Boot  string `json:"boot"`  // the kernel's boot id: after a reboot nothing lives
	Dir   string `json:"dir"`   // the attempt's, below Options.Dir
	UID   int    `json:"uid"`   // whom it runs as; 0: ourselves
	// Ended is set in the record, and only there, once nothing of it lived: from
	// then on its numbers may be anybody's.
	Ended bool `json:"ended,omitempty"`
	// Forgotten is set there once nobody is to hear of it any more. Its log stays
	// for who looks at the machine.
	Forgotten bool `json:"forgotten,omitempty"`
}

const (
	// The environment of a runner holds this and nothing else.
	runnerPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	logName    = "runner.log"
	refName    = "engine.json"
	ownName    = "own" // all of an attempt's directory that is the runner's own
	spoolName  = "spool"
	goneMark   = ".gone-" // begins the name of a directory that is being removed
	// A log that is larger is moved aside, and begun anew, at the next look.
	maxLogBytes = 1 << 20
)

// New returns an engine. Nothing runs until an attempt is started.
func New(o Options) (*Engine, error) {
	for what, v := range map[string]string{"binary": o.Binary, "control address": o.ControlURL, "node socket": o.NodeSocket, "directory": o.Dir} {
		if v == "" {
			return nil, fmt.Errorf("the local engine needs a %s", what)
		}
	}
	var err error
	for _, p := range []*string{&o.Binary, &o.NodeSocket, &o.Dir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return nil, err
		}
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Grace, o.Keep = cmp.Or(o.Grace, 5*time.Second), cmp.Or(o.Keep, 72*time.Hour)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("the local engine needs Linux' /proc: %w", err)
	}
	// Runners of another uid pass through it; each attempt's directory is closed.
	if err := os.MkdirAll(o.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("making the runners' directory: %w", err)
	}
	return &Engine{o: o, boot: string(boot), remove: os.RemoveAll, children: map[int]bool{}}, nil
}

// Name implements scheduler.Engine.
func (e *Engine) Name() string { return "local" }

var sessionForm = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// Start begins an attempt, or finds the one it began before.
func (e *Engine) Start(ctx context.Context, a scheduler.Attempt) (json.RawMessage, error) {
	if !sessionForm.MatchString(a.Session) || a.Generation < 1 {
		return nil, fmt.Errorf("attempt %d of session %q cannot be run", a.Generation, a.Session)
	}
	e.prune()
	e.mu.Lock()
	defer e.mu.Unlock()
	unlock, err := e.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	name := nameOf(a.Session, a.Generation)
	if r, ok := e.stored(name); ok {
		r.Ended = false
		return json.Marshal(r)
	}
	// Between a start and its record there is a moment in which we may have died.
	if pid, uid, ok := e.find(a); ok {
		return e.record(name, pid, uid)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	uid, err := e.account()
	if err != nil {
		return nil, err
	}
	pid, err := e.spawn(a, name, uid)
	if err != nil {
		return nil, fmt.Errorf("starting the runner of session %s: %w", a.Session, err)
	}
	e.children[pid] = true
	return e.record(name, pid, uid)
}

// lock keeps another process with an engine of the same directory from starting
// anything, such as a control plane that has not quite ended.
func (e *Engine) lock() (unlock func(), err error) {
	dir, err := os.Open(e.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("locking the runners' directory: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("locking the runners' directory: %w", err)
	}
	return func() { _ = dir.Close() }, nil
}

func nameOf(session string, generation int) string { return fmt.Sprintf("%s-g%d", session, generation) }

// Find returns the reference of an attempt that was started here, running or not.
func (e *Engine) Find(session string, generation int) (json.RawMessage, bool) {
	if !sessionForm.MatchString(session) || generation < 1 {
		return nil, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.stored(nameOf(session, generation))
	if !ok {
		return nil, false
	}
	r.Ended = false
	b, err := json.Marshal(r)
	return b, err == nil
}

// RunsAs says whom the living runner of an attempt runs as.
func (e *Engine) RunsAs(session string, generation int) (uid int, ok bool) {
	if !sessionForm.MatchString(session) || generation < 1 {
		return 0, false
	}
	e.mu.Lock() // one that is just being started has its record then
	r, ok := e.stored(nameOf(session, generation))
	e.mu.Unlock()
	if !ok || r.Boot != e.boot {
		return 0, false
	}
	st, err := readStat(r.PID)
	return r.UID, err == nil && st.start == r.Start && !st.dead()
}

// account is whom the next runner runs as: nobody whose process lives, and
// nobody to whom a spool still belongs, which the next could read.
func (e *Engine) account() (int, error) {
	if e.o.UIDs <= 1 {
		return e.o.UID, nil
	}
	all, err := pids()
	if err != nil {
		return 0, err
	}
	used := map[int]bool{}
	for _, pid := range all {
		used[ownerOf(pid)] = true
	}
	left, err := filepath.Glob(filepath.Join(e.o.Dir, "*", ownName))
	if err != nil {
		return 0, err
	}
	for _, dir := range left {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err == nil {
			used[int(st.Uid)] = true
		}
	}
	for uid := e.o.UID; uid < e.o.UID+e.o.UIDs; uid++ {
		if !used[uid] {
			return uid, nil
		}
	}
	return 0, fmt.Errorf("all %d accounts for runners, from %d on, are in use", e.o.UIDs, e.o.UID)
}

// holder is whom an attempt's own directory belongs to: the account that its
// runner has, or is just being started with. As long as the directory is there,
// account gives it to no other.
func (e *Engine) holder(name string) (uid int, ok bool) {
	var own unix.Stat_t
	if !e.ours(name) || unix.Lstat(filepath.Join(e.o.Dir, name, ownName), &own) != nil {
		return 0, false
	}
	return int(own.Uid), true
}

// ours says whether an attempt's directory is. What is in another's would be
// what somebody else says.
func (e *Engine) ours(name string) bool {
	var st unix.Stat_t
	return unix.Lstat(filepath.Join(e.o.Dir, name), &st) == nil && int(st.Uid) == os.Geteuid()
}

// stored reads the record of an attempt that was started before.
func (e *Engine) stored(name string) (ref, bool) {
	var r ref
	if !e.ours(name) {
		return r, false
	}
	b, err := os.ReadFile(filepath.Join(e.o.Dir, name, refName))
	return r, err == nil && json.Unmarshal(b, &r) == nil && r.PID > 0
}

func (e *Engine) record(name string, pid, uid int) (json.RawMessage, error) {
	st, err := readStat(pid)
	r := ref{PID: pid, Boot: e.boot, Dir: name, UID: uid}
	if err == nil { // else it is over already, and State will say so
		r.Start = st.start
	}
	return e.write(r)
}

func (e *Engine) write(r ref) (json.RawMessage, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(e.o.Dir, r.Dir, refName)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return nil, fmt.Errorf("recording what the runner runs as: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, fmt.Errorf("recording what the runner runs as: %w", err)
	}
	return b, nil
}

func (e *Engine) spawn(a scheduler.Attempt, name string, uid int) (int, error) {
	// The log and the record are ours and not the runner's: it must not be able
	// to put anything in their place.
	dir := filepath.Join(e.o.Dir, name)
	own := filepath.Join(dir, ownName)
	mode := os.FileMode(0o700)
	if uid != 0 {
		mode = 0o711
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(own, 0o700); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(filepath.Join(dir, logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	attr := &syscall.SysProcAttr{Setsid: true}
	if uid != 0 {
		if err := errors.Join(os.Chmod(dir, mode), os.Lchown(own, uid, uid)); err != nil {
			return 0, err
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}}
	}
	// The secret goes through a pipe that is filled before the runner reads; it
	// is far smaller than what a pipe holds.
	in, out, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if _, err := io.WriteString(out, a.Secret+"\n"); err != nil {
		_ = out.Close()
		return 0, err
	}
	_ = out.Close()
	cmd := exec.Command(e.o.Binary, append([]string{"runner",
		"--control", e.o.ControlURL, "--session", a.Session, "--generation", strconv.Itoa(a.Generation),
		"--node-socket", e.o.NodeSocket, "--spool", filepath.Join(own, spoolName)}, e.o.Args...)...)
	cmd.Dir, cmd.Env = own, []string{runnerPath}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, log, log
	cmd.SysProcAttr = attr
	if err := proc.StartBare(cmd); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	// It is waited for by State and Stop, without a goroutine that would keep
	// this process from ending while the runner lives on.
	_ = cmd.Process.Release()
	e.o.Log.Info("a runner has started", "session", a.Session, "generation", a.Generation, "pid", pid)
	return pid, nil
}

// State says whether a runner still lives.
func (e *Engine) State(_ context.Context, stored json.RawMessage) (scheduler.EngineState, error) {
	var r ref
	if err := json.Unmarshal(stored, &r); err != nil {
		return scheduler.EngineUnknown, fmt.Errorf("what the runner runs as cannot be read: %w", err)
	}
	boundLog(filepath.Join(e.o.Dir, filepath.Base(r.Dir), logName))
	leads, _, err := e.living(r)
	switch {
	case err != nil:
		return scheduler.EngineUnknown, err
	case leads:
		return scheduler.EngineRunning, nil
	}
	// What a dead runner left will not report; Stop clears it away.
	return scheduler.EngineGone, nil
}

// Stop ends a runner, its whole process session and, if it has an account of its
// own, every process of that, and removes its spool.
func (e *Engine) Stop(ctx context.Context, stored json.RawMessage) error {
	var r ref
	if err := json.Unmarshal(stored, &r); err != nil {
		return fmt.Errorf("what the runner runs as cannot be read: %w", err)
	}
	if err := e.end(ctx, r); err != nil {
		return fmt.Errorf("ending process %d: %w", r.PID, err)
	}
	dir := filepath.Join(e.o.Dir, filepath.Base(r.Dir))
	boundLog(filepath.Join(dir, logName))
	if err := os.RemoveAll(filepath.Join(dir, ownName)); err != nil {
		e.o.Log.Warn("a runner's spool stays for now", "directory", dir, "error", err)
	}
	return nil
}

var errAlive = errors.New("it lives on after SIGKILL")

func (e *Engine) end(ctx context.Context, r ref) error {
	const look = 20 * time.Millisecond
	start, killed := e.o.Clock.Now(), 0
	asked, swept := false, false
	for {
		leads, live, err := e.living(r)
		if err != nil {
			return err
		}
		if len(live) == 0 {
			// A list is not made at one moment: who forks and ends all the time may
			// be missed by it.
			if !swept {
				if err := e.sweep(ctx, r); err != nil {
					return err
				}
				swept = true
				continue
			}
			e.seal(r)
			return nil
		}
		switch waited := e.o.Clock.Now().Sub(start); {
		case !asked && leads:
			_ = syscall.Kill(r.PID, syscall.SIGTERM)
			asked = true
		case !leads || waited >= e.o.Grace:
			// The leader is gone or had its time; the rest gets none.
			for _, pid := range live {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			if killed++; killed > 250 {
				return errAlive
			}
		}
		if err := proc.Sleep(ctx, e.o.Clock, look); err != nil {
			return err
		}
	}
}

// living lists the living processes of a runner: those of its process session,
// and all of its account, where each runner has its own. leads says whether the
// runner itself is among them.
//
// The kernel does not give a number away while a session bears it. But once all
// of a session has ended the number may be a stranger's, or that of a session
// whose first process has ended too. So members of another account are none of
// ours, and what has been seen to be over is not looked for again.
func (e *Engine) living(r ref) (leads bool, live []int, err error) {
	if r.Boot != e.boot || r.PID <= 1 || r.Start == 0 {
		return false, nil, nil
	}
	if record, ok := e.stored(filepath.Base(r.Dir)); ok && record.Ended {
		return false, nil, nil
	}
	e.wait(r.PID)
	leader, err := readStat(r.PID)
	given := err == nil && leader.start != r.Start // the session is over
	uid := cmp.Or(r.UID, os.Geteuid())
	session, account, err := processes(r.PID, uid)
	if err != nil {
		return false, nil, err
	}
	if !given {
		live = session
	}
	// Asked for after the processes: whoever was seen before it let go is its own.
	if e.alone(r) {
		live = account
	}
	return !given && slices.Contains(live, r.PID), live, nil
}

// alone says whether a runner's account is its own and nobody else's.
func (e *Engine) alone(r ref) bool {
	holder, held := e.holder(filepath.Base(r.Dir))
	return e.o.UIDs > 1 && r.UID != 0 && held && holder == r.UID
}

// sweep kills all of a runner's own account at one moment, as kill(2) does it for
// the number -1. No runner starts meanwhile, to which the account could go.
func (e *Engine) sweep(ctx context.Context, r ref) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if record, ok := e.stored(filepath.Base(r.Dir)); !ok || record != r || !e.alone(r) || r.Boot != e.boot {
		return nil // over, or not alone
	}
	if _, err := proc.Run(ctx, proc.Command{
		Argv: []string{"/bin/sh", "-c", "kill -KILL -1 2>/dev/null; :"}, Dir: "/",
		Credential: &proc.Credential{UID: r.UID, GID: r.UID},
	}); err != nil {
		return fmt.Errorf("killing all of account %d: %w", r.UID, err)
	}
	return nil
}

// seal records that nothing of a runner lives any more.
func (e *Engine) seal(r ref) {
	if record, ok := e.stored(filepath.Base(r.Dir)); !ok || record != r {
		return
	}
	r.Ended = true
	if _, err := e.write(r); err != nil {
		e.o.Log.Warn("the end of a runner is not recorded", "pid", r.PID, "error", err)
	}
}

// wait takes a dead child's status, so that it does not stay a zombie.
func (e *Engine) wait(pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.children[pid] {
		return
	}
	var status unix.WaitStatus
	if got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); got == pid || errors.Is(err, unix.ECHILD) {
		delete(e.children, pid)
		e.o.Log.Info("a runner has ended", "pid", pid, "status", status.ExitStatus(), "signal", status.Signal())
	}
}

// prune removes directories of attempts that ended long ago. Removing may take
// long and is done without the lock; to be started again an attempt then has a
// directory of its name to make.
func (e *Engine) prune() {
	entries, err := os.ReadDir(e.o.Dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() || !strings.HasPrefix(name, goneMark) && !e.letGo(name) {
			continue
		}
		_ = e.remove(filepath.Join(e.o.Dir, goneMark+strings.TrimPrefix(name, goneMark)))
	}
}

// letGo renames the directory of an attempt that ended long ago, so that it is
// nobody's; false if it stays.
func (e *Engine) letGo(name string) bool {
	if !e.old(name) {
		return false
	}
	r, recorded := e.stored(name)
	if recorded {
		if _, live, err := e.living(r); err != nil || len(live) > 0 {
			return false
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// An attempt without a record may have been started meanwhile.
	return (recorded || e.old(name)) && os.Rename(filepath.Join(e.o.Dir, name), filepath.Join(e.o.Dir, goneMark+name)) == nil
}

// old says whether nothing was put into an attempt's directory for long.
func (e *Engine) old(name string) bool {
	fi, err := os.Lstat(filepath.Join(e.o.Dir, name))
	return err == nil && e.o.Clock.Now().Sub(fi.ModTime()) >= e.o.Keep
}

// boundLog moves a log aside that has become too long. Its writer appends, so
// it goes on in the emptied file.
func boundLog(path string) {
	fi, err := os.Stat(path)
	if err != nil || fi.Size() <= maxLogBytes {
		return
	}
	if f, err := os.Open(path); err == nil {
		defer f.Close()
		if _, err := f.Seek(-maxLogBytes/2, io.SeekEnd); err == nil {
			if out, err := os.OpenFile(path+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600); err == nil {
				_, _ = io.Copy(out, io.LimitReader(f, maxLogBytes/2))
				_ = out.Close()
			}
		}
	}
	_ = os.Truncate(path, 0)
}
