// Package egress is the way out of a sandbox: an HTTP proxy that lets through
// what an allow-list names, by host and port, and nothing else. In come the
// connections of a sandbox's named way (package forward); out go connections to
// public addresses and, for every request, one decision.
//
// The work is smokescreen's: it resolves a name, refuses addresses that are not
// public and dials what it has resolved. What its list cannot say (ports), what
// it would do on a client's word (go through a further proxy, speak TLS without
// looking at the certificate) and what it would take from this process's
// environment (proxies) is decided here, before and around it.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stripe/goproxy"
	"github.com/stripe/smokescreen/pkg/smokescreen"
	acl "github.com/stripe/smokescreen/pkg/smokescreen/acl/v1"
	"github.com/stripe/smokescreen/pkg/smokescreen/conntrack"
	"github.com/stripe/smokescreen/pkg/smokescreen/metrics"
	"inspect/envs/sandbox/forward"
	"inspect/envs/wire"
)

// Bounds of a proxy.
const (
	maxConns      = 256 // connections at once; further ones wait
	maxHeader     = 64 << 10
	headerTimeout = 15 * time.Second
	dialTimeout   = 15 * time.Second
	lookupTimeout = 10 * time.Second
	idleTimeout   = 5 * time.Minute
)

// neverReached are address ranges beside those that a net.IP tells of itself:
// loopback, link-local, private, multicast.
var neverReached = []string{
	"100.64.0.0/10", // RFC 6598: shared by providers
	"0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15",
	"240.0.0.0/4", // RFC 6890: this network, protocol assignments, relays, benchmarks, reserved
	// Those for documentation (RFC 5737) are not here: nobody's own machines have
	// them, and closed networks lead to their mirrors by them.
	"168.63.129.16/32",                                                        // the metadata server of one large cloud, with a public address
	"::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", // version four in other clothes
	"100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fec0::/10",
}

// Resolver turns names into addresses.
type Resolver interface {
	LookupIP(ctx context.Context, network, host string) ([]net.IP, error)
}

// Options of New.
type Options struct {
	// Allow is what may be reached, as in .inspect.yml: names of ecosystems,
	// host, host:port, *.domain, *.domain:port. Without a port it is 443 and 80.
	Allow []string
	// Decide, if set, is given every decision, one after the other, from
	// whatever goroutine made it; it must not block for long. After 5,000
	// refusals a last one, which names no host, says that more are not told.
	Decide func(wire.Egress)
	// Noise, if set, says which hosts the harness contacts of its own.
	Noise func(host string, port int) bool
	// Inject are the headers that are added to what goes to their hosts, each
	// of which must be allowed too.
	Inject []Credential
	Meter  *Meter       // nil: one of its own, without a limit
	Log    *slog.Logger // nil: none

	// Internal are address ranges of the operator's own network that may be
	// reached, where Allow names a host there. This machine's own addresses are
	// not among them. See CheckInternal.
	Internal []string

	// Resolver replaces the machine's, AllowAddresses ("127.0.0.1:8443") are
	// reached although they are not public, and Roots replace the machine's
	// certificate authorities where a credential is added. All are for tests.
	Resolver       Resolver
	AllowAddresses []string
	Roots          *x509.CertPool

	idle time.Duration // 0: idleTimeout
}

// Proxy is one sandbox's proxy.
type Proxy struct {
	opt    Options
	list   atomic.Pointer[list]
	config *smokescreen.Config
	proxy  *goproxy.ProxyHttpServer
	log    *slog.Logger
	inner  internal
	inject []*injected
	issuer *issuer // nil: nothing is injected
	meter  *Meter

	mu       sync.Mutex // Decide is called under it
	refusals int        // told
	allowed  atomic.Int64
	life     life
}

