package zfs_test

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
	"inspect/envs/snapshot/zfs"
	"inspect/envs/snapshot/zfs/zfstest"
)

// smallPool is a pool of its own.
func smallPool(t *testing.T, name string, bytes int64) place {
	t.Helper()
	file := filepath.Join(world.Dir, name)
	must(t, world.MakePool(name, bytes))
	p := place{name + "/inspect", filepath.Join(world.Dir, name+"-mounts")}
	t.Cleanup(func() {
		p.clear(t)
		deadline := time.Now().Add(20 * time.Second)
		_, err := zfstest.Try("zpool", "destroy", "-f", name)
		for ; err != nil && time.Now().Before(deadline); _, err = zfstest.Try("zpool", "destroy", "-f", name) {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
		_ = os.Remove(file)
	})
	return p
}

// In a full pool nothing is made, nothing half made is left, and what is there
// can be discarded.
func TestPoolFull(t *testing.T) {
	const name = "inspectfull"
	p := smallPool(t, name, 128<<20)
	s := p.openWith(t, zfs.Options{Owner: "octocat", Fill: 100})
	ctx := t.Context()
	publish(t, s, "s1", "x")
	a, err := s.Restore(ctx, "s1", storetest.Clone("a"), 0)
	must(t, err)
	other, err := s.Restore(ctx, "s1", storetest.Clone("other"), 1<<20)
	must(t, err)

	run(t, "zfs", "create", "-o", "mountpoint="+filepath.Join(p.mounts, "rest"), name+"/rest")
	// Everything is filled, from within the clone and beside the store.
	fill(t, a.Path)
	fill(t, filepath.Join(p.mounts, "rest"))
	sp, err := s.Space(ctx)
	must(t, err)
	if sp.Free > 1<<20 {
		t.Fatalf("the pool is not full: %+v", sp)
	}
	before := datasets(t, name)
	if c, err := s.Restore(ctx, "s1", storetest.Clone("b"), 0); !errors.Is(err, snapshot.ErrNoSpace) {
		t.Errorf("restore into a full pool: %+v, %v", c, err)
	}
	if b, err := s.Prepare(ctx, "b", ""); !errors.Is(err, snapshot.ErrNoSpace) {
		t.Errorf("prepare in a full pool: %+v, %v", b, err)
	}
	if after := datasets(t, name); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("before %q\nafter %q", before, after)
	}
	if got := content(t, filepath.Join(other.Path, "f")); got != "x" {
		t.Errorf("another clone has %q", got)
	}
	must(t, s.Discard(ctx, a.ID))
	must(t, s.Discard(ctx, other.ID))
	must(t, s.Sweep(ctx))
	l, err := s.List(ctx)
	must(t, err)
	if len(l.Clones) != 0 || len(l.Snapshots) != 1 {
		t.Errorf("list = %+v", l)
	}
	for _, name := range datasets(t, p.dataset) {
		if strings.HasPrefix(name, "session/") {
			t.Errorf("left: %s", name)
		}
	}
	if _, err := s.Restore(ctx, "s1", storetest.Clone("b"), 0); err != nil {
		t.Errorf("restore when there is space again: %v", err)
	}
	if got := run(t, "zfs", "get", "-H", "-p", "-o", "value", "refreservation", p.dataset+"/reserve"); got == "0" || got == "none" {
		t.Error("the reserve was not filled again")
	}
}

