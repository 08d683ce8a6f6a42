package zfs_test

import (
	"testing"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
)

func TestConformance(t *testing.T) {
	places := map[string]place{}
	storetest.Run(t, func(t *testing.T, at, owner string) snapshot.Store {
		key := t.Name() + "/" + at
		if _, ok := places[key]; !ok {
			places[key] = newPlace(t)
		}
		return places[key].open(t, owner)
	})
}

// What a clone costs is what it does not share.
func TestPriceOfAClone(t *testing.T) {
	s := newPlace(t).open(t, "octocat")
	b, err := s.Prepare(t.Context(), "s1", "")
	must(t, err)
	must(t, fillBytes(t, b.Path, 8<<20))
	_, err = s.Snapshot(t.Context(), b.ID, "s1", snapshot.Meta{})
	must(t, err)
	c, err := s.Restore(t.Context(), "s1", storetest.Clone("x"), 0)
	must(t, err)
	must(t, fillBytes(t, c.Path, 4<<20))
	must(t, s.KeepTurn(t.Context(), c.ID, 1)) // a snapshot writes everything out
	l, err := s.List(t.Context())
	must(t, err)
	if n := l.Clones[0].Bytes; n < 4<<20 || n > 6<<20 {
		t.Errorf("a clone that wrote 4 MiB costs %d bytes", n)
	}
	// What was discarded and stays for one other's sake is that one's; for two it is
	// nobody's alone.
	_, err = s.Fork(t.Context(), c.ID, 1, storetest.Clone("fork"), 0)
	must(t, err)
	must(t, s.Discard(t.Context(), c.ID))
	if l, err = s.List(t.Context()); err != nil || len(l.Clones) != 1 || l.Clones[0].Bytes < 4<<20 || l.Clones[0].Bytes > 7<<20 {
		t.Errorf("a fork of what was discarded: %+v, %v", l.Clones, err)
	}
	must(t, s.KeepTurn(t.Context(), storetest.Clone("fork"), 1))
	_, err = s.Fork(t.Context(), storetest.Clone("fork"), 1, storetest.Clone("second"), 0)
	must(t, err)
	if l, err = s.List(t.Context()); err != nil || len(l.Clones) != 2 || l.Clones[1].Bytes > 1<<20 {
		t.Errorf("a fork of a fork: %+v, %v", l.Clones, err)
	}
}
