package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"inspect/app/authority"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/storage"
)

const (
	signInFor  = 12 * time.Hour   // then GitHub is asked anew
	signInWait = 10 * time.Minute // GitHub's codes live as long
	mayFor     = time.Minute      // that what a person may see is remembered
	failedFor  = 10 * time.Second // that GitHub could not be asked
	maxMay     = 10_000
	// maxQuestions are asked on a person's behalf within mayFor: as many as a
	// report and a page of the list take.
	maxQuestions = 200
	signInPath   = "/signin"
	backPath     = "/signin/callback"
	signOutPath  = "/signout"
)

// BackPath is where GitHub sends browsers back to, below the pages' address.
const BackPath = backPath

// SignIn finds out who sits at a browser; *github.SignIn does.
type SignIn interface {
	// Address is where the browser goes. state comes back with it.
	Address(state, verifier string) string
	// Who redeems the code that it comes back with.
	Who(ctx context.Context, code, verifier string) (github.Person, error)
}

// viewer is who looks at a page.
type viewer struct {
	operator bool          // holds the access token: sees everything
	person   github.Person // signed in with GitHub; none: the zero value
	cookie   string        // of a person
}

type viewerKey struct{}

func viewerOf(ctx context.Context) viewer {
	v, _ := ctx.Value(viewerKey{}).(viewer)
	return v
}

// form is what each form of a person's pages carries, so that no other page can
// send one in the person's name.
func (v viewer) form() string {
	m := hmac.New(sha256.New, []byte(v.cookie))
	m.Write([]byte("inspect form v1"))
	return hex.EncodeToString(m.Sum(nil))
}

func (v viewer) sent(form string) bool {
	return v.cookie != "" && subtle.ConstantTimeCompare([]byte(v.form()), []byte(form)) == 1
}

// desk is where people sign in and out, and what they may see.
type desk struct {
	p      *pages
	signIn SignIn
	ask    func(context.Context, int64, github.Repo, policy.Actor) (authority.Known, error)
	secure bool
	name   string // of the cookie of who is signed in
	wait   string // of the cookie while GitHub asks

	mu    sync.Mutex
	known map[seen]permission
	asked map[int64]questions // by person
}

type seen struct{ person, repository int64 }

type permission struct {
	read, write bool
	err         error // GitHub could not be asked
	until       time.Time
	asking      chan struct{} // closed when it is known; nil: it is
}

// questions were asked on a person's behalf.
type questions struct {
	n     int
	until time.Time // then they are counted anew
}

func newDesk(p *pages, o PagesOptions) *desk {
	if o.SignIn == nil {
		return nil
	}
	d := &desk{p: p, signIn: o.SignIn, ask: o.Ask, secure: strings.HasPrefix(o.Public, "https://"), known: map[seen]permission{}, asked: map[int64]questions{}}
	d.name, d.wait = p.gate.name+"_person", p.gate.name+"_signin"
	if d.secure { // a browser then takes them from this very host over TLS only
		d.name, d.wait = "__Host-"+d.name, "__Host-"+d.wait
	}
	return d
}

func (d *desk) cookie(w http.ResponseWriter, name, value string, lives time.Duration) {
	c := &http.Cookie{
		Name: name, Value: value, Path: "/", HttpOnly: true, Secure: d.secure,
		SameSite: http.SameSiteLaxMode, // links on GitHub lead here
		MaxAge:   int(lives / time.Second),
	}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// random is 32 random bytes as a cookie takes them.
func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// begin sends a browser to GitHub.
func (d *desk) begin(w http.ResponseWriter, r *http.Request) {
	state, verifier := random(), oauth2.GenerateVerifier()
	to := base64.RawURLEncoding.EncodeToString([]byte(local(r.URL.Query().Get("to"))))
	d.cookie(w, d.wait, state+"."+verifier+"."+to, signInWait)
	http.Redirect(w, r, d.signIn.Address(state, verifier), http.StatusSeeOther)
}

// local is an address on this server, or its root.
func local(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(to, "/") || strings.ContainsAny(to, "\\\r\n\t") || strings.HasPrefix(to, "//") || len(to) > 1000 {
		return "/"
	}
	return (&url.URL{Path: "/" + strings.TrimLeft(u.Path, "/"), RawQuery: u.RawQuery}).String()
}

// back takes a browser that comes from GitHub.
func (d *desk) back(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	c, err := r.Cookie(d.wait)
	var parts []string
	if err == nil {
		parts = strings.Split(c.Value, ".")
	}
	d.cookie(w, d.wait, "", 0)
	if len(parts) != 3 || subtle.ConstantTimeCompare([]byte(parts[0]), []byte(q.Get("state"))) != 1 {
		d.p.fail(w, http.StatusForbidden, "Not from here", "This sign-in was not begun in this browser, or too long ago. Begin again.")
		return
	}
	if q.Get("error") != "" {
		d.p.fail(w, http.StatusForbidden, "Not signed in", "GitHub did not say who you are. Begin again if you want to sign in.")
		return
	}
	who, err := d.signIn.Who(r.Context(), q.Get("code"), parts[1])
	if err != nil {
		d.p.log.WarnContext(r.Context(), "somebody could not sign in", "error", err)
		d.p.fail(w, http.StatusBadGateway, "Not signed in", "GitHub could not be asked who you are. Begin again; if that does not help, the reason is in the server's log.")
		return
	}
	value, now := random(), d.p.clock.Now()
	sum := sha256.Sum256([]byte(value))
	err = d.p.db.InTx(r.Context(), func(tx *storage.Tx) error {
		if err := tx.Q().EndOldSignins(r.Context(), now); err != nil {
			return err
		}
		return tx.Q().AddSignin(r.Context(), storage.AddSigninParams{Cookie: sum[:], UserID: who.ID, Login: who.Login, CreatedAt: now, ExpiresAt: now.Add(signInFor)})
	})
	if err != nil {
		d.p.broken(w, r, err)
		return
	}
	d.p.log.InfoContext(r.Context(), "somebody signed in", "account", who.ID, "login", who.Login)
	d.cookie(w, d.name, value, signInFor)
	to, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		to = nil
	}
	http.Redirect(w, r, local(string(to)), http.StatusSeeOther)
}

