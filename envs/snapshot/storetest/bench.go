package storetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"inspect/envs/snapshot"
)

// benchFiles is how many files a benchmark's snapshot has; small, as a
// repository's are.
const benchFiles = 5_000

// Bench measures whole restores, and a plain copy of the same tree on the
// store's filesystem beside them.
func Bench(b *testing.B, s snapshot.Store) {
	base, err := s.Prepare(b.Context(), "bench", "")
	must(b, err)
	for i := range benchFiles {
		write(b, base.Path, fmt.Sprintf("d%d/f%d", i/100, i), strconv.Itoa(i))
	}
	_, err = s.Snapshot(b.Context(), base.ID, "bench", meta)
	must(b, err)
	var restores, copies []time.Duration
	for n := 0; b.Loop(); n++ {
		id := Clone("bench-" + strconv.Itoa(n))
		begun := time.Now()
		c, err := s.Restore(b.Context(), "bench", id, 0)
		restores = append(restores, time.Since(begun))
		must(b, err)
		if n < 5 {
			to := filepath.Join(c.Path, "copy")
			must(b, os.Mkdir(to, 0o755))
			begun = time.Now()
			out, err := exec.Command("cp", "-a", "--reflink=never", filepath.Join(c.Path, "d0"), to).CombinedOutput()
			if err != nil {
				b.Fatalf("%v\n%s", err, out)
			}
			copies = append(copies, time.Since(begun)*benchFiles/100) // d0 has a hundred of them
		}
		must(b, s.Discard(b.Context(), id))
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2]) / float64(time.Millisecond)
	}
	b.ReportMetric(0, "ns/op") // discards count for nothing here
	b.ReportMetric(median(restores), "restore-ms/median")
	b.ReportMetric(median(copies)/median(restores), "copies/restore")
}
