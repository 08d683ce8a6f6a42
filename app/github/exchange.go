package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"inspect/envs/proc"
)

// maxAnswer is the most we read of one answer: a page of a hundred comments of
// 64 KiB and what surrounds them.
const maxAnswer = 16 << 20

// maxRedirects is how often one request is redirected.
const maxRedirects = 3

// answer is what GitHub said to one request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// exchange is the transport below the library: every request of one call goes
// through it and nothing goes around it. It is used by one goroutine.
type exchange struct {
	c    *Client
	repo int64 // whose token is used; the only repository that may be addressed by id

	write   bool         // a write was among the requests
	sent    bool         // the last request may have reached GitHub
	refused error        // why nothing was sent
	last    *answer      // to the last request, read to its end
	limit   *RateLimited // the last answer was that
}

// RoundTrip implements http.RoundTripper.
func (x *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	a := x.c.app
	x.last, x.limit, x.refused, x.sent = nil, nil, nil, false
	refuse := func(err error) (*http.Response, error) {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		x.refused = err
		return nil, err
	}
	r, id, ok := a.route(req.Method, req.URL)
	switch {
	case !ok && (req.URL.Scheme != a.api.Scheme || req.URL.Host != a.api.Host):
		return refuse(fmt.Errorf("%w: send credentials to %s", ErrForbidden, req.URL.Host))
	case !ok:
		return refuse(fmt.Errorf("%w: send %s %s", ErrForbidden, req.Method, req.URL.EscapedPath()))
	case id != "" && id != strconv.FormatInt(x.repo, 10):
		return refuse(fmt.Errorf("%w: follow GitHub from repository %d to repository %s", ErrForbidden, x.repo, id))
	}
	x.write = r.write()
	body, err := readBody(req)
	if err != nil {
		return refuse(err)
	}
	if body, err = a.funnel.pass(r, body); err != nil {
		return refuse(err)
	}
	ctx := req.Context()
	try := func(again bool) (*http.Response, error) {
		token, err := x.c.bearer(ctx, x.repo, purposeOf(ctx, r))
		if err != nil {
			return refuse(err)
		}
		resp, err := x.send(ctx, req, r, body, token)
		if again && resp != nil && resp.StatusCode == http.StatusUnauthorized && x.c.tokens != nil {
			// Not carried out, so even a write may be repeated, once, with a new token.
			x.c.tokens.drop(token)
			return nil, errStale
		}
		return resp, err
	}
	resp, err := try(true)
	if errors.Is(err, errStale) {
		return try(false)
	}
	return resp, err
}

var errStale = errors.New("the token was refused")

func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	defer req.Body.Close()
	b, err := io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("the request's own body cannot be read: %w", err)
	}
	return b, nil
}

// send carries one request, keeping the installation's pace. Reads and token
// requests are repeated when GitHub does not answer or answers 5xx.
func (x *exchange) send(ctx context.Context, req *http.Request, r *route, body []byte, token string) (*http.Response, error) {
	var resp *http.Response
	once := func(ctx context.Context) error {
		leave, err := x.c.pace.enter(ctx, r.write())
		if err != nil {
			return proc.Permanent(err)
		}
		defer leave()
		resp, err = x.one(ctx, req, r, body, token)
		switch {
		case err != nil && (errors.Is(err, ErrTooLarge) || ctx.Err() != nil):
			return proc.Permanent(err)
		case err != nil:
			return err
		case resp.StatusCode >= 500:
			return errUnwell
		}
		return nil
	}
	if r.write() {
		resp = nil
		err := once(ctx)
		if resp != nil {
			return resp, nil
		}
		return nil, err
	}
	err := proc.Retry(ctx, x.c.app.clock, x.c.app.reads, once)
	if resp != nil && (err == nil || errors.Is(err, errUnwell)) {
		return resp, nil
	}
	return nil, err
}

var errUnwell = errors.New("GitHub is unwell")

// one sends one request and reads its whole answer, bounded in time and size.
func (x *exchange) one(ctx context.Context, req *http.Request, r *route, body []byte, token string) (resp *http.Response, err error) {
	a := x.c.app
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	out := req.Clone(ctx)
	if token != "" {
		out.Header.Set("Authorization", "Bearer "+token)
	}
	out.Header.Set("Accept", "application/vnd.github+json")
	key := etagKey{x.c.installation, x.repo, r.purpose, req.URL.String()}
	var known *tagged
	if req.Method == http.MethodGet {
		if known = a.etags.get(key); known != nil {
			out.Header.Set("If-None-Match", known.tag)
		}
	}
	out.Body, out.GetBody, out.ContentLength = nil, nil, 0
	if r.body != nil {
		out.ContentLength = int64(len(body))
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	if r.write() {
		if err := a.asked(ctx, r, req); err != nil {
			x.refused = err
			return nil, err
		}
		defer func() { a.answered(ctx, r, req, x.last, err) }()
	}
	a.counters.total.Add(1)
	switch {
	case r.token:
		a.counters.tokens.Add(1)
	case r.write():
		a.counters.writes.Add(1)
	}
	x.sent, x.last, x.limit = true, nil, nil
	resp, err = a.http.RoundTrip(out)
	if err != nil {
		x.sent = !notSent(err)
		return nil, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("GitHub's answer broke off: %w", err)
	}
	if len(content) > maxAnswer {
		return nil, fmt.Errorf("%w: GitHub's answer has more than %d bytes", ErrTooLarge, maxAnswer)
	}
	x.last = &answer{status: resp.StatusCode, header: resp.Header, body: content}
	x.limit = x.c.pace.note(x.last)
	a.noteDate(resp.Header)
	a.log.DebugContext(ctx, "GitHub", "method", req.Method, "path", req.URL.Path, "status", resp.StatusCode,
		"installation", x.c.installation, "remaining", resp.Header.Get("X-RateLimit-Remaining"))
	switch {
	case known != nil && resp.StatusCode == http.StatusNotModified:
		content = known.body
		resp.StatusCode, resp.Status, resp.Header = http.StatusOK, "200 OK", known.header
		x.last = &answer{status: http.StatusOK, header: known.header, body: content}
	case req.Method == http.MethodGet:
		a.etags.learn(key, x.last)
	}
	resp.Body = io.NopCloser(bytes.NewReader(content))
	resp.ContentLength = int64(len(content))
	resp.Request = req
	return resp, nil
}

// checkRedirect follows what GitHub documents: reads anywhere below the same
// API, writes only where the method and the body stay what they are. A write
// answered with 301 or 302 would be repeated as a read by the standard library
// and look like a success.
func (x *exchange) checkRedirect(next *http.Request, via []*http.Request) error {
	first := via[0]
	status := 0
	if next.Response != nil {
		status = next.Response.StatusCode
	}
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: GitHub redirected %d times", ErrMoved, len(via))
	}
	if first.Method != http.MethodGet && (next.Method != first.Method || status != http.StatusTemporaryRedirect && status != http.StatusPermanentRedirect) {
		return ErrMoved
	}
	if at, ok := next.Context().Value(elsewhere{}).(*string); ok && !sameOrigin(next.URL, x.c.app.api) {
		*at = next.URL.String()
		return http.ErrUseLastResponse
	}
	if !sameOrigin(next.URL, x.c.app.api) {
		return fmt.Errorf("%w: follow a redirect to %s", ErrForbidden, next.URL.Host)
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }
