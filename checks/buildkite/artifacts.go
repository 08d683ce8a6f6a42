package buildkite

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/buildkite/go-buildkite/v3/buildkite"

	"inspect/envs/proc"
)

// Artifact is a file that a job has kept.
type Artifact struct {
	ID    string
	Job   string // its job's id
	Path  string // as the job named it: a name, never a place on this machine
	Type  string // MIME
	State string // new, error, finished, deleted, expired
	Size  int64  // bytes
	SHA1  string // of the content, as the agent said it
}

// Artifacts of a job, at most 500. The token needs the scope read_artifacts.
func (c *Client) Artifacts(ctx context.Context, org, pipeline string, number int, job string) ([]Artifact, error) {
	path, err := ofJob(org, pipeline, number, job, "artifacts")
	if err != nil {
		return nil, err
	}
	k := call{what: fmt.Sprintf("list the artifacts of job %s of build %d of %s/%s", job, number, org, pipeline), scope: "read_artifacts"}
	var out []Artifact
	err = list(ctx, c, k, path, func(a buildkite.Artifact) {
		size := int64(-1)
		if a.FileSize != nil {
			size = *a.FileSize
		}
		out = append(out, Artifact{
			ID: cut(value(a.ID), 100), Job: job, Path: cut(value(a.Path), maxText), Type: cut(value(a.MimeType), 100),
			State: cut(value(a.State), 40), Size: size, SHA1: cut(value(a.SHA1), 100),
		})
	})
	return out, err
}

// ErrTooLarge is of an artifact that has more bytes than were asked for.
var ErrTooLarge = errors.New("the artifact is too large")

// Artifact reads the content of a, at most most bytes: more is ErrTooLarge, less
// or other than the agent said an error. The API is asked for where it lies, with
// the token, at an address that is made here of ids; the content is fetched from
// there without the token. That place was chosen by whoever ran the job: it must
// be https and public, or one of Options.ArtifactHosts.
func (c *Client) Artifact(ctx context.Context, org, pipeline string, number int, a Artifact, most int64) ([]byte, error) {
	if !uuid.MatchString(a.ID) {
		return nil, fmt.Errorf("%q cannot be an artifact's id at Buildkite", short(a.ID))
	}
	path, err := ofJob(org, pipeline, number, a.Job, "artifacts", a.ID, "download")
	if err != nil {
		return nil, err
	}
	if a.Size > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLarge, a.Size, most)
	}
	k := call{what: fmt.Sprintf("read the artifact %s of build %d of %s/%s", a.ID, number, org, pipeline), scope: "read_artifacts"}
	var got []byte
	err = proc.Retry(ctx, c.clock, c.retry, func(ctx context.Context) error {
		where, err := c.where(ctx, k, path)
		if err != nil {
			return again(ctx, err, k)
		}
		body, e := c.content(ctx, k, where, most)
		if e != nil {
			return again(ctx, e, k)
		}
		got = body
		return nil
	})
	if err != nil {
		return nil, err
	}
	if int64(len(got)) > most {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, most)
	}
	if sum := sha1.Sum(got); a.Size >= 0 && int64(len(got)) != a.Size || a.SHA1 != "" && !strings.EqualFold(a.SHA1, hex.EncodeToString(sum[:])) {
		return nil, &Error{What: k.what, Status: http.StatusOK, Words: "what came is not what the job kept: size or SHA-1 differ"}
	}
	return got, nil
}

// where asks for the address of an artifact's content. The answer is a redirect.
func (c *Client) where(ctx context.Context, k call, path string) (*url.URL, *Error) {
	req, err := c.api.NewRequest(http.MethodGet, path, nil)
	if err != nil {
		return nil, &Error{What: k.what, Status: http.StatusOK, Words: "the request could not be made"}
	}
	var said struct {
		URL string `json:"url"`
	}
	_, err = c.api.Do(req.WithContext(ctx), &said)
	location := said.URL
	var st *status
	switch {
	case errors.As(err, &st) && st.code >= 300 && st.code < 400:
		location = st.location
	case err != nil:
		return nil, explain(ctx, k, err)
	}
	u, err := c.base.Parse(location)
	if err != nil || location == "" || !c.mayFetch(u) {
		return nil, &Error{What: k.what, Status: http.StatusOK, Words: "it lies at a place that is not asked: it must be https without a password, at a public address or at one of the configured artifact hosts"}
	}
	return u, nil
}

func (c *Client) mayFetch(u *url.URL) bool {
	return u.User == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && (u.Host == c.base.Host && c.base.Scheme == "http" || loopback(u.Hostname())))
}

// content fetches without the token.
func (c *Client) content(ctx context.Context, k call, where *url.URL, most int64) ([]byte, *Error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		return nil, &Error{What: k.what, Status: http.StatusOK, Words: "the request could not be made"}
	}
	resp, err := c.artifact.Do(req)
	if err != nil {
		var no *refusedPlace
		if errors.As(err, &no) {
			return nil, &Error{What: k.what, Status: http.StatusOK, Words: no.Error()}
		}
		return nil, explain(ctx, k, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, &Error{What: k.what, Status: resp.StatusCode, Words: fmt.Sprintf("the artifact store answers with status %d", resp.StatusCode), RetryAfter: after(resp.Header, c.clock.Now())}
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(resp.Body, most+1)); err != nil {
		return nil, explain(ctx, k, err)
	}
	return b.Bytes(), nil
}

// refusedPlace is an address that is not asked.
type refusedPlace struct{ host string }

func (e *refusedPlace) Error() string {
	return "the artifact lies at " + e.host + ", which is no public address: add it to the artifact hosts if that is meant"
}

// artifactClient has no token, no cookies, and reaches public addresses only,
// except those that are configured.
func artifactClient(base *url.URL, o Options) *http.Client {
	known := append([]string{base.Host}, o.ArtifactHosts...)
	t := transport(func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		host, _, _ := net.SplitHostPort(address)
		if !slices.Contains(known, host) && !slices.Contains(known, address) {
			d.Control = func(_, at string, _ syscall.RawConn) error {
				if p, err := netip.ParseAddrPort(at); err != nil || !public(p.Addr()) {
					return &refusedPlace{host}
				}
				return nil
			}
		}
		return d.DialContext(ctx, network, address)
	})
	return &http.Client{
		Transport: t,
		Timeout:   answerTime,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 || r.URL.User != nil || r.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
				return errors.New("the artifact store sends us from place to place")
			}
			return nil
		},
	}
}

// public says whether an address can be anybody's on the internet.
func public(ip netip.Addr) bool {
	ip = ip.Unmap()
	if !ip.IsGlobalUnicast() || ip.IsPrivate() {
		return false
	}
	for _, p := range reserved {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}

// reserved are ranges that lead to no host of the internet, or by translation to
// one of this network.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
}
