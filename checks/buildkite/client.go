package buildkite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/buildkite/go-buildkite/v3/buildkite"

	"inspect/envs/proc"
)

// DefaultURL is Buildkite's REST API.
const DefaultURL = "https://api.buildkite.com/"

// maxAnswer bounds what is read of one answer of the API, in bytes. A build of
// some hundred jobs is about 1 MiB.
const maxAnswer = 32 << 20

// maxWait is the longest that one call waits because Buildkite says so; its
// window for counting requests is a minute.
const maxWait = 75 * time.Second

// answerTime bounds one request from its beginning to the last byte.
const answerTime = 60 * time.Second

// Options of a Client.
type Options struct {
	// URL of the REST API; empty means DefaultURL. It is https, or http to this
	// machine.
	URL string
	// Token gives the API access token for one request. Its value goes nowhere
	// but into the header of requests to the host of URL.
	Token func(context.Context) (string, error)
	// ArtifactHosts are "host" or "host:port" of artifact stores that may lie at
	// private addresses. Others must be public and https.
	ArtifactHosts []string
	// Transport carries requests; nil is one of our own.
	Transport http.RoundTripper
	// Clock measures the pauses between tries; nil is the machine's.
	Clock proc.Clock
	// Retry is how often and how long a reading call is tried; the zero value
	// means five tries within three minutes.
	Retry proc.Policy
	// Agent is the User-Agent; empty means "inspect".
	Agent string
}

// Client talks to one Buildkite. It is safe for concurrent use and has no
// goroutines of its own.
type Client struct {
	api      *buildkite.Client
	base     *url.URL
	clock    proc.Clock
	retry    proc.Policy
	artifact *http.Client // without the token
}

// New returns a client, or what is wrong with the options.
func New(o Options) (*Client, error) {
	if o.URL == "" {
		o.URL = DefaultURL
	}
	base, err := baseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Token == nil {
		return nil, errors.New("no access token for Buildkite's API is configured")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Retry.Attempts == 0 && o.Retry.Total == 0 {
		o.Retry.Attempts, o.Retry.Total = 5, 3*time.Minute
	}
	if o.Retry.First == 0 {
		o.Retry.First = time.Second
	}
	if o.Agent == "" {
		o.Agent = "inspect"
	}
	next := o.Transport
	if next == nil {
		next = transport(nil)
	}
	api, err := buildkite.NewOpts(
		buildkite.WithBaseURL(base.String()),
		buildkite.WithUserAgent(o.Agent),
		buildkite.WithHTTPClient(&http.Client{
			Transport:     &guard{base: base, token: o.Token, next: next, clock: o.Clock},
			Timeout:       answerTime,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("the client of Buildkite: %w", err)
	}
	return &Client{api: api, base: base, clock: o.Clock, retry: o.Retry, artifact: artifactClient(base, o)}, nil
}

// transport is a transport of our own; dial may refuse addresses.
func transport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dial,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// baseURL is the API's address with a slash at its end.
func baseURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, fmt.Errorf("the address of Buildkite's API is not one: it looks like %s", DefaultURL)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("the address of Buildkite's API has more than host and path: it looks like %s", DefaultURL)
	case u.Scheme != "https" && !(u.Scheme == "http" && loopback(u.Hostname())):
		return nil, fmt.Errorf("the address of Buildkite's API must be https, since a token goes there: %s://%s is not", u.Scheme, u.Host)
	}
	u.Path = strings.TrimRight(u.Path, "/") + "/"
	u.RawPath = ""
	return u, nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// call says what a request is for, in words of errors.
type call struct {
	what  string // "read build 12 of acme/web"
	scope string // of the API token, that the call needs
	once  bool   // not repeated when it may have been done
}

// do sends one request, again where that helps, and decodes the answer into v,
// which may be an io.Writer made anew by each try, or nil.
func (c *Client) do(ctx context.Context, k call, method, path string, header map[string]string, body any, v func() any) (*buildkite.Response, error) {
	var got *buildkite.Response
	err := proc.Retry(ctx, c.clock, c.retry, func(ctx context.Context) error {
		req, err := c.api.NewRequest(method, path, body)
		if err != nil {
			return proc.Permanent(&Error{What: k.what, Words: "the request could not be made"})
		}
		for name, value := range header {
			req.Header.Set(name, value)
		}
		var into any
		if v != nil {
			into = v()
		}
		got, err = c.api.Do(req.WithContext(ctx), into)
		if err == nil {
			return nil
		}
		return again(ctx, explain(ctx, k, err), k)
	})
	return got, err
}

// again marks an error with what is to be done about it.
func again(ctx context.Context, err *Error, k call) error {
	if k.once && err.Status != http.StatusTooManyRequests {
		if err.Status == 0 || err.Status >= 500 {
			err.Uncertain = true
		}
		return proc.Permanent(err)
	}
	if ctx.Err() != nil || !err.temporary() || err.RetryAfter > maxWait {
		return proc.Permanent(err)
	}
	return proc.Later(err, err.RetryAfter)
}

// tail is a writer that keeps the end of what is written, and counts all of it.
type tail struct {
	proc.Tail
	read int64
}

func (t *tail) Write(p []byte) (int, error) {
	n, err := t.Tail.Write(p)
	t.read += int64(n)
	return n, err
}

var _ io.Writer = (*tail)(nil)
