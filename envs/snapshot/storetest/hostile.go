package storetest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

func loses(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	info := publish(t, s, "s1", func(dir string) {
		write(t, dir, "d/file", "x")
		must(t, unix.Mkfifo(filepath.Join(dir, "d/fifo"), 0o644))
		must(t, os.Symlink("fifo", filepath.Join(dir, "d/to-fifo")))
		must(t, os.Link(filepath.Join(dir, "d/fifo"), filepath.Join(dir, "d/second")))
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		must(t, err)
		defer unix.Close(fd)
		// Bound by a short relative path: socket addresses hold 107 bytes.
		d, err := os.Open(filepath.Join(dir, "d"))
		must(t, err)
		defer d.Close()
		must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + itoa(int(d.Fd())) + "/sock"}))
	})
	slices.Sort(info.LeftOut)
	if info.LeftOutCount != 3 || !slices.Equal(info.LeftOut, []string{"d/fifo", "d/second", "d/sock"}) {
		t.Errorf("left out: %d %q", info.LeftOutCount, info.LeftOut)
	}
	c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	if got := read(t, filepath.Join(c.Path, "d")); !slices.Equal(got, []string{"file", "to-fifo"}) {
		t.Errorf("the clone has %q", got)
	}
}

func badNames(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	ctx := t.Context()
	for _, bad := range []string{"", ".", "..", "a/b", "../x", "-rf", "a\x00b", "a b", "ä", strings.Repeat("a", 300)} {
		if _, err := s.Prepare(ctx, snapshot.BaseID(bad), ""); !errors.Is(err, snapshot.ErrName) {
			t.Errorf("base %q: %v", bad, err)
		}
		if _, err := s.Restore(ctx, snapshot.SnapshotID(bad), Clone("x"), 0); !errors.Is(err, snapshot.ErrName) {
			t.Errorf("snapshot %q: %v", bad, err)
		}
		if err := s.Discard(ctx, Clone(bad)); !errors.Is(err, snapshot.ErrName) {
			t.Errorf("clone of session %q: %v", bad, err)
		}
		if err := s.Discard(ctx, snapshot.CloneID{Session: "x", Generation: 1, Purpose: bad}); !errors.Is(err, snapshot.ErrName) {
			t.Errorf("clone for %q: %v", bad, err)
		}
	}
}

func foreign(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) { write(t, dir, "f", "x") })
	c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	_, err = s.Prepare(t.Context(), "b", "")
	must(t, err)
	must(t, s.Close())

	other := open(t, "a", "hubot")
	ctx := t.Context()
	l, err := other.List(ctx)
	must(t, err)
	if len(l.Bases)+len(l.Snapshots)+len(l.Clones) != 0 {
		t.Errorf("another installation lists %+v", l)
	}
	for _, ref := range []snapshot.Ref{c.ID, snapshot.SnapshotID("s1"), snapshot.BaseID("b")} {
		if err := other.Discard(ctx, ref); !errors.Is(err, snapshot.ErrForeign) {
			t.Errorf("discard of a foreign %T: %v", ref, err)
		}
	}
	if _, err := other.Restore(ctx, "s1", Clone("y"), 0); !errors.Is(err, snapshot.ErrForeign) {
		t.Errorf("restore of a foreign snapshot: %v", err)
	}
	if _, err := other.Clone(ctx, c.ID); !errors.Is(err, snapshot.ErrForeign) {
		t.Errorf("a foreign clone: %v", err)
	}
	must(t, other.Sweep(ctx))
	must(t, other.Close())
	s = open(t, "a", "octocat")
	if same, err := s.Restore(ctx, "s1", Clone("x"), 0); err != nil || get(t, same.Path, "f") != "x" {
		t.Errorf("after another installation's visit: %+v, %v", same, err)
	}
}

// links: nothing a link points to is read into a copy, changed or removed.
func links(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	outside := t.TempDir()
	write(t, outside, "keep/secret", "outside")
	must(t, os.Chmod(filepath.Join(outside, "keep/secret"), 0o640))
	publish(t, s, "s1", func(dir string) {
		must(t, os.Symlink(outside, filepath.Join(dir, "abs")))
		must(t, os.Symlink(filepath.Join(outside, "keep/secret"), filepath.Join(dir, "file")))
		up, err := filepath.Rel(dir, outside)
		must(t, err)
		must(t, os.Symlink(up, filepath.Join(dir, "rel")))
		must(t, os.Symlink(".", filepath.Join(dir, "self")))
		must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	})
	c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	for _, name := range []string{"abs", "file", "rel", "self", "loop"} {
		if st := stat(t, c.Path, name); st.Mode&unix.S_IFMT != unix.S_IFLNK {
			t.Errorf("%s is no link any more", name)
		}
	}
	must(t, s.Discard(t.Context(), c.ID))
	must(t, s.Discard(t.Context(), snapshot.SnapshotID("s1")))
	must(t, s.Sweep(t.Context()))
	if st := stat(t, outside, "keep/secret"); st.Mode&0o777 != 0o640 || get(t, outside, "keep/secret") != "outside" {
		t.Error("what a link pointed to was touched")
	}
}

func unreadable(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	publish(t, s, "s1", func(dir string) {
		write(t, dir, "shut/in/file", "x")
		write(t, dir, "mute", "y")
		must(t, os.Chmod(filepath.Join(dir, "mute"), 0))
		must(t, os.Chmod(filepath.Join(dir, "shut/in"), 0o500))
		must(t, os.Chmod(filepath.Join(dir, "shut"), 0))
	})
	c, err := s.Restore(t.Context(), "s1", Clone("x"), 0)
	must(t, err)
	must(t, os.Chmod(filepath.Join(c.Path, "shut"), 0o700))
	if got := get(t, c.Path, "shut/in/file"); got != "x" {
		t.Errorf("in the unreadable directory: %q", got)
	}
	must(t, os.Chmod(filepath.Join(c.Path, "shut"), 0))
	must(t, s.Discard(t.Context(), c.ID))
	must(t, s.Discard(t.Context(), snapshot.SnapshotID("s1")))
	must(t, s.Sweep(t.Context()))
}

func tooDeep(t *testing.T, open Open) {
	s := open(t, "a", "octocat")
	b, err := s.Prepare(t.Context(), "b", "")
	must(t, err)
	nest(t, b.Path, 3000)
	if _, err := s.Snapshot(t.Context(), "b", "s1", meta); err == nil {
		t.Error("a tree nested 3000 levels deep became a snapshot")
	}
	must(t, s.Discard(t.Context(), snapshot.BaseID("b")))
	must(t, s.Sweep(t.Context()))
	l, err := s.List(t.Context())
	must(t, err)
	if len(l.Bases)+len(l.Snapshots) != 0 {
		t.Errorf("left: %+v", l)
	}
}

// nest makes directories below each other, deeper than any path can name.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, "deeper", 0o755))
		next, err := unix.Openat(fd, "deeper", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}
