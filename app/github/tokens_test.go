package github

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v4"

	"inspect/envs/proc"
)

var sha40 = strings.Repeat("d", 40)

func refReply(w http.ResponseWriter, _ *http.Request, _ string) {
	reply(w, 200, map[string]any{"ref": "refs/heads/main", "object": map[string]any{"sha": sha40}})
}

// mints lists what tokens were asked for.
func (h *hub) mints() []tokenAsk {
	var out []tokenAsk
	for _, r := range h.all() {
		if strings.HasSuffix(r.path, "/access_tokens") {
			var a tokenAsk
			_ = json.Unmarshal([]byte(r.body), &a)
			out = append(out, a)
		}
	}
	return out
}

// An empty list of repositories means all of them to GitHub, missing
// permissions mean all that were granted.
func TestNoTokenForEverything(t *testing.T) {
	h := newHub(t, refReply)
	c := h.client(t)
	ctx := ctxFor(t)
	for name, ask := range map[string]func() error{
		"read, repository 0":  func() error { _, err := c.ReadToken(ctx, 0); return err },
		"push, repository 0":  func() error { _, err := c.PushToken(ctx, 0); return err },
		"push, repository -1": func() error { _, err := c.PushToken(ctx, -1); return err },
		"mint, no purpose":    func() error { _, err := c.mint(ctx, 7, ""); return err },
		"mint, unknown":       func() error { _, err := c.mint(ctx, 7, "workflows"); return err },
		"mint, all":           func() error { _, err := c.mint(ctx, 0, forReading); return err },
		"call without id":     func() error { _, err := c.BranchHead(ctx, Repo{Owner: "octocat", Name: "hello"}, "main"); return err },
	} {
		if err := ask(); !errors.Is(err, ErrForbidden) {
			t.Errorf("%s: got %v, want ErrForbidden", name, err)
		}
	}
	if n := len(h.all()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestWiderTokensAreRefused(t *testing.T) {
	good := func(ask tokenAsk) map[string]any {
		return map[string]any{
			"token": tokenText(1), "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
			"permissions": ask.Permissions, "repository_selection": "selected", "repositories": repositoriesOf(ask.RepositoryIDs),
		}
	}
	for name, c := range map[string]struct {
		change func(m map[string]any)
		ok     bool
	}{
		"as asked for":           {func(map[string]any) {}, true},
		"metadata added":         {func(m map[string]any) { m["permissions"] = map[string]string{"contents": "read", "metadata": "read"} }, true},
		"all repositories":       {func(m map[string]any) { m["repository_selection"] = "all"; delete(m, "repositories") }, false},
		"another repository":     {func(m map[string]any) { m["repositories"] = repositoriesOf([]int64{8}) }, false},
		"one more repository":    {func(m map[string]any) { m["repositories"] = repositoriesOf([]int64{7, 8}) }, false},
		"no list":                {func(m map[string]any) { delete(m, "repositories") }, false},
		"write instead of read":  {func(m map[string]any) { m["permissions"] = map[string]string{"contents": "write"} }, false},
		"admin":                  {func(m map[string]any) { m["permissions"] = map[string]string{"contents": "admin"} }, false},
		"a level of tomorrow":    {func(m map[string]any) { m["permissions"] = map[string]string{"contents": "own"} }, false},
		"an unknown permission":  {func(m map[string]any) { m["permissions"] = map[string]string{"contents": "read", "models": "read"} }, false},
		"permissions not told":   {func(m map[string]any) { delete(m, "permissions") }, false},
		"no token":               {func(m map[string]any) { delete(m, "token") }, false},
		"expired":                {func(m map[string]any) { m["expires_at"] = "2020-01-01T00:00:00Z" }, false},
		"without an end of life": {func(m map[string]any) { delete(m, "expires_at") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, refReply)
			h.tokens = func(w http.ResponseWriter, ask tokenAsk) {
				m := good(ask)
				c.change(m)
				reply(w, 201, m)
			}
			got, err := h.client(t).ReadToken(ctxFor(t), 7)
			if c.ok && (err != nil || got.Token != tokenText(1)) {
				t.Errorf("got %v", err)
			}
			if !c.ok && (!errors.Is(err, ErrDenied) || got.Token != "") {
				t.Errorf("got %q, %v, want ErrDenied", got.Token, err)
			}
		})
	}
}

func TestTokensAreCachedByOwnerRepositoryAndPurpose(t *testing.T) {
	clock := proc.NewFake(time.Now())
	h := newHub(t, refReply)
	h.now = clock.Now
	c := h.client(t, func(o *Options) { o.Clock = clock })
	ctx := ctxFor(t)
	minted := 0
	more := func(what string, n int, do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if minted += n; len(h.mints()) != minted {
			t.Fatalf("%s: %d tokens, want %d more than before", what, len(h.mints()), n)
		}
	}
	head := func(ctx context.Context, r Repo) func() error {
		return func() error { _, err := c.BranchHead(ctx, r, "main"); return err }
	}
	push := func() error { _, err := c.PushToken(ctx, 7); return err }
	more("the first", 1, head(ctx, hello))
	more("again", 0, head(ctx, hello))
	more("another repository", 1, head(ctx, Repo{ID: 8, Owner: "octocat", Name: "other"}))
	more("a session", 1, head(For(ctx, "s1"), hello))
	more("another session", 1, head(For(ctx, "s2"), hello))
	more("for git", 0, func() error { _, err := c.ReadToken(ctx, 7); return err })
	more("a push", 1, push)
	more("the next push", 1, push) // never kept
	// Renewed before it ends.
	clock.Advance(56 * time.Minute)
	more("later", 1, head(ctx, hello))
	for _, a := range h.mints() {
		if len(a.RepositoryIDs) != 1 {
			t.Errorf("a token for repositories %v", a.RepositoryIDs)
		}
	}
}

// revocations lists the tokens that were ended, in any order.
func (h *hub) revocations() (out []string) {
	for _, r := range h.all() {
		if r.method == "DELETE" && r.path == "/installation/token" {
			out = append(out, strings.TrimPrefix(r.auth, "Bearer "))
		}
	}
	slices.Sort(out)
	return out
}

func TestTokensAreRevoked(t *testing.T) {
	clock := proc.NewFake(time.Now())
	h := newHub(t, nil)
	status := 204
	h.handle = func(w http.ResponseWriter, r *http.Request, body string) {
		if r.Method == "DELETE" {
			w.WriteHeader(status)
			return
		}
		refReply(w, r, body)
	}
	h.now = clock.Now
	a := h.app(t, func(o *Options) { o.Clock = clock })
	c := a.Installation(99)
	ctx := ctxFor(t)
	head := func(ctx context.Context) {
		t.Helper()
		if _, err := c.BranchHead(ctx, hello, "main"); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, tokens ...int) {
		t.Helper()
		var texts []string
		for _, n := range tokens {
			texts = append(texts, tokenText(n))
		}
		slices.Sort(texts)
		if got := h.revocations(); !slices.Equal(got, texts) {
			t.Errorf("%s: revoked %d, want %v", what, len(got), tokens)
		}
	}
	head(For(ctx, "s1")) // 1
	head(For(ctx, "s2")) // 2
	head(ctx)            // 3
	pushing, err := c.PushToken(For(ctx, "s1"), 7)
	if err != nil {
		t.Fatal(err)
	}
	c.RevokeToken(ctx, pushing)
	want("after the push", 4)
	a.Revoke(ctx, "s1")
	want("after the session", 1, 4)
	a.Revoke(ctx, "s1")
	want("nothing is revoked twice", 1, 4)
	head(For(ctx, "s1")) // 5: a late report
	if n := len(h.mints()); n != 5 {
		t.Errorf("%d tokens: a revoked one is still used", n)
	}
	// GitHub is away: what is not revoked is given up, and nobody is kept.
	status = 503
	a.Revoke(ctx, "s1")
	status = 204
	ended, cancel := context.WithCancel(ctx)
	cancel()
	a.Close(ended)
	all := h.revocations()
	for _, n := range []int{2, 3} {
		if !slices.Contains(all, tokenText(n)) {
			t.Errorf("token %d is left when the program ends", n)
		}
	}
	before := len(all)
	head(ctx) // 6
	clock.Advance(2 * time.Hour)
	a.Close(ctx)
	if n := len(h.revocations()); n != before {
		t.Errorf("%d requests to revoke what has expired", n-before)
	}
	for _, s := range h.sent() {
		if strings.Contains(s, "ghs_") {
			t.Errorf("a token is in %s", s)
		}
	}
}

// What came back wider than it was asked for is not only refused, but ended.
func TestWiderTokensAreRevoked(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(204) })
	h.tokens = func(w http.ResponseWriter, ask tokenAsk) {
		reply(w, 201, map[string]any{
			"token": tokenText(1), "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
			"permissions": map[string]string{"contents": "write"}, "repository_selection": "selected", "repositories": repositoriesOf(ask.RepositoryIDs),
		})
	}
	if _, err := h.client(t).ReadToken(ctxFor(t), 7); !errors.Is(err, ErrDenied) {
		t.Errorf("got %v", err)
	}
	if got := h.revocations(); len(got) != 1 || got[0] != tokenText(1) {
		t.Errorf("revoked %d", len(got))
	}
}

