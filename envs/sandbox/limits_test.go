package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// forkBomb goes on however often it is refused. (A shell gives up.)
var forkBomb = []string{"perl", "-e", `while (1) { defined(fork) or print STDERR "no fork\n" }`}

func TestForkBomb(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, func(s *Spec) { s.Limits.Pids = 50 })
		ctx, cancel := context.WithCancel(deadline(t))
		refusals := newWatcher("no fork")
		cmd, err := b.Client.Start(ctx, stream.Exec{Argv: forkBomb, Stderr: refusals, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-refusals.seen:
		case <-ctx.Done():
			t.Fatal("no fork was refused")
		}
		if b.group != nil {
			if n := int64(len(b.group.pids())); n > theLauncher(t).tier.host(Spec{Limits: wire.Limits{Pids: 50}}).Pids+inside.ReservedPids {
				t.Errorf("%d processes are in the cgroup", n)
			}
		}
		// The init keeps answering, be it that it can start nothing more.
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				x, err := b.Run(deadline(t), stream.Exec{Argv: []string{"true"}, Stdin: strings.NewReader("x")})
				var failed *stream.StartError
				if err != nil && !errors.As(err, &failed) {
					t.Errorf("while the bomb burns: %+v %v", x, err)
				}
			})
		}
		wg.Wait()
		cancel()
		if _, err := cmd.Wait(); !errors.Is(err, context.Canceled) {
			t.Fatalf("the bomb: %v", err)
		}
		if b.must(t, "echo over") != "over\n" {
			t.Error("the init does not serve any more")
		}
		_ = b.Client.Close()
		if end := b.Sandbox.Wait(); (b.group != nil || tierOf(t) == wire.TierGVisor) && end.PidsHit == 0 {
			t.Errorf("the refused forks were not counted: %+v", end)
		}
	})
}

func TestMemoryFlood(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, func(s *Spec) { s.Limits.MemoryBytes = 96 << 20 })
		// tail keeps a line without an end in memory.
		flood := stream.Exec{Argv: []string{"sh", "-c", "head -c 400000000 /dev/zero | tail -n 1 | wc -c"}}
		if root && tierOf(t) == wire.TierGVisor { // its kernel is what uses the memory
			if x, err := b.Run(deadline(t), flood); !errors.Is(err, stream.ErrEnded) {
				t.Errorf("the flood passed: %+v %v", x, err)
			}
			if end := b.Sandbox.Wait(); end.OOM == 0 || end.ExitCode != 137 {
				t.Errorf("the kill was not counted: %+v", end)
			}
			return
		}
		r := b.exec(t, flood)
		if root && !strings.Contains(r.err, "Killed") && r.Signal != "SIGKILL" && r.Code != 137 && r.out == "400000000\n" {
			t.Errorf("the flood passed: %+v", r)
		}
		if b.must(t, "echo alive") != "alive\n" {
			t.Error("the init does not serve any more")
		}
		_ = b.Client.Close()
		if end := b.Sandbox.Wait(); root && end.OOM == 0 {
			t.Errorf("the kill was not counted: %+v", end)
		}
	})
}

// A gigabyte of output costs nobody memory, and the sandbox goes on.
func TestLogFlood(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		const size = 1 << 30
		b := start(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var out, errs count
		x, err := b.Run(ctx, stream.Exec{
			// In large pieces: in gVisor a small one costs as much.
			Argv: []string{"sh", "-c", fmt.Sprintf("half() { dd if=/dev/zero bs=1M count=%d status=none; }; half & half >&2; wait", size>>21)}, Stdout: &out, Stderr: &errs,
		})
		runtime.ReadMemStats(&after)
		if err != nil || x.Code != 0 || out+errs != size {
			t.Errorf("%d and %d bytes, %+v %v", out, errs, x, err)
		}
		if grown := int64(after.Sys) - int64(before.Sys); grown > 64<<20 {
			t.Errorf("it cost this process %d bytes", grown)
		}
		if b.must(t, "echo over") != "over\n" {
			t.Error("the init does not serve any more")
		}
	})
}

