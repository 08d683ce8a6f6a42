// Package storetest is the one suite every snapshot.Store must pass. A way to
// open stores comes in; failures of the test come out.
package storetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

// Open opens the store at a place for an installation. The same place is the
// same store: opened again, after Close, it shows what was there. Places differ
// only within one test.
type Open func(t *testing.T, place, owner string) snapshot.Store

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Open){
		"life of a snapshot":          life,
		"what a tree keeps":           keeps,
		"what a tree loses":           loses,
		"clones are apart":            apart,
		"idempotent":                  idempotent,
		"taken names":                 taken,
		"not found":                   notFound,
		"bad names":                   badNames,
		"reopened":                    reopened,
		"other installation":          foreign,
		"links lead nowhere":          links,
		"unreadable":                  unreadable,
		"too deep":                    tooDeep,
		"many at once":                many,
		"one clone asked for at once": joined,
		"cancelled":                   cancelled,
		"space":                       space,
		"turns and forks":             turns,
		"room":                        room,
		"a bounded base":              bounded,
		"depended on":                 depended,
		"held by a process":           held,
		"images":                      images,
	} {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

// Clone names a clone of the suite.
func Clone(session string) snapshot.CloneID {
	return snapshot.CloneID{Session: session, Generation: 1, Purpose: "work"}
}

var meta = snapshot.Meta{Environment: "env-1", Generation: 3, Commit: "c0ffee", ConfigDigest: "d16e57"}

// publish makes snapshot id with what fill puts into it.
func publish(t *testing.T, s snapshot.Store, id snapshot.SnapshotID, fill func(dir string)) snapshot.Info {
	t.Helper()
	b, err := s.Prepare(t.Context(), snapshot.BaseID(id), "")
	must(t, err)
	if fill != nil {
		fill(b.Path)
	}
	info, err := s.Snapshot(t.Context(), b.ID, id, meta)
	must(t, err)
	return info
}

func life(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	if s.Name() == "" {
		t.Error("the store has no name")
	}
	b, err := s.Prepare(ctx, "b1", "")
	must(t, err)
	if got := read(t, b.Path); len(got) != 0 {
		t.Errorf("a fresh base holds %v", got)
	}
	write(t, b.Path, "work/a.txt", "one")
	info, err := s.Snapshot(ctx, "b1", "s1", meta)
	must(t, err)
	if info.ID != "s1" || info.Meta != meta || info.Created.IsZero() {
		t.Errorf("info = %+v", info)
	}
	c, err := s.Restore(ctx, "s1", Clone("x"), 0)
	must(t, err)
	if c.Existed || c.Snapshot != "s1" || c.Commit != "c0ffee" || c.ID != Clone("x") {
		t.Errorf("clone = %+v", c)
	}
	if got := get(t, c.Path, "work/a.txt"); got != "one" {
		t.Errorf("the clone has %q", got)
	}
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Bases) != 0 || len(l.Snapshots) != 1 || len(l.Clones) != 1 || l.Clones[0].ID != c.ID || l.Clones[0].Path != c.Path {
		t.Errorf("list = %+v", l)
	}
	if same, err := s.Clone(ctx, c.ID); err != nil || same.Path != c.Path {
		t.Errorf("Clone = %+v, %v", same, err)
	}

	// A next base made from the snapshot.
	b2, err := s.Prepare(ctx, "b2", "s1")
	must(t, err)
	if got := get(t, b2.Path, "work/a.txt"); got != "one" {
		t.Errorf("the base made from the snapshot has %q", got)
	}
	write(t, b2.Path, "work/a.txt", "two")
	_, err = s.Snapshot(ctx, "b2", "s2", meta)
	must(t, err)
	if got := get(t, c.Path, "work/a.txt"); got != "one" {
		t.Errorf("a new snapshot changed an old clone: %q", got)
	}
	for _, ref := range []snapshot.Ref{c.ID, snapshot.SnapshotID("s1"), snapshot.SnapshotID("s2")} {
		must(t, s.Discard(ctx, ref))
	}
	l, err = s.List(ctx)
	must(t, err)
	if len(l.Bases)+len(l.Snapshots)+len(l.Clones)+len(l.Images)+len(l.Foreign) != 0 {
		t.Errorf("left: %+v", l)
	}
	must(t, s.Sweep(ctx))
}

