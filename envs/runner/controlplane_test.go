package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/wire"
)

const testSecret = "one-time-secret-of-a-test"

// rawEvent is an event as it arrived.
type rawEvent struct {
	Number int64           `json:"number"`
	Kind   string          `json:"kind"`
	Data   json.RawMessage `json:"data"`
}

// controlPlane is a double of /runner/v1 that holds the runner to the protocol.
type controlPlane struct {
	t    *testing.T
	w    *world
	addr string

	mu        sync.Mutex
	srv       *http.Server
	token     string
	tokens    int
	log       []rawEvent
	artifacts map[string][]byte
	bundles   map[string][]byte
	turns     []int
	orders    []wire.Directive
	changed   chan struct{}
	beats     int
	phases    []string
	result    *wire.Outcome
	lenient   bool // a gap is no error: the acknowledgement asks for what is missing
	calls     map[string]int

	// intercept may answer a call itself: true means that it did.
	intercept func(w http.ResponseWriter, r *http.Request) bool
}

func newControlPlane(t *testing.T, w *world) *controlPlane {
	c := &controlPlane{
		t: t, w: w, artifacts: map[string][]byte{}, bundles: map[string][]byte{}, calls: map[string]int{}, changed: make(chan struct{}),
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	c.serve(l)
	t.Cleanup(c.down)
	return c
}

func (c *controlPlane) url() string { return "http://" + c.addr }

func (c *controlPlane) serve(l net.Listener) {
	srv := &http.Server{Handler: http.HandlerFunc(c.handle)}
	c.mu.Lock()
	c.srv = srv
	c.mu.Unlock()
	go func() { _ = srv.Serve(l) }()
}

// down makes the control plane vanish, as kill -9 would.
func (c *controlPlane) down() {
	c.mu.Lock()
	srv := c.srv
	c.mu.Unlock()
	_ = srv.Close()
}

// up brings it back at the same address.
func (c *controlPlane) up() {
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		c.t.Error(err)
		return
	}
	c.serve(l)
}

func (c *controlPlane) events() []rawEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]rawEvent(nil), c.log...)
}

// texts are the words of all events of a kind that have some.
func (c *controlPlane) texts(kind string) string {
	var b strings.Builder
	for _, e := range c.events() {
		if e.Kind != kind {
			continue
		}
		var d struct{ Words, Text, Step, Output, Error string }
		_ = json.Unmarshal(e.Data, &d)
		b.WriteString(d.Words + d.Text + d.Step + d.Output + d.Error + "\n")
	}
	return b.String()
}

func (c *controlPlane) bundle(sha string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.bundles[sha]
	return b, ok
}

// addBundle makes a bundle known and returns its hash.
func (c *controlPlane) addBundle(b []byte) string {
	sum := sha256.Sum256(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bundles[hex.EncodeToString(sum[:])] = b
	return hex.EncodeToString(sum[:])
}

func (c *controlPlane) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// order gives the runner a directive.
func (c *controlPlane) order(d wire.Directive) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d.ID = int64(len(c.orders) + 1)
	c.orders = append(c.orders, d)
	c.signal()
}

// await waits until cond, called under the lock, holds.
func (c *controlPlane) await(what string, cond func() bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for {
		c.mu.Lock()
		ok, changed := cond(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			c.t.Errorf("waited in vain for %s", what)
			return
		}
	}
}

// awaitOutput waits for words of the agent.
func (c *controlPlane) awaitOutput(text string) {
	c.t.Helper()
	c.await("the agent saying "+text, func() bool {
		for _, e := range c.log {
			if e.Kind == wire.EventOutput && strings.Contains(string(e.Data), text) {
				return true
			}
		}
		return false
	})
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wire.Error{Code: code, Message: "says the test"})
}

func (c *controlPlane) handle(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/runner/v1/")
	if !ok {
		refuse(w, 404, "not_found")
		return
	}
	name, rest, _ := strings.Cut(path, "/")
	c.mu.Lock()
	c.calls[name]++
	intercept, token := c.intercept, c.token
	c.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	for h, want := range map[string]string{wire.HeaderVersion: strconv.Itoa(wire.Version), wire.HeaderSession: c.w.spec.Session, wire.HeaderGeneration: "1"} {
		if got := r.Header.Get(h); got != want {
			c.t.Errorf("%s %s: header %s is %q, want %q", r.Method, path, h, got, want)
		}
	}
	if name != "token" && r.Header.Get("Authorization") != "Bearer "+token {
		refuse(w, 401, "unauthorized")
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxArtifactBytes))
	if err != nil {
		refuse(w, 400, "bad_request")
		return
	}
	c.answer(w, r, name, rest, body)
}

