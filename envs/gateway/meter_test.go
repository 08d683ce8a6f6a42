package gateway

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

func TestWholeUsage(t *testing.T) {
	for _, c := range []struct {
		api, body string
		want      usage
		reported  bool
	}{
		{"chat", `{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`, usage{input: 10, output: 5}, true},
		{"chat", `{"usage":{"prompt_tokens":10,"completion_tokens":5}}`, usage{input: 10, output: 5}, true},
		{"chat", `{"usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":3}}}`, usage{input: 3, cacheRead: 4, write: 3, output: 5}, true},
		// Reasoning that only the total counts.
		{"chat", `{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":40}}`, usage{input: 10, output: 30}, true},
		{"chat", `{"usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":99}}}`, usage{cacheRead: 10, output: 5}, true},
		{"chat", `{"usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":null}}`, usage{input: 10, output: 5}, true},
		{"chat", `{"usage":null}`, usage{}, false},
		{"chat", `{}`, usage{}, false},
		// Numbers nobody can mean.
		{"chat", `{"usage":{"prompt_tokens":-1,"completion_tokens":5}}`, usage{}, false},
		{"chat", `{"usage":{"prompt_tokens":1e3,"completion_tokens":5}}`, usage{}, false},
		{"chat", `{"usage":{"prompt_tokens":99999999999,"completion_tokens":5}}`, usage{}, false},
		{"chat", `{"usage":{"prompt_tokens":"10","completion_tokens":5}}`, usage{}, false},
		{"responses", `{"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":15}}`, usage{input: 6, cacheRead: 4, output: 5}, true},
		{"messages", `{"usage":{"input_tokens":10,"output_tokens":5}}`, usage{input: 10, output: 5}, true},
		{"messages", `{"usage":{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":50,"output_tokens":5}}`, usage{input: 10, cacheRead: 100, write: 50, output: 5}, true},
		{"messages", `{"usage":{"input_tokens":10,"cache_creation_input_tokens":50,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":30},"output_tokens":5}}`, usage{input: 10, write: 20, write1h: 30, output: 5}, true},
		{"messages", `{"usage":{"input_tokens":10,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":30},"output_tokens":5}}`, usage{input: 10, write: 20, write1h: 30, output: 5}, true},
	} {
		o, err := decode(c.body)
		if err != nil {
			t.Fatal(err)
		}
		m := &meter{api: c.api}
		m.whole(o)
		if m.usage != c.want || m.reported != c.reported {
			t.Errorf("%s: %s: got %+v %v, want %+v %v", c.api, c.body, m.usage, m.reported, c.want, c.reported)
		}
	}
}

func TestStreamUsage(t *testing.T) {
	start := func(u string) string { return `{"type":"message_start","message":{"usage":` + u + `}}` }
	delta := func(u string) string { return `{"type":"message_delta","usage":` + u + `}` }
	for _, c := range []struct {
		name, api string
		events    []string
		want      usage
		reported  bool
	}{
		{"the sum so far", "messages", []string{start(`{"input_tokens":10,"cache_read_input_tokens":7,"output_tokens":1}`), delta(`{"output_tokens":20}`), delta(`{"output_tokens":50}`), `{"type":"message_stop"}`}, usage{input: 10, cacheRead: 7, output: 50}, true},
		{"all of it again", "messages", []string{start(`{"input_tokens":10,"output_tokens":1}`), delta(`{"input_tokens":12,"cache_read_input_tokens":3,"output_tokens":50}`)}, usage{input: 12, cacheRead: 3, output: 50}, true},
		{"only at the end", "messages", []string{start(`{"input_tokens":0,"output_tokens":0}`), delta(`{"input_tokens":12,"output_tokens":50}`)}, usage{input: 12, output: 50}, true},
		{"zero at the end", "messages", []string{start(`{"input_tokens":12,"output_tokens":1}`), delta(`{"input_tokens":0,"output_tokens":50}`)}, usage{input: 12, output: 50}, true},
		{"no end", "messages", []string{start(`{"input_tokens":12,"output_tokens":1}`)}, usage{input: 12, output: 1}, false},
		{"growing", "chat", []string{`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":10,"completion_tokens":1}}`, `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":6}}}`, `[DONE]`}, usage{input: 4, cacheRead: 6, output: 2}, true},
		{"cut short", "responses", []string{`{"type":"response.incomplete","response":{"usage":{"input_tokens":10,"output_tokens":5}}}`}, usage{input: 10, output: 5}, true},
		{"failed late", "responses", []string{`{"type":"response.failed","response":{"error":{"code":"x"},"usage":{"input_tokens":10,"output_tokens":5}}}`}, usage{input: 10, output: 5}, true},
		{"not JSON", "chat", []string{`{{`, `: ping`, ``}, usage{}, false},
	} {
		m := &meter{api: c.api}
		for _, e := range c.events {
			m.event([]byte(e))
		}
		if m.usage != c.want || m.reported != c.reported {
			t.Errorf("%s: got %+v %v, want %+v %v", c.name, m.usage, m.reported, c.want, c.reported)
		}
	}
}

