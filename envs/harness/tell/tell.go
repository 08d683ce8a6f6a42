// Package tell turns what an agent says and does into harness events: pieces of
// text and finished tool calls come in as the agent's program gave them, events
// go out that are redacted, valid, bounded in size, in the order of their
// arrival and, all together, no more than the session may keep.
package tell

import (
	"io"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"inspect/checks/redact"
	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

const (
	// FlushEvery is how long a program's output may wait to become an event. It
	// keeps a chatty one far below the events a session may send per second.
	FlushEvery = 250 * time.Millisecond
	// maxText bounds the text of one event: a byte may need six in JSON
	// (\u003c), and an event may have wire.MaxEventBytes.
	maxText = 8 << 10
	// maxBuffered is when a stream is flushed before its time.
	maxBuffered = 32 << 10
	// tailBytes is what Tail keeps.
	tailBytes = 4 << 10

	// Of a tool call; together they stay below an event's size, as above.
	maxToolOutput  = 5 << 10
	maxToolCommand = 2 << 10
	maxToolTitle   = 200
	maxToolName    = 100
	maxToolFiles   = 2 << 10 // bytes of all the names
	// maxPrompt bounds the text of a further prompt in its event.
	maxPrompt = 2 << 10
	maxWords  = 2 << 10
	// around is what is redacted beside the part of a long text that is kept: a
	// secret that begins or ends there is still known for one.
	around = 64 << 10
)

// Options of a Teller.
type Options struct {
	Clock  proc.Clock // nil: the system's
	Redact *redact.Redactor
	// Limit bounds the text of all events, in bytes; 0: harness.DefaultOutputBytes.
	Limit int64
	// Dir is the repository: files in it are told relative to it.
	Dir    string
	Events func(harness.Event)
}

// Teller tells events, one at a time. Its methods may be called at once from
// several goroutines, but none after Close.
type Teller struct {
	opt Options

	mu      sync.Mutex // serialises everything, and with it events
	left    int64
	cut     bool
	streams map[string]*stream
	order   []*stream
	last    *proc.Tail // of streams and messages, as they came

	stop chan struct{}
	wg   sync.WaitGroup
}

// New returns a Teller; Close must be called.
func New(o Options) *Teller {
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Limit <= 0 {
		o.Limit = harness.DefaultOutputBytes
	}
	t := &Teller{
		opt: o, left: o.Limit, streams: map[string]*stream{},
		last: &proc.Tail{N: tailBytes}, stop: make(chan struct{}),
	}
	tick := o.Clock.NewTicker(FlushEvery)
	t.wg.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C():
				t.mu.Lock()
				for _, s := range t.order {
					s.flush()
				}
				t.mu.Unlock()
			case <-t.stop:
				return
			}
		}
	})
	return t
}

// Close hands on what is left.
func (t *Teller) Close() {
	close(t.stop)
	t.wg.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finishStreams()
	if t.cut {
		t.opt.Events(harness.Event{Kind: wire.EventNote, Data: wire.Note{
			Words: "The agent's output was longer than what is kept; the rest of it is not shown.",
		}})
	}
}

// finishStreams sends what streams hold back. t.mu is held.
func (t *Teller) finishStreams() {
	for _, s := range t.order {
		s.flush()
		_ = s.redacted.Flush() // emitter never fails
		s.emit("", true)
	}
}

// Tail is the end of what was written to streams and said, redacted. A cut line
// at its beginning is left out: the rest of a secret would not be known for one.
func (t *Teller) Tail() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := string(t.last.Bytes())
	if t.last.Cut() {
		_, text, _ = strings.Cut(text, "\n")
	}
	return harness.Clean(t.opt.Redact.String(text))
}

// Truncated reports whether text was left out for want of Options.Limit.
func (t *Teller) Truncated() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cut
}

// Message tells text the agent addressed to people.
func (t *Teller) Message(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.last, text+"\n")
	if most := t.left + around; int64(len(text)) > most {
		text = text[:most]
	}
	text = t.take(t.opt.Redact.String(text))
	for text != "" {
		piece := harness.Clean(head(text, maxText))
		t.opt.Events(harness.Event{Kind: wire.EventMessage, Data: wire.Message{Text: piece}})
		text = text[len(head(text, maxText)):]
	}
}

// Tool tells a finished tool call. Output is cut to its end, the rest to its beginning.
func (t *Teller) Tool(c wire.Tool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.Name = t.short(c.Name, maxToolName)
	c.Title = t.short(oneLine(c.Title), maxToolTitle)
	if t.left == 0 { // what was done is told to the end
		c.Command = t.short(c.Command, maxToolTitle)
	} else {
		c.Command = t.take(t.short(c.Command, maxToolCommand))
	}
	c.Output = t.take(t.end(c.Output))
	c.Files = t.files(c.Files)
	t.opt.Events(harness.Event{Kind: wire.EventTool, Data: c})
}

// Prompt tells where the agent is with its prompts.
func (t *Teller) Prompt(p wire.Prompted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.Text = t.short(p.Text, maxPrompt)
	p.Failed = t.short(p.Failed, maxWords)
	t.opt.Events(harness.Event{Kind: wire.EventPrompt, Data: p})
}

