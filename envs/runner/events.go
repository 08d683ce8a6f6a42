package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"inspect/checks/redact"
	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

const (
	// batchEvents and batchBytes bound one POST of events.
	batchEvents = 100
	batchBytes  = 512 << 10
	// maxWords bounds a text that is shown to people, in bytes.
	maxWords = 2 << 10
	// keptEvents are held back for what must be told whatever the agent said:
	// phases, commands, restores, egress decisions (5,000 of a sandbox), the end.
	keptEvents = 20_000
)

// eventLog numbers events without gaps, keeps them on disk and sends them in
// order. Adding never waits for the control plane. A number that was not
// acknowledged is sent again, which is harmless there.
type eventLog struct {
	clock   proc.Clock
	log     *slog.Logger
	red     *redact.Redactor
	control *control

	mu      sync.Mutex
	f       *os.File
	path    string
	last    int64 // number of the last event added
	acked   int64
	broken  error         // why no further event will arrive
	quiet   bool          // the agent's own are dropped, the session has had too many
	changed chan struct{} // closed and replaced on every change
}

func openEventLog(s *spool, control *control, red *redact.Redactor, clock proc.Clock, log *slog.Logger) (*eventLog, error) {
	path := filepath.Join(s.dir, "events.jsonl")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write to the spool directory: %w", err)
	}
	return &eventLog{clock: clock, log: log, red: red, control: control, f: f, path: path, changed: make(chan struct{})}, nil
}

func (l *eventLog) close() { _ = l.f.Close() }

// signal wakes everybody who waits. The caller holds mu.
func (l *eventLog) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// said appends an event of the agent's own. It can make those at will.
func (l *eventLog) said(kind string, data any) { l.append(kind, data, kind != wire.EventPrompt) }

// add appends an event of ours.
func (l *eventLog) add(kind string, data any) { l.append(kind, data, false) }

// append appends one event. Trouble with our own disk ends the log, not the
// attempt: the outcome is what counts.
func (l *eventLog) append(kind string, data any, chatter bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.broken != nil || l.last >= wire.MaxEvents:
		return
	case chatter && l.quiet:
		return
	case chatter && l.last >= wire.MaxEvents-keptEvents:
		l.quiet = true
		kind, data = wire.EventNote, wire.Note{Words: "The agent has said more than a session may; its further output is not shown."}
	}
	e := wire.Event{Number: l.last + 1, Kind: kind, At: l.clock.Now().UTC(), Data: data}
	line, err := json.Marshal(e)
	if err == nil && len(line) > wire.MaxEventBytes {
		e.Kind, e.Data = wire.EventNote, wire.Note{Words: "An event of kind " + kind + " was too long to be told."}
		line, err = json.Marshal(e)
	}
	if err == nil {
		_, err = l.f.Write(append(line, '\n'))
	}
	if err != nil {
		l.broken = err
		l.log.Error("events cannot be kept any more", "error", err)
	} else {
		l.last++
	}
	l.signal()
}

// text makes s fit to be shown: redacted, clean, not longer than most bytes.
func (l *eventLog) text(s string, most int) string { return words(l.red, s, most) }

func words(red *redact.Redactor, s string, most int) string {
	return redact.Cut(harness.Clean(red.String(s)), most)
}

func (l *eventLog) note(format string, args ...any) {
	l.add(wire.EventNote, wire.Note{Words: l.text(fmt.Sprintf(format, args...), maxWords)})
}

// send sends until ctx ends.
func (l *eventLog) send(ctx context.Context) error {
	f, err := os.Open(l.path)
	if err != nil {
		l.fail(err)
		return nil
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	next := int64(1) // number of the event r reads next
	for setbacks := 0; ; {
		l.mu.Lock()
		last, changed := l.last, l.changed
		l.mu.Unlock()
		if next > last {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		var batch []json.RawMessage
		for size := 0; next <= last && len(batch) < batchEvents && size < batchBytes; next++ {
			line, err := r.ReadBytes('\n')
			if err != nil {
				l.fail(fmt.Errorf("read from the spool directory: %w", err))
				return nil
			}
			batch = append(batch, json.RawMessage(line[:len(line)-1]))
			size += len(line)
		}
		acked, err := l.control.sendEvents(ctx, batch)
		if err != nil {
			if ctx.Err() == nil {
				l.fail(err)
			}
			return nil
		}
		acked = min(max(acked, 0), next-1)
		l.mu.Lock()
		l.acked = max(l.acked, acked)
		l.signal()
		l.mu.Unlock()
		if acked < next-1 {
			// The control plane has fewer than we sent: again from there.
			if setbacks++; setbacks > maxSetbacks {
				l.fail(fmt.Errorf("the control plane acknowledges no event after number %d", acked))
				return nil
			}
			if next, err = rewind(f, r, acked+1); err != nil {
				l.fail(fmt.Errorf("read from the spool directory: %w", err))
				return nil
			}
		} else {
			setbacks = 0
		}
		if proc.Sleep(ctx, l.clock, l.control.opt.pace.events*time.Duration(len(batch))) != nil {
			return nil
		}
	}
}

// maxSetbacks is how often in a row the control plane may acknowledge less
// than it was sent.
const maxSetbacks = 20

// rewind makes r read event number n next.
func rewind(f *os.File, r *bufio.Reader, n int64) (int64, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	r.Reset(f)
	for i := int64(1); i < n; i++ {
		if _, err := r.ReadBytes('\n'); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (l *eventLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = err
		l.log.Error("events are not taken any more", "error", err)
	}
	l.signal()
}

// drain waits until every event is acknowledged or none will be any more.
func (l *eventLog) drain(ctx context.Context) error {
	for {
		l.mu.Lock()
		done, changed := l.acked >= l.last || l.broken != nil, l.changed
		l.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
