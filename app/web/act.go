package web

import (
	"net/http"
	"net/url"
	"regexp"

	"github.com/google/uuid"

	"inspect/app/intake"
	"inspect/scheduler"
	"inspect/storage"
)

// maxForm bounds a form: a request and its escapes.
const maxForm = 4 * intake.MaxAsk

// formID is a random GUID: a form that is sent twice is one wish.
var formID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// act takes a form of a session's page. What it asks for is worked on as a
// command on GitHub is, with the same look at what the person may do.
func (p *pages) act(w http.ResponseWriter, r *http.Request) {
	v, id, wish := viewerOf(r.Context()), r.PathValue("id"), r.PostForm.Get("wish")
	if !sessionID.MatchString(id) || !formID.MatchString(wish) {
		p.fail(w, http.StatusBadRequest, "That is no form of ours", "Go back to the session's page and try again.")
		return
	}
	if _, ok := p.visible(w, r, id); !ok {
		return
	}
	err := p.press(r.Context(), intake.Pressed{
		ID: wish, Session: id, Do: r.PostForm.Get("do"), Digest: r.PostForm.Get("digest"), Text: r.PostForm.Get("text"),
		ActorID: v.person.ID, Login: v.person.Login,
	})
	if err != nil {
		p.broken(w, r, err)
		return
	}
	http.Redirect(w, r, "/sessions/"+id+"?"+url.Values{"wish": {wish}}.Encode(), http.StatusSeeOther)
}

// visible is a session that the viewer may see; otherwise it is answered as if
// there were none.
func (p *pages) visible(w http.ResponseWriter, r *http.Request, id string) (storage.Session, bool) {
	none := func() (storage.Session, bool) {
		p.fail(w, http.StatusNotFound, "No such session", "There is no session of that name on this server that you may see.")
		return storage.Session{}, false
	}
	row, err := p.db.Q().WebSession(r.Context(), id)
	if storage.IsMissing(err) {
		return none()
	}
	if err != nil {
		p.broken(w, r, err)
		return row, false
	}
	repo, err := p.db.Q().WebRepository(r.Context(), row.RepositoryID)
	if err != nil {
		p.broken(w, r, broke(err))
		return row, false
	}
	if !p.mayRead(r.Context(), refOf(repo)) {
		return none()
	}
	return row, true
}

// actsView is what a person can do on a session's page, and what became of what
// was done last.
type actsView struct {
	Person, Form, Wish   string
	May                  bool // write, as GitHub said lately
	Stop, Retry, Ask     bool
	Said                 string
	Done, Waits, Refused bool
}

// acts is nil where nobody is signed in.
func (p *pages) acts(r *http.Request, f *facts) (*actsView, error) {
	v := viewerOf(r.Context())
	if v.person.ID == 0 {
		return nil, nil
	}
	a := &actsView{Person: v.person.Login, Form: v.form(), Wish: uuid.NewString()}
	may, err := p.desk.may(r.Context(), v, refOf(f.repository))
	if err != nil {
		p.log.WarnContext(r.Context(), "what a person may do could not be learned", "account", v.person.ID, "repository", f.repository.ID, "error", err)
	}
	a.May = may.write
	over := scheduler.Terminal(f.row.State)
	a.Stop, a.Ask = !over, f.row.State != scheduler.NeedsApproval
	a.Retry = scheduler.Allowed(f.row.State, scheduler.Queued, scheduler.Rewound)
	if over && !a.Retry {
		a.Ask = false
	}
	wish := r.URL.Query().Get("wish")
	if !formID.MatchString(wish) {
		return a, nil
	}
	i, err := p.db.Q().IntentByKey(r.Context(), intake.PageKey(wish))
	switch {
	case storage.IsMissing(err):
		a.Waits = true
	case err != nil:
		return nil, err
	case i.ActorID != v.person.ID:
	case i.Outcome == "pending":
		a.Waits = true
	case i.Outcome == "denied":
		a.Refused, a.Said = true, "You may not do that here: who can write to the repository may."
	case i.Note != "":
		a.Refused, a.Said = true, i.Note
	default:
		a.Done = true
	}
	return a, nil
}
