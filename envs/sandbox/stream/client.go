package stream

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"inspect/envs/proc"
)

// ErrEnded is the error of everything asked of a sandbox that is gone.
var ErrEnded = errors.New("the sandbox has ended")

// ErrUnresponsive is the error of a command that did not end after SIGKILL:
// the sandbox's init is stuck and the sandbox must be killed from outside.
var ErrUnresponsive = errors.New("the sandbox does not answer")

// StartError is the error of a command that could not be started, in words.
type StartError struct {
	Program string
	Words   string
}

func (e *StartError) Error() string { return "start " + e.Program + " in the sandbox: " + e.Words }

// Grace is the time between SIGTERM and SIGKILL when a command's context ends.
const Grace = 5 * time.Second

// unresponsiveAfter is how long after SIGKILL a command may still be reported
// as running.
const unresponsiveAfter = 10 * time.Second

// Exec is one command to run in the sandbox.
type Exec struct {
	Argv    []string // a program without a slash is looked up on the PATH inside
	Env     []string // added to the sandbox's own environment
	Dir     string   // empty: /workspace
	Stdin   io.Reader
	Stdout  io.Writer // nil: dropped
	Stderr  io.Writer // nil: dropped; may be the same as Stdout
	Rlimits Rlimits
	// Grace between SIGTERM and SIGKILL when the context ends; 0 is the
	// package's Grace, negative kills at once.
	Grace time.Duration
	// Group lets a command that got SIGTERM last until its whole process group
	// has ended. Without it the group is killed when its leader has ended, as it
	// is in any case when the leader ends unasked.
	Group bool
	// TTY gives the command a terminal of that size, which is its controlling
	// one; nil: none. Stdin is what is typed there and Stdout what is shown;
	// Stderr gets nothing. The end of Stdin is typed as one.
	TTY *Size
}

// Exit is how a command ended.
type Exit = Exited

// Client is the outside end of a control stream. It is safe for concurrent use.
type Client struct {
	rw    io.ReadWriteCloser
	clock proc.Clock
	out   chan []byte
	done  chan struct{} // closed when the stream is dead
	ready chan struct{} // closed at Hello
	wg    sync.WaitGroup
	close sync.Once

	mu       sync.Mutex
	err      error // why done is closed
	next     uint32
	commands map[uint32]*Command
}

// NewClient speaks on rw, which Close closes. Its Close must end a Read and a
// Write that are going on.
func NewClient(rw io.ReadWriteCloser) *Client { return NewClientClock(rw, proc.System()) }

// NewClientClock is NewClient with a clock for the grace times.
func NewClientClock(rw io.ReadWriteCloser, clock proc.Clock) *Client {
	c := &Client{
		rw: rw, clock: clock,
		out:      make(chan []byte, 16),
		done:     make(chan struct{}),
		ready:    make(chan struct{}),
		commands: map[uint32]*Command{},
	}
	c.wg.Add(2)
	go c.readLoop()
	go c.writeLoop()
	return c
}

// Close ends the sandbox and waits for the client's own goroutines. Commands
// that run end with ErrEnded. Closing again is harmless.
func (c *Client) Close() error {
	c.fail(ErrEnded)
	c.wg.Wait()
	return nil
}

