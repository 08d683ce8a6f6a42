package audit

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrBroken is wrapped by every way in which a chain of events can be broken.
var ErrBroken = errors.New("the record of events has been changed")

// Broken says where a chain is broken and how.
type Broken struct {
	Session string
	Words   string // a sentence without its full stop
}

func (b *Broken) Error() string {
	return fmt.Sprintf("session %s: %s: %s", b.Session, ErrBroken, b.Words)
}

func (b *Broken) Unwrap() error { return ErrBroken }

// Record is what is kept of a session beside its events.
type Record struct {
	Session string
	State   string // as its row says; the last state among the events must be the same
	Count   int64
	Head    []byte // hash of the last event
	Receipt *Point // of the session's receipt; nil without a delivery
	Removed *Removed
}

// MinKeep is the shortest time that events are kept after a session's end.
const MinKeep = time.Hour

// Removed is what is left of events that were removed because they were old.
type Removed struct {
	Count  int64     // events 1 to Count were removed
	Head   []byte    // hash of the last of them
	At     time.Time // of the removal
	Ended  time.Time // when the session had ended; zero if it has not
	Keep   time.Duration
	Points []Point // of the removed events
}

// Point is a place in a chain that is likely to have been noted elsewhere: the
// hash of a change of the session's state.
type Point struct {
	Count int64  `json:"count"`
	Head  string `json:"head"` // hexadecimal
}

// Anchor is what somebody outside of the database noted: that a session's first
// Count events ended in a hash.
type Anchor struct {
	Session string
	Count   int64
	Head    string // hexadecimal
	From    string // where it was noted, for people
	own     bool   // from the same place as the chain: it proves nothing
}

// Source gives a session's events in the order of their numbers, whatever
// these are. It is called up to twice and stops at the first error of yield.
type Source func(yield func(Event) error) error

// Result is what a check found of a chain that is whole.
type Result struct {
	Count   int64
	Head    []byte
	Points  []Point
	Removed *Removed // events up to its Count could not be looked at
	Met     int      // anchors that fit
	Unknown int      // anchors among the removed events that nothing is kept of
}

// Check reads a session's events once, in bounded memory, and once more if they
// are not as they were recorded, to say what was done to them. The error is a
// *Broken, or one of the source. Anchors of other sessions are left out.
func Check(r Record, anchors []Anchor, events Source) (Result, error) {
	c := checker{record: r}
	if r.Removed == nil {
		c.state = firstState
	}
	for _, a := range anchors {
		if a.Session == r.Session || a.Session == "" {
			c.anchors = append(c.anchors, a)
		}
	}
	if p := r.Receipt; p != nil {
		c.anchors = append(c.anchors, Anchor{Session: r.Session, Count: p.Count, Head: p.Head, From: "the session's own receipt", own: true})
	}
	slices.SortStableFunc(c.anchors, func(a, b Anchor) int { return cmp.Compare(a.Count, b.Count) })
	if err := c.begin(); err != nil {
		return Result{}, err
	}
	err := events(c.event)
	if err == nil {
		err = c.end()
	}
	var at *misfit
	if errors.As(err, &at) {
		err = c.explain(at, events)
	}
	c.found.Count, c.found.Head, c.found.Removed = c.seq, c.prev, r.Removed
	return c.found, err
}

// KindState is the kind of the events that change a session's state.
const KindState = "state"

// firstState is the state a session is created in.
const firstState = "queued"

func stateOf(data []byte) string {
	var s struct{ To string }
	_ = json.Unmarshal(data, &s) // one that is not understood fits no state
	return s.To
}

// checker follows a chain. prev is the hash of event seq.
type checker struct {
	record  Record
	anchors []Anchor // those that come, by count
	found   Result
	seq     int64
	prev    []byte
	state   string // of the last change of state
}

func (c *checker) broken(format string, args ...any) error {
	return &Broken{Session: c.record.Session, Words: fmt.Sprintf(format, args...)}
}

// misfit is an event that does not continue the chain after event seq.
type misfit struct {
	Event
	data  []byte // canonical, nil if it has none
	after int64
	prev  []byte
}

