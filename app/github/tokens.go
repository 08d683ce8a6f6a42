package github

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	gh "github.com/google/go-github/v60/github"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// permissions of a token: name -> "read" or "write". GitHub adds
// metadata: read to whatever is asked for.
type permissions map[string]string

// A purpose is what a token is for. Each has a token of its own, with the least
// permissions that its requests need.
type purpose string

const (
	forNames   purpose = "names"         // which repositories and accounts there are
	forReading purpose = "reading"       // files, refs, rules, who may write; the mirror's fetch
	forTalking purpose = "talking"       // comments, reactions, labels
	forChecks  purpose = "checks"        // check runs
	forPulls   purpose = "pull requests" // finding and creating them
	forLogs    purpose = "logs"          // of jobs that failed
	forPushing purpose = "pushing"       // one push, by git or, signed, by us
	forTeams   purpose = "teams"         // asking them, besides people, for a review
)

// permissions of a purpose. Lookups of people and rules take the token for
// reading, though metadata would do: one more token for each session would cost
// two more requests and protect nothing, since what reads a repository's files
// knows its metadata.
func (p purpose) permissions() permissions {
	switch p {
	case forNames:
		return permissions{"metadata": "read"}
	case forReading:
		return permissions{"metadata": "read", "contents": "read"}
	case forTalking:
		return permissions{"metadata": "read", "issues": "write"}
	case forChecks:
		return permissions{"metadata": "read", "checks": "write"}
	case forPulls:
		return permissions{"metadata": "read", "pull_requests": "write"}
	case forLogs:
		return permissions{"metadata": "read", "actions": "read"}
	case forTeams:
		return permissions{"metadata": "read", "pull_requests": "write", "members": "read"}
	case forPushing:
		return permissions{"metadata": "read", "contents": "write"}
	}
	return nil // mint refuses
}

type whose struct{}

// For marks all that is done with ctx as somebody's: a session's, a delivery's.
// Its tokens are its own; App.Revoke ends them.
func For(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, whose{}, who)
}

func whoseIs(ctx context.Context) string {
	who, _ := ctx.Value(whose{}).(string)
	return who
}

func (p permissions) String() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(p)) {
		out = append(out, k+": "+p[k])
	}
	return strings.Join(out, ", ")
}

// How much of its hour a token must have left to be used.
const (
	fresh     = 5 * time.Minute  // below it a new one is minted
	usable    = 1 * time.Minute  // below it the old one is not used any more
	freshRead = 20 * time.Minute // a clone of a large repository takes its time
)

// tokens caches the tokens of one installation by owner, repository and purpose.
// Nobody waits for a mint of another key, and whoever has a usable token does
// not wait at all.
type tokens struct {
	clock proc.Clock
	mint  func(ctx context.Context, repo int64, p purpose) (wire.GitToken, error)

	mu      sync.Mutex
	entries map[tokenKey]*tokenEntry
}

type tokenKey struct {
	whose   string
	repo    int64
	purpose purpose
}

type tokenEntry struct {
	token   wire.GitToken
	minting *minting // nil if nobody is at it
}

type minting struct {
	done  chan struct{}
	token wire.GitToken
	err   error
}

// get returns a token with at least left of its life ahead, or, while a new
// one cannot be had, one that is still usable.
func (t *tokens) get(ctx context.Context, repo int64, p purpose, left time.Duration) (wire.GitToken, error) {
	key := tokenKey{whoseIs(ctx), repo, p}
	for {
		t.mu.Lock()
		e := t.entries[key]
		if e == nil {
			e = &tokenEntry{}
			t.entries[key] = e
		}
		ahead := e.token.Expires.Sub(t.clock.Now())
		old := e.token
		if ahead > left || e.minting != nil && ahead > usable {
			t.mu.Unlock()
			return old, nil
		}
		m := e.minting
		if m == nil {
			m = &minting{done: make(chan struct{})}
			e.minting = m
			t.mu.Unlock()
			t.fill(ctx, e, m, repo, p)
			if m.err != nil && ahead > usable && passing(m.err) {
				return old, nil
			}
			return m.token, m.err
		}
		t.mu.Unlock()
		select {
		case <-m.done:
		case <-ctx.Done():
			return wire.GitToken{}, context.Cause(ctx)
		}
		// The one who minted may have given up for reasons of its own.
		if m.err == nil || !errors.Is(m.err, context.Canceled) && !errors.Is(m.err, context.DeadlineExceeded) {
			return m.token, m.err
		}
	}
}

