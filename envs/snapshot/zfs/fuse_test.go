package zfs_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/storetest"
	"inspect/envs/snapshot/zfs"
)

// A file was closed and the daemon has not heard of it yet.
func TestFileClosedBeforeUnmount(t *testing.T) {
	if !world.Fuse() {
		return // the kernel tells itself at once
	}
	p := newPlace(t)
	s := p.open(t, "octocat")
	publish(t, s, "s1", "x")
	c, err := s.Restore(t.Context(), "s1", storetest.Clone("x"), 0)
	must(t, err)
	dir, err := os.Open(c.Path)
	must(t, err)
	must(t, world.Halted(func() {
		must(t, dir.Close())
		if err := s.Unmount(c.ID.String()); !errors.Is(err, snapshot.ErrBusy) {
			t.Errorf("unmounted too early: %v", err)
		}
		if m := mounts(t, p.mounts); len(m) != 1 {
			t.Errorf("mounted: %v", m)
		}
	}))
	goes(t, s, p, c)
}

// The last that has the clone is a process with a mount of its own, which ends.
func TestFileClosedAfterUnmount(t *testing.T) {
	if !world.Fuse() {
		return
	}
	p := newPlace(t)
	s := p.open(t, "octocat")
	publish(t, s, "s1", "x")
	c, err := s.Restore(t.Context(), "s1", storetest.Clone("x"), 0)
	must(t, err)
	shell := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", "exec 3<'"+c.Path+"' && echo && read x")
	in, err := shell.StdinPipe()
	must(t, err)
	out, err := shell.StdoutPipe()
	must(t, err)
	must(t, shell.Start())
	_, err = out.Read(make([]byte, 1))
	must(t, err)
	must(t, s.Discard(t.Context(), c.ID))
	if m := mounts(t, p.mounts); len(m) != 0 {
		t.Errorf("mounted: %v", m)
	}
	must(t, world.Halted(func() {
		must(t, in.Close())
		_ = shell.Wait()
	}))
	goes(t, s, p, c)
}

// goes fails if the clone does not go, or if the daemon answers nobody any more.
func goes(t *testing.T, s *zfs.Store, p place, c snapshot.Clone) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		err := s.Discard(t.Context(), c.ID)
		for sweep := s.Sweep(t.Context()); err == nil && sweep != nil; sweep = s.Sweep(t.Context()) {
			if !errors.Is(sweep, snapshot.ErrBusy) {
				err = sweep
			}
		}
		done <- err
	}()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		world.Stop()
		t.Error("zfs-fuse answers nobody any more")
		must(t, world.Start())
		return
	}
	for _, name := range datasets(t, p.dataset) {
		if strings.HasPrefix(name, "session/") {
			t.Errorf("left: %s", name)
		}
	}
}
