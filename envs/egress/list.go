package egress

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"inspect/envs/spec"
)

// maxAllow bounds an allow-list, in entries after the ecosystems' hosts.
const maxAllow = 1000

// list is what may be reached.
type list []rule

// rule is one entry: a host, or all names below a domain.
type rule struct {
	name  string
	below bool // "*." stood before it
	port  int  // 0: 443 and 80
}

// parseList reads entries as they stand in .inspect.yml.
func parseList(entries []string) (list, error) {
	var out list
	for _, e := range entries {
		e = strings.ToLower(strings.TrimSpace(e))
		hosts, ok := Hosts(e)
		if !ok {
			if problem := spec.EgressProblem(e); problem != "" {
				return nil, fmt.Errorf("egress %q: %s", clean(e, 100), problem)
			}
			hosts = []string{e}
		}
		for _, h := range hosts {
			var r rule
			name, port, _ := strings.Cut(h, ":")
			r.name, r.below = strings.CutPrefix(name, "*.")
			r.port, _ = strconv.Atoi(port)
			out = append(out, r)
		}
	}
	if len(out) > maxAllow {
		return nil, fmt.Errorf("egress names %d hosts, %d are the most", len(out), maxAllow)
	}
	return out, nil
}

// allows says whether a host, in the form of canonical, may be reached at a port.
func (l list) allows(host string, port int) bool {
	for _, r := range l {
		if r.port != port && (r.port != 0 || port != 443 && port != 80) {
			continue
		}
		if !r.below && host == r.name || r.below && strings.HasSuffix(host, "."+r.name) {
			return true
		}
	}
	return false
}

// suggestion is what to write under egress so that this would be allowed.
func suggestion(host string, port int) string {
	for _, name := range Ecosystems() {
		if l, err := parseList([]string{name}); err == nil && l.allows(host, port) {
			return name
		}
	}
	if port == 443 || port == 80 {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// maxHost is the longest name of a host, in bytes: RFC 1035.
const maxHost = 253

// canonical is a host in the one form it is compared, resolved and shown in. The
// second result, if it is not empty, is why it can never be reached.
func canonical(host string) (string, string) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case host == "":
		return "", "the request names no host"
	case len(host) > maxHost:
		return host, "the host's name is too long"
	case isAddress(host):
		return host, "an IP address cannot be allowed, only the name of a host"
	}
	for _, label := range strings.Split(host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return host, noHost
		}
	}
	return host, ""
}

// isAddress says whether some program reads host as an address: the usual
// forms, and those inet_aton takes (127.1, 0x7f000001, 017700000001).
func isAddress(host string) bool {
	h := strings.Trim(host, "[]")
	if strings.Contains(h, ":") || net.ParseIP(h) != nil {
		return true
	}
	last := h[strings.LastIndexByte(h, '.')+1:]
	if digits, hex := strings.CutPrefix(last, "0x"); hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}
