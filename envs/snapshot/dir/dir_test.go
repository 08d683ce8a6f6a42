package dir_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/dir"
	"inspect/envs/snapshot/storetest"
)

func open(t testing.TB, root, owner string) *dir.Store {
	t.Helper()
	s, err := dir.Open(dir.Options{Root: root, Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	roots := map[string]string{}
	storetest.Run(t, func(t *testing.T, place, owner string) snapshot.Store {
		key := t.Name() + "/" + place
		if roots[key] == "" {
			roots[key] = filepath.Join(t.TempDir(), "store")
		}
		return open(t, roots[key], owner)
	})
}

// As an ordinary user nothing passes by privilege: run the same suite in a
// child that has dropped root.
func TestConformanceAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // TestConformance has run as one
	}
	runAs(t, 65534, "^TestConformance$")
}

// reflinks is a filesystem where files can share their blocks.
func reflinks(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	image := filepath.Join(t.TempDir(), "xfs")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 1<<30); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"mkfs.xfs", "-q", "-m", "reflink=1", image}, {"mount", "-o", "loop", image, root}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s (apt-get install xfsprogs mount): %v\n%s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", root).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	return root
}

func BenchmarkRestore(b *testing.B) {
	b.Run("this filesystem", func(b *testing.B) { storetest.Bench(b, open(b, filepath.Join(b.TempDir(), "store"), "octocat")) })
	if os.Geteuid() == 0 {
		b.Run("reflinks", func(b *testing.B) { storetest.Bench(b, open(b, filepath.Join(reflinks(b), "store"), "octocat")) })
	}
}

// Where files share their blocks turns are kept, too.
func TestConformanceWithReflinks(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root may mount
	}
	root := reflinks(t)
	s := open(t, filepath.Join(root, "probe"), "octocat")
	if err := s.KeepTurn(t.Context(), storetest.Clone("x"), 1); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("it does not know that xfs shares blocks: %v", err)
	}
	_ = s.Close()
	storetest.Run(t, func(t *testing.T, place, owner string) snapshot.Store {
		return open(t, filepath.Join(root, t.Name(), place), owner)
	})
}

func TestOpenNeedsAnOwner(t *testing.T) {
	if _, err := dir.Open(dir.Options{Root: t.TempDir()}); err == nil {
		t.Fatal("opened without an installation id")
	}
}

func TestOneProcessAtATime(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, "octocat")
	if _, err := dir.Open(dir.Options{Root: root, Owner: "octocat"}); !errors.Is(err, snapshot.ErrBusy) {
		t.Fatalf("opened twice: %v", err)
	}
	_ = s.Close()
	open(t, root, "octocat")
}

