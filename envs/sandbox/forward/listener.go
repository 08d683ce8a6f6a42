package forward

import (
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the side outside.
const (
	lineTimeout = 10 * time.Second // a slow machine in the middle of a fork bomb needs several
	maxUnnamed  = 128              // connections whose line has not come; further ones wait to be accepted
)

// Conn is what a Listener accepts.
type Conn interface {
	net.Conn
	// Command is the command inside that connected, as the sandbox says; empty
	// if that is not known.
	Command() string
	CloseWrite() error
}

// Listener accepts the connections of a named way: it reads the line each
// begins with and hands on, as Conn, what follows. A connection that does not
// begin with one in time is closed; it holds up no other. Close closes l and
// all connections that were not accepted yet.
func Listener(l net.Listener) net.Listener {
	d := &listener{l: l, ready: make(chan net.Conn), over: make(chan struct{}), unnamed: map[net.Conn]bool{}}
	d.wg.Go(d.run)
	return d
}

type listener struct {
	l     net.Listener
	ready chan net.Conn
	over  chan struct{} // closed when no more is accepted; then err is set
	err   error
	once  sync.Once
	wg    sync.WaitGroup

	mu      sync.Mutex
	unnamed map[net.Conn]bool
	closed  bool
}

func (d *listener) Accept() (net.Conn, error) {
	select {
	case c := <-d.ready:
		return c, nil
	case <-d.over:
		return nil, d.err
	}
}

func (d *listener) Addr() net.Addr { return d.l.Addr() }

func (d *listener) Close() error {
	d.end(net.ErrClosed)
	err := d.l.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.unnamed {
		c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (d *listener) end(err error) {
	d.once.Do(func() {
		d.err = err
		close(d.over)
	})
}

func (d *listener) run() {
	room := make(chan struct{}, maxUnnamed)
	for {
		select {
		case room <- struct{}{}:
		case <-d.over:
			return
		}
		c, err := d.l.Accept()
		if err != nil {
			<-room
			if !passing(err) {
				d.end(err)
				return
			}
			select {
			case <-time.After(acceptWait):
				continue
			case <-d.over:
				return
			}
		}
		d.mu.Lock()
		if d.closed {
			c.Close()
		}
		d.unnamed[c] = true
		d.mu.Unlock()
		d.wg.Go(func() {
			defer func() { <-room }()
			d.introduce(c)
		})
	}
}

// passing says whether accepting may succeed again.
func passing(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// introduce reads the line of c and hands it on.
func (d *listener) introduce(c net.Conn) {
	n, rest, err := readName(c)
	d.mu.Lock()
	delete(d.unnamed, c)
	d.mu.Unlock()
	if err != nil {
		c.Close()
		return
	}
	select {
	case d.ready <- &conn{Conn: c, rest: rest, command: n.Command}:
	case <-d.over:
		c.Close()
	}
}

// readName reads one line and what came with it.
func readName(c net.Conn) (n name, rest []byte, err error) {
	if err := c.SetReadDeadline(time.Now().Add(lineTimeout)); err != nil {
		return n, nil, err
	}
	var b [maxLine]byte
	got, end := 0, -1
	for end < 0 {
		if got == len(b) {
			return n, nil, errLine
		}
		m, err := c.Read(b[got:])
		for i := got; i < got+m && end < 0; i++ {
			if b[i] == '\n' {
				end = i
			}
		}
		got += m
		if err != nil && end < 0 {
			return n, nil, err
		}
	}
	if err := json.Unmarshal(b[:end], &n); err != nil {
		return n, nil, errLine
	}
	n.Command = clean(n.Command)
	return n, append(rest, b[end+1:got]...), c.SetReadDeadline(time.Time{})
}

// conn gives back what came with its line first.
type conn struct {
	net.Conn
	command string
	mu      sync.Mutex
	rest    []byte
}

func (c *conn) Command() string { return c.command }

func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	if len(c.rest) > 0 {
		defer c.mu.Unlock()
		n := copy(b, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	c.mu.Unlock()
	return c.Conn.Read(b)
}

// CloseWrite tells the other end that no more is sent.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}
