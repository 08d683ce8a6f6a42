package sandbox

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// beside starts a compartment of b over the same directory.
func (b box) beside(t testing.TB, change func(*Spec)) box {
	t.Helper()
	return start(t, func(s *Spec) {
		s.Beside = b.ID()
		s.Mounts = []Mount{{Source: b.work, Target: Workspace, Writable: true}}
		if change != nil {
			change(s)
		}
	})
}

// serve runs a command that holds a secret, serves a port and a socket in the
// workspace and an abstract one, and returns when it does.
func (b box) serve(t testing.TB, canary string, port int) *stream.Command {
	t.Helper()
	up, w := io.Pipe()
	cmd, err := b.Client.Start(deadline(t), stream.Exec{
		Argv: []string{InitPath, "helper", "serve", strconv.Itoa(port), fmt.Sprint(Workspace, "/", port), canary}, Env: []string{"SECRET=" + canary}, Stdout: w, Stderr: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	if _, err := io.ReadFull(up, line); err != nil || string(line) != "serves" {
		t.Fatalf("%q %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, up) }() // ends with the command
	t.Cleanup(func() { _ = cmd.Signal(syscall.SIGKILL); _, _ = cmd.Wait(); w.Close() })
	return cmd
}

// helperServe answers every connection with one word.
func helperServe(args []string) int {
	for _, a := range []string{"127.0.0.1:" + args[0], args[1], "@inspect-" + args[0]} {
		network := "unix"
		if strings.HasPrefix(a, "127.") {
			network = "tcp"
		}
		l, err := net.Listen(network, a)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("hello"))
				c.Close()
			}
		}()
	}
	port, err := strconv.Atoi(args[0])
	if err == nil {
		_, err = unix.SysvShmGet(port, 64, unix.IPC_CREAT|0o666)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print("serves")
	select {}
}

// atBeside is the attempt that needs a sandbox beside this one.
const atBeside = "the sandbox beside"

// sandboxBeside is given the reversed canary of a command in the sandbox
// beside, its port and its number outside.
func sandboxBeside(args []string) error {
	c := []byte(args[0])
	slices.Reverse(c)
	canary, port := c, args[1]
	outside, _ := strconv.Atoi(args[2])
	key, _ := strconv.Atoi(port)
	_, err := unix.SysvShmGet(key, 0, 0)
	errs := []error{searchProcesses(canary), refused("share its memory", err, unix.ENOENT)}
	for network, addr := range map[string]string{"tcp": "127.0.0.1:" + port, "unix": Workspace + "/" + port} {
		// Abstract names are the network namespace's, and so are both's.
		if err := greeted(network, addr); err != nil {
			errs = append(errs, fmt.Errorf("connect to the sandbox beside: %w", err))
		}
	}
	if err := greeted("unix", "@inspect-"+port); err != nil {
		errs = append(errs, err)
	}
	numbers := []int{outside}
	if gvisorsKernel { // whatever its number is where one would be seen
		numbers = unseenNumbers(300)
	}
	for _, pid := range numbers {
		errs = append(errs,
			refused("signal it", unix.Kill(pid, unix.SIGKILL), unix.ESRCH),
			refused("trace it", unix.PtraceAttach(pid), unix.ESRCH))
	}
	// A unix socket tells who serves it, as a handle that needs no number.
	if fd, err := peer(Workspace + "/" + port); err == nil {
		errs = append(errs,
			refused("signal it by its socket", unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0), unix.EINVAL, unix.EPERM),
			refused("take its descriptors", call(unix.SYS_PIDFD_GETFD, uintptr(fd), 3, 0), unix.EPERM))
	}
	return errors.Join(errs...)
}

// unseenNumbers are those up to most that no process here has.
func unseenNumbers(most int) (out []int) {
	for pid := 2; pid <= most; pid++ {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			out = append(out, pid)
		}
	}
	return out
}

// greeted reads the word of a serving helper.
func greeted(network, addr string) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err == nil && string(b) != "hello" {
		err = fmt.Errorf("%s: %q", addr, b)
	}
	return err
}

