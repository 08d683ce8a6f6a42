package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"inspect/envs/node"
	"inspect/envs/proc"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// collecting is a world whose clock the test moves.
func collecting(t *testing.T) (*world, *fakeNode, *proc.Fake) {
	w := newWorld(t)
	clock := proc.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	w.clock = clock
	f := w.startFake(func(o *nodeOptions) { o.Grace = 10 * time.Minute; o.CollectEvery = time.Minute })
	// The round at the start is over: it would take a base that a test makes by
	// hand for one that a daemon left half done.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must(t, clock.BlockUntil(ctx, 2))
	return w, f, clock
}

func (f *fakeNode) names() (clones, snapshots, bases []string) {
	f.t.Helper()
	l, err := f.store.List(f.t.Context())
	must(f.t, err)
	for _, c := range l.Clones {
		clones = append(clones, c.ID.String())
	}
	for _, s := range l.Snapshots {
		snapshots = append(snapshots, string(s.ID))
	}
	for _, b := range l.Bases {
		bases = append(bases, string(b.ID))
	}
	return clones, snapshots, bases
}

func TestCollectsWhatNobodyNeeds(t *testing.T) {
	w, f, clock := collecting(t)
	w.plane.set(func(p *plane) {
		p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "live", Generation: 1}}, Snapshots: []string{"kept"}}
	})
	for _, id := range []snapshot.SnapshotID{"kept", "old"} {
		f.publish(id)
	}
	for _, s := range []string{"live", "gone", "stuck"} {
		f.restore("kept", s)
	}
	// Another generation of a session that lives is not it.
	_, err := f.store.Restore(t.Context(), "kept", snapshot.CloneID{Session: "live", Generation: 2, Purpose: wire.PurposeWork}, 0)
	must(t, err)
	_, err = f.store.Restore(t.Context(), "kept", snapshot.CloneID{Session: "kept", Generation: 3, Purpose: snapshot.PurposeProof}, 0)
	must(t, err)
	_, err = f.store.Prepare(t.Context(), "half", "")
	must(t, err)
	// Without our mark: left alone, whatever its name.
	must(t, os.MkdirAll(filepath.Join(w.root, "session", "gone-g9-work", "tree"), 0o755))
	f.launcher.mu.Lock()
	f.launcher.stuck = work("stuck").String()
	f.launcher.foreign = []string{"quarantine-1", "gone-g1-verify", "refresh-half"}
	f.launcher.onReap = func(id string) { // reaped first, discarded after
		if id == work("gone").String() {
			if _, err := f.store.Clone(t.Context(), work("gone")); err != nil {
				t.Errorf("discarded before its processes ended: %v", err)
			}
		}
	}
	f.launcher.mu.Unlock()

	clock.Advance(11 * time.Minute)
	f.restore("kept", "young") // not older than the grace
	w.roundsWithin(clock)
	clones, snapshots, bases := f.names()
	if want := []string{"live-g1-work", "stuck-g1-work", "young-g1-work"}; !slices.Equal(clones, want) {
		t.Errorf("clones %v, want %v", clones, want)
	}
	if !slices.Equal(snapshots, []string{"kept"}) || len(bases) != 0 {
		t.Errorf("snapshots %v, bases %v", snapshots, bases)
	}
	if _, err := os.Stat(filepath.Join(w.root, "session", "gone-g9-work", "tree")); err != nil {
		t.Errorf("what is not ours is gone: %v", err)
	}
	if ids, _ := f.launcher.List(); !slices.Equal(ids, []string{"quarantine-1"}) {
		t.Errorf("sandboxes left: %v", ids)
	}
	for _, e := range f.launcher.events {
		if e == "reap quarantine-1" || e == "reap live-g1-work" {
			t.Error(e)
		}
	}
	// What was stuck goes when it can.
	f.launcher.mu.Lock()
	f.launcher.stuck = ""
	f.launcher.mu.Unlock()
	w.roundsWithin(clock)
	if clones, _, _ := f.names(); slices.Contains(clones, "stuck-g1-work") {
		t.Errorf("clones %v", clones)
	}
}

// roundsWithin has the daemon collect twice, the second time surely from the
// beginning. The clock moves by a minute for each.
func (w *world) roundsWithin(clock *proc.Fake) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	idle := func() { must(w.t, clock.BlockUntil(ctx, 2)) } // both loops wait: for the next state, the next collection
	for range 2 {
		idle()
		for len(w.plane.asked) > 0 {
			<-w.plane.asked
		}
		clock.Advance(time.Minute)
		select {
		case <-w.plane.asked:
		case <-ctx.Done():
			w.t.Fatal("the daemon does not collect")
		}
	}
	idle()
}

