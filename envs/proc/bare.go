package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartBare starts cmd so that neither it nor anything it executes can ever
// gain a privilege: it has no_new_privs and, if this process is root, an empty
// bounding set. With SysProcAttr.Pdeathsig the signal comes when this process
// ends, not when one of its threads does. The caller waits for cmd.
func StartBare(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		// What is given up is the thread's, which therefore ends with this goroutine.
		runtime.LockOSThread()
		err := giveUp()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			started <- err
			return
		}
		pid := cmd.Process.Pid
		wait := cmd.SysProcAttr != nil && cmd.SysProcAttr.Pdeathsig != 0
		started <- nil
		if wait {
			awaitExit(pid)
		}
	}()
	return <-started
}

// giveUp takes from the calling thread the ways to privileges.
func giveUp() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if unix.Geteuid() != 0 {
		return nil
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // the kernel has no more of them
		}
		if err != nil {
			return fmt.Errorf("give up the capability %d: %w", c, err)
		}
	}
}

// KeepToItself keeps other processes of this process's account from looking
// into it: its memory, its environment, its descriptors. It leaves no core.
func KeepToItself() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("leave no core: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close this process to others: %w", err)
	}
	return nil
}
