package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// private are the ranges that an operator's own network can have: RFC 1918,
// RFC 6598 and RFC 4193.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// CheckInternal says what is wrong with an address range of Options.Internal.
func CheckInternal(s string) error {
	p, err := netip.ParsePrefix(s)
	if err != nil || p != p.Masked() {
		return fmt.Errorf("%q: expected an address range like 10.20.0.0/16", s)
	}
	if !slices.ContainsFunc(private, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) }) {
		return fmt.Errorf("%q: expected a range within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10 or fc00::/7: what is public is reached without it, and nothing else is ever reached", s)
	}
	return nil
}

// internal is what may be reached of the operator's own network.
type internal struct {
	ranges []netip.Prefix
	own    []string // this machine's addresses: services that listen on all of them are not for sandboxes, whatever name leads there
}

var errOwn = errors.New("the name leads to this machine")

func parseInternal(ranges []string) (in internal, err error) {
	for _, s := range ranges {
		if err := CheckInternal(s); err != nil {
			return in, fmt.Errorf("an internal range: %w", err)
		}
		in.ranges = append(in.ranges, netip.MustParsePrefix(s))
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil && len(in.ranges) > 0 {
		return in, fmt.Errorf("this machine's own addresses: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			in.own = append(in.own, n.IP.String())
		}
	}
	return in, nil
}

// isOwn says whether an address of the internal ranges is this machine's.
func (in internal) isOwn(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	a = a.Unmap()
	return ok && slices.Contains(in.own, a.String()) && slices.ContainsFunc(in.ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