// Every request of ours, by what its token may do: the least that GitHub asks
// for, and for one repository. The routes say the same (TestEveryRouteHasItsPurpose).
func TestLeastPermissions(t *testing.T) {
	for want, calls := range map[string]map[string]func(*world, context.Context) error{
		"contents: read, metadata: read": {
			"branch": func(w *world, ctx context.Context) error { _, err := w.c.BranchHead(ctx, w.repo, "main"); return err },
			"file": func(w *world, ctx context.Context) error {
				_, err := w.c.File(ctx, w.repo, "go.mod", "main")
				return err
			},
			"files":        func(w *world, ctx context.Context) error { _, err := w.c.RootFiles(ctx, w.repo, "main"); return err },
			"rules":        func(w *world, ctx context.Context) error { _, err := w.c.BranchRules(ctx, w.repo, "main"); return err },
			"permission":   func(w *world, ctx context.Context) error { _, err := w.c.Permission(ctx, w.repo, "hubot"); return err },
			"repository":   func(w *world, ctx context.Context) error { _, err := w.c.Repository(ctx, w.repo.ID); return err },
			"mirror fetch": func(w *world, ctx context.Context) error { _, err := w.c.ReadToken(ctx, w.repo.ID); return err },
		},
		"issues: write, metadata: read": {
			"comment": func(w *world, ctx context.Context) error {
				_, err := w.c.CreateComment(ctx, w.repo, w.issue(w.t), "hi")
				return err
			},
			"comments": func(w *world, ctx context.Context) error {
				_, err := w.c.Comments(ctx, w.repo, w.issue(w.t))
				return err
			},
			"reaction": func(w *world, ctx context.Context) error { return w.c.ReactIssue(ctx, w.repo, w.issue(w.t), "eyes") },
			"label":    func(w *world, ctx context.Context) error { return w.c.RemoveLabel(ctx, w.repo, w.issue(w.t), "x") },
		},
		"checks: write, metadata: read": {
			"check run": func(w *world, ctx context.Context) error {
				refs, err := w.Refs("octocat/parcel")
				if err != nil {
					return err
				}
				_, err = w.c.CreateCheckRun(ctx, w.repo, CheckRun{Name: "inspect", HeadSHA: refs["refs/heads/main"], Status: "in_progress"})
				return err
			},
		},
		"metadata: read, pull_requests: write": {
			"pull request": func(w *world, ctx context.Context) error {
				_, _, err := w.c.FindPullRequest(ctx, w.repo, "x")
				return err
			},
		},
		"contents: write, metadata: read": {
			"push": func(w *world, ctx context.Context) error { _, err := w.c.PushToken(ctx, w.repo.ID); return err },
		},
	} {
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				if err := call(w, ctxFor(t)); err != nil {
					t.Fatal(err)
				}
				var asks []tokenAsk
				for _, r := range w.Requests() {
					if strings.HasSuffix(r.Path, "/access_tokens") {
						var a tokenAsk
						if err := json.Unmarshal([]byte(r.Body), &a); err != nil {
							t.Fatal(err)
						}
						asks = append(asks, a)
					}
				}
				if len(asks) != 1 || !slices.Equal(asks[0].RepositoryIDs, []int64{w.repo.ID}) || permissions(asks[0].Permissions).String() != want {
					t.Errorf("asked for %+v, want %s", asks, want)
				}
			})
		}
	}
}

