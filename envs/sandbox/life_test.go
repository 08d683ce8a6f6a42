package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// leaveGroup is a shell line that leaves a process behind which heeds no polite
// signal, in a session of its own.
const leaveGroup = `rm -f /tmp/up; setsid -f sh -c 'trap "" TERM INT HUP; echo > /tmp/up; exec sleep 100000'; until [ -e /tmp/up ]; do :; done; `

// What has left its group and session lives on in the sandbox and dies with it.
func TestDaemonsDieAtTheEnd(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		b.must(t, leaveGroup)
		b.must(t, leaveGroup)
		out := b.must(t, "cat /proc/[0-9]*/comm | sort | uniq -c | tr -s ' '")
		if !strings.Contains(out, " 2 sleep") {
			t.Fatalf("no daemon lives: %s", out)
		}
		_ = b.Client.Close()
		end := b.Sandbox.Wait()
		if end.ExitCode != inside.LifelineExit || end.OOM != 0 || end.PidsHit != 0 || end.DiskFull {
			t.Errorf("the end: %+v", end)
		}
		if b.Words() != "" {
			t.Errorf("words: %q", b.Words())
		}
		if root {
			if left := processesOf(t, testUID); len(left) > 0 {
				t.Errorf("the processes %v are left", left)
			}
		}
	})
}

func TestOrphansAreReaped(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		b.must(t, "for i in $(seq 60); do (setsid true &); done")
		ctx := deadline(t)
		for {
			out := b.must(t, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true")
			if out == "0\n" {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("zombies: %s", out)
			}
		}
	})
}

// The sandbox ends with the last holder of its control stream, whatever that
// dies of.
func TestLifeline(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		l := theLauncher(t)
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		sb, err := l.Start(deadline(t), testSpec(t, shared(t), theirs))
		if err != nil {
			t.Fatal(err)
		}
		exe, _ := os.Executable()
		holder := exec.Command(exe, "helper", "hold")
		holder.ExtraFiles = []*os.File{ours}
		in, err := holder.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		out, err := holder.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := holder.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("holding\n"))); err != nil {
			t.Fatal(err)
		}
		ours.Close()
		select {
		case <-sb.Done():
			t.Fatal("it ended although the stream is held")
		default:
		}
		if !l.Alive(sb.ID()) {
			t.Fatal("it is not alive")
		}
		if err := holder.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = holder.Wait()
		if end := sb.Wait(); end.ExitCode != inside.LifelineExit {
			t.Errorf("the end: %+v", end)
		}
	})
}

// The launcher's death leaves the sandbox alone; the next launcher finds it.
func TestLauncherDies(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		id := newID(t)
		exe, _ := os.Executable()
		cmd := exec.Command(exe, "helper", "launch", id, runDir, cgroupRoot, shared(t), tierOf(t), runsc())
		cmd.ExtraFiles = []*os.File{theirs}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		if _, err := io.ReadFull(out, make([]byte, len("starts\nstarted\n"))); err != nil {
			t.Fatalf("%v: %s", err, &errs)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()

		c := stream.NewClient(ours)
		defer c.Close()
		var text bytes.Buffer
		if _, err := c.Run(deadline(t), stream.Exec{Argv: []string{"echo", "still here"}, Stdout: &text}); err != nil || text.String() != "still here\n" {
			t.Fatalf("after the launcher's death: %q %v", &text, err)
		}
		if _, err := c.Run(deadline(t), stream.Exec{Argv: []string{"sh", "-c", leaveGroup}}); err != nil {
			t.Fatal(err)
		}
		l := newLauncher(t, testOptions(t))
		ids, err := l.List()
		if err != nil || !slices.Contains(ids, id) || !l.Alive(id) {
			t.Fatalf("list %v, %v", ids, err)
		}
		if err := l.Reap(deadline(t), id); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		if ids, _ := l.List(); slices.Contains(ids, id) || l.Alive(id) {
			t.Errorf("it is still listed: %v", ids)
		}
		for range 2 {
			if err := l.Reap(deadline(t), id); err != nil {
				t.Errorf("again: %v", err)
			}
		}
		if err := l.Reap(deadline(t), "../../x"); err == nil {
			t.Error("a path was reaped")
		}
	})
}

