package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"inspect/envs/wire"
)

// attempts are ways out, tried inside by the sandbox's own user. Each returns
// nil if it was refused as it should be.
var attempts = map[string]func(args []string) error{
	"look into the init":        lookIntoInit,
	"trace the init":            traceInit,
	"signal the init":           signalInit,
	"user namespaces":           userNamespaces,
	"mounting":                  mounting,
	"keyrings":                  keyrings,
	"kernel interfaces":         kernelInterfaces,
	"socket families":           socketFamilies,
	"words to the terminal":     terminalWords,
	"calls nobody has judged":   unknownCalls,
	"files of the host":         hostFiles,
	"writing to the system":     systemWrites,
	"devices":                   devices,
	"becoming root":             becomingRoot,
	"inherited descriptors":     inheritedDescriptors,
	"the host's network":        hostNetwork,
	"the host's abstract names": hostAbstract,
	"the host's processes":      hostProcesses,
	"kernel settings":           kernelSettings,
	"the ways out":              waysOut,
	"unix sockets of the host":  hostSockets,
	"links to the host's files": links,
	"core dumps":                coreDumps,
}

// gvisorsKernel says that an attempt is made inside gVisor, whose kernel refuses
// some things in other ways.
var gvisorsKernel = os.Getenv("TIER") == wire.TierGVisor

func attempt(args []string) int {
	f := attempts[args[0]]
	if args[0] == atBeside {
		f = sandboxBeside
	}
	if f == nil {
		fmt.Println("no such attempt")
		return 2
	}
	if err := f(args[1:]); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// refused is nil if err is the errno that a refusal should have.
func refused(what string, err error, want ...error) error {
	if err == nil {
		return fmt.Errorf("%s: succeeded", what)
	}
	for _, w := range want {
		if errors.Is(err, w) {
			return nil
		}
	}
	return fmt.Errorf("%s: %w, want %v", what, err, want)
}

func call(nr uintptr, a ...uintptr) error {
	var v [6]uintptr
	copy(v[:], a)
	_, _, e := unix.Syscall6(nr, v[0], v[1], v[2], v[3], v[4], v[5])
	if e == 0 {
		return nil
	}
	return e
}

func lookIntoInit([]string) error {
	var errs []error
	for _, f := range []string{"environ", "mem", "maps", "auxv", "syscall", "stack", "io"} {
		b, err := os.ReadFile("/proc/1/" + f)
		if err == nil && len(b) == 0 {
			err = io0(f)
		}
		errs = append(errs, refused("/proc/1/"+f, err, fs.ErrPermission, fs.ErrNotExist))
	}
	for _, d := range []string{"fd", "map_files", "task/1/fd"} {
		entries, err := os.ReadDir("/proc/1/" + d)
		for _, e := range entries { // gVisor tells the numbers and no more
			_, err := os.Open("/proc/1/" + d + "/" + e.Name())
			errs = append(errs, refused("/proc/1/"+d+"/"+e.Name(), err, fs.ErrPermission))
		}
		if len(entries) == 0 || !gvisorsKernel {
			errs = append(errs, refused("/proc/1/"+d, err, fs.ErrPermission, fs.ErrNotExist))
		}
	}
	for _, l := range []string{"exe", "cwd", "root"} {
		_, err := os.Readlink("/proc/1/" + l)
		errs = append(errs, refused("/proc/1/"+l, err, fs.ErrPermission))
	}
	b, err := os.ReadFile("/proc/1/cmdline")
	errs = append(errs, err)
	line := strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " ")
	if !strings.HasPrefix(line, InitPath+" sandbox-init --control 3") || strings.Contains(line, "/tmp") ||
		strings.Contains(line, "bwrap") {
		errs = append(errs, fmt.Errorf("the init's command line tells too much: %q", line))
	}
	mounts, err := os.ReadFile("/proc/self/environ")
	if err == nil && strings.Contains(string(mounts), "CANARY") {
		err = errors.New("the launcher's environment is inside")
	}
	return errors.Join(append(errs, err)...)
}

type io0 string

func (e io0) Error() string     { return string(e) + " is empty" }
func (e io0) Is(err error) bool { return err == fs.ErrPermission }

