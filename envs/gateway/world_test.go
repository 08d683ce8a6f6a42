package gateway

import (
	"bufio"
	"bytes"
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
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

const (
	canary      = "sk-canary-4242424242424242"
	runnerToken = "runner-token-1"
)

// ledger is a purse in memory.
type ledger struct {
	mu      sync.Mutex
	budget  int64
	spent   int64
	held    map[int64]int64
	next    int64
	asked   []wire.ModelCall
	settled []wire.Usage
	refuse  error // Reserve's answer
	fail    int   // so many calls of Settle fail
	change  chan struct{}
}

func newLedger(budget int64) *ledger {
	return &ledger{budget: budget, held: map[int64]int64{}, change: make(chan struct{})}
}

func (l *ledger) all() (sum int64) {
	for _, h := range l.held {
		sum += h
	}
	return sum
}

func (l *ledger) Reserve(_ context.Context, who wire.ModelCaller, c wire.ModelCall) (wire.Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, c)
	out := wire.Reservation{Budget: l.budget, Spent: l.spent + l.all()}
	if l.refuse != nil {
		return out, l.refuse
	}
	free := l.budget - l.spent - l.all()
	if free < c.Least {
		return out, &wire.Error{Code: wire.CodeOverBudget, Message: "the session's budget is used up"}
	}
	l.next++
	out.ID, out.Granted = l.next, min(free, c.Want)
	l.held[out.ID] = out.Granted
	out.Spent += out.Granted
	return out, nil
}

func (l *ledger) Settle(ctx context.Context, who wire.ModelCaller, id int64, u wire.Usage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.fail > 0 {
		l.fail--
		return io.ErrUnexpectedEOF
	}
	if _, ok := l.held[id]; !ok {
		panic(fmt.Sprintf("reservation %d is settled twice", id))
	}
	delete(l.held, id)
	l.spent += u.Cost
	l.settled = append(l.settled, u)
	close(l.change)
	l.change = make(chan struct{})
	return nil
}

// wait returns the usages once there are n.
func (l *ledger) wait(t *testing.T, n int) []wire.Usage {
	t.Helper()
	for {
		l.mu.Lock()
		all, change := append([]wire.Usage(nil), l.settled...), l.change
		l.mu.Unlock()
		if len(all) >= n {
			if len(all) > n {
				t.Fatalf("%d calls were settled, want %d", len(all), n)
			}
			return all
		}
		select {
		case <-change:
		case <-t.Context().Done():
			t.Fatal("the test ended before the call was settled")
		case <-time.After(20 * time.Second):
			t.Fatalf("%d calls were settled, want %d", len(all), n)
		}
	}
}

// heard is one request a provider got.
type heard struct {
	path   string
	header http.Header
	body   string
}

// world is a provider, a handler and a door.
type world struct {
	t        testing.TB
	ledger   *ledger
	clock    proc.Clock
	config   Config
	door     *httptest.Server
	control  *httptest.Server
	provider *httptest.Server

	mu    sync.Mutex
	heard []heard
	told  []string // of the budget
}

type setup struct {
	api      string // of the provider, default openai
	price    string
	budget   int64
	answer   http.HandlerFunc // the provider
	clock    proc.Clock
	caller   wire.ModelCaller
	authFail error
	control  func(http.Handler) http.Handler // around the handler
	hold     time.Duration
	to       http.RoundTripper // to the provider
	deaf     bool              // what the provider hears is not kept
}

const dearPrice = "price: {input: 3, cache_read: 0.30, cache_write: 3.75, cache_write_1h: 6, output: 15}"

func newWorld(t testing.TB, s setup) *world {
	t.Helper()
	if s.api == "" {
		s.api = apiOpenAI
	}
	if s.price == "" {
		s.price = dearPrice
	}
	if s.budget == 0 {
		s.budget = 5_000_000_000
	}
	if s.caller == (wire.ModelCaller{}) {
		s.caller = testCaller
	}
	w := &world{t: t, ledger: newLedger(s.budget), clock: s.clock}
	w.provider = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if !s.deaf {
			w.mu.Lock()
			w.heard = append(w.heard, heard{r.URL.RequestURI(), r.Header.Clone(), string(b)})
			w.mu.Unlock()
		}
		s.answer(rw, r)
	}))
	t.Cleanup(w.provider.Close)
	yml := "prices_as_of: 2026-11-01\nproviders: {p: {api: " + s.api + ", base_url: '" + w.provider.URL + "', key_file: key}}\n" +
		"models:\n  " + testModel + ": {provider: p, name: provider-name, max_output: 64000, " + s.price + "}\n"
	var err error
	w.config, err = Parse([]byte(yml), func(string) ([]byte, error) { return []byte(canary + "\n"), nil })
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHandler(HandlerOptions{
		Config: w.config, Ledger: w.ledger, Clock: s.clock, Transport: s.to,
		Authenticate: func(r *http.Request) (wire.ModelCaller, error) {
			if s.authFail != nil {
				return wire.ModelCaller{}, s.authFail
			}
			if r.Header.Get("Authorization") != "Bearer "+runnerToken {
				return wire.ModelCaller{}, &wire.Error{Code: "unauthorized", Message: "unknown token"}
			}
			return s.caller, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/model/v1/", h)
	outer := http.Handler(mux)
	if s.control != nil {
		outer = s.control(outer)
	}
	w.control = httptest.NewServer(outer)
	t.Cleanup(w.control.Close)
	w.door = w.newDoor(s, w.control.URL)
	return w
}

// newDoor serves a door on a unix socket, as the runner does.
func (w *world) newDoor(s setup, control string) *httptest.Server {
	d := NewDoor(DoorOptions{
		Control: control, Clock: s.clock, Hold: s.hold,
		Header: func(h http.Header) { h.Set("Authorization", "Bearer "+runnerToken) },
		OnBudget: func(budget, spent int64, over bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, fmt.Sprintf("%d %d %v", budget, spent, over))
		},
	})
	l, err := net.Listen("unix", filepath.Join(w.t.TempDir(), "model"))
	if err != nil {
		w.t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: d}}
	srv.Start()
	w.t.Cleanup(srv.Close)
	return srv
}