// peer is a pidfd of the process behind a socket.
func peer(path string) (int, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	rc, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	fd, gerr := 0, error(nil)
	err = rc.Control(func(s uintptr) { fd, gerr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD) })
	return fd, errors.Join(err, gerr)
}

// searchProcesses looks for the canary in whatever can be read of any process.
func searchProcesses(canary []byte) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	found := func(where string) { errs = append(errs, fmt.Errorf("the secret is readable: %s", where)) }
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + p.Name() + "/"
		for _, f := range []string{"environ", "cmdline", "comm", "auxv"} {
			if b, err := os.ReadFile(dir + f); err == nil && bytes.Contains(b, canary) {
				found(dir + f)
			}
		}
		if fds, err := os.ReadDir(dir + "fd"); err == nil {
			for _, fd := range fds {
				if to, err := os.Readlink(dir + "fd/" + fd.Name()); err == nil && strings.Contains(to, string(canary)) {
					found(to)
				}
			}
		}
		maps, _ := os.ReadFile(dir + "maps")
		mem, err := os.Open(dir + "mem")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(maps)) {
			var from, to int64
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil || to-from > 64<<20 {
				continue
			}
			b := make([]byte, to-from)
			if n, _ := mem.ReadAt(b, from); bytes.Contains(b[:n], canary) {
				found(dir + "mem")
				break
			}
		}
		mem.Close()
	}
	return errors.Join(errs...)
}

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// numberOf is the number outside of a process with this in its environment.
func numberOf(t *testing.T, canary string) int {
	t.Helper()
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		if b, err := os.ReadFile("/proc/" + p.Name() + "/environ"); err == nil && strings.Contains(string(b), canary) {
			pid, _ := strconv.Atoi(p.Name())
			return pid
		}
	}
	t.Fatalf("no process has %s", canary)
	return 0
}

// compartments lets a sandbox have some.
func compartments(s *Spec) { s.Compartments = 2 }

// eachTierBeside runs a test for each tier as root. TestOrdinaryUser sees what
// others can have.
func eachTierBeside(t *testing.T, test func(t *testing.T)) {
	if root {
		eachTier(t, test)
	}
}