// Done is closed when the sandbox has ended or was closed.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the stream lives. Afterwards it is ErrEnded, wrapped with
// the reason if there is more to say.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Ready waits until the init inside has answered.
func (c *Client) Ready(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run runs one command and waits for its end. The error is nil whatever the
// exit status. It is a *StartError if the command could not be started,
// ErrEnded if the sandbox is gone, and wraps the context's cause if ctx ended:
// then the command's group got SIGTERM, and SIGKILL after the grace, and Exit
// tells how it went. Run returns when Stdout and Stderr are not used any more.
func (c *Client) Run(ctx context.Context, e Exec) (Exit, error) {
	cmd, err := c.Start(ctx, e)
	if err != nil {
		return Exit{}, err
	}
	return cmd.Wait()
}

// Start is Run without the waiting; Wait must be called.
func (c *Client) Start(ctx context.Context, e Exec) (*Command, error) {
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return nil, &StartError{Program: "a command", Words: "no program was named"}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s was not started: %w", e.Argv[0], err)
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	if len(c.commands) >= MaxRunning {
		c.mu.Unlock()
		return nil, &StartError{Program: e.Argv[0], Words: fmt.Sprintf("%d commands run already, the most at once", MaxRunning)}
	}
	c.next++
	cmd := newCommand(c, c.next, e)
	c.commands[cmd.id] = cmd
	c.mu.Unlock()

	f, err := JSON(TypeStart, cmd.id, Start{
		Argv: e.Argv, Env: e.Env, Dir: e.Dir, Stdin: e.Stdin != nil, Group: e.Group, TTY: e.TTY, Rlimits: e.Rlimits,
	})
	if err != nil {
		c.forget(cmd.id)
		return nil, &StartError{Program: e.Argv[0], Words: "its arguments and environment are too long: " + err.Error()}
	}
	if !c.send(f) {
		c.forget(cmd.id)
		return nil, c.Err()
	}
	cmd.begin(ctx)
	return cmd, nil
}

func (c *Client) forget(id uint32) {
	c.mu.Lock()
	delete(c.commands, id)
	c.mu.Unlock()
}

// send queues a frame; false means that the stream is dead.
func (c *Client) send(f Frame) bool { return c.sendUntil(f, nil) }

func (c *Client) sendUntil(f Frame, giveUp <-chan struct{}) bool {
	select {
	case <-c.done:
		return false
	default:
	}
	select {
	case c.out <- f.Append(nil):
		return true
	case <-c.done:
		return false
	case <-giveUp:
		return false
	}
}

func (c *Client) fail(err error) {
	c.close.Do(func() {
		if !errors.Is(err, ErrEnded) {
			err = fmt.Errorf("%w: %w", ErrEnded, err)
		}
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		close(c.done)
		_ = c.rw.Close()
	})
}

func (c *Client) writeLoop() {
	defer c.wg.Done()
	for {
		select {
		case b := <-c.out:
			if _, err := c.rw.Write(b); err != nil {
				c.fail(endOf(err))
				return
			}
		case <-c.done:
			return
		}
	}
}

func (c *Client) readLoop() {
	defer c.wg.Done()
	r := bufio.NewReaderSize(c.rw, 2*MaxData)
	greeted := false
	for {
		f, err := ReadFrame(r)
		if err != nil {
			c.fail(endOf(err))
			return
		}
		if !greeted {
			var h Hello
			if f.Type != TypeHello || json.Unmarshal(f.Payload, &h) != nil || h.Version != Version {
				c.fail(fmt.Errorf("%w: it does not begin with a hello of version %d", ErrProtocol, Version))
				return
			}
			greeted = true
			close(c.ready)
			continue
		}
		if err := c.dispatch(f); err != nil {
			c.fail(err)
			return
		}
	}
}

// endOf tells an ordinary end from a broken stream.
func endOf(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrEnded
	}
	return err
}

// dispatch hands f to its command. It never blocks.
func (c *Client) dispatch(f Frame) error {
	c.mu.Lock()
	cmd := c.commands[f.ID]
	c.mu.Unlock()
	if cmd == nil {
		return fmt.Errorf("%w: a message about a command that does not run", ErrProtocol)
	}
	switch f.Type {
	case TypeStdout, TypeStderr:
		if !cmd.output[f.Type-TypeStdout].add(f.Payload) {
			return fmt.Errorf("%w: more output than it has credit for", ErrProtocol)
		}
	case TypeStdinCredit:
		if len(f.Payload) != 4 || !cmd.stdin.Give(int(binary.BigEndian.Uint32(f.Payload))) {
			return fmt.Errorf("%w: bad credit", ErrProtocol)
		}
	case TypeStdinGone:
		cmd.stdin.End()
	case TypeFailed:
		c.forget(f.ID)
		cmd.ended(Exit{}, &StartError{Program: cmd.exec.Argv[0], Words: string(f.Payload)})
	case TypeExit:
		var e Exit
		if err := json.Unmarshal(f.Payload, &e); err != nil {
			return fmt.Errorf("%w: an exit that cannot be read", ErrProtocol)
		}
		c.forget(f.ID)
		cmd.ended(e, nil)
	default:
		return fmt.Errorf("%w: frame of type %d from the sandbox", ErrProtocol, f.Type)
	}
	return nil
}
