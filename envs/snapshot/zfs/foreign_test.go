package zfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
	"inspect/envs/snapshot/zfs"
	"inspect/envs/snapshot/zfs/zfstest"
)

// An installation that is erased leaves nothing of its own, and takes nothing of
// others'.
func TestErase(t *testing.T) {
	p := newPlace(t)
	fill := func(owner string) snapshot.Store {
		s := p.open(t, owner)
		publish(t, s, "of-"+owner, "x")
		c, err := s.Restore(t.Context(), snapshot.SnapshotID("of-"+owner), storetest.Clone("c-"+owner), 0)
		must(t, err)
		must(t, s.KeepTurn(t.Context(), c.ID, 1))
		_, err = s.Fork(t.Context(), c.ID, 1, storetest.Clone("f-"+owner), 0)
		must(t, err)
		_, err = s.Prepare(t.Context(), snapshot.BaseID("b-"+owner), "")
		must(t, err)
		return s
	}
	options := func(owner string) zfs.Options {
		return zfs.Options{Dataset: p.dataset, Mounts: p.mounts, Owner: owner}
	}
	other := fill("hubot")
	must(t, other.Close())
	before := datasets(t, p.dataset)
	s := fill("octocat")
	if err := zfs.Erase(t.Context(), options("octocat")); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("while it is open: %v", err)
	}
	must(t, s.Close())
	must(t, zfs.Erase(t.Context(), options("octocat")))
	if after := datasets(t, p.dataset); !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}
	must(t, zfs.Erase(t.Context(), options("hubot")))
	if out, err := zfstest.Try("zfs", "list", "-H", "-o", "name", p.dataset); err == nil {
		t.Errorf("the root is left: %s", out)
	}
	// What somebody else has made stays, empty or not.
	run(t, "zfs", "create", "-o", "canmount=off", "-o", "mountpoint=none", p.dataset)
	must(t, fill("octocat").Close())
	must(t, zfs.Erase(t.Context(), options("octocat")))
	run(t, "zfs", "list", p.dataset)
}

// Two daemons of one installation, each with a place of its own for mounts: the
// second would collect what the first is asked to keep.
func TestOneDaemonForADataset(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	second := place{p.dataset, p.mounts + "-second"}
	options := zfs.Options{Dataset: second.dataset, Mounts: second.mounts, Owner: "octocat"}
	if other, err := zfs.Open(t.Context(), options); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("opened by a second daemon: %v", err)
		must(t, other.Close())
	}
	must(t, s.Close())
	second.open(t, "octocat")
	// Another installation's is another store.
	p.open(t, "hubot")
}

