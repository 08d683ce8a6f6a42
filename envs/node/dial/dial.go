// Package dial is how a runner asks its node daemon for clones and sandboxes.
// A socket path and a grant of the control plane go in; a restore's report or a
// sandbox's control stream comes out. The daemon may be restarted at any
// moment, so its absence is waited out, as long as the context lasts; what it
// refuses is an error at once.
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

// Discard ends what runs in the grant's clone and removes it. Not found is
// success. Errors as for Restore.
func Discard(ctx context.Context, socket, grant string) error {
	return insist(ctx, "discard a clone", func(ctx context.Context) error {
		return post(ctx, socket, "/discard", wire.DiscardRequest{Grant: grant}, nil)
	})
}

// Sandbox starts a sandbox over the grant's clone, which must have been
// restored. An earlier one of the same clone is ended. Closing the client ends
// the sandbox; the daemon's end does not. The channel gets one SandboxEnd once
// everything in the sandbox is gone, and is closed; it is closed without one if
// the daemon ended before the sandbox. Who does not read it loses nothing.
// Errors as for Restore.
func Sandbox(ctx context.Context, socket, grant string) (*stream.Client, <-chan wire.SandboxEnd, error) {
	var client *stream.Client
	var ends <-chan wire.SandboxEnd
	err := insist(ctx, "start a sandbox", func(ctx context.Context) error {
		near, c, err := start(ctx, socket, grant)
		if err != nil {
			return err
		}
		client = stream.NewClient(near)
		ends = await(c)
		return nil
	})
	return client, ends, err
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
		return nil, fmt.Errorf("the node daemon does not answer: %w", err)
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
	t := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx, socket) },
		DisableKeepAlives: true,
	}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
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
func start(ctx context.Context, socket, grant string) (near io.ReadWriteCloser, conn *net.UnixConn, err error) {
	c, err := connect(ctx, socket)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	ours, theirs, err := stream.Pair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close() // the daemon has its own by then
	defer func() {
		if err != nil {
			ours.Close() // and with it a sandbox that was started without our knowing
		}
	}()
	_ = c.SetDeadline(time.Now().Add(startTimeout))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	line, err := json.Marshal(wire.SandboxRequest{Grant: grant})
	if err != nil {
		return nil, nil, err
	}
	err = send(c, append(line, '\n'), theirs)
	reply := wire.SandboxReply{}
	if err == nil {
		err = readLine(c, &reply)
	}
	if !stop() {
		return nil, nil, errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("ask the node daemon: %w", err)
	}
	if !reply.OK {
		if reply.Error == nil {
			return nil, nil, &wire.Error{Code: "bad_request", Message: "the node daemon refused without a word"}
		}
		return nil, nil, reply.Error
	}
	_ = c.SetDeadline(time.Time{})
	return ours, c, nil
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

// readLine reads one line of JSON, no further: what follows is the SandboxEnd.
func readLine(c net.Conn, v any) error {
	var line []byte
	b := make([]byte, 1)
	for {
		n, err := c.Read(b)
		if n == 1 && b[0] == '\n' {
			return json.Unmarshal(line, v)
		}
		if n == 1 {
			line = append(line, b[0])
		}
		if err != nil {
			return err
		}
		if len(line) > maxReply {
			return errors.New("the answer is too long")
		}
	}
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