func traceInit([]string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return err
	}
	buf := make([]byte, 8)
	local := unix.Iovec{Base: &buf[0], Len: 8}
	remote := unix.RemoteIovec{Base: 0x400000, Len: 8}
	_, rerr := unix.ProcessVMReadv(1, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	_, werr := unix.ProcessVMWritev(1, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	return errors.Join(
		refused("attach", unix.PtraceAttach(1), unix.EPERM),
		refused("seize", unix.PtraceSeize(1), unix.EPERM),
		refused("read memory", rerr, unix.EPERM),
		refused("write memory", werr, unix.EPERM),
		refused("take a descriptor", call(unix.SYS_PIDFD_GETFD, uintptr(fd), 3, 0), unix.EPERM),
		refused("take a descriptor by hand", call(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 3, 3), unix.EPERM),
	)
}

// signalInit sends the init every signal there is, in every way there is. The
// test looks afterwards whether it still serves.
func signalInit([]string) error {
	for sig := syscall.Signal(1); sig < 65; sig++ {
		switch sig {
		case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT: // these come back to us
			continue
		}
		for range 3 {
			if err := unix.Kill(1, sig); err != nil && !gvisorsKernel {
				return fmt.Errorf("signal %d: %w", sig, err)
			}
		}
	}
	info := [128]byte{}
	p := uintptr(unsafe.Pointer(&info[0]))
	for _, sig := range []uintptr{uintptr(unix.SIGSTOP), uintptr(unix.SIGKILL)} {
		*(*int32)(unsafe.Pointer(&info[0])), *(*int32)(unsafe.Pointer(&info[8])) = int32(sig), -1 // SI_QUEUE
		_ = call(unix.SYS_TGKILL, 1, 1, sig)
		_ = call(unix.SYS_RT_SIGQUEUEINFO, 1, sig, p)
		_ = call(unix.SYS_RT_TGSIGQUEUEINFO, 1, 1, sig, p)
		tasks, err := os.ReadDir("/proc/1/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, _ := strconv.Atoi(t.Name())
			_ = call(unix.SYS_TKILL, uintptr(tid), sig)
		}
		for _, open := range []func() (int, error){
			func() (int, error) { return unix.PidfdOpen(1, 0) },
			func() (int, error) { return unix.Open("/proc/1", unix.O_RDONLY, 0) },
		} {
			if fd, err := open(); err == nil {
				_ = unix.PidfdSendSignal(fd, syscall.Signal(sig), nil, 0)
				unix.Close(fd)
			}
		}
	}
	return nil
}

func userNamespaces([]string) error {
	errs := []error{
		refused("unshare", unix.Unshare(unix.CLONE_NEWUSER), unix.EPERM),
		refused("unshare with mounts", unix.Unshare(unix.CLONE_NEWUSER|unix.CLONE_NEWNS), unix.EPERM),
		refused("unshare mounts", unix.Unshare(unix.CLONE_NEWNS), unix.EPERM),
		refused("unshare net", unix.Unshare(unix.CLONE_NEWNET), unix.EPERM),
		refused("clone", call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)), unix.EPERM),
		refused("clone, high bits", call(unix.SYS_CLONE, 1<<40|unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)), unix.EPERM),
		refused("chroot", unix.Chroot("/"), unix.EPERM),
	}
	args := [8]uint64{unix.CLONE_NEWUSER}
	errs = append(errs, refused("clone3", call(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), 64), unix.ENOSYS))
	for _, ns := range []string{"user", "mnt", "net", "pid"} {
		fd, err := unix.Open("/proc/self/ns/"+ns, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		errs = append(errs, refused("setns "+ns, unix.Setns(fd, 0), unix.EPERM))
	}
	return errors.Join(errs...)
}

func mounting([]string) error {
	name, _ := unix.BytePtrFromString("tmpfs")
	p := uintptr(unsafe.Pointer(name))
	return errors.Join(
		refused("mount", unix.Mount("none", "/tmp", "tmpfs", 0, ""), unix.EPERM),
		refused("remount", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, ""), unix.EPERM),
		refused("umount", unix.Unmount("/tmp", unix.MNT_DETACH), unix.EPERM),
		refused("pivot_root", unix.PivotRoot("/tmp", "/tmp"), unix.EPERM),
		refused("fsopen", call(unix.SYS_FSOPEN, p, 0), unix.ENOSYS),
		refused("open_tree", call(unix.SYS_OPEN_TREE, 0, p, 0), unix.ENOSYS),
		refused("move_mount", call(unix.SYS_MOVE_MOUNT, 0, p, 0, p, 0), unix.ENOSYS),
		refused("mount_setattr", call(unix.SYS_MOUNT_SETATTR, 0, p, 0, p, 32), unix.ENOSYS),
	)
}

