package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// gate decides who sees the pages: whoever holds the access token. The token
// itself is not kept; what is kept lets nobody in.
//
// A browser gets a cookie that is derived from the token, so that the token
// does not lie in the browser, and named after it, because browsers do not
// tell ports apart: two servers on one machine each keep their own.
type gate struct {
	token  [sha256.Size]byte // SHA-256 of the token
	cookie [sha256.Size]byte // SHA-256 of the cookie's value
	value  func(token string) string
	name   string
	hosts  []string // allowed besides loopback
}

func newGate(token string, hosts []string) *gate {
	value := func(t string) string {
		m := hmac.New(sha256.New, []byte(t))
		m.Write([]byte("inspect pages cookie v1"))
		return hex.EncodeToString(m.Sum(nil))
	}
	sum := sha256.Sum256([]byte(token))
	return &gate{
		token:  sum,
		cookie: sha256.Sum256([]byte(value(token))),
		value:  value,
		name:   "inspect_" + hex.EncodeToString(sum[:4]),
		hosts:  hosts,
	}
}

// hostAllowed defends against names of strangers that lead to this address
// (DNS rebinding): only loopback and what the operator named are answered.
func (g *gate) hostAllowed(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if host == "localhost" {
		return true
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(g.hosts, func(h string) bool {
		return strings.EqualFold(h, host) || strings.EqualFold(h, r.Host)
	})
}

// knows says whether a request comes from someone who holds the token: by the
// cookie, or as a bearer token for programs.
func (g *gate) knows(r *http.Request) bool {
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return same(g.token, strings.TrimSpace(token))
	}
	c, err := r.Cookie(g.name)
	return err == nil && same(g.cookie, c.Value)
}

func same(want [sha256.Size]byte, got string) bool {
	sum := sha256.Sum256([]byte(got))
	return subtle.ConstantTimeCompare(want[:], sum[:]) == 1
}

// enter answers a request that brings the token in its address: a cookie, and
// the same address without the token, so that it is not left in the browser's
// history or passed on.
func (g *gate) enter(w http.ResponseWriter, r *http.Request, token string) bool {
	if !same(g.token, token) {
		return false
	}
	http.SetCookie(w, &http.Cookie{
		Name: g.name, Value: g.value(token), Path: "/",
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
		MaxAge: 7 * 24 * 3600,
	})
	q := r.URL.Query()
	q.Del("token")
	// Only the path: "//elsewhere" must not become another host.
	to := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/"), RawQuery: q.Encode()}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true
}

// secure sets the headers of every answer.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
	h.Set("Cache-Control", "no-store")
}
