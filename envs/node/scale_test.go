package node_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"inspect/envs/node/dial"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/zfs/zfstest"
	"inspect/envs/wire"
)

// restoresOnZFS measures whole restores as a runner sees them: from the request to
// the daemon until the clone is mounted and that was verified. zfs-fuse is too slow
// with files to be judged by; on OpenZFS a tenth of a large repository's 50,000
// files is copied beside them, whose restore takes no longer: the store's own tests
// show that.
func restoresOnZFS(t *testing.T) {
	const rounds, perDir, large = 21, 100, 50_000
	judged := os.Getenv(zfstest.OpenZFS) != ""
	files := perDir
	if judged {
		files = large / 10
	}
	// A collection would take what is made here by hand for what is half done.
	w, f := newFakeWorld(t, func(o *nodeOptions) { o.CollectEvery = time.Hour })
	b, err := f.store.Prepare(t.Context(), "s", "")
	must(t, err)
	for n := range files {
		dir := filepath.Join(b.Path, "work", strconv.Itoa(n/perDir))
		if n%perDir == 0 {
			must(t, os.MkdirAll(dir, 0o755))
		}
		must(t, os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), []byte(strconv.Itoa(n)), 0o644))
	}
	_, err = f.store.Snapshot(t.Context(), b.ID, "s", snapshot.Meta{})
	must(t, err)
	var took []time.Duration
	for n := range rounds {
		grant := w.grant("s"+strconv.Itoa(n), wire.PurposeWork, "s")
		begun := time.Now()
		_, err := dial.Restore(t.Context(), w.socket, grant)
		took = append(took, time.Since(begun))
		must(t, err)
	}
	c, err := f.store.Clone(t.Context(), snapshot.CloneID{Session: "s0", Generation: 1, Purpose: wire.PurposeWork})
	must(t, err)
	last := strconv.Itoa(files - 1)
	if got, err := os.ReadFile(filepath.Join(c.Path, "work", strconv.Itoa((files-1)/perDir), last)); err != nil || string(got) != last {
		t.Errorf("the clone's last file has %q, %v", got, err)
	}
	to, err := f.store.Prepare(t.Context(), "copy", "")
	must(t, err)
	begun := time.Now()
	out, err := exec.CommandContext(t.Context(), "cp", "-a", c.Path, filepath.Join(to.Path, "tree")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	copied := time.Since(begun) * time.Duration(large/files)
	slices.Sort(took)
	median := took[rounds/2]
	ratio := float64(copied) / float64(median)
	t.Logf("%d restores through the daemon: median %v, least %v, most %v; cp -a within the pool takes %v for %d files, of which %d were copied: %.0f times as long",
		rounds, median, took[0], took[rounds-1], copied, large, files, ratio)
	if judged && ratio < 50 {
		t.Error("a restore through the daemon is not 50 times faster than cp -a")
	}
}
