package command

import (
	"io"
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
	// flushEvery is how long output may wait to become an event. It keeps a
	// chatty program far below the events a session may send per second.
	flushEvery = 250 * time.Millisecond
	// maxText bounds the text of one event: a byte may need six in JSON
	// (�), and an event may have 64 KiB.
	maxText = 8 << 10
	// maxBuffered is when a stream is flushed before its time.
	maxBuffered = 32 << 10
	// tailBytes is what Result.Tail keeps.
	tailBytes = 4 << 10
)

// output turns what a program prints into events: both streams in the order
// in which they arrive, redacted, in pieces, never more than limit bytes.
type output struct {
	events   func(harness.Event)
	redactor *redact.Redactor

	mu      sync.Mutex // serialises the streams, and with them events
	left    int64
	cut     bool
	streams []*outStream
	last    *proc.Tail // as it came

	stop chan struct{}
	wg   sync.WaitGroup
}

func newOutput(clock proc.Clock, r *redact.Redactor, limit int64, events func(harness.Event)) *output {
	o := &output{events: events, redactor: r, left: limit, last: &proc.Tail{N: tailBytes}, stop: make(chan struct{})}
	for _, name := range []string{"stdout", "stderr"} {
		s := &outStream{o: o, name: name}
		s.redacted = r.Writer(emitter{s})
		o.streams = append(o.streams, s)
	}
	tick := clock.NewTicker(flushEvery)
	o.wg.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C():
				o.mu.Lock()
				for _, s := range o.streams {
					s.flush()
				}
				o.mu.Unlock()
			case <-o.stop:
				return
			}
		}
	})
	return o
}

func (o *output) stream(name string) io.Writer {
	for _, s := range o.streams {
		if s.name == name {
			return s
		}
	}
	panic("command: no stream " + name)
}

// close hands on what is left. Nothing may be written after it.
func (o *output) close() {
	close(o.stop)
	o.wg.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.streams {
		s.flush()
		_ = s.redacted.Flush() // emitter never fails
		s.emit("", true)
	}
	if o.cut {
		o.events(harness.Event{Kind: wire.EventNote, Data: wire.Note{
			Words: "The agent's output was longer than what is kept; the rest of it is not shown.",
		}})
	}
}

// tail is the end of what was written to both streams, redacted. A cut line at
// its beginning is left out: the rest of a secret would not be known for one.
func (o *output) tail() string {
	text := string(o.last.Bytes())
	if o.last.Cut() {
		_, text, _ = strings.Cut(text, "\n")
	}
	return harness.Clean(o.redactor.String(text))
}

func (o *output) truncated() bool { return o.cut }

// outStream is one of the program's two streams.
type outStream struct {
	o        *output
	name     string
	raw      []byte         // arrived, not yet redacted
	redacted *redact.Writer // holds back unfinished lines, writes to emitter
	rest     string         // redacted, the beginning of a letter of UTF-8
}

func (s *outStream) Write(p []byte) (int, error) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	_, _ = s.o.last.Write(p)
	if s.o.cut {
		return len(p), nil // nothing more is told: spare the redactor
	}
	s.raw = append(s.raw, p...)
	if len(s.raw) >= maxBuffered {
		s.flush()
	}
	return len(p), nil
}

func (s *outStream) flush() {
	if len(s.raw) == 0 {
		return
	}
	_, _ = s.redacted.Write(s.raw) // emitter never fails
	s.raw = s.raw[:0]
}

// emit sends redacted text as events. With end set, nothing is held back.
func (s *outStream) emit(text string, end bool) {
	text = s.rest + text
	s.rest = ""
	if int64(len(text)) > s.o.left {
		s.o.cut = true
		text = text[:s.o.left]
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
		s.o.left -= int64(n)
		piece := harness.Clean(text[:n])
		s.o.events(harness.Event{Kind: wire.EventOutput, Data: wire.Output{Stream: s.name, Text: piece}})
		text = text[n:]
	}
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

type emitter struct{ s *outStream }

func (e emitter) Write(p []byte) (int, error) {
	e.s.emit(string(p), false)
	return len(p), nil
}
