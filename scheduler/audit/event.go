// Package audit is the record of a session's events as a chain: the form in
// which an event is hashed, the check of a chain against what is known of it
// elsewhere, and the file in which chains leave the database. It reads no
// database itself and believes nothing that it is given to check.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Event is one event of a session. Each event's hash is the SHA-256 of the hash
// before it (nothing, for the first) followed by the event's content: a JSON
// array of session, sequence number, generation, the runner's number (null for
// our own), kind, microseconds since 1970 and the data in canonical form.
// Whoever knows the last hash and the count can tell whether any event was
// changed, removed or put in between.
type Event struct {
	Session    string
	Seq        int64
	Generation int32
	Number     *int64 // the runner's
	Kind       string
	At         time.Time // whole microseconds: what Postgres keeps
	Data       json.RawMessage
	Hash       []byte
}

// hash is what the event's hash must be as event seq after prev.
func (e Event) hash(prev []byte, seq int64, data json.RawMessage) ([]byte, error) {
	content, err := json.Marshal([]any{e.Session, seq, e.Generation, e.Number, e.Kind, e.At.UnixMicro(), data})
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	h.Write(prev)
	h.Write(content)
	return h.Sum(nil), nil
}

// Seal sets the hash of an event whose data came from Canonical.
func (e *Event) Seal(prev []byte) (err error) {
	e.At = e.At.UTC().Truncate(time.Microsecond)
	e.Hash, err = e.hash(prev, e.Seq, e.Data)
	return err
}

// Canonical brings a JSON value into the one form that survives being stored
// as jsonb: keys sorted, whole numbers digit by digit, others as float64 prints
// them, no NUL characters, which Postgres cannot hold.
func Canonical(raw []byte) (json.RawMessage, error) {
	return CanonicalTexts(raw, asIs)
}

func asIs(s string) string { return s }

// CanonicalTexts is the canonical form of a value whose texts, keys aside, went
// through a function.
func CanonicalTexts(raw []byte, text func(string) string) (json.RawMessage, error) {
	data, _, err := canonical(raw, text)
	return data, err
}

// canonical also tells whether the numbers of raw are canonical, or written as
// Postgres writes canonical ones. If not, they were written by somebody else:
// the canonical form of 1.0 is that of 1.
func canonical(raw []byte, text func(string) string) (data json.RawMessage, exact bool, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, false, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, false, errors.New("more than one value")
	}
	c := cleaner{text: text, exact: true}
	if v, err = c.clean(v, 0); err != nil {
		return nil, false, err
	}
	data, err = json.Marshal(v)
	return data, c.exact, err
}

// maxDepth of an event's data; ours have three levels.
const maxDepth = 16

type cleaner struct {
	text  func(string) string
	exact bool
}

func (c *cleaner) clean(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("nested too deeply")
	}
	var err error
	switch x := v.(type) {
	case string:
		return strings.ReplaceAll(c.text(x), "\x00", "\uFFFD"), nil
	case json.Number:
		return c.number(x)
	case []any:
		for i := range x {
			if x[i], err = c.clean(x[i], depth+1); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			ck := strings.ReplaceAll(k, "\x00", "\uFFFD")
			if _, twice := x[ck]; twice && ck != k {
				return nil, errors.New("two keys that cannot be told apart")
			}
			if out[ck], err = c.clean(e, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

// maxWhole is the length up to which a whole number is kept as it is; longer
// ones, which float64 prints with an exponent, are not.
const maxWhole = 21

func (c *cleaner) number(n json.Number) (any, error) {
	s := n.String()
	digits := strings.TrimPrefix(s, "-")
	if !strings.ContainsAny(s, ".eE") && len(digits) <= maxWhole {
		if digits == "0" {
			c.exact = c.exact && s == "0"
			return json.Number("0"), nil // jsonb knows no -0
		}
		return n, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fmt.Errorf("the number %.40s cannot be kept", s)
	}
	if f == 0 {
		f = 0 // not -0
	}
	if strconv.FormatFloat(f, 'f', -1, 64) != s {
		written, err := json.Marshal(f)
		c.exact = c.exact && err == nil && string(written) == s
	}
	return f, nil
}
