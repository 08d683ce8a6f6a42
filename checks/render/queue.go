package render

import (
	"fmt"
	"strings"
	"time"
)

// Waiting is what a session in the queue waits for. Zero values are left out.
type Waiting struct {
	Reason       string // plain text; empty: it does not wait
	Position, Of int    // in the queue, from 1
	Since        time.Time
	Now          time.Time
}

// building are the reasons that tell how long it goes on.
var building = []string{"building the snapshot", "building a snapshot of the session's own commit"}

// String is such as "limit 4 of octocat/shop reached (position 3 of 12, since
// 12:03 UTC)". It changes by itself at most once a minute, after the first.
func (w Waiting) String() string {
	words, notes := w.Reason, []string(nil)
	if words == "" {
		return ""
	}
	if w.Position > 0 && w.Of >= w.Position {
		notes = append(notes, fmt.Sprintf("position %d of %d", w.Position, w.Of))
	}
	if !w.Since.IsZero() {
		since := "since " + moment(w.Since, w.Now)
		for _, b := range building {
			if rest, ok := strings.CutPrefix(words, b); ok {
				words, since = b+", "+elapsed(w.Now.Sub(w.Since))+rest, ""
				break
			}
		}
		if since != "" {
			notes = append(notes, since)
		}
	}
	if len(notes) == 0 {
		return words
	}
	return words + " (" + strings.Join(notes, ", ") + ")"
}

// moment is a time of day, with its date if that is not today.
func moment(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04 UTC")
	}
	return t.Format("2006-01-02 15:04 UTC")
}

func elapsed(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
}
