package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/wire"
)

// Bounds on what a caller may do before it has shown a grant.
const (
	maxRequest   = 32 << 10 // bytes of a request; a grant has at most 16 KiB
	helloTimeout = 10 * time.Second
	maxStrangers = 64 // connections of one uid that have not shown a good grant
	maxPassed    = 4  // descriptors looked at in one message; the kernel drops more
)

// server is the daemon's unix socket. A connection that begins with { is a
// sandbox request (descriptors travel on it), any other is HTTP.
type server struct {
	n    *Node
	l    *net.UnixListener
	http *http.Server
	toHTTP
	callers sync.WaitGroup // connections
	verbs   sync.WaitGroup // HTTP requests

	mu        sync.Mutex
	strangers map[int]int
}

// listen opens the socket. One that a killed daemon left behind is replaced: the
// lock on the root says that it is nobody's.
func (n *Node) listen() (*server, error) {
	if st, err := os.Lstat(n.o.Socket); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s is there and is not a socket", n.o.Socket)
		}
		if err := os.Remove(n.o.Socket); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.o.Socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Anyone on the machine may knock; the grant names the uid that is let in.
	if err := os.Chmod(n.o.Socket, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	s := &server{n: n, l: l, strangers: map[int]int{}, toHTTP: toHTTP{conns: make(chan net.Conn), closed: make(chan struct{}), addr: l.Addr()}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /restore", s.handle(func(ctx context.Context, uid int, body []byte) (any, error) {
		var r wire.RestoreRequest
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, badRequest("the request is not JSON")
		}
		return n.restore(ctx, uid, r.Grant)
	}))
	mux.HandleFunc("POST /turn", s.handle(func(ctx context.Context, uid int, body []byte) (any, error) {
		var r wire.TurnRequest
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, badRequest("the request is not JSON")
		}
		return struct{}{}, n.keepTurn(ctx, uid, r)
	}))
	mux.HandleFunc("POST /discard", s.handle(func(ctx context.Context, uid int, body []byte) (any, error) {
		var r wire.DiscardRequest
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, badRequest("the request is not JSON")
		}
		return struct{}{}, n.discardGranted(ctx, uid, r.Grant)
	}))
	mux.HandleFunc("POST /list", s.handle(func(ctx context.Context, uid int, _ []byte) (any, error) {
		if err := n.mayLook(uid); err != nil {
			return nil, err
		}
		return n.state(ctx)
	}))
	mux.HandleFunc("POST /space", s.handle(func(ctx context.Context, uid int, _ []byte) (any, error) {
		if err := n.mayLook(uid); err != nil {
			return nil, err
		}
		sp, err := n.o.Store.Space(ctx)
		return wire.SpaceReply{FreeBytes: sp.Free, TotalBytes: sp.Total, Refuses: n.refuses(sp)}, err
	}))
	mux.HandleFunc("POST /images", s.handle(func(ctx context.Context, uid int, _ []byte) (any, error) {
		if err := n.mayLook(uid); err != nil {
			return nil, err
		}
		return n.listImages(ctx)
	}))
	mux.HandleFunc("POST /images/import", s.frame(func(w http.ResponseWriter, r *http.Request, uid int) (any, error) {
		if err := n.mayImport(uid); err != nil {
			return nil, err
		}
		// An archive takes as long as it takes.
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			return nil, err
		}
		im, err := n.importImage(r.Context(), "", r.Body)
		if err != nil { // who still speaks would not hear the answer
			_, _ = io.Copy(io.Discard, r.Body)
		}
		return im, err
	}))
	for path, do := range map[string]func(context.Context, wire.Grant, string) (wire.RunReply, error){
		"POST /run/start": n.runStart, "POST /run/state": n.runState, "POST /run/stop": n.runStop, "POST /run/stop-all": n.runStopAll,
		"POST /run/logs": n.runLogs, "POST /run/list": n.runList, "POST /run/forget": n.runForget,
	} {
		mux.HandleFunc(path, s.handle(func(ctx context.Context, uid int, body []byte) (any, error) {
			var r wire.RunRequest
			if err := json.Unmarshal(body, &r); err != nil {
				return nil, badRequest("the request is not JSON")
			}
			g, err := n.openControl(r.Grant, wire.VerbRun, uid)
			if err != nil {
				return nil, err
			}
			return do(ctx, g, r.Secret)
		}))
	}
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: helloTimeout, ReadTimeout: helloTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*httpConn).uid)
		},
	}
	return s, nil
}

// mayLook lets in who may ask about everything on this node: root, the daemon's
// own account and the control plane's.
func (n *Node) mayLook(uid int) error {
	if uid == 0 || uid == os.Geteuid() || n.o.ControlUID != 0 && uid == n.o.ControlUID {
		return nil
	}
	return refuse("unauthorized", "only root and the control plane of this machine may look at what is on the node")
}

// mayImport lets in who may bring an image: root and the daemon's own account.
func (n *Node) mayImport(uid int) error {
	if uid == 0 || uid == os.Geteuid() {
		return nil
	}
	return refuse("unauthorized", "only root, or the account that the node daemon runs as, may bring an image")
}

// serve accepts until ctx ends, then waits for what it is doing. The socket
// file goes with the listener.
func (s *server) serve(ctx context.Context) {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.http.Serve(&s.toHTTP); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			s.n.log.Error("the HTTP side of the node's socket ended", "error", err)
		}
	})
	wg.Go(func() {
		<-ctx.Done()
		s.l.Close()
		// Requests in hand see ctx end, which theirs come from.
		_ = s.http.Close()
		s.toHTTP.Close()
	})
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			s.n.log.Warn("a connection could not be accepted", "error", err)
			if errors.Is(err, net.ErrClosed) {
				break
			}
			select { // out of descriptors, probably
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		s.callers.Go(func() { s.greet(ctx, c) })
	}
	s.callers.Wait()
	wg.Wait()
	s.verbs.Wait()
}

