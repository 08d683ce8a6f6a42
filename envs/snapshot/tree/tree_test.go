package tree_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot/tree"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, path string, size int) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o644))
}

// nest makes directories below each other, deeper than any path can name.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

func TestUsage(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	file(t, filepath.Join(outside, "big"), 8<<20)
	file(t, filepath.Join(dir, "a/one"), 1<<20)
	must(t, os.Link(filepath.Join(dir, "a/one"), filepath.Join(dir, "two")))
	must(t, os.Symlink(outside, filepath.Join(dir, "out")))
	must(t, os.Symlink("..", filepath.Join(dir, "up")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	used, err := tree.Usage(t.Context(), dir, tree.UsageLimits{})
	must(t, err)
	if used.Bytes < 1<<20 || used.Bytes > 3<<19 || !used.Whole || used.Limit || used.Entries != 6 {
		t.Errorf("used = %+v", used)
	}
	holes := filepath.Join(dir, "holes")
	file(t, holes, 0)
	must(t, os.Truncate(holes, 1<<40))
	if used, err := tree.Usage(t.Context(), dir, tree.UsageLimits{}); err != nil || used.Bytes > 3<<19 {
		t.Errorf("holes were counted: %+v, %v", used, err)
	}
}

func TestUsageIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		file(t, filepath.Join(dir, strconv.Itoa(i)), 1)
	}
	used, err := tree.Usage(t.Context(), dir, tree.UsageLimits{Entries: 10})
	if err != nil || !used.Limit || used.Whole || used.Entries != 10 {
		t.Errorf("entries: %+v, %v", used, err)
	}
	nest(t, dir, 3000)
	defer tree.Remove(context.Background(), filepath.Join(dir, "d"))
	used, err = tree.Usage(t.Context(), dir, tree.UsageLimits{Depth: 100})
	if err != nil || !used.Limit || used.Entries > 200 {
		t.Errorf("depth: %+v, %v", used, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tree.Usage(ctx, dir, tree.UsageLimits{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := tree.Usage(t.Context(), filepath.Join(dir, "none"), tree.UsageLimits{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no tree: %v", err)
	}
}

func TestRemove(t *testing.T) {
	parent, outside := t.TempDir(), t.TempDir()
	file(t, filepath.Join(outside, "keep"), 1)
	dir := filepath.Join(parent, "tree")
	file(t, filepath.Join(dir, "a/b/c"), 1)
	nest(t, filepath.Join(dir, "a"), 3000)
	file(t, filepath.Join(dir, "removed-1"), 1) // the name of what Remove moves up first
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, os.Symlink(outside, filepath.Join(dir, "a/b/link")))
	for i := range 2000 {
		file(t, filepath.Join(dir, "wide", strconv.Itoa(i)), 0)
	}
	must(t, os.Chmod(filepath.Join(dir, "a/b"), 0))
	must(t, os.Chmod(filepath.Join(dir, "a"), 0o100))
	must(t, tree.Remove(t.Context(), dir))
	must(t, tree.Remove(t.Context(), dir)) // not found
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
	// The tree itself may be a link or a file.
	must(t, os.Symlink(outside, dir))
	must(t, tree.Remove(t.Context(), dir))
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
}

// While something swaps a directory for a link and back, nothing outside goes.
func TestRemoveRacesWithAWriter(t *testing.T) {
	outside := t.TempDir()
	for i := range 20 {
		file(t, filepath.Join(outside, "x", strconv.Itoa(i)), 1)
	}
	dir := filepath.Join(t.TempDir(), "tree")
	var wg sync.WaitGroup
	must(t, os.Mkdir(dir, 0o755))
	written := make(chan struct{})
	wg.Go(func() {
		defer close(written)
		for i := range 1000 {
			p := filepath.Join(dir, "x")
			_ = os.Mkdir(p, 0o755)
			_ = os.WriteFile(filepath.Join(p, "0"), nil, 0o644)
			_ = os.Rename(p, filepath.Join(dir, "moved"+strconv.Itoa(i)))
			_ = os.Symlink(filepath.Join(outside, "x"), p)
			_ = os.Remove(p)
		}
	})
	for writing := true; writing; {
		_ = tree.Remove(t.Context(), dir) // may fail: it is written to
		_ = os.Mkdir(dir, 0o755)
		select {
		case <-written:
			writing = false
		default:
		}
	}
	wg.Wait()
	must(t, tree.Remove(t.Context(), dir))
	if left, err := os.ReadDir(filepath.Join(outside, "x")); err != nil || len(left) != 20 {
		t.Errorf("outside: %d files, %v", len(left), err)
	}
}

// A mount inside a tree is not entered, neither to copy nor to remove.
func TestMountInside(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root can mount; an ordinary user's trees cannot have one
	}
	dir := filepath.Join(t.TempDir(), "tree")
	mount := filepath.Join(dir, "m")
	must(t, os.MkdirAll(mount, 0o755))
	must(t, unix.Mount("tmpfs", mount, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(mount, unix.MNT_DETACH)
	file(t, filepath.Join(mount, "keep"), 1)
	got, err := tree.Copy(t.Context(), dir, dir+"-copy", tree.CopyOptions{})
	if err != nil || got.LeftOutCount != 1 || got.LeftOut[0] != "m" {
		t.Errorf("copy: %+v, %v", got, err)
	}
	if err := tree.Remove(t.Context(), dir); !errors.Is(err, tree.ErrMounted) {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Stat(filepath.Join(mount, "keep")); err != nil {
		t.Error(err)
	}
	must(t, unix.Unmount(mount, 0))
	must(t, tree.Remove(t.Context(), dir))
}

func TestCopyBounds(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	must(t, os.Mkdir(from, 0o755))
	nest(t, from, 1000)
	defer tree.Remove(context.Background(), from)
	if _, err := tree.Copy(t.Context(), from, filepath.Join(dir, "to"), tree.CopyOptions{Depth: 300}); !errors.Is(err, tree.ErrDepth) {
		t.Errorf("too deep: %v", err)
	}
	must(t, tree.Remove(t.Context(), filepath.Join(dir, "to")))
	must(t, os.Symlink(from, filepath.Join(dir, "link")))
	if _, err := tree.Copy(t.Context(), filepath.Join(dir, "link"), filepath.Join(dir, "to"), tree.CopyOptions{}); err == nil {
		t.Error("a link was followed")
	}
	if _, err := tree.Copy(t.Context(), dir, from, tree.CopyOptions{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("onto something: %v", err)
	}
}

// Many names of one file, in many directories copied at the same time, stay one.
func TestCopyKeepsHardLinks(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	file(t, filepath.Join(from, "one"), 200<<10)
	for i := range 40 {
		sub := filepath.Join(from, strconv.Itoa(i))
		must(t, os.Mkdir(sub, 0o755))
		must(t, os.Link(filepath.Join(from, "one"), filepath.Join(sub, "link")))
	}
	got, err := tree.Copy(t.Context(), from, to, tree.CopyOptions{Workers: 8})
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(to, "one"), &st))
	if st.Nlink != 41 || got.Files != 1 {
		t.Errorf("%d names, %d files copied", st.Nlink, got.Files)
	}
}
