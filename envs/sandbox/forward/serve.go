package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the side inside.
const (
	// maxConns are one way's connections at once. Further ones wait to be accepted.
	maxConns = 256
	// maxCalls is how many system calls on connections are made at once, and so
	// how many threads they can hold: the init lives from the threads it has,
	// because in a full process table there are no more.
	maxCalls    = 4
	bufferBytes = 16 << 10
	// A socket outside that has too many callers waiting is tried again.
	dialTries = 40
	dialWait  = 50 * time.Millisecond
	// acceptWait follows an accept that failed, for lack of descriptors probably.
	acceptWait = 50 * time.Millisecond
	// nameWait is how long a connection waits for the search for its name,
	// which is done for one at a time.
	nameWait = 5 * time.Second
)

// Threads is how many threads a Server may hold at once in system calls.
const Threads = maxCalls + 4 + 1 // and one for each listener and for the search for names

// Server is the side inside.
type Server struct {
	listeners []net.Listener
	calls     chan struct{} // held during a system call on a connection
	searching chan struct{} // held during the search for a name
	buffers   sync.Pool

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
	wg     sync.WaitGroup
}

// Open listens on every way's port, on 127.0.0.1 and, where there is one, on
// ::1, and serves until Close. It returns when all of them listen.
func Open(ways []Way) (_ *Server, err error) {
	s := &Server{
		calls: make(chan struct{}, maxCalls), searching: make(chan struct{}, 1), conns: map[net.Conn]bool{},
		buffers: sync.Pool{New: func() any { return new([bufferBytes]byte) }},
	}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(false)
	for _, w := range ways {
		room := make(chan struct{}, maxConns)
		for _, host := range []string{"127.0.0.1", "::1"} {
			l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(w.Port)))
			if err != nil && host == "::1" && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)) {
				continue // no IPv6 here
			}
			if err != nil {
				return nil, fmt.Errorf("listen on port %d: %w", w.Port, err)
			}
			s.listeners = append(s.listeners, l)
			s.wg.Go(func() { s.accept(l, w, room) })
		}
	}
	return s, nil
}

// Close ends every connection and waits until nothing is left.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

func (s *Server) accept(l net.Listener, w Way, room chan struct{}) {
	for {
		room <- struct{}{}
		c, err := l.Accept()
		if err != nil {
			<-room
			if s.over() {
				return
			}
			time.Sleep(acceptWait)
			continue
		}
		s.wg.Go(func() {
			defer func() { <-room }()
			s.serve(w, c.(*net.TCPConn))
		})
	}
}

func (s *Server) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// hold makes Close end c; false: it is too late for that.
func (s *Server) hold(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = true
	}
	return !s.closed
}

// drop closes c, which nobody uses any more: closing waits for those who do, and
// they may be waiting for their turn.
func (s *Server) drop(c net.Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.call(func() { c.Close() })
}

// call makes system calls, when it is their turn.
func (s *Server) call(f func()) {
	s.calls <- struct{}{}
	defer func() { <-s.calls }()
	f()
}

// serve carries one connection.
func (s *Server) serve(w Way, c *net.TCPConn) {
	defer s.drop(c)
	if !s.hold(c) {
		return
	}
	var line []byte
	if w.Named {
		line = s.nameOf(c) // first: the other end does not wait long for it
	}
	up, err := s.dial(w.Socket)
	if err != nil {
		return // the client sees its connection closed
	}
	defer s.drop(up)
	if !s.hold(up) {
		return
	}
	// Always exactly one line, whatever it says: what follows is the client's.
	if w.Named && s.write(raw(up), line) != nil {
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		s.copy(c, up)
	}()
	s.copy(up, c)
	<-back
}

func (s *Server) dial(socket string) (up *net.UnixConn, err error) {
	for range dialTries {
		s.call(func() { up, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"}) })
		if !errors.Is(err, unix.EAGAIN) || s.over() {
			return up, err
		}
		time.Sleep(dialWait)
	}
	return nil, err
}

// nameOf is the line that says who connected.
func (s *Server) nameOf(c *net.TCPConn) []byte {
	var n name
	patience := time.NewTimer(nameWait)
	defer patience.Stop()
	select {
	case s.searching <- struct{}{}:
		n = who(addrPort(c.RemoteAddr()), addrPort(c.LocalAddr()))
		<-s.searching
	case <-patience.C:
	}
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // a number and a string
	}
	return append(b, '\n')
}

func addrPort(a net.Addr) netip.AddrPort {
	t := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(t.Addr().Unmap(), t.Port())
}

// stream is a connection that can be half-closed.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// copy carries what from sends to to, and then its end. A sender that is gone
// ends both; a receiver that takes no more may still be sending.
func (s *Server) copy(to, from stream) {
	in, out := raw(from), raw(to)
	for {
		b, err := s.read(in)
		if err != nil {
			s.cut(in)
			s.cut(out)
			return
		}
		if b == nil {
			s.call(func() { _ = to.CloseWrite() })
			return
		}
		err = s.write(out, b.data[:b.n])
		s.buffers.Put(b.data)
		if err != nil {
			return
		}
	}
}

// cut ends both directions of a connection that is still in use.
func (s *Server) cut(rc syscall.RawConn) {
	s.call(func() { _ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) })
}

func raw(c syscall.Conn) syscall.RawConn {
	rc, err := c.SyscallConn()
	if err != nil {
		panic(err) // only of a nil connection
	}
	return rc
}

// filled is a buffer of the pool with n bytes in it.
type filled struct {
	data *[bufferBytes]byte
	n    int
}

// read waits for data and takes some; nil is the end of it. A buffer is only
// held while there is something in it.
func (s *Server) read(rc syscall.RawConn) (got *filled, err error) {
	cerr := rc.Read(func(fd uintptr) (done bool) {
		s.call(func() {
			b := s.buffers.Get().(*[bufferBytes]byte)
			n, e := retry(func() (int, error) { return unix.Read(int(fd), b[:]) })
			if n <= 0 || e != nil {
				s.buffers.Put(b)
				err, done = e, e != unix.EAGAIN
				return
			}
			got, err, done = &filled{b, n}, nil, true
		})
		return done
	})
	if cerr != nil {
		return nil, cerr
	}
	return got, err
}

func (s *Server) write(rc syscall.RawConn, b []byte) (err error) {
	cerr := rc.Write(func(fd uintptr) (done bool) {
		s.call(func() {
			var n int
			n, err = retry(func() (int, error) { return unix.Write(int(fd), b) })
			if err == nil {
				b = b[n:]
			}
			done = err == nil && len(b) == 0 || err != nil && err != unix.EAGAIN
		})
		return done
	})
	if cerr != nil {
		return cerr
	}
	return err
}

func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