// New checks the options. An entry of Allow that cannot be understood is an
// error that says what was expected.
func New(opt Options) (*Proxy, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.idle == 0 {
		opt.idle = idleTimeout
	}
	if opt.Meter == nil {
		opt.Meter = NewMeter(0)
	}
	p := &Proxy{opt: opt, log: opt.Log, meter: opt.Meter, life: life{meter: opt.Meter}}
	allow, err := parseList(opt.Allow)
	if err != nil {
		return nil, err
	}
	p.list.Store(&allow)
	if p.inner, err = parseInternal(opt.Internal); err != nil {
		return nil, err
	}
	if err := p.prepareInjection(); err != nil {
		return nil, err
	}
	if err := p.build(); err != nil {
		return nil, fmt.Errorf("build the egress proxy: %w", err)
	}
	return p, nil
}

// Allow lets a further entry through from now on, as one of Options.Allow. It may
// be called while the proxy serves.
func (p *Proxy) Allow(entry string) error {
	more, err := parseList([]string{entry})
	if err != nil {
		return err
	}
	for {
		was := p.list.Load()
		now := slices.Concat(*was, more)
		if len(now) > maxAllow {
			return fmt.Errorf("egress names %d hosts, %d are the most", len(now), maxAllow)
		}
		if p.list.CompareAndSwap(was, &now) {
			return nil
		}
	}
}

// build makes smokescreen's configuration and proxy. (NewConfig would change
// settings of the whole process.)
func (p *Proxy) build() error {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	c := &smokescreen.Config{
		Log: quiet, MetricsClient: metrics.NewNoOpMetricsClient(), Network: "ip", Resolver: resolver{p},
		ConnectTimeout: dialTimeout, DNSTimeout: lookupTimeout, IdleTimeout: p.opt.idle,
		RoleFromRequest: func(*http.Request) (string, error) { return "sandbox", nil },
		EgressACL:       decider{p},
		// Both are called in the place of a log line for the decision.
		PostDecisionRequestHandler:   p.accepted,
		RejectResponseHandlerWithCtx: p.rejected,
		ProxyDialTimeout:             p.life.dial,
		TransportMaxIdleConns:        16, TransportMaxIdleConnsPerHost: 4,
	}
	c.ShuttingDown.Store(false) // it reads that without looking whether it is there
	c.ConnTracker = conntrack.NewTracker(c.IdleTimeout, c.MetricsClient, c.Log, c.ShuttingDown, nil)
	err := errors.Join(c.SetDenyRanges(neverReached), c.SetDenyAddresses(p.inner.own), c.SetAllowAddresses(p.opt.AllowAddresses), c.SetAllowRanges(p.opt.Internal))
	if err != nil {
		return err
	}
	p.config = c
	p.proxy = smokescreen.BuildProxy(c)
	p.proxy.Logger = log.New(io.Discard, "", 0)
	// What a client asks for and gets is not changed on the way.
	p.proxy.KeepAcceptEncoding = true
	p.proxy.Tr.DisableCompression = true
	// Nothing of this process's environment, and TLS only by CONNECT.
	p.proxy.Tr.Proxy = nil
	p.proxy.Tr.TLSClientConfig = nil
	p.proxy.ConnectDial = nil
	p.proxy.Tr.ResponseHeaderTimeout = p.opt.idle
	p.proxy.Tr.MaxResponseHeaderBytes = maxHeader * 4
	p.proxy.ConnectCopyHandler = func(ctx *goproxy.ProxyCtx, client, target net.Conn) {
		defer p.life.wg.Done() // dial has counted it
		if a := attemptOf(ctx.Req); a != nil && a.injected != nil {
			p.intercept(a, client, target)
			return
		}
		tunnel(client, target)
	}
	return nil
}

// resolver asks for absolute names: no search domain of this machine is tried.
// It asks no longer than the proxy lives.
type resolver struct{ p *Proxy }

