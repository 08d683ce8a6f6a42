package tally_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inspect/app/measure"
	"inspect/app/tally"
	"inspect/storage"
)

func (s set) ended() map[string]measure.Ended {
	s.t.Helper()
	list, err := tally.Ended(s.t.Context(), s.db.Q(), tally.Period{Since: begin, Until: end, Everywhere: true})
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]measure.Ended{}
	for _, e := range list {
		out[e.Repository+" "+e.Requester+" "+e.Harness+" "+e.State+" "+e.Reason+e.At.String()+e.Outcome.Opened.String()+e.Merged.String()] = e
	}
	return out
}

func (s set) sum(before time.Time) int64 {
	s.t.Helper()
	n, err := s.db.Q().SumSessions(s.t.Context(), storage.SumSessionsParams{Before: before, AtMost: 100})
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// A report says the same of sessions that were summed up, and reads nothing else
// of them.
func TestSumsAreWhatIsReported(t *testing.T) {
	s := newSet(t)
	s.sql(`UPDATE sessions SET reported_at = finished_at`)
	s.sql(`INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, state, cost, input_tokens, started_at) VALUES ('refused', 1, 'm', true, 7, 0, 'open', 0, 0, now())`)
	want := s.ended()
	if n := s.sum(begin); n != 1 { // "before" alone
		t.Errorf("%d sessions ended before the period", n)
	}
	n := s.sum(end)
	var left []string
	rows, err := s.db.SQL().QueryContext(t.Context(), `SELECT id FROM sessions s WHERE finished_at < $1 AND NOT EXISTS (SELECT FROM session_sums z WHERE z.session_id = s.id) ORDER BY id`, end)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		left = append(left, id)
	}
	// A call that is not settled, and an attempt whose end nobody told.
	if d := cmp.Diff([]string{"refused", "stopped"}, left); d != "" || n == 0 {
		t.Errorf("summed up %d; not summed up: %s", n, d)
	}
	if s.sum(end) != 0 {
		t.Error("sessions are summed up twice")
	}
	if d := cmp.Diff(want, s.ended()); d != "" {
		t.Errorf("with sums: %s", d)
	}
	for _, table := range []string{"events", "model_calls", "attempts"} {
		s.sql(`DELETE FROM ` + table + ` WHERE session_id IN (SELECT session_id FROM session_sums)`)
	}
	if d := cmp.Diff(want, s.ended()); d != "" {
		t.Errorf("what was summed up is read anew: %s", d)
	}

	// A session that goes on has other figures at its next end.
	s.sql(`UPDATE sessions SET finished_at = '2026-03-20 10:00Z' WHERE id = 'merged'`)
	s.attempt("merged", 3, 5, "", "")
	check := func(when string) {
		t.Helper()
		for _, e := range s.ended() {
			if e.At.Day() == 20 && (e.Attempts != 1 || e.Cost != 0) {
				t.Errorf("%s: %+v", when, e)
			}
		}
	}
	check("before it is summed up anew")
	if n := s.sum(end); n != 1 {
		t.Errorf("%d are summed up anew", n)
	}
	check("summed up anew")
}
