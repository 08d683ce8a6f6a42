package audit

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// An export is a file of JSON lines: for each session a header, its events in
// order and a footer, and at the end a line that counts the sessions. It is
// checked without a database. Every line must be written exactly as it is here,
// so that nothing can hide in another spelling of it.

const (
	formatName    = "inspect audit"
	formatVersion = 1
	// maxLine of an export: an event's data has 64 KiB, six times that if every
	// character of it is escaped, and what the control plane writes is shorter.
	maxLine = 4 << 20
)

// Session is what an export says of a session before its events.
type Session struct {
	Record
	Repository string // owner/name
	Reason     string
	Created    time.Time
	Receipt    json.RawMessage // as it was stored, nil without a delivery
}

type headerLine struct {
	Export     string          `json:"export"`
	Version    int             `json:"version"`
	Session    string          `json:"session"`
	Repository string          `json:"repository"`
	State      string          `json:"state"`
	Reason     string          `json:"reason"`
	Created    string          `json:"created"`
	Count      int64           `json:"events_count"`
	Head       string          `json:"events_head"`
	Removed    *removedLine    `json:"removed,omitempty"`
	Receipt    json.RawMessage `json:"receipt,omitempty"`
}

type removedLine struct {
	Count  int64   `json:"count"`
	Head   string  `json:"head"`
	At     string  `json:"at"`
	Ended  string  `json:"ended"`
	Keep   string  `json:"keep"`
	Points []Point `json:"points"`
}

type eventLine struct {
	Session    string          `json:"session"`
	Seq        int64           `json:"seq"`
	Generation int32           `json:"generation"`
	Number     *int64          `json:"number"`
	Kind       string          `json:"kind"`
	At         string          `json:"at"`
	Data       json.RawMessage `json:"data"`
	Hash       string          `json:"hash"`
}

type footerLine struct {
	End string `json:"end"` // session
}

type lastLine struct {
	Export   string `json:"export"`
	Sessions int64  `json:"sessions"`
}

// Exporter writes an export.
type Exporter struct {
	w        *bufio.Writer
	sessions int64
}

// NewExporter writes to w; Close ends the export.
func NewExporter(w io.Writer) *Exporter { return &Exporter{w: bufio.NewWriterSize(w, 64<<10)} }

