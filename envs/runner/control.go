package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// ErrStale is the end of a runner whose attempt is not the current one any
// more. It is not a failure: somebody else goes on.
var ErrStale = errors.New("this attempt has been replaced by a newer one")

// ErrRefused is the end of a runner that the control plane will not listen to:
// its identity is not accepted or its protocol not spoken.
var ErrRefused = errors.New("the control plane refuses this runner")

// maxReply bounds the body of a reply, in bytes. A spec holds a prompt, which
// is the largest of them.
const maxReply = 8 << 20

// unauthorizedTries is how often a call is answered 401 before that is
// believed: a token may just be changing.
const unauthorizedTries = 4

// control is the client of /runner/v1. Every call is tried again while the
// control plane is away or says that it cannot serve now.
type control struct {
	base  string
	http  *http.Client
	opt   *Options
	clock proc.Clock
	log   *slog.Logger
	red   *redact.Redactor
	fatal func(error) // told once of ErrStale and ErrRefused

	renewing sync.Mutex // one at a time asks for a new token

	mu    sync.Mutex
	token string
}

func newControl(o *Options, red *redact.Redactor, fatal func(error)) *control {
	rt := o.HTTP
	if rt == nil {
		rt = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     90 * time.Second,
			// No proxy from the environment: the token is for the control plane alone.
		}
	}
	return &control{
		base: strings.TrimSuffix(o.ControlURL, "/") + "/runner/v1/",
		http: &http.Client{
			Transport:     rt,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		opt: o, clock: o.Clock, log: o.Log, red: red, fatal: fatal,
	}
}

func (c *control) close() { c.http.CloseIdleConnections() }

func (c *control) setToken(t string) {
	if t == "" {
		return
	}
	c.red.Add(t)
	c.mu.Lock()
	c.token = t
	c.mu.Unlock()
}

// request is one call, so made that it can be tried again.
type request struct {
	method, path string
	body         any                           // JSON, or
	file         string                        // this file's content
	reply        any                           // JSON goes here, or
	to           func(io.Reader) error         // the body is read by this
	wait         time.Duration                 // of one try; 0: pace.request
	tries        int                           // 0: until the context ends
	open         func() (io.ReadCloser, error) // set by prepare
	size         int64                         // of the body
	noToken      bool
	each         func() (any, error) // makes body anew for each try
}

// do calls until there is an answer that no repetition will change. The error
// is a *wire.Error if the control plane refused, else ErrStale, ErrRefused or
// the context's cause.
func (c *control) do(ctx context.Context, r request) error {
	if err := r.prepare(); err != nil {
		return err
	}
	if r.wait == 0 {
		r.wait = c.opt.pace.request
	}
	unauthorized, said := 0, false
	err := proc.Retry(ctx, c.clock, proc.Policy{Attempts: r.tries, Max: c.opt.pace.retryMax}, func(ctx context.Context) error {
		token := c.bearer()
		err := c.try(ctx, r)
		if isUnauthorized(err) && !r.noToken {
			if rerr := c.renew(ctx, token); rerr != nil {
				err = rerr
			}
		}
		if err == nil {
			return nil
		}
		var we *wire.Error
		switch {
		case errors.As(err, &we) && we.Code == "stale_generation":
			c.fatal(ErrStale)
			return proc.Permanent(ErrStale)
		case isUnauthorized(err):
			// What an identity's file holds may have expired while its cluster was
			// away: somebody who was let in once tries on, as long as the call may take.
			if token != "" && c.opt.IdentityFile != "" {
				break
			}
			if unauthorized++; unauthorized >= unauthorizedTries || r.noToken && c.opt.IdentityFile == "" {
				err = fmt.Errorf("%w: %w", ErrRefused, err)
				c.fatal(err)
				return proc.Permanent(err)
			}
			return err
		case errors.As(err, &we) && we.Code == "version":
			err = fmt.Errorf("%w: %w", ErrRefused, err)
			c.fatal(err)
			return proc.Permanent(err)
		case errors.As(err, &we) && we.Code != "unavailable":
			return proc.Permanent(err)
		}
		if !said && ctx.Err() == nil {
			said = true
			c.log.Info("the control plane does not answer, trying again", "call", r.method+" "+r.path, "error", err)
		}
		return err
	})
	if err == nil && said {
		c.log.Info("the control plane answers again", "call", r.method+" "+r.path)
	}
	return err
}

func (r *request) prepare() error {
	switch {
	case r.file != "":
		st, err := os.Stat(r.file)
		if err != nil {
			return fmt.Errorf("read what is to be uploaded: %w", err)
		}
		r.size = st.Size()
		r.open = func() (io.ReadCloser, error) { return os.Open(r.file) }
	case r.body != nil:
		b, err := json.Marshal(r.body)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", r.method, r.path, err)
		}
		r.size = int64(len(b))
		r.open = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	}
	return nil
}

