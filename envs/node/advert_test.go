package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inspect/envs/node"
	"inspect/envs/snapshot"
)

// publishOf makes a snapshot of an environment without a refresh.
func (f *fakeNode) publishOf(id, environment string, generation int, commit string) {
	f.t.Helper()
	b, err := f.store.Prepare(f.t.Context(), snapshot.BaseID(id), "")
	must(f.t, err)
	must(f.t, os.Mkdir(filepath.Join(b.Path, "work"), 0o755))
	_, err = f.store.Snapshot(f.t.Context(), b.ID, snapshot.SnapshotID(id), snapshot.Meta{Environment: environment, Generation: generation, Commit: commit})
	must(f.t, err)
}

// The agent is told the newest snapshot of each environment, when that changes
// and now and then, and one that cannot be told holds up nothing.
func TestAdverts(t *testing.T) {
	told := make(chan node.Advert)
	answers := make(chan error)
	w, f := newFakeWorld(t, func(o *nodeOptions) {
		o.StateEvery, o.AdvertiseEvery = 5*time.Millisecond, time.Hour
		o.Advertise = func(ctx context.Context, a node.Advert) error {
			select {
			case told <- a:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case err := <-answers:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	next := func() node.Advert {
		t.Helper()
		select {
		case a := <-told:
			return a
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was told")
		}
		panic("unreachable")
	}
	if a := next(); a.Node != nodeName || a.FreeBytes <= 0 || len(a.Snapshots) != 0 {
		t.Errorf("first: %+v", a)
	}
	answers <- errors.New("the agent is away")
	// It is told again; while the agent does not answer the control plane is told all the same.
	a := next()
	states := func() int { w.plane.mu.Lock(); defer w.plane.mu.Unlock(); return len(w.plane.states) }
	before := states()
	until(t, "the control plane is told meanwhile", func() bool { return states() > before+2 })
	answers <- nil

	f.publishOf("snap-1", "env-1", 1, "aaaa")
	f.publishOf("snap-3", "env-1", 3, "cccc")
	f.publishOf("snap-2", "env-1", 2, "bbbb")
	f.publishOf("other-1", "env-2", 1, "dddd")
	want := map[string]string{"env-1": "cccc", "env-2": "dddd"}
	for !cmp.Equal(a.Snapshots, want) { // perhaps in steps
		a = next()
		answers <- nil
	}
	must(t, f.store.Discard(t.Context(), snapshot.SnapshotID("other-1")))
	for len(a.Snapshots) == 2 {
		a = next()
		answers <- nil
	}
	if diff := cmp.Diff(map[string]string{"env-1": "cccc"}, a.Snapshots); diff != "" {
		t.Error(diff)
	}
	// Nothing has changed: nothing is told.
	before = states()
	until(t, "a few more looks", func() bool {
		select {
		case a := <-told:
			t.Fatalf("told again without need: %+v", a)
		default:
		}
		return states() > before+5
	})
	go f.stop()
	if a := next(); a.Node != "" || a.Snapshots != nil {
		t.Errorf("at the end: %+v", a)
	}
	answers <- nil
}

func TestAdvertsAreRepeated(t *testing.T) {
	told := make(chan node.Advert, 100)
	newFakeWorld(t, func(o *nodeOptions) {
		o.StateEvery, o.AdvertiseEvery = time.Millisecond, 2*time.Millisecond
		o.Advertise = func(_ context.Context, a node.Advert) error {
			select {
			case told <- a:
			default:
			}
			return nil
		}
	})
	for range 3 {
		select {
		case <-told:
		case <-time.After(20 * time.Second):
			t.Fatal("it is not repeated")
		}
	}
}
