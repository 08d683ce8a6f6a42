package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// Ledger holds the money of sessions. Its methods may be called at once.
type Ledger interface {
	// Reserve sets money aside for a call, between what it wants and the least
	// it can do with. A *wire.Error refuses: over_budget, stale_generation, …;
	// a Reservation returned beside it may still tell Budget and Spent.
	Reserve(ctx context.Context, who wire.ModelCaller, what wire.ModelCall) (wire.Reservation, error)
	// Settle replaces a reservation by what the call cost; Usage.Spent is the
	// ledger's to fill. It is called for every reservation, and may be called
	// again with the same id and usage if the first answer was lost.
	Settle(ctx context.Context, who wire.ModelCaller, id int64, u wire.Usage) error
}

// HandlerOptions are what a handler needs.
type HandlerOptions struct {
	Config Config
	Ledger Ledger
	// Authenticate tells which attempt sends a request. A *wire.Error is sent as
	// it is, any other error as a failure of ours.
	Authenticate func(*http.Request) (wire.ModelCaller, error)

	Transport  http.RoundTripper // to providers; nil: one of its own, with the proxy of the environment
	RetryTotal time.Duration     // how long a provider that is busy or away is tried; 0: 100 s
	Clock      proc.Clock        // nil: the machine's
	Log        *slog.Logger      // nil: nothing is logged
}

// ledgerFor bounds what the ledger is waited for: to set money aside, and to
// settle a call, which is how late the last event of a stream can be.
const ledgerFor = 20 * time.Second

