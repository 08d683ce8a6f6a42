package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"inspect/envs/proc"
)

// Bounds of what a provider answers, in bytes.
const (
	maxAnswer  = 64 << 20
	maxProblem = 256 << 10
)

func transport() *http.Transport {
	return &http.Transport{
		// HTTPS_PROXY and NO_PROXY of the operator; never for this machine itself.
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  5 * time.Minute,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // events pass as they come
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// ask sends the call until there is an answer worth passing on. While a
// provider is busy or away it is tried again; its last answer is then the one.
// Nothing has gone to the client yet. Redirects are not followed.
func (e *exchange) ask() (*http.Response, *refusal) {
	var last *http.Response
	policy := proc.Policy{First: 500 * time.Millisecond, Max: 20 * time.Second, Total: e.RetryTotal}
	err := proc.Retry(e.r.Context(), e.Clock, policy, func(ctx context.Context) error {
		last, e.flying, e.tried = nil, false, e.Clock.Now()
		res, err := e.once(ctx)
		if err != nil {
			var op *net.OpError
			var ne net.Error
			dialing := errors.As(err, &op) && op.Op == "dial"
			e.flying = !dialing && (ctx.Err() != nil || errors.As(err, &ne) && ne.Timeout())
			e.Log.WarnContext(ctx, "the model provider cannot be reached", "provider", e.provider.id, "error", err)
			return err
		}
		last = res
		switch res.StatusCode {
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, 529:
		default:
			return nil
		}
		// Read whole, so that it can be passed on when no try is left.
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		_ = res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(body))
		if res.Header.Get("X-Should-Retry") == "false" || bytes.Contains(body, []byte("insufficient_quota")) {
			return nil // no waiting helps
		}
		err = fmt.Errorf("the model provider answered with status %d", res.StatusCode)
		e.Log.InfoContext(ctx, "the model provider is busy, trying again", "session", e.who.Session, "provider", e.provider.id, "status", res.StatusCode)
		return proc.Later(err, retryAfter(res.Header, e.Clock.Now()))
	})
	switch {
	case last != nil && e.r.Context().Err() == nil:
		return last, nil
	case err == nil:
		err = context.Cause(e.r.Context())
	}
	if last != nil {
		_ = last.Body.Close()
	}
	return nil, refuse(502, "provider", "the model provider %s cannot be reached: %s", e.provider.id, plainly(err))
}

func (e *exchange) once(ctx context.Context) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.provider.urlOf(e.call.ep), bytes.NewReader(e.body))
	if err != nil {
		return nil, proc.Permanent(err)
	}
	req.Header = requestHeaders(e.r.Header, e.call, e.provider)
	return e.Transport.RoundTrip(req)
}

// plainly says of an error of the network what an agent may know: not which
// address of the operator's was tried.
func plainly(err error) string {
	var ne net.Error
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return "its name cannot be found"
	case errors.As(err, &ne) && ne.Timeout():
		return "it did not answer in time"
	case errors.As(err, &op) && op.Op == "dial":
		return "no connection"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return "the connection broke off"
	}
	return "the call failed"
}

// retryAfter is how long a provider wants to be left alone; 0 if it does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e9 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(v, 64); err == nil && s > 0 && s < 1e6 {
		return time.Duration(s * float64(time.Second))
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// clean takes the operator's keys out of what a provider sends.
func (e *exchange) clean(b []byte) []byte {
	if e.provider.key != "" && bytes.Contains(b, []byte(e.provider.key)) {
		return []byte(strings.ReplaceAll(string(b), e.provider.key, "[redacted]"))
	}
	return b
}