// Session writes one session.
func (x *Exporter) Session(s Session, events Source) error {
	h := headerLine{
		Export: formatName, Version: formatVersion, Session: s.Session, Repository: s.Repository, State: s.State, Reason: s.Reason,
		Created: stamp(s.Created), Count: s.Count, Head: hex.EncodeToString(s.Head), Receipt: s.Receipt,
	}
	if r := s.Removed; r != nil {
		h.Removed = &removedLine{Count: r.Count, Head: hex.EncodeToString(r.Head), At: stamp(r.At), Ended: stamp(r.Ended), Keep: r.Keep.String(), Points: r.Points}
	}
	if err := x.line(h); err != nil {
		return err
	}
	x.sessions++
	err := events(func(e Event) error {
		line, err := e.Line()
		if err != nil {
			return fmt.Errorf("event %d of session %s: %w", e.Seq, e.Session, err)
		}
		_, err = x.w.Write(append(line, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	return x.line(footerLine{End: s.Session})
}

// Close writes the last line.
func (x *Exporter) Close() error {
	if err := x.line(lastLine{Export: formatName, Sessions: x.sessions}); err != nil {
		return err
	}
	return x.w.Flush()
}

func (x *Exporter) line(v any) error {
	line, err := encode(v)
	if err != nil {
		return err
	}
	_, err = x.w.Write(append(line, '\n'))
	return err
}

// Line is the event as a line of an export, which is safe on a terminal.
func (e Event) Line() ([]byte, error) {
	data, exact, err := canonical(e.Data, asIs)
	if err != nil || !exact {
		data = e.Data // which no check of the export will take for what was recorded
	}
	return encode(eventLine{
		Session: e.Session, Seq: e.Seq, Generation: e.Generation, Number: e.Number, Kind: e.Kind, At: stamp(e.At), Data: data, Hash: hex.EncodeToString(e.Hash),
	})
}

// encode is JSON in which everything a terminal might act upon is escaped.
func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out []byte
	from := 0
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		if r != ' ' && !unicode.IsGraphic(r) { // outside of strings there is only ASCII
			out = append(out, raw[from:i]...)
			if a, b := utf16.EncodeRune(r); a != unicode.ReplacementChar {
				out = fmt.Appendf(out, `\u%04x\u%04x`, a, b)
			} else {
				out = fmt.Appendf(out, `\u%04x`, r)
			}
			from = i + n
		}
		i += n
	}
	return append(out, raw[from:]...), nil
}

const stampForm = "2006-01-02T15:04:05.000000Z"

func stamp(t time.Time) string { return t.UTC().Format(stampForm) }

// Export is an export being checked.
type Export struct {
	file io.ReadSeeker
	name string
	r    *bufio.Reader
	at   int64 // offset of what r gives next
}

// OpenExport reads an export, which must be a file: what does not fit is
// looked for a second time.
func OpenExport(f io.ReadSeeker, name string) *Export {
	return &Export{file: f, name: name, r: bufio.NewReaderSize(f, 64<<10)}
}

// errForm says that a file is no export, or not as it was written.
func (x *Export) errForm(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", x.name, ErrBroken, fmt.Sprintf(format, args...))
}

// Check reads the whole export and tells visit about each session: what was
// found, or a *Broken. The error is that of the file as a whole, which wraps
// ErrBroken if it is not as it was written, or visit's.
func (x *Export) Check(anchors []Anchor, visit func(Session, Result, error) error) error {
	for n := int64(0); ; n++ {
		line, err := x.next()
		if err != nil {
			return err
		}
		var last lastLine
		if same(line, &last) && last.Export == formatName {
			if last.Sessions != n {
				return x.errForm("it has %d sessions and was written with %d", n, last.Sessions)
			}
			if _, err := x.r.Peek(1); !errors.Is(err, io.EOF) {
				return x.errForm("there is something after its last line")
			}
			return nil
		}
		s, err := x.header(line)
		if err != nil {
			return err
		}
		start, footer := x.at, false
		found, err := Check(s.Record, anchors, x.events(s.Session, start, &footer))
		var broken *Broken
		if err != nil && !errors.As(err, &broken) {
			return err
		}
		if !footer { // the check ended early
			if err := x.events(s.Session, x.at, &footer)(func(Event) error { return nil }); err != nil {
				return err
			}
		}
		if err := visit(s, found, err); err != nil {
			return err
		}
	}
}

// header reads what stands before a session's events.
func (x *Export) header(line []byte) (Session, error) {
	var h headerLine
	if !same(line, &h) || h.Export != formatName {
		return Session{}, x.errForm("a line at byte %d is not as it was written: %s", x.at-int64(len(line))-1, clip(line))
	}
	if h.Version != formatVersion {
		return Session{}, fmt.Errorf("%s has version %d of the format; this program reads version %d", x.name, h.Version, formatVersion)
	}
	s := Session{Record: Record{Session: h.Session, State: h.State, Count: h.Count, Receipt: PointOf(h.Receipt)}, Repository: h.Repository, Reason: h.Reason, Receipt: h.Receipt}
	var errs [6]error
	s.Created, errs[0] = time.Parse(stampForm, h.Created)
	s.Head, errs[1] = hex.DecodeString(h.Head)
	if r := h.Removed; r != nil {
		s.Removed = &Removed{Count: r.Count, Points: r.Points}
		s.Removed.Head, errs[2] = hex.DecodeString(r.Head)
		s.Removed.At, errs[3] = time.Parse(stampForm, r.At)
		s.Removed.Ended, errs[4] = time.Parse(stampForm, r.Ended)
		s.Removed.Keep, errs[5] = time.ParseDuration(r.Keep)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return s, x.errForm("the header of session %.20q is not as it was written", h.Session)
	}
	return s, nil
}

// events gives the events of the session that begins at start, and reads its footer.
func (x *Export) events(session string, start int64, footer *bool) Source {
	return func(yield func(Event) error) error {
		if x.at != start {
			if _, err := x.file.Seek(start, io.SeekStart); err != nil {
				return fmt.Errorf("reading %s again: %w", x.name, err)
			}
			x.r.Reset(x.file)
			x.at = start
		}
		for n := int64(0); ; n++ {
			line, err := x.next()
			if err != nil {
				return err
			}
			var end footerLine
			if same(line, &end) && end.End != "" {
				if *footer = true; end.End != session {
					return x.errForm("session %s ends with the footer of %.20q", session, end.End)
				}
				return nil
			}
			e, ok := event(line)
			if !ok {
				return x.errForm("event line %d of session %s is not as it was written: %s", n+1, session, clip(line))
			}
			if err := yield(e); err != nil {
				return err
			}
		}
	}
}

func event(line []byte) (Event, bool) {
	var l eventLine
	if !same(line, &l) {
		return Event{}, false
	}
	if data, err := Canonical(l.Data); err != nil || !bytes.Equal(encoded(data), encoded(l.Data)) {
		l.Data = nil // another spelling of it
	}
	at, err1 := time.Parse(stampForm, l.At)
	hash, err2 := hex.DecodeString(l.Hash)
	return Event{Session: l.Session, Seq: l.Seq, Generation: l.Generation, Number: l.Number, Kind: l.Kind, At: at, Data: l.Data, Hash: hash}, err1 == nil && err2 == nil
}

// same reads a line and tells whether it is written as we write what is in it.
func same(line []byte, into any) bool {
	return utf8.Valid(line) && json.Unmarshal(line, into) == nil && bytes.Equal(encoded(into), line)
}

// encoded is encode; what cannot be encoded is like nothing.
func encoded(v any) []byte {
	out, err := encode(v)
	if err != nil {
		return nil
	}
	return out
}

// next is the next line without its end.
func (x *Export) next() ([]byte, error) {
	var line []byte
	for {
		part, err := x.r.ReadSlice('\n')
		x.at += int64(len(part))
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case len(line) > maxLine:
			return nil, x.errForm("a line has more than %d bytes", maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, x.errForm("it is cut off")
		default:
			return nil, fmt.Errorf("reading %s: %w", x.name, err)
		}
	}
}

// PointOf is what a receipt says of the chain, nil if there is none.
func PointOf(receipt []byte) *Point {
	var r struct {
		Count int64  `json:"events_count"`
		Head  string `json:"events_head"`
	}
	if json.Unmarshal(receipt, &r) != nil || r.Count == 0 {
		return nil
	}
	return &Point{Count: r.Count, Head: r.Head}
}

func clip(line []byte) string { return fmt.Sprintf("%.80q", line) }
