// Package dialer connects from outside to a port on the loopback of a sandbox.
// Nothing leads there but the control stream: each connection is one command in
// the sandbox that joins a connection of its own to its standard streams. A
// sandbox and an address come in, a net.Conn goes out.
package dialer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
)

// Sandbox is what this package needs of one; *stream.Client is one.
type Sandbox interface {
	Run(ctx context.Context, e stream.Exec) (stream.Exit, error)
}

// closeGrace is how long the command may take to end when its connection was
// closed.
const closeGrace = time.Second

// Dial connects to "127.0.0.1:5432" inside. ctx bounds the connecting alone; the
// connection lives until it is closed or the sandbox ends. Its deadlines work,
// and closing it ends the command. The error says what the other side said.
func Dial(ctx context.Context, sb Sandbox, addr string) (net.Conn, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	near, far := net.Pipe()
	said := &proc.Tail{N: 1 << 10}
	out := &answer{w: far, ready: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		exit, err := sb.Run(life, stream.Exec{
			Argv: []string{sandbox.InitPath, "sandbox-init", inside.DialWord, addr}, Dir: "/",
			Stdin: far, Stdout: out, Stderr: said, Grace: closeGrace,
		})
		if err == nil && exit.Code != 0 {
			err = errors.New(strings.TrimPrefix(strings.TrimSpace(string(said.Bytes())), "sandbox init: "))
		}
		done <- err
		_ = far.Close() // the reader sees the end
	}()
	fail := func(err error) (net.Conn, error) {
		end()
		_ = near.Close()
		return nil, fmt.Errorf("connect to %s inside the sandbox: %w", addr, err)
	}
	select {
	case <-out.ready:
		return &conn{Conn: near, end: end}, nil
	case err := <-done:
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return fail(err)
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	}
}

// conn ends its command when it is closed.
type conn struct {
	net.Conn
	end context.CancelFunc
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.end()
	return err
}

// answer takes the word that says the connection stands off what comes.
type answer struct {
	w     io.Writer
	have  []byte
	open  bool
	ready chan struct{}
}

func (a *answer) Write(p []byte) (int, error) {
	n := len(p)
	if !a.open {
		take := min(len(inside.Dialled)-len(a.have), len(p))
		a.have, p = append(a.have, p[:take]...), p[take:]
		if len(a.have) < len(inside.Dialled) {
			return n, nil
		}
		if string(a.have) != inside.Dialled {
			return 0, errors.New("what answers is not our program")
		}
		a.open = true
		close(a.ready)
	}
	if len(p) == 0 {
		return n, nil
	}
	if _, err := a.w.Write(p); err != nil {
		return 0, err
	}
	return n, nil
}
