package inside

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"inspect/envs/sandbox/stream"
)

type server struct {
	control *os.File
	env     []string // of every command, before its own

	beginning sync.Mutex // held while a command is looked for and started

	// mu is held while a process is started and while ended ones are
	// collected, so that no end is seen before its beginning is known.
	mu       sync.Mutex
	byPID    map[int]*command
	commands map[uint32]*command
	watching bool // a look at groups that are waited for is due
}

func newServer(control *os.File) *server {
	return &server{
		control:  control,
		env:      withoutName(os.Environ(), "PWD"),
		byPID:    map[int]*command{},
		commands: map[uint32]*command{},
	}
}

// serve obeys the control stream until it is closed outside (nil) or broken.
// It never waits for a command: only for the stream.
func (s *server) serve() error {
	hello, err := stream.JSON(stream.TypeHello, 0, stream.Hello{Version: stream.Version})
	if err != nil {
		return err
	}
	s.send(hello)
	r := bufio.NewReaderSize(s.control, 2*stream.MaxData)
	for {
		f, err := stream.ReadFrame(r)
		switch {
		case err == nil:
		case errors.Is(err, stream.ErrProtocol):
			return err
		default: // whatever ended it, nobody holds the lifeline any more
			return nil
		}
		if err := s.obey(f); err != nil {
			return err
		}
	}
}

// send writes a frame. A stream that cannot be written to is closed outside:
// the reader sees that too and ends the sandbox.
func (s *server) send(f stream.Frame) { _, _ = s.control.Write(f.Append(nil)) }

func (s *server) obey(f stream.Frame) error {
	if f.Type == stream.TypeStart {
		return s.start(f)
	}
	s.mu.Lock()
	c := s.commands[f.ID]
	s.mu.Unlock()
	if c == nil {
		return nil // it has ended, and the word of that is on its way
	}
	switch f.Type {
	case stream.TypeStdin:
		return c.stdin.add(f.Payload)
	case stream.TypeStdinEnd:
		c.stdin.end()
	case stream.TypeSignal:
		if len(f.Payload) == 1 {
			s.signal(c, syscall.Signal(f.Payload[0]))
		}
	case stream.TypeDiscard:
		c.discard()
	case stream.TypeResize:
		if len(f.Payload) != 4 {
			return fmt.Errorf("%w: bad size", stream.ErrProtocol)
		}
		c.resize(stream.Size{Rows: binary.BigEndian.Uint16(f.Payload), Cols: binary.BigEndian.Uint16(f.Payload[2:])})
	case stream.TypeCredit:
		if len(f.Payload) != 5 || f.Payload[0] < 1 || f.Payload[0] > 2 ||
			!c.credit[f.Payload[0]-1].Give(int(binary.BigEndian.Uint32(f.Payload[1:]))) {
			return fmt.Errorf("%w: bad credit", stream.ErrProtocol)
		}
	default:
		return fmt.Errorf("%w: frame of type %d to the sandbox", stream.ErrProtocol, f.Type)
	}
	return nil
}

func (s *server) start(f stream.Frame) error {
	var st stream.Start
	if err := json.Unmarshal(f.Payload, &st); err != nil {
		return fmt.Errorf("%w: a start that cannot be read", stream.ErrProtocol)
	}
	c := newCommand(s, f.ID, st)
	s.mu.Lock()
	_, taken := s.commands[f.ID]
	full := len(s.commands) >= stream.MaxRunning
	if !taken && !full {
		s.commands[f.ID] = c
	}
	s.mu.Unlock()
	switch {
	case taken:
		return fmt.Errorf("%w: two commands with one number", stream.ErrProtocol)
	case full:
		go s.send(failed(f.ID, "too many commands run at once"))
		return nil
	}
	go c.run() // ends with its frame of type Failed or Exit
	return nil
}

func failed(id uint32, words string) stream.Frame {
	if len(words) > stream.MaxWords {
		words = words[:stream.MaxWords]
	}
	return stream.Frame{Type: stream.TypeFailed, ID: id, Payload: []byte(words)}
}

// forget is called before the last frame of a command is sent, so that its
// number is never used for two.
func (s *server) forget(c *command) {
	s.mu.Lock()
	delete(s.commands, c.id)
	s.mu.Unlock()
}