// count is a writer that counts.
type count int64

func (c *count) Write(b []byte) (int, error) {
	*c += count(len(b))
	return len(b), nil
}

// Empty files end a sandbox too, before they have used up the inodes.
func TestInodeFlood(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		measured := make(chan struct{}, 1)
		b := start(t, func(s *Spec) {
			s.Limits.DiskBytes = 4 << 20
			s.DiskUsage = func(ctx context.Context) (int64, error) {
				n, err := s.mountUsage(ctx)
				if n > s.Limits.DiskBytes {
					close(measured)
				}
				return n, err
			}
		})
		_, err := b.Run(deadline(t), stream.Exec{Argv: []string{"perl", "-e", `for (1..2000) { open F, ">f$_" or die; close F } sleep 1000`}})
		<-measured
		if end := b.Sandbox.Wait(); !end.DiskFull || !errors.Is(err, stream.ErrEnded) {
			t.Errorf("the end: %+v, %v", end, err)
		}
	})
}

func TestCommandsAreKilledBeforeTheInit(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		// It is set right after the start, which the command may be ahead of.
		b.must(t, `until [ "$(cat /proc/$$/oom_score_adj)" = 500 ]; do :; done`)
		if got := b.must(t, "cat /proc/1/oom_score_adj"); got != "0\n" {
			t.Errorf("the init has %s", got)
		}
	})
}

func TestTmpfsFlood(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, func(s *Spec) { s.Limits.MemoryBytes = 256 << 20; s.TmpBytes = 8 << 20 })
		for _, dir := range []string{"/tmp", "/dev/shm", "/run", "/home/agent"} {
			r := b.sh(t, "head -c 300000000 /dev/zero > "+dir+"/flood")
			if r.Code == 0 || !strings.Contains(r.err, "No space left") {
				t.Errorf("%s: status %d, %q", dir, r.Code, r.err)
			}
		}
		_ = b.Client.Close()
		if end := b.Sandbox.Wait(); end.OOM != 0 {
			t.Errorf("the floods cost memory: %+v", end)
		}
	})
}

func TestTmpfsSizesStayBelowMemory(t *testing.T) {
	for _, s := range []Spec{{}, {TmpBytes: 1 << 40}, {TmpBytes: 1 << 20}} {
		for _, mem := range []int64{LeastMemory, 256 << 20, 8 << 30} {
			s.Limits.MemoryBytes = mem
			if tmp, shm, run := s.tmpfsSizes(); tmp+shm+2*run > mem/2 || tmp <= 0 || shm <= 0 || run <= 0 {
				t.Errorf("memory %d: %d %d %d", mem, tmp, shm, run)
			}
		}
	}
}

func TestCPULimit(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, func(s *Spec) { s.Limits.CPU = 0.25 })
		r := b.sh(t, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
		if r.Code != 0 {
			t.Fatal(r)
		}
		if r.CPU < 50*time.Millisecond {
			t.Fatalf("the work took only %s of CPU", r.CPU)
		}
		if root && throttled(t, b.group) == 0 {
			t.Error("it was never held up")
		}
		// A quarter of a processor needs four times the work's time, less the
		// first period that may be used at once. (gVisor counts its own time.)
		if root && tierOf(t) == wire.TierBubblewrap && r.Duration < 3*r.CPU-200*time.Millisecond {
			t.Errorf("%s of CPU in %s: not limited to a quarter", r.CPU, r.Duration)
		}
	})
}

// throttled is how often a group was held up for its limit of processor time.
func throttled(t *testing.T, g *group) int64 {
	t.Helper()
	dir := g.dir(g.c.unified)
	if !g.c.isV2() {
		dir = g.dir(g.c.v1["cpu"])
	}
	return counter(filepath.Join(dir, "cpu.stat"), "nr_throttled")
}

func TestFileSizeLimit(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, func(s *Spec) { s.Limits.DiskBytes = 1 << 20; s.DiskUsage = never })
		r := b.sh(t, "head -c 3000000 /dev/zero > f; echo $?; stat -c %s f")
		if !strings.HasSuffix(r.out, "\n1048576\n") {
			t.Errorf("%+v", r)
		}
	})
}