func TestSecretsOfTheSandboxBeside(t *testing.T) {
	eachTierBeside(t, func(t *testing.T) {
		// Looking at memory gives memory to whom it is looked at.
		agent := start(t, func(s *Spec) { s.Limits.MemoryBytes = 2 << 30; s.Compartments = 2 })
		service := agent.beside(t, nil)
		another := agent.beside(t, nil)
		search := func(from box, canary string, port int) result {
			outside := 0
			if tierOf(t) == wire.TierBubblewrap {
				outside = numberOf(t, canary)
			}
			return from.exec(t, stream.Exec{
				Argv: []string{InitPath, "attempt", atBeside, reversed(canary), strconv.Itoa(port), strconv.Itoa(outside)},
				Env:  []string{"TIER=" + tierOf(t)},
			})
		}
		// Not in this program, which all of the processes are.
		ofService, ofAgent := "service-"+rand.Text(), "agent-"+rand.Text()
		service.serve(t, ofService, 5001)
		agent.serve(t, ofAgent, 5002)
		for name, c := range map[string]struct {
			from, at box
			canary   string
			port     int
		}{
			"the agent at the service":       {agent, service, ofService, 5001},
			"the service at the agent":       {service, agent, ofAgent, 5002},
			"another service at the service": {another, service, ofService, 5001},
		} {
			t.Run(name, func(t *testing.T) {
				if r := search(c.from, c.canary, c.port); r.Code != 0 {
					t.Errorf("%s%s", r.out, r.err)
				}
				c.at.must(t, fmt.Sprintf("grep -ls %s /proc/*/environ | grep -q .", c.canary)) // it lives
			})
		}
		// Whoever signals all there are reaches nobody beside.
		another.sh(t, "kill -KILL -1")
		for b, canary := range map[*box]string{&service: ofService, &agent: ofAgent} {
			b.must(t, fmt.Sprintf("grep -ls %s /proc/*/environ | grep -q .", canary))
		}
		// The search is one that can find: within one sandbox it does.
		// (gVisor lets only who started a process look into its memory.)
		r := search(agent, ofAgent, 5002)
		for _, file := range []string{"/environ", "/cmdline", "/mem", "share its memory: succeeded"} {
			if !strings.Contains(r.out, file) && (file != "/mem" || tierOf(t) != wire.TierGVisor) {
				t.Errorf("within one sandbox %s was not found: %s", file, r.out)
			}
		}
		if got := agent.must(t, "id -u; id -un") + service.must(t, "id -u; id -un"); got != "1000\nagent\n1001\nagent\n" {
			t.Errorf("users inside: %q", got)
		}
		// Files are both's.
		service.must(t, "umask 077; echo mine > file")
		agent.must(t, "grep -q mine file && echo also >> file && chmod 755 file")
		// Those in memory are each one's own.
		for _, dir := range []string{"/tmp", "/dev/shm", "/run", Home} {
			service.must(t, "echo mine > "+dir+"/mine")
			for _, other := range []box{agent, another} {
				other.must(t, "test ! -e "+dir+"/mine && echo theirs > "+dir+"/theirs")
			}
			service.must(t, "test ! -e "+dir+"/theirs && rm "+dir+"/mine")
			agent.must(t, "rm "+dir+"/theirs")
		}
		// Terminals have numbers of their own in each.
		tty, err := service.Client.Start(deadline(t), stream.Exec{Argv: []string{"sleep", "1000"}, TTY: &stream.Size{Rows: 24, Cols: 80}})
		must(t, err)
		service.must(t, "test -c /dev/pts/0")
		for _, other := range []box{agent, another} {
			other.must(t, "test ! -e /dev/pts/0")
		}
		must(t, tty.Signal(syscall.SIGKILL))
		_, _ = tty.Wait()
		for _, in := range []box{agent, service} {
			for name := range attempts {
				args := map[string][]string{
					"the host's network": {"127.0.0.1:1"}, "the host's abstract names": {"@nobody"},
				}[name]
				if slices.Contains([]string{"the ways out", "unix sockets of the host", "files of the host", "the host's processes"}, name) {
					continue // they look at what these tests have made elsewhere
				}
				if r := in.exec(t, stream.Exec{Argv: append([]string{InitPath, "attempt", name}, args...), Env: []string{"TIER=" + tierOf(t)}}); r.Code != 0 {
					t.Errorf("%s: %s%s", name, r.out, r.err)
				}
			}
		}
	})
}

func TestCompartmentIsBoundBySandboxBeside(t *testing.T) {
	eachTierBeside(t, func(t *testing.T) {
		agent := start(t, func(s *Spec) { s.Limits.Pids = 60; s.Compartments = 1 })
		limit := func() string {
			b, err := os.ReadFile(agent.group.pidsMax())
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(b))
		}
		before := limit()
		service := agent.beside(t, nil)
		if !slices.Contains(agent.group.pids(), service.pid) {
			t.Errorf("the init %d is not among %v", service.pid, agent.group.pids())
		}
		if want := agent.l.tier.host(agent.spec).Pids + 2*inside.ReservedPids; limit() != strconv.FormatInt(want, 10) {
			t.Errorf("%s processes, want %d", limit(), want)
		}
		bomb := "i=0; while [ $i -lt 300 ]; do sleep 3600 & i=$((i+1)); done; echo all"
		if r := service.sh(t, bomb); strings.Contains(r.out, "all") {
			t.Errorf("300 processes were started: %+v", r)
		}
		agent.must(t, "true")
		killed := agent.beside(t, nil)
		killed.serve(t, "canary-killed", 5003)
		agent.must(t, InitPath+" sandbox-init dial 127.0.0.1:5003 </dev/null")
		must(t, killed.Kill(deadline(t)))
		if r := agent.sh(t, InitPath+" sandbox-init dial 127.0.0.1:5003 </dev/null"); r.Code == 0 {
			t.Errorf("what was killed still serves: %+v", r)
		}
		_ = service.Client.Close()
		if end := service.Wait(); end.ExitCode != inside.LifelineExit || service.Words() != "" {
			t.Errorf("%+v %q", end, service.Words())
		}
		if limit() != before {
			t.Errorf("%s processes, before it was %s", limit(), before)
		}
		agent.must(t, "true")
	})
}