// From a percentage on nothing new is made; what is there goes on.
func TestAdmission(t *testing.T) {
	const name = "inspectfill"
	p := smallPool(t, name, 128<<20)
	s := p.openWith(t, zfs.Options{Owner: "octocat", Fill: 30})
	ctx := t.Context()
	publish(t, s, "s1", "x")
	a, err := s.Restore(ctx, "s1", storetest.Clone("a"), 0)
	must(t, err)
	for sp, err := s.Space(ctx); sp.Free > sp.Total*69/100; sp, err = s.Space(ctx) {
		must(t, err)
		fillBytes(t, a.Path, 8<<20)
	}
	for what, err := range map[string]error{
		"restore": second(s.Restore(ctx, "s1", storetest.Clone("b"), 0)), "prepare": second(s.Prepare(ctx, "b", "")),
	} {
		if !errors.Is(err, snapshot.ErrNoSpace) || !strings.Contains(err.Error(), "30 %") {
			t.Errorf("%s above the percentage: %v", what, err)
		}
	}
	if again, err := s.Restore(ctx, "s1", a.ID, 0); err != nil || !again.Existed {
		t.Errorf("what is there: %+v, %v", again, err)
	}
	must(t, s.Discard(ctx, a.ID))
	must(t, s.Sweep(ctx))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // freed a little later
		if _, err = s.Restore(ctx, "s1", storetest.Clone("b"), 0); err == nil || time.Now().After(deadline) {
			break
		}
	}
	must(t, err)

	// What others fill of the pool counts, and is told before.
	rest := filepath.Join(p.mounts, "rest")
	run(t, "zfs", "create", "-o", "mountpoint="+rest, name+"/rest")
	for sp, err := s.Space(ctx); sp.Room > 0; sp, err = s.Space(ctx) {
		must(t, err)
		must(t, fillBytes(t, rest, 8<<20))
	}
	if _, err := s.Prepare(ctx, "b", ""); !errors.Is(err, snapshot.ErrNoSpace) || !strings.Contains(err.Error(), name+" is") {
		t.Errorf("prepare in a pool that others fill: %v", err)
	}
}

var files int

func fillBytes(t *testing.T, dir string, n int) error {
	t.Helper()
	files++
	f, err := os.Create(filepath.Join(dir, "fill"+strconv.Itoa(files)))
	if err != nil {
		return err
	}
	defer f.Close()
	chunk := make([]byte, 128<<10)
	for ; n > 0; n -= len(chunk) {
		_, _ = rand.Read(chunk)
		if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	return f.Sync()
}

// fill writes until nothing can be written any more.
func fill(t *testing.T, dir string) {
	t.Helper()
	for n := 64 << 20; n >= 128<<10; n /= 2 {
		for range 8 {
			err := fillBytes(t, dir, n)
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				break
			}
			must(t, err)
		}
	}
}

// While the pool is away nothing can be told: no discard is a success then.
func TestPoolExported(t *testing.T) {
	const name = "inspectaway"
	p := smallPool(t, name, 128<<20)
	s := p.open(t, "octocat")
	ctx := t.Context()
	publish(t, s, "s1", "x")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, err := zfstest.Try("zpool", "export", name)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	away(t, s)
	run(t, "zpool", "import", "-d", world.Dir, name)
	c, err := s.Restore(ctx, "s1", storetest.Clone("x"), 0)
	must(t, err)
	if got := content(t, filepath.Join(c.Path, "f")); got != "x" {
		t.Errorf("the clone has %q", got)
	}
}

func away(t *testing.T, s snapshot.Store) {
	t.Helper()
	ctx := t.Context()
	id := storetest.Clone("x")
	for what, err := range map[string]error{
		"prepare": second(s.Prepare(ctx, "b", "")), "snapshot": second(s.Snapshot(ctx, "b", "s2", snapshot.Meta{})),
		"restore": second(s.Restore(ctx, "s1", id, 0)), "clone": second(s.Clone(ctx, id)), "keep a turn": s.KeepTurn(ctx, id, 1),
		"fork": second(s.Fork(ctx, id, 1, storetest.Clone("y"), 0)), "discard": s.Discard(ctx, id), "discard the snapshot": s.Discard(ctx, snapshot.SnapshotID("s1")),
		"list": second(s.List(ctx)), "space": second(s.Space(ctx)), "sweep": s.Sweep(ctx),
	} {
		if !errors.Is(err, snapshot.ErrUnavailable) {
			t.Errorf("%s while the pool is away: %v", what, err)
		}
	}
}