// signal sends sig to the command's process group, or keeps it until there is
// one. The lock keeps the group's number from being anyone else's.
func (s *server) signal(c *command, sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.asked = c.asked || sig == unix.SIGTERM
	switch {
	case c.pid > 0:
		_ = unix.Kill(-c.pid, sig)
		if c.leader != nil && sig == unix.SIGKILL { // nobody waits for those any longer
			s.over(c, ended{unix.WaitStatus(unix.SIGKILL), c.leader.usage})
		}
	case !c.begun:
		c.pending = append(c.pending, sig)
	}
}

// spawn starts a process in a session and group of its own.
func (s *server) spawn(c *command, path string, argv []string, attr *syscall.ProcAttr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.begun = true
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return err
	}
	// Memory runs out for the commands first, for the init last.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("500"), 0)
	if old := s.byPID[pid]; old != nil { // whose group ended unnoticed, or the number were not free
		s.over(old, *old.leader)
	}
	c.pid = pid
	s.byPID[pid] = c
	for _, sig := range c.pending {
		_ = unix.Kill(-pid, sig)
	}
	return nil
}

// handleSignals starts collecting ended processes and passing signals on. The
// function it returns ends that and waits.
func (s *server) handleSignals() (stop func()) {
	child := make(chan os.Signal, 1) // one pending is enough: reap takes all
	other := make(chan os.Signal, 64)
	signal.Notify(child, unix.SIGCHLD)
	// All others are caught, so that none of them ends the init. (SIGURG is
	// the runtime's own and harmless.)
	for sig := syscall.Signal(1); sig < 65; sig++ {
		switch sig {
		case unix.SIGCHLD, unix.SIGKILL, unix.SIGSTOP, unix.SIGURG:
		default:
			signal.Notify(other, sig)
		}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-child:
				s.reap()
			case sig := <-other:
				s.forward(sig)
			case <-quit:
				return
			}
		}
	})
	return func() {
		signal.Stop(child)
		signal.Stop(other)
		close(quit)
		wg.Wait()
	}
}

// forward passes the signals that ask a program to end to all commands.
func (s *server) forward(sig os.Signal) {
	switch sig {
	case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid, c := range s.byPID {
		c.asked = c.asked || sig == unix.SIGTERM
		_ = unix.Kill(-pid, sig.(syscall.Signal))
	}
}

// reap collects every process that has ended: commands and orphans. A
// command's group is killed while its leader is still unreaped, when its
// number cannot belong to anyone else. A group that is waited for keeps its
// number as long as it has members.
func (s *server) reap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid := endedChild(); pid != 0; pid = endedChild() {
		c := s.byPID[pid]
		waits := c != nil && c.spec.Group && c.asked
		if c != nil && !waits {
			_ = unix.Kill(-pid, unix.SIGKILL)
		}
		var e ended
		for {
			if _, err := unix.Wait4(pid, &e.status, 0, &e.usage); err != unix.EINTR {
				break
			}
		}
		switch {
		case waits:
			c.leader = &e
		case c != nil:
			s.over(c, e)
		}
	}
	for pid, c := range s.byPID {
		if c.leader != nil && unix.Kill(-pid, 0) == unix.ESRCH {
			s.over(c, *c.leader)
		}
	}
	if !s.watching && s.waiting() {
		s.watching = true
		time.AfterFunc(watchEvery, func() {
			s.mu.Lock()
			s.watching = false
			s.mu.Unlock()
			s.reap()
		})
	}
}

// watchEvery is for members of a group whose end is told to another parent.
const watchEvery = 50 * time.Millisecond

func (s *server) waiting() bool {
	for _, c := range s.byPID {
		if c.leader != nil {
			return true
		}
	}
	return false
}

// over is called with the lock held, when a command's group is no more.
func (s *server) over(c *command, e ended) {
	delete(s.byPID, c.pid)
	c.pid = 0
	c.end <- e
}

// endedChild is a child that has ended and was not reaped, or 0.
func endedChild() int {
	// siginfo_t: si_pid is the fifth 32-bit word on 64-bit machines.
	var info [32]int32
	for {
		_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		switch e {
		case 0:
			return int(info[4])
		case unix.EINTR:
		default:
			return 0
		}
	}
}
