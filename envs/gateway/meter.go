package gateway

import (
	"strings"

	"inspect/envs/wire"
)

// maxTokens is more than any call takes; a provider's number above it is not
// believed.
const maxTokens = 1 << 30

// reading is what is known of a call's answer.
type reading struct {
	usage    usage
	reported bool  // the provider gave its final numbers
	input    bool  // it gave those of the input at least
	free     bool  // it failed before the first token
	bytes    int64 // text of the answer seen so far
	unseen   int64 // tokens that may have been made besides
}

// meter reads what an answer costs, from its body or from its events as they
// pass.
type meter struct {
	api string
	reading
	failed bool // the stream told of an error
	began  bool // a piece of an answer was seen
	ended  bool // the stream said that it is complete
}

// whole reads an answer that is not a stream.
func (m *meter) whole(body *object) {
	u, _ := body.get("usage").(*object)
	m.take(u, true)
	switch {
	case m.reported:
	case body.get("error") != nil:
		m.failed = true
	default:
		m.bytes += letters(body)
	}
}

// event reads the data of one event of a stream. last: what follows it, if
// anything, costs nothing. strip: it carries nothing but the usage.
func (m *meter) event(data []byte) (last, strip bool) {
	if string(data) == "[DONE]" {
		m.ended = true
		return true, false
	}
	if len(data) == 0 || data[0] != '{' {
		return false, false
	}
	o, err := decode(string(data))
	if err != nil {
		m.bytes += int64(len(data)) // nobody can read it, but it may be an answer
		m.began = true
		return false, false
	}
	if o.get("error") != nil {
		m.failed = true
	}
	switch m.api {
	case wire.APIChat:
		return false, m.chat(o)
	case wire.APIResponses:
		return m.responses(o), false
	case wire.APIMessages:
		return m.messages(o), false
	}
	return false, false
}

func (m *meter) chat(o *object) (strip bool) {
	choices, _ := o.get("choices").([]any)
	for _, c := range choices {
		c, _ := c.(*object)
		if c == nil {
			continue
		}
		m.began = true
		m.bytes += letters(c.get("delta"))
		if c.get("finish_reason") != nil {
			m.ended = true
		}
	}
	u, _ := o.get("usage").(*object)
	m.take(u, true)
	return u != nil && len(choices) == 0
}

func (m *meter) responses(o *object) (last bool) {
	kind, _ := o.get("type").(string)
	if strings.HasSuffix(kind, ".delta") {
		m.began = true
		m.bytes += letters(o.get("delta"))
	}
	switch kind {
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
	case "error":
		m.failed = true
		return false
	default:
		return false
	}
	m.ended = true
	m.failed = m.failed || kind == "response.failed"
	r, _ := o.get("response").(*object)
	if r == nil {
		return true
	}
	u, _ := r.get("usage").(*object)
	m.take(u, true)
	return true
}

func (m *meter) messages(o *object) (last bool) {
	switch o.get("type") {
	case "message_start":
		m.began = true
		if msg, _ := o.get("message").(*object); msg != nil {
			u, _ := msg.get("usage").(*object)
			m.take(u, false)
		}
	case "content_block_delta":
		m.bytes += letters(o.get("delta"))
	case "message_delta":
		u, _ := o.get("usage").(*object)
		m.take(u, true)
	case "message_stop":
		m.ended = true
		return true
	}
	return false
}

// take believes a provider's numbers. A later report of a stream is the sum so
// far. That of messages may leave out, or give as zero, what an earlier one said.
func (m *meter) take(u *object, final bool) {
	if u == nil {
		return
	}
	bad := false
	get := func(o *object, name string) int64 {
		if o == nil || o.get(name) == nil {
			return 0
		}
		n, ok := count(o.get(name))
		if !ok || n > maxTokens {
			bad = true
			return 0
		}
		return n
	}
	in := func(name string) *object { o, _ := u.get(name).(*object); return o }
	prompt, answer := "input_tokens", "output_tokens"
	if m.api == wire.APIChat {
		prompt, answer = "prompt_tokens", "completion_tokens"
	}
	got := usage{input: get(u, prompt), output: get(u, answer)}
	switch m.api {
	case wire.APIMessages:
		kinds := in("cache_creation")
		got.cacheRead = get(u, "cache_read_input_tokens")
		got.write1h = get(kinds, "ephemeral_1h_input_tokens")
		got.write = max(get(u, "cache_creation_input_tokens")-got.write1h, get(kinds, "ephemeral_5m_input_tokens"))
		later := func(old, new int64) int64 {
			if new > 0 {
				return new
			}
			return old
		}
		got = usage{
			input:     later(m.usage.input, got.input),
			cacheRead: later(m.usage.cacheRead, got.cacheRead),
			write:     later(m.usage.write, got.write),
			write1h:   later(m.usage.write1h, got.write1h),
			output:    later(m.usage.output, got.output),
		}
	default:
		details := in(prompt + "_details")
		all := got.input
		got.cacheRead = min(all, get(details, "cached_tokens"))
		got.write = min(all-got.cacheRead, get(details, "cache_write_tokens"))
		got.input = all - got.cacheRead - got.write
		// Some count reasoning in the total only.
		got.output = max(got.output, get(u, "total_tokens")-all)
		final = final && u.get(prompt) != nil
	}
	if bad || u.get(prompt) == nil && u.get(answer) == nil {
		return
	}
	m.usage, m.input = got, true
	m.reported = m.reported || final && u.get(answer) != nil
}

// result is the reading once the answer is over.
func (m *meter) result() reading {
	r := m.reading
	r.free = !r.reported && m.failed && !m.began
	return r
}

// letters is how much text a value holds, the names of its fields not counted.
func letters(v any) (n int64) {
	switch v := v.(type) {
	case string:
		return int64(len(v))
	case []any:
		for _, x := range v {
			n += letters(x)
		}
	case *object:
		for _, m := range v.members {
			if m.name != "type" && m.name != "id" {
				n += letters(m.value)
			}
		}
	}
	return n
}