func keyrings([]string) error {
	desc, _ := unix.BytePtrFromString("x")
	p := uintptr(unsafe.Pointer(desc))
	return errors.Join(
		refused("keyctl", call(unix.SYS_KEYCTL, 0, ^uintptr(3), 1), unix.EPERM),
		refused("add_key", call(unix.SYS_ADD_KEY, p, p, p, 1, ^uintptr(3)), unix.EPERM),
		refused("request_key", call(unix.SYS_REQUEST_KEY, p, p, 0, ^uintptr(3)), unix.EPERM),
	)
}

func kernelInterfaces([]string) error {
	buf := make([]byte, 256)
	p := uintptr(unsafe.Pointer(&buf[0]))
	var errs []error
	for name, e := range map[string]error{
		"bpf":                 call(unix.SYS_BPF, 0, p, 64),
		"perf_event_open":     call(unix.SYS_PERF_EVENT_OPEN, p, 0, ^uintptr(0), ^uintptr(0), 0),
		"userfaultfd":         call(unix.SYS_USERFAULTFD, 1),
		"io_uring_setup":      call(unix.SYS_IO_URING_SETUP, 4, p),
		"open_by_handle_at":   call(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), p, 0),
		"name_to_handle_at":   call(unix.SYS_NAME_TO_HANDLE_AT, ^uintptr(99), p, p, p, 0),
		"personality":         call(unix.SYS_PERSONALITY, 0),
		"init_module":         call(unix.SYS_INIT_MODULE, p, 1, p),
		"kexec_load":          call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		"set_mempolicy":       call(unix.SYS_SET_MEMPOLICY, 0, 0, 0),
		"move_pages":          call(unix.SYS_MOVE_PAGES, 0, 0, p, p, p, 0),
		"reboot":              call(unix.SYS_REBOOT, 0, 0, 0),
		"sethostname":         call(unix.SYS_SETHOSTNAME, p, 1),
		"quotactl":            call(unix.SYS_QUOTACTL, 0, p, 0, p),
		"syslog":              call(unix.SYS_SYSLOG, 3, p, 16),
		"settimeofday":        call(unix.SYS_SETTIMEOFDAY, p, 0),
		"fanotify_init":       call(unix.SYS_FANOTIFY_INIT, 0, 0),
		"io_uring_enter":      call(unix.SYS_IO_URING_ENTER, 0, 0, 0, 0, 0),
		"request of acct":     call(unix.SYS_ACCT, 0),
		"swapon":              call(unix.SYS_SWAPON, p, 0),
		"delete_module":       call(unix.SYS_DELETE_MODULE, p, 0),
		"set_mempolicy_home…": call(unix.SYS_SET_MEMPOLICY_HOME_NODE, 0, 0, 0, 0),
	} {
		errs = append(errs, refused(name, e, unix.EPERM))
	}
	return errors.Join(errs...)
}

func socketFamilies([]string) error {
	var errs []error
	for name, family := range map[string]uintptr{"vsock": unix.AF_VSOCK, "packet": unix.AF_PACKET, "alg": unix.AF_ALG} {
		// The kernel reads an int: the high half must make no difference.
		for _, high := range []uintptr{0, 1 << 32, 0xffffffff << 32} {
			for _, kind := range []uintptr{unix.SOCK_STREAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
				errs = append(errs, refused(fmt.Sprintf("%s|%x", name, high), call(unix.SYS_SOCKET, family|high, kind, 0), unix.EPERM))
			}
		}
	}
	for _, family := range []int{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("an ordinary socket of family %d: %w", family, err))
			continue
		}
		unix.Close(fd)
	}
	return errors.Join(errs...)
}

func terminalWords([]string) error {
	c := byte('x')
	p := uintptr(unsafe.Pointer(&c))
	var errs []error
	for _, high := range []uintptr{0, 1 << 32, 0xffff << 40} {
		errs = append(errs,
			refused("TIOCSTI", call(unix.SYS_IOCTL, 0, unix.TIOCSTI|high, p), unix.EPERM),
			refused("TIOCLINUX", call(unix.SYS_IOCTL, 0, unix.TIOCLINUX|high, p), unix.EPERM))
	}
	if _, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
		errs = append(errs, errors.New("there is a controlling terminal"))
	}
	return errors.Join(errs...)
}

func unknownCalls([]string) error {
	errs := []error{
		refused("a call newer than the filter", call(900), unix.ENOSYS),
		refused("a call far beyond", call(0x3fffffff), unix.ENOSYS),
	}
	if runtime.GOARCH == "amd64" {
		errs = append(errs,
			refused("a call of x32", call(0x40000000|39), unix.ENOSYS),
			refused("an x32-only number", call(520), unix.ENOSYS))
	}
	return errors.Join(errs...)
}

