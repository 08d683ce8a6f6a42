package storetest

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

func turns(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	// A store that cannot says so whatever it is asked, and does nothing.
	unsupported := errors.Is(s.KeepTurn(ctx, Clone("never"), 1), snapshot.ErrUnsupported)
	if s.Forks() == unsupported {
		t.Errorf("it says that it forks: %v", s.Forks())
	}
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "0") })
	a, err := s.Restore(ctx, "s1", Clone("a"), 0)
	must(t, err)
	write(t, a.Path, "f", "1")
	if unsupported {
		if err := s.KeepTurn(ctx, a.ID, 1); !errors.Is(err, snapshot.ErrUnsupported) {
			t.Errorf("keep a turn: %v", err)
		}
		if _, err := s.Fork(ctx, a.ID, 1, Clone("b"), 0); !errors.Is(err, snapshot.ErrUnsupported) {
			t.Errorf("fork: %v", err)
		}
		l, err := s.List(ctx)
		must(t, err)
		if got := read(t, a.Path); len(got) != 1 || get(t, a.Path, "f") != "1" || len(l.Clones) != 1 {
			t.Errorf("the clone holds %q, the store %+v", got, l)
		}
		return
	}
	must(t, s.KeepTurn(ctx, a.ID, 1))
	write(t, a.Path, "f", "2")
	write(t, a.Path, "g", "new")
	must(t, s.KeepTurn(ctx, a.ID, 1)) // not anew
	must(t, s.KeepTurn(ctx, a.ID, 2))
	b, err := s.Fork(ctx, a.ID, 1, Clone("b"), 0)
	must(t, err)
	if got := read(t, b.Path); len(got) != 1 || get(t, b.Path, "f") != "1" || b.Existed || b.Snapshot != "s1" || b.Commit != "c0ffee" || b.ID != Clone("b") {
		t.Errorf("the fork holds %q and is %+v", got, b)
	}
	write(t, b.Path, "f", "forked")
	same, err := s.Fork(ctx, a.ID, 1, Clone("b"), 0)
	must(t, err)
	if !same.Existed || same.Path != b.Path || get(t, b.Path, "f") != "forked" {
		t.Errorf("fork repeated: %+v", same)
	}
	for what, err := range map[string]error{
		"another turn under a taken name":    second(s.Fork(ctx, a.ID, 2, Clone("b"), 0)),
		"the snapshot under a fork's name":   second(s.Restore(ctx, "s1", Clone("b"), 0)),
		"a fork under the name of its clone": second(s.Fork(ctx, a.ID, 1, Clone("a"), 0)),
	} {
		if !errors.Is(err, snapshot.ErrExists) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"fork of a turn that was not kept": second(s.Fork(ctx, a.ID, 3, Clone("c"), 0)),
		"fork of no clone":                 second(s.Fork(ctx, Clone("never"), 1, Clone("c"), 0)),
		"a turn of no clone":               s.KeepTurn(ctx, Clone("never"), 1),
	} {
		if !errors.Is(err, snapshot.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.KeepTurn(ctx, a.ID, 0); !errors.Is(err, snapshot.ErrName) {
		t.Errorf("turn 0: %v", err)
	}
	c, err := s.Fork(ctx, a.ID, 2, Clone("c"), 0)
	must(t, err)
	d, err := s.Fork(ctx, a.ID, 1, Clone("d"), 0)
	must(t, err)
	if get(t, c.Path, "g") != "new" || get(t, d.Path, "f") != "1" {
		t.Error("a kept turn changed")
	}

	// Forks outlive what they are forks of, and its name is free.
	must(t, s.Discard(ctx, a.ID))
	if _, err := s.Fork(ctx, a.ID, 1, Clone("e"), 0); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("fork of a discarded clone: %v", err)
	}
	a, err = s.Restore(ctx, "s1", Clone("a"), 0)
	must(t, err)
	if a.Existed || get(t, a.Path, "f") != "0" || get(t, b.Path, "f") != "forked" || get(t, d.Path, "f") != "1" {
		t.Errorf("after the discard: %+v", a)
	}
	if err := s.KeepTurn(ctx, a.ID, 1); err != nil {
		t.Errorf("a turn of the clone that took the name: %v", err)
	}
	nothingLeft(t, s, a.ID, b.ID, c.ID, d.ID, snapshot.SnapshotID("s1"))
}

