package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/semaphore"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// DoorOptions are what a Door needs.
type DoorOptions struct {
	Control string            // address of the control plane's machines listener, "http://127.0.0.1:8080"
	Header  func(http.Header) // sets the runner's identity and token; called for each try

	Transport http.RoundTripper // to the control plane; nil: one of its own, without proxies
	Hold      time.Duration     // how long a request waits for a control plane that is away; 0: 5 minutes
	Clock     proc.Clock        // nil: the machine's
	Log       *slog.Logger      // nil: nothing is logged

	// OnBudget is told, in billionths of a US dollar, the session's budget and
	// what is spent or held of it by other calls, as each answer begins; over:
	// the call was refused for lack of budget, and the numbers may be 0 if
	// nobody knows them. It is called from several goroutines. nil: nobody listens.
	OnBudget func(budget, spent int64, over bool)
}

// Bounds of a Door. What an agent sends lies in the runner's memory until the
// control plane has it.
const (
	maxConns     = 256 // at once; further ones wait to be accepted
	maxRequests  = 32
	maxBuffered  = 128 << 20 // bytes of all bodies at once
	readBodyIn   = time.Minute
	readHeaderIn = 10 * time.Second
	maxHeader    = 64 << 10
)

// Door is what the agent's requests meet: the runner serves it on the unix
// socket that leads out of the sandbox. It lets only the calls of the gateway
// through, takes away every credential and every header that is not known,
// puts the runner's identity on, and streams the answer back. While the control
// plane is away it holds a request. The throw-away prompt of wire.ReadyModel it
// answers itself.
type Door struct {
	o    DoorOptions
	base string
	room *semaphore.Weighted // bytes
	busy chan struct{}
}

// NewDoor makes a Door.
func NewDoor(o DoorOptions) *Door {
	if o.Hold == 0 {
		o.Hold = 5 * time.Minute
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnBudget == nil {
		o.OnBudget = func(int64, int64, bool) {}
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: maxRequests,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
			// No proxy from the environment: the token is for the control plane alone.
		}
	}
	return &Door{
		o: o, base: strings.TrimRight(o.Control, "/") + "/model",
		room: semaphore.NewWeighted(maxBuffered), busy: make(chan struct{}, maxRequests),
	}
}

// Serve serves the Door on l until ctx ends; then it closes l and breaks off
// what is under way. The error is that of a listener that failed before.
func (d *Door) Serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler:           d,
		ReadHeaderTimeout: readHeaderIn,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(d.o.Log.Handler(), slog.LevelDebug),
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		select {
		case <-ctx.Done():
			_ = s.Close()
		case <-done:
		}
	})
	// The sandbox can come to the socket past its init, which has bounds itself.
	err := s.Serve(netutil.LimitListener(l, maxConns))
	close(done)
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ep, bad := route(r.Method, r.URL.EscapedPath(), r.URL.RawQuery)
	if bad == nil {
		bad = refuseHeaders(r)
	}
	if bad != nil {
		d.refuse(w, ep, bad)
		return
	}
	select {
	case d.busy <- struct{}{}:
		defer func() { <-d.busy }()
	default:
		w.Header().Set("Retry-After", "1")
		d.refuse(w, ep, refuse(429, "unavailable", "more than %d model calls at once; wait for one to end", maxRequests))
		return
	}
	body, size, ok := d.read(w, r, ep)
	if !ok {
		return
	}
	defer d.room.Release(size)
	if ready(w, ep, body) {
		return
	}
	d.pass(w, r, ep, body)
}

// read takes the whole body into memory, so that the request can be made again.
func (d *Door) read(w http.ResponseWriter, r *http.Request, ep endpoint) (body string, size int64, ok bool) {
	size = min(r.ContentLength, maxBody)
	if size < 0 {
		size = maxBody // it does not say
	}
	if err := d.room.Acquire(r.Context(), size); err != nil {
		return "", 0, false
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(readBodyIn))
	body, err := readBody(w, r)
	_ = conn.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		d.refuse(w, ep, refuse(413, "too_large", "the body is longer than %d bytes", maxBody))
	case err != nil:
		d.refuse(w, ep, refuse(408, "bad_request", "the body did not come whole"))
	default:
		return body, size, true
	}
	d.room.Release(size)
	return "", 0, false
}

