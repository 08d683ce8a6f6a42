// Package dial is how a runner asks its node daemon for clones and sandboxes.
// A socket path and a grant of the control plane go in; a restore's report or a
// sandbox's control stream comes out, with the listeners of its ways out. The
// daemon may be restarted at any moment, so its absence is waited out, as long
// as the context lasts; what it refuses is an error at once.
package dial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// maxReply bounds an answer of the daemon, in bytes.
const maxReply = 1 << 20

// startTimeout is how long the daemon may take to start a sandbox before it is
// asked again. It ends an earlier one first if it must.
const startTimeout = 90 * time.Second

// absence is how the daemon's absence is waited out.
var absence = proc.Policy{First: 50 * time.Millisecond, Max: 2 * time.Second}

// Restore asks for the grant's clone. It is idempotent: a clone that is there
// is reported again. The error is a *wire.Error if the daemon refused
// (code "not_found": no such snapshot here; "no_space"; "unauthorized"; "busy"),
// or wraps the context's cause.
func Restore(ctx context.Context, socket, grant string) (wire.RestoreReply, error) {
	var r wire.RestoreReply
	err := insist(ctx, "restore a clone", func(ctx context.Context) error {
		return post(ctx, socket, "/restore", wire.RestoreRequest{Grant: grant}, &r)
	})
	return r, err
}

// KeepTurn keeps the state of the grant's clone as that after a turn. It is
// idempotent by turn. Errors as for Restore, and of code "unsupported": the
// store cannot; "too_large": as many are kept as may be.
func KeepTurn(ctx context.Context, socket, grant string, turn int) error {
	return insist(ctx, "keep a turn", func(ctx context.Context) error {
		return post(ctx, socket, "/turn", wire.TurnRequest{Grant: grant, Turn: turn}, nil)
	})
}

// Discard ends what runs in the grant's clone and removes it. Not found is
// success. Errors as for Restore.
func Discard(ctx context.Context, socket, grant string) error {
	return insist(ctx, "discard a clone", func(ctx context.Context) error {
		return post(ctx, socket, "/discard", wire.DiscardRequest{Grant: grant}, nil)
	})
}

// List asks what is on the node. Only root and the control plane's account are
// answered. Errors as for Restore.
func List(ctx context.Context, socket string) (s wire.NodeState, err error) {
	err = insist(ctx, "list what is on the node", func(ctx context.Context) error {
		return post(ctx, socket, "/list", struct{}{}, &s)
	})
	return s, err
}

// Space asks how much room there is on the node. Errors as for List.
func Space(ctx context.Context, socket string) (s wire.SpaceReply, err error) {
	err = insist(ctx, "ask for the node's space", func(ctx context.Context) error {
		return post(ctx, socket, "/space", struct{}{}, &s)
	})
	return s, err
}

// Images lists the container images on the node. Only root and the control
// plane's account are answered. A daemon that is away is not waited for: it is a
// person who asks.
func Images(ctx context.Context, socket string) (all []wire.Image, err error) {
	err = post(ctx, socket, "/images", struct{}{}, &all)
	return all, err
}

// ImportImage has the image in an archive unpacked on the node. Only root and
// the daemon's own account may. A daemon that is away is not waited for: the
// archive can be read only once.
func ImportImage(ctx context.Context, socket string, archive io.Reader) (im wire.Image, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/images/import", archive)
	if err != nil {
		return im, err
	}
	req.Header.Set("Expect", "100-continue") // nothing is sent to who refuses
	err = ask(socket, req, &im)
	return im, err
}

// Run asks for what (start, state, stop, logs or forget) to be done with the
// runner of the grant's attempt, or with all (stop-all, list). Errors as for
// Restore.
func Run(ctx context.Context, socket, what, grant, secret string) (r wire.RunReply, err error) {
	err = insist(ctx, what+" a runner", func(ctx context.Context) error {
		return post(ctx, socket, "/run/"+what, wire.RunRequest{Grant: grant, Secret: secret}, &r)
	})
	return r, err
}

