package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

func TestCalls(t *testing.T) {
	for _, api := range allAPIs {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%v", api, stream), func(t *testing.T) {
				w := newWorld(t, setup{api: talks(api), answer: func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("X-Request-Id", "req-1")
					rw.Header().Set("Set-Cookie", "a=b")
					rw.Header().Set("Openai-Organization", "org-of-the-operator")
					rw.Header().Set("X-Ratelimit-Remaining-Tokens", "7")
					if stream {
						events(rw, streams[api]...)
					} else {
						jsonAnswer(rw, 200, wholes[api])
					}
				}})
				a := w.post(pathOf(api), body(api, fmt.Sprintf(`"stream":%v`, stream)))
				if a.status != 200 || a.err != nil {
					t.Fatalf("got %+v", a)
				}
				got := w.ledger.wait(t, 1)[0]
				want := wire.Usage{Model: testModel, InputTokens: 600, CacheReadTokens: 400, OutputTokens: 50, Cost: theCost, Priced: true, Reported: true}
				if got != want {
					t.Errorf("settled %+v, want %+v", got, want)
				}
				if stream {
					want := eventsIn(t, strings.Join(streams[api], "\n\n"))
					if api == wire.APIChat { // the client did not ask for the usage
						want = append(want[:2:2], want[3])
					}
					if got := eventsIn(t, a.body); strings.Join(got, "\n") != strings.Join(want, "\n") {
						t.Errorf("the client saw %q, want %q", got, want)
					}
				} else if a.body != wholes[api] {
					t.Errorf("the client saw %s", a.body)
				}

				// What the provider got.
				req := w.requests()[0]
				if req.path != pathOf(api) {
					t.Errorf("the provider was asked for %s", req.path)
				}
				auth := req.header.Get("Authorization")
				if api == wire.APIMessages {
					auth = "Bearer " + req.header.Get("X-Api-Key")
				}
				if auth != "Bearer "+canary {
					t.Errorf("the provider got the key %q", auth)
				}
				for name := range req.header {
					switch name {
					case "Content-Type", "Content-Length", "Accept", "User-Agent":
					case "Authorization":
						if api == wire.APIMessages {
							t.Errorf("the provider got a header %s", name)
						}
					case "X-Api-Key", "Anthropic-Version", "Anthropic-Beta":
						if api != wire.APIMessages {
							t.Errorf("the provider got a header %s", name)
						}
					default:
						t.Errorf("the provider got a header %s: %v", name, req.header[name])
					}
				}
				if b := req.header.Get("Anthropic-Beta"); api == wire.APIMessages && b != "claude-code-20250219" {
					t.Errorf("the provider got the betas %q", b)
				}
				if !strings.Contains(req.body, `"model":"provider-name"`) || strings.Contains(req.body, testModel) {
					t.Errorf("the provider got %s", req.body)
				}
				if stream && api == wire.APIChat && !strings.Contains(req.body, `"include_usage":true`) {
					t.Errorf("the provider was not asked for usage: %s", req.body)
				}

				// What the client got.
				for name := range a.header {
					if strings.HasPrefix(name, "Inspect-") || name == "Set-Cookie" || strings.HasPrefix(name, "Openai") {
						t.Errorf("the client got a header %s", name)
					}
				}
				if a.header.Get("X-Request-Id") != "req-1" || a.header.Get("X-Ratelimit-Remaining-Tokens") != "7" {
					t.Errorf("the client got the headers %v", a.header)
				}
				if got := w.budgets(); len(got) != 1 || got[0] != "5000000000 0 false" {
					t.Errorf("the runner was told %v", got)
				}
			})
		}
	}
}

func TestChatUsageIfAsked(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { events(rw, chatStream...) }})
	a := w.post(pathOf("chat"), body("chat", `"stream":true,"stream_options":{"include_usage":true}`))
	if got := eventsIn(t, a.body); len(got) != 4 {
		t.Errorf("the client saw %q", got)
	}
}

