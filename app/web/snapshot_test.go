package web

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/scheduler"
)

func TestWhereTheSnapshotCameFrom(t *testing.T) {
	s := newSite(t)
	s.session("drifted", "Mend it")
	s.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, created_at, published_at) VALUES ('snap-1', 'env-7-x', 'n1', 1, 'abc', 'd', 'ready', $1, $1)`, s.clock.Now())
	s.sql(`INSERT INTO attempts (session_id, generation, engine, node, deadline, work_deadline, restore, taken, drifted, ended_at, keep_until) VALUES ('drifted', 1, 'local', 'n1', now(), now(), $1, $2, $3, now(), $4)`,
		s.json(wire.Restored{Purpose: "work", Duration: 85 * time.Millisecond}),
		s.json(scheduler.Taken{Snapshot: "snap-1", Age: 3 * time.Hour, Drift: &wire.Drift{Commits: 4}, Stale: true, Why: "it was last the newest 3h ago", Image: "registry.example/dev@sha256:abc"}),
		s.json(wire.Drifted{Manifests: []string{"go.mod"}, Steps: []string{"go build ./..."}, Lockfiles: []wire.Lockfile{{Path: "go.sum", SHA256: "fed"}}}),
		s.clock.Now().Add(time.Hour))
	s.sql(`UPDATE sessions SET state = 'failed', generation = 1, snapshot_id = 'snap-1', outcome = $1, started_at = $2, finished_at = $2 WHERE id = 'drifted'`,
		s.json(wire.Outcome{Kind: "failed", Times: wire.Times{Sync: 300 * time.Millisecond, Ready: 1200 * time.Millisecond}}), s.clock.Now())
	body := s.get("/sessions/drifted").Body.String()
	for _, want := range []string{
		"4 commits behind the commit the session starts from", "3 h 0 min old", "restored in 85 ms, ready in 1.2 s", "taken because it was last the newest 3h ago",
		"1 dependency manifest had changed since; 1 step of setup ran again", "<code>go.mod</code>", "ran again: <code>go build ./...</code>",
		"<code>go.sum</code> sha256 <code>fed</code>", "registry.example/dev@sha256:abc", "kept on node n1 until",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	checkHTML(t, body)
	var got SessionJSON
	if err := json.Unmarshal(s.get("/sessions/drifted.json").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if n := got.Snapshot; n == nil || n.Behind == nil || *n.Behind != 4 || !n.Stale || n.Why == "" || n.AgeMS != 10_800_000 || n.Lockfiles[0].Path != "go.sum" || n.Steps[0] != "go build ./..." || n.Image == "" || got.KeptUntil == nil || got.Times.ReadyMS != 1200 {
		t.Errorf("got %+v, kept until %v", got.Snapshot, got.KeptUntil)
	}
	// What is discarded is not kept.
	s.sql(`UPDATE attempts SET reaped_at = now()`)
	if body := s.get("/sessions/drifted").Body.String(); strings.Contains(body, "kept on node") {
		t.Error("the page tells of a clone that is gone")
	}
}