func (m *misfit) Error() string { return fmt.Sprintf("event %d does not continue the chain", m.Seq) }

func (c *checker) begin() error {
	if len(c.anchors) > 0 && c.anchors[0].Count < 1 {
		return c.broken("%s names %d events", c.anchors[0].From, c.anchors[0].Count)
	}
	gone := c.record.Removed
	if gone == nil {
		return nil
	}
	if err := c.removal(gone); err != nil {
		return err
	}
	for len(c.anchors) > 0 && c.anchors[0].Count < gone.Count {
		a := c.anchors[0]
		c.anchors = c.anchors[1:]
		i := slices.IndexFunc(gone.Points, func(p Point) bool { return p.Count == a.Count })
		switch {
		case i >= 0 && gone.Points[i].Head != a.Head:
			return c.misses(a)
		case a.own:
		case i < 0:
			c.found.Unknown++
		default:
			c.found.Met++
		}
	}
	c.seq, c.prev = gone.Count, gone.Head
	return c.anchor()
}

// removal finds out whether the removal of old events can have left what is
// said of it. It cannot find out whether it did.
func (c *checker) removal(r *Removed) error {
	last := Point{Count: r.Count, Head: hex.EncodeToString(r.Head)}
	switch {
	case r.Count < 1 || r.Keep < MinKeep || r.Ended.IsZero() || r.At.Before(r.Ended.Add(r.Keep)):
		return c.broken("its events were removed on %s, before they were old enough", day(r.At))
	case r.Count == c.record.Count && !bytes.Equal(r.Head, c.record.Head):
		return c.broken("event %d, the last that was removed, is not the one that the session's row names", r.Count)
	case len(r.Points) == 0:
		return c.broken("of the events that were removed on %s no change of state is kept, and the session had ended: they were not removed for their age", day(r.At))
	case slices.ContainsFunc(r.Points, func(p Point) bool {
		return p.Count < 1 || p.Count > last.Count || p.Count == last.Count && p != last
	}):
		return c.broken("what is kept of the events that were removed on %s does not fit together", day(r.At))
	}
	return nil
}

// anchor compares what was noted of the events so far.
func (c *checker) anchor() error {
	for len(c.anchors) > 0 && c.anchors[0].Count == c.seq {
		if hex.EncodeToString(c.prev) != c.anchors[0].Head {
			return c.misses(c.anchors[0])
		}
		if !c.anchors[0].own {
			c.found.Met++
		}
		c.anchors = c.anchors[1:]
	}
	return nil
}

func (c *checker) misses(a Anchor) error {
	return c.broken("the first %d events are not those of %s: events were changed, removed or reordered, and the hashes made to fit", a.Count, a.From)
}

func (c *checker) event(e Event) error {
	if gone := c.record.Removed; gone != nil && e.Seq >= 1 && e.Seq <= gone.Count {
		return nil // its removal is under way
	}
	data, exact, err := canonical(e.Data, asIs)
	if err != nil {
		data = nil
	}
	m := &misfit{Event: e, data: data, after: c.seq, prev: c.prev}
	if e.Session != c.record.Session || e.Seq != c.seq+1 || data == nil {
		return m
	}
	if !fits(e, c.prev, e.Seq, data) {
		return m
	}
	if !exact {
		return c.broken("event %d was changed: a number in it is not written as it was recorded", e.Seq)
	}
	c.seq, c.prev = e.Seq, e.Hash
	if c.seq == c.record.Count && !bytes.Equal(c.prev, c.record.Head) {
		return c.broken("event %d, the last, is not the one that the session's row names: the last events or the row were changed", c.seq)
	}
	if e.Kind == KindState {
		c.state = stateOf(data)
		c.found.Points = append(c.found.Points, Point{Count: c.seq, Head: hex.EncodeToString(c.prev)})
	}
	return c.anchor()
}