// The end of a sandbox is the end of what is beside it, whoever brings it
// about and whether or not the one who started it is there.
func TestCompartmentEndsWithSandboxBeside(t *testing.T) {
	eachTierBeside(t, func(t *testing.T) {
		ways := map[string]func(box){
			"killed":   func(b box) { _ = b.Kill(deadline(t)) },
			"lifeline": func(b box) { _ = b.Client.Close() },
			"reaped": func(b box) {
				if err := newLauncher(t, testOptions(t)).Reap(deadline(t), b.ID()); err != nil {
					t.Error(err)
				}
			},
			"its init alone": func(b box) { _ = unix.Kill(b.pid, unix.SIGKILL) },
		}
		for name, end := range ways {
			t.Run(name, func(t *testing.T) {
				agent := start(t, compartments)
				service := agent.beside(t, nil)
				service.serve(t, "canary-"+strings.ReplaceAll(name, " ", "-"), 5001)
				end(agent)
				for _, b := range []box{agent, service} {
					select {
					case <-b.Sandbox.Done():
					case <-deadline(t).Done():
						t.Fatal("it lives on")
					}
				}
				if left := processesOf(t, testUID); len(left) > 0 {
					t.Errorf("the processes %v are left", left)
				}
			})
		}
		t.Run("without cgroups", func(t *testing.T) {
			o := testOptions(t)
			o.CgroupRoot, o.BestEffort, o.RunDir = "/", true, filepath.Join(runDir, "without")
			l := newLauncher(t, o)
			boxes := map[string]*Sandbox{}
			for _, s := range []Spec{{ID: "a", Compartments: 1}, {ID: "b", Beside: "a"}} {
				ours, theirs, err := stream.Pair()
				if err != nil {
					t.Fatal(err)
				}
				defer ours.Close()
				s.Control = theirs
				if boxes[s.ID], err = l.Start(deadline(t), s); err != nil {
					t.Fatal(err)
				}
			}
			_ = boxes["a"].Kill(deadline(t))
			if end := boxes["b"].Wait(); end.ExitCode == 0 || tierOf(t) == wire.TierBubblewrap && end.ExitCode != inside.LifelineExit {
				t.Errorf("%+v", end) // runsc has a status of its own for a kernel that is gone
			}
		})
	})
}

// A launcher that did not start the sandbox finds it all the same.
func TestCompartmentAfterRestart(t *testing.T) {
	eachTierBeside(t, func(t *testing.T) {
		agent := start(t, compartments)
		first := agent.beside(t, nil)
		first.serve(t, "canary-first", 5001)
		l := newLauncher(t, testOptions(t))
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		sb, err := l.Start(deadline(t), Spec{ID: newID(t), Control: theirs, Beside: agent.ID(), Mounts: agent.spec.Mounts})
		if err != nil {
			t.Fatal(err)
		}
		b := box{Sandbox: sb, Client: stream.NewClient(ours)}
		defer func() { _ = b.Client.Close(); sb.Wait() }()
		if r := b.exec(t, stream.Exec{Argv: []string{InitPath, "sandbox-init", inside.DialWord, "127.0.0.1:5001"}}); !strings.Contains(r.out, "hello") {
			t.Errorf("%+v", r)
		}
	})
}