// Quarantine starts a quarantine's sandbox. Errors as for Restore.
func Quarantine(ctx context.Context, socket, grant string) (Running, error) {
	return Start(ctx, socket, wire.SandboxRequest{Grant: grant, Quarantine: true})
}

// Running is a sandbox that was started.
type Running struct {
	// Client runs commands in it. Closing it ends the sandbox; the daemon's end
	// does not.
	Client *stream.Client
	// Ends gets one SandboxEnd once everything in the sandbox is gone, and is
	// closed; it is closed without one if the daemon ended before the sandbox.
	// Who does not read it loses nothing.
	Ends <-chan wire.SandboxEnd
	// Sockets are the grant's (wire.SocketModel, …). Each is the only listener
	// there is and the caller's to close.
	Sockets map[string]net.Listener
}

// Sandbox starts a sandbox over the grant's clone, which must have been
// restored. An earlier one of the same clone is ended. Errors as for Restore.
func Sandbox(ctx context.Context, socket, grant string) (Running, error) {
	return Start(ctx, socket, wire.SandboxRequest{Grant: grant})
}

// Start is Sandbox with all that can be asked for.
func Start(ctx context.Context, socket string, ask wire.SandboxRequest) (Running, error) {
	var r Running
	err := insist(ctx, "start a sandbox", func(ctx context.Context) error {
		near, c, sockets, err := start(ctx, socket, ask)
		if err != nil {
			return err
		}
		r = Running{Client: stream.NewClient(near), Ends: await(c), Sockets: sockets}
		return nil
	})
	return r, err
}

