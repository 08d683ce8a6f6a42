package scheduler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

func TestRefreshesAtOnce(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.o.MaxRefreshes = 3
	s := w.scheduler()
	w.node(s, "n2")
	w.node(s, "n3")
	take := func(node string) (storage.NodeWork, bool) {
		t.Helper()
		row, err := s.takeWork(ctx, node, w.clock.Now())
		if err != nil && !storage.IsMissing(err) {
			t.Fatal(err)
		}
		return row, err == nil
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		for i := range 3 {
			key := fmt.Sprintf("refresh:%s-%d", node, i)
			if err := s.addWork(ctx, w.db.Q(), node, wire.WorkRefresh, key, wire.Work{Refresh: &wire.RefreshWork{}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var taken []storage.NodeWork
	for _, node := range []string{"n1", "n1", "n2"} {
		row, ok := take(node)
		if !ok {
			t.Fatalf("%s was given nothing", node)
		}
		taken = append(taken, row)
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		if row, ok := take(node); ok {
			t.Errorf("%s was given %s beyond the bound", node, row.Key)
		}
	}
	// Other work is handed out all the same.
	if err := s.addWork(ctx, w.db.Q(), "n1", wire.WorkDiscard, "discard:x", wire.Work{Discard: &wire.SessionRef{}}); err != nil {
		t.Fatal(err)
	}
	if row, ok := take("n1"); !ok || row.Kind != wire.WorkDiscard {
		t.Errorf("n1 was given %+v", row)
	}
	if err := w.db.Q().EndWork(ctx, storage.EndWorkParams{ID: taken[2].ID, State: workDone, Now: w.clock.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, ok := take("n1"); ok {
		t.Error("a node prepares three at once")
	}
	if _, ok := take("n3"); !ok {
		t.Error("one is over and the next does not begin")
	}
	w.clock.Advance(2 * time.Minute) // the leases are over: the nodes died
	if _, ok := take("n2"); !ok {
		t.Error("what nobody has in hand counts")
	}
}

func TestRefreshesOfOneEnvironmentAreSpread(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	s := w.scheduler()
	w.node(s, "n2")
	w.node(s, "n3")
	snapshot := w.ready(s)
	for _, node := range []string{"n2", "n3"} {
		w.sql(`INSERT INTO snapshots (id, environment_id, node, generation, commit_sha, config_digest, state, is_current, published_at, newest_at)
			SELECT 'snap-' || $1, environment_id, $1, 1, commit_sha, config_digest, 'ready', true, published_at, newest_at FROM snapshots WHERE id = $2`, node, snapshot)
	}
	sn, err := w.db.Q().GetSnapshot(ctx, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	env, err := w.db.Q().LockEnvironment(ctx, sn.EnvironmentID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.refreshAll(ctx, w.db.Q(), env, wanted{branch: "main", commit: tipSHA}); err != nil {
		t.Fatal(err)
	}
	begun := map[string]time.Duration{}
	for at := time.Duration(0); at <= time.Minute; at += 10 * time.Second {
		for _, node := range []string{"n1", "n2", "n3"} {
			if row, err := s.takeWork(ctx, node, w.clock.Now()); err == nil && row.Attempts == 1 {
				begun[node] = at
			} else if err != nil && !storage.IsMissing(err) {
				t.Fatal(err)
			}
		}
		w.clock.Advance(10*time.Second + time.Millisecond)
	}
	if begun["n1"] != 0 || begun["n2"] != 20*time.Second || begun["n3"] != 40*time.Second {
		t.Errorf("begun at %v", begun)
	}
}
