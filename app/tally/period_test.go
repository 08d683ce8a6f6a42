package tally_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"inspect/app/measure"
	"inspect/app/tally"
	"inspect/storage"
	"inspect/storage/storagetest"
)

var (
	begin = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	end   = time.Date(2026, 3, 31, 0, 0, 0, 0, time.UTC)
)

// set is sessions made by hand.
type set struct {
	t  *testing.T
	db *storage.DB
}

func (s set) sql(q string, args ...any) {
	s.t.Helper()
	if _, err := s.db.SQL().ExecContext(s.t.Context(), q, args...); err != nil {
		s.t.Fatalf("%s: %v", q, err)
	}
}

func (s set) session(id string, repository int, who, harness, state, reason, finished string) {
	s.t.Helper()
	s.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, deadline, generation, state, reason, finished_at)
		VALUES ($1, 1, $2, 1, $1, 3, $3, '', '', '', 'main', '', 'env', jsonb_build_object('harness', $4::jsonb), '', now(), 2, $5::text::session_state, $6, NULLIF($7, '')::timestamptz)`,
		id, repository, who, harness, state, reason, finished)
}

func (s set) attempt(id string, generation, minutes int, restore, outcome string) {
	s.t.Helper()
	s.sql(`INSERT INTO attempts (session_id, generation, engine, started_at, work_deadline, deadline, heartbeat_at, ended_at, restore, outcome)
		VALUES ($1, $2, 'local', '2026-03-10 10:00Z', now(), now(), now(), '2026-03-10 10:00Z'::timestamptz + $3 * interval '1 min', NULLIF($4, '')::jsonb, NULLIF($5, '')::jsonb)`,
		id, generation, minutes, restore, outcome)
}

func (s set) call(id string, cost int64, priced bool) {
	s.t.Helper()
	s.sql(`INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, state, cost, input_tokens, started_at) VALUES ($1, 1, 'm', $2, 0, 0, 'reported', $3, 5, now())`, id, priced, cost)
}

func (s set) tools(id string, n int) {
	s.t.Helper()
	s.sql(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash) SELECT $1, n, 1, 'tool', '{}', now(), '' FROM generate_series(1, $2::int) n`, id, n)
}

func (s set) pull(id string, number int, opened bool, openedAt, mergedAt, closedAt, revertedAt string, review, fixes int, paths string) {
	s.t.Helper()
	s.sql(`UPDATE sessions SET pull_request = $2 WHERE id = $1`, id, number)
	s.sql(`INSERT INTO pulls (repository_id, number, paths) SELECT repository_id, $2, NULLIF($3, '')::jsonb FROM sessions WHERE id = $1 ON CONFLICT DO NOTHING`, id, number, paths)
	s.sql(`INSERT INTO session_outcomes (session_id, pull_request, opened, opened_at, merged_at, closed_at, reverted_at, review_seconds, fixes, updated_at)
		VALUES ($1, $2, $3, NULLIF($4, '')::timestamptz, NULLIF($5, '')::timestamptz, NULLIF($6, '')::timestamptz, NULLIF($7, '')::timestamptz, $8, $9, now())`,
		id, number, opened, openedAt, mergedAt, closedAt, revertedAt, review, fixes)
}