func hostFiles(args []string) error {
	var errs []error
	for _, p := range append(args, "/etc/shadow", "/etc/hostname", "/etc/resolv.conf", "/etc/npmrc", "/etc/gitconfig",
		"/etc/machine-id", "/root", "/var/lib", "/var/log", "/sys/kernel", "/boot", "/opt", "/srv", "/mnt", "/media",
		"/lost+found", "/var/run/docker.sock", "/run/systemd", "/run/user", "/run/dbus", "/proc/1/root/etc/shadow",
		"/proc/1/cwd") {
		_, err := os.Stat(p)
		errs = append(errs, refused(p, err, fs.ErrNotExist, fs.ErrPermission))
	}
	// Everything in the root directory is known.
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "dev", "tmp", "run", "var", "home", "workspace":
		case "sys": // an empty one hides gVisor's
			if in, err := os.ReadDir("/sys"); !gvisorsKernel || err != nil || len(in) > 0 {
				errs = append(errs, fmt.Errorf("/sys holds %v, %w", in, err))
			}
		default:
			errs = append(errs, fmt.Errorf("/%s is visible", e.Name()))
		}
	}
	for dir, most := range map[string]int{"/home": 1, "/run": 1, "/var": 2, "/tmp": 0, "/home/agent": 0} {
		if e, err := os.ReadDir(dir); err != nil || len(e) > most {
			errs = append(errs, fmt.Errorf("%s holds %v, %w", dir, e, err))
		}
	}
	return errors.Join(errs...)
}

func systemWrites([]string) error {
	var errs []error
	for _, p := range []string{"/x", "/usr/x", "/usr/bin/x", "/etc/x", "/bin/x", "/dev/x", "/run/inspect/x", "/var/x", "/home/x",
		"/etc/ssl/x", "/proc/x"} {
		err := os.WriteFile(p, nil, 0o644)
		errs = append(errs, refused("write "+p, err, unix.EROFS, unix.EACCES, unix.ENOENT, unix.EPERM))
	}
	for _, p := range []string{"/etc/passwd", "/etc/hosts", InitPath} {
		_, err := os.OpenFile(p, os.O_WRONLY, 0)
		errs = append(errs, refused("open "+p, err, unix.EROFS, unix.EACCES, unix.ETXTBSY))
		errs = append(errs, refused("remove "+p, os.Remove(p), unix.EROFS, unix.EACCES, unix.EBUSY))
		errs = append(errs, refused("chmod "+p, os.Chmod(p, 0o777), unix.EROFS, unix.EPERM))
	}
	errs = append(errs, refused("move /run/inspect", os.Rename("/run/inspect", "/run/y"), unix.EBUSY, unix.EXDEV, unix.EROFS, unix.EACCES))
	return errors.Join(errs...)
}

func devices([]string) error {
	var errs []error
	err := filepath.WalkDir("/dev", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		switch p {
		case "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/ptmx":
			return nil
		case "/dev/fuse", "/dev/net/tun": // gVisor has ones of its own; mounting and networks are refused
			if gvisorsKernel {
				return nil
			}
		}
		errs = append(errs, fmt.Errorf("%s is there", p))
		return nil
	})
	for _, dir := range []string{"/tmp", Workspace, "/dev"} {
		e := unix.Mknod(filepath.Join(dir, "mem"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1)))
		errs = append(errs, refused("mknod in "+dir, e, unix.EPERM, unix.EROFS))
	}
	return errors.Join(append(errs, err)...)
}

func becomingRoot([]string) error {
	errs := []error{
		refused("setuid", syscall.Setuid(0), unix.EPERM, unix.EINVAL),
		refused("setgid", syscall.Setgid(0), unix.EPERM, unix.EINVAL),
		refused("setgroups", syscall.Setgroups([]int{0}), unix.EPERM),
		refused("chown", os.Chown(os.Args[0], 0, 0), unix.EPERM, unix.EROFS, unix.EINVAL),
	}
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for _, want := range []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n",
		"CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n"} {
		if !strings.Contains(string(b), want) {
			errs = append(errs, fmt.Errorf("not in status: %q", want))
		}
	}
	return errors.Join(errs...)
}

