// Package newapp makes the GitHub App: a page on this machine sends app.yml to
// GitHub, GitHub sends the browser back with a code, and what the code is
// redeemed for is checked and kept in files. Nothing secret is ever shown.
package newapp

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/subtle"
	"crypto/x509"
	"embed"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"inspect/app/github"
	"inspect/app/manifest"
)

// Options of Run.
type Options struct {
	Manifest manifest.Manifest // with the webhook's address
	Org      string            // organization that is to own the App; empty: the person's own account
	API, Git string            // as github.Options
	Listen   string            // a loopback address
	Timeout  time.Duration     // for the whole; GitHub's code is good for an hour
	Store    *Store
	Out      io.Writer
	// HTTP is as in github.Options.
	HTTP http.RoundTripper
}

// ErrDifferent says that the App GitHub made is not the one that was asked for.
var ErrDifferent = errors.New("the App is not as app.yml says")

//go:embed page.html
var pageFile embed.FS

var page = template.Must(template.ParseFS(pageFile, "page.html"))

// Run serves the page until an App is made and kept, or until ctx or the timeout
// ends.
func Run(ctx context.Context, o Options) (github.Self, error) {
	bases, err := github.DeriveBases(o.API, o.Git)
	if err != nil {
		return github.Self{}, err
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return github.Self{}, fmt.Errorf("expected a loopback address like 127.0.0.1:0, but found %q: whoever reaches the page could make it their App", o.Listen)
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return github.Self{}, err
	}
	defer l.Close()
	f := &flow{o: o, bases: bases, host: l.Addr().String(), path: "/" + secret(), state: secret(), done: make(chan result, 1)}
	server := &http.Server{
		Handler: f, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 3 * time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		// The last answer is still on its way to the browser.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(stop)
		<-served
	}()
	_, port, _ := net.SplitHostPort(f.host)
	fmt.Fprintf(o.Out, "Open this page in a browser and confirm there:\n\n  http://%s%s/\n\nIs the browser on another machine? There, first: ssh -L %s:%s THIS-MACHINE\nIt is waited for %s.\n", f.host, f.path, port, f.host, o.Timeout)
	timer := time.NewTimer(o.Timeout)
	defer timer.Stop()
	select {
	case r := <-f.done:
		return r.made, r.err
	case err := <-served:
		served <- err
		return github.Self{}, fmt.Errorf("the page cannot be served: %w", err)
	case <-timer.C:
		return github.Self{}, fmt.Errorf("nobody confirmed within %s. If the App was made on GitHub all the same, delete it there; then run this again", o.Timeout)
	case <-ctx.Done():
		return github.Self{}, context.Cause(ctx)
	}
}

// secret is 32 random bytes that fit into an address.
func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

type result struct {
	made github.Self
	err  error
}

// flow is one run. Its page is at an address that only who sees the terminal
// knows, so that nobody else on this machine takes part.
type flow struct {
	o           Options
	bases       github.Bases
	host        string
	path, state string
	done        chan result

	mu   sync.Mutex
	used bool
}

// view is what the page shows.
type view struct {
	Title, Words string
	Action       string // of the form; empty: none
	Manifest     string
	Owner        string
	Link         string // to go on with
	Nonce        string
}

// ServeHTTP implements http.Handler.
func (f *flow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Host != f.host: // another name for this machine: somebody else's page asks
		f.show(w, http.StatusMisdirectedRequest, view{Title: "Not here", Words: "Open the address as it stands on the terminal."})
	case r.Method != http.MethodGet:
		f.show(w, http.StatusMethodNotAllowed, view{Title: "Not here", Words: "This page is only read."})
	case r.URL.Path == f.path+"/":
		f.begin(w)
	case r.URL.Path == f.path+"/made":
		f.made(w, r)
	default:
		f.show(w, http.StatusNotFound, view{Title: "Not here", Words: "Open the address as it stands on the terminal."})
	}
}

func (f *flow) begin(w http.ResponseWriter) {
	m := f.o.Manifest
	m.RedirectURL = "http://" + f.host + f.path + "/made"
	form, err := m.Form()
	if err != nil {
		f.show(w, http.StatusInternalServerError, view{Title: "The App cannot be described", Words: err.Error()})
		return
	}
	v := view{Title: "Make the GitHub App of Inspect", Manifest: form, Owner: "your own account", Action: f.bases.Git + "/settings/apps/new"}
	if f.o.Org != "" {
		v.Owner = "the organization " + f.o.Org
		v.Action = f.bases.Git + "/organizations/" + url.PathEscape(f.o.Org) + "/settings/apps/new"
	}
	v.Action += "?state=" + f.state
	f.show(w, http.StatusOK, v)
}

