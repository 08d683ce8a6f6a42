package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox/forward"
	"inspect/envs/sandbox/inside"
)

// timerSlack is by how much a timer may be late, in nanoseconds, for gVisor's
// processes; Linux's own is 50 µs. In each of them a thread of the Go runtime
// sleeps for 20 µs as long as there is something to do, which costs a start and
// then each command about an eighth of its processor time.
const timerSlack = "200000"

// openFiles is the limit of open files of a process inside, or the host's
// limit if that is less.
const openFiles = 65536

// Start starts a sandbox and returns when its init serves. It is no child of
// the caller's in any way that matters: it goes on when the caller ends, until
// its control stream is closed or Reap is called. The error wraps ErrRunning
// or ErrIsolation where that is the reason, and says what the
// program of the tier said.
func (l *Launcher) Start(ctx context.Context, s Spec) (*Sandbox, error) {
	if s.Control != nil {
		defer s.Control.Close()
	}
	box, err := l.start(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("start sandbox %s: %w", s.ID, err)
	}
	return box, nil
}

func (l *Launcher) start(ctx context.Context, s Spec) (_ *Sandbox, err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	uid, gid, err := l.credential(s)
	if err != nil {
		return nil, err
	}
	if err := reachable(l.binary, uid, gid, 5); err != nil {
		return nil, fmt.Errorf("the init program: %w; move it, or set a run directory", err)
	}
	if l.tool != "" {
		if err := reachable(l.tool, uid, gid, 5); err != nil {
			return nil, fmt.Errorf("the program that commands can call: %w; move it, or set a run directory", err)
		}
	}
	if s.Root != "" {
		if err := reachable(s.Root, uid, gid, 5); err != nil {
			return nil, fmt.Errorf("the image: %w", err)
		}
	}
	for _, m := range s.Mounts {
		if err := reachable(m.Source, uid, gid, 0); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	for _, f := range s.Forwards {
		if err := reachable(f.Socket, uid, gid, 6); err != nil {
			return nil, fmt.Errorf("the socket that port %d leads to: %w", f.Port, err)
		}
		if st, err := os.Stat(f.Socket); err != nil || st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("port %d cannot lead to %s: it is no socket", f.Port, f.Socket)
		}
	}
	if err := l.claim(s.ID); err != nil {
		return nil, err
	}
	box := &Sandbox{l: l, id: s.ID, spec: s, uid: uid, done: make(chan struct{})}
	if s.Beside != "" {
		if box.beside, err = l.tier.beside(s, uid); err != nil {
			l.release(s.ID)
			return nil, err
		}
		if box.beside != nil {
			defer box.beside.Close()
		}
		if err := l.reserve(s.Beside, inside.ReservedPids); err != nil {
			l.release(s.ID)
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, box.abandon())
			l.release(s.ID)
		}
	}()
	if l.groups != nil && s.Beside == "" {
		g := l.groups.group(s.ID)
		if err := g.create(ctx, l.tier.host(s)); err != nil {
			return nil, err
		}
		box.group = g
	} else if l.Alive(s.ID) {
		return nil, ErrRunning
	}

	st, err := l.spawn(box, gid)
	if err != nil {
		return nil, err
	}
	if err := box.awaitReady(ctx, st); err != nil {
		return nil, err
	}
	if l.groups == nil {
		if err := l.writeMark(s.ID, box.pid); err != nil {
			return nil, err
		}
	}
	go box.watch()
	return box, nil
}

// initArgs are the arguments of the init inside.
func (l *Launcher) initArgs(s Spec) []string {
	args := []string{"sandbox-init", "--control", "3", "--nofile", strconv.Itoa(openFiles)}
	if d := s.Limits.DiskBytes; d > 0 {
		args = append(args, "--fsize", strconv.FormatInt(d, 10))
	}
	for _, f := range s.Forwards {
		args = append(args, "--forward", forward.Way{Port: f.Port, Socket: f.inside(), Named: f.Named}.String())
	}
	return args
}

// starting is a sandbox that does not stand yet.
type starting struct {
	argv  []string
	stdin *os.File   // nil: nothing
	files []*os.File // the program's descriptors from 3 on
	lent  int        // how many of the first ones are not ours to close
	gate  *gate      // nil: the program knows none
	ready *os.File   // the init's word comes here
	heard bool       // and it is the box's now
	info  *os.File   // what bubblewrap says; nil for others
}

// gate is our end of a pipe on which a program waits for a word before it starts
// anything, so that it can be put into its cgroup. Without the word, when this
// process has ended, it starts nothing and ends. (The first version of cgroups
// cannot start a process in a group.)
type gate struct {
	*os.File
	word []byte
}

func newGate(word []byte) (in *os.File, g *gate, err error) {
	r, w, err := os.Pipe()
	return r, &gate{w, word}, err
}

// open lets the program go on. If it has ended, its own words will say why.
func (g *gate) open() {
	_, _ = g.Write(g.word)
	g.Close()
}

