package buildkite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
)

// guard stands between go-buildkite and the network. It adds the token, and only
// for the host of the API; it bounds every body; and it turns each answer that is
// no success into an error of ours, since go-buildkite would wait a quarter of an
// hour over 429 and read the body of an error without end.
type guard struct {
	base  *url.URL
	token func(context.Context) (string, error)
	next  http.RoundTripper
	clock proc.Clock
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != g.base.Scheme || r.URL.Host != g.base.Host {
		return nil, errors.New("the address is not of Buildkite's API")
	}
	token, err := g.token(r.Context())
	if err != nil {
		return nil, &noToken{err}
	}
	if token == "" {
		return nil, &noToken{errors.New("it is empty")}
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := g.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, g.refused(resp, token)
	}
	resp.Body = &bounded{body: resp.Body, left: maxAnswer}
	if r.Header.Get("Accept") == "text/plain" {
		resp.Body.(*bounded).left = maxLog
	}
	return resp, nil
}

// status is an answer that is no success.
type status struct {
	code     int
	words    string
	after    time.Duration
	location string
}

func (s *status) Error() string { return fmt.Sprintf("status %d %s", s.code, s.words) }

// noToken is the error of a token that is not there.
type noToken struct{ error }

func (e *noToken) Unwrap() error { return e.error }

// refused reads what Buildkite says of a request it did not do, at most 16 KiB.
func (g *guard) refused(resp *http.Response, token string) error {
	head, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10)) // half of the words is better than none
	var said struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(head, &said) // some answers are HTML
	return &status{
		code:     resp.StatusCode,
		words:    redact.OneLine(redact.New(token).String(said.Message), 300),
		after:    after(resp.Header, g.clock.Now()),
		location: resp.Header.Get("Location"),
	}
}

// after is how long Buildkite asks to wait: Retry-After in seconds or as a date,
// or RateLimit-Reset, the seconds until requests are counted anew.
func after(h http.Header, now time.Time) time.Duration {
	for _, name := range []string{"Retry-After", "RateLimit-Reset"} {
		v := h.Get(name)
		if n, err := strconv.ParseUint(v, 10, 31); err == nil {
			return time.Duration(n) * time.Second
		}
		if t, err := http.ParseTime(v); err == nil && t.After(now) {
			return t.Sub(now)
		}
	}
	return 0
}

var errTooLarge = errors.New("the answer is too large")

// bounded ends a body that is too large with an error.
type bounded struct {
	body io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.body.Read(one[:]); n == 0 {
			return 0, err
		}
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.body.Read(p)
	b.left -= int64(n)
	return n, err
}

func (b *bounded) Close() error { return b.body.Close() }
