package inside

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
)

// leftInPipe is the most that is still passed on of what lies in a command's
// output pipe after its end; Linux allows a pipe no more without privilege.
const leftInPipe = 1 << 20

type ended struct {
	status unix.WaitStatus
	usage  unix.Rusage
}

type command struct {
	s      *server
	id     uint32
	spec   stream.Start
	stdin  *input
	credit [2]stream.Credit
	end    chan ended // buffered; sent to once by reap

	discarding chan struct{}
	once       sync.Once
	term       terminal

	// Under the server's lock:
	begun   bool // the process was started, or that has failed
	pid     int  // of its group, until the command is over
	pending []syscall.Signal
	asked   bool   // to end, by SIGTERM
	leader  *ended // has ended; the rest of the group is waited for
}

func newCommand(s *server, id uint32, st stream.Start) *command {
	c := &command{s: s, id: id, spec: st, stdin: newInput(), end: make(chan ended, 1), discarding: make(chan struct{})}
	c.credit[0].Give(stream.Window)
	c.credit[1].Give(stream.Window)
	return c
}

// discard drops the output from here on: nobody outside reads it.
func (c *command) discard() {
	c.once.Do(func() {
		close(c.discarding)
		c.credit[0].End()
		c.credit[1].End()
	})
}

// run is the command's life.
func (c *command) run() {
	begun := time.Now()
	p, err := c.begin()
	if err != nil {
		c.s.forget(c)
		c.s.send(failed(c.id, err.Error()))
		return
	}
	var out, in sync.WaitGroup
	out.Go(func() { c.pump(p.stdout, 0) })
	if p.stderr != nil {
		out.Go(func() { c.pump(p.stderr, 1) })
	}
	if p.stdin != nil {
		in.Go(func() { c.feed(p.stdin) })
	}

	e := <-c.end
	// Whoever left the group may hold the pipes for ever: what is in them now
	// is passed on, and that is all.
	_ = p.stdout.SetReadDeadline(time.Unix(1, 0))
	if p.stderr != nil {
		_ = p.stderr.SetReadDeadline(time.Unix(1, 0))
	}
	out.Wait()
	if p.stdin != nil {
		p.stdin.Close()
		c.stdin.end()
		in.Wait()
	}
	c.term.close()
	p.stdout.Close()
	if p.stderr != nil {
		p.stderr.Close()
	}

	x := stream.Exited{
		Code:     e.status.ExitStatus(),
		Duration: time.Since(begun),
		CPU:      time.Duration(e.usage.Utime.Nano() + e.usage.Stime.Nano()),
		MaxRSS:   e.usage.Maxrss << 10, // kilobytes
	}
	if e.status.Signaled() {
		x.Code = 128 + int(e.status.Signal())
		x.Signal = unix.SignalName(e.status.Signal())
	}
	f, err := stream.JSON(stream.TypeExit, c.id, x)
	if err != nil {
		panic(err) // five numbers and a short word
	}
	c.s.forget(c)
	c.s.send(f)
}

// pipes are our ends; with a terminal there is no stderr, and without input no
// stdin.
type pipes struct{ stdin, stdout, stderr *os.File }

// begin starts the process. The error is in words.
func (c *command) begin() (p pipes, err error) {
	if len(c.spec.Argv) == 0 || c.spec.Argv[0] == "" {
		return p, errors.New("no program was named")
	}
	// One after the other: each is in a system call, with a thread, most of the time.
	c.s.beginning.Lock()
	defer c.s.beginning.Unlock()
	env := merge(c.s.env, c.spec.Env)
	path, err := proc.LookPath(c.spec.Argv[0], env)
	if err != nil {
		return p, err
	}
	if c.spec.Dir != "" {
		if st, err := os.Stat(c.spec.Dir); err != nil || !st.IsDir() {
			return p, fmt.Errorf("there is no directory %s", c.spec.Dir)
		}
	}
	argv := c.spec.Argv
	if c.spec.Rlimits != (stream.Rlimits{}) {
		if argv, err = execArgs(c.spec.Rlimits, path, argv); err != nil {
			return p, err
		}
		path = "/proc/self/exe"
	}

	var mine, theirs []*os.File
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(mine)
		}
	}()
	pipe := func(weRead bool) (m, t *os.File, err error) {
		var fd [2]int
		if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
			return nil, nil, fmt.Errorf("make a pipe: %w", err)
		}
		ours, other := fd[0], fd[1]
		if !weRead {
			ours, other = other, ours
		}
		_ = unix.SetNonblock(ours, true)
		m, t = os.NewFile(uintptr(ours), "pipe"), os.NewFile(uintptr(other), "pipe")
		mine, theirs = append(mine, m), append(theirs, t)
		return m, t, nil
	}
	if c.spec.TTY != nil {
		screen, keys, tty, err := openTerminal(*c.spec.TTY)
		if err != nil {
			return p, fmt.Errorf("give it a terminal: %w", err)
		}
		mine, theirs = append(mine, screen, keys), append(theirs, tty)
		p.stdout = screen
		if c.spec.Stdin {
			p.stdin = keys
		} else {
			keys.Close()
		}
		c.term.open(screen)
		fd := rawFD(tty)
		err = c.s.spawn(c, path, argv, &syscall.ProcAttr{
			Dir: c.spec.Dir, Env: env, Files: []uintptr{fd, fd, fd},
			Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
		})
		return p, inWords(path, err)
	}
	var in, out, errs *os.File
	if c.spec.Stdin {
		if p.stdin, in, err = pipe(false); err != nil {
			return p, err
		}
	} else {
		if in, err = os.Open(os.DevNull); err != nil {
			return p, err
		}
		theirs = append(theirs, in)
	}
	if p.stdout, out, err = pipe(true); err != nil {
		return p, err
	}
	if p.stderr, errs, err = pipe(true); err != nil {
		return p, err
	}
	err = c.s.spawn(c, path, argv, &syscall.ProcAttr{
		Dir:   c.spec.Dir,
		Env:   env,
		Files: []uintptr{rawFD(in), rawFD(out), rawFD(errs)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return p, inWords(path, err)
}

// rawFD is f's number without making f blocking, as Fd would.
func rawFD(f *os.File) (fd uintptr) {
	rc, err := f.SyscallConn()
	if err != nil {
		return ^uintptr(0)
	}
	_ = rc.Control(func(n uintptr) { fd = n })
	return fd
}

func inWords(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN):
		return errors.New("the sandbox's limit of processes is reached")
	case errors.Is(err, unix.ENOMEM):
		return errors.New("the sandbox's memory is used up")
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s: %w", path, proc.ErrNotFound)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s is not executable", path)
	case errors.Is(err, unix.E2BIG):
		return errors.New("its arguments and environment are too long")
	}
	return fmt.Errorf("%s: %w", path, err)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// pump passes one output stream on as far as there is credit, until the end of
