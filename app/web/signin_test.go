package web

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"inspect/app/authority"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/policy"
	"inspect/envs/proc"
	"inspect/storage"
	"inspect/storage/storagetest"
)

// hub is a GitHub that says who somebody is and what they may do.
type hub struct {
	who      github.Person
	err      error
	verifier string // that the browser was sent with
	levels   map[int64]map[string]string
	mu       sync.Mutex
	asked    int
	failing  error
	pressed  []intake.Pressed
}

func (h *hub) Address(state, verifier string) string {
	h.verifier = verifier
	return "https://github.example/authorize?" + url.Values{"state": {state}}.Encode()
}

func (h *hub) Who(_ context.Context, code, verifier string) (github.Person, error) {
	if code != "good" || verifier != h.verifier {
		return github.Person{}, errors.New("no")
	}
	return h.who, h.err
}

func (h *hub) Permission(_ context.Context, repo github.Repo, login string) (github.Permission, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked++; h.failing != nil {
		return github.Permission{}, h.failing
	}
	level := h.levels[repo.ID][login]
	return github.Permission{UserID: h.who.ID, Read: level != "", Write: level == "write"}, nil
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

func (h *hub) AppID(context.Context, string) (int64, error) { return 0, github.ErrNotFound }

// browser keeps cookies as one does.
type browser struct {
	t    *testing.T
	to   http.Handler
	base string
	jar  map[string]*http.Cookie
}

func (b *browser) send(method, path string, form url.Values, header ...string) *httptest.ResponseRecorder {
	b.t.Helper()
	var body string
	if form != nil {
		body = form.Encode()
	}
	r := httptest.NewRequest(method, b.base+path, strings.NewReader(body))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	for _, c := range b.jar {
		r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
	}
	w := httptest.NewRecorder()
	b.to.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if b.jar[c.Name] = c; c.MaxAge < 0 {
			delete(b.jar, c.Name)
		}
	}
	return w
}

// signIn goes the way through GitHub that begins at a page.
func (b *browser) signIn(to string) *httptest.ResponseRecorder {
	b.t.Helper()
	w := b.send("GET", "/signin?"+url.Values{"to": {to}}.Encode(), nil)
	at, err := url.Parse(w.Header().Get("Location"))
	if err != nil || at.Host != "github.example" {
		b.t.Fatalf("the browser is sent to %q", w.Header().Get("Location"))
	}
	return b.send("GET", "/signin/callback?"+url.Values{"state": {at.Query().Get("state")}, "code": {"good"}}.Encode(), nil)
}

type house struct {
	*site
	hub *hub
}

func newHouse(t *testing.T, public string) (*house, *browser) {
	t.Helper()
	h := &hub{who: github.Person{ID: 3, Login: "monalisa"}, levels: map[int64]map[string]string{7: {"monalisa": "write"}}}
	blobs, err := storage.OpenBlobs(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	s := &site{t: t, db: storagetest.New(t), blobs: blobs, clock: proc.NewFake(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))}
	pages, err := NewPages(PagesOptions{
		DB: s.db, Blobs: blobs, Token: accessToken, GitHub: "https://github.com", AllowedHosts: []string{"inspect.example"}, Clock: s.clock, Log: slog.New(slog.DiscardHandler),
		Public: public, SignIn: h,
		Ask: func(ctx context.Context, _ int64, repo github.Repo, a policy.Actor) (authority.Known, error) {
			return authority.Judge{}.Ask(ctx, h, repo, a)
		},
		Press: func(_ context.Context, p intake.Pressed) error { h.pressed = append(h.pressed, p); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Handler = pages
	s.sql(`INSERT INTO repositories (id, installation_id, owner, name) VALUES (7, 1, 'octocat', 'parcel'), (8, 1, 'octocat', 'vault')`)
	s.sql(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env-7-x', 7, 'd', '{}')`)
	s.session("open", "Everybody's")
	s.session("hidden", "Nobody's")
	s.sql(`UPDATE sessions SET repository_id = 8 WHERE id = 'hidden'`)
	return &house{s, h}, &browser{t: t, to: pages, base: public, jar: map[string]*http.Cookie{}}
}

func TestSignIn(t *testing.T) {
	h, b := newHouse(t, "https://inspect.example")
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "/signin?to=%2Fsessions%2Fopen") {
		t.Fatalf("a stranger gets %d %s", w.Code, w.Body)
	}
	w := b.signIn("/sessions/open")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/sessions/open" {
		t.Fatalf("after signing in: %d to %q", w.Code, w.Header().Get("Location"))
	}
	if len(b.jar) != 1 {
		t.Errorf("cookies are left: %v", b.jar)
	}
	for name, c := range b.jar {
		if !strings.HasPrefix(name, "__Host-") || !c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" {
			t.Errorf("the cookie is %+v", c)
		}
	}
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "Stop and keep the work") {
		t.Errorf("the page is %d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/sessions/hidden", "/sessions/hidden.json", "/sessions/hidden/files/" + strings.Repeat("a", 64)} {
		if w := b.send("GET", path, nil); w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), "Nobody") {
			t.Errorf("%s, which the person cannot read, is %d %s", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/", "/sessions.json"} {
		if w := b.send("GET", path, nil); !strings.Contains(w.Body.String(), "Everybody") || strings.Contains(w.Body.String(), "Nobody") {
			t.Errorf("%s lists %s", path, w.Body)
		}
	}

	asked := h.hub.asked
	h.hub.levels[7] = nil
	b.send("GET", "/sessions/open", nil)
	if h.hub.asked != asked {
		t.Error("GitHub is asked for each page")
	}
	h.clock.Advance(mayFor)
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusNotFound {
		t.Errorf("a minute after the right was taken away the page is %d", w.Code)
	}
	h.hub.levels[7] = map[string]string{"monalisa": "read"}
	h.clock.Advance(mayFor)
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "/act") {
		t.Errorf("who can read gets %d %s", w.Code, w.Body)
	}
	h.clock.Advance(signInFor)
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusUnauthorized {
		t.Errorf("the sign-in does not end: %d", w.Code)
	}
}