// made is where GitHub sends the browser back to.
func (f *flow) made(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(f.state)) != 1 {
		f.show(w, http.StatusForbidden, view{Title: "Not from this page", Words: "What came back does not belong to the form of this page. Nothing was kept. Begin again at the address on the terminal."})
		return
	}
	f.mu.Lock()
	used := f.used
	f.used = true
	f.mu.Unlock()
	if used {
		f.show(w, http.StatusGone, view{Title: "This was done already", Words: "The terminal says how it ended."})
		return
	}
	made, err := f.keep(r.Context(), q.Get("code"))
	switch {
	case err != nil && made.ID == 0:
		f.show(w, http.StatusBadGateway, view{Title: "The App is not usable", Words: err.Error()})
	case err != nil:
		f.show(w, http.StatusOK, view{Title: "The App is made, and not as it should be", Words: err.Error(), Link: f.page(made) + "/installations/new"})
	default:
		f.show(w, http.StatusOK, view{Title: "The App is made", Words: "Its id, key and webhook secret are kept; the terminal says where. Install it on your repositories next.", Link: f.page(made) + "/installations/new"})
	}
	f.done <- result{made, err}
}

// page is the App's page, if what GitHub says of it lies on that GitHub.
func (f *flow) page(made github.Self) string {
	if strings.HasPrefix(made.URL, f.bases.Git+"/") {
		return made.URL
	}
	return f.bases.Git + "/apps/" + url.PathEscape(made.Slug)
}

// keep redeems the code, checks what comes of it, and keeps it. With an error an
// App that has an id is kept nevertheless.
func (f *flow) keep(ctx context.Context, code string) (github.Self, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	got, err := github.Convert(ctx, github.Options{APIBase: f.o.API, GitBase: f.o.Git, HTTP: f.o.HTTP}, code)
	if err != nil {
		return github.Self{}, fmt.Errorf("%w. GitHub has made the App: delete it there (Settings, Developer settings, GitHub Apps) and run this again", err)
	}
	undo := "Nothing was kept. Delete the App at " + f.page(got.Self) + " (Advanced) and run this again"
	d := f.o.Manifest.Compare(got.Permissions, got.Events)
	switch {
	case got.ID <= 0 || !isKey(got.Key):
		return github.Self{}, fmt.Errorf("GitHub's answer holds no id or no private key. %s", undo)
	case got.WebhookSecret == "" || strings.ContainsAny(got.WebhookSecret, "\r\n"):
		return github.Self{}, fmt.Errorf("GitHub's answer holds no webhook secret. %s", undo)
	case !isWord(got.ClientID) || !isWord(got.ClientSecret):
		return github.Self{}, fmt.Errorf("GitHub's answer holds no client id or no client secret. %s", undo)
	case f.o.Org != "" && !strings.EqualFold(got.Owner, f.o.Org):
		return github.Self{}, fmt.Errorf("the App belongs to %s, not to %s. %s", got.Owner, f.o.Org, undo)
	case len(d.Wider) > 0:
		return github.Self{}, fmt.Errorf("%w: %s. %s", ErrDifferent, d.Words(), undo)
	}
	if err := f.o.Store.keep(got, f.bases); err != nil {
		return github.Self{}, fmt.Errorf("the App's key cannot be kept: %w. %s", err, undo)
	}
	if !d.None() {
		return got.Self, fmt.Errorf("%w: %s. It is kept; change it under \"Permissions & events\" of %s, and see what `inspect doctor` says", ErrDifferent, d.Words(), f.page(got.Self))
	}
	return got.Self, nil
}

// isWord says whether a text is one word of letters, digits, ".", "_" and "-".
func isWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("._-", r))
	})
}

// isKey says whether a text is an RSA private key in PEM form.
func isKey(s string) bool {
	block, _ := pem.Decode([]byte(s))
	if block == nil {
		return false
	}
	if _, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return true
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	_, isRSA := k.(*rsa.PrivateKey)
	return err == nil && isRSA
}

func (f *flow) show(w http.ResponseWriter, status int, v view) {
	v.Nonce = secret()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	// A form is sent to this GitHub and nowhere else; nothing is loaded or run.
	h.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; style-src 'nonce-%s'; form-action %s; base-uri 'none'; frame-ancestors 'none'", v.Nonce, f.bases.Git))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	// Never the path, which is secret, to anybody else.
	h.Set("Referrer-Policy", "strict-origin-when-cross-origin")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = page.Execute(w, v) // the browser may have gone
}