// the pipe, or until the command has ended and the pipe is empty.
func (c *command) pump(r *os.File, i int) {
	buf := make([]byte, stream.MaxData)
	read := r.Read // until the command's end sets a deadline
	left := 0      // of leftInPipe, once that has happened
	for {
		n := c.credit[i].Take(len(buf), nil)
		drop := n == 0
		if drop {
			n = len(buf)
		}
		m, err := read(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
			left = leftInPipe
			read = func(b []byte) (int, error) {
				m, err := readNow(r, b[:min(len(b), left)])
				left -= m
				return m, err
			}
		}
		if !drop {
			c.credit[i].Give(n - m)
			if m > 0 {
				c.s.send(stream.Frame{Type: stream.TypeStdout + stream.Type(i), ID: c.id, Payload: buf[:m]})
			}
		}
		if err != nil {
			return
		}
	}
}

var errEmpty = errors.New("nothing left in the pipe")

// readNow reads what is there without waiting.
func readNow(r *os.File, b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, errEmpty
	}
	rc, err := r.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := rc.Control(func(fd uintptr) {
		for {
			if n, err = unix.Read(int(fd), b); err != unix.EINTR {
				return
			}
		}
	}); cerr != nil {
		return 0, cerr
	}
	if n <= 0 || err != nil {
		return 0, errEmpty
	}
	return n, nil
}

// feed writes the client's input to the command.
func (c *command) feed(w *os.File) {
	defer w.Close()
	for {
		b, ok := c.stdin.take()
		if !ok {
			if c.spec.TTY != nil { // a terminal does not end with those who type
				_, _ = w.Write([]byte{endOfInput})
			}
			return
		}
		if _, err := w.Write(b); err != nil {
			c.stdin.drop()
			c.s.send(stream.Frame{Type: stream.TypeStdinGone, ID: c.id})
			return
		}
		c.stdin.consumed(len(b))
		c.s.send(stream.StdinCreditFrame(c.id, len(b)))
	}
}

// input is what has arrived for a command's standard input: at most a window.
type input struct {
	mu      sync.Mutex
	queue   [][]byte
	size    int
	closed  bool
	dropped bool
	wake    chan struct{}
}

func newInput() *input { return &input{wake: make(chan struct{}, 1)} }

func (in *input) add(b []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.dropped || in.closed {
		return nil
	}
	if in.size += len(b); in.size > stream.Window {
		return fmt.Errorf("%w: more input than there is credit for", stream.ErrProtocol)
	}
	if len(b) > 0 {
		in.queue = append(in.queue, b)
	}
	in.signal()
	return nil
}

func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.signal()
}

func (in *input) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.dropped, in.queue = true, nil
}

func (in *input) consumed(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.size -= n
}

func (in *input) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

func (in *input) take() ([]byte, bool) {
	for {
		in.mu.Lock()
		if len(in.queue) > 0 {
			b := in.queue[0]
			in.queue = in.queue[1:]
			in.mu.Unlock()
			return b, true
		}
		closed := in.closed
		in.mu.Unlock()
		if closed {
			return nil, false
		}
		<-in.wake
	}
}

// merge adds extra to base; the last of a name wins.
func merge(base, extra []string) []string {
	out := slices.Clone(base)
	for _, e := range extra {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			continue
		}
		out = append(withoutName(out, name), e)
	}
	return out
}

func withoutName(env []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.HasPrefix(e, name+"=") })
}