// client speaks with the door over its socket.
func (w *world) client() *http.Client { return clientOf(w.door) }

func clientOf(srv *httptest.Server) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", srv.Listener.Addr().String())
		},
		DisableCompression: true,
	}}
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// post sends a body as a client with credentials of its own would.
func (w *world) post(path, body string) answer {
	w.t.Helper()
	return w.postAs(w.t.Context(), path, body)
}

func (w *world) postAs(ctx context.Context, path, body string) answer {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://model"+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer none", "X-Api-Key": "none", "Cookie": "a=b",
		"OpenAI-Organization": "org-x", "OpenAI-Project": "proj-x", "X-Stainless-Lang": "js", "User-Agent": "agent/1",
		"Anthropic-Version": "2023-06-01", "Anthropic-Beta": "claude-code-20250219,files-api-2025-04-14",
		"Inspect-Session": "other", "Inspect-Generation": "9", "X-Forwarded-For": "1.2.3.4",
	} {
		req.Header.Set(k, v)
	}
	res, err := w.client().Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b), err}
}

func (w *world) requests() []heard {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]heard(nil), w.heard...)
}

func (w *world) budgets() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.told...)
}

// pathOf is the call of an API.
func pathOf(api string) string { return endpointOf(api).path }

// events writes a stream, an event a string, flushing each.
func events(rw http.ResponseWriter, all ...string) {
	rw.Header().Set("Content-Type", "text/event-stream")
	for _, e := range all {
		_, _ = io.WriteString(rw, e+"\n\n")
		_ = http.NewResponseController(rw).Flush()
	}
}

// jsonAnswer writes a JSON answer.
func jsonAnswer(rw http.ResponseWriter, status int, body string) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_, _ = io.WriteString(rw, body)
}

// cut ends the provider's connection in the middle.
func cut(rw http.ResponseWriter) {
	c, _, err := http.NewResponseController(rw).Hijack()
	if err == nil {
		_ = c.Close()
	}
}

// The three APIs' streams: 1,000 tokens in, 400 of them from the cache, 50 out.
var (
	chatStream = []string{
		`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},"finish_reason":null}],"usage":null}`,
		`data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}],"usage":null}`,
		`data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":50,"total_tokens":1050,"prompt_tokens_details":{"cached_tokens":400}}}`,
		`data: [DONE]`,
	}
	responsesStream = []string{
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"usage\":null}}",
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hello\"}",
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\",\"usage\":{\"input_tokens\":1000,\"input_tokens_details\":{\"cached_tokens\":400},\"output_tokens\":50,\"total_tokens\":1050}}}",
	}
	messagesStream = []string{
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":600,\"cache_read_input_tokens\":400,\"cache_creation_input_tokens\":0,\"output_tokens\":1}}}",
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}",
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":50}}",
		"event: message_stop\ndata: {\"type\":\"message_stop\"}",
	}
	streams = map[string][]string{wire.APIChat: chatStream, wire.APIResponses: responsesStream, wire.APIMessages: messagesStream}

	wholes = map[string]string{
		wire.APIChat:      `{"id":"c","choices":[{"message":{"content":"Hello"}}],"usage":{"prompt_tokens":1000,"completion_tokens":50,"total_tokens":1050,"prompt_tokens_details":{"cached_tokens":400}}}`,
		wire.APIResponses: `{"id":"r","status":"completed","error":null,"output":[],"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":400},"output_tokens":50,"total_tokens":1050}}`,
		wire.APIMessages:  `{"id":"m","content":[{"type":"text","text":"Hello"}],"usage":{"input_tokens":600,"cache_read_input_tokens":400,"cache_creation_input_tokens":0,"output_tokens":50}}`,
	}
	// 600 × $3 + 400 × $0.30 + 50 × $15, per million tokens.
	theCost = int64(600*3000 + 400*300 + 50*15000)
)

// talks is the kind of provider that speaks an API.
func talks(api string) string {
	if api == wire.APIMessages {
		return apiAnthropic
	}
	return apiOpenAI
}

var allAPIs = []string{wire.APIChat, wire.APIResponses, wire.APIMessages}

// eventsIn reads the data of a stream's events.
func eventsIn(t *testing.T, s string) []string {
	t.Helper()
	var all []string
	sc := bufio.NewScanner(strings.NewReader(s))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if d, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			all = append(all, d)
		}
	}
	return all
}

// messageIn is the message of an error in any API's format.
func messageIn(t *testing.T, body string) string {
	t.Helper()
	var v struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
		} `json:"error"`
	}
	if err := json.NewDecoder(bytes.NewReader([]byte(body))).Decode(&v); err != nil || v.Error.Message == "" || v.Error.Type == "" {
		t.Fatalf("%q is no error of an API: %v", body, err)
	}
	return v.Error.Message
}
