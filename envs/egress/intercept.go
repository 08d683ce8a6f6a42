package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/stripe/smokescreen/pkg/smokescreen"
	"golang.org/x/net/http/httpguts"
)

// Reasons for what is refused where a credential is added.
const (
	onlyHTTPS   = "a credential is added for it, so that nothing but https is spoken with it"
	otherHost   = "the request in the tunnel is for another host than the tunnel"
	onlyFetches = "with the credential that is added for it one can fetch (GET, HEAD, and POST of git fetch) and nothing else"
	noUpgrade   = "with the credential that is added for it no other protocol is spoken"
	noTLS       = "no TLS connection came about with the program: it must trust the certificates named by SSL_CERT_FILE, for it sees the proxy's and not the host's"
	notVerified = "its certificate is not good for its name or not of an authority this machine trusts, so that no credential was added"
)

// intercept serves a tunnel to a host for which a credential is added. TLS ends
// here on both sides, each request is read and written anew, and the connection
// to the host is to the address that smokescreen has checked.
func (p *Proxy) intercept(a *attempt, client, target net.Conn) {
	defer client.Close()
	defer target.Close()
	ctx := p.life.ctx
	if t, ok := client.(*smokescreen.TimeoutConn); ok {
		client = t.Conn // the server below has its own
	}
	refusal := noTLS
	inner := tls.Server(client, &tls.Config{
		NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if name, _ := canonical(hello.ServerName); hello.ServerName != "" && name != a.host {
				refusal = otherHost
				return nil, errors.New(otherHost)
			}
			return &a.injected.cert, nil
		},
	})
	if err := handshake(ctx, inner); err != nil {
		a.tell(false, refusal)
		return
	}
	h := &adder{a: a, hostport: a.host, config: &tls.Config{
		ServerName: a.host, RootCAs: p.opt.Roots, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
	}}
	if a.port != 443 {
		h.hostport = net.JoinHostPort(a.host, strconv.Itoa(a.port))
	}
	first := tls.Client(target, h.config)
	h.trouble = handshake(ctx, first)
	switch {
	case p.meter.Full():
		a.tell(false, p.meter.reason())
		return
	case h.trouble != nil:
		a.tell(true, notVerified)
	default:
		a.secret = a.injected.secret
		a.tell(true, "")
	}
	address := target.RemoteAddr().String()
	h.transport = &http.Transport{
		DialTLSContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if c := first; c != nil {
				first = nil
				return c, nil
			}
			raw, err := p.life.dial(ctx, network, address, dialTimeout)
			if err != nil {
				return nil, err
			}
			c := tls.Client(smokescreen.NewTimeoutConn(raw, p.opt.idle), h.config)
			if err := handshake(ctx, c); err != nil {
				raw.Close()
				return nil, err
			}
			return c, nil
		},
		Protocols: http1(), MaxConnsPerHost: 1, IdleConnTimeout: p.opt.idle,
		ResponseHeaderTimeout: p.opt.idle, MaxResponseHeaderBytes: maxHeader * 4,
	}
	defer h.transport.CloseIdleConnections()
	srv := &http.Server{
		Handler: h, BaseContext: func(net.Listener) context.Context { return ctx },
		MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, IdleTimeout: p.opt.idle,
		ErrorLog: log.New(io.Discard, "", 0), Protocols: http1(), DisableGeneralOptionsHandler: true,
	}
	_ = srv.Serve(&single{conn: inner, over: make(chan struct{})}) // until the connection's end
}

func handshake(ctx context.Context, c *tls.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, headerTimeout)
	defer cancel()
	return c.HandshakeContext(ctx)
}

// single is a listener with one connection, open until that is closed.
type single struct {
	conn net.Conn // nil: accepted
	over chan struct{}
}

func (s *single) Accept() (net.Conn, error) {
	if c := s.conn; c != nil {
		s.conn = nil
		return &singleConn{Conn: c, over: s.over}, nil
	}
	<-s.over
	return nil, net.ErrClosed
}

func (*single) Close() error   { return nil }
func (*single) Addr() net.Addr { return &net.UnixAddr{} }

