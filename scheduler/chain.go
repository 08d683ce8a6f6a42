package scheduler

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"inspect/storage"
)

// The events of a session form a chain: each row's hash is the SHA-256 of the
// hash before it (nothing, for the first) followed by the row's canonical
// content. Whoever knows the last hash and the count can tell whether any row
// was changed, removed or put in between.

// canonical is the content of one event as it is hashed: a JSON array of
// session, sequence number, generation, the runner's number (null for our own),
// kind, microseconds since 1970 and the data with sorted keys. Data must have
// come from canonicalData.
func canonical(session string, seq int64, generation int32, number sql.NullInt64, kind string, at time.Time, data json.RawMessage) ([]byte, error) {
	var n any
	if number.Valid {
		n = number.Int64
	}
	return json.Marshal([]any{session, seq, generation, n, kind, at.UnixMicro(), data})
}

func chainHash(prev, content []byte) []byte {
	h := sha256.New()
	h.Write(prev)
	h.Write(content)
	return h.Sum(nil)
}

// canonicalData brings a JSON value into the one form that survives being
// stored as jsonb: keys sorted, numbers as float64 prints them, no NUL
// characters, which Postgres cannot hold.
func canonicalData(raw []byte) (json.RawMessage, error) {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	v, err := clean(v, 0)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// maxDepth of an event's data; ours have three levels.
const maxDepth = 16

func clean(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("nested too deeply")
	}
	var err error
	switch x := v.(type) {
	case string:
		return strings.ReplaceAll(x, "\x00", "\uFFFD"), nil
	case []any:
		for i := range x {
			if x[i], err = clean(x[i], depth+1); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k, e := range x {
			c, err := clean(e, depth+1)
			if err != nil {
				return nil, err
			}
			if ck := strings.ReplaceAll(k, "\x00", "\uFFFD"); ck != k {
				delete(x, k)
				k = ck
			}
			x[k] = c
		}
	}
	return v, nil
}

// newEvent is an event about to be appended.
type newEvent struct {
	generation int32
	number     sql.NullInt64
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
	if raw, err = canonicalData(raw); err != nil {
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
	for _, e := range events {
		at := e.at.UTC().Truncate(time.Microsecond) // what Postgres keeps
		seq := s.EventsCount + 1
		content, err := canonical(s.ID, seq, e.generation, e.number, e.kind, at, e.data)
		if err != nil {
			return fmt.Errorf("recording an event: %w", err)
		}
		hash := chainHash(s.EventsHead, content)
		if err := q.InsertEvent(ctx, storage.InsertEventParams{
			SessionID: s.ID, Seq: seq, Generation: e.generation, Number: e.number,
			Kind: e.kind, Data: e.data, At: at, Hash: hash,
		}); err != nil {
			return fmt.Errorf("recording an event: %w", err)
		}
		s.EventsCount, s.EventsHead = seq, hash
	}
	err := q.SetEventsHead(ctx, storage.SetEventsHeadParams{ID: s.ID, EventsCount: s.EventsCount, EventsHead: s.EventsHead})
	if err != nil {
		return fmt.Errorf("recording an event: %w", err)
	}
	return nil
}

// ErrChain is wrapped by every way in which a chain of events can be broken.
var ErrChain = errors.New("the record of events has been changed")

// VerifyEvents reads all events of a session and checks their chain against
// the session's row. If count is not 0, the hash after that many events must
// be head (as in a Receipt); more may have been added since.
func VerifyEvents(ctx context.Context, q *storage.Queries, session string, head string, count int64) error {
	s, err := q.GetSession(ctx, session)
	if err != nil {
		return fmt.Errorf("reading session %s: %w", session, err)
	}
	var prev []byte
	var seq int64
	for {
		page, err := q.EventsAfter(ctx, storage.EventsAfterParams{SessionID: session, Seq: seq, Limit: 1000})
		if err != nil {
			return fmt.Errorf("reading the events of session %s: %w", session, err)
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			seq++
			if e.Seq != seq {
				return fmt.Errorf("event %d of session %s is missing: %w", seq, session, ErrChain)
			}
			data, err := canonicalData(e.Data)
			if err != nil {
				return fmt.Errorf("event %d of session %s cannot be read: %w", seq, session, ErrChain)
			}
			content, err := canonical(session, e.Seq, e.Generation, e.Number, e.Kind, e.At, data)
			if err != nil {
				return err
			}
			prev = chainHash(prev, content)
			if !bytes.Equal(prev, e.Hash) {
				return fmt.Errorf("event %d of session %s does not fit the hash it was stored with: %w", seq, session, ErrChain)
			}
			if seq == s.EventsCount && !bytes.Equal(prev, s.EventsHead) {
				return fmt.Errorf("the last of %d events of session %s is not the one that was recorded: %w", seq, session, ErrChain)
			}
			if seq == count && hex.EncodeToString(prev) != head {
				return fmt.Errorf("the first %d events of session %s are not those of the receipt: %w", count, session, ErrChain)
			}
		}
	}
	if seq < s.EventsCount || seq < count {
		return fmt.Errorf("session %s has %d events, but %d were recorded: %w", session, seq, max(s.EventsCount, count), ErrChain)
	}
	return nil
}
