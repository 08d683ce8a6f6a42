package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

func TestProbe(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		p, err := theLauncher(t).Probe(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(p.Tier, map[string]string{wire.TierBubblewrap: "bubblewrap 0.", wire.TierGVisor: "gvisor v0."}[tierOf(t)]) {
			t.Errorf("tier %q", p.Tier)
		}
		if root && p.Limits != "enforced" {
			t.Errorf("limits %q", p.Limits)
		}
	})
}

// A runsc of years ago knows neither the flags that are needed nor, where it
// starts all the same, what stat and ls ask for. (Debian 12 has one of 2022.)
func TestOldRunscIsRefused(t *testing.T) {
	old := filepath.Join(shared(t), "runsc")
	script := `#!/bin/sh
case "$*" in *--version*) echo "runsc version release-20221219.0"; exit;; esac
echo "flag provided but not defined: -gofer-network-namespace" >&2; exit 2
`
	if err := os.WriteFile(old, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	o.Tier, o.Runsc, o.RunDir = wire.TierGVisor, old, filepath.Join(shared(t), "r")
	_, err := newLauncher(t, o).Probe(deadline(t))
	if !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "this runsc is too old") {
		t.Errorf("%v", err)
	}
	o.Runsc = ""
	if _, err := New(o); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "make setup") {
		t.Errorf("without one: %v", err)
	}
	o.Tier = "paper"
	if _, err := New(o); !errors.Is(err, ErrIsolation) {
		t.Errorf("no tier: %v", err)
	}
}

func TestTheWorldInside(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		mirror := shared(t)
		if err := os.WriteFile(filepath.Join(mirror, "HEAD"), []byte("ref"), 0o644); err != nil {
			t.Fatal(err)
		}
		home := shared(t)
		b := start(t, func(s *Spec) {
			s.Mounts = append(s.Mounts, Mount{Source: mirror, Target: MirrorPath}, Mount{Source: home, Target: Home, Writable: true})
			s.Env = []string{"GREETING=two words", "EMPTY=", "LANG=C"}
		})
		for _, c := range []struct{ script, want string }{
			{"id -u; id -g; id -un; id -G", "1000\n1000\nagent\n1000\n"},
			{"pwd; echo $HOME; hostname", "/workspace\n/home/agent\nsandbox\n"},
			{"echo $GREETING; echo ${EMPTY-unset}; echo $LANG; echo $GOMAXPROCS", "two words\n\nC\n2\n"},
			{"echo x > f; cat f; echo y > ~/g; cat ~/g", "x\ny\n"},
			{"cat " + MirrorPath + "/HEAD", "ref"},
			{"(echo z > " + MirrorPath + "/HEAD) 2>/dev/null; echo $?", "2\n"},
			{"getent hosts localhost | wc -l", "1\n"},
			{"echo t > /tmp/t && echo t > /dev/shm/t && echo t > /run/t && echo ok", "ok\n"},
			{"ulimit -c", "0\n"},
		} {
			if got := b.must(t, c.script); got != c.want {
				t.Errorf("%s: %q, want %q", c.script, got, c.want)
			}
		}
		env := strings.Fields(b.exec(t, stream.Exec{Argv: []string{"env"}, Env: []string{"GREETING=one", "MORE=1"}}).out)
		if !slices.Contains(env, "GREETING=one") || !slices.Contains(env, "MORE=1") {
			t.Errorf("a command's own environment is not there: %v", env)
		}
		if r := b.exec(t, stream.Exec{Argv: []string{"pwd"}, Dir: "/usr"}); r.out != "/usr\n" {
			t.Errorf("directory %q", r.out)
		}
		got, err := os.ReadFile(filepath.Join(b.work, "f"))
		if err != nil || string(got) != "x\n" {
			t.Errorf("what was written inside is %q outside (%v)", got, err)
		}
	})
}

