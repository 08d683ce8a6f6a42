package tally_test

import (
	"bytes"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"inspect/app/measure"
	"inspect/app/tally"
)

// A report of many sessions takes what it takes to read a line of each, and no more
// memory for a long time than for ten days.
func TestReportOfManySessions(t *testing.T) {
	const n = 20_000
	s := newSet(t)
	s.sql(`INSERT INTO repositories (id, installation_id, owner, name) SELECT 1000 + i, 1, 'octocat', 'r' || i FROM generate_series(0, 199) i`)
	s.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, deadline, generation, state, reason, pull_request, finished_at, reported_at)
		SELECT 's' || i, 1, 1000 + i % 200, i, 's' || i, 3, 'person-' || i % 2000, '', '', repeat('x', 2000), 'main', '', 'env', jsonb_build_object('harness', jsonb_build_object('kind', 'opencode', 'model', 'm/' || i % 7)), '', now(), 1,
		(ARRAY['delivered', 'failed', 'no_change', 'stopped', 'timed_out'])[1 + i % 5]::session_state, 'r' || i % 11, CASE WHEN i % 5 = 0 THEN i ELSE 0 END, '2026-03-01Z'::timestamptz + i * interval '100 seconds', now() FROM generate_series(1, $1::int) i`, n)
	s.sql(`INSERT INTO session_sums (session_id, finished_at, harness, model, attempts, ready, restore, stale, sandbox_seconds, unpriced, cost, tools)
		SELECT id, finished_at, 'opencode', spec->'harness'->>'model', 1, '[1500000000]', '[80000000]', false, 300, 0, 250000000, 40 FROM sessions WHERE id ~ '^s[0-9]'`)
	s.sql(`INSERT INTO pulls (repository_id, number, paths) SELECT repository_id, pull_request, '["a.go","b/c.go"]' FROM sessions WHERE pull_request > 0 ON CONFLICT DO NOTHING`)
	s.sql(`INSERT INTO session_outcomes (session_id, pull_request, opened, opened_at, merged_at, review_seconds, fixes, updated_at)
		SELECT id, pull_request, true, finished_at, finished_at + interval '1 hour', 120, 0, now() FROM sessions WHERE pull_request > 0 ON CONFLICT DO NOTHING`)
	s.sql(`ANALYZE`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := time.Now()
	adder, seen := measure.NewAdder(begin, end, measure.Filter{}, measure.Bys), 0
	err := tally.Each(t.Context(), s.db.Q(), tally.Period{Since: begin.AddDate(-50, 0, 0), Until: end, Everywhere: true}, func(e *measure.Ended) {
		adder.Add(e)
		seen++
	})
	if err != nil {
		t.Fatal(err)
	}
	read := time.Since(begun)
	r := adder.Report()
	var b bytes.Buffer
	if err := r.CSV(&b); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	runtime.ReadMemStats(&after)
	t.Logf("%d sessions of %d read in %s; the report with %d parts and its CSV of %d bytes after %s; %d MiB allocated", seen, n, read, len(r.Parts), b.Len(), took, (after.TotalAlloc-before.TotalAlloc)>>20)
	if got := *r.Total.Get("sessions").Value; int(got) != seen || seen < n {
		t.Errorf("%v of %d are counted", got, n)
	}
	// What was summed up is not read: the figures of a session are computed for those
	// alone that were not.
	var plan []byte
	if err := s.db.SQL().QueryRow("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+query(t), begin, end, true, "").Scan(&plan); err != nil {
		t.Fatal(err)
	}
	read1 := regexp.MustCompile(`"Relation Name": "attempts",[^{}]*?"Actual Loops": (\d+)`).FindSubmatch(plan)
	if loops, err := strconv.Atoi(string(append(read1, nil, nil)[1])); err != nil || loops > 100 {
		t.Errorf("attempts are read %d times, %v, for the ten sessions that were not summed up: %.3000s", loops, err, plan)
	}
}

// query is the text of ReportSessions.
func query(t *testing.T) string {
	t.Helper()
	body, err := os.ReadFile("../../storage/report.sql.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(body), "const reportSessions = `")
	text, _, found := strings.Cut(rest, "`")
	if !found {
		t.Fatal("the query is not where it was")
	}
	return text
}