// Note tells people something.
func (t *Teller) Note(words string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opt.Events(harness.Event{Kind: wire.EventNote, Data: wire.Note{Words: t.short(words, maxWords)}})
}

// Words makes a text of the agent's fit for a Result.
func (t *Teller) Words(s string) string { return t.short(strings.TrimSpace(s), maxWords) }

// take is as much of s as the session may still keep. t.mu is held.
func (t *Teller) take(s string) string {
	if int64(len(s)) > t.left {
		t.cut = true
		s = s[:wholeLetters(s[:t.left])]
	}
	t.left -= int64(len(s))
	return s
}

// short is the redacted beginning of s.
func (t *Teller) short(s string, n int) string {
	if s == "" {
		return ""
	}
	if len(s) > n+around {
		s = s[:n+around]
	}
	s = t.opt.Redact.String(s)
	if len(s) > n {
		s = head(s, n) + "…"
	}
	return harness.Clean(s)
}

// end is the redacted end of s, from the beginning of a line if it is cut.
func (t *Teller) end(s string) string {
	if over := len(s) - maxToolOutput - around; over > 0 {
		s = s[over:]
	}
	s = t.opt.Redact.String(s)
	if over := len(s) - maxToolOutput; over > 0 {
		s = s[over:]
		for s != "" && !utf8.RuneStart(s[0]) {
			s = s[1:]
		}
		if _, rest, ok := strings.Cut(s, "\n"); ok && rest != "" {
			s = rest
		}
		s = "…\n" + s
	}
	return harness.Clean(s)
}

// files are the names of touched files, relative where they lie in the
// repository, each once. t.mu is held.
func (t *Teller) files(in []string) (out []string) {
	room := maxToolFiles
	seen := map[string]bool{}
	for _, f := range in {
		f = path.Clean(f)
		if t.opt.Dir != "" {
			if rel, ok := strings.CutPrefix(f, strings.TrimSuffix(t.opt.Dir, "/")+"/"); ok {
				f = rel
			}
		}
		f = harness.Clean(t.opt.Redact.String(f))
		if room -= len(f); room < 0 {
			break
		}
		if !seen[f] {
			seen[f] = true
			out = append(out, f)
		}
	}
	return out
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// head is the beginning of s, at most n bytes, without a cut letter.
func head(s string, n int) string {
	if len(s) <= n {
		return s
	}
	if w := wholeLetters(s[:n]); w > 0 {
		return s[:w]
	}
	return s[:n]
}

// wholeLetters is the length of s without a letter of UTF-8 that its end cuts.
func wholeLetters(s string) int {
	for i := 1; i <= min(len(s), utf8.UTFMax); i++ {
		if b := s[len(s)-i]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRuneInString(s[len(s)-i:]) {
				return len(s) - i
			}
			break
		}
	}
	return len(s)
}

// Stream is where a program's output goes: "stdout" or "stderr". It becomes
// Output events, in pieces of whole lines where it has lines.
func (t *Teller) Stream(name string) io.Writer {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.streams[name]
	if s == nil {
		s = &stream{t: t, name: name}
		s.redacted = t.opt.Redact.Writer(emitter{s})
		t.streams[name] = s
		t.order = append(t.order, s)
	}
	return s
}

// EndStreams tells what streams hold back, as at the end of a program of several.
func (t *Teller) EndStreams() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finishStreams()
}

// stream is one of a program's two streams.
type stream struct {
	t        *Teller
	name     string
	raw      []byte         // arrived, not yet redacted
	redacted *redact.Writer // holds back unfinished lines, writes to emitter
	rest     string         // redacted, the beginning of a letter of UTF-8
}

func (s *stream) Write(p []byte) (int, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	_, _ = s.t.last.Write(p)
	if s.t.cut {
		return len(p), nil // nothing more is told: spare the redactor
	}
	s.raw = append(s.raw, p...)
	if len(s.raw) >= maxBuffered {
		s.flush()
	}
	return len(p), nil
}

func (s *stream) flush() {
	if len(s.raw) == 0 {
		return
	}
	_, _ = s.redacted.Write(s.raw) // emitter never fails
	s.raw = s.raw[:0]
}

// emit sends redacted text as events. With end set, nothing is held back.
func (s *stream) emit(text string, end bool) {
	text = s.rest + text
	s.rest = ""
	if int64(len(text)) > s.t.left {
		s.t.cut = true
		text = text[:s.t.left]
		end = true
	}
	for text != "" {
		n := min(len(text), maxText)
		if n < len(text) || !end {
			n = wholeLetters(text[:n])
		}
		if n == 0 {
			s.rest = text
			return
		}
		s.t.left -= int64(n)
		piece := harness.Clean(text[:n])
		s.t.opt.Events(harness.Event{Kind: wire.EventOutput, Data: wire.Output{Stream: s.name, Text: piece}})
		text = text[n:]
	}
}

type emitter struct{ s *stream }

func (e emitter) Write(p []byte) (int, error) {
	e.s.emit(string(p), false)
	return len(p), nil
}