// A sign-in that was begun elsewhere, comes without its state or leads elsewhere
// lets nobody in.
func TestSignInByForce(t *testing.T) {
	h, b := newHouse(t, "http://127.0.0.1:7461")
	for _, path := range []string{"/signin/callback", "/signin/callback?code=good&state=", "/signin/callback?code=good&state=x"} {
		if w := b.send("GET", path, nil); w.Code != http.StatusForbidden || len(b.jar) != 0 {
			t.Errorf("%s is %d with %v", path, w.Code, b.jar)
		}
	}
	w := b.send("GET", "/signin", nil)
	at, _ := url.Parse(w.Header().Get("Location"))
	state := at.Query().Get("state")
	other := &browser{t: t, to: b.to, base: b.base, jar: map[string]*http.Cookie{}}
	if w := other.send("GET", "/signin/callback?code=good&state="+state, nil); w.Code != http.StatusForbidden {
		t.Errorf("another browser ends the sign-in: %d", w.Code)
	}
	if w := b.send("GET", "/signin/callback?error=access_denied&state="+state, nil); w.Code != http.StatusForbidden || len(b.jar) != 0 {
		t.Errorf("who says no on GitHub gets %d with %v", w.Code, b.jar)
	}
	if w := b.send("GET", "/signin/callback?code=good&state="+state, nil); w.Code != http.StatusForbidden {
		t.Errorf("a state counts twice: %d", w.Code)
	}
	for to, want := range map[string]string{
		"/?a=b": "/?a=b", "": "/", "//evil.example": "/", "https://evil.example": "/", `/\evil.example`: "/", "/\t/evil.example": "/",
		"javascript:alert(1)": "/", "evil": "/", "/%2f/evil.example": "/evil.example", "/" + strings.Repeat("a", 1000): "/",
	} {
		if w := b.signIn(to); w.Header().Get("Location") != want {
			t.Errorf("%q leads to %q, want %q", to, w.Header().Get("Location"), want)
		}
	}
	h.hub.err = errors.New("GitHub is away")
	b.jar = map[string]*http.Cookie{}
	if w := b.signIn("/"); w.Code != http.StatusBadGateway || len(b.jar) != 0 {
		t.Errorf("without GitHub: %d with %v", w.Code, b.jar)
	}
	var n int
	if err := h.db.SQL().QueryRowContext(t.Context(), `SELECT count(*) FROM signins WHERE cookie IS NOT NULL AND length(cookie) = 32`).Scan(&n); err != nil || n != 10 {
		t.Errorf("%d sign-ins are kept as digests: %v", n, err)
	}
}

func field(t *testing.T, page, name string) string {
	t.Helper()
	_, after, ok := strings.Cut(page, `name="`+name+`" value="`)
	if !ok {
		t.Fatalf("the page has no field %s", name)
	}
	value, _, _ := strings.Cut(after, `"`)
	return value
}

