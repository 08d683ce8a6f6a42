package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CompartmentUID and CompartmentGID are who commands are inside a compartment.
const (
	CompartmentUID = 1001
	CompartmentGID = 1001
)

// A compartment is a sandbox beside a running one (Spec.Beside): it has
// namespaces of its own but for the network's, so that the two reach each
// other's ports on the loopback and nothing else of each other. It is in the
// other's cgroup, whose limits bound both together and whose end is its end; it
// ends by itself too when the other's init does. Abstract unix sockets belong
// to the network namespace: both see them.
//
// Of the tier gvisor these are namespaces of gVisor's kernel: the other's
// loopback is in there. See apart.

func (b *bubblewrap) beside(s Spec, uid int) (*os.File, error) {
	l := b.l
	if !l.root {
		return nil, fmt.Errorf("%w: only root can start a sandbox that shares another's loopback; run as root, or name no secrets", ErrIsolation)
	}
	var pids []int
	if l.groups != nil {
		pids = l.groups.group(s.Beside).pids()
	} else if m, err := l.readMark(s.Beside); err == nil && m.alive() {
		pids = []int{m.PID}
	}
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Opened first, looked at then: what is seen is this process's unless it
		// has ended, and then it is of no use (inNetworkOf and the init see to that).
		if isInit(pid, uid) && alive(fd) {
			return os.NewFile(uintptr(fd), "pidfd"), nil
		}
		unix.Close(fd)
	}
	return nil, errNotBeside(s)
}

func errNotBeside(s Spec) error {
	return fmt.Errorf("there is no running sandbox %s to start it beside", s.Beside)
}

// inNetworkOf calls start on a thread that is in the network namespace of a
// pidfd's process, for what it starts to be in there too.
func inNetworkOf(pidfd *os.File, start func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this goroutine unless it comes back
		done <- func() error {
			own, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer own.Close()
			err = unix.Setns(int(pidfd.Fd()), unix.CLONE_NEWNET)
			if err == unix.EPERM {
				return fmt.Errorf("%w: joining the network of the sandbox beside takes the capabilities SYS_ADMIN and SYS_PTRACE, which this process lacks (%w)", ErrIsolation, err)
			}
			if err != nil {
				return fmt.Errorf("join the network of the sandbox beside: %w", err)
			}
			err = start()
			if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			return err
		}()
	}()
	return <-done
}

// reserve raises a running sandbox's limit of processes by what the init of a
// compartment needs, or lowers it again.
func (l *Launcher) reserve(id string, n int64) error {
	if l.groups == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.groups.group(id).raisePids(n)
}

// isInit says whether a process is the init of a sandbox that is no compartment.
// Nothing in a sandbox can make itself look so: it cannot be the first process
// of a pid namespace.
func isInit(pid, uid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	first, owned := false, false
	for line := range strings.Lines(string(status)) {
		switch f := strings.Fields(line); {
		case len(f) > 2 && f[0] == "NSpid:":
			first = f[len(f)-1] == "1"
		case len(f) > 1 && f[0] == "Uid:":
			owned = f[1] == strconv.Itoa(uid)
		}
	}
	if !first || !owned {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := bytes.Split(line, []byte{0})
	return err == nil && len(args) > 1 && string(args[0]) == InitPath && string(args[1]) == "sandbox-init" &&
		!slices.ContainsFunc(args, func(a []byte) bool { return string(a) == besideFlag })
}

// The option that makes an init one of a compartment, and where it finds the
// pidfd of the other's.
const (
	besideFlag = "--beside"
	besideFD   = "4"
)

// alive says whether the process of a pidfd has not ended.
func alive(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err != unix.EINTR {
			return err == nil && n == 0
		}
	}
}

// verifyBeside reads, from outside, that a compartment's init shares the
// network namespace of the other sandbox and no other one.
func verifyBeside(pid int, other *os.File) error {
	fd := int(other.Fd())
	theirs, err := pidOf(fd)
	if err != nil {
		return err
	}
	for _, ns := range []string{"net", "user", "pid", "mnt", "ipc", "uts"} {
		a, aerr := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		b, berr := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", theirs, ns))
		if err := errors.Join(aerr, berr); err != nil {
			return fmt.Errorf("look at the namespaces of the sandbox and the one beside it: %w", err)
		}
		if (a == b) != (ns == "net") {
			return fmt.Errorf("%w: its %s namespace is %s, that of the sandbox beside it %s", ErrIsolation, ns, a, b)
		}
	}
	if !alive(fd) {
		return errors.New("the sandbox beside it has ended")
	}
	return nil
}

// pidOf is the number of a pidfd's process.
func pidOf(fd int) (int, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "Pid:" {
			if pid, err := strconv.Atoi(f[1]); err == nil && pid > 0 {
				return pid, nil
			}
		}
	}
	return 0, errors.New("the sandbox beside it has ended")
}