func newSet(t *testing.T) set {
	s := set{t, storagetest.New(t)}
	s.sql(`INSERT INTO repositories (id, installation_id, owner, name) VALUES (7, 1, 'octocat', 'parcel'), (8, 1, 'octocat', 'vault')`)
	s.sql(`INSERT INTO environments (id, repository_id, config_digest, spec) VALUES ('env', 7, 'd', '{}')`)
	const at, openCode = "2026-03-10 10:30Z", `{"kind":"opencode","model":"m1"}`

	s.session("merged", 7, "monalisa", openCode, "delivered", "", at)
	s.attempt("merged", 1, 25, `{"duration":100000000}`, `{"times":{"ready":2000000000}}`)
	s.sql(`UPDATE attempts SET stopped_at = '2026-03-10 10:30Z'`) // five minutes after its end
	s.call("merged", 1_000_000_000, true)
	s.call("merged", 500_000_000, true)
	s.tools("merged", 3)
	s.pull("merged", 1, true, "2026-03-10 11:00Z", "2026-03-10 13:00Z", "", "", 1200, 1, `["main.go","main_test.go"]`)

	s.session("reverted", 7, "hubot", `{"kind":"claude","model":"m2"}`, "delivered", "", at)
	s.attempt("reverted", 1, 10, `{"duration":300000000}`, "")
	s.attempt("reverted", 2, 20, `{"duration":200000000}`, `{"times":{"ready":4000000000}}`)
	s.call("reverted", 500_000_000, true)
	s.tools("reverted", 1)
	s.pull("reverted", 2, true, "2026-03-10 11:00Z", "2026-03-10 15:00Z", "", "2026-03-11 15:00Z", 600, 0, `["go.mod",".github/workflows/ci.yml"]`)

	s.session("closed", 8, "monalisa", openCode, "delivered", "", at)
	s.call("closed", 700, true)
	s.call("closed", 0, false)
	s.tools("closed", 9)
	s.sql(`INSERT INTO events_removed (session_id, count, head, points, keep, removed_at) VALUES ('closed', 5, '', '[]', 1, now())`)
	s.pull("closed", 1, true, "2026-03-10 11:00Z", "", "2026-03-12 11:00Z", "", 600, 0, "")

	s.session("failed", 8, "monalisa", `{"kind":"command","label":"scripted"}`, "failed", "verify_failed", at)
	s.attempt("failed", 2, 10, "", `{"times":{"ready":-5}}`)
	s.sql(`UPDATE attempts SET taken = '{"stale":true}' WHERE session_id = 'failed'`)
	s.session("refused", 7, "monalisa", openCode, "infrastructure", "snapshot_refused", at)
	s.session("stopped", 7, "monalisa", `{"kind":"codex"}`, "stopped", "stopped", at)
	s.attempt("stopped", 1, 1, "", `{"times":{"ready":1000000000000000000}}`)
	s.sql(`UPDATE attempts SET ended_at = NULL WHERE session_id = 'stopped'`)
	s.session("nothing", 7, "monalisa", `{"kind":"codex"}`, "no_change", "", at)
	s.sql(`UPDATE sessions SET spec = '{}' WHERE id = 'nothing'`)

	s.session("further", 7, "monalisa", `{"kind":"codex"}`, "delivered", "", at)
	s.pull("further", 1, false, "2026-03-10 11:00Z", "2026-03-10 13:00Z", "", "", 0, 0, "")
	s.session("untold", 7, "monalisa", `{"kind":"codex"}`, "delivered", "", at)
	s.sql(`UPDATE sessions SET pull_request = 5 WHERE id = 'untold'`)
	s.session("unread", 7, "monalisa", `{"kind":"codex"}`, "delivered", "", "2026-03-30 23:59Z")
	s.pull("unread", 6, true, "", "2026-03-30 13:00Z", "", "", 0, 0, "")

	s.session("before", 7, "monalisa", openCode, "delivered", "", "2026-02-28 23:59Z")
	s.session("after", 7, "monalisa", openCode, "delivered", "", "2026-03-31 00:00Z")
	s.session("open", 7, "monalisa", openCode, "working", "", "")
	return s
}

// want holds figures as value, numerator, denominator; nil: not known.
func (s set) want(p measure.Part, want map[string][]float64) {
	s.t.Helper()
	close := func(got *float64, want float64) bool { return got != nil && math.Abs(*got-want) < 1e-9 }
	for key, w := range want {
		f := p.Get(key)
		switch {
		case len(w) == 0 && (f.Key == "" || f.Value != nil || f.Note == ""),
			len(w) > 0 && !close(f.Value, w[0]),
			len(w) == 3 && (!close(f.Numerator, w[1]) || !close(f.Denominator, w[2])):
			s.t.Errorf("%s of %q is %s (%s), want %v", key, p.Name, f.Text(), f.Made(), w)
		}
	}
}

