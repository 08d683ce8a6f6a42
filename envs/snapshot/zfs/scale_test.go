package zfs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
	"inspect/envs/snapshot/zfs/zfstest"
)

// perDir is how many files are in one directory.
const perDir = 100

// rounds is how many restores a median is of.
const rounds = 21

// filled publishes a snapshot of n small files, the first of which are those of
// an earlier one, if there is one.
func filled(t *testing.T, s snapshot.Store, n int, from snapshot.SnapshotID, has int) snapshot.SnapshotID {
	t.Helper()
	begun := time.Now()
	b, err := s.Prepare(t.Context(), snapshot.BaseID("f"+strconv.Itoa(n)), from)
	must(t, err)
	dirs := make(chan int)
	errs := make([]error, runtime.NumCPU())
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for d := range dirs {
				dir := filepath.Join(b.Path, "d"+strconv.Itoa(d))
				errs[w] = errors.Join(errs[w], os.Mkdir(dir, 0o755))
				for i := d * perDir; i < (d+1)*perDir && errs[w] == nil; i++ {
					errs[w] = os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), []byte(strconv.Itoa(i)), 0o644)
				}
			}
		})
	}
	for d := has / perDir; d < n/perDir; d++ {
		dirs <- d
	}
	close(dirs)
	wg.Wait()
	must(t, errors.Join(errs...))
	_, err = s.Snapshot(t.Context(), b.ID, snapshot.SnapshotID(b.ID), snapshot.Meta{})
	must(t, err)
	t.Logf("a snapshot of %d files, %d of them there before, was made in %v", n, has, time.Since(begun))
	return snapshot.SnapshotID(b.ID)
}

// restored measures whole restores, until the mount is verified: of each
// snapshot in turn, so that what else the machine does meets them alike.
func restored(t *testing.T, s snapshot.Store, ids ...snapshot.SnapshotID) (medians []time.Duration) {
	t.Helper()
	took := make([][]time.Duration, len(ids))
	for round := range rounds {
		for i, id := range ids {
			clone := storetest.Clone(fmt.Sprintf("%s-%d", id, round))
			begun := time.Now()
			_, err := s.Restore(t.Context(), id, clone, 1<<30)
			took[i] = append(took[i], time.Since(begun))
			must(t, err)
		}
	}
	for i, id := range ids {
		slices.Sort(took[i])
		medians = append(medians, took[i][rounds/2])
		t.Logf("%d restores of %s: median %v, least %v, most %v", rounds, id, medians[i], took[i][0], took[i][rounds-1])
	}
	begun := time.Now()
	for round := range rounds {
		for _, id := range ids {
			must(t, s.Discard(t.Context(), storetest.Clone(fmt.Sprintf("%s-%d", id, round))))
		}
	}
	t.Logf("a discard takes %v on average", time.Since(begun)/time.Duration(rounds*len(ids)))
	return medians
}

// TestScale is run on OpenZFS: zfs-fuse is too slow with many files to be
// judged by.
func TestScale(t *testing.T) {
	if os.Getenv(zfstest.OpenZFS) == "" {
		return
	}
	p := newPlace(t)
	s := p.open(t, "octocat")
	id := filled(t, s, 50_000, "", 0)
	t.Run("copy", func(t *testing.T) {
		median := restored(t, s, id)[0]
		c, err := s.Restore(t.Context(), id, storetest.Clone("original"), 0)
		must(t, err)
		if got := content(t, filepath.Join(c.Path, "d499/f49999")); got != "49999" {
			t.Errorf("the clone's last file has %q", got)
		}
		to := filepath.Join(p.mounts, "copy")
		run(t, "zfs", "create", "-o", "mountpoint="+to, p.dataset+"/copy")
		begun := time.Now()
		run(t, "cp", "-a", c.Path, filepath.Join(to, "tree"))
		copying := time.Since(begun)
		ratio := float64(copying) / float64(median)
		t.Logf("cp -a of the same within the pool takes %v: %.0f times as long as a restore", copying, ratio)
		if ratio < 50 {
			t.Error("a restore of 50000 files is not 50 times faster than cp -a")
		}
	})
	t.Run("size", func(t *testing.T) {
		medians := restored(t, s, filled(t, s, 5_000, "", 0), filled(t, s, 200_000, id, 50_000))
		ratio := float64(medians[1]) / float64(medians[0])
		t.Logf("a restore of 200000 files takes %.2f times as long as one of 5000", ratio)
		if ratio > 1.5 {
			t.Error("a restore takes longer for more files")
		}
	})
}