// What stands there without a mark, or with a mark in the wrong place, is left alone.
func TestUnknownIsLeftAlone(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, "octocat")
	ctx := t.Context()
	b, err := s.Prepare(ctx, "b", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(ctx, b.ID, "s1", snapshot.Meta{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(ctx, "s1", storetest.Clone("real"), 0); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	place := func(parts ...string) string {
		p := filepath.Join(append([]string{root}, parts...)...)
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	mark, err := os.ReadFile(filepath.Join(root, "session", storetest.Clone("real").String(), "owner.json"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(path string, body []byte) {
		if err := os.WriteFile(path, body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(place("session", "bare-g1-work"), "f"), []byte("x"))
	put(filepath.Join(place("session", "moved-g1-work"), "owner.json"), mark)
	put(filepath.Join(place("session", "huge-g1-work"), "owner.json"), []byte(`{"owner":"octocat","x":"`+strings.Repeat("x", 1<<20)+`"}`))
	put(filepath.Join(place("session", "broken-g1-work"), "owner.json"), []byte(`{"owner":`))
	put(filepath.Join(place("trash", "bare"), "f"), []byte("x"))
	put(filepath.Join(place("tmp", "other"), "owner.json"), []byte(`{"owner":"hubot"}`))
	put(filepath.Join(root, "trash", "file"), []byte("x"))
	place(filepath.Join("..", filepath.Base(root), "session", "fifo-g1-work"))
	if err := unix.Mkfifo(filepath.Join(root, "session", "fifo-g1-work", "owner.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(outside, "tree"), 0o755); err != nil {
		t.Fatal(err)
	}
	put(filepath.Join(outside, "owner.json"), []byte(strings.ReplaceAll(string(mark), "real", "link")))
	if err := os.Symlink(outside, filepath.Join(root, "session", "link-g1-work")); err != nil {
		t.Fatal(err)
	}

	l, err := s.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Clones) != 1 || len(l.Foreign) != 6 {
		t.Errorf("clones %v, foreign %v", l.Clones, l.Foreign)
	}
	for _, name := range []string{"bare", "moved", "huge", "broken", "fifo", "link"} {
		if err := s.Discard(ctx, storetest.Clone(name)); !errors.Is(err, snapshot.ErrForeign) {
			t.Errorf("discard %s: %v", name, err)
		}
		if _, err := s.Restore(ctx, "s1", storetest.Clone(name), 0); !errors.Is(err, snapshot.ErrForeign) {
			t.Errorf("restore as %s: %v", name, err)
		}
	}
	if err := s.Sweep(ctx); err != nil {
		t.Error(err)
	}
	for _, p := range []string{"session/bare-g1-work/f", "session/moved-g1-work/owner.json", "trash/bare/f", "tmp/other/owner.json", "trash/file", "session/link-g1-work"} {
		if _, err := os.Lstat(filepath.Join(root, p)); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "owner.json")); err != nil {
		t.Error(err)
	}
}

// Whatever a crash leaves in tmp and trash is cleared, and nothing half made
// is ever shown.
func TestSweepAfterACrash(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, "octocat")
	ctx := t.Context()
	b, err := s.Prepare(ctx, "b", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b.Path, "x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The states a kill can leave: a mark without its directory, an empty
	// directory, a directory with a part of its tree, a half-removed one.
	for _, step := range []error{
		os.WriteFile(filepath.Join(root, "tmp/AAA.marker"), []byte(`{"ow`), 0o600),
		os.Mkdir(filepath.Join(root, "tmp/BBB"), 0o711),
		os.WriteFile(filepath.Join(root, "tmp/BBB.marker"), []byte(`{"owner":"octocat"}`), 0o600),
		os.Mkdir(filepath.Join(root, "trash/CCC"), 0o711),
		os.Rename(filepath.Join(root, "base/b"), filepath.Join(root, "tmp/DDD")),
		os.Mkdir(filepath.Join(root, "trash/EEE"), 0o711),
		os.WriteFile(filepath.Join(root, "trash/EEE/owner.json"), []byte(`{"owner":"octocat"}`), 0o600),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	s = open(t, root, "octocat")
	l, err := s.List(ctx)
	if err != nil || len(l.Bases)+len(l.Clones)+len(l.Snapshots)+len(l.Foreign) != 0 {
		t.Fatalf("list %+v, %v", l, err)
	}
	if err := s.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"tmp", "trash"} {
		left, err := os.ReadDir(filepath.Join(root, kind))
		if err != nil || len(left) != 0 {
			t.Errorf("%s holds %v, %v", kind, left, err)
		}
	}
}

func TestSnapshotRepeatedAfterACrashInBetween(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, "octocat")
	ctx := t.Context()
	if _, err := s.Prepare(ctx, "b", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(ctx, "b", "s", snapshot.Meta{Commit: "c"}); err != nil {
		t.Fatal(err)
	}
	// The new mark was written, the rename did not happen.
	if err := os.Rename(filepath.Join(root, "snapshot/s"), filepath.Join(root, "base/b")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Restore(ctx, "s", storetest.Clone("x"), 0); !errors.Is(err, snapshot.ErrNotFound) {
		t.Errorf("restore of a snapshot that was never published: %v", err)
	}
	l, err := s.List(ctx)
	if err != nil || len(l.Bases) != 1 || len(l.Snapshots) != 0 {
		t.Errorf("list %+v, %v", l, err)
	}
	if _, err := s.Snapshot(ctx, "b", "s", snapshot.Meta{Commit: "c"}); err != nil {
		t.Error(err)
	}
}

func TestSnapshotIsBusyWhileARestoreRuns(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, "octocat")
	ctx := t.Context()
	b, err := s.Prepare(ctx, "b", "")
	if err != nil {
		t.Fatal(err)
	}
	// Enough to copy that the restore is still running when discard is asked
	// for; the busy answer is then seen at least once before it succeeds.
	for i := range 40 {
		d := filepath.Join(b.Path, "d"+strings.Repeat("x", i))
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 40 {
			if err := os.WriteFile(filepath.Join(d, "f"+strings.Repeat("y", j)), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Snapshot(ctx, "b", "s", snapshot.Meta{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Restore(ctx, "s", storetest.Clone("x"), 0)
		done <- err
	}()
	// Begun when its directory in tmp is there.
	for {
		entries, err := os.ReadDir(filepath.Join(root, "tmp"))
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 0 {
			break
		}
	}
	derr := s.Discard(ctx, snapshot.SnapshotID("s"))
	rerr := <-done
	if rerr != nil {
		t.Errorf("the restore broke: %v", rerr)
	}
	if !errors.Is(derr, snapshot.ErrBusy) {
		t.Errorf("discard while a restore runs: %v", derr)
	}
}

func TestCancelledRestoreLeavesNothing(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, "octocat")
	b, err := s.Prepare(t.Context(), "b", "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(b.Path, time.Unix(int64(i), 0).UTC().Format("150405")), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Snapshot(t.Context(), "b", "s", snapshot.Meta{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Restore(ctx, "s", storetest.Clone("x"), 0)
		done <- err
	}()
	for {
		if entries, _ := os.ReadDir(filepath.Join(root, "tmp")); len(entries) > 0 {
			break
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	for _, kind := range []string{"tmp", "session", "trash"} {
		if left, _ := os.ReadDir(filepath.Join(root, kind)); len(left) != 0 {
			t.Errorf("%s holds %v", kind, left)
		}
	}
}
