package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"inspect/envs/image/unpack"
)

// guard is what every request passes last, those that follow a redirect and those
// for a token too. What reaches whom is decided by the transport below it.
type guard struct {
	base     http.RoundTripper
	patience time.Duration
	end      context.CancelCauseFunc // of the whole pull
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s://%s is not asked: only https is", r.URL.Scheme, r.URL.Host)
	}
	if r.Response != nil && r.Response.Request.URL.Host != r.URL.Host {
		// Elsewhere, at a registry's word: nothing that is secret goes along.
		if r.Body != nil && r.Body != http.NoBody {
			return nil, fmt.Errorf("a request with a credential was sent on to %s, where it does not go", r.URL.Host)
		}
		r = r.Clone(r.Context())
		r.Header.Del("Authorization")
		r.Header.Del("Cookie")
	}
	resp, err := g.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	most := int64(unpack.MaxDocument)
	if first := firstOf(r); resp.StatusCode == http.StatusOK && first.Method == http.MethodGet && strings.Contains(first.URL.Path, "/blobs/") {
		most = -1 // whoever reads it knows how much
	}
	resp.Body = &body{ReadCloser: resp.Body, g: g, left: most}
	return resp, nil
}

// firstOf is the request that was redirected to this one, or this one.
func firstOf(r *http.Request) *http.Request {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return r
}

// body is of an answer, which has to come at some pace and, unless left is
// negative, to end before so many bytes.
type body struct {
	io.ReadCloser
	g    *guard
	left int64

	waited time.Duration // for got bytes
	got    int
}

func (b *body) Read(p []byte) (int, error) {
	slow := func() error {
		return fmt.Errorf("the registry is too slow: for %s it sent less than %d bytes a second", b.g.patience, leastPace)
	}
	stop := time.AfterFunc(b.g.patience, func() { b.g.end(slow()) })
	begun := time.Now()
	n, err := b.ReadCloser.Read(p)
	stop.Stop()
	b.waited, b.got = b.waited+time.Since(begun), b.got+n
	if b.waited >= b.g.patience {
		if float64(b.got) < leastPace*b.waited.Seconds() {
			err = slow()
			b.g.end(err)
			return n, err
		}
		b.waited, b.got = 0, 0
	}
	if b.left >= 0 {
		if b.left -= int64(n); b.left < 0 {
			return n, errors.New("an answer of the registry is longer than a document of an image may be")
		}
	}
	return n, err
}