// What does not carry our mark itself survives everything, also where it has a
// name that we would use.
func TestForeignSurvives(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	publish(t, s, "s1", "x")
	c, err := s.Restore(ctx, "s1", storetest.Clone("real"), 0)
	must(t, err)
	// A mark that is inherited is none; one of another installation neither, nor
	// one that was copied to another name.
	run(t, "zfs", "set", "io.inspect:owner=octocat", p.dataset+"/session")
	mark := run(t, "zfs", "get", "-H", "-o", "value", "io.inspect:about", p.dataset+"/session/real-g1-work")
	off := []string{"-o", "canmount=off", "-o", "mountpoint=none"}
	foreign := []string{
		"base/b", "base/other", "mine", "session/bare-g1-work", "session/below-g1-work", "session/hubots-g1-work",
		"session/inherited-g1-work", "session/moved-g1-work", "snapshot/s2", "snapshot/s3",
	}
	for _, name := range foreign {
		run(t, append(append([]string{"zfs", "create"}, off...), p.dataset+"/"+name)...)
	}
	run(t, append(append([]string{"zfs", "create"}, off...), p.dataset+"/session/below-g1-work/deeper")...)
	run(t, "zfs", "set", "io.inspect:owner=hubot", p.dataset+"/session/hubots-g1-work")
	run(t, "zfs", "set", "io.inspect:owner=octocat", p.dataset+"/session/moved-g1-work")
	run(t, "zfs", "set", "io.inspect:about="+mark, p.dataset+"/session/moved-g1-work")
	run(t, "zfs", "snapshot", p.dataset+"/snapshot/s2@published")
	run(t, "zfs", "snapshot", "-o", "io.inspect:owner=octocat", p.dataset+"/snapshot/s3@published")

	l, err := s.List(ctx)
	must(t, err)
	if len(l.Bases) != 0 || len(l.Snapshots) != 1 || len(l.Clones) != 1 || !slices.Equal(l.Foreign, foreign) {
		t.Errorf("list = %+v", l)
	}
	before := datasets(t, p.dataset)
	for what, err := range map[string]error{
		"prepare":            second(s.Prepare(ctx, "b", "")),
		"snapshot to it":     second(s.Snapshot(ctx, "b", "s2", snapshot.Meta{})),
		"discard a base":     s.Discard(ctx, snapshot.BaseID("b")),
		"discard a snapshot": s.Discard(ctx, snapshot.SnapshotID("s2")),
		"discard another":    s.Discard(ctx, snapshot.SnapshotID("s3")),
		"restore from it":    second(s.Restore(ctx, "s2", storetest.Clone("y"), 0)),
		"prepare from it":    second(s.Prepare(ctx, "b2", "s2")),
		"fork":               second(s.Fork(ctx, storetest.Clone("bare"), 1, storetest.Clone("y"), 0)),
	} {
		if !errors.Is(err, snapshot.ErrForeign) && !(what == "prepare" && errors.Is(err, snapshot.ErrExists)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"bare", "below", "hubots", "inherited", "moved"} {
		id := storetest.Clone(name)
		for what, err := range map[string]error{
			"discard": s.Discard(ctx, id), "restore": second(s.Restore(ctx, "s1", id, 0)),
			"clone": second(s.Clone(ctx, id)), "keep": s.KeepTurn(ctx, id, 1),
		} {
			if !errors.Is(err, snapshot.ErrForeign) {
				t.Errorf("%s %s: %v", what, name, err)
			}
		}
	}
	must(t, s.Sweep(ctx))
	if after := datasets(t, p.dataset); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}

	// A snapshot that somebody took of our clone keeps the clone, not its name.
	run(t, "zfs", "snapshot", p.dataset+"/session/real-g1-work@hourly")
	must(t, s.KeepTurn(ctx, c.ID, 1))
	must(t, s.Discard(ctx, c.ID))
	if err := s.Sweep(ctx); !errors.Is(err, snapshot.ErrForeign) {
		t.Errorf("the sweep says nothing of the snapshot in its way: %v", err)
	}
	if !slices.Contains(datasets(t, p.dataset), "session/real-g1-work@hourly") {
		t.Error("somebody's snapshot is gone")
	}
	c, err = s.Restore(ctx, "s1", c.ID, 0)
	must(t, err)
	if c.Existed || content(t, filepath.Join(c.Path, "f")) != "x" {
		t.Errorf("the clone that took the name: %+v", c)
	}
	run(t, "zfs", "destroy", p.dataset+"/session/real-g1-work@hourly")
	must(t, s.Sweep(ctx))
	if slices.Contains(datasets(t, p.dataset), "session/real-g1-work") {
		t.Error("the tombstone stays")
	}
}