// insist repeats fn while the daemon is away or says that it cannot for now.
func insist(ctx context.Context, what string, fn func(context.Context) error) error {
	err := proc.Retry(ctx, proc.System(), absence, func(ctx context.Context) error {
		err := fn(ctx)
		var refused *wire.Error
		if errors.As(err, &refused) && refused.Code != "unavailable" {
			return proc.Permanent(err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func connect(ctx context.Context, socket string) (*net.UnixConn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("the node daemon does not answer, does it run? %w", err)
	}
	return c.(*net.UnixConn), nil
}

// post makes one request on a connection of its own: after a restart of the
// daemon an idle one would only fail.
func post(ctx context.Context, socket, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return ask(socket, req, out)
}

func ask(socket string, req *http.Request, out any) error {
	t := &http.Transport{
		DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx, socket) },
		DisableKeepAlives:     true,
		ExpectContinueTimeout: startTimeout,
	}
	defer t.CloseIdleConnections()
	res, err := t.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("ask the node daemon: %w", err)
	}
	defer res.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	if err != nil {
		return fmt.Errorf("read the node daemon's answer: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(reply, out); err != nil {
			return fmt.Errorf("read the node daemon's answer: %w", err)
		}
		return nil
	}
	return refusal(reply, res.Status)
}

func refusal(reply []byte, otherwise string) error {
	e := &wire.Error{}
	if json.Unmarshal(reply, e) != nil || e.Code == "" {
		return &wire.Error{Code: "bad_request", Message: "the node daemon does not understand: " + otherwise}
	}
	return e
}

// start sends one sandbox request with the far end of a new control stream.
func start(ctx context.Context, socket string, ask wire.SandboxRequest) (near io.ReadWriteCloser, conn *net.UnixConn, sockets map[string]net.Listener, err error) {
	c, err := connect(ctx, socket)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	ours, theirs, err := stream.Pair()
	if err != nil {
		return nil, nil, nil, err
	}
	defer theirs.Close() // the daemon has its own by then
	defer func() {
		if err != nil {
			ours.Close() // and with it a sandbox that was started without our knowing
		}
	}()
	_ = c.SetDeadline(time.Now().Add(startTimeout))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	line, err := json.Marshal(ask)
	if err != nil {
		return nil, nil, nil, err
	}
	err = send(c, append(line, '\n'), theirs)
	var reply wire.SandboxReply
	var files []*os.File // closed below: a listener has a descriptor of its own
	if err == nil {
		files, err = readReply(c, &reply)
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if !stop() {
		return nil, nil, nil, errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("ask the node daemon: %w", err)
	}
	if !reply.OK {
		if reply.Error == nil {
			return nil, nil, nil, &wire.Error{Code: "bad_request", Message: "the node daemon refused without a word"}
		}
		return nil, nil, nil, reply.Error
	}
	if sockets, err = listeners(reply.Sockets, files); err != nil {
		return nil, nil, nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return ours, c, sockets, nil
}

// listeners makes listeners of the descriptors that came with a reply.
func listeners(names []string, files []*os.File) (_ map[string]net.Listener, err error) {
	if len(names) != len(files) {
		return nil, broken("it names %d sockets and passed %d", len(names), len(files))
	}
	out := map[string]net.Listener{}
	defer func() {
		if err != nil {
			for _, l := range out {
				l.Close()
			}
		}
	}()
	for i, f := range files {
		if names[i] == "" || out[names[i]] != nil {
			return nil, broken("it names a socket %q twice or not at all", names[i])
		}
		if !listens(f) {
			return nil, broken("what it passed as socket %q is no listening unix socket", names[i])
		}
		l, err := net.FileListener(f)
		if err != nil {
			return nil, broken("what it passed as socket %q cannot be used: %v", names[i], err)
		}
		out[names[i]] = l
	}
	return out, nil
}

// broken is the error of a daemon that does not keep to the protocol.
func broken(format string, args ...any) error {
	return &wire.Error{Code: "bad_request", Message: "the node daemon speaks another protocol: " + fmt.Sprintf(format, args...)}
}

// listens says whether f is a listening unix stream socket.
func listens(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	cerr := raw.Control(func(fd uintptr) {
		ok = true
		for option, want := range map[int]int{
			unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_STREAM, unix.SO_ACCEPTCONN: 1,
		} {
			got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option)
			ok = ok && err == nil && got == want
		}
	})
	return cerr == nil && ok
}

func send(c *net.UnixConn, line []byte, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var werr error
	if err := raw.Control(func(fd uintptr) {
		n, _, werr = c.WriteMsgUnix(line, unix.UnixRights(int(fd)), nil)
	}); err != nil {
		return err
	}
	if werr == nil && n < len(line) {
		_, werr = c.Write(line[n:])
	}
	return werr
}

// maxPassed bounds the descriptors of a reply.
const maxPassed = 8

// readReply reads one line of JSON, no further: what follows is the SandboxEnd.
// With its first byte, and no later one, descriptors may come, which are the
// caller's to close, on error too.
func readReply(c *net.UnixConn, reply *wire.SandboxReply) (files []*os.File, err error) {
	var line []byte
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(maxPassed*4))
	for {
		n, noob, flags, _, err := c.ReadMsgUnix(b, oob)
		if noob > 0 {
			files = append(files, passed(oob[:noob])...)
		}
		switch {
		case err != nil:
			return files, err
		case n == 0:
			return files, io.ErrUnexpectedEOF
		case flags&unix.MSG_CTRUNC != 0 || noob > 0 && len(line) > 0:
			return files, broken("it passed descriptors that are not expected")
		case b[0] == '\n':
			return files, json.Unmarshal(line, reply)
		}
		line = append(line, b[0])
		if len(line) > maxReply {
			return files, errors.New("the answer is too long")
		}
	}
}

// passed are the descriptors in a message's control data. They are closed on
// exec.
func passed(oob []byte) (files []*os.File) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // not descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files
}

// await passes on the SandboxEnd. Its goroutine ends with the sandbox or the
// daemon: the connection is closed then.
func await(c *net.UnixConn) <-chan wire.SandboxEnd {
	ends := make(chan wire.SandboxEnd, 1)
	go func() {
		defer close(ends)
		defer c.Close()
		line, err := bufio.NewReader(io.LimitReader(c, maxReply)).ReadBytes('\n')
		if err != nil {
			return
		}
		var end wire.SandboxEnd
		if json.Unmarshal(line, &end) == nil {
			ends <- end
		}
	}()
	return ends
}
