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
	"strconv"
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
	UID   int    `json:"uid"`   // whom it runs as
}

const (
	// The environment of a runner holds this and nothing else.
	runnerPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	logName    = "runner.log"
	refName    = "engine.json"
	ownName    = "own" // all of an attempt's directory that is the runner's own
	spoolName  = "spool"
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
	return &Engine{o: o, boot: string(boot), children: map[int]bool{}}, nil
}

// Name implements scheduler.Engine.
func (e *Engine) Name() string { return "local" }

var sessionForm = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// Start begins an attempt, or finds the one it began before.
func (e *Engine) Start(ctx context.Context, a scheduler.Attempt) (json.RawMessage, error) {
	if !sessionForm.MatchString(a.Session) || a.Generation < 1 {
		return nil, fmt.Errorf("attempt %d of session %q cannot be run", a.Generation, a.Session)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.prune()
	name := nameOf(a.Session, a.Generation)
	if r, ok := e.stored(name); ok {
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

// stored reads the record of an attempt that was started before. One in a
// directory that is not ours would be what somebody else says.
func (e *Engine) stored(name string) (ref, bool) {
	var r ref
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(e.o.Dir, name), &st); err != nil || int(st.Uid) != os.Geteuid() {
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
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(e.o.Dir, name, refName)
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

// State says whether a runner, or anything it left in its process session,
// still lives.
func (e *Engine) State(_ context.Context, stored json.RawMessage) (scheduler.EngineState, error) {
	var r ref
	if err := json.Unmarshal(stored, &r); err != nil {
		return scheduler.EngineUnknown, fmt.Errorf("what the runner runs as cannot be read: %w", err)
	}
	boundLog(filepath.Join(e.o.Dir, filepath.Base(r.Dir), logName))
	live, err := e.living(r)
	switch {
	case err != nil:
		return scheduler.EngineUnknown, err
	case len(live) > 0 && live[0] == r.PID:
		return scheduler.EngineRunning, nil
	}
	// What a dead runner left will not report; Stop clears it away.
	return scheduler.EngineGone, nil
}

// Stop ends a runner and its whole process session, and removes its spool.
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
	asked := false
	for {
		live, err := e.living(r)
		if err != nil {
			return err
		}
		if len(live) == 0 {
			return nil
		}
		switch waited := e.o.Clock.Now().Sub(start); {
		case !asked && live[0] == r.PID:
			_ = syscall.Kill(r.PID, syscall.SIGTERM)
			asked = true
		case live[0] != r.PID || waited >= e.o.Grace:
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

// living lists the living processes of a runner's process session, the runner
// itself first.
//
// The kernel does not give a number away while a session bears it, so members
// of session PID are ours unless PID itself is another process by now.
func (e *Engine) living(r ref) ([]int, error) {
	if r.Boot != e.boot || r.PID <= 1 || r.Start == 0 {
		return nil, nil
	}
	e.wait(r.PID)
	leader, err := readStat(r.PID)
	if err == nil && leader.start != r.Start {
		return nil, nil // the number was given away: the session is over
	}
	var live []int
	if err == nil && !leader.dead() {
		live = append(live, r.PID)
	}
	others, err := sessionMembers(r.PID)
	if err != nil {
		return nil, err
	}
	return append(live, others...), nil
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

// prune removes directories of attempts that ended long ago.
func (e *Engine) prune() {
	entries, err := os.ReadDir(e.o.Dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || e.o.Clock.Now().Sub(info.ModTime()) < e.o.Keep {
			continue
		}
		if r, ok := e.stored(entry.Name()); ok && r.Boot == e.boot {
			if st, err := readStat(r.PID); err == nil && st.start == r.Start && !st.dead() {
				continue
			}
		}
		_ = os.RemoveAll(filepath.Join(e.o.Dir, entry.Name()))
	}
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
