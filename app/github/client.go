package github

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	gh "github.com/google/go-github/v60/github"

	"inspect/checks/redact"
)

// Repo names a repository. The id decides; owner and name are how GitHub wants
// to be addressed and may be out of date.
type Repo struct {
	ID    int64
	Owner string
	Name  string
}

func (r Repo) String() string { return r.Owner + "/" + r.Name }

func (r Repo) check() error {
	switch {
	case r.ID <= 0:
		return fmt.Errorf("%w: address the repository %s without its id", ErrForbidden, r)
	case !forms["owner"].MatchString(r.Owner), !forms["name"].MatchString(r.Name), strings.Trim(r.Name, ".") == "":
		return fmt.Errorf("%w: address a repository as %q", ErrForbidden, r.String())
	}
	return nil
}

// Client speaks for one installation. It is long-lived, because it holds the
// installation's budget and its tokens, and safe for concurrent use: reads run
// side by side, writes one after another.
type Client struct {
	app          *App
	installation int64 // 0: the App itself
	pace         *pace
	tokens       *tokens
	// bearer gives the credential for a request about a repository (0: none).
	bearer func(ctx context.Context, repo int64, p purpose) (string, error)
}

func (c *Client) tokenFor(ctx context.Context, repo int64, p purpose) (string, error) {
	if err := c.pace.silent(); err != nil {
		return "", err // nor is a token asked for that could not be used
	}
	if p == forPushing {
		return "", fmt.Errorf("%w: write to the contents of repository %d without a token of that one push", ErrForbidden, repo)
	}
	t, err := c.tokens.get(ctx, repo, p, fresh)
	return t.Token, err
}

// Counters of requests since the start of the process.
type Counters struct {
	Total, Tokens, Writes int64 // Writes without Tokens
}

type counters struct{ total, tokens, writes atomic.Int64 }

// Counters tells how many requests were sent.
func (a *App) Counters() Counters {
	return Counters{a.counters.total.Load(), a.counters.tokens.Load(), a.counters.writes.Load()}
}

// in runs requests about one repository. A repository that was renamed is
// looked up by its id, and the request repeated under its new name: GitHub
// carries out no write it answers with 301.
func (c *Client) in(ctx context.Context, repo Repo, op string, fn func(api *gh.Client, r Repo) error) error {
	if err := repo.check(); err != nil {
		return err
	}
	err := c.call(ctx, repo.ID, op, func(api *gh.Client) error { return fn(api, repo) })
	if !errors.Is(err, ErrMoved) {
		return err
	}
	now, lookup := c.Repository(ctx, repo.ID)
	if lookup != nil || now.Repo.Owner == repo.Owner && now.Repo.Name == repo.Name || now.Repo.check() != nil {
		return err
	}
	c.app.log.InfoContext(ctx, "repository was renamed", "from", repo.String(), "to", now.Repo.String())
	return c.call(ctx, repo.ID, op, func(api *gh.Client) error { return fn(api, now.Repo) })
}

// call runs fn with a client whose every request passes the gate, and turns
// what comes of it into one of our errors. op is what is being tried, in words.
func (c *Client) call(ctx context.Context, repo int64, op string, fn func(*gh.Client) error) error {
	x := &exchange{c: c, repo: repo}
	api := gh.NewClient(&http.Client{Transport: x, CheckRedirect: x.checkRedirect})
	api.BaseURL, api.UploadURL = c.app.api, c.app.upload
	api.UserAgent = "inspect"
	return x.outcome(ctx, op, fn(api))
}

// outcome names the error of an exchange.
func (x *exchange) outcome(ctx context.Context, op string, err error) error {
	var accepted *gh.AcceptedError
	if err == nil || errors.As(err, &accepted) && x.last != nil && x.last.status == http.StatusAccepted {
		return nil // the library takes 202 for an error
	}
	e := &Error{Op: op, Cause: err}
	var limit *RateLimited
	var own *Error
	switch {
	case errors.As(err, &own):
		return fmt.Errorf("could not %s: %w", op, own)
	case x.limit != nil:
		return fmt.Errorf("could not %s: %w", op, x.limit)
	case errors.As(err, &limit):
		return fmt.Errorf("could not %s: %w", op, limit)
	case x.refused != nil: // before anything was sent
		return fmt.Errorf("could not %s: %w", op, x.refused)
	case errors.Is(err, ErrForbidden): // a redirect we do not follow
		return fmt.Errorf("could not %s: %w", op, err)
	case x.last != nil && x.last.status >= 300:
		e.Status, e.Message = x.last.status, x.message()
		e.Kind = kindOf(x.last.status, x.write, e.Message)
		e.Cause = nil
	case x.write && x.sent:
		// The connection broke, or the answer could not be read.
		e.Kind = ErrAmbiguous
	case errors.Is(err, ErrTooLarge):
		e.Kind = ErrTooLarge
	case x.sent || x.last != nil || isNetwork(err):
		e.Kind = ErrUnavailable
	default:
		return fmt.Errorf("could not %s: %w", op, err)
	}
	if cause := context.Cause(ctx); cause != nil && e.Kind != nil && e.Status == 0 {
		e.Cause = cause
	}
	return e
}

// kindOf reads a refusal.
func kindOf(status int, write bool, message string) error {
	m := strings.ToLower(message)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(m, w) {
				return true
			}
		}
		return false
	}
	switch {
	case status >= 500:
		if write {
			return ErrAmbiguous
		}
		return ErrUnavailable
	case status == http.StatusUnauthorized:
		return ErrDenied
	case (status == http.StatusForbidden || status == http.StatusNotFound) && has("suspended"):
		return ErrSuspended
	case status == http.StatusForbidden && has("archived", "is locked", "issue is locked", "has been locked", "read-only"):
		return ErrGone
	case status == http.StatusForbidden:
		return ErrDenied
	case status == http.StatusNotFound:
		return ErrNotFound
	case status == http.StatusConflict && has("empty"):
		return ErrNotFound // an empty repository has no refs
	case status == http.StatusGone, status == http.StatusUnavailableForLegalReasons:
		return ErrGone
	case status == http.StatusUnprocessableEntity && has("already exists"):
		return ErrExists
	case status >= 300 && status < 400:
		return ErrMoved
	}
	return ErrInvalid
}

// message is what GitHub said, for people and logs: short, one line, redacted.
func (x *exchange) message() string {
	var said struct {
		Message string `json:"message"`
		Errors  []any  `json:"errors"`
	}
	if json.Unmarshal(x.last.body, &said) != nil || said.Message == "" {
		return ""
	}
	out := said.Message
	for i, e := range said.Errors {
		if i == 5 {
			break
		}
		switch e := e.(type) {
		case string:
			out += "; " + e
		case map[string]any:
			if m, ok := e["message"].(string); ok && m != "" {
				out += "; " + m
			} else if f, ok := e["field"].(string); ok {
				out += fmt.Sprintf("; %s %v", f, e["code"])
			}
		}
	}
	return redact.OneLine(x.c.app.redactor.String(out), 400)
}

func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n)
}

// notSent says that a transport error happened before any byte of the request
// can have reached GitHub.
func notSent(err error) bool {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// pages calls fn for page 1, 2, … until it says there are no more, at most max
// pages; it reports whether there would have been more.
func pages(max int, fn func(gh.ListOptions) (*gh.Response, error)) (more bool, err error) {
	for page := 1; page <= max; page++ {
		resp, err := fn(gh.ListOptions{Page: page, PerPage: 100})
		if err != nil {
			return false, err
		}
		if resp.NextPage <= page {
			return false, nil
		}
	}
	return true, nil
}
