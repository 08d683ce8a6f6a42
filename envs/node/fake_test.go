package node_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/node"
	"inspect/envs/sandbox"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// fakeLauncher isolates nothing: for tests of what the daemon decides.
type fakeLauncher struct {
	mu      sync.Mutex
	boxes   map[string]*fakeBox
	all     int
	events  []string // "reap x", in order
	stuck   string   // id that cannot be reaped
	onReap  func(id string)
	foreign []string // ids of others on this machine
}

type fakeBox struct {
	l       *fakeLauncher
	id      string
	control *os.File
	over    chan struct{}
	once    sync.Once
}

func (b *fakeBox) Wait() wire.SandboxEnd { <-b.over; return wire.SandboxEnd{ExitCode: 137} }

func (b *fakeBox) Kill(context.Context) error {
	b.once.Do(func() {
		b.control.Close()
		b.l.mu.Lock()
		delete(b.l.boxes, b.id)
		b.l.mu.Unlock()
		close(b.over)
	})
	return nil
}

func (l *fakeLauncher) Probe(context.Context) (sandbox.Probe, error) {
	return sandbox.Probe{Tier: "fake", Limits: "best effort: fake"}, nil
}

func (l *fakeLauncher) Start(_ context.Context, s sandbox.Spec) (node.Sandbox, error) {
	defer s.Control.Close()
	fd, err := unix.FcntlInt(s.Control.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	b := &fakeBox{l: l, id: s.ID, control: os.NewFile(uintptr(fd), "control"), over: make(chan struct{})}
	l.mu.Lock()
	if l.boxes[s.ID] != nil {
		l.mu.Unlock()
		b.control.Close()
		return nil, sandbox.ErrRunning
	}
	l.boxes[s.ID] = b
	l.all++
	l.mu.Unlock()
	go func() { // the lifeline
		_, _ = io.Copy(io.Discard, b.control)
		_ = b.Kill(context.Background())
	}()
	return b, nil
}

func (l *fakeLauncher) Reap(_ context.Context, id string) error {
	l.mu.Lock()
	b := l.boxes[id]
	l.events = append(l.events, "reap "+id)
	stuck, hook := l.stuck == id, l.onReap
	l.foreign = slices.DeleteFunc(l.foreign, func(f string) bool { return f == id && !stuck })
	l.mu.Unlock()
	if hook != nil {
		hook(id)
	}
	if stuck {
		return errors.New("its processes do not end")
	}
	if b != nil {
		return b.Kill(context.Background())
	}
	return nil
}

func (l *fakeLauncher) List() ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := slices.Clone(l.foreign)
	for id := range l.boxes {
		ids = append(ids, id)
	}
	return ids, nil
}

func (l *fakeLauncher) Alive(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.boxes[id] != nil || slices.Contains(l.foreign, id)
}

func (l *fakeLauncher) started() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// fakeNode is a daemon over a real store with a launcher that isolates nothing.
type fakeNode struct {
	t        *testing.T
	store    snapshot.Store
	launcher *fakeLauncher
	stop     func()
}

func newFakeWorld(t *testing.T, change ...func(*nodeOptions)) (*world, *fakeNode) {
	w := newWorld(t)
	return w, w.startFake(change...)
}

func (w *world) startFake(change ...func(*nodeOptions)) *fakeNode {
	w.t.Helper()
	must(w.t, os.MkdirAll(w.root, 0o711))
	d := w.daemonOptions()
	store, err := openStore(d, w.clock, testLog(w.t))
	must(w.t, err)
	f := &fakeNode{t: w.t, store: store, launcher: &fakeLauncher{boxes: map[string]*fakeBox{}}}
	uid, gid := sandboxAccount()
	o := node.Options{
		Name: nodeName, Root: d.Root, Socket: d.Socket, ControlURL: d.Control, Token: nodeToken, GrantKey: d.Key, GitBase: d.GitBase,
		Store: store, Launcher: f.launcher, SandboxUID: uid, SandboxGID: gid, MinFree: -1, Clock: w.clock, Log: testLog(w.t),
	}
	for _, c := range change {
		c(&o)
	}
	for len(w.plane.asked) > 0 {
		<-w.plane.asked
	}
	f.stop = w.run(o, func() { _ = store.Close() })
	// The first collection has listed what is there once it asks: it would take
	// a base that a test makes by hand for one that a daemon left half done.
	select {
	case <-w.plane.asked:
	case <-time.After(20 * time.Second):
		w.t.Fatal("the daemon does not collect")
	}
	return f
}

// publish makes a snapshot without a refresh.
func (f *fakeNode) publish(id snapshot.SnapshotID) {
	f.t.Helper()
	b, err := f.store.Prepare(f.t.Context(), snapshot.BaseID(id), "")
	must(f.t, err)
	for _, d := range []string{"work", "home"} {
		must(f.t, os.Mkdir(filepath.Join(b.Path, d), 0o755))
	}
	_, err = f.store.Snapshot(f.t.Context(), b.ID, id, snapshot.Meta{Commit: "c0ffee"})
	must(f.t, err)
}

func (f *fakeNode) restore(id snapshot.SnapshotID, session string) {
	f.t.Helper()
	_, err := f.store.Restore(f.t.Context(), id, work(session), 0)
	must(f.t, err)
}
