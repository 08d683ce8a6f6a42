package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"
)

// Command is a command that runs in the sandbox.
type Command struct {
	c      *Client
	id     uint32
	exec   Exec
	stdin  Credit
	output [2]*pipe

	over chan struct{} // closed when the init reported the end
	exit Exit          // set before over is closed
	fail error

	done chan struct{} // closed when all of the command's goroutines have ended
	res  Exit
	err  error
}

func newCommand(c *Client, id uint32, e Exec) *Command {
	cmd := &Command{c: c, id: id, exec: e, over: make(chan struct{}), done: make(chan struct{})}
	cmd.output[0], cmd.output[1] = newPipe(), newPipe()
	cmd.stdin.Give(Window)
	return cmd
}

// ended is called once, by the reader of the stream.
func (cmd *Command) ended(e Exit, err error) {
	cmd.exit, cmd.fail = e, err
	cmd.stdin.End()
	cmd.output[0].end()
	cmd.output[1].end()
	close(cmd.over)
}

// Signal sends a signal to the command's process group. The error is ErrEnded
// if the sandbox is gone; a command that has ended already is no error.
func (cmd *Command) Signal(s syscall.Signal) error {
	if !cmd.c.send(frameSignal(cmd.id, s)) {
		return cmd.c.Err()
	}
	return nil
}

// Resize changes the size of the command's terminal. Without one it does
// nothing. Errors as for Signal.
func (cmd *Command) Resize(s Size) error {
	if cmd.exec.TTY != nil && !cmd.c.send(ResizeFrame(cmd.id, s)) {
		return cmd.c.Err()
	}
	return nil
}

// Wait waits for the command's end; see Client.Run.
func (cmd *Command) Wait() (Exit, error) {
	<-cmd.done
	return cmd.res, cmd.err
}

// begin starts the command's goroutines. They end when the command, or the
// stream, has ended and the caller's readers and writers have returned.
func (cmd *Command) begin(ctx context.Context) {
	var out sync.WaitGroup
	var writeErr [2]error
	writers := []io.Writer{cmd.exec.Stdout, cmd.exec.Stderr}
	if same(writers[0], writers[1]) {
		w := &locked{w: writers[0]}
		writers[0], writers[1] = w, w
	}
	for i, w := range writers {
		out.Go(func() { writeErr[i] = cmd.copyOut(i, w) })
	}
	if cmd.exec.Stdin != nil {
		// Not waited for: nobody can end a Read of the caller's. It sends
		// nothing once the command is over.
		go cmd.copyIn()
	}
	go func() {
		defer close(cmd.done)
		stopped := cmd.watch(ctx)
		if stopped != nil || cmd.c.isDone() {
			cmd.output[0].discard()
			cmd.output[1].discard()
		}
		select {
		case <-cmd.over:
			cmd.res, cmd.err = cmd.exit, cmd.fail
		default:
			// The id stays known, so that a late word of it breaks nothing.
			cmd.output[0].end()
			cmd.output[1].end()
			cmd.stdin.End()
			if cmd.err = cmd.c.Err(); cmd.err == nil {
				cmd.err = ErrUnresponsive
			}
		}
		out.Wait()
		switch {
		case stopped != nil && cmd.err == nil:
			cmd.err = fmt.Errorf("%s was stopped: %w", cmd.exec.Argv[0], stopped)
		case stopped != nil:
			cmd.err = fmt.Errorf("%s was stopped: %w (%w)", cmd.exec.Argv[0], stopped, cmd.err)
		case cmd.err == nil:
			if err := errors.Join(writeErr[:]...); err != nil {
				cmd.err = fmt.Errorf("pass on the output of %s: %w", cmd.exec.Argv[0], err)
			}
		}
	}()
}