func TestPeriod(t *testing.T) {
	s := newSet(t)
	all, err := tally.Ended(t.Context(), s.db.Q(), tally.Period{Since: begin, Until: end, Everywhere: true})
	if err != nil {
		t.Fatal(err)
	}
	r := measure.NewReport(begin, end, measure.Filter{}, measure.Bys, all)
	total := map[string][]float64{
		"sessions": {10}, "delivered": {0.6, 6, 10}, "no_change": {0.1, 1, 10}, "stopped": {0.1, 1, 10}, "failed": {0.2, 2, 10},
		"pull_requests": {4}, "merge_rate": {0.75, 3, 4}, "time_to_merge_p50": {7200}, "time_to_merge_p95": {14400},
		"review_minutes": {40}, "accepted": {0.5, 2, 4}, "accepted_per_review_minute": {0.05, 2, 40},
		"accepted_per_risk": {1.0 / 19, 1, 19}, // 3+1 of what stayed, 5+10 of what was reverted
		"reverted":          {1.0 / 3, 1, 3}, "escaped_defects": {1.0 / 3, 1, 3},
		"cost": {2}, "cost_per_merged": {1, 2, 2}, "sandbox_minutes": {70}, "tool_calls": {4}, "retries": {1}, "staleness_failures": {0.2, 2, 10},
		"cold_start_p50": {2}, "cold_start_p95": {4}, "restore_p50": {0.2}, "restore_p95": {0.3},
	}
	s.want(r.Total, total)
	if len(r.Total.Figures) != len(total) {
		t.Errorf("%d figures, %d of them are held", len(r.Total.Figures), len(total))
	}
	if got := fmt.Sprint(r.Total.Causes); got != "[failed: verify_failed infrastructure: snapshot_refused]" {
		t.Errorf("the causes are %s", got)
	}
	if got := fmt.Sprint(r.Days); got != "[{2026-03-10 9 5} {2026-03-30 1 1}]" {
		t.Errorf("the days are %s", got)
	}
	var names []string
	for _, p := range r.Parts {
		names = append(names, fmt.Sprintf("%s=%s %g", p.By, p.Called(), *p.Get("sessions").Value))
	}
	if got, want := fmt.Sprint(names), "[repository=octocat/parcel 8 repository=octocat/vault 2 harness=codex 4 harness=opencode 3 harness=(none known) 1 harness=claude 1 harness=scripted 1"+
		" model=(none known) 6 model=m1 3 model=m2 1 requester=monalisa 9 requester=hubot 1]"; got != want {
		t.Errorf("the parts are\n%s, want\n%s", got, want)
	}
	s.want(r.By(measure.ByRepository)[1], map[string][]float64{ // octocat/vault
		"sessions": {2}, "merge_rate": {0, 0, 1}, "review_minutes": {10}, "accepted_per_review_minute": {0, 0, 10},
		"time_to_merge_p50": nil, "accepted_per_risk": nil, "escaped_defects": nil, "cost": nil, "cost_per_merged": nil, "tool_calls": nil, "cold_start_p50": nil, "restore_p95": nil, "sandbox_minutes": {10},
	})
	s.want(r.By(measure.ByModel)[1], map[string][]float64{"cost": {1.5}, "cost_per_merged": {1.5, 1.5, 1}}) // m1: one has a call without a price
	only := measure.NewReport(begin, end, measure.Filter{Requester: "HUBOT", Harness: "claude", Model: "m2", Repository: "octocat/parcel"}, nil, all)
	s.want(only.Total, map[string][]float64{"sessions": {1}, "accepted": {0, 0, 1}, "accepted_per_risk": {0, 0, 15}})
}

func TestPeriodWithoutAnything(t *testing.T) {
	s := newSet(t)
	for what, p := range map[string]tally.Period{
		"an empty time":   {Since: end.AddDate(1, 0, 0), Until: end.AddDate(2, 0, 0), Everywhere: true},
		"no repository":   {Since: begin, Until: end},
		"a foreign place": {Since: begin, Until: end, Repositories: []int64{99}},
	} {
		all, err := tally.Ended(t.Context(), s.db.Q(), p)
		if err != nil || len(all) != 0 {
			t.Fatalf("%s: %d sessions, %v", what, len(all), err)
		}
		r := measure.NewReport(p.Since, p.Until, measure.Filter{}, measure.Bys, all)
		for _, f := range r.Total.Figures {
			if f.Key == "sessions" && *f.Value != 0 || f.Key != "sessions" && (f.Value != nil || f.Note == "") {
				t.Errorf("%s: %s is %s (%s)", what, f.Key, f.Text(), f.Note)
			}
		}
	}
	all, err := tally.Ended(t.Context(), s.db.Q(), tally.Period{Since: begin, Until: end, Repositories: []int64{8, 99}})
	if err != nil || len(all) != 2 {
		t.Errorf("%d sessions of one repository, %v", len(all), err)
	}
}