// A launcher that is killed in the middle of a start leaves nothing outside of
// the sandbox's cgroup, although the control stream is held.
func TestLauncherDiesDuringStart(t *testing.T) {
	if !root {
		return
	}
	eachTier(t, func(t *testing.T) {
		l := theLauncher(t)
		work, exe := shared(t), l.opt.Binary
		step := map[string]time.Duration{wire.TierBubblewrap: 4 * time.Millisecond, wire.TierGVisor: 60 * time.Millisecond}[tierOf(t)]
		for i := range 12 {
			ours, theirs, err := stream.Pair()
			if err != nil {
				t.Fatal(err)
			}
			id := newID(t)
			cmd := exec.Command(exe, "helper", "launch", id, runDir, cgroupRoot, work, tierOf(t), runsc())
			cmd.ExtraFiles = []*os.File{theirs}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			if _, err := io.ReadFull(out, make([]byte, len("starts\n"))); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(time.Duration(i)*step, func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			kill.Stop()
			if err := l.Reap(deadline(t), id); err != nil {
				t.Fatal(err)
			}
			// What waits for its word ends by itself.
			for ctx := deadline(t); len(processesOf(t, testUID)) > 0; {
				if ctx.Err() != nil {
					t.Fatalf("%d: the processes %v are left", i, processesOf(t, testUID))
				}
			}
			ours.Close()
		}
	})
}

// Without the word nothing is started, whatever the reason.
func TestNothingStartsOutsideOfItsCgroup(t *testing.T) {
	if !root {
		return
	}
	eachTier(t, func(t *testing.T) {
		l := theLauncher(t)
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		defer theirs.Close()
		s := testSpec(t, shared(t), theirs)
		box := &Sandbox{l: l, id: s.ID, spec: s, uid: testUID, done: make(chan struct{}), group: l.groups.group(s.ID)} // which is not there
		if _, err := l.spawn(box, testGID); err == nil || !strings.Contains(err.Error(), "into its cgroup") {
			t.Errorf("%v", err)
		}
		select {
		case <-box.exited: // nobody has killed it
		case <-deadline(t).Done():
			t.Error("it goes on")
			box.strike()
		}
		if left := processesOf(t, testUID); len(left) > 0 || box.code == 137 {
			t.Errorf("the processes %v are left, it ended with %d", left, box.code)
		}
		if err := box.clean(); err != nil {
			t.Error(err)
		}
	})
}

// Every process of a sandbox is in the group in all hierarchies, those of a
// compartment are in that of the sandbox beside.
func TestEveryProcessIsInTheGroup(t *testing.T) {
	if !root {
		return
	}
	eachTier(t, func(t *testing.T) {
		b := start(t, compartments)
		b.must(t, leaveGroup)
		b.beside(t, nil).must(t, leaveGroup)
		all := processesOf(t, testUID)
		if len(all) < 3 {
			t.Errorf("only %v", all)
		}
		for _, f := range b.group.procs() {
			list, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			in := strings.Fields(string(list))
			for _, pid := range all {
				if !slices.Contains(in, strconv.Itoa(pid)) {
					t.Errorf("%d is not in %s", pid, f)
				}
			}
		}
	})
}

func helperLaunch(args []string) int {
	exe, _ := os.Executable()
	l, err := New(Options{
		Binary: exe, RunDir: args[1] + "/run", CgroupRoot: args[2], UID: testUID, GID: testGID, BestEffort: !root,
		Tier: args[4], Runsc: args[5],
	})
	if err == nil {
		s := Spec{ID: args[0], Control: os.NewFile(3, "control"), Mounts: []Mount{{args[3], Workspace, true}}}
		s.Limits.MemoryBytes = 256 << 20
		fmt.Println("starts")
		_, err = l.Start(context.Background(), s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("started")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func TestKill(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		cmd, err := b.Client.Start(deadline(t), stream.Exec{Argv: []string{"sh", "-c", "trap '' TERM INT HUP; while :; do sleep 100; done"}})
		if err != nil {
			t.Fatal(err)
		}
		b.must(t, "true")
		for range 2 {
			if err := b.Kill(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := cmd.Wait(); !errors.Is(err, stream.ErrEnded) {
			t.Errorf("its command: %v", err)
		}
		if _, err := b.Run(deadline(t), stream.Exec{Argv: []string{"true"}}); !errors.Is(err, stream.ErrEnded) {
			t.Errorf("a command afterwards: %v", err)
		}
		if end := b.Sandbox.Wait(); end.ExitCode != 137 {
			t.Errorf("the end: %+v", end)
		}
	})
}

// bubblewrap's own process outside may be killed; nothing outlives it.
func TestMonitorDies(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		b.must(t, leaveGroup)
		if err := b.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		b.Sandbox.Wait()
		if theLauncher(t).Alive(b.ID()) {
			t.Error("it is alive")
		}
	})
}

func TestManyLeaveNothing(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		l := theLauncher(t)
		work := shared(t)
		before := openFileCount(t)
		ignore := goleak.IgnoreCurrent()
		for i := range map[string]int{wire.TierBubblewrap: 40, wire.TierGVisor: 8}[tierOf(t)] {
			ours, theirs, err := stream.Pair()
			if err != nil {
				t.Fatal(err)
			}
			sb, err := l.Start(deadline(t), testSpec(t, work, theirs))
			if err != nil {
				t.Fatal(err)
			}
			c := stream.NewClient(ours)
			switch i % 4 {
			case 0: // at once
			case 1:
				_, err = c.Run(deadline(t), stream.Exec{Argv: []string{"true"}})
			case 2:
				_, err = c.Run(deadline(t), stream.Exec{Argv: []string{"sh", "-c", leaveGroup}})
			case 3:
				_, err = c.Start(context.WithoutCancel(t.Context()), stream.Exec{Argv: []string{"sleep", "100000"}})
			}
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				_ = c.Close()
				sb.Wait()
			} else {
				if err := sb.Kill(deadline(t)); err != nil {
					t.Fatal(err)
				}
				_ = c.Close()
			}
		}
		if ids, err := l.List(); err != nil || len(ids) > 0 {
			t.Errorf("cgroups: %v %v", ids, err)
		}
		if root {
			if left := processesOf(t, testUID); len(left) > 0 {
				t.Errorf("the processes %v are left", left)
			}
		}
		goleak.VerifyNone(t, ignore)
		if after := openFileCount(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func openFileCount(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// In a row of quick starts a cancelled one must leave nothing either.
func TestStartIsCancelled(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		l := theLauncher(t)
		work := shared(t)
		for i := range 12 {
			_, theirs, err := stream.Pair()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*3*time.Millisecond)
			sb, err := l.Start(ctx, testSpec(t, work, theirs))
			cancel()
			if err == nil {
				if err := sb.Kill(deadline(t)); err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		}
		if ids, err := l.List(); err != nil || len(ids) > 0 {
			t.Errorf("cgroups: %v %v", ids, err)
		}
	})
}

// ordinary is what helperOrdinary found out as an ordinary user.
type ordinary struct {
	Strict, Root, Foreign string // errors of what must be refused
	Beside                string // the user in a compartment, or why there is none
	Probe                 Probe
	Err                   string
	UID                   string
	Bomb                  string
	End                   wire.SandboxEnd
	Listed, Reaped        []string
}

// An ordinary user gets the same isolation, and limits only by that name.
func TestOrdinaryUser(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		exe, _ := os.Executable()
		dir := shared(t)
		bin := dir + "/test"
		if err := copyFile(exe, bin); err != nil {
			t.Fatal(err)
		}
		c := proc.Command{
			Argv: []string{bin, "helper", "ordinary", dir, tierOf(t), runsc()}, Limit: 1 << 20,
			Env: []string{"PATH=" + proc.DefaultPath, cgroupsEnv + "=" + os.Getenv(cgroupsEnv)}, // how slow the machine is
		}
		if root {
			c.Credential = &proc.Credential{UID: testUID, GID: testGID}
		}
		res, err := proc.Run(deadline(t), c)
		if err != nil {
			t.Fatalf("%v: %s", err, res.Stderr)
		}
		var o ordinary
		if err := json.Unmarshal(res.Stdout, &o); err != nil {
			t.Fatalf("%v: %s%s", err, res.Stdout, res.Stderr)
		}
		if o.Err != "" {
			t.Fatal(o.Err)
		}
		if !strings.Contains(o.Strict, "cannot be enforced") {
			t.Errorf("without best effort: %q", o.Strict)
		}
		if !strings.Contains(o.Foreign, "cannot start a sandbox as uid") {
			t.Errorf("as another user: %q", o.Foreign)
		}
		if want := map[string]string{
			wire.TierBubblewrap: "only root can start a sandbox that shares another's loopback", wire.TierGVisor: strconv.Itoa(CompartmentUID) + "\n",
		}[tierOf(t)]; !strings.Contains(o.Beside, want) {
			t.Errorf("beside another: %q", o.Beside)
		}
		if !strings.HasPrefix(o.Probe.Tier, tierOf(t)+" ") || !strings.HasPrefix(o.Probe.Limits, "best effort: an ordinary user") {
			t.Errorf("probe: %+v", o.Probe)
		}
		if !strings.Contains(o.Bomb, "no fork") {
			t.Errorf("the fork bomb was not bounded: %q", o.Bomb)
		}
		if o.End.ExitCode != 137 || len(o.Listed) != 1 || len(o.Reaped) != 0 {
			t.Errorf("%+v", o)
		}
		if root {
			if left := processesOf(t, testUID); len(left) > 0 {
				t.Errorf("the processes %v are left", left)
			}
		}
	})
}