func TestNothingIsCollectedWhileTheControlPlaneIsAway(t *testing.T) {
	w, f, clock := collecting(t)
	f.publish("old")
	f.restore("old", "gone")
	w.plane.set(func(p *plane) { p.down = true })
	for range 5 {
		clock.Advance(time.Hour)
	}
	// It was away all the time; a last round ends when it is back for somebody
	// who needs nothing to be removed.
	w.plane.set(func(p *plane) {
		p.down = false
		p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "gone", Generation: 1}}, Snapshots: []string{"old"}}
	})
	w.roundsWithin(clock)
	clones, snapshots, _ := f.names()
	if len(clones) != 1 || len(snapshots) != 1 {
		t.Errorf("clones %v, snapshots %v", clones, snapshots)
	}
}

func TestDiscardWork(t *testing.T) {
	w, f, _ := collecting(t)
	f.publish("s")
	for _, id := range []snapshot.CloneID{
		{Session: "a", Generation: 1, Purpose: "work"}, {Session: "a", Generation: 1, Purpose: "verify"},
		{Session: "a", Generation: 2, Purpose: "work"}, {Session: "b", Generation: 1, Purpose: "work"},
	} {
		_, err := f.store.Restore(t.Context(), "s", id, 0)
		must(t, err)
	}
	for id := int64(1); id <= 2; id++ {
		w.plane.give(wire.Work{ID: id, Kind: wire.WorkDiscard, Discard: &wire.SessionRef{Session: "a", Generation: 1}})
		if r := <-w.plane.results; !r.OK {
			t.Errorf("discard: %s", r.Words)
		}
	}
	if clones, _, _ := f.names(); !slices.Equal(clones, []string{"a-g2-work", "b-g1-work"}) {
		t.Errorf("clones %v", clones)
	}
}

func TestStateIsTold(t *testing.T) {
	w, f, clock := collecting(t)
	f.publish("s")
	f.restore("s", "a")
	until(t, "a state with the clone in it", func() bool {
		clock.Advance(10 * time.Second)
		w.plane.mu.Lock()
		defer w.plane.mu.Unlock()
		n := len(w.plane.states)
		if n == 0 {
			return false
		}
		s := w.plane.states[n-1]
		return s.Node == nodeName && s.Store == "dir" && s.Tier == "fake" && s.Limits != "" && s.FreeBytes > 0 &&
			len(s.Clones) == 1 && s.Clones[0].Session == "a" && s.Clones[0].Purpose == "work" && slices.Equal(s.Snapshots, []string{"s"})
	})
}

// What a clone costs that nobody works in is told, also of a store that copies.
func TestWhatACloneTakesIsTold(t *testing.T) {
	w, f, clock := collecting(t)
	w.plane.set(func(p *plane) { p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "a", Generation: 1}}} })
	f.publish("s")
	c, err := f.store.Restore(t.Context(), "s", work("a"), 0)
	must(t, err)
	if f.store.Forks() {
		return // what it shares is not told apart
	}
	told := func(what string, want func(int64) bool) {
		t.Helper()
		until(t, what, func() bool {
			clock.Advance(10 * time.Second)
			w.plane.mu.Lock()
			defer w.plane.mu.Unlock()
			n := len(w.plane.states)
			return n > 0 && len(w.plane.states[n-1].Clones) == 1 && want(w.plane.states[n-1].Clones[0].Bytes)
		})
	}
	told("what it takes", func(n int64) bool { return n > 0 && n < 1<<20 })
	must(t, os.WriteFile(filepath.Join(c.Path, "work", "large"), make([]byte, 1<<20), 0o644))
	told("that it has grown", func(n int64) bool { return n > 1<<20 })
	f.launcher.mu.Lock()
	f.launcher.foreign = append(f.launcher.foreign, c.ID.String())
	f.launcher.mu.Unlock()
	told("nothing while a sandbox lives in it", func(n int64) bool { return n == 0 })
}

// pulled is a store whose pool can be taken away.
type pulled struct {
	snapshot.Store
	away atomic.Bool
}

func (s *pulled) List(ctx context.Context) (snapshot.Listing, error) {
	if s.away.Load() {
		return snapshot.Listing{}, fmt.Errorf("pool/inspect is not there: %w", snapshot.ErrUnavailable)
	}
	return s.Store.List(ctx)
}

