package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

// The control plane sees the runner's identity and nothing of the agent's.
func TestDoorHeaders(t *testing.T) {
	var got http.Header
	w := newWorld(t, setup{api: apiAnthropic,
		answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["messages"]) },
		control: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				got = r.Header.Clone()
				next.ServeHTTP(rw, r)
			})
		}})
	if a := w.post(pathOf("messages")+"?beta=true", body("messages", ``)); a.status != 200 {
		t.Fatalf("got %+v", a)
	}
	want := map[string]string{
		"Authorization": "Bearer " + runnerToken, "Content-Type": "application/json", "User-Agent": "inspect",
		"Anthropic-Version": "2023-06-01", "Anthropic-Beta": "claude-code-20250219",
	}
	for name, values := range got {
		if name == "Content-Length" || name == "Accept-Encoding" {
			continue
		}
		if want[name] != values[0] {
			t.Errorf("%s: %q", name, values)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// The runner's token opens more than the gateway; a path must not lead there.
func TestDoorLetsNothingElseThrough(t *testing.T) {
	var calls atomic.Int32
	control := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		t.Errorf("the control plane was asked for %s %s", r.Method, r.URL)
	}))
	defer control.Close()
	w := &world{t: t}
	door := w.newDoor(setup{}, control.URL)
	for _, request := range []string{
		"POST /v1/../../runner/v1/outcome HTTP/1.1", "POST /v1/models/../../../runner/v1/events HTTP/1.1",
		"GET /v1/models/..%2f..%2f..%2frunner%2fv1%2fspec HTTP/1.1", "GET /v1/models/%2e%2e/spec HTTP/1.1",
		"POST /runner/v1/outcome HTTP/1.1", "POST /model/v1/messages HTTP/1.1", "POST http://127.0.0.1:1/runner/v1/outcome HTTP/1.1",
		"POST /v1/messages?x=/../../runner HTTP/1.1", "POST /v1/messages%3f/../../x HTTP/1.1", "CONNECT 127.0.0.1:80 HTTP/1.1",
		"OPTIONS * HTTP/1.1", "POST /v1/files HTTP/1.1", "GET /v1/responses/resp_1 HTTP/1.1", "DELETE /v1/responses/resp_1 HTTP/1.1",
		"GET /v1/responses HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket", "POST /v1/responses HTTP/1.1\r\nUpgrade: websocket",
		"POST /v1/responses HTTP/1.1\r\nContent-Encoding: gzip", "POST /v1/responses HTTP/1.1\r\nContent-Type: text/plain",
	} {
		c, err := net.Dial("unix", door.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%s\r\nHost: model\r\nContent-Length: 2\r\n\r\n{}", request)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", request, err)
		} else if res.StatusCode < 400 && !strings.HasPrefix(request, "OPTIONS") {
			t.Errorf("%s: %s", request, res.Status)
		}
		c.Close()
	}
	if calls.Load() > 0 {
		t.Errorf("%d calls went through", calls.Load())
	}
}

func TestDoorAnswersReady(t *testing.T) {
	control := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		t.Errorf("the control plane was asked for %s", r.URL)
	}))
	defer control.Close()
	w := &world{t: t}
	w.door = w.newDoor(setup{}, control.URL)
	for _, model := range []string{"inspect/ready", `inspect\/ready`} {
		for _, api := range allAPIs {
			ask := strings.Replace(body(api, `"stream":false`), testModel, model, 1)
			a := w.post(pathOf(api), ask)
			var v map[string]any
			if a.status != 200 || json.Unmarshal([]byte(a.body), &v) != nil || !strings.Contains(a.body, `"ok"`) || v["usage"] == nil {
				t.Errorf("%s: got %+v", api, a)
			}
			ask = strings.Replace(body(api, `"stream":true`), testModel, model, 1)
			a = w.post(pathOf(api), ask)
			m := &meter{api: api}
			said := ""
			for _, d := range eventsIn(t, a.body) {
				if d != "[DONE]" && !json.Valid([]byte(d)) {
					t.Errorf("%s: %q is not JSON", api, d)
				}
				m.event([]byte(d))
				said += d
			}
			if a.status != 200 || !m.reported || !m.ended || m.usage != (usage{}) || !strings.Contains(said, `"ok"`) || a.header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%s stream: got %+v, %+v", api, a, m)
			}
		}
		a := w.post("/v1/messages/count_tokens", strings.Replace(body("messages", ``), testModel, model, 1))
		if a.status != 200 || !strings.Contains(a.body, `"input_tokens":0`) {
			t.Errorf("count: got %+v", a)
		}
	}
}