// greet finds out who calls and what for.
func (s *server) greet(ctx context.Context, c *net.UnixConn) {
	uid, err := peerUID(c)
	if err != nil || !s.admit(uid) {
		c.Close()
		return
	}
	leave := sync.OnceFunc(func() { s.leave(uid) })
	defer leave()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(helloTimeout))
	head, files, err := receive(c)
	if err != nil && len(head) > 0 && head[0] == '{' {
		_ = json.NewEncoder(c).Encode(wire.SandboxReply{Error: badRequest(err.Error())})
	}
	if err != nil || len(head) == 0 {
		closeAll(files)
		c.Close()
		return
	}
	if head[0] == '{' {
		s.n.sandboxConn(ctx, c, uid, head, files, leave)
		return
	}
	closeAll(files) // HTTP has no use for them
	hc := &httpConn{UnixConn: c, uid: uid, head: head, gone: make(chan struct{})}
	_ = c.SetDeadline(time.Time{})
	select {
	case s.toHTTP.conns <- hc:
	case <-s.toHTTP.closed:
		c.Close()
		return
	}
	select {
	case <-hc.gone:
	case <-ctx.Done():
	}
}

func (s *server) admit(uid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strangers[uid] >= maxStrangers && uid != 0 {
		return false
	}
	s.strangers[uid]++
	return true
}

func (s *server) leave(uid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strangers[uid]--; s.strangers[uid] <= 0 {
		delete(s.strangers, uid)
	}
}

// handle is the frame of a verb with a bounded body.
func (s *server) handle(verb func(ctx context.Context, uid int, body []byte) (any, error)) http.HandlerFunc {
	return s.frame(func(w http.ResponseWriter, r *http.Request, uid int) (any, error) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			return nil, refuse("too_large", "the request is longer than 32 KiB or did not come whole")
		}
		return verb(r.Context(), uid, body)
	})
}

// frame is that of every HTTP verb: who calls, an answer or a refusal as JSON.
func (s *server) frame(verb func(w http.ResponseWriter, r *http.Request, uid int) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.verbs.Add(1)
		defer s.verbs.Done()
		uid, ok := r.Context().Value(peerKey{}).(int)
		if !ok {
			writeError(w, refuse("unauthorized", "it cannot be told who calls"))
			return
		}
		out, err := verb(w, r, uid)
		if err != nil {
			if r.Context().Err() == nil {
				s.n.log.Warn("refused a request on the node's socket", "path", r.URL.Path, "uid", uid, "error", err)
			}
			writeError(w, asError(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	}
}

func writeError(w http.ResponseWriter, e *wire.Error) {
	status, ok := map[string]int{
		"unauthorized": 401, "not_found": 404, "bad_request": 400, "too_large": 413, "busy": 409, "stale_generation": 409, "no_space": 507, "unsupported": 501,
	}[e.Code]
	if !ok {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
}

// peerUID is the uid of the process that connected.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	return int(cred.Uid), nil
}

// receive reads once, with the descriptors that came along. They are the
// caller's of receive to close, on error too.
func receive(c *net.UnixConn) ([]byte, []*os.File, error) {
	buf := make([]byte, 4096)
	oob := make([]byte, unix.CmsgSpace(maxPassed*4))
	nb, noob, flags, _, err := c.ReadMsgUnix(buf, oob)
	var files []*os.File
	if noob > 0 {
		msgs, perr := unix.ParseSocketControlMessage(oob[:noob])
		if perr != nil && err == nil {
			err = perr
		}
		for _, m := range msgs {
			fds, perr := unix.ParseUnixRights(&m)
			if perr != nil {
				continue // not descriptors
			}
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "passed"))
			}
		}
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("more descriptors were passed than are taken")
	}
	return buf[:nb], files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

type peerKey struct{}

// toHTTP is the listener of the HTTP server: connections found to speak HTTP.
type toHTTP struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	addr   net.Addr
}

func (t *toHTTP) Accept() (net.Conn, error) {
	select {
	case c := <-t.conns:
		return c, nil
	case <-t.closed:
		return nil, net.ErrClosed
	}
}

func (t *toHTTP) Close() error {
	t.once.Do(func() { close(t.closed) })
	return nil
}

func (t *toHTTP) Addr() net.Addr { return t.addr }

// httpConn gives back what was read to find out what it speaks. Descriptors
// passed later are dropped by the kernel, because Read takes no control data.
type httpConn struct {
	*net.UnixConn
	uid  int
	head []byte
	gone chan struct{}
	once sync.Once
}

func (c *httpConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.UnixConn.Read(b)
}

func (c *httpConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.UnixConn.Close()
}

// readLine reads the rest of a request line that ends with \n.
func readLine(c *net.UnixConn, head []byte, files []*os.File) ([]byte, []*os.File, error) {
	line := head
	for {
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			if i != len(line)-1 {
				return nil, files, badRequest("there is more than one line")
			}
			return line[:i], files, nil
		}
		if len(line) > maxRequest {
			return nil, files, refuse("too_large", "the request is longer than 32 KiB")
		}
		more, passed, err := receive(c)
		files = append(files, passed...)
		if err != nil {
			return nil, files, err
		}
		if len(more) == 0 {
			return nil, files, io.ErrUnexpectedEOF
		}
		if len(files) > maxPassed {
			return nil, files, badRequest("too many descriptors were passed")
		}
		line = append(line, more...)
	}
}
