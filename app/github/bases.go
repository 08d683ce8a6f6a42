package github

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Bases are the addresses of one GitHub.
type Bases struct {
	API     string // REST, ends with "/": https://api.github.com/
	GraphQL string // https://api.github.com/graphql
	Upload  string // ends with "/": https://uploads.github.com/
	Git     string // clone URLs begin with it, no "/" at the end: https://github.com
}

// DeriveBases checks the address of the REST API and derives the others from
// it. git may be empty; then it follows from api:
//
//	https://api.github.com         -> https://github.com
//	https://ghe.example/api/v3     -> https://ghe.example       (Enterprise Server)
//	https://api.acme.ghe.com       -> https://acme.ghe.com      (data residency)
//
// Addresses without TLS are accepted for this machine only, because tokens
// travel to them.
func DeriveBases(api, git string) (Bases, error) {
	a, err := base("the GitHub API address", api)
	if err != nil {
		return Bases{}, err
	}
	host := a.Hostname()
	switch {
	case host == "github.com" || host == "www.github.com":
		return Bases{}, fmt.Errorf("the GitHub API address %s is the web site's: use https://api.github.com", api)
	case strings.HasSuffix(host, ".ghe.com") && !strings.HasPrefix(host, "api."):
		return Bases{}, fmt.Errorf("the GitHub API address %s is the web site's: use https://api.%s", api, host)
	}
	path := strings.TrimRight(a.Path, "/")
	b := Bases{API: a.Scheme + "://" + a.Host + path + "/"}
	root := a.Scheme + "://" + a.Host
	enterprise := path == "/api/v3"
	switch {
	case enterprise:
		b.GraphQL, b.Upload = root+"/api/graphql", root+"/api/uploads/"
	case path == "":
		b.GraphQL, b.Upload = root+"/graphql", root+"/"
		if rest, ok := strings.CutPrefix(a.Host, "api."); ok {
			b.Upload = a.Scheme + "://uploads." + rest + "/"
		}
	default:
		return Bases{}, fmt.Errorf("the GitHub API address %s has the path %s: only none (github.com, data residency) and /api/v3 (Enterprise Server) are known", api, path)
	}
	if git != "" {
		g, err := base("the GitHub clone address", git)
		if err != nil {
			return Bases{}, err
		}
		b.Git = g.Scheme + "://" + g.Host + strings.TrimRight(g.Path, "/")
		return b, nil
	}
	b.Git = root
	if rest, ok := strings.CutPrefix(a.Host, "api."); ok && !enterprise {
		b.Git = a.Scheme + "://" + rest
	}
	return b, nil
}

func base(what, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s %q is not an address like https://api.github.com", what, s)
	}
	switch u.Scheme {
	case "https":
	case "http":
		ip := net.ParseIP(u.Hostname())
		if u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, fmt.Errorf("%s %s has no TLS: tokens would travel in the clear; use https", what, s)
		}
	default:
		return nil, fmt.Errorf("%s %s must begin with https://", what, s)
	}
	return u, nil
}
