package audit

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxAnchorFile bounds a file of anchors: a year of log lines.
const maxAnchorFile = 1 << 30

// ReadAnchors reads what was noted of chains outside of the database: the
// manifest of a session's evidence, a receipt, or JSON lines of the process
// log, among which only those about an end count. from names the file.
func ReadAnchors(r io.Reader, from string) ([]Anchor, error) {
	d := json.NewDecoder(io.LimitReader(r, maxAnchorFile))
	var out []Anchor
	for {
		var in map[string]json.RawMessage // a line of the log may be about anything
		err := d.Decode(&in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s is neither a receipt, a manifest nor lines of the log in JSON: %w", from, err)
		}
		var manifest Point
		a := Anchor{From: from}
		for key, into := range map[string]any{"session": &a.Session, "events_count": &a.Count, "events_head": &a.Head, "events": &manifest} {
			if raw, ok := in[key]; ok && json.Unmarshal(raw, into) != nil && key == "session" {
				a.Session = "?" // of none of ours
			}
		}
		if a.Head == "" {
			a.Count, a.Head = manifest.Count, manifest.Head
		}
		if a.Head == "" {
			continue
		}
		if err := a.Valid(); err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		out = append(out, a)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s names no head of a chain of events", from)
	}
	return out, nil
}

// Valid tells whether the anchor can be compared with a chain.
func (a Anchor) Valid() error {
	raw, err := hex.DecodeString(a.Head)
	if err != nil || len(raw) != 32 || hex.EncodeToString(raw) != a.Head {
		return fmt.Errorf("%.80q is no hash of an event: expected 64 hexadecimal digits in lower case", a.Head)
	}
	if a.Count < 1 {
		return fmt.Errorf("expected a number of events of 1 or more, but found %d", a.Count)
	}
	return nil
}