// A prompt that only speaks of the ready model is another model's.
func TestNotReady(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) }})
	a := w.post(pathOf("chat"), body("chat", `"messages":[{"role":"user","content":"inspect/ready"}],"stop":"inspect/ready"`))
	if a.status != 200 || len(w.requests()) != 1 {
		t.Errorf("got %+v", a)
	}
}

// While the control plane is away a request is held, and goes through when it
// is back; what came is passed on once.
func TestDoorHolds(t *testing.T) {
	for _, c := range []struct {
		name string
		away func(rw http.ResponseWriter)
	}{
		{"no connection", cut},
		{"a router that shuts down", func(rw http.ResponseWriter) {
			jsonAnswer(rw, 503, `{"code":"unavailable","message":"shutting down"}`)
		}},
		{"a proxy before it", func(rw http.ResponseWriter) { rw.WriteHeader(502) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := proc.NewFake(time.Now())
			var tries int
			w := newWorld(t, setup{clock: clock,
				answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) },
				control: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						if tries++; tries < 6 {
							c.away(rw)
							return
						}
						next.ServeHTTP(rw, r)
					})
				}})
			a := w.movedBy(t, clock, func() answer { return w.post(pathOf("chat"), body("chat", ``)) })
			if a.status != 200 || a.body != wholes["chat"] || tries != 6 || len(w.requests()) != 1 {
				t.Errorf("got %+v after %d tries", a, tries)
			}
		})
	}
}

// A token that is refused is being renewed: the call is held meanwhile.
func TestDoorHoldsForItsToken(t *testing.T) {
	clock := proc.NewFake(time.Now())
	tries := 0
	w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) },
		control: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if tries++; tries < 3 {
					rw.Header().Set(headerAnswer, fromGateway)
					jsonAnswer(rw, 401, `{}`)
					return
				}
				next.ServeHTTP(rw, r)
			})
		}})
	a := w.movedBy(t, clock, func() answer { return w.post(pathOf("chat"), body("chat", ``)) })
	if a.status != 200 || tries != 3 {
		t.Errorf("got %+v after %d tries", a, tries)
	}
}

// The ledger's database may be away as well.
func TestDoorHoldsForTheLedger(t *testing.T) {
	clock := proc.NewFake(time.Now())
	var w *world
	w = newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) },
		control: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(rw, r)
				w.ledger.mu.Lock()
				w.ledger.refuse = nil
				w.ledger.mu.Unlock()
			})
		}})
	w.ledger.refuse = fmt.Errorf("no connection to the database")
	a := w.movedBy(t, clock, func() answer { return w.post(pathOf("chat"), body("chat", ``)) })
	if a.status != 200 || len(w.ledger.asked) != 2 {
		t.Errorf("got %+v, asked %d times", a, len(w.ledger.asked))
	}
}

func TestDoorGivesUp(t *testing.T) {
	clock := proc.NewFake(time.Now())
	w := &world{t: t}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody is there
	w.door = w.newDoor(setup{clock: clock, hold: time.Minute}, "http://"+l.Addr().String())
	begun := clock.Now()
	a := w.movedBy(t, clock, func() answer { return w.post(pathOf("messages"), body("messages", ``)) })
	if took := clock.Now().Sub(begun); a.status != 503 || !strings.Contains(messageIn(t, a.body), "the control plane has not answered for 1m0s") || took < 50*time.Second || took > time.Minute {
		t.Errorf("got %+v after %s", a, took)
	}
}

func TestDoorClientGoesWhileHeld(t *testing.T) {
	clock := proc.NewFake(time.Now())
	w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") },
		control: func(http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(503) })
		}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan answer)
	go func() { done <- w.postAs(ctx, pathOf("chat"), body("chat", ``)) }()
	if err := clock.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if a := <-done; a.err == nil {
		t.Errorf("got %+v", a)
	}
}