// NewHandler makes what serves /model/v1/… of the control plane's machines: a
// request of an attempt's agent, passed on by its runner's Door, goes to the
// provider of the session's model.
func NewHandler(o HandlerOptions) (http.Handler, error) {
	if o.Ledger == nil || o.Authenticate == nil {
		return nil, errors.New("the model gateway needs a ledger and a way to know its callers")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.RetryTotal == 0 {
		o.RetryTotal = 100 * time.Second
	}
	if o.Transport == nil {
		o.Transport = transport()
	}
	return &handler{HandlerOptions: o, rules: newRules(), red: redact.New(o.Config.Secrets()...), bodies: semaphore.NewWeighted(maxBodies)}, nil
}

// maxBodies bounds the bodies of all calls together, in bytes. One is held some
// three times while its call goes on.
const maxBodies = 256 << 20

type handler struct {
	HandlerOptions
	rules  rules
	red    *redact.Redactor
	bodies *semaphore.Weighted // bytes
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// An answer may take longer than any other of this listener.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	w.Header().Set(headerAnswer, fromGateway)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ep, bad := route(r.Method, strings.TrimPrefix(r.URL.EscapedPath(), "/model"), r.URL.RawQuery)
	who, err := h.Authenticate(r)
	if err != nil {
		h.fail(w, r, ep.api, err)
		return
	}
	if bad == nil {
		bad = refuseHeaders(r)
	}
	if bad != nil {
		h.refuse(w, r, who, ep.api, bad)
		return
	}
	m, ok := h.Config.Model(who.Model)
	switch {
	case !ok:
		h.refuse(w, r, who, ep.api, refuse(404, "not_found", "the session's model %q is not in the operator's models.yml any more", who.Model))
	case ep.api == "":
		h.list(w, r, who, ep, m)
	default:
		h.serve(w, r, who, ep, m)
	}
}

// list describes the one model the session may use, in the words of all APIs.
func (h *handler) list(w http.ResponseWriter, r *http.Request, who wire.ModelCaller, ep endpoint, m Model) {
	one := &object{members: []member{
		{"id", m.ID}, {"object", "model"}, {"created", number("0")}, {"owned_by", m.Provider},
		{"type", "model"}, {"display_name", m.ID}, {"created_at", "1970-01-01T00:00:00Z"},
	}}
	var out any = one
	switch ep.model {
	case m.ID:
	case "":
		out = &object{members: []member{
			{"object", "list"}, {"data", []any{one}}, {"has_more", false}, {"first_id", m.ID}, {"last_id", m.ID},
		}}
	default:
		h.refuse(w, r, who, ep.api, refuse(404, "not_found", "the model %q is not the one of this session; use %q", ep.model, m.ID))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(encode(nil, out))
}

// serve does one call.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, who wire.ModelCaller, ep endpoint, m Model) {
	p := h.Config.providers[m.Provider]
	if !speaks(m, ep.api) {
		h.refuse(w, r, who, ep.api, refuse(404, "not_found", "the model %s is served over %s, not over %s",
			m.ID, strings.Join(m.APIs(), " and "), ep.api))
		return
	}
	if ep.count && p.api == apiOpenAIChat {
		h.refuse(w, r, who, ep.api, refuse(404, "not_found", "the provider of %s does not count tokens", m.ID))
		return
	}
	size := r.ContentLength
	if size < 0 || size > maxBody {
		size = maxBody
	}
	if h.bodies.Acquire(r.Context(), size) != nil {
		panic(http.ErrAbortHandler) // whoever sent it has gone
	}
	defer h.bodies.Release(size)
	raw, err := readBody(w, r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		h.refuse(w, r, who, ep.api, refuse(413, "too_large", "the body is longer than %d bytes", large.Limit))
		return
	case err != nil:
		panic(http.ErrAbortHandler) // whoever sent it has gone
	}
	c, bad := h.rules.check(ep, raw, who, m)
	if bad != nil {
		h.refuse(w, r, who, ep.api, bad)
		return
	}
	e := &exchange{handler: h, w: w, r: r, who: who, model: m, provider: p, call: c}
	e.body = encode(make([]byte, 0, len(raw)+256), c.body)
	if ep.count {
		e.settled = true // it costs nothing
		e.run()
		return
	}
	e.plan = m.Price.plan(c, len(e.body))
	ask := wire.ModelCall{Model: m.ID, Priced: m.Priced}
	if m.Priced {
		ask.Want, ask.Least, ask.Input = e.plan.want, e.plan.least, e.plan.input*int64(m.Price.Input)
	}
	// Not given up with the client: what was set aside must be known to be settled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), ledgerFor)
	e.held, err = h.Ledger.Reserve(ctx, who, ask)
	cancel()
	e.money()
	if err != nil {
		h.fail(w, r, ep.api, err)
		return
	}
	defer e.settle(reading{free: true}) // whatever happens, and only if nothing else did
	if m.Priced {
		most := m.Price.affords(e.plan, e.held.Granted, c.most)
		if most < 1 {
			h.refuse(w, r, who, ep.api, refuse(402, wire.CodeOverBudget, "what is left of the session's budget does not pay for an answer"))
			return
		}
		if most < c.most {
			c.limit(most)
			e.body = encode(e.body[:0], c.body)
		}
	}
	e.run()
}

// readBody reads a bounded body. The error is a *http.MaxBytesError if it is too
// long.
func readBody(w http.ResponseWriter, r *http.Request) (string, error) {
	if r.ContentLength > maxBody {
		return "", &http.MaxBytesError{Limit: maxBody}
	}
	var b strings.Builder
	b.Grow(int(max(r.ContentLength, 0))) // one piece, if its length is known
	_, err := io.Copy(&b, http.MaxBytesReader(w, r.Body, maxBody))
	return b.String(), err
}

func speaks(m Model, api string) bool {
	for _, a := range spoken[m.api] {
		if a == api {
			return true
		}
	}
	return false
}

// fail answers an error of the control plane.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, api string, err error) {
	var e *wire.Error
	if !errors.As(err, &e) {
		if r.Context().Err() == nil {
			h.Log.ErrorContext(r.Context(), "a model call failed in the control plane", "path", r.URL.Path, "error", err)
		}
		e = &wire.Error{Code: "unavailable", Message: "the control plane failed at this; try again"}
	}
	send(w, api, refusalOf(e))
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, who wire.ModelCaller, api string, bad *refusal) {
	h.Log.InfoContext(r.Context(), "refused a model call", "session", who.Session, "path", short(r.URL.Path), "why", bad.message)
	send(w, api, bad)
}

