package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/node/dial"
	"inspect/envs/snapshot/zfs/zfstest"
	"inspect/envs/wire"
)

const (
	killedSessions = 200
	killedWorkers  = 16
	killedDaemons  = 5
)

// daemonKilled kills the node daemon again and again while sixteen runners have
// sessions restored and discarded. Afterwards exactly what the control plane
// knows is there, and nothing else is mounted, held or running.
func daemonKilled(t *testing.T) {
	w := newWorld(t)
	quick := func(d *daemonOptions) { d.CollectEvery, d.Grace = 2*time.Second, time.Nanosecond }
	d := w.spawn(quick)
	w.plane.set(func(p *plane) { p.refs.Snapshots = []string{"snap-1"} })
	w.refreshed(1, "snap-1")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	steps := make(chan struct{}, 2*killedSessions)
	work := make(chan int)
	var wg sync.WaitGroup
	for range killedWorkers {
		wg.Go(func() {
			for n := range work {
				if err := w.session(ctx, n, func() { steps <- struct{}{} }); err != nil {
					t.Errorf("session %d: %v", n, err)
				}
			}
		})
	}
	go func() {
		for n := range killedSessions {
			work <- n
		}
		close(work)
		wg.Wait()
		close(steps)
	}()

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	share := (killedSessions + killedSessions*3/4) / killedDaemons // of all steps
	kills, next := 0, 1+random.IntN(share)
	for range steps {
		if next--; next > 0 || kills == killedDaemons {
			continue
		}
		kill(t, d, syscall.SIGKILL)
		kills++
		next = 1 + random.IntN(share)
		d = w.serve(quick)
	}
	if kills != killedDaemons {
		t.Errorf("killed %d times", kills)
	}
	w.leftExactly()
	kill(t, d, syscall.SIGTERM)
	until(t, "no process of a sandbox is left", func() bool { return removeGroups(filepath.Base(filepath.Dir(w.root))) })
	own, err := os.Readlink("/proc/self/ns/mnt")
	must(t, err)
	for _, p := range processesIn(t, filepath.Join(w.root, "zfs", "session")) {
		if ns, err := os.Readlink(filepath.Join(filepath.Dir(strings.Fields(p)[0]), "ns/mnt")); err == nil && ns != own {
			t.Errorf("has a clone: %s", p)
		}
	}
}

// serve starts a daemon until one serves, as `inspect serve` does: while a
// command of one that was killed still runs, the store is closed to the next.
func (w *world) serve(change ...func(*daemonOptions)) (d *exec.Cmd) {
	w.t.Helper()
	until(w.t, "a daemon serves", func() bool {
		if d != nil {
			var info unix.Siginfo
			must(w.t, unix.Waitid(unix.P_PID, d.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil))
			if info.Signo == 0 {
				c, err := net.Dial("unix", w.socket)
				if err == nil {
					c.Close()
				}
				return err == nil
			}
		}
		d = w.spawn(change...)
		return false
	})
	return d
}

// leftExactly waits until nothing is left but the sessions that are kept, and
// says what is there instead.
func (w *world) leftExactly() {
	w.t.Helper()
	dataset := w.daemonOptions().Dataset
	want := []string{"base", "image", "reserve", "session", "snapshot", "snapshot/snap-1", "snapshot/snap-1@published"}
	var at []string
	for n := 0; n < killedSessions; n += 8 {
		id := work(fmt.Sprintf("s%d", n)).String()
		want, at = append(want, "session/"+id), append(at, filepath.Join(w.root, "zfs", "session", id))
	}
	slices.Sort(want)
	slices.Sort(at)
	var have []string
	deadline := time.Now().Add(2 * time.Minute)
	for !slices.Equal(have, want) && time.Now().Before(deadline) {
		printed, err := zfstest.Try("zfs", "list", "-H", "-t", "all", "-o", "name", "-r", dataset)
		must(w.t, err)
		have = nil
		for _, name := range strings.Fields(printed) {
			if rel, ok := strings.CutPrefix(name, dataset+"/"); ok {
				have = append(have, rel)
			}
		}
		slices.Sort(have)
		time.Sleep(50 * time.Millisecond) // polls; a collection has no signal
	}
	if !slices.Equal(have, want) {
		w.t.Errorf("datasets %q\nwant %q", have, want)
	}
	var mounted []string
	body, err := os.ReadFile("/proc/self/mounts")
	must(w.t, err)
	for line := range strings.Lines(string(body)) {
		if path := strings.Fields(line)[1]; strings.HasPrefix(path, w.root+"/") {
			mounted = append(mounted, path)
		}
	}
	slices.Sort(mounted)
	if !slices.Equal(mounted, at) {
		w.t.Errorf("mounted %q\nwant %q", mounted, at)
	}
	holds, err := zfstest.Try("zfs", "get", "-H", "-p", "-o", "value", "userrefs", dataset+"/snapshot/snap-1@published")
	if err != nil || holds != "0" {
		w.t.Errorf("the snapshot has %s holds: %v", holds, err)
	}
}

// session is what a runner does, with what the control plane notes of it: of
// eight sessions one is kept, and one is given up by its runner.
func (w *world) session(ctx context.Context, n int, step func()) error {
	ref := wire.SessionRef{Session: fmt.Sprintf("s%d", n), Generation: 1}
	known := func(yes bool) {
		w.plane.set(func(p *plane) {
			p.refs.Sessions = slices.DeleteFunc(slices.Clone(p.refs.Sessions), func(r wire.SessionRef) bool { return r == ref })
			if yes {
				p.refs.Sessions = append(p.refs.Sessions, ref)
			}
		})
	}
	known(true)
	grant := w.grant(ref.Session, wire.PurposeWork, "snap-1")
	if _, err := dial.Restore(ctx, w.socket, grant); err != nil {
		return err
	}
	step()
	if n%9 == 0 { // of every kind
		c, _, err := dialSandbox(ctx, w.socket, grant)
		if err != nil {
			return err
		}
		defer c.Close()
	}
	switch n % 8 {
	case 0:
		return nil
	case 1:
		known(false)
		return nil
	}
	if err := dial.Discard(ctx, w.socket, grant); err != nil {
		return err
	}
	step()
	known(false)
	return nil
}
