package buildkite

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"inspect/app/intake"
	"inspect/app/oidc"
	"inspect/checks/buildkite"
	"inspect/checks/buildkite/step"
	"inspect/envs/proc"
	"inspect/storage"
)

// Path begins all addresses of this door.
const Path = "/buildkite/"

// WebhookPath is where Buildkite sends what happens.
const WebhookPath = "/buildkite/webhook"

// Steps stores what a step asks for; *intake.Intake has it.
type Steps interface {
	Step(ctx context.Context, guid string, s intake.Stepped) (fresh bool, first intake.Stepped, err error)
}

// Jobs makes the job that works on a stored delivery, in the caller's transaction.
type Jobs interface {
	InsertDelivery(ctx context.Context, tx *storage.Tx, guid string) error
}

// Tokens says what a token proves; *oidc.Verifier has it.
type Tokens interface {
	Verify(ctx context.Context, token string) (oidc.Job, error)
}

// Told is what the check run of a session says, or would say if it had one.
type Told struct{ Conclusion, Title, Summary string }

// Options of a Door.
type Options struct {
	DB    *storage.DB
	Steps Steps
	Jobs  Jobs
	// Tokens checks those of steps; nil: no step may ask.
	Tokens Tokens
	// Webhook verifies webhooks; without a secret none is taken.
	Webhook buildkite.Proof
	// Told says what is told of a session.
	Told func(ctx context.Context, session string) (Told, error)
	// Evidence writes a session's evidence as a tar. ErrNoEvidence: there is none yet.
	Evidence func(ctx context.Context, to io.Writer, session string) error
	// SessionURL is the address of a session's page, RepositoryURL that of a
	// repository.
	SessionURL    func(session string) string
	RepositoryURL func(owner, name string) string
	Clock         proc.Clock // nil: the machine's
	Log           *slog.Logger
	// Waiting bounds requests that are answered later; 0: 200.
	Waiting int
}

// ErrNoEvidence says that a session has no evidence yet.
var ErrNoEvidence = errors.New("the session has no evidence yet: it is written when it ends or waits for a person")

// ErrUnsearched says that the evidence holds what only people may see who may
// write to the repository: a pipeline's artifacts have other readers.
var ErrUnsearched = errors.New("the evidence holds work that was not searched for secrets: people who may write find it on the session's page")

// Door serves all below Path. It has no goroutines of its own.
type Door struct {
	o       Options
	mux     *http.ServeMux
	waiting chan struct{}
	bodies  chan struct{}
}

// New checks the options.
func New(o Options) (*Door, error) {
	if o.DB == nil || o.Steps == nil || o.Jobs == nil || o.Told == nil || o.Evidence == nil || o.SessionURL == nil || o.RepositoryURL == nil {
		return nil, errors.New("the door for Buildkite: an option that is needed is missing")
	}
	for _, s := range o.Webhook.Secrets {
		if strings.TrimSpace(s) == "" {
			return nil, errors.New("the secret of Buildkite's webhook is empty")
		}
	}
	if len(o.Webhook.Secrets) > 2 {
		return nil, errors.New("the webhook of Buildkite has one secret, or two while one replaces the other")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Waiting <= 0 {
		o.Waiting = 200
	}
	d := &Door{o: o, mux: http.NewServeMux(), waiting: make(chan struct{}, o.Waiting), bodies: make(chan struct{}, 16)}
	d.mux.HandleFunc("POST "+step.Path+"/sessions", d.ask)
	d.mux.HandleFunc("GET "+step.Path+"/sessions/{id}", d.state)
	d.mux.HandleFunc("GET "+step.Path+"/sessions/{id}/evidence", d.evidence)
	d.mux.HandleFunc("POST "+WebhookPath, d.webhook)
	return d, nil
}

func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Nothing here is for a browser, and what is told is told once.
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	d.mux.ServeHTTP(w, r)
}

// What whoever is refused is told, and nothing more. The reason is in the log.
const (
	noProof = "the token is not accepted; whoever runs Inspect sees why in its log"
	noRight = "the operator's policy does not let this pipeline ask for this; whoever runs Inspect sees why in its log"
)

// refuse answers a step.
func refuse(w http.ResponseWriter, status int, words string) {
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	answer(w, status, step.Refusal{Error: words})
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// bearer is the one token of a request.
func bearer(r *http.Request) (string, bool) {
	all := r.Header.Values("Authorization")
	if len(all) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(all[0], " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "bearer") && token != ""
}

// hold takes a place among the requests that are answered later.
func (d *Door) hold(w http.ResponseWriter) (free func(), ok bool) {
	select {
	case d.waiting <- struct{}{}:
		return func() { <-d.waiting }, true
	default:
		refuse(w, http.StatusServiceUnavailable, "too many steps wait at once: ask again later")
		return nil, false
	}
}

// addresses of what a session made, for people.
func pullURL(repository string, number int32) string {
	if number == 0 || repository == "" {
		return ""
	}
	return repository + "/pull/" + itoa(int64(number))
}

func checkURL(repository string, id int64) string {
	if id == 0 || repository == "" {
		return ""
	}
	return repository + "/runs/" + itoa(id)
}

// fit bounds what is said to a step.
func fit(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// readTime is how long a body may take to arrive.
const readTime = 5 * time.Second

func repositoryURL(f func(owner, name string) string, owner, name string) string {
	u, err := url.Parse(f(owner, name))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(u.String(), ".git")
}
