package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"inspect/envs/wire"
	"inspect/scheduler"
)

// Machines is what the machines' API asks of the scheduler. Refusals are
// *wire.Error; anything else is our own failure and told as "unavailable".
type Machines interface {
	Exchange(ctx context.Context, r wire.TokenRequest) (wire.TokenReply, error)
	Authenticate(ctx context.Context, bearer string) (scheduler.Runner, error)
	AuthenticateBeat(ctx context.Context, bearer string) (scheduler.Runner, error)
	Spec(ctx context.Context, r scheduler.Runner) (wire.Spec, error)
	AppendEvents(ctx context.Context, r scheduler.Runner, events []wire.Event) (wire.EventsReply, error)
	PutArtifact(ctx context.Context, r scheduler.Runner, sha256 string, content io.Reader) error
	PutBundle(ctx context.Context, r scheduler.Runner, turn int, tip, sha256 string, content io.Reader) error
	Secrets(ctx context.Context, r scheduler.Runner, names []string) (wire.SecretsReply, error)
	Bundle(ctx context.Context, r scheduler.Runner, sha256 string) (io.ReadCloser, error)
	Directives(ctx context.Context, r scheduler.Runner, after int64) (wire.DirectivesReply, error)
	Beat(ctx context.Context, r scheduler.Runner, h wire.Heartbeat) (wire.HeartbeatReply, error)
	Outcome(ctx context.Context, r scheduler.Runner, o wire.Outcome) error

	AuthenticateNode(ctx context.Context, bearer string) (node string, err error)
	NodeState(ctx context.Context, node string, s wire.NodeState) error
	Refs(ctx context.Context, node string) (wire.Refs, error)
	NextWork(ctx context.Context, node string) (*wire.Work, error)
	WorkDone(ctx context.Context, node string, id int64, r wire.WorkResult) error
	Offer(ctx context.Context, node string, o wire.SnapshotOffer) error
	NodeSecrets(ctx context.Context, node string, work int64, names []string) (wire.SecretsReply, error)
	NodeGitToken(ctx context.Context, node string, r wire.GitTokenRequest) (wire.GitToken, error)
}

// MachinesOptions of the machines' API.
type MachinesOptions struct {
	Machines Machines
	// Model serves /model/v1/, the model gateway; nil: there is none. It finds
	// out who calls with RunnerOf.
	Model http.Handler
	// Healthy answers GET /healthz; nil is always healthy.
	Healthy func(context.Context) error
	Log     *slog.Logger // nil is slog.Default(). Neither headers nor bodies are logged.
}

// Most bytes of one body, and most time for it to arrive.
const (
	maxSmallBody  = 16 << 10
	maxStateBody  = 1 << 20  // a node with thousands of clones
	maxResultBody = 4 << 20  // an outcome with its results
	maxEventsBody = 16 << 20 // a second of the largest events, see wire.MaxEventsPerSecond
	maxBatch      = 1000     // events of one request

	jsonTime   = 30 * time.Second
	uploadTime = 10 * time.Minute
)

type machines struct {
	Machines
	log *slog.Logger
}

