package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"inspect/envs/sandbox/stream"
)

// execWord asks for execMain instead of the init.
const execWord = "exec"

// execArgs is the argument vector of the step that gives a command limits of
// its own: it sets them on itself and becomes the command. (Limits set on the
// running command would come too late for what it forks first, and limits set
// on the init for a moment would hit the init.)
func execArgs(l stream.Rlimits, path string, argv []string) ([]string, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return append([]string{"inspect", "sandbox-init", execWord, string(b), path}, argv...), nil
}

// execMain only returns if it failed.
func execMain(args []string) error {
	var l stream.Rlimits
	if len(args) < 3 {
		return errors.New("too few arguments")
	}
	if err := json.Unmarshal([]byte(args[0]), &l); err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	path, err := syscall.BytePtrFromString(args[1])
	if err != nil {
		return err
	}
	argv, err := syscall.SlicePtrFromStrings(args[2:])
	if err != nil {
		return err
	}
	env, err := syscall.SlicePtrFromStrings(os.Environ())
	if err != nil {
		return err
	}
	for what, value := range map[int]uint64{
		unix.RLIMIT_CPU:    l.CPUSeconds,
		unix.RLIMIT_FSIZE:  l.FileSize,
		unix.RLIMIT_NOFILE: l.OpenFiles,
	} {
		if value == 0 {
			continue
		}
		if err := lower(what, value); err != nil {
			return fmt.Errorf("set a limit: %w", err)
		}
	}
	// The address space comes last and is followed by nothing but the exec:
	// this runtime has mapped more than many a limit allows.
	if l.AddressSpace > 0 {
		lim := unix.Rlimit{Cur: l.AddressSpace, Max: l.AddressSpace}
		if _, _, e := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_AS, uintptr(unsafe.Pointer(&lim)), 0, 0, 0); e != 0 {
			return fmt.Errorf("set a limit: %w", e)
		}
	}
	_, _, e := unix.RawSyscall(unix.SYS_EXECVE,
		uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])))
	return fmt.Errorf("start %s: %w", args[1], e)
}
