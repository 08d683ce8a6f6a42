package zfs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/zfs"
	"inspect/envs/snapshot/zfs/zfstest"
)

// childEnv makes this program the process that TestKilled kills.
const childEnv = "INSPECT_TEST_ZFS_CHILD"

// world is where the tests run.
var (
	world *zfstest.World
	roots atomic.Int64
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childEnv) != "":
		os.Exit(child())
	case os.Geteuid() != 0:
		fmt.Println("pools need root: nothing is tested")
		os.Exit(0)
	}
	os.Exit(zfstest.Main(func(w *zfstest.World) int {
		world = w
		return m.Run()
	}))
}

// run runs zfs, zpool or another program; the test ends if it fails.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := zfstest.Try(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// place is a root dataset and a directory for mounts.
type place struct{ dataset, mounts string }

// newPlace is a place that nothing else has.
func newPlace(t testing.TB) place {
	t.Helper()
	n := strconv.FormatInt(roots.Add(1), 10)
	p := place{world.Pool + "/r" + n, filepath.Join(world.Dir, "m"+n)}
	t.Cleanup(func() { p.clear(t) })
	return p
}

// clear destroys everything at the place; what a test leaves mounted or held
// must not stop the next.
func (p place) clear(t testing.TB) {
	for _, m := range mounts(t, p.mounts) {
		_ = unmount(t, m.path, unix.MNT_DETACH)
	}
	if _, err := zfstest.Try("zfs", "get", "type", p.dataset); err != nil {
		return
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := zfstest.Try("zfs", "destroy", "-R", p.dataset)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("clear: %v", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p place) open(t testing.TB, owner string) *zfs.Store {
	t.Helper()
	return p.openWith(t, zfs.Options{Owner: owner})
}

func (p place) openWith(t testing.TB, o zfs.Options) *zfs.Store {
	t.Helper()
	o.Dataset, o.Mounts = p.dataset, p.mounts
	s, err := zfs.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// unmount unmounts, when zfs-fuse has answered everything: it would answer
// nothing more after that.
func unmount(t testing.TB, path string, flags int) error {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for err := zfs.Answered(path); err != nil; err = zfs.Answered(path) {
		if time.Now().After(deadline) {
			t.Error(err)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return unix.Unmount(path, flags)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type mounted struct{ path, source string }

// mounts are those below dir.
func mounts(t testing.TB, dir string) (all []mounted) {
	t.Helper()
	body, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(body)) {
		if f := strings.Fields(line); strings.HasPrefix(f[1], dir+"/") {
			all = append(all, mounted{f[1], f[0]})
		}
	}
	return all
}

// datasets are the names below a dataset, snapshots too, without the root's own.
func datasets(t *testing.T, root string) (names []string) {
	t.Helper()
	for line := range strings.Lines(run(t, "zfs", "list", "-H", "-r", "-t", "all", "-o", "name", "-s", "name", root)) {
		if rel, ok := strings.CutPrefix(strings.TrimSpace(line), root+"/"); ok {
			names = append(names, rel)
		}
	}
	return names
}

// publish makes a snapshot of one file.
func publish(t *testing.T, s snapshot.Store, id, content string) snapshot.Info {
	t.Helper()
	b, err := s.Prepare(t.Context(), snapshot.BaseID(id), "")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(b.Path, "f"), []byte(content), 0o644))
	info, err := s.Snapshot(t.Context(), b.ID, snapshot.SnapshotID(id), snapshot.Meta{Commit: "c-" + id})
	must(t, err)
	return info
}

func content(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(path)
	must(t, err)
	return string(body)
}
