package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// maxReply bounds what is read of an answer of the control plane.
const maxReply = 16 << 20

// errNone: the long poll ended without work.
var errNone = errors.New("nothing to do")

// control is the client of the control plane's /node/v1 API.
type control struct {
	base  string
	token string
	http  *http.Client
}

func newControl(base, token string, rt http.RoundTripper) (*control, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("the control plane's address %q is not an http or https URL", base)
	}
	return &control{
		base: strings.TrimRight(base, "/") + "/node/v1", token: token,
		http: &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the token goes nowhere else
		}},
	}, nil
}

// do sends in and reads the answer into out; nil means none. The error is a
// *wire.Error for a refusal; anything else means that the control plane could
// not be asked.
func (c *control) do(ctx context.Context, method, path string, in, out any, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the control plane: %w", err)
	}
	defer res.Body.Close()
	if err := wire.Answered("the node daemon", res.Header.Get(wire.HeaderVersion)); err != nil {
		return fmt.Errorf("the control plane's answer to %s %s counts for nothing: %v", method, path, err) // no refusal: it may be updated
	}
	reply, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	if err != nil {
		return fmt.Errorf("read the control plane's answer: %w", err)
	}
	if len(reply) > maxReply {
		return fmt.Errorf("the control plane's answer to %s %s is longer than %d bytes", method, path, maxReply)
	}
	switch {
	case res.StatusCode == http.StatusNoContent:
		if out != nil {
			return errNone
		}
		return nil
	case res.StatusCode >= 200 && res.StatusCode < 300:
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(reply, out); err != nil {
			return fmt.Errorf("the control plane's answer to %s %s cannot be read: %w", method, path, err)
		}
		return nil
	}
	e := &wire.Error{}
	if json.Unmarshal(reply, e) != nil || e.Code == "" {
		return fmt.Errorf("the control plane answered %s %s with %s", method, path, res.Status)
	}
	if res.StatusCode >= 500 || e.Code == "version" { // either side may be updated
		return fmt.Errorf("the control plane answered %s %s: %s", method, path, e.Message)
	}
	return e
}

// Timeouts of calls. The long poll is held for up to 25 s by the other side.
const (
	callTimeout = 15 * time.Second
	pollTimeout = 40 * time.Second
)

func (c *control) refs(ctx context.Context) (r wire.Refs, err error) {
	err = c.do(ctx, "GET", "/refs", nil, &r, callTimeout)
	return r, err
}

func (c *control) work(ctx context.Context) (w wire.Work, err error) {
	err = c.do(ctx, "GET", "/work", nil, &w, pollTimeout)
	return w, err
}

func (c *control) workDone(ctx context.Context, id int64, r wire.WorkResult) error {
	return c.do(ctx, "POST", "/work/"+strconv.FormatInt(id, 10), r, nil, callTimeout)
}

func (c *control) offer(ctx context.Context, o wire.SnapshotOffer) error {
	return c.do(ctx, "POST", "/snapshots", o, nil, callTimeout)
}

func (c *control) gitToken(ctx context.Context, r wire.GitTokenRequest) (t wire.GitToken, err error) {
	err = c.do(ctx, "POST", "/token", r, &t, callTimeout)
	return t, err
}

// secrets asks for the secrets that a work item's environment names.
func (c *control) secrets(ctx context.Context, work int64, names []string) (map[string]string, error) {
	var reply wire.SecretsReply
	err := c.do(ctx, "POST", "/work/"+strconv.FormatInt(work, 10)+"/secrets", wire.SecretsRequest{Names: names}, &reply, callTimeout)
	return reply.Values, err
}

func (c *control) state(ctx context.Context, s wire.NodeState) error {
	return c.do(ctx, "POST", "/state", s, nil, callTimeout)
}

// away is how the daemon waits for a control plane that cannot be asked.
var away = proc.Policy{First: 200 * time.Millisecond, Max: 5 * time.Second}

// insist repeats a report until the control plane has taken or refused it. The
// error is the refusal, or the context's.
func (n *Node) insist(ctx context.Context, what string, call func(context.Context) error) error {
	err := proc.Retry(ctx, n.clock, away, func(ctx context.Context) error {
		err := call(ctx)
		var refused *wire.Error
		if errors.As(err, &refused) {
			return proc.Permanent(err)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("the control plane cannot be reached; trying again", "what", what, "error", err)
		}
		return err
	})
	return err
}
