package scheduler

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/scheduler/audit"
	"inspect/storage"
)

// maxEventsPerCall bounds one call; the runner sends the rest in the next.
const maxEventsPerCall = 1000

// AppendEvents adds a runner's events to its session's chain. Events that were
// sent before are skipped; events after a gap are left for a repetition, which
// the reply asks for. Too many and malformed ones are dropped and acknowledged,
// so that a runner's spool always drains, and the session says so once.
func (s *Scheduler) AppendEvents(ctx context.Context, r Runner, events []wire.Event) (wire.EventsReply, error) {
	var reply wire.EventsReply
	if len(events) > maxEventsPerCall {
		return reply, refuse(codeTooLarge, "at most %d events in one call", maxEventsPerCall)
	}
	if err := s.learn(ctx); err != nil {
		return reply, s.unavailable(ctx, err)
	}
	moved := false
	err := s.current(ctx, r, func(tx *storage.Tx, sess storage.Session, a storage.Attempt) error {
		moved = false // the transaction may be repeated
		in := intake{s: s, now: s.clock.Now(), sess: sess, a: a}
		for _, e := range events {
			if e.Number == in.a.Acked+1 {
				in.take(e)
			}
		}
		reply.Acked = in.a.Acked
		if Terminal(sess.State) {
			return nil // late words change nothing and are not kept
		}
		if err := appendEvents(ctx, tx.Q(), &in.sess, in.out...); err != nil {
			return err
		}
		if err := tx.Q().SetAttemptAcked(ctx, storage.SetAttemptAckedParams{
			SessionID: a.SessionID, Generation: a.Generation, Acked: in.a.Acked, Dropped: in.a.Dropped, Now: in.now,
		}); err != nil {
			return err
		}
		for _, turn := range in.unchanged {
			if err := unchangedTurn(ctx, tx.Q(), in.sess, a, turn, in.now); err != nil {
				return err
			}
		}
		if in.restore != nil {
			if err := tx.Q().SetAttemptRestore(ctx, storage.SetAttemptRestoreParams{
				SessionID: a.SessionID, Generation: a.Generation,
				Restore: pqtype.NullRawMessage{RawMessage: in.restore, Valid: true},
			}); err != nil {
				return err
			}
		}
		if in.drifted != nil {
			if err := tx.Q().SetAttemptDrifted(ctx, storage.SetAttemptDriftedParams{
				SessionID: a.SessionID, Generation: a.Generation,
				Drifted: pqtype.NullRawMessage{RawMessage: in.drifted, Valid: true},
			}); err != nil {
				return err
			}
		}
		if in.phase == "" || a.Outcome.Valid || !Allowed(sess.State, in.phase, Forward) {
			return nil
		}
		if _, err := s.applyLocked(ctx, tx, in.sess, change{to: in.phase}); err != nil {
			return err
		}
		moved = true
		return s.InsertReconcile(ctx, tx, sess.ID)
	})
	if err == nil && moved {
		s.log.Debug("a session reached a new phase", "session", r.Session)
	}
	return reply, err
}

// intake is the handling of one call's events.
type intake struct {
	s       *Scheduler
	now     time.Time
	sess    storage.Session
	a       storage.Attempt // acked and dropped are counted on
	out     []newEvent
	phase   State           // the furthest a phase event asked for
	restore json.RawMessage // of purpose work
	drifted json.RawMessage

	unchanged []wire.Turn // turns without a bundle
}

// take deals with the next event in order: it is kept or dropped, and acknowledged.
func (in *intake) take(e wire.Event) {
	in.a.Acked = e.Number
	data, err := in.read(e)
	if err != nil {
		in.drop("an event was malformed and dropped: " + err.Error())
		return
	}
	needed := vital(e.Kind, data)
	most := int64(wire.MaxEvents)
	if !needed {
		most -= keptForVital
	}
	if in.sess.EventsCount+int64(len(in.out)) >= most {
		in.drop(fmt.Sprintf("a session may have %d events; further ones are dropped", wire.MaxEvents))
		return
	}
	if !in.s.rates.allow(in.sess.ID, in.now) && !needed {
		in.drop(fmt.Sprintf("more than %d events a second; some are dropped", wire.MaxEventsPerSecond))
		return
	}
	in.out = append(in.out, newEvent{
		generation: in.a.Generation, number: sql.NullInt64{Int64: e.Number, Valid: true},
		kind: e.Kind, data: data, at: in.when(e.At),
	})
}

// maxDrifted bounds each list of a Drifted.
const maxDrifted = 100

// keptForVital is how many of a session's events are kept free of noise. A
// proxy lets at most 20,000 connections through.
const keptForVital = 50_000