func inheritedDescriptors([]string) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if fd <= 2 || strings.HasPrefix(to, "/proc/") || strings.HasPrefix(to, "anon_inode:[event") || to == "" {
			continue // our own: the directory just read, the runtime's
		}
		return fmt.Errorf("descriptor %d is open: %s", fd, to)
	}
	return nil
}

// hostNetwork is given the address of a listener on the host's loopback.
func hostNetwork(args []string) error {
	ifs, err := net.Interfaces()
	if err != nil {
		return err
	}
	if len(ifs) != 1 || ifs[0].Name != "lo" || ifs[0].Flags&net.FlagUp == 0 {
		return fmt.Errorf("interfaces: %v", ifs)
	}
	var errs []error
	for _, a := range append(args, "192.0.2.1:80", "169.254.169.254:80", "[fd00:ec2::254]:80", "[2001:db8::1]:80",
		"127.0.0.1:7460", "127.0.0.1:7461", "127.0.0.1:7462", "127.0.0.1:4646", "127.0.0.1:4647") {
		c, err := net.DialTimeout("tcp", a, time.Second)
		if err == nil {
			c.Close()
		}
		errs = append(errs, refused("dial "+a, err, unix.ENETUNREACH, unix.ECONNREFUSED, unix.EADDRNOTAVAIL))
	}
	// Its own loopback works.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return fmt.Errorf("the sandbox's own loopback: %w", err)
	}
	c.Close()
	_, err = os.ReadFile("/sys/class/net")
	return errors.Join(append(errs, refused("/sys", err, fs.ErrNotExist))...)
}

func hostAbstract(args []string) error {
	c, err := net.Dial("unix", args[0])
	if err == nil {
		c.Close()
	}
	return refused("dial "+args[0], err, unix.ECONNREFUSED)
}

// hostSockets is given the path of a socket that somebody of the host listens on.
func hostSockets(args []string) error {
	var errs []error
	for _, p := range append(args, "/run/systemd/private", "/var/run/docker.sock", "/proc/1/root"+args[0]) {
		c, err := net.Dial("unix", p)
		if err == nil {
			c.Close()
		}
		errs = append(errs, refused("dial "+p, err, fs.ErrNotExist, fs.ErrPermission))
	}
	return errors.Join(errs...)
}

// links makes names of the host's files in directories that a trusted process
// reads. What is bound read-only is on other file systems or mounts.
func links([]string) error {
	var errs []error
	for _, p := range []string{"/etc/passwd", "/etc/ssl", "/usr/bin/env", InitPath} {
		for _, dir := range []string{Workspace, "/tmp"} {
			name := filepath.Join(dir, "link")
			err := os.Link(p, name)
			errs = append(errs, refused("hard link to "+p, err, unix.EXDEV, unix.EPERM, unix.EROFS, unix.EACCES))
		}
	}
	name := filepath.Join(Workspace, "symlink")
	for _, p := range []string{"/etc/shadow", "/proc/1/root/etc/shadow", "/proc/1/fd/3", "../../../../etc/shadow"} {
		if err := os.Symlink(p, name); err != nil {
			return err
		}
		f, err := os.Open(name)
		if err == nil {
			f.Close()
		}
		errs = append(errs, refused("open by a link "+p, err, fs.ErrNotExist, fs.ErrPermission), os.Remove(name))
	}
	return errors.Join(errs...)
}

// coreDumps ends a program by a signal that leaves a core, after it has tried
// to raise the limit of those.
func coreDumps([]string) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &now); err != nil || now.Max > 1 {
		return fmt.Errorf("cores may have %d bytes, %w", now.Max, err)
	}
	errs := []error{refused("raise the limit", unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 30, Max: 1 << 30}), unix.EPERM)}
	c := exec.Command("sh", "-c", "ulimit -c unlimited; kill -SEGV $$")
	c.Dir = Workspace
	err := c.Run()
	if st, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || st.Signal() != unix.SIGSEGV || st.CoreDump() {
		errs = append(errs, fmt.Errorf("it ended in another way: %w", err))
	}
	left, err := filepath.Glob(Workspace + "/*core*")
	if len(left) > 0 {
		err = fmt.Errorf("%v was left", left)
	}
	return errors.Join(append(errs, err)...)
}

