package node_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"inspect/envs/node"
	"inspect/envs/node/dial"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/zfs/zfstest"
	"inspect/envs/wire"
)

// onZFSEnv makes this program one whose daemons have the zfs store, on pool.
const onZFSEnv = "INSPECT_TEST_NODE_ZFS"

var pool string

func storeName() string {
	if pool != "" {
		return "zfs"
	}
	return "dir"
}

// TestOnZFS runs what is central again, on a real pool.
func TestOnZFS(t *testing.T) {
	if os.Geteuid() != 0 {
		return // pools need root
	}
	if pool == "" {
		self, err := os.Executable()
		must(t, err)
		cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.run", "^TestOnZFS$")
		cmd.Env = append(os.Environ(), onZFSEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestOnZFS/")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	t.Run("life of an environment", TestLifeOfAnEnvironment)
	t.Run("turns", turnsOnZFS)
	t.Run("quota", quotaOnZFS)
	t.Run("full under a session", fullOnZFS)
	t.Run("restores", restoresOnZFS)
	t.Run("collection", TestCollectsWhatNobodyNeeds)
	t.Run("killed", daemonKilled)
	t.Run("killed during a refresh", TestKilledDuringARefresh)
	t.Run("image of a repository", TestImageOfARepository)
	t.Run("killed during an import", TestKilledDuringAnImport)
}

// discardAll discards what a test's daemon leaves on the pool.
func (w *world) discardAll() {
	ctx := context.WithoutCancel(w.t.Context()) // the test is over
	store, err := openStore(w.daemonOptions(), proc.System(), testLog(w.t))
	if err != nil {
		w.t.Error(err)
		return
	}
	defer store.Close()
	l, err := store.List(ctx)
	if err != nil {
		w.t.Error(err)
	}
	var all []snapshot.Ref
	for _, c := range l.Clones {
		all = append(all, c.ID)
	}
	for _, b := range l.Bases {
		all = append(all, b.ID)
	}
	for _, s := range l.Snapshots {
		all = append(all, s.ID)
	}
	for _, i := range l.Images {
		all = append(all, i.ID)
	}
	for _, ref := range all {
		if err := store.Discard(ctx, ref); err != nil {
			w.t.Error(err)
		}
	}
	until(w.t, "what was discarded is gone", func() bool { return store.Sweep(ctx) == nil })
}

// A turn is kept while a sandbox is at work, and a fork has what was there then.
func turnsOnZFS(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1", turns)
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	c, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer c.Close()
	for turn, word := range []string{"one", "two"} {
		sh(t, c, "echo "+word+" >f")
		must(t, dial.KeepTurn(t.Context(), w.socket, grant, turn+1))
	}
	fork := w.grant("s2", wire.PurposeWork, "", forkOf("s1", 1))
	_, err = dial.Restore(t.Context(), w.socket, fork)
	must(t, err)
	// It needs the other one no more.
	must(t, dial.Discard(t.Context(), w.socket, grant))
	f, _, err := dialSandbox(t.Context(), w.socket, fork)
	must(t, err)
	defer f.Close()
	if got := sh(t, f, "cat f"); got != "one" {
		t.Errorf("the fork of turn 1 has %q", got)
	}
}

// A session has its disk limit beside what the snapshot holds, whatever that is;
// the pool itself stops it there, and what ended it is said.
func quotaOnZFS(t *testing.T) {
	w := newWorld(t)
	w.start()
	// A snapshot of more than the sessions' limit.
	w.refreshed(1, "snap-1", "head -c 6291456 /dev/urandom >$HOME/big")
	small := func(g *wire.Grant) { g.Limits.DiskBytes = 4 << 20 }
	sandboxed := func(session string) dial.Running {
		grant := w.grant(session, wire.PurposeWork, "snap-1", small)
		_, err := dial.Restore(t.Context(), w.socket, grant)
		must(t, err)
		run, err := dial.Sandbox(t.Context(), w.socket, grant)
		must(t, err)
		return run
	}
	within := sandboxed("s1")
	sh(t, within.Client, "head -c 2097152 /dev/urandom >more && sync more")
	const fill = "head -c 16777216 /dev/urandom >more; sync more; true"
	over := sandboxed("s2")
	_, _ = over.Client.Run(t.Context(), stream.Exec{Argv: []string{"sh", "-c", fill + "; exec sleep 60"}})
	if end := <-over.Ends; !end.DiskFull {
		t.Errorf("over its limit it ended with %+v", end)
	}
	// By now the first was measured, too.
	if got := sh(t, within.Client, "echo still >here && cat here"); got != "still" {
		t.Errorf("the other session has %q", got)
	}
	must(t, within.Client.Close())
	if end := <-within.Ends; end.DiskFull {
		t.Errorf("within its limit it ended with %+v", end)
	}
	// One that ends by itself before anybody measures.
	quick := sandboxed("s3")
	_, _ = quick.Client.Run(t.Context(), stream.Exec{Argv: []string{"sh", "-c", fill}})
	_ = quick.Client.Close()
	if end := <-quick.Ends; !end.DiskFull {
		t.Errorf("at its limit it ended with %+v", end)
	}
}

// A pool that others fill under a session is told as that, and not as the
// session's own limit; also when there is space again before the session ends.
func fullOnZFS(t *testing.T) {
	w := newWorld(t)
	seen := make(telling, 1)
	w.start(func(o *node.Options) {
		o.Log = slog.New(slog.NewTextHandler(seen, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	w.refreshed(1, "snap-1")
	dataset := w.daemonOptions().Dataset
	t.Cleanup(func() { bound(t, dataset, "none") })
	for _, session := range []string{"s1", "s2"} {
		select {
		case <-seen: // of the one before
		default:
		}
		grant := w.grant(session, wire.PurposeWork, "snap-1")
		_, err := dial.Restore(t.Context(), w.socket, grant)
		must(t, err)
		run, err := dial.Sandbox(t.Context(), w.socket, grant)
		must(t, err)
		used, err := zfstest.Try("zfs", "get", "-H", "-p", "-o", "value", "used", dataset)
		must(t, err)
		n, err := strconv.ParseInt(used, 10, 64)
		must(t, err)
		bound(t, dataset, strconv.FormatInt(n+4<<20, 10))
		_, err = run.Client.Run(t.Context(), stream.Exec{Argv: []string{"sh", "-c", "head -c 33554432 /dev/urandom >more; sync more; true"}})
		must(t, err)
		if session == "s2" {
			select {
			case <-seen: // it was measured
			case <-time.After(time.Minute):
				t.Error("nobody saw that the pool is full")
			}
			bound(t, dataset, "none")
		}
		must(t, run.Client.Close())
		if end := <-run.Ends; end.DiskFull || !strings.Contains(end.Store, "full") || !strings.Contains(end.Store, nodeName) {
			t.Errorf("in a full pool %s ended with %+v", session, end)
		}
		bound(t, dataset, "none")
		must(t, dial.Discard(t.Context(), w.socket, grant))
	}
}

// telling gets a word when something is logged of a sandbox that can write nothing.
type telling chan struct{}

func (c telling) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("nothing can be written in a sandbox")) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return len(b), nil
}

func bound(t *testing.T, dataset, quota string) {
	t.Helper()
	if _, err := zfstest.Try("zfs", "set", "quota="+quota, dataset); err != nil {
		t.Error(err)
	}
}