func keeps(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	when := time.Date(2020, 2, 3, 4, 5, 6, 789_000_000, time.UTC)
	long := strings.Repeat("n", 255)
	had := map[string]unix.Stat_t{} // not every filesystem has fractions of a second
	publish(t, s, "s1", func(dir string) {
		write(t, dir, "run.sh", "#!/bin/sh\n")
		must(t, os.Chmod(filepath.Join(dir, "run.sh"), 0o751))
		must(t, os.Chtimes(filepath.Join(dir, "run.sh"), when, when))
		must(t, os.Symlink("run.sh", filepath.Join(dir, "link")))
		must(t, os.Symlink("/nowhere/at all", filepath.Join(dir, "dangling")))
		must(t, os.Link(filepath.Join(dir, "run.sh"), filepath.Join(dir, "hard")))
		must(t, os.MkdirAll(filepath.Join(dir, "empty/inner"), 0o755))
		must(t, os.Chmod(filepath.Join(dir, "empty"), 0o2750))
		must(t, os.Chtimes(filepath.Join(dir, "empty"), when, when))
		write(t, dir, long, "long")
		write(t, dir, "odd \n\x01\xff name", "odd")
		write(t, dir, "big", strings.Repeat("0123456789abcdef", 20_000))
		f, err := os.Create(filepath.Join(dir, "holes"))
		must(t, err)
		must(t, f.Truncate(8<<20))
		_, err = f.WriteAt([]byte("end"), 5<<20)
		must(t, err)
		must(t, f.Close())
		if os.Geteuid() == 0 {
			must(t, os.Lchown(filepath.Join(dir, "link"), 1234, 2345))
			must(t, os.Lchown(filepath.Join(dir, "big"), 1234, 2345))
			must(t, os.Lchown(filepath.Join(dir, "empty"), 1234, 2345))
			must(t, os.Chmod(filepath.Join(dir, "empty"), 0o2750|os.ModeSetgid))
			must(t, os.Chtimes(filepath.Join(dir, "empty"), when, when))
		}
		for _, name := range []string{"run.sh", "empty"} {
			st := stat(t, dir, name)
			had[name] = st
			if got := time.Unix(st.Mtim.Unix()).UTC(); !got.Truncate(time.Second).Equal(when.Truncate(time.Second)) {
				t.Errorf("%s was given the time %v", name, got)
			}
		}
	})
	c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	st := stat(t, c.Path, "run.sh")
	if st.Mode&0o7777 != 0o751 || st.Mtim != had["run.sh"].Mtim || st.Nlink != 2 {
		t.Errorf("run.sh: mode %o, time %v, links %d", st.Mode, time.Unix(st.Mtim.Unix()).UTC(), st.Nlink)
	}
	if hard := stat(t, c.Path, "hard"); hard.Ino != st.Ino {
		t.Error("the hard link is a file of its own")
	}
	for name, want := range map[string]string{"link": "run.sh", "dangling": "/nowhere/at all"} {
		if got, err := os.Readlink(filepath.Join(c.Path, name)); err != nil || got != want {
			t.Errorf("%s -> %q, %v", name, got, err)
		}
	}
	if e := stat(t, c.Path, "empty"); e.Mode&0o777 != 0o750 || e.Mtim != had["empty"].Mtim {
		t.Errorf("empty: mode %o, time %v", e.Mode, time.Unix(e.Mtim.Unix()).UTC())
	}
	for name, want := range map[string]string{long: "long", "odd \n\x01\xff name": "odd", "big": strings.Repeat("0123456789abcdef", 20_000)} {
		if got := get(t, c.Path, name); got != want {
			t.Errorf("%.20q: %d bytes, want %d", name, len(got), len(want))
		}
	}
	holes := get(t, c.Path, "holes")
	if len(holes) != 8<<20 || holes[5<<20:5<<20+3] != "end" || strings.Trim(holes[:5<<20], "\x00") != "" {
		t.Error("the file with holes has other content")
	}
	if os.Geteuid() == 0 {
		for _, name := range []string{"link", "big", "empty"} {
			if st := stat(t, c.Path, name); st.Uid != 1234 || st.Gid != 2345 {
				t.Errorf("%s: owner %d:%d", name, st.Uid, st.Gid)
			}
		}
	}
}

func apart(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "first") })
	a, err := s.Restore(t.Context(), "s1", Clone("a"), 0)
	must(t, err)
	b, err := s.Restore(t.Context(), "s1", snapshot.CloneID{Session: "a", Generation: 1, Purpose: "verify"}, 0)
	must(t, err)
	write(t, a.Path, "f", "changed in a")
	if got := get(t, b.Path, "f"); got != "first" {
		t.Errorf("the other clone sees %q", got)
	}
	later, err := s.Restore(t.Context(), "s1", Clone("c"), 0)
	must(t, err)
	if got := get(t, later.Path, "f"); got != "first" {
		t.Errorf("the snapshot changed: %q", got)
	}
	// Clones outlive the discarding of each other.
	must(t, s.Discard(t.Context(), a.ID))
	if got := get(t, b.Path, "f"); got != "first" {
		t.Errorf("discarding one clone changed another: %q", got)
	}
}