func TestReservation(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) }})
	w.post(pathOf("chat"), body("chat", `"max_tokens":5000`))
	w.ledger.wait(t, 1)
	ask, sent := w.ledger.asked[0], w.requests()[0].body
	in := (int64(len(sent)) + 2) / 3
	want := wire.ModelCall{Model: testModel, Priced: true, Input: in * 3000, Want: in*3750 + 5000*15000, Least: in*3750 + 1024*15000}
	if ask != want {
		t.Errorf("asked for %+v, want %+v", ask, want)
	}
}

func TestImagesCountAsImages(t *testing.T) {
	data := strings.Repeat("A", 300_000)
	c, sent := sentOn(t, "chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`+data+`"}}]}]`, of("chat"))
	e := of("chat").Price.plan(c, len(sent))
	if want := (int64(len(sent)-300_000)+2)/3 + 2000; e.input != want {
		t.Errorf("estimated %d tokens, want %d", e.input, want)
	}
}

func TestLittleMoney(t *testing.T) {
	w := newWorld(t, setup{budget: 200_000_000, answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) }})
	w.post(pathOf("chat"), body("chat", ``))
	w.ledger.wait(t, 1)
	ask, sent := w.ledger.asked[0], w.requests()[0].body
	inCost := ask.Want - 64000*15000
	want := fmt.Sprintf(`"max_completion_tokens":%d`, (200_000_000-inCost)/15000)
	if !strings.Contains(sent, want) {
		t.Errorf("the provider got %s, want %s", sent, want)
	}
}

func TestNoMoney(t *testing.T) {
	for _, api := range allAPIs {
		w := newWorld(t, setup{api: talks(api), budget: 1_000_000, answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
		a := w.post(pathOf(api), body(api, `"stream":true`))
		// A call that wants less than 1,024 tokens may be small enough.
		if api == wire.APIMessages {
			a = w.post(pathOf(api), body(api, `"max_tokens":4000`))
		}
		if a.status != 402 || !strings.Contains(messageIn(t, a.body), "budget is used up") {
			t.Errorf("%s: got %+v", api, a)
		}
		if got := w.budgets(); got[len(got)-1] != "1000000 0 true" {
			t.Errorf("the runner was told %v", got)
		}
	}
}

func TestUnpricedModel(t *testing.T) {
	h := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) }})
	m := h.config.models[testModel]
	m.Priced, m.Price = false, Price{}
	h.config.models[testModel] = m // shared with the handler
	a := h.post(pathOf("chat"), body("chat", ``))
	got := h.ledger.wait(t, 1)[0]
	if a.status != 200 || got.Cost != 0 || got.Priced || !got.Reported || got.OutputTokens != 50 || h.ledger.asked[0] != (wire.ModelCall{Model: testModel}) {
		t.Errorf("got %d, settled %+v, asked %+v", a.status, got, h.ledger.asked[0])
	}
}

// A stream that is cut reaches the client as one, and costs what was seen of it.
func TestCutStream(t *testing.T) {
	for _, api := range allAPIs {
		t.Run(api, func(t *testing.T) {
			w := newWorld(t, setup{api: talks(api), answer: func(rw http.ResponseWriter, r *http.Request) {
				n := map[string]int{wire.APIChat: 1, wire.APIResponses: 2, wire.APIMessages: 3}[api]
				events(rw, streams[api][:n]...)
				cut(rw)
			}})
			a := w.post(pathOf(api), body(api, map[bool]string{true: `"max_tokens":4000,`}[api == wire.APIMessages]+`"stream":true`))
			if a.status != 200 || a.err == nil {
				t.Fatalf("the client saw %+v, want a broken connection", a)
			}
			got := w.ledger.wait(t, 1)[0]
			in := (int64(len(w.requests()[0].body)) + 2) / 3
			want := wire.Usage{Model: testModel, Priced: true}
			switch api {
			case wire.APIChat:
				want.InputTokens, want.OutputTokens = in, 4 // "assistant", "Hel"
				want.Cost = in*3000 + 4*15000
			case wire.APIResponses:
				want.InputTokens, want.OutputTokens = in, 2 // "Hello"
				want.Cost = in*3000 + 2*15000
			case wire.APIMessages:
				want.InputTokens, want.CacheReadTokens, want.OutputTokens = 600, 400, 2
				want.Cost = 600*3000 + 400*300 + 2*15000
			}
			if got != want {
				t.Errorf("settled %+v, want %+v", got, want)
			}
		})
	}
}

// A stream that ends without its last event is cut too, however cleanly the
// connection closed.
func TestShortStream(t *testing.T) {
	for _, api := range allAPIs {
		w := newWorld(t, setup{api: talks(api), answer: func(rw http.ResponseWriter, r *http.Request) { events(rw, streams[api][0]) }})
		if a := w.post(pathOf(api), body(api, `"stream":true`)); a.err == nil {
			t.Errorf("%s: the client saw a whole answer: %+v", api, a)
		}
		if got := w.ledger.wait(t, 1)[0]; got.Reported {
			t.Errorf("%s: settled %+v", api, got)
		}
	}
}

// Usage that is never reported costs at most what was granted.
func TestUnreportedIsBounded(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {
		events(rw, `data: {"choices":[{"delta":{"content":"`+strings.Repeat("x", 30_000)+`"}}]}`, `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`, `data: [DONE]`)
	}})
	w.post(pathOf("chat"), body("chat", `"stream":true,"max_tokens":2000`))
	got, ask := w.ledger.wait(t, 1)[0], w.ledger.asked[0]
	if got.Reported || got.OutputTokens != 10_000 || got.Cost != ask.Want {
		t.Errorf("settled %+v of %+v", got, ask)
	}
}

// An error in place of an answer costs nothing; one behind a part of it does.
func TestErrorInStream(t *testing.T) {
	for _, c := range []struct {
		api  string
		evs  []string
		cost bool
	}{
		{wire.APIMessages, []string{"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}"}, false},
		{wire.APIMessages, []string{messagesStream[0], "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}"}, true},
		{wire.APIChat, []string{`data: {"error":{"message":"no","code":500}}`}, false},
		{wire.APIResponses, []string{responsesStream[0], "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"server_error\"},\"usage\":null}}"}, false},
	} {
		w := newWorld(t, setup{api: talks(c.api), answer: func(rw http.ResponseWriter, r *http.Request) { events(rw, c.evs...) }})
		a := w.post(pathOf(c.api), body(c.api, `"stream":true`))
		got := w.ledger.wait(t, 1)[0]
		if a.err != nil || len(eventsIn(t, a.body)) != len(c.evs) || (got.Cost > 0) != c.cost || got.Reported {
			t.Errorf("%s: the client saw %+v, settled %+v", c.evs, a, got)
		}
	}
}

func TestClientGoes(t *testing.T) {
	gone := make(chan struct{})
	w := newWorld(t, setup{api: apiAnthropic, answer: func(rw http.ResponseWriter, r *http.Request) {
		events(rw, messagesStream[:3]...)
		<-r.Context().Done()
		close(gone)
	}})
	w.readUntil(t, wire.APIMessages, `"max_tokens":4000,"stream":true`, "Hello")
	<-gone // the provider's work is stopped
	got := w.ledger.wait(t, 1)[0]
	want := wire.Usage{Model: testModel, InputTokens: 600, CacheReadTokens: 400, OutputTokens: 2, Cost: 600*3000 + 400*300 + 2*15000, Priced: true}
	if got != want {
		t.Errorf("settled %+v, want %+v", got, want)
	}
}

// readUntil makes a call and breaks it off once the answer says what. then is
// called before that.
func (w *world) readUntil(t *testing.T, api, members, what string, then ...func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://model"+pathOf(api), strings.NewReader(body(api, members)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := w.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), what) {
		n, err := res.Body.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			t.Fatalf("after %q: %v", seen.String(), err)
		}
	}
	for _, f := range then {
		f()
	}
}

func TestClientGoesBeforeTheAnswer(t *testing.T) {
	began, gone := make(chan struct{}), make(chan struct{})
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		close(gone)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	w.postAs(ctx, pathOf("chat"), body("chat", ``))
	<-gone
	got := w.ledger.wait(t, 1)[0]
	if got.Reported || got.OutputTokens != 0 || got.Cost != got.InputTokens*3000 || got.Cost == 0 {
		t.Errorf("settled %+v, want the input's estimate", got)
	}
}

// An agent that hangs up before its model has told what it reasoned pays for the
// time: otherwise it could have any amount of it for its input's price.
func TestClientGoesAfterReasoning(t *testing.T) {
	for members, input := range map[string]string{`"max_tokens":4000,"stream":true`: "Hello", `"max_tokens":4000`: ""} {
		clock := proc.NewFake(time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC))
		began := make(chan struct{})
		w := newWorld(t, setup{api: apiAnthropic, clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) {
			if input != "" {
				events(rw, messagesStream[:3]...)
			}
			close(began)
			<-r.Context().Done()
		}})
		if input != "" {
			w.readUntil(t, wire.APIMessages, members, input, func() { clock.Advance(20 * time.Second) })
		} else {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-began
				clock.Advance(20 * time.Second)
				cancel()
			}()
			w.postAs(ctx, pathOf(wire.APIMessages), body(wire.APIMessages, members))
		}
		if got := w.ledger.wait(t, 1)[0]; got.OutputTokens != 20*unseenPerSecond || got.Cost < 20*unseenPerSecond*15000 || got.Reported {
			t.Errorf("%s: settled %+v", members, got)
		}
	}
}

// The money is settled before the last event goes, or the next call would find
// it held.
func TestSettledBeforeTheEnd(t *testing.T) {
	for _, api := range allAPIs {
		w := newWorld(t, setup{api: talks(api), answer: func(rw http.ResponseWriter, r *http.Request) {
			events(rw, streams[api]...)
			<-r.Context().Done() // the connection stays open behind the last event
		}})
		last := eventsIn(t, streams[api][len(streams[api])-1])[0]
		w.readUntil(t, api, `"stream":true`, last, func() {
			w.ledger.mu.Lock()
			defer w.ledger.mu.Unlock()
			if len(w.ledger.settled) != 1 {
				t.Errorf("%s: the last event came before the money was settled", api)
			}
		})
		w.ledger.wait(t, 1)
	}
}

func TestLedgerIsSlow(t *testing.T) {
	clock := proc.NewFake(time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC))
	w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, wholes["chat"]) }})
	w.ledger.fail = 2
	done := make(chan answer)
	go func() { done <- w.post(pathOf("chat"), body("chat", ``)) }()
	for range 2 {
		if err := clock.BlockUntil(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		clock.Advance(time.Second)
	}
	if a := <-done; a.status != 200 || w.ledger.wait(t, 1)[0].Cost != theCost {
		t.Errorf("got %+v", a)
	}
}

// Each pause of a busy provider is waited for, on a clock the test moves.
func TestBusyForAMinute(t *testing.T) {
	for _, status := range []int{429, 503, 529} {
		clock := proc.NewFake(time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC))
		var until, last time.Time
		tries := 0
		w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) {
			tries++
			last = clock.Now()
			if last.Before(until) {
				switch tries {
				case 1:
					rw.Header().Set("Retry-After", "3")
				case 2:
					rw.Header().Set("Retry-After-Ms", "2500")
				case 3:
					rw.Header().Set("Retry-After", until.Add(-40*time.Second).Format(http.TimeFormat))
				}
				jsonAnswer(rw, status, `{"error":{"message":"slow down","type":"rate_limit"}}`)
				return
			}
			jsonAnswer(rw, 200, wholes["chat"])
		}})
		until = clock.Now().Add(time.Minute)
		a := w.movedBy(t, clock, func() answer { return w.post(pathOf("chat"), body("chat", ``)) })
		if a.status != 200 || last.Before(until) || last.After(until.Add(25*time.Second)) || tries < 6 {
			t.Errorf("%d: got %+v after %d tries at %v", status, a, tries, last)
		}
		if got := w.ledger.wait(t, 1)[0]; got.Cost != theCost {
			t.Errorf("settled %+v", got)
		}
	}
}

// movedBy runs f and moves the clock by a quarter of a second whenever somebody waits.
func (w *world) movedBy(t *testing.T, clock *proc.Fake, f func() answer) answer {
	t.Helper()
	done := make(chan answer, 1)
	go func() { done <- f() }()
	for {
		ctx, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- clock.BlockUntil(ctx, 1) }()
		select {
		case a := <-done:
			cancel()
			<-waits
			return a
		case err := <-waits:
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			clock.Advance(250 * time.Millisecond)
		}
	}
}

func TestBusyForGood(t *testing.T) {
	for _, api := range allAPIs {
		clock := proc.NewFake(time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC))
		begun := clock.Now()
		var last time.Time
		const theirs = `{"error":{"message":"slow down","type":"rate_limit_error"}}`
		w := newWorld(t, setup{api: talks(api), clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) {
			last = clock.Now()
			rw.Header().Set("Retry-After", "7")
			jsonAnswer(rw, 429, theirs)
		}})
		a := w.movedBy(t, clock, func() answer { return w.post(pathOf(api), body(api, `"stream":true`)) })
		if took := last.Sub(begun); a.status != 429 || a.body != theirs || a.header.Get("Retry-After") != "7" || took < 75*time.Second || took > 100*time.Second {
			t.Errorf("%s: got %+v after %s", api, a, took)
		}
		if got := w.ledger.wait(t, 1)[0]; got.Cost != 0 {
			t.Errorf("settled %+v", got)
		}
	}
}

func TestNotWorthWaiting(t *testing.T) {
	for _, c := range []struct {
		name string
		say  func(http.ResponseWriter)
	}{
		{"too long", func(rw http.ResponseWriter) {
			rw.Header().Set("Retry-After", "3600")
			jsonAnswer(rw, 429, `{"error":{"message":"come back in an hour"}}`)
		}},
		{"no money at the provider", func(rw http.ResponseWriter) {
			jsonAnswer(rw, 429, `{"error":{"message":"pay","code":"insufficient_quota"}}`)
		}},
		{"said so", func(rw http.ResponseWriter) {
			rw.Header().Set("X-Should-Retry", "false")
			jsonAnswer(rw, 503, `{"error":{"message":"no"}}`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := proc.NewFake(time.Now()) // stands still: a wait would hang
			w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) { c.say(rw) }})
			if a := w.post(pathOf("chat"), body("chat", ``)); a.status != 429 && a.status != 503 || len(w.requests()) != 1 {
				t.Errorf("got %+v after %d tries", a, len(w.requests()))
			}
		})
	}
}

func TestClientGoesWhileItWaits(t *testing.T) {
	clock := proc.NewFake(time.Now())
	w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Retry-After", "60")
		jsonAnswer(rw, 429, `{"error":{"message":"slow down"}}`)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan answer)
	go func() { done <- w.postAs(ctx, pathOf("chat"), body("chat", ``)) }()
	if err := clock.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-done
	if got := w.ledger.wait(t, 1)[0]; got.Cost != 0 || len(w.requests()) != 1 {
		t.Errorf("settled %+v after %d tries", got, len(w.requests()))
	}
}

func TestProviderIsAway(t *testing.T) {
	clock := proc.NewFake(time.Now())
	w := newWorld(t, setup{clock: clock, answer: func(rw http.ResponseWriter, r *http.Request) {}})
	w.provider.Close()
	a := w.movedBy(t, clock, func() answer { return w.post(pathOf("chat"), body("chat", ``)) })
	if a.status != 502 || !strings.Contains(messageIn(t, a.body), "the model provider p cannot be reached: no connection") || strings.Contains(a.body, "127.0.0.1") {
		t.Errorf("got %+v", a)
	}
	if got := w.ledger.wait(t, 1)[0]; got.Cost != 0 {
		t.Errorf("settled %+v", got)
	}
}

// A provider that got the call and never answers may have worked on it; one
// that was not reached has not.
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		op   string
		cost bool
	}{{"dial", false}, {"read", true}} {
		clock := proc.NewFake(time.Now())
		w := newWorld(t, setup{clock: clock, to: failing{&net.OpError{Op: c.op, Net: "tcp", Err: os.ErrDeadlineExceeded}}})
		a := w.movedBy(t, clock, func() answer { return w.post(pathOf("chat"), body("chat", ``)) })
		if a.status != 502 || !strings.Contains(messageIn(t, a.body), "did not answer in time") {
			t.Errorf("%s: got %+v", c.op, a)
		}
		if got := w.ledger.wait(t, 1)[0]; (got.Cost > 0) != c.cost || got.Reported {
			t.Errorf("%s: settled %+v", c.op, got)
		}
	}
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// Whatever a provider says, the key does not reach the agent.
func TestKeyIsNotEchoed(t *testing.T) {
	for _, c := range []struct {
		name   string
		say    func(http.ResponseWriter)
		status int
		want   string
	}{
		{"wrong key", func(rw http.ResponseWriter) {
			jsonAnswer(rw, 401, `{"error":{"message":"Incorrect API key provided: `+canary+` (sk-can***4242)"}}`)
		}, 401, "does not take the operator's key"},
		{"not allowed", func(rw http.ResponseWriter) { jsonAnswer(rw, 403, `{"error":{"message":"org-of-the-operator"}}`) }, 403, "does not take the operator's key"},
		{"bad request", func(rw http.ResponseWriter) {
			jsonAnswer(rw, 400, `{"error":{"message":"headers: Bearer `+canary+`"}}`)
		}, 400, "headers: Bearer"},
		{"a page", func(rw http.ResponseWriter) {
			rw.Header().Set("Content-Type", "text/html")
			rw.WriteHeader(500)
			_, _ = io.WriteString(rw, "<h1>"+canary+"</h1>")
		}, 500, "answered with status 500"},
		{"sent elsewhere", func(rw http.ResponseWriter) {
			rw.Header().Set("Location", "http://127.0.0.1:1/?"+canary)
			rw.WriteHeader(307)
		}, 502, "is not followed"},
		{"in the answer", func(rw http.ResponseWriter) {
			jsonAnswer(rw, 200, `{"choices":[],"key":"`+canary+`","error":{"message":"x","type":"y"}}`)
		}, 200, "[redacted]"},
		{"not JSON", func(rw http.ResponseWriter) { jsonAnswer(rw, 200, canary) }, 502, "is not JSON"},
		{"compressed", func(rw http.ResponseWriter) {
			rw.Header().Set("Content-Encoding", "gzip")
			jsonAnswer(rw, 200, "x")
		}, 502, "compressed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { c.say(rw) }})
			a := w.post(pathOf("chat"), body("chat", ``))
			all := fmt.Sprint(a.header) + a.body
			if a.status != c.status || !strings.Contains(a.body, c.want) || strings.Contains(all, "4242") || strings.Contains(all, "org-of") {
				t.Errorf("got %+v", a)
			}
			if len(w.requests()) != 1 {
				t.Errorf("%d calls", len(w.requests()))
			}
			w.ledger.wait(t, 1)
		})
	}
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {
		events(rw, `data: {"error":{"message":"`+canary+`"}}`)
	}})
	if a := w.post(pathOf("chat"), body("chat", `"stream":true`)); strings.Contains(a.body, "4242") || !strings.Contains(a.body, "[redacted]") {
		t.Errorf("got %+v", a)
	}
}

func TestCountTokensCostsNothing(t *testing.T) {
	for _, c := range []struct{ path, api string }{{"/v1/messages/count_tokens", "messages"}, {"/v1/responses/input_tokens", "responses"}} {
		w := newWorld(t, setup{api: talks(c.api), answer: func(rw http.ResponseWriter, r *http.Request) { jsonAnswer(rw, 200, `{"input_tokens":7}`) }})
		a := w.post(c.path, body(c.api, ``))
		if a.status != 200 || a.body != `{"input_tokens":7}` || len(w.ledger.asked) != 0 || w.requests()[0].path != c.path {
			t.Errorf("%s: got %+v, asked %v", c.path, a, w.ledger.asked)
		}
	}
}

func TestModels(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
	for path, want := range map[string]int{"/v1/models": 200, "/v1/models/anthropic/claude-sonnet": 200, "/v1/models/anthropic%2Fclaude-sonnet": 200, "/v1/models/other": 404} {
		res, err := w.client().Get("http://model" + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != want || !strings.Contains(string(b), testModel) || strings.Contains(string(b), "provider-name") || !json.Valid(b) {
			t.Errorf("%s: %d %s", path, res.StatusCode, b)
		}
	}
}

func TestWrongAPI(t *testing.T) {
	w := newWorld(t, setup{api: apiOpenAIChat, answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
	for _, c := range []struct{ path, api string }{{"/v1/messages", "messages"}, {"/v1/responses", "responses"}, {"/v1/messages/count_tokens", "messages"}} {
		if a := w.post(c.path, body(c.api, ``)); a.status != 404 || !strings.Contains(messageIn(t, a.body), "is served over chat") {
			t.Errorf("%s: got %+v", c.path, a)
		}
	}
}

func TestRefusedBeforeMoney(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
	for _, b := range []string{body("chat", `"tools":[{"type":"web_search"}]`), body("chat", `"model":"openai/other"`), `{`, `{"model":"a","model":"b"}`} {
		if a := w.post(pathOf("chat"), b); a.status < 400 || a.status > 404 || messageIn(t, a.body) == "" {
			t.Errorf("%s: got %+v", b, a)
		}
	}
	if len(w.ledger.asked) != 0 {
		t.Errorf("money was asked for: %v", w.ledger.asked)
	}
}

func TestLedgerRefuses(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{
		{&wire.Error{Code: "stale_generation", Message: "this attempt is over"}, 409},
		{fmt.Errorf("wrapped: %w", &wire.Error{Code: "forbidden", Message: "the work is over"}), 403},
		{&wire.Error{Code: "bad_request", Message: "no"}, 400},
	} {
		w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
		w.ledger.refuse = c.err
		if a := w.post(pathOf("chat"), body("chat", ``)); a.status != c.status {
			t.Errorf("%v: got %+v", c.err, a)
		}
	}
}

// Many calls at once: each is settled once, and the sum is right to the
// billionth of a dollar.
func TestAtOnce(t *testing.T) {
	w := newWorld(t, setup{budget: 50_000_000_000, answer: func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == pathOf("responses") {
			events(rw, responsesStream...)
			return
		}
		events(rw, chatStream...)
	}})
	const n = 24
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			api := []string{"chat", "responses"}[i%2]
			if a := w.post(pathOf(api), body(api, `"stream":true`)); a.status != 200 || a.err != nil {
				t.Errorf("got %+v", a)
			}
		})
	}
	wg.Wait()
	w.ledger.wait(t, n)
	if w.ledger.spent != n*theCost || len(w.ledger.held) != 0 {
		t.Errorf("spent %d, want %d; %d held", w.ledger.spent, n*theCost, len(w.ledger.held))
	}
}

func TestLargeEventAndBody(t *testing.T) {
	big := strings.Repeat("x", 3<<20)
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {
		events(rw, responsesStream[0], `data: {"type":"response.output_text.delta","delta":"`+big+`"}`, responsesStream[2])
	}})
	a := w.post(pathOf("responses"), body("responses", `"stream":true,"instructions":"`+big+`"`))
	if a.status != 200 || a.err != nil || len(a.body) < len(big) || len(w.requests()[0].body) < len(big) {
		t.Errorf("got %d, %v, %d bytes", a.status, a.err, len(a.body))
	}
	w.ledger.wait(t, 1)
}

func TestEndlessEvent(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		line := []byte("data: " + strings.Repeat("x", 1<<20))
		for range 40 {
			if _, err := rw.Write(line); err != nil {
				return
			}
		}
	}})
	if a := w.post(pathOf("chat"), body("chat", `"stream":true`)); a.err == nil {
		t.Errorf("the client saw a whole answer of %d bytes", len(a.body))
	}
	w.ledger.wait(t, 1)
}

func TestTooLargeBody(t *testing.T) {
	w := newWorld(t, setup{answer: func(rw http.ResponseWriter, r *http.Request) { t.Error("the provider was called") }})
	a := w.post(pathOf("chat"), `{"model":"`+strings.Repeat("x", maxBody)+`"}`)
	if a.status != 413 && a.err == nil {
		t.Errorf("got %d", a.status)
	}
}

func TestNewHandlerNeeds(t *testing.T) {
	if _, err := NewHandler(HandlerOptions{}); err == nil {
		t.Error("a handler without a ledger")
	}
}

func TestPlainly(t *testing.T) {
	if got := plainly(errors.New("10.0.0.1 said something")); strings.Contains(got, "10.") {
		t.Errorf("got %q", got)
	}
}