func TestStartRefuses(t *testing.T) {
	o := testOptions(t)
	o.UID, o.GID = 0, 0
	l := newLauncher(t, o)
	hidden := shared(t)
	inner := filepath.Join(hidden, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	type bad struct {
		change func(*Spec)
		words  string
		is     error
	}
	cases := map[string]bad{
		"a name":           {func(s *Spec) { s.ID = "../x" }, "cannot name", nil},
		"little memory":    {func(s *Spec) { s.Limits.MemoryBytes = 1 << 20 }, "less than the 64 MiB", nil},
		"negative":         {func(s *Spec) { s.Limits.Pids = -1 }, "negative", nil},
		"a missing source": {func(s *Spec) { s.Mounts = []Mount{{"/no/such", Workspace, true}} }, "/no", nil},
		"a missing leaf":   {func(s *Spec) { s.Mounts = []Mount{{hidden + "/../nope", Workspace, true}} }, "shortest form", nil},
		"a leaf":           {func(s *Spec) { s.Mounts = []Mount{{"/tmp/inspect-no-such-leaf", Workspace, true}} }, "Can't find source path", nil},
		"a system mount":   {func(s *Spec) { s.Mounts = []Mount{{"/tmp", "/etc/passwd", true}} }, "system's", nil},
		"the root":         {func(s *Spec) { s.Mounts = []Mount{{"/tmp", "/", true}} }, "system's", nil},
		"the init":         {func(s *Spec) { s.Mounts = []Mount{{"/tmp", InitPath, true}} }, "system's", nil},
		"two on one":       {func(s *Spec) { s.Mounts = []Mount{{"/tmp", "/a", true}, {"/usr", "/a", true}} }, "taken", nil},
		"dots":             {func(s *Spec) { s.Mounts = []Mount{{"/tmp/../etc", "/a", false}} }, "shortest form", nil},
		"environment":      {func(s *Spec) { s.Env = []string{"nonsense"} }, "NAME=value", nil},
		"a low port":       {func(s *Spec) { s.Forwards = []Forward{{Port: 80, Socket: "/tmp/x"}} }, "port 80", nil},
		"a port twice":     {func(s *Spec) { s.Forwards = []Forward{{Port: 8080, Socket: "/tmp/x"}, {Port: 8080, Socket: "/tmp/y"}} }, "named twice", nil},
		"many ports":       {func(s *Spec) { s.Forwards = make([]Forward, 3) }, "are the most", nil},
		"a socket's dots":  {func(s *Spec) { s.Forwards = []Forward{{Port: 8080, Socket: "/tmp/../x"}} }, "shortest form", nil},
		"no socket there":  {func(s *Spec) { s.Forwards = []Forward{{Port: 8080, Socket: "/tmp/inspect-no-such"}} }, "find /tmp/inspect-no-such", nil},
		"no socket":        {func(s *Spec) { s.Forwards = []Forward{{Port: 8080, Socket: "/dev/null"}} }, "it is no socket", nil},
		"over the sockets": {func(s *Spec) { s.Mounts = []Mount{{"/tmp", SocketDir, true}} }, "system's", nil},
		"over a socket":    {func(s *Spec) { s.Mounts = []Mount{{"/tmp", SocketDir + "/41710", true}} }, "system's", nil},
		"a NUL":            {func(s *Spec) { s.Env = []string{"A=b\x00--bind\x00/\x00/x"} }, "NAME=value", nil},
	}
	if root {
		if err := errors.Join(os.Chmod(hidden, 0o700), os.Chown(hidden, 0, 0)); err != nil {
			t.Fatal(err)
		}
		cases["root"] = bad{func(s *Spec) { s.UID, s.GID = 0, 0 }, "root cannot be", ErrIsolation}
		cases["a group of root"] = bad{func(s *Spec) { s.UID, s.GID = testUID, 0 }, "root cannot be", ErrIsolation}
		hiddenSocket := filepath.Join(hidden, "s")
		hl, err := net.Listen("unix", hiddenSocket)
		if err != nil {
			t.Fatal(err)
		}
		defer hl.Close()
		cases["a hidden socket"] = bad{func(s *Spec) { s.Forwards = []Forward{{Port: 8080, Socket: hiddenSocket}} }, "may not pass " + hidden, ErrIsolation}
		closed := filepath.Join(shared(t), "s")
		cl, err := net.Listen("unix", closed)
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := os.Chmod(closed, 0o600); err != nil {
			t.Fatal(err)
		}
		cases["a closed socket"] = bad{func(s *Spec) { s.Forwards = []Forward{{Port: 8080, Socket: closed}} }, "may not pass " + closed, ErrIsolation}
		cases["an unreachable"] = bad{func(s *Spec) { s.Mounts = []Mount{{inner, Workspace, true}} }, "may not pass " + hidden, ErrIsolation}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ours, theirs, err := stream.Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			s := Spec{ID: newID(t), Control: theirs, UID: testUID, GID: testGID}
			c.change(&s)
			box, err := l.Start(deadline(t), s)
			if err == nil {
				_ = box.Kill(deadline(t))
				t.Fatal("it was started")
			}
			if !strings.Contains(err.Error(), c.words) || (c.is != nil && !errors.Is(err, c.is)) {
				t.Errorf("error %q, want %q", err, c.words)
			}
			if _, err := ours.Read(make([]byte, 1)); err == nil {
				t.Error("the control stream was left open")
			}
		})
	}
	ids, err := l.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) > 0 {
		t.Errorf("left behind: %v", ids)
	}
}