func (r resolver) LookupIP(ctx context.Context, network, host string) ([]net.IP, error) {
	var of Resolver = net.DefaultResolver
	if r.p.opt.Resolver != nil {
		of = r.p.opt.Resolver
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.p.life.ctx, cancel)()
	ips, err := of.LookupIP(ctx, network, host+".")
	if slices.ContainsFunc(ips, r.p.inner.isOwn) {
		return nil, errOwn
	}
	if i := slices.IndexFunc(ips, r.p.refused); i >= 0 {
		// smokescreen would take one of the others. A name that leads inside
		// as well leads nowhere: whoever made it so wants to come in.
		return ips[i : i+1], nil
	}
	return ips, err
}

// refused says whether smokescreen would refuse an address.
func (p *Proxy) refused(ip net.IP) bool {
	to := func(r smokescreen.RuleRange) bool { return r.Net.Contains(ip) }
	return !slices.ContainsFunc(p.config.AllowRanges, to) &&
		(!ip.IsGlobalUnicast() || ip.IsPrivate() || slices.ContainsFunc(p.config.DenyRanges, to))
}

func (r resolver) LookupPort(_ context.Context, _, service string) (int, error) {
	return strconv.Atoi(service) // a number, always
}

// Serve serves the connections of a sandbox's named way until ctx ends, and
// returns when all of them have ended. It closes l. The error says why no more
// connections could be accepted; it is nil at the context's end.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	base, cancel := context.WithCancel(ctx)
	defer cancel()
	p.life.ctx = base
	in := forward.Listener(l)
	defer in.Close()
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p.life.enter() {
				defer p.life.leave()
				p.handle(w, r)
			}
		}),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if n, ok := c.(interface{ Command() string }); ok {
				return context.WithValue(ctx, commandKey{}, n.Command())
			}
			return ctx
		},
		MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, IdleTimeout: p.opt.idle,
		ErrorLog:  log.New(io.Discard, "", 0),
		Protocols: http1(), DisableGeneralOptionsHandler: true,
	}
	stop := context.AfterFunc(base, func() { _ = srv.Close() })
	var watch sync.WaitGroup
	watch.Go(func() { p.watchMeter(base) })
	err := srv.Serve(&gate{Listener: in, life: &p.life, idle: p.opt.idle, room: make(chan struct{}, maxConns), over: base.Done()})
	if ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		err = fmt.Errorf("accept connections to the egress proxy: %w", err)
	} else {
		err = nil
	}
	cancel()
	stop()
	_ = srv.Close()
	p.life.end()
	p.proxy.Tr.CloseIdleConnections()
	watch.Wait()
	return err
}

// watchMeter cuts everything when the limit is reached, and says so once for
// all proxies that share the meter.
func (p *Proxy) watchMeter(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.meter.full:
	}
	p.life.cut()
	p.proxy.Tr.CloseIdleConnections()
	if p.meter.first() {
		p.decided(wire.Egress{Reason: p.meter.reason()})
	}
}

func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

type (
	commandKey struct{}
	attemptKey struct{}
)

