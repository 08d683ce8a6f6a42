package web

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"inspect/app/authority"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/storage"
)

//go:embed templates
var templates embed.FS

// PagesOptions of people's pages.
type PagesOptions struct {
	DB    *storage.DB
	Blobs *storage.Blobs
	// Token opens the pages; only its hash is kept. It must not be empty.
	Token string
	// TokenPlace says where the token is found, in words that end a sentence:
	// "in the first lines of the log", "in /var/lib/inspect/token".
	TokenPlace string
	// AllowedHosts are the names the listener is reached by, besides those of
	// this machine's loopback: "inspect.example" or "inspect.example:8443".
	AllowedHosts []string
	// Public is the address people reach the pages by: "https://inspect.example".
	Public string
	// SignIn lets people in who can read a repository, to act on its sessions if
	// they can write. nil: only the token opens the pages, and nobody acts.
	SignIn SignIn
	// Ask says what an account may do in a repository now, Press takes what a
	// person asks for. Both are needed with SignIn.
	Ask   func(ctx context.Context, installation int64, repo github.Repo, a policy.Actor) (authority.Known, error)
	Press func(ctx context.Context, p intake.Pressed) error
	// GitHub is where issues are shown: "https://github.com". Empty: no links to it.
	GitHub string
	// Redactor takes secrets out of every page; nil: patterns only.
	Redactor *redact.Redactor
	Clock    proc.Clock   // nil is the machine's
	Log      *slog.Logger // nil is slog.Default()
}

type pages struct {
	db      *storage.DB
	blobs   *storage.Blobs
	gate    *gate
	desk    *desk // nil: nobody signs in
	press   func(context.Context, intake.Pressed) error
	cross   *http.CrossOriginProtection
	script  []byte
	streams chan struct{} // one place for each page that follows a session
	place   string
	github  string
	redact  *redact.Redactor
	clock   proc.Clock
	log     *slog.Logger
	tmpl    *template.Template
	style   []byte
}

// NewPages returns the handler of the people's listener.
func NewPages(o PagesOptions) (http.Handler, error) {
	if len(o.Token) < 16 {
		return nil, errors.New("the access token of the pages has fewer than 16 characters: it could be guessed")
	}
	p := &pages{
		db: o.DB, blobs: o.Blobs, gate: newGate(o.Token, o.AllowedHosts), place: o.TokenPlace,
		github: o.GitHub, redact: o.Redactor, clock: o.Clock, log: o.Log, press: o.Press, cross: http.NewCrossOriginProtection(),
		streams: make(chan struct{}, liveStreams),
	}
	if p.clock == nil {
		p.clock = proc.System()
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	if p.place == "" {
		p.place = "in what inspect serve printed when it started"
	}
	if o.SignIn != nil && (o.Ask == nil || o.Press == nil) {
		return nil, errors.New("signing in needs somebody to ask what a person may do, and somebody to do it")
	}
	p.desk = newDesk(p, o)
	var err error
	if p.tmpl, err = template.New("").Funcs(functions).ParseFS(templates, "templates/*.html"); err != nil {
		return nil, err
	}
	if p.style, err = templates.ReadFile("templates/style.css"); err != nil {
		return nil, err
	}
	if p.script, err = templates.ReadFile("templates/live.js"); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.list)
	mux.HandleFunc("GET /sessions/{id}", p.session)
	mux.HandleFunc("GET /sessions/{id}/live", p.live)
	mux.HandleFunc("GET /sessions.json", p.sessionsJSON)
	mux.HandleFunc("GET /environments.json", p.environmentsJSON)
	mux.HandleFunc("GET /sessions/{id}/files/{sha256}", p.file)
	mux.HandleFunc("GET /sessions/{id}/pictures/{sha256}", p.picture)
	for _, path := range []string{"/report", "/report.json", "/report.csv"} {
		mux.HandleFunc("GET "+path, p.report)
	}
	if p.desk != nil {
		mux.HandleFunc("POST /sessions/{id}/act", p.act)
		mux.HandleFunc("POST "+signOutPath, p.desk.out)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, http.StatusNotFound, "Nothing here", "There is no such page.")
	})
	return p.guard(mux), nil
}

// guard lets in who may come in.
func (p *pages) guard(next http.Handler) http.Handler {
	healthz := health(func(ctx context.Context) error { return p.db.Pool().Ping(ctx) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		switch {
		case !p.gate.hostAllowed(r):
			http.Error(w, "This server does not answer to that name. Whoever runs it can allow the name.", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead && (p.desk == nil || r.Method != http.MethodPost):
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "These pages are only read.", http.StatusMethodNotAllowed)
		case r.URL.Path == "/healthz":
			healthz(w, r)
		case r.URL.Path == "/style.css":
			w.Header().Set("Content-Type", "text/css; charset=utf-8")
			_, _ = w.Write(p.style)
		case r.URL.Path == "/live.js":
			w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
			_, _ = w.Write(p.script)
		case r.URL.Query().Has("token") && p.gate.enter(w, r, r.URL.Query().Get("token")):
		case p.desk != nil && r.Method == http.MethodGet && r.URL.Path == signInPath:
			p.desk.begin(w, r)
		case p.desk != nil && r.Method == http.MethodGet && r.URL.Path == backPath:
			p.desk.back(w, r)
		default:
			p.serveKnown(w, r, next)
		}
	})
}