// What no waiting cures is said at once.
func TestDoorPassesRefusals(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		want   string
	}{
		{&wire.Error{Code: "stale_generation", Message: "this attempt is over"}, 409, "this attempt is over"},
		{&wire.Error{Code: "forbidden", Message: "its work is over"}, 403, "its work is over"},
		{&wire.Error{Code: "version", Message: "too old"}, 426, "too old"},
	} {
		w := newWorld(t, setup{clock: proc.NewFake(time.Now()), authFail: c.err, answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
		for _, api := range allAPIs {
			if a := w.post(pathOf(api), body(api, ``)); a.status != c.status || messageIn(t, a.body) != c.want {
				t.Errorf("%s: got %+v", api, a)
			}
		}
	}
	// A control plane without a gateway.
	control := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		jsonAnswer(rw, 404, `{"code":"not_found","message":"there is no gateway here"}`)
	}))
	defer control.Close()
	w := &world{t: t}
	w.door = w.newDoor(setup{clock: proc.NewFake(time.Now())}, control.URL)
	if a := w.post(pathOf("messages"), body("messages", ``)); a.status != 404 || messageIn(t, a.body) != "there is no gateway here" {
		t.Errorf("got %+v", a)
	}
}

// A provider's 503 has been waited for by the control plane already.
func TestDoorDoesNotHoldForProviders(t *testing.T) {
	clock := proc.NewFake(time.Now())
	w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Should-Retry", "false")
		jsonAnswer(rw, 503, `{"error":{"message":"no","type":"x"}}`)
	}})
	if a := w.post(pathOf("chat"), body("chat", ``)); a.status != 503 || len(w.requests()) != 1 {
		t.Errorf("got %+v after %d calls", a, len(w.requests()))
	}
}

// A control plane that dies in the middle of a stream: the client sees a cut.
func TestDoorPassesCutsOn(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {},
		control: func(http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(headerAnswer, fromProvider)
				events(rw, chatStream[0])
				cut(rw)
			})
		}})
	if a := w.post(pathOf("chat"), body("chat", `"stream":true`)); a.err == nil || !strings.Contains(a.body, "Hel") {
		t.Errorf("got %+v, want the first event and a broken connection", a)
	}
}

func TestDoorBoundsRequests(t *testing.T) {
	release := make(chan struct{})
	var in sync.WaitGroup
	in.Add(maxRequests)
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {},
		control: func(http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				in.Done()
				<-release
				rw.Header().Set(headerAnswer, fromProvider)
			})
		}})
	var all sync.WaitGroup
	for range maxRequests {
		all.Go(func() { w.post(pathOf("chat"), body("chat", ``)) })
	}
	in.Wait()
	if a := w.post(pathOf("messages"), body("messages", ``)); a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(messageIn(t, a.body), "32 model calls at once") {
		t.Errorf("got %+v", a)
	}
	close(release)
	all.Wait()
}

// Connections that say nothing do not pile up in the runner.
func TestDoorBoundsConnections(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "model"))
	if err != nil {
		t.Fatal(err)
	}
	counted := &countedListener{Listener: l}
	ctx, cancel := context.WithCancel(t.Context())
	d := NewDoor(DoorOptions{Control: "http://127.0.0.1:1", Header: func(http.Header) {}})
	done := make(chan error)
	go func() { done <- d.Serve(ctx, counted) }()
	var all []net.Conn
	for range maxConns + 50 {
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for counted.n.Load() < maxConns {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // for more, if there is no bound
	if n := counted.n.Load(); n > maxConns {
		t.Errorf("%d connections were accepted", n)
	}
	for _, c := range all[:100] {
		c.Close()
	}
	res, err := clientOf(&httptest.Server{Listener: l}).Get("http://model/v1/nothing")
	if err != nil || res.StatusCode != 404 {
		t.Errorf("got %v, %v", res, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, c := range all {
		c.Close()
	}
}

type countedListener struct {
	net.Listener
	n atomic.Int32
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func TestDoorServe(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "model"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := NewDoor(DoorOptions{Control: "http://127.0.0.1:1", Header: func(http.Header) {}})
	done := make(chan error)
	go func() { done <- d.Serve(ctx, l) }()
	srv := &httptest.Server{Listener: l}
	res, err := clientOf(srv).Get("http://model/v1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if res.StatusCode != 404 {
		t.Errorf("got %s", res.Status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
	if err := d.Serve(t.Context(), l); err == nil {
		t.Error("a closed listener was served")
	}
}