func TestEveryRouteHasItsPurpose(t *testing.T) {
	for _, r := range perRepository {
		p := r.purpose.permissions()
		if len(p) == 0 {
			t.Errorf("%s %s has no purpose", r.method, r.path)
		}
		writes := 0
		for _, level := range p {
			if level == "write" {
				writes++
			}
		}
		if writes > 1 || r.write() && writes != 1 || (p["contents"] == "write") != (r.purpose == forPushing) {
			t.Errorf("%s %s has a token with %s", r.method, r.path, p)
		}
	}
}

func TestHungMintHoldsUpNobodyElse(t *testing.T) {
	clock := proc.NewFake(time.Now())
	hang := make(chan struct{})
	entered := make(chan struct{}, 10)
	h := newHub(t, refReply)
	h.now = clock.Now
	c := h.client(t, func(o *Options) { o.Clock = clock })
	ctx := ctxFor(t)
	if _, err := c.BranchHead(ctx, hello, "main"); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.tokens = func(w http.ResponseWriter, ask tokenAsk) {
		if ask.RepositoryIDs[0] == 7 {
			entered <- struct{}{}
			<-hang
		}
		h.giveToken(w, ask)
	}
	h.mu.Unlock()
	clock.Advance(56 * time.Minute) // four minutes left: to be renewed, still good

	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		if _, err := c.BranchHead(ctx, hello, "main"); err != nil {
			t.Error(err)
		}
	}()
	<-entered
	// The same repository goes on with the token that is still good …
	if _, err := c.BranchHead(ctx, hello, "main"); err != nil {
		t.Error(err)
	}
	// … and another repository is not concerned.
	if _, err := c.BranchHead(ctx, Repo{ID: 8, Owner: "octocat", Name: "other"}, "main"); err != nil {
		t.Error(err)
	}
	// Somebody who has to wait can give up.
	short, cancel := context.WithCancel(ctx)
	cancel()
	clock.Advance(5 * time.Minute)
	if _, err := c.BranchHead(short, hello, "main"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(hang)
	wg.Wait()
}