func TestCost(t *testing.T) {
	p := Price{Input: 3000, CacheRead: 300, CacheWrite: 3750, CacheWrite1h: 6000, Output: 15000}
	// 1,000 × $3 + 2,000 × $0.30 + 100 × $3.75 + 10 × $6 + 500 × $15, per million tokens: $0.011535.
	if got := p.cost(usage{1000, 2000, 100, 10, 500}); got != 11_535_000 {
		t.Errorf("got %d", got)
	}
}

func TestSettleWords(t *testing.T) {
	m := of("messages")
	e := plan{input: 100, want: 1_000_000, inputCost: 375_000}
	for _, c := range []struct {
		name string
		r    reading
		want wire.Usage
	}{
		{"nothing came", reading{}, wire.Usage{InputTokens: 100, Cost: 300_000}},
		{"failed first", reading{free: true}, wire.Usage{}},
		{"some came", reading{bytes: 10}, wire.Usage{InputTokens: 100, OutputTokens: 4, Cost: 360_000}},
		{"much came", reading{bytes: 3_000_000}, wire.Usage{InputTokens: 100, OutputTokens: 1_000_000, Cost: 1_000_000}},
		{"input known", reading{input: true, usage: usage{input: 7, output: 2}, bytes: 3}, wire.Usage{InputTokens: 7, OutputTokens: 2, Cost: 51_000}},
		{"reported, and more than was held", reading{reported: true, input: true, usage: usage{input: 1000, output: 1000}, bytes: 1}, wire.Usage{InputTokens: 1000, OutputTokens: 1000, Cost: 18_000_000, Reported: true}},
		{"an hour", reading{reported: true, input: true, usage: usage{write: 1, write1h: 1}}, wire.Usage{CacheWriteTokens: 2, Cost: 9750, Reported: true}},
	} {
		c.want.Model, c.want.Priced = testModel, true
		if got := settle(m, e, e.want, c.r); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestSplitter(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
		rest string
	}{
		{"data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}, ""},
		{"data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}, ""},
		{"data: a\r\rdata: b\r\rx", []string{"data: a\r\r", "data: b\r\r"}, "x"},
		{"event: e\ndata: a\ndata: b\n\n", []string{"event: e\ndata: a\ndata: b\n\n"}, ""},
		{": ping\n\ndata: a", []string{": ping\n\n"}, "data: a"},
		{"\n\ndata: a\n\n", []string{"\n", "\n", "data: a\n\n"}, ""},
	} {
		for size := 1; size <= len(c.in); size++ {
			var s splitter
			var got []string
			for rest := []byte(c.in); len(rest) > 0; {
				n := min(size, len(rest))
				s.add(rest[:n])
				rest = rest[n:]
				for {
					ev, ok := s.next()
					if !ok {
						break
					}
					got = append(got, string(ev))
				}
			}
			if strings.Join(got, "|") != strings.Join(c.want, "|") || string(s.rest()) != c.rest {
				t.Errorf("%q in pieces of %d: got %q and %q", c.in, size, got, s.rest())
			}
		}
	}
}

func TestDataOf(t *testing.T) {
	for in, want := range map[string]string{
		"data: a\n\n": "a", "data:a\n\n": "a", "data:  a\n\n": " a", "event: x\r\ndata: a\r\n\r\n": "a", "data: a\ndata: b\n\n": "a\nb",
		": ping\n\n": "", "id: 1\n\n": "", "data: a": "a", "xdata: a\n\n": "", "data\n\n": "",
	} {
		if got := string(dataOf([]byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// A hostile provider's largest event does not hold the control plane up.
func TestDataOfManyLines(t *testing.T) {
	const lines = maxEvent / len("data:x\n")
	begun := time.Now()
	if got := len(dataOf([]byte(strings.Repeat("data:x\n", lines)))); got != 2*lines-1 {
		t.Errorf("%d bytes", got)
	}
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("it took %s", d)
	}
}

// However a stream is cut to pieces, its events and its sum are the same, and
// every byte of it passes.
func FuzzStream(f *testing.F) {
	for api, evs := range streams {
		f.Add(api, []byte(strings.Join(evs, "\n\n")+"\n\n"), 7)
	}
	f.Fuzz(func(t *testing.T, api string, in []byte, size int) {
		if size < 1 || size > len(in) {
			return
		}
		read := func(size int) (reading, []byte) {
			var s splitter
			m := &meter{api: api}
			var out []byte
			for rest := in; len(rest) > 0; {
				n := min(size, len(rest))
				s.add(rest[:n])
				rest = rest[n:]
				for ev, ok := s.next(); ok; ev, ok = s.next() {
					m.event(dataOf(ev))
					out = append(out, ev...)
				}
			}
			return m.result(), append(out, s.rest()...)
		}
		a, whole := read(len(in))
		b, pieces := read(size)
		if a != b || !bytes.Equal(whole, in) || !bytes.Equal(pieces, in) {
			t.Fatalf("%q: %+v and %+v", in, a, b)
		}
	})
}
