package inside

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ApartWord asks for namespaces of its own, see apartMain.
const ApartWord = "apart"

// apartMain starts an init in a user, pid, ipc and mount namespace of its own,
// with whatever was handed to this process, and waits for it. The arguments are
// its user and group in there, then the init's own. It is for gVisor, in whose
// kernel several inits share what is outside of these: there it is what
// bubblewrap is to the kernel of the machine. No command is in the namespace
// that this process is in, so none can see it.
func apartMain(args []string) (status int, err error) {
	if len(args) < 2 {
		return 0, errors.New("apart needs a user and a group")
	}
	uid, err := strconv.Atoi(args[0])
	if err != nil {
		return 0, err
	}
	gid, err := strconv.Atoi(args[1])
	if err != nil {
		return 0, err
	}
	runtime.GOMAXPROCS(1) // it only waits
	files := []uintptr{0, 1, 2}
	for fd := uintptr(3); ; fd++ {
		flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			break
		}
		files = append(files, fd)
	}
	pid, err := syscall.ForkExec(os.Args[0], append([]string{os.Args[0], "sandbox-init"}, args[2:]...), &syscall.ProcAttr{
		Env: os.Environ(), Files: files,
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getgid(), Size: 1}},
			// Until it has the view that belongs to its namespaces.
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP},
		},
	})
	if err != nil {
		return 0, fmt.Errorf("make namespaces of its own: %w", err)
	}
	for _, fd := range files {
		if fd != 2 { // whose end tells that this one has ended, too
			unix.Close(int(fd))
		}
	}
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); err != unix.EINTR {
			break
		}
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return ws.ExitStatus(), nil
}

// fresh is a temporary file system that a compartment has for itself.
type fresh struct {
	path string // below /
	size int64  // bytes
}

func parseFresh(s string) (f fresh, err error) {
	path, size, _ := strings.Cut(s, "=")
	f.path = path
	if f.size, err = strconv.ParseInt(size, 10, 64); err != nil || path == "" {
		return f, fmt.Errorf("%q is not PATH=BYTES", s)
	}
	return f, nil
}

// Files of a compartment that stand for those of the same name in /etc.
const ownFiles = "/run/inspect/"

// takeView mounts what belongs to the namespaces that this process is the first
// one of, and gives up what allowed it to. A compartment's init, which has
// temporary file systems of its own, shares all others with the rest of the sandbox.
func takeView(tmpfs []fresh) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return fmt.Errorf("show its own processes: %w", err)
	}
	if len(tmpfs) > 0 {
		kept, err := unix.Open(ownFiles, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(kept)
		for _, f := range tmpfs {
			mode := "1777"
			if f.path == "run" || strings.HasPrefix(f.path, "home/") {
				mode = "0755"
			}
			if err := unix.Mount("tmpfs", "/"+f.path, "tmpfs", flags, fmt.Sprintf("mode=%s,size=%d", mode, f.size)); err != nil {
				return fmt.Errorf("mount a file system of its own on /%s: %w", f.path, err)
			}
		}
		if err := os.Mkdir(ownFiles, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", kept), ownFiles, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("show %s again: %w", ownFiles, err)
		}
		for _, name := range []string{"passwd", "group"} {
			if err := unix.Mount(ownFiles+name, "/etc/"+name, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("show /etc/%s: %w", name, err)
			}
		}
		if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID, "newinstance"); err != nil {
			return fmt.Errorf("show its own terminals: %w", err)
		}
	}
	return dropCapabilities()
}

// dropCapabilities gives up all of them in every thread, and that anything
// executed later could have any.
func dropCapabilities() error {
	for c := uintptr(0); c < 64; c++ {
		_, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if e == unix.EINVAL && c > 0 { // the kernel knows no more
			break
		}
		if e != 0 {
			return fmt.Errorf("drop capability %d: %w", c, e)
		}
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&self)), uintptr(unsafe.Pointer(&none)), 0); e != 0 {
		return fmt.Errorf("drop all capabilities: %w", e)
	}
	return nil
}

// What the kernel is told lies where it stays while all threads tell it.
var (
	self = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	none [2]unix.CapUserData
)
