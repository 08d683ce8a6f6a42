package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// serveProcess is `inspect serve`, started again when it is killed, as a
// service manager would.
type serveProcess struct {
	argv []string
	err  io.Writer
	data string

	mu       sync.Mutex
	cmd      *exec.Cmd
	stopping bool
	tail     lastLines
	ended    chan struct{} // closed when it is over for good
	fail     chan error
}

// restarts bounds how often a serve that fails by itself is started again.
const restarts = 5

// start starts it and keeps it running in the background until stop.
func (p *serveProcess) start() error {
	p.ended, p.fail = make(chan struct{}), make(chan error, 1)
	// The pipe is ours and lasts: what serve started lives on when serve is
	// killed, and must still be able to write.
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.MultiWriter(p.err, &p.tail), from)
		from.Close()
	}()
	first := make(chan error, 1)
	go p.keep(to, first)
	return <-first
}

// keep runs on one thread, because the kernel ties "die with the parent" to
// the thread that started a child.
func (p *serveProcess) keep(log *os.File, first chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.ended)
	defer log.Close()
	for try := 0; ; try++ {
		cmd := exec.Command(p.argv[0], p.argv[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		// A group of its own: Ctrl-C is for the demo, which stops it in order.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
		p.mu.Lock()
		if p.stopping {
			p.mu.Unlock()
			return
		}
		err := cmd.Start()
		p.cmd = cmd
		p.mu.Unlock()
		if try == 0 {
			first <- err
		}
		if err != nil {
			p.fail <- err
			return
		}
		err = cmd.Wait()
		p.mu.Lock()
		stopping := p.stopping
		p.mu.Unlock()
		if stopping {
			return
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == statusSetup {
			p.fail <- setupError{p.tail.last()}
			return
		}
		if killed := errors.As(err, &exit) && !exit.Exited(); !killed || try >= restarts {
			p.fail <- fmt.Errorf("it ended by itself (%v): %s", err, p.tail.String())
			return
		}
	}
}

// statusSetup is what serve ends with when something is missing on this machine.
const statusSetup = 3

// setupError says what is missing and how to get it; the demo ends with the
// same status.
type setupError struct{ words string }

func (e setupError) Error() string { return e.words }
func (setupError) ExitCode() int   { return statusSetup }

// failed tells when it will not come back.
func (p *serveProcess) failed() <-chan error { return p.fail }

// stop asks it to stop and waits.
func (p *serveProcess) stop() error {
	p.mu.Lock()
	p.stopping = true
	cmd := p.cmd
	p.mu.Unlock()
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-p.ended
		return errors.New("inspect serve did not stop within a minute and was killed")
	}
}

// kill kills one of the processes with -9. False: it is not there yet.
func (st *story) kill(which, session string) (bool, error) {
	var pid int
	switch which {
	case "serve":
		st.serve.mu.Lock()
		pid = st.serve.cmd.Process.Pid
		st.serve.mu.Unlock()
	case "node":
		body, err := os.ReadFile(filepath.Join(st.serve.data, "node", "daemon.lock"))
		if err != nil {
			return false, nil
		}
		pid, _ = strconv.Atoi(strings.TrimSpace(string(body)))
	case "runner":
		pid = findRunner(session)
	default:
		return false, fmt.Errorf("--kill: expected serve, node or runner, but found %q", which)
	}
	if pid <= 1 {
		return false, nil
	}
	st.out.line(fmt.Sprintf("  kill -9 %d (%s)", pid, which))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return false, fmt.Errorf("kill %s: %w", which, err)
	}
	return true, nil
}

// findRunner looks for the runner of a session among all processes.
func findRunner(session string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		if bytes.Contains(line, []byte("\x00runner\x00")) && bytes.Contains(line, []byte("\x00"+session+"\x00")) {
			return pid
		}
	}
	return 0
}

// lastLines keeps the end of what serve said, for the words of a failure.
type lastLines struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) > 4096 {
		l.buf = l.buf[len(l.buf)-2048:]
	}
	return len(p), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(l.buf)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// last is the last line: what serve ended with.
func (l *lastLines) last() string {
	text := l.String()
	return strings.TrimPrefix(text[strings.LastIndexByte(text, '\n')+1:], "inspect: ")
}