func never(context.Context) (int64, error) { return 0, nil }

func TestDiskLimit(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		clock := proc.NewFake(time.Now())
		o := testOptions(t)
		o.Clock = clock
		l := newLauncher(t, o)
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		work := shared(t)
		s := testSpec(t, work, theirs)
		s.Limits.DiskBytes = 1 << 20
		measured := make(chan int64, 100)
		s.DiskUsage = func(ctx context.Context) (int64, error) {
			n, err := s.mountUsage(ctx)
			measured <- n
			return n, err
		}
		sb, err := l.Start(deadline(t), s)
		if err != nil {
			t.Fatal(err)
		}
		b := box{sb, stream.NewClient(ours), work}
		defer b.Client.Close()
		tick := func() int64 {
			t.Helper()
			if err := clock.BlockUntil(deadline(t), 1); err != nil {
				t.Fatal(err)
			}
			clock.Advance(diskEvery)
			return <-measured
		}
		b.must(t, "head -c 500000 /dev/zero > a")
		if n := tick(); n < 500_000 || n > 1<<20 {
			t.Fatalf("%d bytes were measured", n)
		}
		b.must(t, "for i in 1 2 3; do head -c 500000 /dev/zero > b$i; done")
		tick()
		<-sb.Done()
		if end := sb.Wait(); !end.DiskFull {
			t.Errorf("the end: %+v", end)
		}
	})
}

// Files without a name count, whoever in the sandbox holds them and however. A
// host's file that was deleted does not.
func TestDeletedFilesCount(t *testing.T) {
	if !root {
		t.Skip("what a sandbox holds is seen through its cgroup, which only root can make")
	}
	for how, script := range map[string]string{
		"open":   `for my $n (1..4) { open my $f, "+>f$n" or die; unlink "f$n"; print $f "x" x 4e5; $f->flush; push @f, $f }`,
		"mapped": `for my $n (1..4) { open my $f, "+>f$n" or die; print $f "x" x 4e5; $f->flush; my $a = syscall(9, 0, 4e5, 1, 1, fileno($f), 0); die if $a == -1; unlink "f$n"; close $f }`,
	} {
		t.Run(how, func(t *testing.T) {
			eachTier(t, func(t *testing.T) {
				b := start(t, func(s *Spec) { s.Limits.DiskBytes = 1 << 20 })
				_, err := b.Run(deadline(t), stream.Exec{Argv: []string{"perl", "-MIO::Handle", "-e", script + ` sleep 1000`}})
				if end := b.Sandbox.Wait(); !end.DiskFull || !errors.Is(err, stream.ErrEnded) {
					t.Errorf("the end: %+v, %v", end, err)
				}
			})
		})
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 100_000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Symlink("/", filepath.Join(dir, "root")),
		os.Mkdir(filepath.Join(dir, "sub"), 0o700),
		os.WriteFile(filepath.Join(dir, "sub", "f"), make([]byte, 100_000), 0o600),
		os.Truncate(filepath.Join(dir, "0"), 1<<40),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	n, err := Usage(t.Context(), dir)
	if err != nil || n < 400_000 || n > 500_000 {
		t.Errorf("%d bytes, %v", n, err)
	}
	deep := filepath.Join(dir, strings.Repeat("d/", 600))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Usage(t.Context(), dir); !errors.Is(err, errDeep) {
		t.Errorf("nested directories: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Usage(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

// watcher is a writer that tells when one of some words has come by.
type watcher struct {
	words []string
	seen  chan struct{}
	done  atomic.Bool
	tail  string
}

func newWatcher(words ...string) *watcher { return &watcher{words: words, seen: make(chan struct{})} }

func (w *watcher) Write(b []byte) (int, error) {
	w.tail += string(b)
	for _, word := range w.words {
		if strings.Contains(w.tail, word) && !w.done.Swap(true) {
			close(w.seen)
		}
	}
	if len(w.tail) > 4096 {
		w.tail = w.tail[len(w.tail)-1024:]
	}
	return len(b), nil
}