// pass sends a request to the control plane, holding it while that is away, and
// the answer back.
func (d *Door) pass(w http.ResponseWriter, r *http.Request, ep endpoint, body string) {
	var res *http.Response
	said := false
	policy := proc.Policy{First: 200 * time.Millisecond, Max: 5 * time.Second, Total: d.o.Hold}
	err := proc.Retry(r.Context(), d.o.Clock, policy, func(ctx context.Context) error {
		var err error
		res, err = d.once(ctx, r, ep, body)
		if err != nil && !said && ctx.Err() == nil {
			said = true
			d.o.Log.InfoContext(ctx, "the control plane does not take a model call, holding it", "error", err)
		}
		return err
	})
	if err != nil {
		if r.Context().Err() == nil {
			d.refuse(w, ep, refuse(503, "unavailable", "the control plane has not answered for %s", d.o.Hold))
		}
		return
	}
	defer res.Body.Close()
	d.budget(res.Header)
	if res.Header.Get(headerAnswer) == "" {
		d.foreign(w, ep, res)
		return
	}
	for name, values := range res.Header {
		if !strings.HasPrefix(name, ownHeaders) && name != "Connection" && name != "Date" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(res.StatusCode)
	out := http.NewResponseController(w)
	if res.ContentLength < 0 {
		_ = out.Flush() // a stream: that it began is news
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				panic(http.ErrAbortHandler)
			}
			if err := out.Flush(); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			panic(http.ErrAbortHandler) // a cut is passed on as a cut
		}
	}
}

// once makes the request once. The error is worth another try.
func (d *Door) once(ctx context.Context, r *http.Request, ep endpoint, body string) (*http.Response, error) {
	at := d.base + ep.path
	if ep.model != "" {
		at += "/" + url.PathEscape(ep.model)
	}
	req, err := http.NewRequestWithContext(ctx, ep.method, at, strings.NewReader(body))
	if err != nil {
		return nil, proc.Permanent(err)
	}
	req.Header = carried(r.Header, ep.api)
	if ep.method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "inspect")
	d.o.Header(req.Header)
	res, err := d.o.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	away := false
	switch res.StatusCode {
	case http.StatusServiceUnavailable, http.StatusUnauthorized: // the latter: our token is being renewed
		away = res.Header.Get(headerAnswer) != fromProvider
	case http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		away = res.Header.Get(headerAnswer) == "" // somebody before the control plane
	}
	if !away {
		return res, nil
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxProblem))
	_ = res.Body.Close()
	return nil, proc.Later(fmt.Errorf("the control plane answered with status %d", res.StatusCode), min(retryAfter(res.Header, d.o.Clock.Now()), 30*time.Second))
}

// budget reads what the answer says of the session's money.
func (d *Door) budget(h http.Header) {
	budget, err := strconv.ParseInt(h.Get(wire.HeaderBudget), 10, 64)
	spent, err2 := strconv.ParseInt(h.Get(wire.HeaderSpent), 10, 64)
	over := h.Get(wire.HeaderOver) != ""
	if err == nil && err2 == nil || over {
		d.o.OnBudget(budget, spent, over)
	}
}

// foreign passes on what did not come from the gateway itself: a refusal of the
// control plane's router, in the words of the API.
func (d *Door) foreign(w http.ResponseWriter, ep endpoint, res *http.Response) {
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	var e wire.Error
	if json.Unmarshal(b, &e) != nil || e.Message == "" {
		e.Message = "the control plane answered " + res.Status
	}
	status := res.StatusCode
	if status < 400 {
		status = http.StatusBadGateway
	}
	d.refuse(w, ep, refuse(status, "control_plane", "%s", short(e.Message)))
}

func (d *Door) refuse(w http.ResponseWriter, ep endpoint, bad *refusal) {
	d.o.Log.Debug("refused a model call", "status", bad.status, "why", bad.message)
	send(w, ep.api, bad)
}