func TestOldTokenServesWhileGitHubIsUnwell(t *testing.T) {
	clock := proc.NewFake(time.Now())
	h := newHub(t, refReply)
	h.now = clock.Now
	c := h.client(t, func(o *Options) { o.Clock = clock; o.Reads.Attempts = 1 })
	if _, err := c.BranchHead(ctxFor(t), hello, "main"); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.tokens = func(w http.ResponseWriter, _ tokenAsk) { reply(w, 503, nil) }
	h.mu.Unlock()
	clock.Advance(57 * time.Minute)
	if _, err := c.BranchHead(ctxFor(t), hello, "main"); err != nil {
		t.Errorf("with three minutes left: %v", err)
	}
	clock.Advance(150 * time.Second)
	if _, err := c.BranchHead(ctxFor(t), hello, "main"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("with half a minute left: %v", err)
	}
}

func TestRefusedTokenIsRenewedOnce(t *testing.T) {
	for name, accept := range map[string]int{"the second is good": 2, "none is good": 99} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, nil)
			h.handle = func(w http.ResponseWriter, r *http.Request, _ string) {
				if r.Header.Get("Authorization") == "Bearer "+tokenText(accept) {
					reply(w, 201, map[string]any{"id": 5})
					return
				}
				reply(w, 401, map[string]any{"message": "Bad credentials"})
			}
			_, err := h.client(t).CreateComment(ctxFor(t), hello, 3, "hi")
			if accept == 2 && err != nil {
				t.Errorf("got %v", err)
			}
			if accept != 2 && !errors.Is(err, ErrDenied) {
				t.Errorf("got %v, want ErrDenied", err)
			}
			if n := len(h.sent()); n != 2 {
				t.Errorf("%d tries, want 2", n)
			}
		})
	}
}

func TestInstallationThatIsSuspendedOrGone(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		words  string
		want   error
	}{
		"suspended":          {403, "This installation has been suspended", ErrSuspended},
		"access suspended":   {403, "octocat suspended your access at 2024-01-01", ErrSuspended},
		"removed":            {404, "Not Found", ErrSuspended},
		"repository removed": {422, "There is at least one repository that does not exist or is not accessible to the parent installation.", ErrDenied},
		"unwell":             {502, "", ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, refReply)
			h.tokens = func(w http.ResponseWriter, _ tokenAsk) { reply(w, c.status, map[string]any{"message": c.words}) }
			cl := h.client(t)
			if _, err := cl.BranchHead(ctxFor(t), hello, "main"); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			// Nothing about an account follows from it: denied, and not "none".
			if p, err := cl.Permission(ctxFor(t), hello, "monalisa"); err == nil || p.Write {
				t.Errorf("permission %+v, %v", p, err)
			}
		})
	}
}

func TestAppProvesItself(t *testing.T) {
	h := newHub(t, refReply)
	if _, err := h.client(t).ReadToken(ctxFor(t), 7); err != nil {
		t.Fatal(err)
	}
	raw := strings.TrimPrefix(h.all()[0].auth, "Bearer ")
	key, err := jwt.ParseRSAPrivateKeyFromPEM(testKey())
	if err != nil {
		t.Fatal(err)
	}
	var claims jwt.RegisteredClaims
	if _, err := jwt.ParseWithClaims(raw, &claims, func(tk *jwt.Token) (any, error) {
		if tk.Method.Alg() != "RS256" {
			t.Errorf("signed with %s", tk.Method.Alg())
		}
		return &key.PublicKey, nil
	}); err != nil {
		t.Fatal(err)
	}
	if claims.Issuer != "1" || claims.ExpiresAt.Sub(claims.IssuedAt.Time) > 10*time.Minute || time.Since(claims.IssuedAt.Time) < 30*time.Second {
		t.Errorf("claims %+v", claims)
	}
	if strings.Contains(h.all()[0].path, raw) {
		t.Error("the proof is in the address")
	}
}

func TestMintedTokensAreKnownToTheRedactor(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { reply(w, 201, map[string]any{"id": 1}) })
	c := h.client(t)
	token, err := c.PushToken(ctxFor(t), 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateComment(ctxFor(t), hello, 3, "the token is "+token.Token+" today"); err != nil {
		t.Fatal(err)
	}
	all := h.all()
	if body := all[len(all)-1].body; strings.Contains(body, "ghs_") || strings.Contains(body, token.Token[60:120]) || !strings.Contains(body, "today") {
		t.Errorf("sent %s", body)
	}
}