// try makes the call once.
func (c *control) try(ctx context.Context, r request) error {
	ctx, cancel := proc.WithTimeout(ctx, c.clock, r.wait)
	defer cancel()
	if r.each != nil {
		var err error
		if r.body, err = r.each(); err != nil {
			return err
		}
		if err := r.prepare(); err != nil {
			return proc.Permanent(err)
		}
	}
	var body io.ReadCloser
	if r.open != nil {
		var err error
		if body, err = r.open(); err != nil {
			return proc.Permanent(fmt.Errorf("read what is to be uploaded: %w", err))
		}
		defer body.Close()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, nil)
	if err != nil {
		return proc.Permanent(err)
	}
	if body != nil {
		req.Body, req.ContentLength = body, r.size
		if r.size == 0 {
			req.Body = http.NoBody
		}
		req.Header.Set("Content-Type", "application/octet-stream")
		if r.body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
	}
	c.sign(req.Header)
	if r.noToken {
		req.Header.Del("Authorization")
	}
	res, err := c.http.Do(req)
	if err != nil {
		// The address is in the error of http; the words of it suffice.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	defer func() {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be used again
		_ = res.Body.Close()
	}()
	if err := wire.Answered("the runner", res.Header.Get(wire.HeaderVersion)); err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		return refusal(r, res)
	}
	switch {
	case r.to != nil:
		return r.to(res.Body)
	case r.reply != nil:
		b, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
		if err != nil {
			return fmt.Errorf("read the reply to %s %s: %w", r.method, r.path, err)
		}
		if len(b) > maxReply {
			return proc.Permanent(fmt.Errorf("the reply to %s %s is longer than %d bytes", r.method, r.path, maxReply))
		}
		if err := json.Unmarshal(b, r.reply); err != nil {
			return fmt.Errorf("the reply to %s %s is not what it should be: %w", r.method, r.path, err)
		}
	}
	return nil
}

// sign puts who we are on a request to the control plane.
func (c *control) sign(h http.Header) {
	h.Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
	h.Set(wire.HeaderSession, c.opt.Session)
	h.Set(wire.HeaderGeneration, strconv.Itoa(c.opt.Generation))
	h.Set("Authorization", "Bearer "+c.bearer())
}

func (c *control) bearer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

func isUnauthorized(err error) bool {
	var we *wire.Error
	return errors.As(err, &we) && we.Code == "unauthorized"
}

// renew gets a new token in place of one that was refused, in one try, unless
// somebody else just did. With an identity that is shown again; a one-time
// secret is used up, and a heartbeat is what is left.
func (c *control) renew(ctx context.Context, refused string) error {
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if c.bearer() != refused {
		return nil
	}
	var reply wire.HeartbeatReply
	r := request{method: http.MethodPost, path: "heartbeat", body: wire.Heartbeat{}, wait: c.opt.pace.request, reply: &reply}
	if c.opt.IdentityFile != "" {
		r.path, r.body, r.noToken, r.each = "token", nil, true, c.proof
	}
	if err := r.prepare(); err != nil {
		return proc.Permanent(err)
	}
	if err := c.try(ctx, r); err != nil {
		return err
	}
	c.setToken(reply.Token)
	return nil
}

// proof is what proves who we are, as it is now.
func (c *control) proof() (any, error) {
	r := wire.TokenRequest{Session: c.opt.Session, Generation: c.opt.Generation, Secret: c.opt.Secret}
	if c.opt.IdentityFile == "" {
		return r, nil
	}
	var err error
	r.JWT, err = readIdentity(c.opt.IdentityFile)
	c.red.Add(r.JWT)
	return r, err
}

// refusal makes a *wire.Error of an answer that is not 2xx, whoever gave it.
func refusal(r request, res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 16<<10))
	e := &wire.Error{}
	if json.Unmarshal(b, e) != nil || e.Code == "" || res.StatusCode >= 500 {
		if e.Message == "" {
			e.Message = fmt.Sprintf("%s %s was answered %s", r.method, r.path, res.Status)
		}
		switch {
		case res.StatusCode == http.StatusConflict:
			e.Code = "stale_generation"
		case res.StatusCode == http.StatusUnauthorized:
			e.Code = "unauthorized"
		case res.StatusCode == http.StatusNotFound:
			e.Code = "not_found"
		case res.StatusCode == http.StatusRequestEntityTooLarge:
			e.Code = "too_large"
		case res.StatusCode == http.StatusUpgradeRequired:
			e.Code = "version"
		case res.StatusCode >= 500, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout:
			e.Code = "unavailable"
		default:
			e.Code = "bad_request"
		}
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 && s <= 300 {
		return proc.Later(e, time.Duration(s)*time.Second)
	}
	return e
}