// send answers a refusal in the words of an API.
func send(w http.ResponseWriter, api string, bad *refusal) {
	head := w.Header()
	head.Set("Content-Type", "application/json")
	switch bad.code {
	case wire.CodeOverBudget:
		head.Set(wire.HeaderOver, "1")
		head.Set("X-Should-Retry", "false")
	case "unavailable":
		head.Set("Retry-After", "1")
	}
	w.WriteHeader(bad.status)
	_, _ = w.Write(bad.body(api))
}

// exchange is one call that has been checked.
type exchange struct {
	*handler
	w        http.ResponseWriter
	r        *http.Request
	who      wire.ModelCaller
	model    Model
	provider provider
	call     *call
	body     []byte
	plan     plan
	held     wire.Reservation
	settled  bool
	flying   bool      // the last try was given up while the provider may have worked on it
	tried    time.Time // when the last try began
}

// money tells the runner of the session's, without what is held for this very
// call: most calls cost a small part of what they might.
func (e *exchange) money() {
	if e.held.Budget > 0 || e.held.Spent > 0 {
		e.w.Header().Set(wire.HeaderBudget, strconv.FormatInt(e.held.Budget, 10))
		e.w.Header().Set(wire.HeaderSpent, strconv.FormatInt(max(0, e.held.Spent-e.held.Granted), 10))
	}
}

// settle settles the call, once, also when the client has gone.
func (e *exchange) settle(r reading) {
	if e.settled {
		return
	}
	e.settled = true
	if e.r.Context().Err() != nil && !e.tried.IsZero() {
		// Whoever hangs up in time must not have reasoned for nothing.
		r.unseen = int64(e.Clock.Now().Sub(e.tried).Seconds() * unseenPerSecond)
	}
	u := settle(e.model, e.plan, e.held.Granted, r)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.r.Context()), ledgerFor)
	defer cancel()
	err := proc.Retry(ctx, e.Clock, proc.Policy{Total: ledgerFor}, func(ctx context.Context) error {
		err := e.Ledger.Settle(ctx, e.who, e.held.ID, u)
		var we *wire.Error
		if errors.As(err, &we) && we.Code != "unavailable" {
			return proc.Permanent(err)
		}
		return err
	})
	if err != nil {
		e.Log.Error("a model call could not be settled; its reservation stands", "session", e.who.Session,
			"reservation", e.held.ID, "cost", u.Cost, "error", err)
	}
}

// run sends the call and passes the answer on.
func (e *exchange) run() {
	res, bad := e.ask()
	if bad != nil {
		// A call that was under way when it was given up may cost its input.
		e.settle(reading{free: !e.flying})
		if e.r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		e.refuse(e.w, e.r, e.who, e.call.ep.api, bad)
		return
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode/100 != 2:
		e.settle(reading{free: true})
		e.problem(res)
	case res.Header.Get("Content-Encoding") != "":
		e.settle(reading{})
		e.refuse(e.w, e.r, e.who, e.call.ep.api, refuse(502, "provider", "the model provider %s sent a compressed answer, which it was not asked for", e.provider.id))
	case e.call.stream && isEvents(res.Header.Get("Content-Type")):
		e.stream(res)
	default:
		e.answer(res)
	}
}

// problem passes on a provider's refusal.
func (e *exchange) problem(res *http.Response) {
	api := e.call.ep.api
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	e.Log.WarnContext(e.r.Context(), "the model provider refused a call", "session", e.who.Session, "provider", e.provider.id,
		"status", res.StatusCode, "answer", e.red.String(redact.Cut(string(body), 500)))
	answerHeaders(e.w.Header(), res.Header)
	e.w.Header().Set(headerAnswer, fromProvider)
	switch {
	case res.StatusCode == 401 || res.StatusCode == 403:
		// What it says is about the operator's account and key, whole or in part.
		send(e.w, api, refuse(res.StatusCode, "provider", "the model provider %s does not take the operator's key (status %d); "+
			"the operator finds its answer in the log of the control plane", e.provider.id, res.StatusCode))
	case res.StatusCode < 400:
		send(e.w, api, refuse(502, "provider", "the model provider %s sent the call elsewhere (status %d), which is not followed", e.provider.id, res.StatusCode))
	case isJSON(res.Header.Get("Content-Type")) && len(body) > 0 && len(body) < maxProblem:
		e.w.Header().Set("Content-Type", "application/json")
		e.w.WriteHeader(res.StatusCode)
		_, _ = io.WriteString(e.w, e.red.String(string(body)))
	default:
		send(e.w, api, refuse(res.StatusCode, "provider", "the model provider %s answered with status %d: %s",
			e.provider.id, res.StatusCode, redact.OneLine(e.red.String(redact.Cut(string(body), 2000)), 500)))
	}
}