// hold gives a program that knows no gate one: a shell that waits and becomes it.
// It gives it and all it starts timerSlack, as far as the machine has that.
func (st *starting) hold() (err error) {
	script := "read -r _ && { { echo " + timerSlack + ` >/proc/self/timerslack_ns; } 2>/dev/null; exec "$@" </dev/null; }`
	st.argv = append([]string{"/bin/sh", "-c", script, "sh"}, st.argv...)
	st.stdin, st.gate, err = newGate([]byte("\n"))
	return err
}

// handed closes what the program has now.
func (st *starting) handed() {
	for _, f := range st.files[st.lent:] {
		f.Close()
	}
	st.files, st.lent = nil, 0
	st.stdin.Close()
}

func (st *starting) close() {
	st.handed()
	if st.gate != nil {
		st.gate.Close()
	}
	if st.ready != nil && !st.heard {
		st.ready.Close()
	}
	if st.info != nil {
		st.info.Close()
	}
}

// word reports whether the init has said its word.
func (st *starting) word() bool {
	word := make([]byte, len(inside.Ready))
	_, err := io.ReadFull(st.ready, word)
	return err == nil && string(word) == inside.Ready
}

// spawn starts the tier's program as the box's user, and lets it go on when it
// is in its cgroup. It shares no descriptor with us but those named here, nothing
// of our environment and no terminal.
func (l *Launcher) spawn(box *Sandbox, gid int) (_ *starting, err error) {
	box.made = true
	st, err := l.tier.prepare(box, gid, l.initArgs(box.spec))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	if st.gate == nil {
		if err := st.hold(); err != nil {
			return nil, err
		}
	}
	var readyW *os.File
	if st.ready, readyW, err = os.Pipe(); err != nil {
		return nil, err
	}
	defer readyW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer errW.Close()
	cmd := &exec.Cmd{
		Path: st.argv[0], Args: st.argv, Dir: "/", Env: []string{},
		Stdout: readyW, Stderr: errW, ExtraFiles: st.files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if st.stdin != nil {
		cmd.Stdin = st.stdin
	}
	if l.root {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(box.uid), Gid: uint32(gid)}
	}
	start := func() error {
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("execute %s: %w", cmd.Path, err)
		}
		return nil
	}
	in := box.group
	if box.spec.Beside != "" && l.groups != nil {
		in = l.groups.group(box.spec.Beside)
	}
	if box.beside == nil {
		err = start()
	} else {
		err = inNetworkOf(box.beside, start)
	}
	if err != nil {
		errR.Close()
		return nil, err
	}
	st.handed()
	if in != nil {
		// Before anybody waits for it: should it have ended, its number is still its own.
		err = in.join(cmd.Process.Pid)
	}
	box.begin(cmd, errR)
	if err != nil {
		return nil, err
	}
	st.gate.open()
	return st, nil
}

// errSilent is the error of a sandbox that ended before its word.
var errSilent = errors.New("it does not stand")

// awaitReady waits for the init's word and checks from outside that the
// sandbox is what was asked for.
func (box *Sandbox) awaitReady(ctx context.Context, st *starting) error {
	defer st.close()
	ctx, cancel := proc.WithTimeout(ctx, proc.System(), startTimeout)
	defer cancel()
	// The pipes close by themselves when everything that was started is gone.
	stop := context.AfterFunc(ctx, func() {
		for _, f := range []*os.File{st.ready, st.info} {
			if f != nil {
				_ = f.SetReadDeadline(time.Unix(1, 0))
			}
		}
	})
	defer stop()
	err := box.l.tier.stand(box, st)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("it did not stand in time: %w", context.Cause(ctx))
	case errors.Is(err, errSilent):
		return box.startFailed()
	}
	return err
}

// verify reads, from outside, what the kernel says about a process of the
// sandbox of uid.
func verify(pid, uid int, want map[string]string) error {
	if uid == 0 {
		return fmt.Errorf("%w: its owner outside would be root", ErrIsolation)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return fmt.Errorf("look at process %d of the sandbox: %w", pid, err)
	}
	id := strconv.Itoa(uid)
	want["Uid:"] = strings.Join([]string{id, id, id, id}, " ")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if w, ok := want[f[0]]; ok {
			if got := strings.Join(f[1:], " "); got != w {
				return fmt.Errorf("%w: %s is %s, not %s", ErrIsolation, f[0], got, w)
			}
			delete(want, f[0])
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("%w: the kernel does not say %v", ErrIsolation, want)
	}
	return nil
}

// startFailed is the error of a sandbox that ended instead of serving.
func (box *Sandbox) startFailed() error {
	<-box.exited
	said := strings.TrimSpace(string(bytes.ToValidUTF8(box.stderr.Bytes(), []byte("?"))))
	if said == "" {
		said = fmt.Sprintf("it ended with status %d and said nothing", box.code)
	}
	if hint := blocked("/proc/sys"); hint != "" {
		return fmt.Errorf("%w: %s (%s)", ErrIsolation, hint, said)
	}
	if err := box.l.tier.refuses(said); err != nil {
		return err
	}
	return errors.New(said)
}
