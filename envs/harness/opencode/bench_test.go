package opencode

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/harnesstest"
	"inspect/envs/wire"
	"inspect/fixtures/harnesses"
	"inspect/fixtures/modeld"
)

// BenchmarkBoot is from the begin of the sandbox's start until the agent could
// take its first prompt, and then a whole turn of a follow-up prompt: two calls
// of a model that answers at once, and one command. The CPU seconds are the
// server's, all threads and those of the main one, which is the one that waits
// for nobody; on a busy machine they say more than the time.
func BenchmarkBoot(b *testing.B) {
	var ready, turn, cpu, main, rss float64
	for range b.N {
		m, err := modeld.New(modeld.Options{Models: []string{model}, Scripts: []modeld.Script{{Steps: []modeld.Step{
			modeld.Say("One."), modeld.Run("true"), modeld.Say("Two."),
		}}}})
		if err != nil {
			b.Fatal(err)
		}
		h, err := m.AddFault(modeld.Fault{Kind: modeld.FaultHold})
		if err != nil {
			b.Fatal(err)
		}
		var begun time.Time
		fill := harnesstest.Repository(b, map[string]string{"a": "1"})
		box := harnesstest.NewBox(b, harnesses.Path(b, "opencode"), door(b, m), func(dir string) {
			fill(dir)
			begun = time.Now()
		})
		r := bootIn(b, box, m, wire.APIChat)
		<-r.Ready()
		ready += time.Since(begun).Seconds()
		f := strings.Fields(r.sh(b, `p=$(pgrep -x opencode); echo $(cut -d')' -f2 /proc/$p/stat) ; cut -d')' -f2 /proc/$p/task/$p/stat; grep VmRSS /proc/$p/status`))
		const utime, fields = 11, 50
		cpu += ticks(b, f[utime]) + ticks(b, f[utime+1])
		main += ticks(b, f[fields+utime]) + ticks(b, f[fields+utime+1])
		rss += ticks(b, f[2*fields+1]) / 10.24 // kB to MiB
		r.prompt(b, "one")
		<-h.Hit()
		r.prompt(b, "two")
		r.settled(b)
		begun = time.Now()
		h.Release()
		if err := r.Await(deadline(b), func(e harness.Event) bool {
			p, ok := e.Data.(wire.Prompted)
			return ok && p.Prompt == 2 && p.Done
		}); err != nil {
			b.Fatal(err)
		}
		turn += time.Since(begun).Seconds()
		r.wait(b)
	}
	n := float64(b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ready/n, "s/ready")
	b.ReportMetric(cpu/n, "cpu-s")
	b.ReportMetric(main/n, "main-cpu-s")
	b.ReportMetric(rss/n, "MiB")
	b.ReportMetric(turn/n, "s/turn")
}

func ticks(b *testing.B, s string) float64 {
	b.Helper()
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n / 100
}