func (c *checker) end() error {
	switch {
	case len(c.anchors) > 0 && c.anchors[len(c.anchors)-1].Count > c.seq:
		a := c.anchors[len(c.anchors)-1]
		return c.broken("it was cut off after event %d: %s names %d events", c.seq, a.From, a.Count)
	case c.seq < c.record.Count:
		return c.broken("it was cut off after event %d: %d events were recorded", c.seq, c.record.Count)
	case c.seq > c.record.Count:
		return c.broken("the session's row counts %d events and there are %d: %s were added, or the row was changed", c.record.Count, c.seq, events(c.record.Count+1, c.seq))
	case c.state != "" && c.record.State != "" && c.state != c.record.State:
		return c.broken("the session's row says that it is %q, its last recorded state is %q", c.record.State, c.state)
	}
	return nil
}

// maxRemoved is how many events may have been taken out for the later ones to
// be recognised by their new numbers.
const maxRemoved = 1000

// explain looks at all events once more for what became of the one that is
// missing, and where the one that does not fit was before.
func (c *checker) explain(m *misfit, source Source) error {
	next := m.after + 1
	var (
		was  int64  // the number the misfit was recorded with
		at   int64  // the number the missing event has now
		gone int64  // how many events were taken out before those that follow
		prev []byte // stored hash of the event before, from the misfit on
	)
	try := func(prev []byte, seq int64) {
		if was == 0 && m.data != nil && fits(m.Event, prev, seq, m.data) {
			was = seq
		}
	}
	try(nil, 1)
	err := source(func(e Event) error {
		// Behind an event in its old place, and behind one that changed places with it.
		try(e.Hash, e.Seq+1)
		try(e.Hash, e.Seq)
		data, _, err := canonical(e.Data, asIs)
		if err != nil || e.Session != c.record.Session {
			return nil
		}
		if at == 0 && (e.Seq < 1 || e.Seq > m.after) && fits(e, m.prev, next, data) {
			at = e.Seq
		}
		if e.Seq == m.Seq+1 && prev != nil {
			for n := int64(1); n <= maxRemoved && gone == 0; n++ {
				if fits(e, prev, e.Seq+n, data) {
					gone = n
				}
			}
		}
		if prev = nil; e.Seq == m.Seq {
			prev = e.Hash
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case m.Session != c.record.Session:
		return c.broken("an event of session %.20q stands in place %d", m.Session, next)
	case was != 0 && was < next:
		return c.broken("a row was put in before event %d, which stands in place %d", was, m.Seq)
	case was != 0 && at != 0:
		return c.broken("events were reordered: event %d stands in place %d, event %d in place %d", was, m.Seq, next, at)
	case was != 0 && was != m.Seq:
		return c.broken("events were reordered: event %d stands in place %d, and event %d is missing", was, m.Seq, next)
	case at == next:
		return c.broken("a row with the number %d was added", m.Seq)
	case at != 0 && m.Seq == next:
		return c.broken("a row was put in as event %d, which stands in place %d", next, at)
	case at != 0:
		return c.broken("events were reordered: event %d stands in place %d", next, at)
	case m.Seq < 1 || next > c.record.Count:
		return c.broken("a row with the number %d was added", m.Seq)
	case m.Seq > next:
		return c.broken("%s missing", are(next, m.Seq-1))
	case gone != 0:
		return c.broken("%s missing, and those after were renumbered", are(next, next+gone-1))
	case m.data == nil:
		return c.broken("event %d was changed: its data cannot be read", m.Seq)
	}
	return c.broken("event %d was changed, or is not of this session: it does not fit its hash", m.Seq)
}

// fits tells whether an event was recorded as event seq after prev.
func fits(e Event, prev []byte, seq int64, data []byte) bool {
	hash, err := e.hash(prev, seq, data)
	return err == nil && bytes.Equal(hash, e.Hash)
}

// events names the events from first to last.
func events(first, last int64) string {
	if first == last {
		return fmt.Sprintf("event %d", first)
	}
	return fmt.Sprintf("events %d to %d", first, last)
}

func are(first, last int64) string {
	if first == last {
		return events(first, last) + " is"
	}
	return events(first, last) + " are"
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
