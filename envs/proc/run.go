package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultLimit is what Run keeps of each output stream when Command.Limit is
// zero, in bytes.
const DefaultLimit = 1 << 20

// DefaultPath is the PATH of a command whose Env is nil.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// drainDelay is how long Run waits for the output pipes after the command and
// its group are dead. Only a process that left the group can hold them longer.
const drainDelay = 2 * time.Second

// ErrNotFound is the error of a program that is not on this machine.
var ErrNotFound = errors.New("program not found")

// Credential is the account a command runs as. Supplementary groups are
// dropped. Only root may set one.
type Credential struct {
	UID, GID int
}

// Command says what to run.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is
	// looked up on PATH (the PATH of Env if it has one).
	Argv []string
	// Dir is the working directory; empty is the caller's.
	Dir string
	// Env is the whole environment. Nothing of the caller's own is ever
	// inherited; nil means PATH=DefaultPath and LANG=C.UTF-8.
	Env []string
	// Stdin is read until its end or until the command ends; nil is empty.
	Stdin io.Reader
	// Stdout and Stderr receive the output as it arrives. Where one is nil,
	// Result keeps the output instead: the first Limit bytes of standard
	// output, the last Limit bytes of standard error.
	Stdout, Stderr io.Writer
	// Limit bounds each stream in bytes: what is kept, and if it is not zero
	// also what is passed on to Stdout and Stderr; the rest is read and
	// dropped. Zero keeps DefaultLimit and passes everything on.
	Limit int64
	// Credential, if not nil, is the account to run as.
	Credential *Credential
	// ExtraFiles become descriptors 3, 4, … of the command.
	ExtraFiles []*os.File
	// Grace is the time between SIGTERM and SIGKILL when the context ends.
	// Zero kills at once.
	Grace time.Duration
	// Clock measures Grace; nil is System().
	Clock Clock
}

// Result is how a command ended.
type Result struct {
	Code      int    // exit status; 128+signal when a signal ended it
	Signal    string // "SIGKILL", …; empty when it exited by itself
	Stdout    []byte // kept output, see Command.Stdout
	Stderr    []byte
	Truncated bool // a stream was longer than its limit
	Duration  time.Duration
}

// ExitError is the error of a command that ran and did not exit with 0.
type ExitError struct {
	Program string
	Result  Result
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("ended with status %d", e.Result.Code)
	if e.Result.Signal != "" {
		how = "was ended by " + e.Result.Signal
	}
	if last := lastLine(e.Result.Stderr); last != "" {
		return fmt.Sprintf("%s %s: %s", e.Program, how, last)
	}
	return e.Program + " " + how
}

// Run runs c and waits for its end. What is left of its process group then has
// been sent SIGKILL, and may take a moment to die of it. The error is nil for exit status 0, an *ExitError for any other, an error
// that is ErrNotFound if there is no such program, and one that wraps the
// context's cause if ctx ended first; Result is filled as far as known in all
// cases.
func Run(ctx context.Context, c Command) (Result, error) {
	var res Result
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return res, errors.New("run: no program was named")
	}
	if err := context.Cause(ctx); err != nil {
		return res, fmt.Errorf("%s was not started: %w", c.Argv[0], err)
	}
	clock := c.Clock
	if clock == nil {
		clock = System()
	}
	env := c.Env
	if env == nil {
		env = []string{"PATH=" + DefaultPath, "LANG=C.UTF-8"}
	}
	path, err := LookPath(c.Argv[0], env)
	if err != nil {
		return res, err
	}

	limit := c.Limit
	if limit <= 0 {
		limit = DefaultLimit
	}
	head, tail := &Head{N: limit}, &Tail{N: limit}
	outCut, errCut := &passing{w: c.Stdout, left: c.Limit}, &passing{w: c.Stderr, left: c.Limit}

	cmd := &exec.Cmd{
		Path:       path,
		Args:       c.Argv,
		Dir:        c.Dir,
		Env:        env,
		Stdin:      c.Stdin,
		ExtraFiles: c.ExtraFiles,
		WaitDelay:  drainDelay,
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid: true,
		},
	}
	if len(env) == 0 {
		cmd.Env = []string{} // nil would inherit
	}
	cmd.Stdout, cmd.Stderr = head, tail
	if c.Stdout != nil {
		cmd.Stdout = writerFor(c.Stdout, outCut, c.Limit)
	}
	if c.Stderr != nil {
		cmd.Stderr = writerFor(c.Stderr, errCut, c.Limit)
		if sameWriter(c.Stdout, c.Stderr) {
			cmd.Stderr = cmd.Stdout // exec serialises writes to one writer
		}
	}
	if c.Credential != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{
			Uid: uint32(c.Credential.UID), Gid: uint32(c.Credential.GID), Groups: []uint32{},
		}
	}

	begun := clock.Now()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return res, fmt.Errorf("start %s: %w (%w)", c.Argv[0], ErrNotFound, err)
		}
		return res, fmt.Errorf("start %s: %w", c.Argv[0], err)
	}
	pid := cmd.Process.Pid

	// The group is killed while its leader is still unreaped: until then its
	// number cannot belong to anyone else.
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		awaitExit(pid)
	}()
	select {
	case <-exited:
	case <-ctx.Done():
		if c.Grace > 0 {
			_ = unix.Kill(-pid, unix.SIGTERM)
			select {
			case <-exited:
			case <-clock.After(c.Grace):
			}
		}
		_ = unix.Kill(-pid, unix.SIGKILL)
		<-exited
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	waitErr := cmd.Wait()

	res.Duration = clock.Now().Sub(begun)
	res.Stdout, res.Stderr = head.Bytes(), tail.Bytes()
	res.Truncated = head.Cut() || tail.Cut() || outCut.cut || errCut.cut
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		res.Code = st.ExitStatus()
		if st.Signaled() {
			res.Code = 128 + int(st.Signal())
			res.Signal = unix.SignalName(st.Signal())
		}
	}
	switch {
	case ctx.Err() != nil && res.Code != 0:
		return res, fmt.Errorf("%s was stopped: %w", c.Argv[0], context.Cause(ctx))
	case res.Code != 0:
		return res, &ExitError{Program: c.Argv[0], Result: res}
	case errors.Is(waitErr, exec.ErrWaitDelay):
		return res, nil // somebody who left the group kept the pipe; its output is not ours
	case waitErr != nil:
		return res, fmt.Errorf("%s: pass on its output: %w", c.Argv[0], waitErr)
	}
	return res, nil
}

// LookPath finds program on the PATH of env (DefaultPath if env has none). A
// name with a slash is returned as it is. The error is ErrNotFound.
func LookPath(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	path := DefaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range strings.Split(path, ":") {
		if dir == "" || dir == "." {
			continue // never the working directory
		}
		full := dir + "/" + program
		if st, err := os.Stat(full); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s: %w (looked in %s)", program, ErrNotFound, path)
}

// awaitExit blocks until pid has ended, and leaves it to be reaped.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

func writerFor(w io.Writer, p *passing, limit int64) io.Writer {
	if limit <= 0 {
		return w
	}
	return p
}

func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }() // uncomparable writers are never the same
	return a != nil && a == b
}

func lastLine(b []byte) string {
	s := strings.TrimRight(string(b), "\r\n \t")
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