func (c *controlPlane) answer(w http.ResponseWriter, r *http.Request, name, rest string, body []byte) {
	reply := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	decode := func(v any) bool {
		if err := json.Unmarshal(body, v); err != nil {
			c.t.Errorf("%s: %v", name, err)
			refuse(w, 400, "bad_request")
			return false
		}
		return true
	}
	switch r.Method + " " + name {
	case "POST token":
		var q wire.TokenRequest
		if !decode(&q) {
			return
		}
		if q.Secret != testSecret || q.Session != c.w.spec.Session || q.Generation != 1 {
			refuse(w, 401, "unauthorized")
			return
		}
		reply(wire.TokenReply{Token: c.newToken(), Expires: time.Now().Add(time.Hour)})
	case "GET spec":
		reply(c.w.spec)
	case "POST events":
		var q struct{ Events []rawEvent }
		if !decode(&q) {
			return
		}
		reply(wire.EventsReply{Acked: c.take(q.Events)})
	case "PUT artifacts", "PUT bundle":
		c.put(w, r, name, rest, body)
	case "GET bundle":
		b, ok := c.bundle(rest)
		if !ok {
			refuse(w, 404, "not_found")
			return
		}
		_, _ = w.Write(b)
	case "GET directives":
		c.poll(w, r)
	case "POST heartbeat":
		var q wire.Heartbeat
		if !decode(&q) {
			return
		}
		c.mu.Lock()
		c.beats++
		if n := len(c.phases); n == 0 || c.phases[n-1] != q.Phase {
			c.phases = append(c.phases, q.Phase)
		}
		c.signal()
		token := c.token
		c.mu.Unlock()
		reply(wire.HeartbeatReply{Token: token, Expires: time.Now().Add(time.Hour)})
	case "POST outcome":
		var o wire.Outcome
		if !decode(&o) {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.result != nil {
			c.t.Error("a second outcome came")
		}
		c.result = &o
		c.signal()
		w.WriteHeader(http.StatusNoContent)
	default:
		c.t.Errorf("unexpected call %s %s", r.Method, name)
		refuse(w, 404, "not_found")
	}
}

func (c *controlPlane) newToken() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens++
	c.token = fmt.Sprintf("bearer-token-number-%d", c.tokens)
	return c.token
}

// take appends what is next and tells how far that is.
func (c *controlPlane) take(events []rawEvent) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		switch next := int64(len(c.log)) + 1; {
		case e.Number < next:
			if old := c.log[e.Number-1]; old.Kind != e.Kind || string(old.Data) != string(e.Data) {
				c.t.Errorf("event %d came again with other content", e.Number)
			}
		case e.Number > next && c.lenient:
		case e.Number > next:
			c.t.Errorf("event %d came where %d was due", e.Number, next)
		default:
			c.log = append(c.log, e)
		}
	}
	c.signal()
	return int64(len(c.log))
}

func (c *controlPlane) put(w http.ResponseWriter, r *http.Request, name, rest string, body []byte) {
	sum := sha256.Sum256(body)
	got := hex.EncodeToString(sum[:])
	want := rest
	if name == "bundle" {
		want = r.URL.Query().Get("sha256")
	}
	if got != want {
		c.t.Errorf("%s %s: the content's hash is %s", name, rest, got)
		refuse(w, 400, "bad_request")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == "artifacts" {
		c.artifacts[got] = body
	} else {
		turn, err := strconv.Atoi(rest)
		if err != nil || !isSHA(r.URL.Query().Get("tip")) {
			c.t.Errorf("bundle %s with tip %s", rest, r.URL.Query().Get("tip"))
		}
		if n := len(c.turns); n > 0 && turn <= c.turns[n-1] {
			c.t.Errorf("turn %d came after turn %d", turn, c.turns[n-1])
		}
		c.turns = append(c.turns, turn)
		c.bundles[got] = body
	}
	c.signal()
	w.WriteHeader(http.StatusNoContent)
}

func (c *controlPlane) poll(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		c.t.Errorf("directives: %v", err)
	}
	for {
		c.mu.Lock()
		orders, changed := c.orders, c.changed
		c.mu.Unlock()
		var out []wire.Directive
		for _, d := range orders {
			if d.ID > after {
				out = append(out, d)
			}
		}
		if len(out) > 0 {
			_ = json.NewEncoder(w).Encode(wire.DirectivesReply{Directives: out})
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