func TestOneNameOneSandbox(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		_, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		_, err = theLauncher(t).Start(deadline(t), Spec{ID: b.ID(), Control: theirs})
		if !errors.Is(err, ErrRunning) {
			t.Errorf("error %v, want ErrRunning", err)
		}
		other := newLauncher(t, testOptions(t)) // a daemon that was restarted
		_, theirs, err = stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		_, err = other.Start(deadline(t), Spec{ID: b.ID(), Control: theirs})
		if !errors.Is(err, ErrRunning) {
			t.Errorf("error %v, want ErrRunning", err)
		}
		if b.must(t, "echo still here") != "still here\n" {
			t.Error("the running one was disturbed")
		}
	})
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		words  string
	}{
		"no binary": {func(o *Options) { o.Binary = "" }, "program is not known"},
		"missing":   {func(o *Options) { o.Binary = "/no/such" }, "find the init program"},
		"expose":    {func(o *Options) { o.Expose = []string{"/no/such"} }, "expose /no/such"},
		"relative":  {func(o *Options) { o.Expose = []string{"x"} }, "absolute"},
		"cgroups":   {func(o *Options) { o.CgroupRoot = "/" }, "cannot be enforced"},
	} {
		o := testOptions(t)
		c.change(&o)
		o.BestEffort = false
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: error %v, want %q", name, err, c.words)
		}
	}
}

func TestUnreachableBinaryIsSaid(t *testing.T) {
	dir := filepath.Join(shared(t), "closed")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	o.RunDir = ""
	bin := filepath.Join(dir, "inspect")
	if err := os.Symlink(o.Binary, bin); err != nil {
		t.Fatal(err)
	}
	o.Binary = bin
	l := newLauncher(t, o)
	_, theirs, err := stream.Pair()
	if err != nil {
		t.Fatal(err)
	}
	box, err := l.Start(deadline(t), Spec{ID: newID(t), Control: theirs})
	if !root { // its own directory is open to anybody's sandbox
		if err != nil {
			t.Fatal(err)
		}
		_ = box.Kill(deadline(t))
		return
	}
	if !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "run directory") {
		t.Errorf("error %v", err)
	}
}

func TestVersion(t *testing.T) {
	for in, ok := range map[string]bool{
		"bubblewrap 0.8.0\n": true, "bubblewrap 0.11.0": true, "bubblewrap 1.0": true,
		"bubblewrap 0.7.0": false, "bwrap": false, "bubblewrap x": false, "": false,
	} {
		if _, err := parseVersion([]byte(in)); (err == nil) != ok {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// What make setup builds starts gVisor's processes once. gVisor's own program would
// start them anew, with options that say what is done already. None of them may
// be woken 20,000 times a second for nothing.
func TestGVisorStartsOnce(t *testing.T) {
	t.Run(wire.TierGVisor, func(t *testing.T) {
		box := start(t, nil)
		pids := childrenOf(box.cmd.Process.Pid)
		for _, name := range []string{"runsc-sandbox", "runsc-gofer"} {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pids[name]))
			if err != nil || bytes.Contains(line, []byte("setup-root=false")) {
				t.Errorf("%s: %q %v", name, bytes.ReplaceAll(line, []byte{0}, []byte{' '}), err)
			}
			slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", pids[name]))
			if err != nil || strings.TrimSpace(string(slack)) != timerSlack {
				t.Errorf("%s: timers may be %q ns late, want %s: %v", name, slack, timerSlack, err)
			}
		}
	})
}

// How long a sandbox takes from Start to nothing left, with `true` in it, and
// how much processor time of all that was started for it. The median is what a
// user waits for and needs a quiet machine; the processor time, of which it
// mostly consists at the tier bubblewrap, depends less on who else is busy.
func BenchmarkTrue(b *testing.B) {
	small := filepath.Join(runDir, "inspect-init")
	build := exec.Command("go", "build", "-o", small, "inspect/cmd/inspect-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build inspect-init: %v\n%s", err, out)
	}
	for _, tier := range tiers {
		b.Run(tier, func(b *testing.B) {
			o := testOptions(b)
			o.Binary, o.RunDir = small, filepath.Join(runDir, "small")
			l := newLauncher(b, o)
			work := shared(b)
			var all []time.Duration
			before := childrenTime(b)
			for b.Loop() {
				begun := time.Now()
				ours, theirs, err := stream.Pair()
				if err != nil {
					b.Fatal(err)
				}
				box, err := l.Start(b.Context(), testSpec(b, work, theirs))
				if err != nil {
					b.Fatal(err)
				}
				c := stream.NewClient(ours)
				if x, err := c.Run(b.Context(), stream.Exec{Argv: []string{"true"}}); err != nil || x.Code != 0 {
					b.Fatal(x, err)
				}
				c.Close()
				box.Wait()
				all = append(all, time.Since(begun))
			}
			used := childrenTime(b) - before
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms/median")
			b.ReportMetric(float64(used.Microseconds())/1000/float64(len(all)), "cpu-ms/op")
		})
	}
}

// childrenTime is the processor time of ended children, and theirs.
func childrenTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func testSpec(t testing.TB, work string, control *os.File) Spec {
	s := Spec{ID: newID(t), Control: control, Mounts: []Mount{{work, Workspace, true}}}
	s.Limits.CPU, s.Limits.MemoryBytes, s.Limits.Pids = 2, 512<<20, 200
	return s
}
