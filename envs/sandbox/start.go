package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/forward"
	"inspect/envs/sandbox/inside"
)

// openFiles is the limit of open files of a process inside, or the host's
// limit if that is less.
const openFiles = 65536

// Start starts a sandbox and returns when its init serves. It is no child of
// the caller's in any way that matters: it goes on when the caller ends, until
// its control stream is closed or Reap is called. The error wraps ErrRunning
// or ErrIsolation where that is the reason, and says what bubblewrap said.
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
		return nil, fmt.Errorf("the inspect binary: %w; move it, or set a run directory", err)
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
	box := &Sandbox{l: l, id: s.ID, spec: s, done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, box.abandon())
			l.release(s.ID)
		}
	}()
	if l.groups != nil {
		g := l.groups.group(s.ID)
		if err := g.create(ctx, s.Limits); err != nil {
			return nil, err
		}
		box.group = g
	} else if l.Alive(s.ID) {
		return nil, ErrRunning
	}

	ready, err := l.spawn(box, s, uid, gid)
	if err != nil {
		return nil, err
	}
	if err := box.awaitReady(ctx, ready, uid); err != nil {
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

// readyPipes are what a starting sandbox reports on.
type readyPipes struct {
	ready, info *os.File
}

// spawn starts bubblewrap, as root through Enter. What it starts shares no
// descriptor with us but those named here, no environment and no terminal.
func (l *Launcher) spawn(box *Sandbox, s Spec, uid, gid int) (*readyPipes, error) {
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer readyW.Close()
	p := &readyPipes{ready: readyR}
	infoR, infoW, err := os.Pipe()
	if err != nil {
		readyR.Close()
		return nil, err
	}
	p.info = infoR
	errR, errW, err := os.Pipe()
	if err != nil {
		readyR.Close()
		infoR.Close()
		infoW.Close()
		return nil, err
	}
	defer errW.Close()

	a := &argFiles{files: []*os.File{s.Control}} // descriptor 3
	l.options(a, s, infoW)
	argsFD := a.data(encode(a.args))
	defer func() {
		for _, f := range a.files[1:] {
			f.Close()
		}
	}()
	if a.err != nil {
		readyR.Close()
		infoR.Close()
		errR.Close()
		return nil, a.err
	}

	argv := []string{l.bwrap, "--args", argsFD, "--", InitPath, "sandbox-init", "--control", "3",
		"--nofile", strconv.Itoa(openFiles)}
	if d := s.Limits.DiskBytes; d > 0 {
		argv = append(argv, "--fsize", strconv.FormatInt(d, 10))
	}
	if l.groups == nil && s.Limits.Pids > 0 && countsPerNamespace() {
		argv = append(argv, "--nproc", strconv.FormatInt(s.Limits.Pids+inside.ReservedPids, 10))
	}
	for _, f := range s.Forwards {
		argv = append(argv, "--forward", forward.Way{Port: f.Port, Socket: f.inside(), Named: f.Named}.String())
	}
	program := l.bwrap
	if l.root {
		program = l.executable()
		enter := []string{l.binary, enterWord, "--uid", strconv.Itoa(uid), "--gid", strconv.Itoa(gid)}
		if box.group != nil {
			for _, f := range box.group.procs() {
				enter = append(enter, "--procs", f)
			}
		}
		argv = append(append(enter, "--"), argv...)
	}
	cmd := &exec.Cmd{
		Path: program, Args: argv, Dir: "/", Env: []string{},
		Stdout: readyW, Stderr: errW, ExtraFiles: a.files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		readyR.Close()
		infoR.Close()
		errR.Close()
		return nil, fmt.Errorf("execute %s: %w", program, err)
	}
	box.begin(cmd, errR)
	return p, nil
}

// awaitReady waits for the init's word and checks from outside that the
// sandbox is what was asked for.
func (box *Sandbox) awaitReady(ctx context.Context, p *readyPipes, uid int) error {
	defer p.ready.Close()
	defer p.info.Close()
	ctx, cancel := proc.WithTimeout(ctx, proc.System(), startTimeout)
	defer cancel()
	// The pipes close by themselves when everything that was started is gone.
	stop := context.AfterFunc(ctx, func() {
		_ = p.ready.SetReadDeadline(time.Unix(1, 0))
		_ = p.info.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()
	var info struct {
		Child int `json:"child-pid"`
	}
	b, err := io.ReadAll(io.LimitReader(p.info, 4<<10))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("it did not stand in time: %w", context.Cause(ctx))
	case err != nil || len(b) == 0:
		return box.startFailed()
	}
	if err := json.Unmarshal(b, &info); err != nil || info.Child <= 1 {
		return fmt.Errorf("bubblewrap did not say which process its init is: %q", b)
	}
	fd, err := unix.PidfdOpen(info.Child, 0)
	if err != nil {
		return box.startFailed()
	}
	box.mu.Lock()
	box.pid, box.pidfd = info.Child, os.NewFile(uintptr(fd), "pidfd")
	box.mu.Unlock()

	word := make([]byte, len(inside.Ready))
	_, err = io.ReadFull(p.ready, word)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("it did not stand in time: %w", context.Cause(ctx))
	case err != nil || string(word) != inside.Ready:
		return box.startFailed()
	}
	return verify(info.Child, uid)
}

// verify reads, from outside, what the kernel says about the init.
func verify(pid, uid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return fmt.Errorf("look at the sandbox's init: %w", err)
	}
	id := strconv.Itoa(uid)
	want := map[string]string{
		"Uid:":        strings.Join([]string{id, id, id, id}, " "),
		"CapEff:":     "0000000000000000",
		"CapPrm:":     "0000000000000000",
		"CapBnd:":     "0000000000000000",
		"NoNewPrivs:": "1",
		"Seccomp:":    "2",
	}
	if uid == 0 {
		return fmt.Errorf("%w: its owner outside would be root", ErrIsolation)
	}
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
	if strings.Contains(said, "Unknown option") {
		return fmt.Errorf("%w: this bubblewrap is too old, 0.8.0 is needed (%s)", ErrIsolation, said)
	}
	return errors.New(said)
}

// countsPerNamespace reports whether RLIMIT_NPROC counts the processes of one
// user namespace and not those of the user's whole machine (Linux 5.14).
func countsPerNamespace() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 14
}