type singleConn struct {
	net.Conn
	once sync.Once
	over chan struct{}
}

func (c *singleConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}

// adder serves the requests of one tunnel with the credential added.
type adder struct {
	a         *attempt
	hostport  string
	config    *tls.Config // towards the host
	transport *http.Transport
	trouble   error // why the host cannot be spoken to
}

// notPassed are headers between two neighbours (RFC 9110, 7.6.1), and on the
// way out what would turn a request into another or bring an answer in pieces,
// in which a spelling of the secret could not be seen.
var notPassed = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Proxy-Authenticate", "Proxy-Authorization", "Expect",
	"Range", "If-Range", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override",
}

// notReturned are left out of answers as well: a session made with the
// credential is one too, and no other way to the host is to be shown.
var notReturned = append([]string{"Set-Cookie", "Alt-Svc"}, notPassed...)

func (h *adder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if reason := h.problem(r); reason != "" {
		b := &attempt{p: h.a.p, host: h.a.host, port: h.a.port, command: h.a.command, reason: reason}
		b.tell(false, reason)
		http.Error(w, strings.TrimSuffix(b.words(), "\n"), http.StatusForbidden)
		return
	}
	bad := func(words string) {
		http.Error(w, "Inspect's egress proxy allows "+h.a.where()+", but "+words+".", http.StatusBadGateway)
	}
	if h.trouble != nil {
		bad(notVerified)
		return
	}
	res, err := h.transport.RoundTrip(h.outgoing(w, r))
	if err != nil {
		bad("it gave no usable answer") // the error may quote it
		return
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		bad("it changed the protocol")
		return
	}
	scrub := h.a.injected.scrub
	to := w.Header()
	for _, name := range append(connectionNames(res.Header), notReturned...) {
		res.Header.Del(name)
	}
	for name, values := range res.Header {
		name = scrub.text(name)
		for _, v := range values {
			to[name] = append(to[name], scrub.text(v))
		}
	}
	if _, ok := res.Header["Content-Type"]; !ok {
		to["Content-Type"] = nil // no guess of ours
	}
	w.WriteHeader(res.StatusCode)
	if _, err := io.Copy(w, scrub.reader(res.Body)); err != nil {
		panic(http.ErrAbortHandler) // or what has come would look whole
	}
}

// problem says why a request is refused.
func (h *adder) problem(r *http.Request) string {
	host, port, problem := target(r.Host, 443)
	git := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/git-upload-pack") && r.URL.RawQuery == "" &&
		r.Header.Get("Content-Type") == "application/x-git-upload-pack-request"
	switch {
	case problem != "" || host != h.a.host || port != h.a.port || r.URL.IsAbs() || !strings.HasPrefix(r.URL.Path, "/"):
		return otherHost
	case len(r.Header.Values("Upgrade")) > 0:
		return noUpgrade
	case !git && (r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0):
		return onlyFetches
	}
	return ""
}

// outgoing is the request that is made of one from inside.
func (h *adder) outgoing(w http.ResponseWriter, r *http.Request) *http.Request {
	out := &http.Request{
		Method: r.Method, Host: h.hostport, Header: r.Header.Clone(), ContentLength: r.ContentLength,
		URL: &url.URL{Scheme: "https", Host: h.hostport, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery},
	}
	if r.ContentLength != 0 {
		out.Body = &patientBody{r.Body, http.NewResponseController(w), h.a.p.opt.idle}
	}
	for _, name := range append(connectionNames(r.Header), notPassed...) {
		out.Header.Del(name)
	}
	// Unpacked the answer can be looked through. The transport asks for gzip and
	// unpacks it if nothing else is asked for.
	gzip := httpguts.HeaderValuesContainsToken(r.Header["Accept-Encoding"], "gzip")
	out.Header.Del("Accept-Encoding")
	if !gzip {
		out.Header.Set("Accept-Encoding", "identity")
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = []string{""} // none of our own
	}
	out.Header.Set(h.a.injected.header, h.a.injected.value)
	return out.WithContext(r.Context())
}

// connectionNames are the headers that a message names as between neighbours.
func connectionNames(h http.Header) (names []string) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return slices.Clip(names)
}
