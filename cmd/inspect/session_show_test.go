package main

import (
	"encoding/json"
	"testing"
)

func TestSessionShow(t *testing.T) {
	s := newShelf(t)
	s.sql(`UPDATE sessions SET state = 'queued', generation = 1, queue_reason = E'limit 4 of octocat/hello reached\u001b[31m', queue_position = 3,
		queue_at = '2026-03-01 10:00:00Z', priority = 7, next_check_at = '2026-03-01 10:05:00Z', reported_at = NULL WHERE id = 'abcdefgh22'`)
	s.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt,
		base_branch, base_sha, environment_id, spec, spec_source, queue_reason, deadline)
		SELECT 'other' || n, 7, 42, 0, 'other' || n, 1, 'octocat', '', '', '', 'main', '', 'env-42-aaaaaaaa', '{}', '', '', now() FROM generate_series(1, 4) n`)
	s.sql(`UPDATE attempts SET end_words = 'killed for want of memory', ended_at = '2026-03-01 10:00:00Z', snapshot_id = 'snap-one',
		taken = taken || '{"image":"imported@sha256:feed"}' WHERE session_id = 'abcdefgh22'`)
	out, err := s.run(sessionCommand(), "show", "abcdef")
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, out, "session     abcdefgh22", "state       queued",
		"limit 4 of octocat/hello reached", "(position 3 of 5, since 2026-03-01 10:00 UTC)", "priority    7", "next check  2026-03-01 10:05:00",
		"on n1 from snap-one since", "to 2026-03-01 10:00:00: killed for want of memory",
		"snap-one of 111111111111, 40 min 0 s old, 3 commits behind, restored in 85 ms, synchronised in 300 ms, ready in 1.2 s: it is 3 commits behind, of 200 at most\n",
		"setup ran again: go build ./...\n", "go.sum sha256 ab\n",
		"image imported@sha256:feed\n")
	if out, err = s.run(sessionCommand(), "show", "abcdef", "--json"); err != nil {
		t.Fatal(err)
	}
	var got shownSession
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Position != 3 || got.Length != 5 || got.Since == nil || len(got.Attempts) != 1 || got.Attempts[0].Words == "" || got.Attempts[0].Taken == nil || got.Attempts[0].Taken.ReadyMS != 1200 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.run(sessionCommand(), "show", "nobody"); err == nil {
		t.Error("a session that is not there is shown")
	}
}

func TestNodeDrain(t *testing.T) {
	s := newShelf(t)
	draining := func() (yes bool) {
		t.Helper()
		if err := s.db.SQL().QueryRow("SELECT draining FROM nodes WHERE name = 'n1'").Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	out, err := s.run(nodeCommand(), "drain", "n1")
	if err != nil || !draining() {
		t.Fatalf("%s%v", out, err)
	}
	wantLines(t, out, "Node n1 takes no new sessions;")
	s.sql("UPDATE nodes SET state = '{}'")
	wantLines(t, s.env("status"), "no: it is draining")
	if out, err = s.run(nodeCommand(), "drain", "n1", "--off"); err != nil || draining() {
		t.Fatalf("%s%v", out, err)
	}
	if _, err := s.run(nodeCommand(), "drain", "n9"); err == nil {
		t.Error("a node that is not there drains")
	}
}