// NewMachines returns the handler of the machines' listener.
func NewMachines(o MachinesOptions) http.Handler {
	m := &machines{Machines: o.Machines, log: o.Log}
	if m.log == nil {
		m.log = slog.Default()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", health(o.Healthy))

	mux.HandleFunc("POST /runner/v1/token", m.open(m.exchange))
	mux.HandleFunc("GET /runner/v1/spec", m.runner(m.spec))
	mux.HandleFunc("POST /runner/v1/events", m.runner(m.events))
	mux.HandleFunc("PUT /runner/v1/artifacts/{sha256}", m.runner(m.putArtifact))
	mux.HandleFunc("PUT /runner/v1/bundle/{turn}", m.runner(m.putBundle))
	mux.HandleFunc("GET /runner/v1/bundle/{sha256}", m.runner(m.getBundle))
	mux.HandleFunc("POST /runner/v1/secrets", m.runner(m.secrets))
	mux.HandleFunc("GET /runner/v1/directives", m.runner(m.directives))
	mux.HandleFunc("POST /runner/v1/heartbeat", m.runnerBy(m.AuthenticateBeat, m.beat))
	mux.HandleFunc("POST /runner/v1/outcome", m.runner(m.outcome))

	if o.Model != nil {
		mux.Handle("/model/v1/", o.Model)
	}

	mux.HandleFunc("GET /node/v1/refs", m.node(m.refs))
	mux.HandleFunc("GET /node/v1/work", m.node(m.nextWork))
	mux.HandleFunc("POST /node/v1/work/{id}", m.node(m.workDone))
	mux.HandleFunc("POST /node/v1/work/{id}/secrets", m.node(m.nodeSecrets))
	mux.HandleFunc("POST /node/v1/snapshots", m.node(m.offer))
	mux.HandleFunc("POST /node/v1/token", m.node(m.gitToken))
	mux.HandleFunc("POST /node/v1/state", m.node(m.nodeState))

	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		m.refuse(w, r, &wire.Error{Code: "not_found", Message: "there is no " + r.Method + " " + r.URL.Path + " in this protocol"})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderVersion, strconv.Itoa(wire.Version))
		mux.ServeHTTP(w, r)
	})
}

func health(healthy func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if healthy != nil {
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			defer cancel()
			if healthy(ctx) != nil { // the reason is in the log of whoever is ill
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "unwell\n")
				return
			}
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}

// call is one request of a machine.
type call struct {
	m    *machines
	w    http.ResponseWriter
	r    *http.Request
	run  scheduler.Runner // of a runner
	node string           // of a node
}

// handler does one call. What it returns is sent as JSON, nil as 204.
type handler func(c *call) (any, error)

// answered is returned by a handler that has written its answer itself.
var answered = new(struct{})

// open serves calls without a bearer token.
func (m *machines) open(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := checkVersion(r); err != nil {
			m.refuse(w, r, err)
			return
		}
		m.answer(&call{m: m, w: w, r: r}, h)
	}
}

// runner serves calls of a runner.
func (m *machines) runner(h handler) http.HandlerFunc { return m.runnerBy(m.Authenticate, h) }

type authenticate = func(ctx context.Context, bearer string) (scheduler.Runner, error)

func (m *machines) runnerBy(auth authenticate, h handler) http.HandlerFunc {
	return m.open(func(c *call) (any, error) {
		var err error
		if c.run, err = runnerOf(auth, c.r); err != nil {
			return nil, err
		}
		return h(c)
	})
}

// RunnerOf finds out which runner sends a request: bearer token, and identity
// headers that say the same. The error is a *wire.Error.
func RunnerOf(m Machines, r *http.Request) (scheduler.Runner, error) {
	return runnerOf(m.Authenticate, r)
}

func runnerOf(auth authenticate, r *http.Request) (scheduler.Runner, error) {
	if err := checkVersion(r); err != nil {
		return scheduler.Runner{}, err
	}
	bearer, err := bearerOf(r)
	if err != nil {
		return scheduler.Runner{}, err
	}
	run, err := auth(r.Context(), bearer)
	if err != nil {
		return run, err
	}
	if s := r.Header.Get(wire.HeaderSession); s != run.Session {
		return run, unauthorized("the token belongs to another session than the one in " + wire.HeaderSession)
	}
	g, err := strconv.Atoi(r.Header.Get(wire.HeaderGeneration))
	if err != nil {
		return run, badRequest(wire.HeaderGeneration + " is not a number")
	}
	if g != run.Generation {
		return run, &wire.Error{Code: "stale_generation", Message: "the token belongs to another attempt than the one in " + wire.HeaderGeneration}
	}
	return run, nil
}

