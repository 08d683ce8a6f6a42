package render

import (
	"testing"
	"time"
)

func TestWaiting(t *testing.T) {
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.FixedZone("", 3600))
	for want, w := range map[string]Waiting{
		"":                    {Position: 1, Of: 2, Since: now, Now: now},
		"no node with 32 GiB": {Reason: "no node with 32 GiB"},
		"limit 4 of octocat/shop reached (position 3 of 12, since 10:57 UTC)": {
			Reason: "limit 4 of octocat/shop reached", Position: 3, Of: 12, Since: now.Add(-3 * time.Minute), Now: now},
		"all 4 slots are taken (since 2026-03-01 10:59 UTC)": {
			Reason: "all 4 slots are taken", Position: 3, Of: 2, Since: now.Add(-24*time.Hour - time.Minute), Now: now},
		"building the snapshot, 40 s (position 1 of 1)": {
			Reason: "building the snapshot", Position: 1, Of: 1, Since: now.Add(-40 * time.Second), Now: now},
		"building the snapshot, 5 min: the one there is old": {
			Reason: "building the snapshot: the one there is old", Since: now.Add(-5*time.Minute - 59*time.Second), Now: now},
		"building a snapshot of the session's own commit, 1 h 1 min": {
			Reason: "building a snapshot of the session's own commit", Since: now.Add(-61 * time.Minute), Now: now},
		"building the snapshot, 0 s": {Reason: "building the snapshot", Since: now.Add(time.Second), Now: now},
	} {
		if got := w.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