func (c *Client) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// watch waits for the command's end and sees to it when ctx ends; then it
// returns the context's cause.
func (cmd *Command) watch(ctx context.Context) error {
	select {
	case <-cmd.over:
		return nil
	case <-cmd.c.done:
		return nil
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	grace := cmd.exec.Grace
	if grace == 0 {
		grace = Grace
	}
	clock := cmd.c.clock
	if grace > 0 && cmd.sendAndAwait(clock.After(grace), frameSignal(cmd.id, syscall.SIGTERM)) {
		return cause
	}
	cmd.output[0].discard()
	cmd.output[1].discard()
	cmd.sendAndAwait(clock.After(unresponsiveAfter),
		Frame{Type: TypeDiscard, ID: cmd.id}, frameSignal(cmd.id, syscall.SIGKILL))
	return cause
}

// sendAndAwait sends frames and waits for the end of the command or of the
// stream; false means that the deadline came first.
func (cmd *Command) sendAndAwait(deadline <-chan time.Time, frames ...Frame) (over bool) {
	giveUp, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		for _, f := range frames {
			cmd.c.sendUntil(f, giveUp)
		}
	}()
	defer func() { close(giveUp); <-sent }()
	select {
	case <-cmd.over:
		return true
	case <-cmd.c.done:
		return true
	case <-deadline:
		return false
	}
}

func frameSignal(id uint32, s syscall.Signal) Frame {
	return Frame{Type: TypeSignal, ID: id, Payload: []byte{byte(s)}}
}

// copyOut hands one output stream to the caller's writer and gives credit back.
func (cmd *Command) copyOut(i int, w io.Writer) error {
	var failed error
	for {
		b, ok := cmd.output[i].take()
		if !ok {
			return failed
		}
		if w != nil && failed == nil && !cmd.output[i].discarded() {
			if _, err := w.Write(b); err != nil {
				failed = err
			}
		}
		cmd.output[i].consumed(len(b)) // before the credit, which lets more come in
		cmd.sendWhileRunning(CreditFrame(cmd.id, byte(i+1), len(b)))
	}
}

func (cmd *Command) copyIn() {
	buf := make([]byte, MaxData)
	for {
		n := cmd.stdin.Take(len(buf), cmd.c.done)
		if n == 0 {
			return
		}
		m, err := cmd.exec.Stdin.Read(buf[:n])
		cmd.stdin.Give(n - m)
		if m > 0 {
			if !cmd.sendWhileRunning(Frame{Type: TypeStdin, ID: cmd.id, Payload: buf[:m]}) {
				return
			}
		}
		if err != nil {
			cmd.sendWhileRunning(Frame{Type: TypeStdinEnd, ID: cmd.id})
			return
		}
	}
}

func (cmd *Command) sendWhileRunning(f Frame) bool {
	select {
	case <-cmd.over:
		return false
	default:
		return cmd.c.sendUntil(f, cmd.over)
	}
}

// pipe is the buffer between the stream's reader, which never waits, and the
// goroutine that hands the data to the caller's writer. It is bounded by the
// window: add refuses what the sender had no credit for.
type pipe struct {
	mu     sync.Mutex
	queue  [][]byte
	size   int // queued or being written: not yet credited
	closed bool
	drop   bool
	wake   chan struct{}
}

func newPipe() *pipe { return &pipe{wake: make(chan struct{}, 1)} }

func (p *pipe) add(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size+len(b) > Window || p.closed {
		return p.closed && p.drop
	}
	p.size += len(b)
	if len(b) > 0 {
		p.queue = append(p.queue, b)
	}
	p.signal()
	return true
}

func (p *pipe) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.signal()
}

func (p *pipe) discard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = true
	p.signal()
}

func (p *pipe) discarded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drop
}

func (p *pipe) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pipe) consumed(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size -= n
}

// take waits for data; false is the end. What it returned counts until it is
// consumed.
func (p *pipe) take() ([]byte, bool) {
	for {
		p.mu.Lock()
		if len(p.queue) > 0 {
			b := p.queue[0]
			p.queue = p.queue[1:]
			p.mu.Unlock()
			return b, true
		}
		closed := p.closed
		p.mu.Unlock()
		if closed {
			return nil, false
		}
		<-p.wake
	}
}

// locked lets two streams share one writer.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func same(a, b io.Writer) bool {
	defer func() { _ = recover() }() // uncomparable writers are never the same
	return a != nil && a == b
}
