package scheduler

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"inspect/scheduler/audit"
	"inspect/storage"
)

// newEvent is an event about to be appended to a session's chain, see package
// audit.
type newEvent struct {
	generation int32
	number     sql.NullInt64 // the runner's; null for our own events
	kind       string
	data       json.RawMessage // canonical
	at         time.Time
}

// ownEvent is an event of the control plane itself.
func ownEvent(generation int32, kind string, at time.Time, data any) (newEvent, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return newEvent{}, err
	}
	if raw, err = audit.Canonical(raw); err != nil {
		return newEvent{}, err
	}
	return newEvent{generation: generation, kind: kind, data: raw, at: at}, nil
}

// appendEvents adds events to a session's chain. The session's row must be
// locked by the transaction, and its count and head be those in s.
func appendEvents(ctx context.Context, q *storage.Queries, s *storage.Session, events ...newEvent) error {
	if len(events) == 0 {
		return nil
	}
	// One statement for all: a runner sends up to a thousand, and what it sends waits.
	rows := make([]eventRow, 0, len(events))
	for _, n := range events {
		e := audit.Event{
			Session: s.ID, Seq: s.EventsCount + 1, Generation: n.generation, Number: numberOf(n.number), Kind: n.kind, At: n.at, Data: n.data,
		}
		if err := e.Seal(s.EventsHead); err != nil {
			return fmt.Errorf("recording an event: %w", err)
		}
		rows = append(rows, eventRow{e.Seq, e.Generation, numberOf(n.number), e.Kind, e.Data, e.At, hex.EncodeToString(e.Hash)})
		s.EventsCount, s.EventsHead = e.Seq, e.Hash
	}
	body, err := json.Marshal(rows)
	if err == nil {
		err = q.InsertEvents(ctx, storage.InsertEventsParams{SessionID: s.ID, Events: body})
	}
	if err != nil {
		return fmt.Errorf("recording events: %w", err)
	}
	err = q.SetEventsHead(ctx, storage.SetEventsHeadParams{ID: s.ID, EventsCount: s.EventsCount, EventsHead: s.EventsHead})
	if err != nil {
		return fmt.Errorf("recording an event: %w", err)
	}
	return nil
}

// eventRow is an event as InsertEvents takes it.
type eventRow struct {
	Seq        int64           `json:"seq"`
	Generation int32           `json:"generation"`
	Number     *int64          `json:"number"`
	Kind       string          `json:"kind"`
	Data       json.RawMessage `json:"data"`
	At         time.Time       `json:"at"`
	Hash       string          `json:"hash"` // hexadecimal
}

func numberOf(n sql.NullInt64) *int64 {
	if !n.Valid {
		return nil
	}
	return &n.Int64
}

// Record adds an event of the control plane to a session's chain, also after
// the session's end.
func (s *Scheduler) Record(ctx context.Context, session, kind string, data any) error {
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		row, err := tx.Q().LockSession(ctx, session)
		if err != nil {
			return err
		}
		e, err := ownEvent(row.Generation, kind, s.clock.Now(), data)
		if err != nil {
			return err
		}
		return appendEvents(ctx, tx.Q(), &row, e)
	})
	if err != nil {
		return fmt.Errorf("recording an event of session %s: %w", session, err)
	}
	return nil
}

// Chain is a session's record as it is in the database: what is kept beside its
// events, and the events. While sessions go on, both must be read in one
// transaction (storage.DB.InReadTx).
func Chain(ctx context.Context, q *storage.Queries, session string) (audit.Session, audit.Source, error) {
	row, err := q.AuditSession(ctx, session)
	if err != nil {
		return audit.Session{}, nil, fmt.Errorf("reading session %s: %w", session, err)
	}
	s := audit.Session{
		Record:     audit.Record{Session: row.ID, State: string(row.State), Count: row.EventsCount, Head: row.EventsHead, Receipt: audit.PointOf(row.Receipt.RawMessage)},
		Repository: row.Owner + "/" + row.Name, Reason: row.Reason, Created: row.CreatedAt, Receipt: row.Receipt.RawMessage,
	}
	if row.RemovedCount.Valid {
		s.Removed = &audit.Removed{
			Count: row.RemovedCount.Int64, Head: row.RemovedHead, At: row.RemovedAt.Time, Ended: row.FinishedAt.Time,
			Keep: time.Duration(row.RemovedKeep.Int64) * time.Second,
		}
		if err := json.Unmarshal(row.RemovedPoints.RawMessage, &s.Removed.Points); err != nil {
			return s, nil, fmt.Errorf("reading what is left of the events of session %s: %w", session, err)
		}
	}
	return s, func(yield func(audit.Event) error) error {
		for first := int64(math.MinInt64); ; {
			page, err := q.AuditEvents(ctx, storage.AuditEventsParams{SessionID: session, First: first, AtMost: eventsPage})
			if err != nil {
				return fmt.Errorf("reading the events of session %s: %w", session, err)
			}
			for _, e := range page {
				if err := yield(audit.Event{
					Session: session, Seq: e.Seq, Generation: e.Generation, Number: numberOf(e.Number), Kind: e.Kind, At: e.At, Data: e.Data, Hash: e.Hash,
				}); err != nil {
					return err
				}
			}
			if len(page) < eventsPage || page[len(page)-1].Seq == math.MaxInt64 {
				return nil
			}
			first = page[len(page)-1].Seq + 1
		}
	}, nil
}

// eventsPage is how many events are read at once; each has up to 64 KiB.
const eventsPage = 200

// CheckChain checks a session's events against its row and what was noted
// elsewhere. The error wraps audit.ErrBroken if they are not what was recorded.
func CheckChain(ctx context.Context, q *storage.Queries, session string, anchors []audit.Anchor) (audit.Session, audit.Result, error) {
	s, events, err := Chain(ctx, q, session)
	if err != nil {
		return s, audit.Result{}, err
	}
	found, err := audit.Check(s.Record, anchors, events)
	return s, found, err
}
