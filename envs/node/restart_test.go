package node_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"inspect/envs/node"
	"inspect/envs/node/dial"
	"inspect/envs/wire"
)

// daemonMain is a node daemon as a process of its own.
func daemonMain(options string) int {
	var d daemonOptions
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := json.Unmarshal([]byte(options), &d); err != nil {
		log.Error(err.Error())
		return 1
	}
	o, done, err := realOptions(d, log)
	if err != nil {
		log.Error(err.Error())
		return 1
	}
	defer done()
	n, err := node.New(o)
	if err != nil {
		log.Error(err.Error())
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := n.Run(ctx); err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

// spawn starts a daemon process.
func (w *world) spawn(change ...func(*daemonOptions)) *exec.Cmd {
	w.t.Helper()
	must(w.t, os.MkdirAll(w.root, 0o711))
	d := w.daemonOptions()
	for _, c := range change {
		c(&d)
	}
	b, err := json.Marshal(d)
	must(w.t, err)
	self, err := os.Executable()
	must(w.t, err)
	cmd := exec.Command(self, "node-daemon", string(b))
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.Stderr = os.Stderr
	must(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait() })
	return cmd
}

func kill(t *testing.T, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	must(t, cmd.Process.Signal(sig))
	_ = cmd.Wait()
}

func TestSandboxesOutliveAKilledDaemon(t *testing.T) {
	w := newWorld(t)
	first := w.spawn()
	w.refreshed(1, "snap-1")
	w.plane.set(func(p *plane) {
		p.refs = wire.Refs{Sessions: []wire.SessionRef{{Session: "s1", Generation: 1}}, Snapshots: []string{"snap-1"}}
	})
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	c, ends, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	sh(t, c, "echo before > f")
	kill(t, first, syscall.SIGKILL)
	if _, told := <-ends; told {
		t.Error("an end was told although the sandbox runs")
	}
	sh(t, c, "echo after >> f")

	// A restore asked for while no daemon runs waits for the next one.
	type answer struct {
		reply wire.RestoreReply
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		r, err := dial.Restore(t.Context(), w.socket, grant)
		answers <- answer{r, err}
	}()
	second := w.spawn(func(o *daemonOptions) { o.CollectEvery = 100 * time.Millisecond })
	a := <-answers
	must(t, a.err)
	if a.reply.Commit != w.git.head() {
		t.Errorf("restored %q", a.reply.Commit)
	}
	w.plane.collected(t)
	if got := sh(t, c, "cat f"); got != "before\nafter" {
		t.Errorf("the work has %q", got)
	}

	// Asked to stop, the daemon leaves sandboxes alone.
	kill(t, second, syscall.SIGTERM)
	if code := second.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if _, err := os.Lstat(w.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	sh(t, c, "true")

	// A new one ends what it did not start when it is told to.
	w.spawn()
	must(t, dial.Discard(t.Context(), w.socket, grant))
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		t.Error("the sandbox outlived its clone")
	}
	_ = c.Close()
}

func TestSandboxStartedAgainAfterAKill(t *testing.T) {
	w := newWorld(t)
	first := w.spawn()
	w.refreshed(1, "snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	old, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	kill(t, first, syscall.SIGKILL)
	w.spawn()
	c, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer c.Close()
	sh(t, c, "true")
	select {
	case <-old.Done():
	case <-time.After(20 * time.Second):
		t.Error("two sandboxes run over one clone")
	}
}

func TestStopAllEndsSandboxes(t *testing.T) {
	w := newWorld(t)
	stop := w.start()
	w.refreshed(1, "snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	c, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	sh(t, c, "true")
	stop()
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		t.Error("the sandbox runs on")
	}
	if _, err := os.Lstat(w.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestKilledDuringARefresh(t *testing.T) {
	w := newWorld(t)
	first := w.spawn()
	slow := w.refreshWork(1, "snap-1", "touch $HOME/here; if [ ! -e /tmp/x ]; then sleep 600; fi")
	w.plane.give(slow)
	until(t, "setup runs", func() bool {
		_, err := os.Stat(w.tree("base", "snap-1") + "/home/here")
		return err == nil
	})
	kill(t, first, syscall.SIGKILL)
	w.spawn()
	// Its lease ran out: the same item again, with a setup that ends.
	offer := w.refreshed(1, "snap-1", "true")
	if offer.Snapshot != "snap-1" || len(w.listed("base")) != 0 {
		t.Errorf("offer %+v, bases %v", offer, w.listed("base"))
	}
}
