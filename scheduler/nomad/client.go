package nomad

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

const callTimeout = 15 * time.Second

// client is the one way to Nomad.
type client struct {
	*api.Client
	read      func() (string, error) // the token; nil: none
	namespace string
	region    string
}

func newClient(o Options) (*client, error) {
	h, err := httpClient(o)
	if err != nil {
		return nil, err
	}
	return clientOver(o, h)
}

func httpClient(o Options) (*http.Client, error) {
	h := &http.Client{
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			// The stream of events has no end, so there is none for a request as a
			// whole; each call has one of its own.
			TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 8,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		},
		// Nomad sends nobody elsewhere, and the token goes nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if err := api.ConfigureTLS(h, &api.TLSConfig{
		CACertPEM: o.CACert, ClientCertPEM: o.ClientCert, ClientKeyPEM: o.ClientKey, TLSServerName: o.ServerName,
	}); err != nil {
		return nil, fmt.Errorf("setting up TLS for Nomad: %w", err)
	}
	return h, nil
}

func clientOver(o Options, h *http.Client) (*client, error) {
	c, err := api.NewClient(&api.Config{Address: o.Address, Region: o.Region, Namespace: o.Namespace, HttpClient: h})
	if err != nil {
		return nil, fmt.Errorf("setting up the way to Nomad: %w", err)
	}
	return &client{Client: c, read: o.Token, namespace: o.Namespace, region: o.Region}, nil
}

// token reads the ACL token, which may have been replaced.
func (c *client) token() (string, error) {
	if c.read == nil {
		return "", nil
	}
	token, err := c.read()
	if err != nil {
		return "", fmt.Errorf("reading the token for Nomad: %w", err)
	}
	return token, nil
}

// query are the options of a read of our namespace, or of r's.
func (c *client) query(ctx context.Context, r ref) (*api.QueryOptions, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	q := &api.QueryOptions{Region: r.Region, Namespace: r.Namespace, AuthToken: token, Params: map[string]string{}}
	return q.WithContext(ctx), nil
}

func (c *client) write(ctx context.Context, r ref) (*api.WriteOptions, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	w := &api.WriteOptions{Region: r.Region, Namespace: r.Namespace, AuthToken: token}
	return w.WithContext(ctx), nil
}

// here is where our jobs are.
func (c *client) here() ref { return ref{Namespace: c.namespace, Region: c.region} }

// raw reads at most max bytes of what is not JSON.
func (c *client) raw(path string, max int64, q *api.QueryOptions) ([]byte, error) {
	body, err := c.Raw().Response(path, q)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, max))
}

// answered returns Nomad's status and words, if it is Nomad that refused.
func answered(err error) (status int, body string, ok bool) {
	var e api.UnexpectedResponseError
	if !errors.As(err, &e) || !e.HasStatusCode() {
		return 0, "", false
	}
	return e.StatusCode(), strings.TrimSpace(e.Body()), true
}

func missing(err error) bool {
	status, _, ok := answered(err)
	return ok && status == http.StatusNotFound
}
