package sandbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// denied calls answer EPERM. Each is of no use to a build, a test, a database
// or a browser and has been the way out of a container before.
var denied = []string{
	// keyrings are not namespaced
	"add_key", "keyctl", "request_key",
	// large kernel interfaces
	"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"lookup_dcookie", "kcmp", "fanotify_init", "vm86", "vm86old", "modify_ldt", "uselib", "pidfd_getfd",
	// the machine
	"kexec_load", "kexec_file_load", "reboot", "init_module", "finit_module", "delete_module", "create_module",
	"query_module", "get_kernel_syms", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "nfsservctl",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime", "iopl", "ioperm", "syslog",
	"sethostname", "setdomainname", "vhangup", "personality", "_sysctl", "sysfs", "ustat",
	// file systems
	"mount", "umount", "umount2", "pivot_root", "chroot", "setns", "name_to_handle_at", "open_by_handle_at",
	// memory placement
	"mbind", "migrate_pages", "move_pages", "set_mempolicy", "get_mempolicy", "set_mempolicy_home_node",
}

// absent calls answer ENOSYS, because the C library then falls back to an
// older one; it gives up at EPERM. clone3 hides its flags from the filter.
var absent = []string{
	"clone3", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
	"mount_setattr", "statmount", "listmount",
}

const errnoENOSYS = seccomp.Action(uint32(unix.SECCOMP_RET_ERRNO) | uint32(unix.ENOSYS))

// seccompFilter is this machine's filter in the form bubblewrap reads: struct
// sock_filter after struct sock_filter, little-endian as both machines are.
func seccompFilter(more ...seccomp.SyscallGroup) ([]byte, error) {
	program, err := filterProgram(more...)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assemble the system-call filter: %w", err)
	}
	var out bytes.Buffer
	for _, i := range raw {
		_ = binary.Write(&out, binary.LittleEndian, i) // Op, Jt, Jf, K
	}
	return out.Bytes(), nil
}

// architecture is a machine's table of calls and its name to the kernel.
func architecture(machine string) (*arch.Info, uint32, error) {
	switch machine {
	case "amd64":
		return arch.X86_64, unix.AUDIT_ARCH_X86_64, nil
	case "arm64":
		return arch.AARCH64, unix.AUDIT_ARCH_AARCH64, nil
	}
	return nil, 0, fmt.Errorf("there is no system-call filter for %s machines", machine)
}

// guard is what every filter begins with. The library lets a call of another
// architecture (int 0x80 on amd64) go to the default action, which here allows
// it. So that is killed first, and a call newer than the table, which nobody
// has judged, does not exist.
func guard(info *arch.Info, audit uint32) []bpf.Instruction {
	newest := slices.Max(slices.Collect(maps.Keys(info.SyscallNumbers)))
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4}, // seccomp_data.arch
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: audit, SkipTrue: 1},
		bpf.RetConstant{Val: uint32(unix.SECCOMP_RET_KILL_PROCESS)},
		bpf.LoadAbsolute{Off: 0, Size: 4}, // seccomp_data.nr
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: uint32(newest), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(errnoENOSYS)},
	}
}

// initsOwn are calls by which a command could end or stop the init. Linux lets
// nobody in a pid namespace do that to its first process; gVisor would. The
// init's threads are made before any command, so theirs are the lowest numbers.
// (A pidfd may be a directory of /proc too.)
func initsOwn() []seccomp.SyscallGroup {
	const first, threads = 1, 64
	return []seccomp.SyscallGroup{
		{Action: seccomp.ActionErrno, Names: []string{"pidfd_send_signal"}},
		{Action: seccomp.ActionErrno, NamesWithCondtions: []seccomp.NameWithConditions{
			{Name: "kill", Conditions: low32(0, first)},
			{Name: "tgkill", Conditions: low32(0, first)},
			{Name: "rt_sigqueueinfo", Conditions: low32(0, first)},
			{Name: "rt_tgsigqueueinfo", Conditions: low32(0, first)},
			{Name: "tkill", Conditions: seccomp.ArgumentConditions{
				{Argument: 0, Operation: seccomp.BitsNotSet, Value: math.MaxUint32 &^ uint64(threads-1)},
			}},
		}},
	}
}

func filterProgram(more ...seccomp.SyscallGroup) ([]bpf.Instruction, error) {
	info, audit, err := architecture(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	known := func(names []string) (out []string) {
		for _, n := range names {
			if _, ok := info.SyscallNames[n]; ok {
				out = append(out, n)
			}
		}
		return out
	}
	policy := seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: append([]seccomp.SyscallGroup{
			{Action: errnoENOSYS, Names: known(absent)},
			{Action: seccomp.ActionErrno, Names: known(denied)},
			{Action: seccomp.ActionErrno, NamesWithCondtions: []seccomp.NameWithConditions{
				{Name: "clone", Conditions: bit(0, unix.CLONE_NEWUSER)},
				{Name: "unshare", Conditions: bit(0, unix.CLONE_NEWUSER)},
				// putting words into the terminal of who started us
				{Name: "ioctl", Conditions: low32(1, unix.TIOCSTI)},
				{Name: "ioctl", Conditions: low32(1, unix.TIOCLINUX)},
				{Name: "socket", Conditions: low32(0, unix.AF_VSOCK)},
				{Name: "socket", Conditions: low32(0, unix.AF_PACKET)},
				{Name: "socket", Conditions: low32(0, unix.AF_ALG)},
			}},
		}, more...),
	}
	insts, err := policy.Assemble()
	if err != nil {
		return nil, fmt.Errorf("assemble the system-call filter: %w", err)
	}
	return append(guard(info, audit), insts...), nil
}

// bit is the condition that a bit of an argument is set.
func bit(arg uint32, value uint64) seccomp.ArgumentConditions {
	return seccomp.ArgumentConditions{{Argument: arg, Operation: seccomp.BitsSet, Value: value}}
}

// low32 is the condition that an argument's low half has this value. The
// kernel takes such arguments as ints and drops the high half, so comparing
// all 64 bits would let 1<<32|value pass.
func low32(arg uint32, value uint32) (c seccomp.ArgumentConditions) {
	for b := uint32(1); b != 0; b <<= 1 {
		if value&b != 0 {
			c = append(c, seccomp.Condition{Argument: arg, Operation: seccomp.BitsSet, Value: uint64(b)})
		}
	}
	return append(c, seccomp.Condition{Argument: arg, Operation: seccomp.BitsNotSet, Value: uint64(^value)})
}