// node serves calls of a node daemon.
func (m *machines) node(h handler) http.HandlerFunc {
	return m.open(func(c *call) (any, error) {
		bearer, err := bearerOf(c.r)
		if err != nil {
			return nil, err
		}
		if c.node, err = m.AuthenticateNode(c.r.Context(), bearer); err != nil {
			return nil, err
		}
		return h(c)
	})
}

func (m *machines) answer(c *call, h handler) {
	out, err := h(c)
	switch {
	case err != nil:
		m.refuse(c.w, c.r, err)
	case out == answered:
	case out == nil:
		c.w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(c.w, http.StatusOK, out)
	}
}

// refuse sends a wire.Error. What is no wire.Error is our own failure: logged,
// and told without details.
func (m *machines) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody listens
	}
	var e *wire.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		e = &wire.Error{Code: "too_large", Message: "more than " + strconv.FormatInt(tooLarge.Limit, 10) + " bytes"}
	case errors.As(err, &e):
	default:
		m.log.ErrorContext(r.Context(), "a machine's request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		e = &wire.Error{Code: "unavailable", Message: "the control plane failed at this; try again"}
	}
	status := statusOf(e.Code)
	m.log.DebugContext(r.Context(), "refused a machine's request", "method", r.Method, "path", r.URL.Path, "status", status, "code", e.Code)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, e)
}

func statusOf(code string) int {
	switch code {
	case "stale_generation":
		return http.StatusConflict
	case "unauthorized":
		return http.StatusUnauthorized
	case "forbidden":
		return http.StatusForbidden
	case "too_large":
		return http.StatusRequestEntityTooLarge
	case "not_found":
		return http.StatusNotFound
	case "version":
		return http.StatusUpgradeRequired
	case "bad_request":
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

func badRequest(message string) error { return &wire.Error{Code: "bad_request", Message: message} }
func unauthorized(message string) error {
	return &wire.Error{Code: "unauthorized", Message: message}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the machine sees a broken answer and asks again
}

// checkVersion refuses machines that this build does not understand.
func checkVersion(r *http.Request) error {
	v, err := strconv.Atoi(r.Header.Get(wire.HeaderVersion))
	if err != nil {
		return &wire.Error{Code: "version", Message: "this control plane speaks protocol version " + strconv.Itoa(wire.Version) + "; say yours as " + wire.HeaderVersion}
	}
	who := "the runner"
	if strings.HasPrefix(r.URL.Path, "/node/") {
		who = "the node daemon"
	}
	if words := wire.Misfit(who, v, wire.Version); words != "" {
		return &wire.Error{Code: "version", Message: words}
	}
	return nil
}

// newer says whether a machine that is served speaks a newer version than this.
func newer(r *http.Request) bool {
	v, err := strconv.Atoi(r.Header.Get(wire.HeaderVersion))
	return err == nil && v > wire.Version
}

func bearerOf(r *http.Request) (string, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > 4096 {
		return "", unauthorized("this needs a bearer token")
	}
	return token, nil
}

// decode reads a body of one JSON value: bounded in size and time, nothing after
// it, no unknown members but those of a machine that is newer than this.
func (c *call) decode(limit int64, v any) error {
	body, done := c.body(limit, jsonTime)
	defer done()
	d := json.NewDecoder(body)
	if !newer(c.r) {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return decodeError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		if err != nil {
			return decodeError(err)
		}
		return badRequest("there is something after the JSON value")
	}
	return nil
}

func decodeError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return err
	}
	return badRequest("the body is not the JSON that was expected")
}

// body is the request's body, bounded in size and time. done must be called
// when it is read: a deadline left behind would end the request.
func (c *call) body(limit int64, within time.Duration) (body io.Reader, done func()) {
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(within)) // not every writer has one
	return http.MaxBytesReader(c.w, c.r.Body, limit), func() { _ = rc.SetReadDeadline(time.Time{}) }
}

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)