func (t *tokens) fill(ctx context.Context, e *tokenEntry, m *minting, repo int64, p purpose) {
	m.err = context.Canceled // what waiters see if mint panics
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		e.minting = nil
		if m.err == nil {
			e.token = m.token
		}
		close(m.done)
	}()
	m.token, m.err = t.mint(ctx, repo, p)
}

// drop forgets a token GitHub has refused.
func (t *tokens) drop(token string) {
	t.forget(func(_ tokenKey, e *tokenEntry) bool { return e.token.Token == token })
}

// forget takes tokens out of the cache. Whoever mints one meanwhile keeps it.
func (t *tokens) forget(which func(tokenKey, *tokenEntry) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.entries, which)
}

// passing errors say nothing about the installation's rights.
func passing(err error) bool {
	var limit *RateLimited
	return errors.Is(err, ErrUnavailable) || errors.As(err, &limit)
}

// mint asks for a new token for one repository (0: the names of all of them,
// metadata only) and refuses one that is wider than what was asked for.
func (c *Client) mint(ctx context.Context, repo int64, why purpose) (wire.GitToken, error) {
	p := why.permissions()
	if len(p) == 0 {
		return wire.GitToken{}, fmt.Errorf("%w: ask for a token without permissions, which means all of them", ErrForbidden)
	}
	type request struct {
		RepositoryIDs []int64     `json:"repository_ids,omitempty"`
		Permissions   permissions `json:"permissions"`
	}
	// Decoded by ourselves: the library's type drops permissions it does not know.
	var got struct {
		Token        string            `json:"token"`
		ExpiresAt    time.Time         `json:"expires_at"`
		Permissions  map[string]string `json:"permissions"`
		Selection    string            `json:"repository_selection"`
		Repositories []struct {
			ID int64 `json:"id"`
		} `json:"repositories"`
	}
	ask := request{Permissions: p}
	if repo != 0 {
		ask.RepositoryIDs = []int64{repo}
	}
	op := fmt.Sprintf("get a token for repository %d (%s) of installation %d", repo, p, c.installation)
	err := c.app.self.call(ctx, 0, op, func(api *gh.Client) error {
		req, err := api.NewRequest("POST", fmt.Sprintf("app/installations/%d/access_tokens", c.installation), ask)
		if err != nil {
			return err
		}
		_, err = api.Do(ctx, req, &got)
		return err
	})
	if got.Token != "" {
		c.app.remember(whoseIs(ctx), c.installation, got.Token, got.ExpiresAt)
	}
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			switch e.Status {
			case http.StatusNotFound:
				e.Kind = ErrSuspended // the installation itself is not there
			case http.StatusUnprocessableEntity:
				e.Kind = ErrDenied // the repository or a permission is not granted to us
			}
		}
		return wire.GitToken{}, err
	}
	refuse := func(why string) (wire.GitToken, error) {
		c.app.revoke(ctx, func(m minted) bool { return m.Token == got.Token })
		return wire.GitToken{}, &Error{Op: op, Kind: ErrDenied, Cause: errors.New(why)}
	}
	if got.Token == "" || !got.ExpiresAt.After(c.app.clock.Now()) {
		return refuse("GitHub's answer holds no token that is good now; check this machine's clock")
	}
	for name, level := range got.Permissions {
		if wider(p[name], level) && !(name == "metadata" && level == "read") {
			return refuse(fmt.Sprintf("the token came back with %s: %s, which was not asked for", name, level))
		}
	}
	if len(got.Permissions) == 0 {
		return refuse("GitHub's answer does not say what the token may do")
	}
	if repo != 0 && (got.Selection != "" && got.Selection != "selected" || len(got.Repositories) != 1 || got.Repositories[0].ID != repo) {
		return refuse("the token came back for other repositories than the one asked for")
	}
	return wire.GitToken{Token: got.Token, Expires: got.ExpiresAt}, nil
}

