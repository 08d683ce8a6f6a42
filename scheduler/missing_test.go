package scheduler

import (
	"context"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

func missingOutcome() wire.Outcome {
	return wire.Outcome{Kind: wire.OutcomeInfrastructure, Reason: wire.ReasonSnapshotMissing, Words: "Restore: there is no snapshot."}
}

func TestAMissingSnapshotIsPreparedAndTheSessionPlacedAgain(t *testing.T) {
	ctx := context.Background()
	w, _, s := newCluster(t, machine("n1"), machine("n2"))
	w.node(s, "n2")
	snapshot := w.ready(s)
	sess, r := w.running(s)
	if err := s.NodeState(ctx, "n1", wire.NodeState{Version: 1, Work: []int64{}, Snapshots: []string{}}); err != nil {
		t.Fatal(err)
	}
	w.sql("UPDATE snapshots SET state = 'ready', is_current = true") // it was published just now
	if err := s.Outcome(ctx, r, missingOutcome()); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.waits(sess.ID, "building the snapshot")
	sn, err := w.db.Q().GetSnapshot(ctx, snapshot)
	if err != nil || sn.State != snapshotRetired {
		t.Fatalf("the snapshot is %s, %v", sn.State, err)
	}
	next := w.prepare(s)
	if got := w.want(sess.ID, Placing, ""); got.Generation != 2 || got.SnapshotID != next {
		t.Fatalf("attempt %d from %s", got.Generation, got.SnapshotID)
	}
	// None of this counts as a failed attempt.
	for range 2 {
		w.look(s, sess.ID)
		w.engine.kill(sess.ID)
		w.look(s, sess.ID)
		w.sweep(s)
		w.want(sess.ID, Placing, "")
	}
	if got := w.get(sess.ID); got.Generation != 4 {
		t.Fatalf("attempt %d", got.Generation)
	}
	w.look(s, sess.ID)
	w.engine.kill(sess.ID)
	w.look(s, sess.ID)
	w.want(sess.ID, Infrastructure, ReasonAttemptsExhausted)
}

func TestASnapshotThatANodeSaysItHasIsNotTakenAgain(t *testing.T) {
	ctx := context.Background()
	w, _, s := newCluster(t, machine("n1"))
	snapshot := w.ready(s)
	sess, r := w.running(s)
	if err := s.NodeState(ctx, "n1", wire.NodeState{Version: 1, Work: []int64{}, Snapshots: []string{snapshot}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Outcome(ctx, r, missingOutcome()); err != nil {
		t.Fatal(err)
	}
	w.look(s, sess.ID)
	w.waits(sess.ID, "building the snapshot")
	if sn, err := w.db.Q().GetSnapshot(ctx, snapshot); err != nil || sn.State != snapshotReady {
		t.Fatalf("a runner's word retired a snapshot: %s, %v", sn.State, err)
	}
	if other := w.create(s); w.look(s, other.ID).State != Placing {
		t.Error("nobody else may have it any more")
	}
	if work := w.work(s, wire.WorkRefresh); work.Refresh.From != "" {
		t.Errorf("made from %s", work.Refresh.From)
	}
}

func TestMissingSnapshotsAreBounded(t *testing.T) {
	ctx := context.Background()
	w, _, s := newCluster(t, machine("n1"))
	w.ready(s)
	sess, r := w.running(s)
	created := sess.CreatedAt
	for n := 1; ; n++ {
		if err := s.Outcome(ctx, r, missingOutcome()); err != nil {
			t.Fatal(err)
		}
		w.engine.kill(sess.ID)
		w.clock.Advance(time.Second)
		got := w.look(s, sess.ID)
		if got.State == Infrastructure && n == maxMissing {
			break
		}
		if got.State != Queued || !got.Deadline.Equal(created.Add(24*time.Hour)) {
			t.Fatalf("after %d: %s until %s", n, got.State, got.Deadline)
		}
		row, err := s.takeWork(ctx, "n1", w.clock.Now())
		for ; err == nil && row.Kind != wire.WorkRefresh; row, err = s.takeWork(ctx, "n1", w.clock.Now()) {
		}
		if err != nil {
			t.Fatal(err)
		}
		w.offerOn(s, "n1", row)
		w.sweep(s)
		w.look(s, sess.ID)
		r = w.runner(s, sess.ID)
	}
	if got := w.want(sess.ID, Infrastructure, ReasonSnapshotMissing); !strings.Contains(got.Words, "5 times") {
		t.Errorf("words %q", got.Words)
	}
}