// A node whose pool is gone says so, and does not say that it has nothing: what it
// has is known to nobody then.
func TestStateWithoutItsStore(t *testing.T) {
	store := &pulled{}
	w := newWorld(t)
	clock := proc.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	w.clock = clock
	adverts := make(chan node.Advert, 100)
	f := w.startFake(func(o *nodeOptions) {
		store.Store = o.Store
		o.Store = store
		o.Advertise = func(_ context.Context, a node.Advert) error { adverts <- a; return nil }
	})
	f.publish("s")
	last := func(what string, is func(wire.NodeState) bool) {
		t.Helper()
		until(t, what, func() bool {
			clock.Advance(10 * time.Second)
			w.plane.mu.Lock()
			defer w.plane.mu.Unlock()
			n := len(w.plane.states)
			return n > 0 && is(w.plane.states[n-1])
		})
	}
	there := func(s wire.NodeState) bool { return s.Refuses == "" && slices.Equal(s.Snapshots, []string{"s"}) }
	last("a state with the snapshot in it", there)
	store.away.Store(true)
	last("a state that says what is missing", func(s wire.NodeState) bool {
		return strings.Contains(s.Refuses, "pool/inspect is not there") && s.Snapshots == nil && s.Clones == nil && s.Store != ""
	})
	until(t, "nothing is placed here", func() bool { a := <-adverts; return a.Node == "" })
	store.away.Store(false)
	last("the snapshot again", there)
	until(t, "something is placed here", func() bool { a := <-adverts; return a.Node == nodeName })
}

// A mirror goes when nobody has needed it for long, and never while the control
// plane says that somebody does, or says nothing about it.
func TestMirrorsNobodyNeeds(t *testing.T) {
	w, _, clock := collecting(t)
	mirror := func(name string) string { return filepath.Join(w.root, "mirrors", name+".git") }
	there := func() (names []string) {
		for _, name := range []string{"1", "2", "3", "other", "04"} {
			if _, err := os.Stat(mirror(name)); err == nil {
				names = append(names, name)
			}
		}
		return names
	}
	says := func(repositories []int64) {
		w.plane.set(func(p *plane) { p.refs.Repositories = repositories })
		w.roundsWithin(clock)
	}
	for _, name := range []string{"1", "2", "3", "other", "04"} {
		must(t, os.MkdirAll(filepath.Join(mirror(name), "objects"), 0o755))
		must(t, os.Chtimes(mirror(name), clock.Now(), clock.Now()))
	}
	clock.Advance(31 * 24 * time.Hour)
	must(t, os.Chtimes(mirror("3"), clock.Now(), clock.Now())) // fetched into just now
	if says(nil); !slices.Equal(there(), []string{"1", "2", "3", "other", "04"}) {
		t.Errorf("left are %q", there())
	}
	if says([]int64{1}); !slices.Equal(there(), []string{"1", "3", "other", "04"}) {
		t.Errorf("left are %q", there())
	}
	// It was needed until now: that is not long ago.
	if says([]int64{}); !slices.Equal(there(), []string{"1", "3", "other", "04"}) {
		t.Errorf("left are %q", there())
	}
	clock.Advance(31 * 24 * time.Hour)
	if w.roundsWithin(clock); !slices.Equal(there(), []string{"other", "04"}) {
		t.Errorf("left are %q", there())
	}
}

// What an earlier version unpacked outside of the store goes when no sandbox runs.
func TestImagesOfAnEarlierVersion(t *testing.T) {
	w, f, clock := collecting(t)
	images := filepath.Join(w.root, "images")
	for _, name := range []string{strings.Repeat("a", 64) + "/root/etc", "tmp-123/root", "somebody's"} {
		must(t, os.MkdirAll(filepath.Join(images, name), 0o755))
	}
	must(t, os.Chmod(filepath.Join(images, strings.Repeat("a", 64), "root", "etc"), 0))
	left := func() int {
		entries, err := os.ReadDir(images)
		must(t, err)
		return len(entries)
	}
	f.launcher.mu.Lock()
	f.launcher.foreign = []string{"quarantine-1"}
	f.launcher.mu.Unlock()
	if w.roundsWithin(clock); left() != 3 {
		t.Errorf("%d are left while a sandbox runs", left())
	}
	f.launcher.mu.Lock()
	f.launcher.foreign = nil
	f.launcher.mu.Unlock()
	if w.roundsWithin(clock); left() != 1 {
		t.Errorf("%d are left", left())
	}
	must(t, os.Remove(filepath.Join(images, "somebody's")))
	w.roundsWithin(clock)
	if _, err := os.Stat(images); err == nil {
		t.Error("the directory is left")
	}
}