func TestCompartmentRefused(t *testing.T) {
	eachTierBeside(t, func(t *testing.T) {
		agent := start(t, compartments)
		service := agent.beside(t, nil)
		if tierOf(t) == wire.TierGVisor {
			refuse := func(words string, s Spec) {
				t.Helper()
				ours, theirs, err := stream.Pair()
				must(t, err)
				defer ours.Close()
				s.ID, s.Control = "x", theirs
				if _, err := theLauncher(t).Start(deadline(t), s); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), words) {
					t.Errorf("%v, want %q", err, words)
				}
			}
			unprepared := start(t, nil)
			refuse("without compartments", Spec{Beside: unprepared.ID(), Mounts: unprepared.spec.Mounts})
			refuse("and no others", Spec{Beside: agent.ID()})
			refuse("and no others", Spec{Beside: agent.ID(), Mounts: []Mount{{Source: agent.work, Target: Workspace}}})
			refuse("and no others", Spec{Beside: agent.ID(), Mounts: agent.spec.Mounts, Root: "/usr"})
		}
		way, _ := outside(t, EgressPort, true)
		for words, s := range map[string]Spec{
			"no running sandbox nobody":          {ID: "x", Beside: "nobody"},
			"no running sandbox " + service.ID(): {ID: "x", Beside: service.ID()},
			"cannot name the sandbox":            {ID: "x", Beside: "x"},
			"none of its own":                    {ID: "x", Beside: agent.ID(), Forwards: []Forward{way}},
			"no running sandbox":                 {ID: "x", Beside: agent.ID(), UID: testUID + 1, GID: testGID},
		} {
			ours, theirs, err := stream.Pair()
			if err != nil {
				t.Fatal(err)
			}
			s.Control = theirs
			if _, err := theLauncher(t).Start(deadline(t), s); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, want %q", err, words)
			}
			ours.Close()
		}
		_ = agent.Kill(deadline(t))
		ours, theirs, err := stream.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		if _, err := theLauncher(t).Start(deadline(t), Spec{ID: "x", Beside: agent.ID(), Control: theirs}); err == nil {
			t.Error("beside one that has ended")
		}
	})
}

// Root without its capabilities is told which it lacks; a sandbox that has just
// ended is another matter. What is started then has the network it joined, and
// what is started after it has not.
func TestJoiningTheNetwork(t *testing.T) {
	if !root {
		return
	}
	agent := start(t, nil)
	network := func() string {
		to, err := os.Readlink("/proc/thread-self/ns/net")
		must(t, err)
		return to
	}
	own, joined := network(), ""
	must(t, inNetworkOf(agent.initFD(), func() error { joined = network(); return nil }))
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", agent.pid))
	if err != nil || joined != theirs || joined == own || network() != own {
		t.Errorf("%s, theirs is %s, ours %s (%v)", joined, theirs, own, err)
	}

	exe, _ := os.Executable()
	cmd := exec.Command(exe, "helper", "join", strconv.Itoa(agent.pid))
	var said bytes.Buffer
	cmd.Stdout = &said
	must(t, proc.StartBare(cmd)) // without a capability
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(said.String(), "true cannot isolate: joining") {
		t.Errorf("without capabilities: %q (%v)", &said, err)
	}

	fd, err := unix.PidfdOpen(agent.pid, 0)
	must(t, err)
	ended := os.NewFile(uintptr(fd), "pidfd")
	defer ended.Close()
	must(t, agent.Kill(deadline(t)))
	err = inNetworkOf(ended, func() error { return errors.New("it was started") })
	if !errors.Is(err, unix.ESRCH) || errors.Is(err, ErrIsolation) {
		t.Errorf("the network of one that has ended: %v", err)
	}
}

// helperJoin joins the network of a process and says whether it cannot.
func helperJoin(args []string) int {
	pid, _ := strconv.Atoi(args[0])
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		err = inNetworkOf(os.NewFile(uintptr(fd), "pidfd"), func() error { return nil })
	}
	fmt.Println(errors.Is(err, ErrIsolation), err)
	return 0
}

// What was started in the wrong network, or not apart, is seen from outside.
func TestVerifyBeside(t *testing.T) {
	if !root {
		return
	}
	a, b := start(t, nil), start(t, nil)
	if err := verifyBeside(b.pid, a.initFD()); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "net namespace") {
		t.Errorf("another network: %v", err)
	}
	if err := verifyBeside(a.pid, a.initFD()); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "user namespace") {
		t.Errorf("the same in all: %v", err)
	}
	c := a.beside(t, nil)
	if err := verifyBeside(c.pid, a.initFD()); err != nil {
		t.Error(err)
	}
}