func second[T any](_ T, err error) error { return err }

// nothingLeft discards what is named, in this order; then the store is empty.
func nothingLeft(t *testing.T, s snapshot.Store, refs ...snapshot.Ref) {
	t.Helper()
	for _, ref := range refs {
		must(t, s.Discard(t.Context(), ref))
	}
	must(t, s.Sweep(t.Context()))
	l, err := s.List(t.Context())
	must(t, err)
	if len(l.Bases)+len(l.Snapshots)+len(l.Clones)+len(l.Images)+len(l.Foreign) != 0 {
		t.Errorf("left: %+v", l)
	}
}

// fill writes random bytes until it cannot, or n are on disk.
func fill(t *testing.T, dir string, n int) (written int, err error) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filling"))
	must(t, err)
	defer f.Close()
	chunk := make([]byte, 256<<10)
	for ; written < n; written += len(chunk) {
		_, _ = rand.Read(chunk)
		if _, err := f.Write(chunk); err != nil {
			return written, err
		}
		if err := f.Sync(); err != nil {
			return written, err
		}
	}
	return written, nil
}

func room(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	const base, free = 6 << 20, 4 << 20
	publish(t, s, "s1", func(dir string) {
		if _, err := fill(t, dir, base); err != nil {
			t.Fatal(err)
		}
		must(t, os.Rename(filepath.Join(dir, "filling"), filepath.Join(dir, "base")))
	})
	a, err := s.Restore(ctx, "s1", Clone("a"), free)
	must(t, err)
	b, err := s.Restore(ctx, "s1", Clone("b"), free)
	must(t, err)
	unbounded, err := s.Restore(ctx, "s1", Clone("unbounded"), 0)
	must(t, err)
	got, err := fill(t, a.Path, 5*free)
	switch {
	case !s.HardQuota():
		must(t, err)
	case !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC):
		t.Errorf("%d bytes were written where %d have room: %v", got, free, err)
	case got < free/2 || got > 2*free: // metadata counts, and a quota is looked at now and then
		t.Errorf("%d bytes were written where %d have room", got, free)
	}
	for _, c := range []struct {
		snapshot.Clone
		bytes int
	}{{b, free / 2}, {unbounded, 3 * free}} {
		if got, err := fill(t, c.Path, c.bytes); err != nil {
			t.Errorf("%s has no room after %d bytes, because another is full: %v", c.ID, got, err)
		}
	}
	left := []snapshot.Ref{a.ID, b.ID, unbounded.ID}
	// Who goes on from a turn has what that turn left of the room, not as much anew.
	if s.HardQuota() && s.Forks() {
		c, err := s.Restore(ctx, "s1", Clone("c"), free)
		must(t, err)
		_, err = fill(t, c.Path, free/2)
		must(t, err)
		must(t, os.Rename(filepath.Join(c.Path, "filling"), filepath.Join(c.Path, "before")))
		must(t, s.KeepTurn(ctx, c.ID, 1))
		fork, err := s.Fork(ctx, c.ID, 1, Clone("fork"), free)
		must(t, err)
		if got, err := fill(t, fork.Path, 2*free); err == nil || got > free*3/4 {
			t.Errorf("a fork of a turn that had taken half its room took %d bytes more: %v", got, err)
		}
		left = append(left, fork.ID, c.ID)
	}
	nothingLeft(t, s, append(left, snapshot.SnapshotID("s1"))...)
}