func idempotent(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	first := publish(t, s, "s1", func(dir string) { write(t, dir, "f", "x") })
	again, err := s.Snapshot(ctx, "s1", "s1", meta)
	must(t, err)
	if again.ID != first.ID || !again.Created.Equal(first.Created) {
		t.Errorf("snapshot repeated: %+v, first %+v", again, first)
	}
	c, err := s.Restore(ctx, "s1", Clone("x"), 0)
	must(t, err)
	write(t, c.Path, "f", "worked on")
	same, err := s.Restore(ctx, "s1", Clone("x"), 0)
	must(t, err)
	if !same.Existed || same.Path != c.Path || !same.Created.Equal(c.Created) || get(t, same.Path, "f") != "worked on" {
		t.Errorf("restore repeated: %+v", same)
	}
	for range 3 {
		must(t, s.Discard(ctx, c.ID))
		must(t, s.Discard(ctx, snapshot.SnapshotID("s1")))
		must(t, s.Discard(ctx, snapshot.BaseID("never")))
	}
}

func taken(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "1") })
	publish(t, s, "s2", func(dir string) { write(t, dir, "f", "2") })
	b, err := s.Prepare(ctx, "b", "")
	must(t, err)
	write(t, b.Path, "precious", "kept")
	if _, err := s.Prepare(ctx, "b", ""); !errors.Is(err, snapshot.ErrExists) {
		t.Errorf("prepare of a taken name: %v", err)
	}
	if _, err := s.Snapshot(ctx, "b", "s1", meta); !errors.Is(err, snapshot.ErrExists) {
		t.Errorf("snapshot under a taken name: %v", err)
	}
	if got := get(t, b.Path, "precious"); got != "kept" {
		t.Errorf("a refused call changed the base: %q", got)
	}
	c, err := s.Restore(ctx, "s1", Clone("x"), 0)
	must(t, err)
	if _, err := s.Restore(ctx, "s2", Clone("x"), 0); !errors.Is(err, snapshot.ErrExists) {
		t.Errorf("restore of another snapshot under a taken name: %v", err)
	}
	if got := get(t, c.Path, "f"); got != "1" {
		t.Errorf("a refused restore changed the clone: %q", got)
	}
}

func notFound(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	if _, err := s.Prepare(ctx, "b", "gone"); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("prepare from nothing: %v", err)
	}
	if _, err := s.Snapshot(ctx, "gone", "s", meta); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("snapshot of nothing: %v", err)
	}
	if _, err := s.Restore(ctx, "gone", Clone("x"), 0); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("restore of nothing: %v", err)
	}
	if _, err := s.Clone(ctx, Clone("x")); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("clone: %v", err)
	}
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Bases)+len(l.Snapshots)+len(l.Clones)+len(l.Images)+len(l.Foreign) != 0 {
		t.Errorf("failed calls left %+v", l)
	}
}

func reopened(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "x") })
	c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	_, err = s.Prepare(t.Context(), "half", "")
	must(t, err)
	before, err := s.List(t.Context())
	must(t, err)
	must(t, s.Close())
	s = open(t, "a", "octocat")
	must(t, s.Sweep(t.Context()))
	after, err := s.List(t.Context())
	must(t, err)
	if len(after.Snapshots) != 1 || len(after.Clones) != 1 || len(after.Bases) != 1 ||
		!after.Clones[0].Created.Equal(before.Clones[0].Created) || after.Clones[0].Path != c.Path || after.Snapshots[0].Meta != meta {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	same, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	if !same.Existed {
		t.Error("the clone was made again")
	}
}

func many(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) {
		for i := range 30 {
			write(t, dir, "d"+itoa(i%5)+"/f"+itoa(i), strings.Repeat("x", i*100))
		}
	})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			id := Clone("s" + itoa(i))
			c, err := s.Restore(t.Context(), "s1", id, 0)
			if err != nil {
				t.Errorf("restore %s: %v", id, err)
				return
			}
			if _, err := os.Stat(filepath.Join(c.Path, "d4/f29")); err != nil {
				t.Error(err)
			}
			if err := s.Discard(t.Context(), id); err != nil {
				t.Errorf("discard %s: %v", id, err)
			}
		})
	}
	wg.Wait()
	l, err := s.List(t.Context())
	must(t, err)
	if len(l.Clones) != 0 || len(l.Snapshots) != 1 {
		t.Errorf("left: %+v", l)
	}
}

func joined(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "x") })
	var wg sync.WaitGroup
	var mu sync.Mutex
	fresh, paths := 0, map[string]bool{}
	for range 20 {
		wg.Go(func() {
			c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			paths[c.Path] = true
			if !c.Existed {
				fresh++
			}
		})
	}
	wg.Wait()
	if fresh != 1 || len(paths) != 1 {
		t.Errorf("%d calls made a clone, at %v", fresh, paths)
	}
}

func cancelled(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "x") })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Restore(ctx, "s1", Clone("x"), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("restore: %v", err)
	}
	if _, err := s.Clone(t.Context(), Clone("x")); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a cancelled restore left a clone: %v", err)
	}
}

func space(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	sp, err := s.Space(t.Context())
	must(t, err)
	if sp.Total <= 0 || sp.Free <= 0 || sp.Free > sp.Total {
		t.Errorf("space = %+v", sp)
	}
}
