package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/stripe/goproxy"
	"github.com/stripe/smokescreen/pkg/smokescreen"
	"github.com/stripe/smokescreen/pkg/smokescreen/conntrack"
)

// life is what a proxy has going on, so that it can be ended: the HTTP server
// forgets a connection that became a tunnel.
type life struct {
	ctx   context.Context // of Serve
	meter *Meter          // of what is dialled

	mu    sync.Mutex
	ended bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup // requests and tunnels
}

// enter is called at the beginning of a request; false: it is too late for one.
func (l *life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.wg.Add(1)
	}
	return !l.ended
}

func (l *life) leave() { l.wg.Done() }

// hold keeps a connection for the end; false: that has come.
func (l *life) hold(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		if l.conns == nil {
			l.conns = map[net.Conn]bool{}
		}
		l.conns[c] = true
	}
	return !l.ended
}

func (l *life) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// end closes every connection from inside, which ends what it was for, and
// waits for that.
func (l *life) end() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.cut()
	l.wg.Wait()
}

// cut closes every connection, from inside and to the outside: one of which one
// half has ended would not notice the end of the other.
func (l *life) cut() {
	l.mu.Lock()
	var all []net.Conn
	for c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// dial connects to an address that was checked. A tunnel's connection counts
// as one from here on, while its request still does. Whatever goes through it is
// metered.
func (l *life) dial(ctx context.Context, network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	out := &metered{Conn: c, life: l}
	if !l.hold(out) {
		c.Close()
		return nil, net.ErrClosed
	}
	if pc, ok := ctx.Value(goproxy.ProxyContextKey).(*goproxy.ProxyCtx); ok && pc.Req != nil && pc.Req.Method == http.MethodConnect {
		l.wg.Add(1) // what copies takes it away
	}
	return out, nil
}

// tunnel copies between the two ends of a CONNECT, each direction to its own
// end: one that has said all may still be told much.
func tunnel(client, target net.Conn) {
	var back sync.WaitGroup
	back.Go(func() { pump(client, target) })
	pump(target, client)
	back.Wait()
	client.Close()
	target.Close()
}

// pump copies until the sender's end. A sender that is gone ends both; a
// receiver that takes no more may still be sending.
func pump(to, from net.Conn) {
	_, err := io.Copy(sink{to}, from)
	var refused *sinkError
	switch {
	case err == nil:
		closeWrite(to)
	case !errors.As(err, &refused):
		from.Close()
		to.Close()
	}
}

// sink tells the errors of writing from those of reading.
type sink struct{ net.Conn }

type sinkError struct{ error }

func (s sink) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if err != nil {
		err = &sinkError{err}
	}
	return n, err
}

// closeWrite says on a connection that no more is sent.
func closeWrite(c net.Conn) {
	for {
		switch t := c.(type) {
		case *smokescreen.TimeoutConn:
			c = t.Conn
		case *conntrack.InstrumentedConn:
			c = t.Conn
		case interface{ CloseWrite() error }:
			_ = t.CloseWrite()
			return
		default:
			_ = c.Close()
			return
		}
	}
}

// gate accepts no more connections than there is room for.
type gate struct {
	net.Listener
	life *life
	idle time.Duration
	room chan struct{}
	over <-chan struct{}
}

func (g *gate) Accept() (net.Conn, error) {
	select {
	case g.room <- struct{}{}:
	case <-g.over:
		return nil, net.ErrClosed
	}
	c, err := g.Listener.Accept()
	if err != nil {
		<-g.room
		return nil, err
	}
	in := &inward{Conn: c, gate: g}
	if !g.life.hold(in) {
		in.Close()
		return nil, net.ErrClosed
	}
	return in, nil
}

// inward is a connection from inside. A client that takes nothing of its answer
// is given up.
type inward struct {
	net.Conn
	gate *gate
	once sync.Once
}

func (c *inward) Command() string {
	if n, ok := c.Conn.(interface{ Command() string }); ok {
		return n.Command()
	}
	return ""
}

func (c *inward) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.gate.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *inward) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

func (c *inward) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.gate.life.drop(c)
		<-c.gate.room
	})
	return err
}

// patientBody is a request's body that may be slow, but not stand still.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	idle    time.Duration
}

func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.idle))
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.control.SetReadDeadline(time.Time{}) // or it would end the answer
	}
	return n, err
}