// hostProcesses is given numbers of processes of the host's.
func hostProcesses(args []string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	if n > 6 { // the init, this, and what other parts of the test run
		return fmt.Errorf("%d processes are visible", n)
	}
	for _, a := range args {
		pid, _ := strconv.Atoi(a)
		if err := errors.Join(
			refused("signal process "+a, unix.Kill(pid, unix.SIGKILL), unix.ESRCH, unix.EPERM),
			refused("trace process "+a, unix.PtraceAttach(pid), unix.ESRCH, unix.EPERM),
		); err != nil {
			return err
		}
	}
	if b, err := os.ReadFile("/proc/self/cgroup"); err == nil && strings.Contains(string(b), "inspect") {
		return fmt.Errorf("the cgroup's place is visible: %s", b)
	}
	return nil
}

// waysOut is given the port that leads outside and one that does not.
func waysOut(args []string) error {
	socket := SocketDir + "/" + args[0]
	entries, err := os.ReadDir(SocketDir)
	if err != nil {
		return err
	}
	st, err := os.Lstat(socket)
	if len(entries) != 1 || err != nil || st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s holds %v, %w", SocketDir, entries, err)
	}
	_, lerr := os.Stat(SocketDir + "/..data")
	_, aerr := net.Listen("unix", SocketDir+"/another")
	_, werr := os.OpenFile(socket, os.O_WRONLY, 0)
	errs := []error{
		refused("look beside it", lerr, fs.ErrNotExist),
		refused("listen beside it", aerr, unix.EROFS),
		refused("open it", werr, unix.ENXIO, unix.EROFS),
		refused("remove it", os.Remove(socket), unix.EROFS, unix.EBUSY, unix.EACCES),
		refused("put another in its place", os.Rename("/tmp", socket), unix.EXDEV, unix.EROFS, unix.EBUSY, unix.EACCES, unix.EPERM),
		refused("link over it", os.Symlink("/tmp/x", socket), fs.ErrExist, unix.EROFS),
		refused("move it", os.Rename(socket, SocketDir+"/x"), unix.EROFS, unix.EBUSY),
		refused("close it to others", os.Chmod(socket, 0), unix.EROFS, unix.EPERM),
		refused("give it away", os.Chown(socket, InsideUID, InsideGID), unix.EROFS, unix.EPERM, unix.EINVAL),
		refused("move its directory", os.Rename(SocketDir, "/run/x"), unix.EXDEV, unix.EROFS, unix.EBUSY),
		refused("write beside it", os.WriteFile(SocketDir+"/x", nil, 0o600), unix.EROFS, unix.EACCES),
	}
	// The port is the init's and stays it.
	for _, host := range []string{"127.0.0.1", "", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, args[0]))
		if err == nil {
			err = overheard(l.(*net.TCPListener), "127.0.0.1:"+args[0])
			l.Close()
		}
		errs = append(errs, refused("take the port on "+host, err, unix.EADDRINUSE, unix.EADDRNOTAVAIL))
	}
	shared := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(cerr, err)
	}}
	l, err := shared.Listen(context.Background(), "tcp", "127.0.0.1:"+args[0])
	if err == nil {
		l.Close()
	}
	errs = append(errs, refused("share the port", err, unix.EADDRINUSE))
	c, err := net.Dial("tcp", "127.0.0.1:"+args[1])
	if err == nil {
		c.Close()
	}
	errs = append(errs, refused("dial the port of another socket", err, unix.ECONNREFUSED))
	// Nobody outside is reached by anything but what is bound here.
	for _, fd := range []int{3, 4, 5, 6, 7, 8} {
		_, err := os.Readlink(fmt.Sprintf("/proc/1/fd/%d", fd))
		errs = append(errs, refused("the init's descriptors", err, fs.ErrPermission, fs.ErrNotExist))
	}
	return errors.Join(errs...)
}

// overheard connects to an address and is EADDRINUSE if a listener does not get
// the connection. (gVisor lets one listen on all addresses beside one that has
// the port on a certain address. Who connects to that reaches the latter.)
func overheard(l *net.TCPListener, address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = l.SetDeadline(time.Now().Add(100 * time.Millisecond))
	got, err := l.Accept()
	if err == nil {
		got.Close()
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return unix.EADDRINUSE
	}
	return err
}

func kernelSettings([]string) error {
	var errs []error
	for _, p := range []string{"/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
		"/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/kcore", "/proc/1/oom_score_adj", "/proc/1/clear_refs"} {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("1")
			f.Close()
		}
		errs = append(errs, refused("write "+p, err, fs.ErrPermission, fs.ErrNotExist, unix.EROFS, unix.EIO, unix.EINVAL))
	}
	_, err := os.Open("/proc/kcore")
	return errors.Join(append(errs, refused("read /proc/kcore", err, fs.ErrPermission, fs.ErrNotExist))...)
}