func TestAct(t *testing.T) {
	h, b := newHouse(t, "https://inspect.example")
	b.signIn("/")
	page := b.send("GET", "/sessions/open?still", nil).Body.String()
	form := url.Values{"form": {field(t, page, "form")}, "wish": {field(t, page, "wish")}, "do": {"request"}, "text": {"And the tests, please."}}
	w := b.send("POST", "/sessions/open/act", form)
	want := intake.Pressed{ID: form.Get("wish"), Session: "open", Do: "request", Text: "And the tests, please.", ActorID: 3, Login: "monalisa"}
	if w.Code != http.StatusSeeOther || len(h.hub.pressed) != 1 || h.hub.pressed[0] != want {
		t.Fatalf("%d %s: pressed %+v", w.Code, w.Body, h.hub.pressed)
	}
	h.hub.pressed = nil

	other := func(name, value string) url.Values {
		f := url.Values{}
		for k, v := range form {
			f[k] = v
		}
		f.Set(name, value)
		return f
	}
	for what, refused := range map[string]*httptest.ResponseRecorder{
		"without the form's own word":       b.send("POST", "/sessions/open/act", other("form", "")),
		"with another's":                    b.send("POST", "/sessions/open/act", other("form", viewer{cookie: "x"}.form())),
		"from another site":                 b.send("POST", "/sessions/open/act", form, "Sec-Fetch-Site", "cross-site"),
		"from a sibling":                    b.send("POST", "/sessions/open/act", form, "Sec-Fetch-Site", "same-site"),
		"with another origin":               b.send("POST", "/sessions/open/act", form, "Sec-Fetch-Site", "", "Origin", "https://evil.example"),
		"to a session that cannot be read":  b.send("POST", "/sessions/hidden/act", form),
		"to none":                           b.send("POST", "/sessions/none/act", form),
		"with a name of its own for a wish": b.send("POST", "/sessions/open/act", other("wish", "label:1")),
		"with more than there is room for":  b.send("POST", "/sessions/open/act", other("text", strings.Repeat("a", maxForm))),
		"signed out, from another site":     b.send("POST", "/signout", form, "Sec-Fetch-Site", "cross-site"),
	} {
		if refused.Code/100 != 4 || len(h.hub.pressed) != 0 {
			t.Errorf("%s: %d, pressed %+v", what, refused.Code, h.hub.pressed)
		}
	}
	operator := &browser{t: t, to: b.to, base: b.base, jar: map[string]*http.Cookie{}}
	operator.send("GET", "/?token="+accessToken, nil)
	if w := operator.send("POST", "/sessions/open/act", form); w.Code != http.StatusForbidden || len(h.hub.pressed) != 0 {
		t.Errorf("who holds the token and is nobody acts: %d", w.Code)
	}
	if w := operator.send("GET", "/sessions/hidden", nil); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "/act") {
		t.Errorf("who holds the token sees %d %s", w.Code, w.Body)
	}

	if w := b.send("POST", "/signout", url.Values{"form": form["form"]}); w.Code != http.StatusSeeOther || len(b.jar) != 0 {
		t.Errorf("signing out: %d with %v", w.Code, b.jar)
	}
	if w := b.send("POST", "/sessions/open/act", form); w.Code != http.StatusUnauthorized || len(h.hub.pressed) != 0 {
		t.Errorf("signed out, and acting: %d", w.Code)
	}
}

// What became of a wish is told to whoever had it, and to nobody else.
func TestWishIsTold(t *testing.T) {
	h, b := newHouse(t, "https://inspect.example")
	b.signIn("/")
	for i, c := range []struct {
		outcome, note string
		actor         int64
		want, not     string
	}{
		{"pending", "", 3, "is being looked at", "Done."},
		{"replied", "", 3, "Done.", "looked at"},
		{"prompted", "", 3, "Done.", "looked at"},
		{"replied", "Nothing <b>waits</b>", 3, "Nothing &lt;b&gt;waits", "Done."},
		{"denied", "no_access: secret of the operator", 3, "You may not do that", "secret"},
		{"replied", "for another", 4, "Everybody", "for another"},
	} {
		wish := uuid.NewString()
		if _, err := h.db.Q().ClaimIntent(t.Context(), storage.ClaimIntentParams{Key: intake.PageKey(wish), DeliveryGuid: wish, RepositoryID: 7, ActorID: c.actor, ActorLogin: "x", Kind: "page"}); err != nil {
			t.Fatal(err)
		}
		if err := h.db.Q().FinishIntent(t.Context(), storage.FinishIntentParams{Key: intake.PageKey(wish), Outcome: c.outcome, Note: c.note}); err != nil {
			t.Fatal(err)
		}
		page := b.send("GET", "/sessions/open?still&wish="+wish, nil).Body.String()
		if !strings.Contains(page, c.want) || strings.Contains(page, c.not) {
			t.Errorf("%d: the page of %+v is %s", i, c, page)
		}
	}
}