// A publication that was broken off is begun anew, with what the base holds then.
func TestPublicationBrokenOff(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	b, err := s.Prepare(ctx, "b", "")
	must(t, err)
	run(t, "zfs", "snapshot", p.dataset+"/base/b@published")
	if _, err := s.Snapshot(ctx, "b", "s", snapshot.Meta{}); !errors.Is(err, snapshot.ErrForeign) {
		t.Errorf("over somebody's snapshot: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(b.Path, "f"), []byte("still there"), 0o644)) // it is the caller's
	run(t, "zfs", "set", "io.inspect:owner=octocat", p.dataset+"/base/b@published")
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Bases) != 1 || len(l.Snapshots) != 0 {
		t.Errorf("list = %+v", l)
	}
	_, err = s.Snapshot(ctx, "b", "s", snapshot.Meta{})
	must(t, err)
	c, err := s.Restore(ctx, "s", storetest.Clone("x"), 0)
	must(t, err)
	if got := content(t, filepath.Join(c.Path, "f")); got != "still there" {
		t.Errorf("the clone has %q", got)
	}
}

func second[T any](_ T, err error) error { return err }

// What is renamed or destroyed behind our back is an error that says so, and
// nothing half made is left.
func TestBehindOurBack(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	for _, id := range []string{"state", "dataset", "gone", "good"} {
		publish(t, s, id, id)
	}
	run(t, "zfs", "rename", p.dataset+"/snapshot/state@published", p.dataset+"/snapshot/state@renamed")
	run(t, "zfs", "rename", p.dataset+"/snapshot/dataset", p.dataset+"/snapshot/renamed")
	run(t, "zfs", "destroy", p.dataset+"/snapshot/gone@published")
	run(t, "zfs", "destroy", p.dataset+"/snapshot/gone")
	for _, id := range []snapshot.SnapshotID{"state", "dataset", "gone"} {
		if _, err := s.Restore(ctx, id, storetest.Clone("x"), 0); !errors.Is(err, snapshot.ErrNotFound) {
			t.Errorf("restore from %s: %v", id, err)
		}
		if _, err := s.Prepare(ctx, "b", id); !errors.Is(err, snapshot.ErrNotFound) {
			t.Errorf("prepare from %s: %v", id, err)
		}
	}
	if _, err := s.Restore(ctx, "renamed", storetest.Clone("x"), 0); !errors.Is(err, snapshot.ErrForeign) {
		t.Errorf("restore from what was renamed: %v", err)
	}
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Bases)+len(l.Clones) != 0 || len(l.Snapshots) != 1 || !slices.Equal(l.Foreign, []string{"snapshot/renamed", "snapshot/state"}) {
		t.Errorf("list = %+v", l)
	}
	must(t, s.Discard(ctx, snapshot.SnapshotID("state")))
	must(t, s.Discard(ctx, snapshot.SnapshotID("gone")))
	if got := datasets(t, p.dataset+"/snapshot"); !slices.Equal(got, []string{"good", "good@published", "renamed", "renamed@published"}) {
		t.Errorf("left: %q", got)
	}
	if len(mounts(t, p.mounts)) != 0 {
		t.Errorf("mounted: %v", mounts(t, p.mounts))
	}

	// A clone that was destroyed, and one that only is not mounted any more.
	c, err := s.Restore(ctx, "good", storetest.Clone("x"), 0)
	must(t, err)
	var fs unix.Statfs_t
	must(t, unix.Statfs(c.Path, &fs))
	if fs.Flags&unix.ST_NOSUID == 0 || fs.Flags&unix.ST_NODEV == 0 {
		t.Errorf("the clone is mounted with flags %x", fs.Flags)
	}
	must(t, os.WriteFile(filepath.Join(c.Path, "f"), []byte("work"), 0o644))
	must(t, unmount(t, c.Path, 0))
	st, err := os.Stat(c.Path)
	must(t, err)
	if st.Mode().Perm() != 0 {
		t.Errorf("anybody can write where the clone was: %v", st.Mode())
	}
	again, err := s.Clone(ctx, c.ID)
	must(t, err)
	if again.Path != c.Path || content(t, filepath.Join(c.Path, "f")) != "work" {
		t.Errorf("the clone %+v has %q", again, content(t, filepath.Join(c.Path, "f")))
	}
	must(t, unmount(t, c.Path, 0))
	must(t, unix.Mount("tmpfs", c.Path, "tmpfs", 0, ""))
	if _, err := s.Restore(ctx, "good", c.ID, 0); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("restore where something else is mounted: %v", err)
	}
	left, err := os.ReadDir(c.Path)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("written outside of the clone: %v", left)
	}
	must(t, unmount(t, c.Path, 0))
	if c, err = s.Restore(ctx, "good", c.ID, 0); err != nil || !c.Existed || content(t, filepath.Join(c.Path, "f")) != "work" {
		t.Errorf("restore repeated: %+v, %v", c, err)
	}
	must(t, s.Discard(ctx, c.ID))
	must(t, s.Sweep(ctx))
	if _, err := s.Clone(ctx, c.ID); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("a clone that is gone: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	p := newPlace(t)
	for _, o := range []zfs.Options{
		{Dataset: p.dataset},
		{Dataset: world.Pool, Owner: "octocat"},
		{Dataset: p.dataset + "/../x", Owner: "octocat"},
		{Dataset: "-R/" + world.Pool, Owner: "octocat"},
		{Dataset: p.dataset + "@s", Owner: "octocat"},
		{Dataset: p.dataset, Owner: "octocat", Fill: 101},
	} {
		o.Mounts = p.mounts
		if s, err := zfs.Open(t.Context(), o); err == nil {
			s.Close()
			t.Errorf("opened with %+v", o)
		}
	}
	if _, err := zfs.Open(t.Context(), zfs.Options{Dataset: "nosuchpool/inspect", Mounts: p.mounts, Owner: "octocat"}); !errors.Is(err, snapshot.ErrUnavailable) {
		t.Errorf("a pool that is not there: %v", err)
	}
	s := p.open(t, "octocat")
	if _, err := zfs.Open(t.Context(), zfs.Options{Dataset: p.dataset, Mounts: p.mounts, Owner: "octocat"}); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("opened twice: %v", err)
	}
	must(t, s.Close())
	p.open(t, "octocat")
}