// identify exchanges the proof of who we are for a token and forgets the secret.
func (c *control) identify(ctx context.Context) error {
	var reply wire.TokenReply
	err := c.do(ctx, request{
		method: http.MethodPost, path: "token", noToken: true, reply: &reply, each: c.proof,
	})
	c.opt.Secret = ""
	if err != nil {
		return fmt.Errorf("prove this runner's identity to the control plane: %w", err)
	}
	if reply.Token == "" {
		return fmt.Errorf("%w: it gave no token", ErrRefused)
	}
	c.setToken(reply.Token)
	return nil
}

func (c *control) spec(ctx context.Context) (wire.Spec, error) {
	var s wire.Spec
	if err := c.do(ctx, request{method: http.MethodGet, path: "spec", reply: &s}); err != nil {
		return s, fmt.Errorf("ask what there is to do: %w", err)
	}
	return s, nil
}

// secrets asks for the secrets that the session's environment names. Their
// values are taken out of every text from here on.
func (c *control) secrets(ctx context.Context, names []string) (map[string]string, error) {
	var reply wire.SecretsReply
	err := c.do(ctx, request{method: "POST", path: "secrets", body: wire.SecretsRequest{Names: names}, reply: &reply})
	for _, v := range reply.Values {
		c.red.Add(v)
	}
	return reply.Values, err
}

// sendEvents sends raw events, which are JSON already.
func (c *control) sendEvents(ctx context.Context, events []json.RawMessage) (acked int64, err error) {
	var reply wire.EventsReply
	err = c.do(ctx, request{
		method: http.MethodPost, path: "events", reply: &reply,
		body: struct {
			Events []json.RawMessage `json:"events"`
		}{events},
	})
	return reply.Acked, err
}

func (c *control) putArtifact(ctx context.Context, b blob) error {
	return c.do(ctx, request{
		method: http.MethodPut, path: "artifacts/" + b.sha256, file: b.path, wait: c.opt.pace.upload,
	})
}

func (c *control) putBundle(ctx context.Context, turn int, tip string, b blob) error {
	q := url.Values{"tip": {tip}, "sha256": {b.sha256}}
	return c.do(ctx, request{
		method: http.MethodPut, path: "bundle/" + strconv.Itoa(turn) + "?" + q.Encode(), file: b.path, wait: c.opt.pace.upload,
	})
}

// getBundle reads the bundle of an earlier attempt into a blob of the spool.
func (c *control) getBundle(ctx context.Context, sha256 string, s *spool) (blob, error) {
	var got blob
	wrong := 0
	err := c.do(ctx, request{
		method: http.MethodGet, path: "bundle/" + sha256, wait: c.opt.pace.upload,
		to: func(r io.Reader) error {
			w, err := s.create(wire.MaxBundleBytes, nil)
			if err != nil {
				return proc.Permanent(err)
			}
			if _, err := io.Copy(w, r); err != nil {
				w.abandon()
				return fmt.Errorf("read the bundle %s: %w", sha256, err)
			}
			b, err := w.finish()
			if err != nil {
				return proc.Permanent(err)
			}
			if b.truncated || b.sha256 != sha256 {
				b.remove()
				err := fmt.Errorf("what came is not the bundle %s", sha256)
				if wrong++; wrong >= 3 {
					return proc.Permanent(err)
				}
				return err
			}
			got = b
			return nil
		},
	})
	return got, err
}

func (c *control) directives(ctx context.Context, after int64) ([]wire.Directive, error) {
	var reply wire.DirectivesReply
	err := c.do(ctx, request{
		method: http.MethodGet, path: "directives?after=" + strconv.FormatInt(after, 10),
		reply: &reply, wait: c.opt.pace.poll,
	})
	return reply.Directives, err
}

// beat sends one heartbeat and takes the new token. It is tried once: the next
// one follows soon.
func (c *control) beat(ctx context.Context, phase string) error {
	var reply wire.HeartbeatReply
	err := c.do(ctx, request{
		method: http.MethodPost, path: "heartbeat", reply: &reply, tries: 1,
		body: wire.Heartbeat{Phase: phase},
	})
	if err != nil {
		return err
	}
	c.setToken(reply.Token)
	return nil
}

func (c *control) outcome(ctx context.Context, o wire.Outcome) error {
	return c.do(ctx, request{method: http.MethodPost, path: "outcome", body: o})
}