// depended: what others were made from can be discarded, and its name is free.
func depended(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "old") })
	b, err := s.Prepare(ctx, "s2", "s1")
	must(t, err)
	c, err := s.Restore(ctx, "s1", Clone("c"), 0)
	must(t, err)
	must(t, s.Discard(ctx, snapshot.SnapshotID("s1")))
	if _, err := s.Restore(ctx, "s1", Clone("d"), 0); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("restore of a discarded snapshot: %v", err)
	}
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Snapshots) != 0 || len(l.Bases) != 1 || len(l.Clones) != 1 || len(l.Foreign) != 0 {
		t.Errorf("list = %+v", l)
	}
	must(t, s.Sweep(ctx))
	if get(t, b.Path, "f") != "old" || get(t, c.Path, "f") != "old" {
		t.Error("a discarded snapshot took something with it")
	}
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "new") })
	must(t, s.Close())
	s = open(t, "a", "octocat")
	d, err := s.Restore(ctx, "s1", Clone("d"), 0)
	must(t, err)
	_, err = s.Snapshot(ctx, "s2", "s2", meta)
	must(t, err)
	e, err := s.Restore(ctx, "s2", Clone("e"), 0)
	must(t, err)
	if get(t, d.Path, "f") != "new" || get(t, e.Path, "f") != "old" {
		t.Error("the name leads to the wrong snapshot")
	}
	nothingLeft(t, s, snapshot.SnapshotID("s2"), c.ID, snapshot.SnapshotID("s1"), d.ID, e.ID)
}

// held: a process that stands in a clone does not keep its name.
func held(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "x") })
	c, err := s.Restore(ctx, "s1", Clone("c"), 0)
	must(t, err)
	write(t, c.Path, "f", "worked on")
	shell := exec.Command("sh", "-c", "echo; read x")
	shell.Dir = c.Path
	in, err := shell.StdinPipe()
	must(t, err)
	out, err := shell.StdoutPipe()
	must(t, err)
	must(t, shell.Start())
	defer func() { _ = shell.Process.Signal(syscall.SIGKILL) }()
	_, err = out.Read(make([]byte, 1)) // it stands there
	must(t, err)

	must(t, s.Discard(ctx, c.ID))
	if _, err := s.Clone(ctx, c.ID); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a discarded clone: %v", err)
	}
	c, err = s.Restore(ctx, "s1", Clone("c"), 0)
	must(t, err)
	if c.Existed || get(t, c.Path, "f") != "x" {
		t.Errorf("the clone that took the name: %+v, %q", c, get(t, c.Path, "f"))
	}
	_ = s.Sweep(ctx)
	if err := shell.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process that stood there: %v", err)
	}
	must(t, in.Close())
	_ = shell.Wait()
	// Collected once it is gone; some filesystems let go of it a little later.
	deadline := time.Now().Add(20 * time.Second)
	for err = s.Sweep(ctx); err != nil && time.Now().Before(deadline); err = s.Sweep(ctx) {
		time.Sleep(50 * time.Millisecond)
	}
	must(t, err)
	if get(t, c.Path, "f") != "x" {
		t.Error("the sweep took the clone that has the name now")
	}
	nothingLeft(t, s, c.ID, snapshot.SnapshotID("s1"))
}

// bounded: a base takes no more than its bound, where the store can see to that.
func bounded(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	if err := s.Bound(ctx, "b", 1<<20); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a base that is not there: %v", err)
	}
	if err := s.Bound(ctx, "../b", 1<<20); !errors.Is(err, snapshot.ErrName) {
		t.Errorf("no name: %v", err)
	}
	b, err := s.Prepare(ctx, "b", "")
	must(t, err)
	const most = 4 << 20
	must(t, s.Bound(ctx, b.ID, most))
	got, err := fill(t, b.Path, 4*most)
	switch {
	case !s.HardQuota():
		must(t, err)
	case err == nil || got < most/2 || got > 2*most:
		t.Errorf("%d bytes were written where %d are the most: %v", got, most, err)
	}
	must(t, os.Remove(filepath.Join(b.Path, "filling")))
	write(t, b.Path, "f", "x")
	_, err = s.Snapshot(ctx, b.ID, "s", meta)
	must(t, err)
	// What is made of it is not bounded by that, and one that has more already stays.
	from, err := s.Prepare(ctx, "c", "s")
	must(t, err)
	_, err = fill(t, from.Path, 2*most)
	must(t, err)
	must(t, s.Bound(ctx, from.ID, most))
	write(t, from.Path, "more", "y")
	_, err = s.Snapshot(ctx, from.ID, "s2", meta)
	must(t, err)
	c, err := s.Restore(ctx, "s2", Clone("x"), 2*most)
	must(t, err)
	must(t, os.Rename(filepath.Join(c.Path, "filling"), filepath.Join(c.Path, "big")))
	_, err = fill(t, c.Path, most)
	must(t, err)
}
