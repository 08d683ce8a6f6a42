package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"inspect/envs/sandbox/inside"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

func TestEscapes(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		t.Setenv("CANARY", "of the launcher")
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		name := fmt.Sprintf("@inspect-test-%d", os.Getpid())
		abstract, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer abstract.Close()
		victim := exec.Command("cat") // waits for input that never comes
		if _, err := victim.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()

		secret := filepath.Join(runDir, "secret-of-the-host")
		if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		shm := fmt.Sprintf("/dev/shm/inspect-test-%d", os.Getpid())
		if err := os.WriteFile(shm, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(shm)
		_, daemon := outside(t, EgressPort, false) // no way to this one is given
		other := start(t, nil)                     // another session's
		if err := os.WriteFile(filepath.Join(other.work, "work"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		args := map[string][]string{
			"the host's network":        {tcp.Addr().String()},
			"the host's abstract names": {name},
			"the host's processes":      {strconv.Itoa(victim.Process.Pid), strconv.Itoa(other.pid)},
			"files of the host":         {secret, runDir, shm, other.work, filepath.Join(other.work, "work")},
			"unix sockets of the host":  {daemon.Addr().String()},
			"the ways out":              {strconv.Itoa(EgressPort), strconv.Itoa(ModelPort)},
		}
		way, _ := outside(t, EgressPort, true)
		b := start(t, func(s *Spec) { s.Forwards = []Forward{way} })
		for name := range attempts {
			t.Run(name, func(t *testing.T) {
				r := b.exec(t, stream.Exec{Argv: append([]string{InitPath, "attempt", name}, args[name]...), Env: []string{"TIER=" + tierOf(t)}})
				if r.Code != 0 {
					t.Errorf("status %d %s: %s%s", r.Code, r.Signal, r.out, r.err)
				}
				if b.must(t, "echo alive") != "alive\n" {
					t.Error("the init does not serve any more")
				}
			})
		}
		if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the host's process is gone: %v", err)
		}
		if other.must(t, "cat work") != "x" {
			t.Error("the other session was disturbed")
		}
	})
}

// A program may ask the kernel by the 32-bit way in, whose calls have other
// numbers. It is killed at its first such call.
func TestInt80(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		if runtime.GOARCH != "amd64" {
			t.Log("only amd64 has it; the guard for other architectures is the same instruction")
			return
		}
		b := start(t, nil)
		code := []byte{
			0xb8, 20, 0, 0, 0, // mov eax, 20 (getpid on i386)
			0xcd, 0x80, // int 0x80
			0xbf, 7, 0, 0, 0, // mov edi, 7
			0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
			0x0f, 0x05, // syscall
		}
		write := func(name string, code []byte) {
			if err := os.WriteFile(filepath.Join(b.work, name), elf64(code), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write("gate", code)
		write("plain", code[7:])
		if r := b.exec(t, stream.Exec{Argv: []string{Workspace + "/plain"}}); r.Code != 7 {
			t.Fatalf("the program without the call: status %d, want 7: %s", r.Code, r.err)
		}
		// Outside, without the filter, the kernel may allow it or not know it; the
		// filter's own verdict is TestFilter's.
		host := filepath.Join(shared(t), "gate")
		if err := os.WriteFile(host, elf64(code), 0o755); err != nil {
			t.Fatal(err)
		}
		want := "SIGSYS"
		var exit *exec.ExitError
		if err := exec.Command(host).Run(); errors.As(err, &exit) && exit.ExitCode() != 7 {
			want = "SIGSEGV"
		}
		r := b.exec(t, stream.Exec{Argv: []string{Workspace + "/gate"}})
		if r.Signal == want {
			return
		}
		// On some machines gVisor does nothing for it, or takes it for the 64-bit
		// call of that number, to which the filter applies.
		write("keys", []byte{
			0xb8, byte(unix.SYS_ADD_KEY), 0, 0, 0, // mov eax
			0xcd, 0x80, // int 0x80
			0x89, 0xc7, 0xf7, 0xdf, // mov edi, eax; neg edi
			0xb8, 60, 0, 0, 0, 0x0f, 0x05,
		})
		keys := b.exec(t, stream.Exec{Argv: []string{Workspace + "/keys"}})
		if tierOf(t) != wire.TierGVisor || r.Code != 7 || keys.Code != int(unix.EPERM) && keys.Code != int(unix.ENOSYS) {
			t.Errorf("the 32-bit call: status %d %s, want %s; a forbidden one: status %d %s", r.Code, r.Signal, want, keys.Code, keys.Signal)
		}
	})
}

// elf64 is the smallest static program with this code.
func elf64(code []byte) []byte {
	const base, head = 0x400000, 64 + 56
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	size := uint64(head + len(code))
	for _, v := range []any{
		uint16(2), uint16(62), uint32(1), uint64(base + head), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(4096),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	b.Write(code)
	return b.Bytes()
}

// Outside, nothing of a sandbox is root's.
func TestOutsideNobodyIsRoot(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		cmd, err := b.Client.Start(deadline(t), stream.Exec{Argv: []string{"sh", "-c", "echo up; sleep 1000"}, Stdout: new(bytes.Buffer)})
		if err != nil {
			t.Fatal(err)
		}
		uid := testUID
		b.must(t, "true")
		m, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", b.pid))
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(string(m))
		if len(f) != 3 || f[0] != "1000" || f[1] != strconv.Itoa(uid) || f[2] != "1" {
			t.Errorf("uid map %q, want one line 1000 %d 1", m, uid)
		}
		if b.group != nil {
			pids := b.group.pids()
			if len(pids) < 3 {
				t.Errorf("only %v are in the cgroup", pids)
			}
			for _, pid := range pids {
				st, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
				if err != nil {
					continue
				}
				if !strings.Contains(string(st), fmt.Sprintf("\nUid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid)) ||
					!strings.Contains(string(st), fmt.Sprintf("\nGid:\t%d\t%d\t%d\t%d\n", testGID, testGID, testGID, testGID)) {
					t.Errorf("process %d: %s", pid, st)
				}
				if i := strings.Index(string(st), "\nGroups:"); strings.TrimSpace(strings.SplitN(string(st[i+8:]), "\n", 2)[0]) != "" {
					t.Errorf("process %d has groups", pid)
				}
				env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
				if err != nil || bytes.Contains(env, []byte("CANARY")) {
					t.Errorf("process %d: environment %q %v", pid, env, err)
				}
			}
		}
		_ = b.Client.Close()
		if _, err := cmd.Wait(); err == nil {
			t.Error("a command outlived its sandbox")
		}
		if end := b.Sandbox.Wait(); end.ExitCode != inside.LifelineExit {
			t.Errorf("the end: %+v", end)
		}
	})
}

// What was set up for one command is not there for the next, and a command
// without limits gets the sandbox's.
func TestDescriptorsDoNotLeakBetweenCommands(t *testing.T) {
	eachTier(t, func(t *testing.T) {
		b := start(t, nil)
		for range 3 {
			cmd, err := b.Client.Start(deadline(t), stream.Exec{Argv: []string{"sleep", "1000"}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Signal(9); _, _ = cmd.Wait() }()
		}
		if got := b.must(t, "ls /proc/self/fd | wc -l"); got != "4\n" { // 0, 1, 2 and the directory
			t.Errorf("a command has %s descriptors", strings.TrimSpace(got))
		}
	})
}
