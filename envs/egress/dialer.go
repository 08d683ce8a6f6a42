package egress

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
)

// Transport is a way out for a trusted program of ours that must reach hosts which
// no list names, such as those a registry keeps its blobs on: to any host by its
// name, where the rules of a proxy let its address through (a public one or one
// of Config.Internal, and never this machine). Of the configuration only
// Internal and what is for tests count. Nothing is decompressed, and no proxy of
// the environment is used.
func Transport(c Config) (*http.Transport, error) {
	d, err := c.dialer()
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		DialContext: d.dial, TLSClientConfig: &tls.Config{RootCAs: d.p.opt.Roots}, TLSHandshakeTimeout: dialTimeout,
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader * 4, IdleConnTimeout: idleTimeout,
	}, nil
}

type dialer struct{ p *Proxy }

func (c Config) dialer() (dialer, error) {
	p, err := New(c.options())
	if err != nil {
		return dialer{}, err
	}
	p.life.ctx = context.Background()
	return dialer{p}, nil
}

func (d dialer) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, problem := target(address, 0)
	where := net.JoinHostPort(clean(host, maxHost), strconv.Itoa(port))
	if problem != "" {
		return nil, fmt.Errorf("%s is not reached: %s", where, problem)
	}
	lookup, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := resolver(d).LookupIP(lookup, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("%s is not reached: %s: %w", where, notResolved, err)
	}
	if slices.ContainsFunc(ips, func(ip net.IP) bool { return d.never(ip, port) }) {
		return nil, fmt.Errorf("%s is not reached: %s", where, notPublic)
	}
	err = fmt.Errorf("%s is not reached: %s", where, notResolved)
	for _, ip := range ips {
		var c net.Conn
		if c, err = (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(port))); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func (d dialer) never(ip net.IP, port int) bool {
	at, allowed := ip.String(), d.p.opt.AllowAddresses
	if slices.Contains(allowed, at) || slices.Contains(allowed, net.JoinHostPort(at, strconv.Itoa(port))) {
		return false
	}
	return d.p.refused(ip) || slices.Contains(d.p.inner.own, at)
}