// out ends a sign-in.
func (d *desk) out(w http.ResponseWriter, r *http.Request) {
	sum := sha256.Sum256([]byte(viewerOf(r.Context()).cookie))
	if err := d.p.db.Q().EndSignin(r.Context(), sum[:]); err != nil {
		d.p.broken(w, r, err)
		return
	}
	d.cookie(w, d.name, "", 0)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// who is signed in at a browser; the zero value: nobody.
func (d *desk) who(r *http.Request) (v viewer, err error) {
	if d == nil {
		return v, nil
	}
	c, err := r.Cookie(d.name)
	if err != nil {
		return v, nil
	}
	sum := sha256.Sum256([]byte(c.Value))
	row, err := d.p.db.Q().Signin(r.Context(), storage.SigninParams{Cookie: sum[:], Now: d.p.clock.Now()})
	switch {
	case storage.IsMissing(err):
		return v, nil
	case err != nil:
		return v, err
	}
	return viewer{person: github.Person{ID: row.UserID, Login: row.Login}, cookie: c.Value}, nil
}

// repositoryRef is a repository and who gives access to it.
type repositoryRef struct {
	installation int64
	github.Repo
}

// may says what a viewer may do in a repository, as GitHub said within the last
// minute. What is done there is judged anew when it is done.
func (d *desk) may(ctx context.Context, v viewer, repo repositoryRef) (permission, error) {
	if v.person.ID == 0 {
		return permission{read: v.operator}, nil
	}
	p, err := d.learn(ctx, v.person, repo)
	if err != nil {
		return permission{read: v.operator}, err
	}
	p.read = p.read || v.operator
	return p, nil
}

var errManyQuestions = errors.New("GitHub was asked enough on this person's behalf for now")

// learn asks GitHub, or remembers. That somebody looks at a page costs requests of
// an installation, so they are bounded: one at a time for a question, a failure is
// remembered too, and a person has so many a minute.
func (d *desk) learn(ctx context.Context, who github.Person, repo repositoryRef) (permission, error) {
	key := seen{who.ID, repo.ID}
	for {
		d.mu.Lock()
		now := d.p.clock.Now()
		p, known := d.known[key]
		switch {
		case known && p.asking != nil:
			d.mu.Unlock()
			select {
			case <-p.asking:
				continue
			case <-ctx.Done():
				return permission{}, ctx.Err()
			}
		case known && now.Before(p.until):
			d.mu.Unlock()
			return p, p.err
		}
		asked := d.asked[who.ID]
		if !now.Before(asked.until) {
			asked = questions{until: now.Add(mayFor)}
		}
		if asked.n++; asked.n > maxQuestions {
			d.mu.Unlock()
			return permission{}, errManyQuestions
		}
		if len(d.known) >= maxMay {
			clear(d.known)
		}
		if len(d.asked) >= maxMay {
			clear(d.asked)
		}
		d.asked[who.ID] = asked
		asking := make(chan struct{})
		d.known[key] = permission{asking: asking}
		d.mu.Unlock()

		k, err := d.ask(ctx, repo.installation, repo.Repo, policy.ActorOf(who.ID, who.Login))
		p = permission{err: err, until: d.p.clock.Now().Add(failedFor)}
		if err == nil {
			p = permission{read: k.Decide(policy.NeedRead).Allow, write: k.Decide(policy.NeedWrite).Allow, until: d.p.clock.Now().Add(mayFor)}
		}
		d.mu.Lock()
		if ctx.Err() != nil { // it was not GitHub that failed
			delete(d.known, key)
		} else {
			d.known[key] = p
		}
		d.mu.Unlock()
		close(asking)
		return p, err
	}
}

// mayRead leaves out what GitHub does not say about: it is not shown.
func (p *pages) mayRead(ctx context.Context, repo repositoryRef) bool {
	v := viewerOf(ctx)
	if v.operator {
		return true
	}
	ok, err := p.desk.may(ctx, v, repo)
	if err != nil {
		p.log.WarnContext(ctx, "what a person may read could not be learned", "account", v.person.ID, "repository", repo.ID, "error", err)
	}
	return ok.read
}

// mayWrite says whether a viewer may write to a session's repository, or runs this
// server. What GitHub does not say is no.
func (p *pages) mayWrite(ctx context.Context, s storage.Session) (bool, error) {
	v := viewerOf(ctx)
	if v.operator {
		return true, nil
	}
	repo, err := p.db.Q().WebRepository(ctx, s.RepositoryID)
	if err != nil {
		return false, err
	}
	ok, err := p.desk.may(ctx, v, refOf(repo))
	if err != nil {
		p.log.WarnContext(ctx, "what a person may do could not be learned", "account", v.person.ID, "repository", repo.ID, "error", err)
	}
	return ok.write, nil
}
