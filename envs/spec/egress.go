package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ecosystems are the names that stand for the hosts of a package registry. The
// hosts themselves are the egress proxy's to know.
var ecosystems = []string{
	"alpine", "conda", "crates", "debian", "go", "gradle", "hex", "maven", "npm", "nuget", "packagist", "pub", "pypi", "rubygems", "ubuntu",
}

// Ecosystems returns the names that egress takes beside hosts, sorted.
func Ecosystems() []string { return slices.Clone(ecosystems) }

// IsEcosystem says whether an entry of egress is the name of an ecosystem.
func IsEcosystem(entry string) bool { return slices.Contains(ecosystems, entry) }

// EgressProblem says what is wrong with an entry of egress, as a sentence that
// begins with "expected"; empty: nothing is. What is right is the name of an
// ecosystem, a host, a host with a port, or "*." and a domain for everything
// below it. The entry must be in lower case, as Parse makes it.
func EgressProblem(entry string) string {
	if IsEcosystem(entry) {
		return ""
	}
	host, port, hasPort := strings.Cut(entry, ":")
	switch {
	case entry == "":
		return "expected " + egressHelp
	case strings.Contains(entry, "://"):
		return "expected a host without a scheme, for example registry.example:443"
	case strings.ContainsAny(entry, "/?#"):
		return "expected a host without a path: a whole host is allowed, or none of it"
	case strings.Contains(entry, "@"):
		return "expected a host without an account: credentials do not belong here"
	case strings.HasPrefix(entry, "[") || strings.Count(entry, ":") > 1:
		return "expected the name of a host, not an IP address"
	}
	if hasPort {
		n, err := strconv.Atoi(port)
		if err != nil || strconv.Itoa(n) != port || n < 1 || n > 65535 {
			return "expected a port from 1 to 65535 after the host"
		}
	}
	if strings.HasSuffix(host, ".") {
		return "expected a host without a dot at its end"
	}
	name := strings.TrimPrefix(host, "*.")
	if strings.Contains(name, "*") {
		return "expected a * only as the first part of a host, for example *.registry.example"
	}
	labels := strings.Split(name, ".")
	if name != host && len(labels) < 2 {
		return "expected at least two parts after *., for example *.registry.example"
	}
	for _, l := range labels {
		if !isLabel(l) {
			if strings.ContainsFunc(l, func(r rune) bool { return r > 127 }) {
				return "expected a host in its ASCII form (xn--…)"
			}
			return "expected " + egressHelp
		}
	}
	if len(name) > 253 {
		return "expected a host of at most 253 bytes"
	}
	last := labels[len(labels)-1]
	switch {
	case numeric(last):
		return "expected the name of a host, not an IP address"
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return "expected a host outside: localhost is the sandbox itself and needs no entry"
	case len(labels) == 1 && !hasPort:
		if near := nearest(name, ecosystems); near != "" {
			return fmt.Sprintf("no such ecosystem; did you mean %s?", near)
		}
		return "expected a host with a dot or a port, or one of the ecosystems " + strings.Join(ecosystems, ", ")
	}
	return ""
}

const egressHelp = "a host, host:port, *.domain or the name of an ecosystem"

// isLabel says whether s is one part of a host's name.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// numeric says whether a host that ends in this label is read as an IPv4
// address, in whatever spelling.
func numeric(label string) bool {
	if rest, hex := strings.CutPrefix(label, "0x"); hex {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