// A clone that can only be read is none, nor is what would be made below a root
// that can only be read; nothing half made stays.
func TestReadOnly(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	publish(t, s, "s1", "x")
	c, err := s.Restore(ctx, "s1", storetest.Clone("c"), 0)
	must(t, err)
	run(t, "zfs", "set", "readonly=on", p.dataset)
	before := datasets(t, p.dataset)
	for what, err := range map[string]error{
		"clone": second(s.Clone(ctx, c.ID)), "restore again": second(s.Restore(ctx, "s1", c.ID, 0)),
		"restore": second(s.Restore(ctx, "s1", storetest.Clone("d"), 0)), "prepare": second(s.Prepare(ctx, "b", "")),
	} {
		if !errors.Is(err, snapshot.ErrUnavailable) || !strings.Contains(err.Error(), "can only be read") {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, s.Sweep(ctx))
	if after := datasets(t, p.dataset); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
	run(t, "zfs", "inherit", "readonly", p.dataset)
	c, err = s.Restore(ctx, "s1", c.ID, 0)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(c.Path, "f"), []byte("y"), 0o644))
}

// What somebody has mounted over a clone stays, and keeps the clone's dataset but
// not its id.
func TestMountedOver(t *testing.T) {
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	publish(t, s, "s1", "x")
	c, err := s.Restore(ctx, "s1", storetest.Clone("c"), 0)
	must(t, err)
	must(t, unix.Mount("tmpfs", c.Path, "tmpfs", 0, ""))
	must(t, os.WriteFile(filepath.Join(c.Path, "theirs"), nil, 0o644))
	must(t, s.Discard(ctx, c.ID))
	if err := s.Sweep(ctx); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("the sweep says nothing of what is in its way: %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.Path, "theirs")); err != nil {
		t.Errorf("what was mounted over it: %v", err)
	}
	if _, err := s.Clone(ctx, c.ID); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("the clone that was discarded: %v", err)
	}
	if _, err := s.Restore(ctx, "s1", c.ID, 0); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("restored where something else is mounted: %v", err)
	}
	must(t, unix.Unmount(c.Path, 0))
	must(t, s.Sweep(ctx))
	if got := datasets(t, p.dataset+"/session"); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
	if len(mounts(t, p.mounts)) != 0 {
		t.Errorf("mounted: %v", mounts(t, p.mounts))
	}
}
