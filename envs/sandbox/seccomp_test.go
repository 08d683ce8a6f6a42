package sandbox

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	allow = unix.SECCOMP_RET_ALLOW
	eperm = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	nosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	kill  = unix.SECCOMP_RET_KILL_PROCESS
)

// verdicts runs a program on made-up calls.
func verdicts(t *testing.T, program []bpf.Instruction) func(audit, nr uint32, args ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return func(audit, nr uint32, args ...uint64) uint32 {
		// struct seccomp_data as this VM reads it, word by word.
		b := make([]byte, 64)
		binary.BigEndian.PutUint32(b, nr)
		binary.BigEndian.PutUint32(b[4:], audit)
		for i, a := range args {
			binary.BigEndian.PutUint32(b[16+8*i:], uint32(a))
			binary.BigEndian.PutUint32(b[20+8*i:], uint32(a>>32))
		}
		got, err := vm.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(got)
	}
}

func TestFilterGuard(t *testing.T) {
	for machine, other := range map[string]uint32{"amd64": unix.AUDIT_ARCH_I386, "arm64": unix.AUDIT_ARCH_ARM} {
		info, audit, err := architecture(machine)
		if err != nil {
			t.Fatal(err)
		}
		verdict := verdicts(t, append(guard(info, audit), bpf.RetConstant{Val: allow}))
		for name, n := range info.SyscallNumbers {
			if got := verdict(audit, uint32(name)); got != allow {
				t.Errorf("%s: %s: %#x", machine, n, got)
			}
		}
		if got := verdict(other, 20); got != kill {
			t.Errorf("%s: the other architecture: %#x", machine, got)
		}
		if got := verdict(audit, 5000); got != nosys {
			t.Errorf("%s: beyond the table: %#x", machine, got)
		}
	}
	if _, _, err := architecture("mips"); err == nil {
		t.Error("a machine without a filter was accepted")
	}
}

func TestFilter(t *testing.T) {
	program, err := filterProgram()
	if err != nil {
		t.Fatal(err)
	}
	if len(program) > unix.BPF_MAXINSNS {
		t.Errorf("%d instructions", len(program))
	}
	verdict := verdicts(t, program)
	info, audit, err := architecture(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	nr := func(name string) uint32 {
		n, ok := info.SyscallNames[name]
		if !ok {
			t.Fatalf("no call %s", name)
		}
		return uint32(n)
	}
	for _, c := range []struct {
		what string
		got  uint32
		want uint32
	}{
		{"read", verdict(audit, nr("read")), allow},
		{"another architecture", verdict(unix.AUDIT_ARCH_I386, 20), kill},
		{"another architecture's denied call", verdict(unix.AUDIT_ARCH_I386, nr("keyctl")), kill},
		{"keyctl", verdict(audit, nr("keyctl")), eperm},
		{"mount", verdict(audit, nr("mount")), eperm},
		{"clone3", verdict(audit, nr("clone3")), nosys},
		{"fsopen", verdict(audit, nr("fsopen")), nosys},
		{"beyond the table", verdict(audit, 5000), nosys},
		{"clone", verdict(audit, nr("clone"), unix.CLONE_VM|unix.CLONE_VFORK), allow},
		{"clone NEWUSER", verdict(audit, nr("clone"), unix.CLONE_VM|unix.CLONE_NEWUSER), eperm},
		{"clone NEWUSER high", verdict(audit, nr("clone"), 1<<50|unix.CLONE_NEWUSER), eperm},
		{"unshare NEWUSER", verdict(audit, nr("unshare"), unix.CLONE_NEWUSER|unix.CLONE_NEWNS), eperm},
		{"unshare FS", verdict(audit, nr("unshare"), unix.CLONE_FS), allow},
		{"TIOCSTI", verdict(audit, nr("ioctl"), 0, unix.TIOCSTI), eperm},
		{"TIOCSTI high", verdict(audit, nr("ioctl"), 0, 1<<32|unix.TIOCSTI), eperm},
		{"TIOCLINUX", verdict(audit, nr("ioctl"), 0, 7<<40|unix.TIOCLINUX), eperm},
		{"TIOCGWINSZ", verdict(audit, nr("ioctl"), 0, unix.TIOCGWINSZ), allow},
		{"socket unix", verdict(audit, nr("socket"), unix.AF_UNIX), allow},
		{"socket netlink", verdict(audit, nr("socket"), unix.AF_NETLINK), allow},
		{"socket vsock", verdict(audit, nr("socket"), unix.AF_VSOCK), eperm},
		{"socket vsock high", verdict(audit, nr("socket"), 1<<32|unix.AF_VSOCK), eperm},
		{"socket packet", verdict(audit, nr("socket"), unix.AF_PACKET), eperm},
		{"socket alg", verdict(audit, nr("socket"), 0xffffffff<<32|unix.AF_ALG), eperm},
		{"another argument's value", verdict(audit, nr("socket"), unix.AF_INET, unix.AF_ALG), allow},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, c.got, c.want)
		}
	}
	if runtime.GOARCH == "amd64" {
		if got := verdict(audit, 0x40000000|nr("getpid")); got != nosys {
			t.Errorf("x32: %#x", got)
		}
	}
}