// The daemon of zfs-fuse crashes: its mounts are dead until they are made anew.
func TestDaemonCrash(t *testing.T) {
	if !world.Fuse() {
		return // the kernel does not crash alone
	}
	p := newPlace(t)
	s := p.open(t, "octocat")
	ctx := t.Context()
	publish(t, s, "s1", "x")
	c, err := s.Restore(ctx, "s1", storetest.Clone("x"), 0)
	must(t, err)
	other, err := s.Restore(ctx, "s1", storetest.Clone("other"), 0)
	must(t, err)
	f, err := os.OpenFile(filepath.Join(c.Path, "f"), os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	_, err = f.WriteString("work")
	must(t, errors.Join(err, f.Sync(), f.Close()))
	world.Stop()
	away(t, s)
	if err := os.WriteFile(filepath.Join(c.Path, "g"), nil, 0o644); err == nil {
		t.Error("something was written although the pool is away")
	}
	must(t, world.Start())
	same, err := s.Clone(ctx, c.ID) // in the store that was open
	must(t, err)
	if same.Path != c.Path || content(t, filepath.Join(c.Path, "f")) != "work" {
		t.Errorf("the clone %+v has %q", same, content(t, filepath.Join(c.Path, "f")))
	}
	must(t, s.Close())
	s = p.open(t, "octocat") // and in one that is opened
	if same, err = s.Restore(ctx, "s1", other.ID, 0); err != nil || !same.Existed || content(t, filepath.Join(other.Path, "f")) != "x" {
		t.Errorf("the other clone: %+v, %v", same, err)
	}
	must(t, s.Discard(ctx, c.ID))
	must(t, s.Discard(ctx, other.ID))
	must(t, s.Sweep(ctx))
	if left := mounts(t, p.mounts); len(left) != 0 {
		t.Errorf("mounted: %v", left)
	}
}

// stopped is a clock on which nobody waits out what is waited between two tries,
// until it is released.
type stopped struct {
	proc.Clock
	waits   chan struct{} // one for each wait
	release chan struct{}
}

func (c *stopped) After(d time.Duration) <-chan time.Time {
	if d != 50*time.Millisecond {
		return c.Clock.After(d)
	}
	c.waits <- struct{}{}
	fire := make(chan time.Time, 1)
	go func() {
		<-c.release
		fire <- c.Now()
	}()
	return fire
}

// logTo sends what is logged to a channel.
func logTo(lines chan string) *slog.Logger {
	return slog.New(slog.NewTextHandler(lineWriter(lines), nil))
}

type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// A process in a clone: whoever discards it waits a bounded time, nobody else
// waits at all, and what is said names the process.
func TestHeldDelaysNobody(t *testing.T) {
	p := newPlace(t)
	clock := &stopped{Clock: proc.System(), waits: make(chan struct{}, 1000), release: make(chan struct{})}
	words := make(chan string, 100)
	s := p.openWith(t, zfs.Options{Owner: "octocat", Log: logTo(words)})
	ctx := t.Context()
	publish(t, s, "s1", "x")
	c, err := s.Restore(ctx, "s1", storetest.Clone("c"), 0)
	must(t, err)
	must(t, s.Close())
	s = p.openWith(t, zfs.Options{Owner: "octocat", Clock: clock, Log: logTo(words)})

	// It holds a mount of its own, as a sandbox does, and stands in it.
	shell := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", "cd '"+c.Path+"' && echo && read x")
	in, err := shell.StdinPipe()
	must(t, err)
	out, err := shell.StdoutPipe()
	must(t, err)
	must(t, shell.Start())
	defer func() { _ = shell.Process.Kill() }()
	_, err = out.Read(make([]byte, 1))
	must(t, err)

	done := make(chan error)
	go func() { done <- s.Discard(ctx, c.ID) }()
	<-clock.waits // it tried and waits to try again
	if _, err := s.Restore(ctx, "s1", storetest.Clone("next"), 0); err != nil {
		t.Errorf("the next session: %v", err)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	close(clock.release)
	must(t, <-done)
	if n := len(clock.waits); n > 50 {
		t.Errorf("it tried %d times", n)
	}
	said := ""
	for len(words) > 0 {
		said += <-words
	}
	if !strings.Contains(said, "held by") || !strings.Contains(said, "(process "+strconv.Itoa(shell.Process.Pid)+")") {
		t.Errorf("it does not say who has it: %s", said)
	}
	if err := s.Sweep(ctx); !errors.Is(err, snapshot.ErrBusy) {
		t.Errorf("a sweep while it is held: %v", err)
	}
	must(t, in.Close())
	_ = shell.Wait()
	deadline := time.Now().Add(20 * time.Second)
	for err = s.Sweep(ctx); err != nil && time.Now().Before(deadline); err = s.Sweep(ctx) {
		time.Sleep(50 * time.Millisecond)
	}
	must(t, err)
	if got := strings.Join(datasets(t, p.dataset+"/session"), " "); got != "next-g1-work" {
		t.Errorf("left: %s", got)
	}
}