// handle looks at what smokescreen does not, then lets it go on.
func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	a := &attempt{p: p}
	a.command, _ = r.Context().Value(commandKey{}).(string)
	refuse := func(reason string) {
		a.reason = reason
		a.tell(false, reason)
		w.Header().Set("Connection", "close")
		http.Error(w, strings.TrimSuffix(a.words(), "\n"), http.StatusForbidden)
	}
	connect := r.Method == http.MethodConnect
	if !connect && !r.URL.IsAbs() {
		http.Error(w, "This is Inspect's egress proxy. It answers to HTTP proxy requests only.", http.StatusBadRequest)
		return
	}
	var problem string
	a.host, a.port, problem = target(r.Host, 80)
	switch {
	case problem != "":
		refuse(problem)
		return
	case connect && r.URL.User != nil:
		refuse(noHost)
		return
	case connect && !strings.Contains(r.Host, ":"):
		a.port = 0
		refuse("a CONNECT request must name a port")
		return
	case len(r.Header.Values(goproxy.PerRequestHTTPSProxyHeaderKey)) > 0:
		refuse(furtherProxy)
		return
	case !connect && r.URL.Scheme != "http":
		if r.URL.Scheme == "https" && r.URL.Port() == "" {
			a.port = 443
		}
		refuse(needsConnect)
		return
	case p.meter.Full():
		refuse(p.meter.reason())
		return
	}
	if a.injected = p.injectedAt(a.host, a.port); a.injected != nil && (!connect || a.port != a.injected.port) {
		refuse(onlyHTTPS)
		return
	}
	// One spelling from here on: what is decided is what is resolved and dialled.
	hostport := net.JoinHostPort(a.host, strconv.Itoa(a.port))
	if connect {
		r.Host = hostport
		// goproxy looks for a proxy for this host in the environment, and for
		// none if it is localhost; where it connects to is in r.Host.
		r.URL = &url.URL{Host: "localhost"}
	} else {
		r.URL.Host = hostport
		r.Host = a.host
		if a.port != 80 {
			r.Host = hostport
		}
		if _, ok := r.Header["User-Agent"]; !ok {
			r.Header["User-Agent"] = []string{""} // none of our own
		}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &patientBody{r.Body, http.NewResponseController(w), p.opt.idle}
		}
	}
	p.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), attemptKey{}, a)))
}

func attemptOf(r *http.Request) *attempt {
	a, _ := r.Context().Value(attemptKey{}).(*attempt)
	return a
}

// decider is smokescreen's question whether a host may be reached.
type decider struct{ p *Proxy }

func (d decider) Decide(args acl.DecideArgs) (acl.Decision, error) {
	a := attemptOf(args.Req)
	deny := func(reason string) (acl.Decision, error) {
		if a != nil {
			a.reason = reason
		}
		return acl.Decision{Reason: reason, Result: acl.Deny}, nil
	}
	switch {
	case a == nil || args.Host != a.host:
		return deny("the request is not what it seemed")
	case args.ConnectProxyHost != "":
		return deny(furtherProxy)
	case !d.p.list.Load().allows(a.host, a.port):
		return deny(NotListed)
	case d.p.allowed.Add(1) > maxAllowed:
		return deny(tooMany)
	}
	return acl.Decision{Result: acl.Allow}, nil
}

// accepted is called when a request is allowed and its address is a public one.
func (p *Proxy) accepted(r *http.Request) error {
	a := attemptOf(r)
	if a == nil {
		return errors.New("the request is not what it seemed")
	}
	if a.injected == nil { // else there is more to see first
		a.tell(true, "")
	}
	return nil
}

// rejected makes smokescreen's answer ours: to a refusal, and to a host that
// could not be reached.
func (p *Proxy) rejected(ctx *smokescreen.SmokescreenContext, res *http.Response) {
	a := attemptOf(res.Request)
	if a == nil {
		return
	}
	words := ""
	switch {
	case a.reason != "":
	case ctx.Decision == nil:
		a.reason = noHost
	case res.StatusCode == http.StatusProxyAuthRequired: // smokescreen's refusal
		a.reason = notPublic
	case ctx.Decision.ResolvedAddr == nil:
		a.tell(true, notResolved) // allowed, and yet nothing came of it
		words = "Inspect's egress proxy allows " + a.where() + ", but " + notResolved + ".\n"
	case p.meter.Full():
		a.reason = p.meter.reason()
	default:
		a.tell(true, "") // if it was not
		words = "Inspect's egress proxy allows " + a.where() + ", but it could not be reached.\n"
	}
	switch {
	case a.reason != "":
		a.tell(false, a.reason)
		words = a.words()
		res.StatusCode, res.Status = http.StatusForbidden, a.status()
	case res.StatusCode != http.StatusGatewayTimeout:
		res.StatusCode, res.Status = http.StatusBadGateway, "502 "+a.where()+" not reached"
	}
	res.Header = http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Connection": {"close"}}
	res.Body, res.ContentLength = io.NopCloser(strings.NewReader(words)), int64(len(words))
}