// answer passes on an answer that is not a stream.
func (e *exchange) answer(res *http.Response) {
	api := e.call.ep.api
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	meter := &meter{api: api}
	o, bad := decode(string(body))
	switch {
	case err != nil:
		meter.bytes = int64(len(body))
		e.settle(meter.result())
		if e.r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		e.refuse(e.w, e.r, e.who, api, refuse(502, "provider", "the model provider %s broke off its answer", e.provider.id))
		return
	case len(body) > maxAnswer:
		meter.bytes = int64(len(body))
		e.settle(meter.result())
		e.refuse(e.w, e.r, e.who, api, refuse(502, "provider", "the answer of the model provider %s is longer than %d bytes", e.provider.id, maxAnswer))
		return
	case bad != nil:
		meter.bytes = int64(len(body))
		e.settle(meter.result())
		e.refuse(e.w, e.r, e.who, api, refuse(502, "provider", "the answer of the model provider %s is not JSON", e.provider.id))
		return
	}
	meter.whole(o)
	e.settle(meter.result())
	answerHeaders(e.w.Header(), res.Header)
	e.w.Header().Set(headerAnswer, fromProvider)
	e.w.Header().Set("Content-Type", "application/json")
	e.w.WriteHeader(res.StatusCode)
	_, _ = e.w.Write(e.clean(body))
}

// stream passes events on as they come. Its money is settled before the last
// event goes, so that the client's next call finds it so.
func (e *exchange) stream(res *http.Response) {
	meter := &meter{api: e.call.ep.api}
	defer func() { e.settle(meter.result()) }()
	answerHeaders(e.w.Header(), res.Header)
	e.w.Header().Set(headerAnswer, fromProvider)
	e.w.Header().Set("Content-Type", "text/event-stream")
	e.w.Header().Set("Cache-Control", "no-cache")
	e.w.WriteHeader(res.StatusCode)
	out := http.NewResponseController(e.w)
	_ = out.Flush()

	// cut ends the connection so that the client sees that the answer is not whole.
	cut := func(why error) {
		e.settle(meter.result())
		if e.r.Context().Err() == nil {
			e.Log.WarnContext(e.r.Context(), "a model's stream broke off", "session", e.who.Session, "provider", e.provider.id, "error", why)
		}
		panic(http.ErrAbortHandler)
	}
	var events splitter
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		events.add(buf[:n])
		wrote := false
		for {
			ev, ok := events.next()
			if !ok {
				break
			}
			last, strip := meter.event(dataOf(ev))
			if last {
				e.settle(meter.result())
			}
			if strip && !e.call.asked {
				continue
			}
			if _, err := e.w.Write(e.clean(ev)); err != nil {
				cut(err)
			}
			wrote = true
		}
		if wrote {
			if err := out.Flush(); err != nil {
				cut(err)
			}
		}
		switch {
		case len(events.rest()) > maxEvent:
			cut(fmt.Errorf("an event of more than %d bytes", maxEvent))
		case errors.Is(err, io.EOF):
			if rest := events.rest(); len(rest) > 0 {
				meter.event(dataOf(rest))
				_, _ = e.w.Write(e.clean(rest))
			}
			if !meter.ended && !meter.failed {
				cut(io.ErrUnexpectedEOF)
			}
			e.settle(meter.result())
			return
		case err != nil:
			cut(err)
		}
	}
}