// wider says whether having got is more than having asked.
func wider(asked, got string) bool {
	rank := map[string]int{"": 0, "none": 0, "read": 1, "write": 2, "admin": 3}
	g, known := rank[got]
	return !known || cmp.Compare(g, rank[asked]) > 0
}

// ReadToken returns a token for git that can read the contents of one
// repository and nothing else, with at least twenty minutes to live.
func (c *Client) ReadToken(ctx context.Context, repositoryID int64) (wire.GitToken, error) {
	if repositoryID <= 0 {
		return wire.GitToken{}, fmt.Errorf("%w: ask for a token without a repository", ErrForbidden)
	}
	return c.tokens.get(ctx, repositoryID, forReading, freshRead)
}

// PushToken mints a token that can write the contents of one repository. It is
// never cached: whoever pushes mints, and revokes it when the push has ended.
func (c *Client) PushToken(ctx context.Context, repositoryID int64) (wire.GitToken, error) {
	if repositoryID <= 0 {
		return wire.GitToken{}, fmt.Errorf("%w: ask for a token without a repository", ErrForbidden)
	}
	return c.mint(ctx, repositoryID, forPushing)
}

// minted is a token GitHub gave us in the life of this process.
type minted struct {
	wire.GitToken
	whose        string
	installation int64
	over         bool // revoked, or given up
}

// forgetAfter is how long after its expiry a token is still taken out of texts.
const forgetAfter = time.Hour

// remember has a token taken out of every text that leaves, and forgets those
// that expired long ago.
func (a *App) remember(who string, installation int64, token string, expires time.Time) {
	a.redactor.Add(token)
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	kept := a.minted[:0]
	for _, m := range a.minted {
		if now.Sub(m.Expires) > forgetAfter {
			a.redactor.Forget(m.Token)
			continue
		}
		kept = append(kept, m)
	}
	a.minted = append(kept, minted{wire.GitToken{Token: token, Expires: expires}, who, installation, false})
}

// revokeLimit bounds the revocation of all tokens of one owner.
const revokeLimit = 10 * time.Second

// Revoke ends all tokens of an owner, as For names it. Those of an earlier
// process are not known: they were in its memory only, and expire within the
// hour. What GitHub does not revoke now expires as well, so that there is no
// error.
func (a *App) Revoke(ctx context.Context, who string) {
	for _, c := range a.known() {
		c.tokens.forget(func(k tokenKey, _ *tokenEntry) bool { return k.whose == who })
	}
	a.revoke(ctx, func(m minted) bool { return m.whose == who })
}

// RevokeToken ends one token.
func (c *Client) RevokeToken(ctx context.Context, token wire.GitToken) {
	c.tokens.drop(token.Token)
	c.app.revoke(ctx, func(m minted) bool { return m.Token == token.Token })
}

// Close ends every token there is.
func (a *App) Close(ctx context.Context) {
	for _, c := range a.known() {
		c.tokens.forget(func(tokenKey, *tokenEntry) bool { return true })
	}
	a.revoke(ctx, func(minted) bool { return true })
}

// revoke ends tokens that are still good. It goes on when ctx ends, because what
// is not revoked is left lying about.
func (a *App) revoke(ctx context.Context, which func(minted) bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeLimit)
	defer cancel()
	a.mu.Lock()
	var out []minted
	for i, m := range a.minted {
		if !m.over && which(m) && a.clock.Now().Before(m.Expires) {
			a.minted[i].over = true
			out = append(out, m)
		}
	}
	a.mu.Unlock()
	var all sync.WaitGroup
	for _, m := range out {
		all.Go(func() {
			// With the token itself: it costs nothing of the App's.
			c := &Client{app: a, installation: m.installation, pace: a.Installation(m.installation).pace, bearer: func(context.Context, int64, purpose) (string, error) { return m.Token, nil }}
			err := c.call(ctx, 0, "revoke a token", func(api *gh.Client) error {
				req, err := api.NewRequest("DELETE", "installation/token", nil)
				if err != nil {
					return err
				}
				_, err = api.Do(ctx, req, nil)
				return err
			})
			if err != nil {
				a.log.InfoContext(ctx, "a token was not revoked; it expires", "expires", m.Expires, "error", err)
			}
		})
	}
	all.Wait()
}

// known are the clients there are.
func (a *App) known() []*Client {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.clients))
}