// vital events are never dropped for noise that something inside made: where
// the attempt stands, and what went out.
func vital(kind string, data json.RawMessage) bool {
	switch kind {
	case wire.EventPhase, wire.EventRestore, wire.EventTurn, wire.EventUse, wire.EventDrift:
		return true
	case wire.EventEgress:
		var e wire.Egress
		return json.Unmarshal(data, &e) == nil && e.Allowed
	}
	return false
}

// drop counts a dropped event; the first one of an attempt leaves a note.
func (in *intake) drop(words string) {
	if in.a.Dropped++; in.a.Dropped == 1 {
		if e, err := ownEvent(in.a.Generation, wire.EventNote, in.now, wire.Note{Words: clip(words, 500)}); err == nil {
			in.out = append(in.out, e)
		}
	}
}

// when bounds a runner's idea of the time to the life of its attempt.
func (in *intake) when(at time.Time) time.Time {
	if at.Before(in.a.StartedAt.Add(-time.Minute)) || at.After(in.now.Add(time.Minute)) {
		return in.now
	}
	return at
}

var errKind = errors.New("its kind is not known")

// read brings an event's data into the form of its kind. Fields that the kind
// does not have are lost.
func (in *intake) read(e wire.Event) (json.RawMessage, error) {
	raw, err := json.Marshal(e.Data)
	if err != nil {
		return nil, errors.New("its data is not JSON")
	}
	if len(raw) > wire.MaxEventBytes {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(raw), wire.MaxEventBytes)
	}
	var typed any
	switch e.Kind {
	case wire.EventPhase:
		typed = new(wire.Phase)
	case wire.EventCommand:
		typed = new(wire.Command)
	case wire.EventOutput:
		typed = new(wire.Output)
	case wire.EventTurn:
		typed = new(wire.Turn)
	case wire.EventNote:
		typed = new(wire.Note)
	case wire.EventRestore:
		typed = new(wire.Restored)
	case wire.EventMessage:
		typed = new(wire.Message)
	case wire.EventTool:
		typed = new(wire.Tool)
	case wire.EventPrompt:
		typed = new(wire.Prompted)
	case wire.EventEgress:
		typed = new(wire.Egress)
	case wire.EventUse:
		typed = new(wire.EgressUse)
	case wire.EventService:
		typed = new(wire.ServiceState)
	case wire.EventDrift:
		typed = new(wire.Drifted)
	default:
		return nil, errKind
	}
	if err := json.Unmarshal(raw, typed); err != nil {
		return nil, errors.New("its data does not have the form of its kind")
	}
	data, err := audit.CanonicalTexts(encode(typed), in.s.o.Redactor.Known)
	if err != nil {
		return nil, errors.New("its data cannot be stored")
	}
	switch x := typed.(type) {
	case *wire.Phase:
		to, ok := phaseState(x.Phase)
		if !ok {
			return nil, errors.New("it names a phase that no runner can reach")
		}
		if in.phase == "" || Allowed(in.phase, to, Forward) {
			in.phase = to
		}
	case *wire.Turn:
		if x.SHA256 == "" && x.Turn > 0 && x.Turn <= maxTurn && objectName.MatchString(x.Tip) {
			in.unchanged = append(in.unchanged, *x)
		}
	case *wire.Restored:
		if x.Purpose == wire.PurposeWork {
			in.restore = data
		}
	case *wire.Drifted:
		if len(x.Manifests) > maxDrifted || len(x.Steps) > maxDrifted || len(x.Lockfiles) > maxDrifted {
			return nil, fmt.Errorf("it lists more than %d", maxDrifted)
		}
		in.drifted = data
	}
	return data, nil
}

// rates bounds each session's events to wire.MaxEventsPerSecond on average
// over ten seconds. It is kept in memory: a restart only forgets what was used.
type rates struct {
	mu sync.Mutex
	of map[string]*bucket
}

type bucket struct {
	left float64
	at   time.Time
}

const rateBurst = 10 * wire.MaxEventsPerSecond

func (r *rates) allow(session string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]*bucket{}
	}
	b, ok := r.of[session]
	if !ok {
		r.forget(now)
		b = &bucket{left: rateBurst, at: now}
		r.of[session] = b
	}
	if d := now.Sub(b.at); d > 0 {
		b.left = min(rateBurst, b.left+d.Seconds()*wire.MaxEventsPerSecond)
		b.at = now
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// forget drops buckets that are full again.
func (r *rates) forget(now time.Time) {
	for id, b := range r.of {
		if now.Sub(b.at) > time.Minute {
			delete(r.of, id)
		}
	}
}