// serveKnown answers those who hold the token or are signed in.
func (p *pages) serveKnown(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v, err := p.desk.who(r)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	v.operator = p.gate.knows(r)
	if !v.operator && v.person.ID == 0 {
		p.locked(w, r)
		return
	}
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if p.cross.Check(r) != nil || r.ParseForm() != nil || !v.sent(r.PostForm.Get("form")) {
			p.fail(w, http.StatusForbidden, "Not from here", "This form does not come from a page that this server showed you, or you signed in again since. Go back, reload the page and try again.")
			return
		}
	}
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), viewerKey{}, v)))
}

// locked is the page for those without the token.
func (p *pages) locked(w http.ResponseWriter, r *http.Request) {
	v := map[string]any{"Place": p.place, "Wrong": r.URL.Query().Has("token")}
	if p.desk != nil {
		v["SignIn"] = signInPath + "?" + url.Values{"to": {r.URL.RequestURI()}}.Encode()
	}
	// A link on GitHub comes without our strict cookie. Loading the page once
	// more from here brings it, if there is one.
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") == "navigate" {
		v["Again"] = true
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="inspect"`)
	p.render(w, http.StatusUnauthorized, "locked.html", v)
}

func (p *pages) fail(w http.ResponseWriter, status int, title, words string) {
	p.render(w, status, "error.html", map[string]any{"Title": title, "Words": words})
}

// broken is our own failure: logged, and told without details.
func (p *pages) broken(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return
	}
	p.log.ErrorContext(r.Context(), "a page failed", "path", r.URL.Path, "error", err)
	p.fail(w, http.StatusInternalServerError, "Something broke here", "The reason is in the server's log. Try again.")
}

// render makes the whole page first, so that a failure is never half a page.
func (p *pages) render(w http.ResponseWriter, status int, name string, v any) {
	var b bytes.Buffer
	if err := p.tmpl.ExecuteTemplate(&b, name, v); err != nil {
		p.log.Error("a page could not be made", "page", name, "error", err)
		http.Error(w, "Something broke here; the reason is in the server's log.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, p.redact.String(b.String()))
}

const listLength = 50

// list shows the sessions, newest first.
func (p *pages) list(w http.ResponseWriter, r *http.Request) {
	before, beforeID := p.clock.Now().Add(24*time.Hour), ""
	if s := r.URL.Query().Get("before"); s != "" {
		us, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			p.fail(w, http.StatusBadRequest, "That is no page", "The address is not one of ours.")
			return
		}
		before, beforeID = time.UnixMicro(us), r.URL.Query().Get("id")
	}
	f := filterOf(r.URL.Query())
	rows, next, err := p.listed(r.Context(), f, place{before, beforeID})
	if err != nil {
		p.broken(w, r, err)
		return
	}
	waiting, err := p.db.Q().QueueLength(r.Context())
	if err != nil {
		p.broken(w, r, err)
		return
	}
	v := listView{Frame: p.frame(r), Now: p.clock.Now(), Filter: f, States: states()}
	if next != nil {
		q := f.query()
		q.Set("before", strconv.FormatInt(next.at.UnixMicro(), 10))
		if next.id != "" {
			q.Set("id", next.id)
		}
		v.Older = "/?" + q.Encode()
	}
	for _, row := range rows {
		v.Sessions = append(v.Sessions, listRow{
			ID: row.ID, Title: row.Title, Repository: row.Owner + "/" + row.Name, Issue: int(row.IssueNumber),
			Requester: row.RequesterLogin, State: stateView(row.State), Reason: row.Reason,
			Queue:       queueWords(row.State, row.QueueReason, row.QueueAt, row.QueuePosition, int(waiting), v.Now),
			PullRequest: int(row.PullRequest), Created: row.CreatedAt, Finished: row.FinishedAt.Time,
		})
		v.Live = v.Live || !row.FinishedAt.Valid
	}
	p.render(w, http.StatusOK, "list.html", v)
}

// file gives one evidence file away. It is never shown by the browser in our
// name: its content may be anybody's.
func (p *pages) file(w http.ResponseWriter, r *http.Request) {
	id, sum := r.PathValue("id"), r.PathValue("sha256")
	if !sessionID.MatchString(id) || !digest.MatchString(sum) {
		p.fail(w, http.StatusNotFound, "No such file", "The address is not one of ours.")
		return
	}
	s, ok := p.visible(w, r, id)
	if !ok {
		return
	}
	found, err := p.db.Q().WebArtifact(r.Context(), storage.WebArtifactParams{SessionID: id, Sha256: sum})
	if storage.IsMissing(err) {
		p.fail(w, http.StatusNotFound, "No such file", "This session has no file of that digest.")
		return
	}
	if err != nil {
		p.broken(w, r, err)
		return
	}
	size := found.Bytes
	if found.Withheld {
		write, err := p.mayWrite(r.Context(), s)
		if err != nil {
			p.broken(w, r, err)
			return
		}
		if !write {
			p.fail(w, http.StatusForbidden, "Not for everybody", "This bundle was not searched for secrets as a whole, so only people who may write to the repository get it. The patch beside it is for all.")
			return
		}
	}
	content, err := p.blobs.Get(r.Context(), id, sum)
	if errors.Is(err, storage.ErrBlobMissing) {
		p.fail(w, http.StatusNotFound, "No such file", "The file was there once and is not in the store any more.")
		return
	}
	if err != nil {
		p.broken(w, r, err)
		return
	}
	defer content.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+fileName(r.URL.Query().Get("name"), id, sum)+`"`)
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	if r.Method == http.MethodHead {
		return
	}
	if n, err := io.Copy(w, content); err != nil || n != size {
		p.log.WarnContext(r.Context(), "an evidence file could not be sent whole", "session", id, "sha256", sum, "error", err)
		panic(http.ErrAbortHandler)
	}
}