func helperOrdinary(args []string) int {
	var o ordinary
	if err := ordinaryUser(args[0], args[1], args[2], &o); err != nil {
		o.Err = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(o)
	return 0
}

func ordinaryUser(dir, tier, runsc string, o *ordinary) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience(40*time.Second))
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	opt := Options{Binary: exe, RunDir: dir + "/run", Tier: tier, Runsc: runsc}
	if _, err := New(opt); err != nil {
		o.Strict = err.Error()
	}
	opt.BestEffort = true
	l, err := New(opt)
	if err != nil {
		return err
	}
	if o.Probe, err = l.Probe(ctx); err != nil {
		return err
	}
	_, theirs, err := stream.Pair()
	if err != nil {
		return err
	}
	if _, err := l.Start(ctx, Spec{ID: "foreign", Control: theirs, UID: 12, GID: 12}); err != nil {
		o.Foreign = err.Error()
	}
	ours, theirs, err := stream.Pair()
	if err != nil {
		return err
	}
	mine := Spec{ID: "mine", Control: theirs, Mounts: []Mount{{dir, Workspace, true}}, Limits: wire.Limits{Pids: 30}, Compartments: 1}
	sb, err := l.Start(ctx, mine)
	if err != nil {
		return err
	}
	c := stream.NewClient(ours)
	defer c.Close()
	if o.Beside, err = userBeside(ctx, l, mine); err != nil {
		return err
	}
	var out bytes.Buffer
	bomb := newWatcher("no fork")
	bctx, stop := context.WithCancel(ctx)
	go func() { <-bomb.seen; stop() }()
	_, _ = c.Run(bctx, stream.Exec{Argv: forkBomb, Stderr: io.MultiWriter(bomb, &out), Grace: -1})
	stop()
	o.Bomb = out.String()[:min(out.Len(), 300)]
	if _, err := c.Run(ctx, stream.Exec{Argv: []string{"sh", "-c", leaveGroup}}); err != nil {
		return err
	}
	again, err := New(opt)
	if err != nil {
		return err
	}
	if o.Listed, err = again.List(); err != nil {
		return err
	}
	if !again.Alive("mine") {
		return errors.New("the sandbox is not found alive")
	}
	if err := again.Reap(ctx, "mine"); err != nil {
		return err
	}
	o.End = sb.Wait()
	if o.Reaped, err = again.List(); err != nil {
		return err
	}
	o.UID = strconv.Itoa(os.Getuid())
	return nil
}

// userBeside is the user in a compartment of a sandbox, or why it has none.
func userBeside(ctx context.Context, l *Launcher, main Spec) (string, error) {
	ours, theirs, err := stream.Pair()
	if err != nil {
		return "", err
	}
	sb, err := l.Start(ctx, Spec{ID: "beside", Control: theirs, Beside: main.ID, Mounts: main.Mounts})
	if errors.Is(err, ErrIsolation) {
		return err.Error(), ours.Close()
	}
	if err != nil {
		return "", err
	}
	c := stream.NewClient(ours)
	var out bytes.Buffer
	_, err = c.Run(ctx, stream.Exec{Argv: []string{"id", "-u"}, Stdout: &out})
	_ = c.Close()
	sb.Wait()
	return out.String(), err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
