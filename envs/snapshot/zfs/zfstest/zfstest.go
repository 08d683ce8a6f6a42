// Package zfstest gives the tests of a program ZFS to work on: a real pool in a
// file, with a zfs-fuse daemon of its own in a mount namespace of its own, or,
// with OpenZFS set, on the OpenZFS of the kernel. Only root can be given it.
package zfstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
)

// OpenZFS is the name of a variable: with it set the tests run on the OpenZFS of
// the kernel.
const OpenZFS = "INSPECT_TEST_OPENZFS"

const (
	insideEnv = "INSPECT_TEST_ZFS_INSIDE"
	poolBytes = 4 << 30
	// The tests end with words before whoever waits for all tests gives up.
	timeout = "-test.timeout=20m"

	// zfs-fuse stands still now and then when a process that works with it is
	// killed: it answers nobody, with all its threads asleep. The tests cannot go
	// on then; they begin anew, so often at most.
	stillTries  = 3
	stillStatus = 75 // EX_TEMPFAIL of sysexits.h
	stillAfter  = 2 * time.Minute
	stillTicks  = 30 // of processor time, each 1/100 s; a daemon that nobody asks was measured to take half of it
)

// World is where tests run.
type World struct {
	Dir    string // of this run; every pool's file is in it
	Pool   string // is there when the tests begin
	daemon *exec.Cmd
	pid    atomic.Int64  // of the daemon; 0: there is none now
	ended  chan struct{} // closed when the daemon has
}

// Main is what TestMain ends with: it runs this program again in a mount
// namespace of its own, and the tests there.
func Main(tests func(*World) int) (code int) {
	if os.Getenv(insideEnv) == "" {
		return again()
	}
	// Another run beside this one has another pool.
	w := &World{Pool: fmt.Sprintf("inspecttest%d", os.Getpid())}
	if err := w.begin(); err != nil {
		fmt.Fprintf(os.Stderr, "no ZFS to test on (apt-get install zfs-fuse): %v\n", err)
		return 1
	}
	if w.Fuse() {
		go w.watch()
	}
	code = tests(w)
	if _, err := Try("zpool", "destroy", "-f", w.Pool); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	w.Stop()
	_ = unix.Unmount(w.Dir, unix.MNT_DETACH)
	if err := os.RemoveAll(w.Dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func again() int {
	args := os.Args[1:]
	if os.Getenv(OpenZFS) == "" {
		args = append(args, timeout)
	}
	for try := 1; ; try++ {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		err := cmd.Run()
		exit := new(exec.ExitError)
		switch {
		case err == nil:
			return 0
		case !errors.As(err, &exit):
			fmt.Fprintln(os.Stderr, err)
			return 1
		case exit.ExitCode() != stillStatus || try == stillTries:
			return exit.ExitCode()
		}
		fmt.Fprintf(os.Stderr, "zfs-fuse stood still in try %d of %d; the tests begin anew\n", try, stillTries)
	}
}

// watch ends this program when zfs-fuse stands still.
func (w *World) watch() {
	last, since := -stillTicks, time.Now()
	for range time.Tick(time.Second) {
		used, err := ticks(w.pid.Load())
		switch {
		case err != nil || used-last >= stillTicks || used < last: // it works, or is another one
			last, since = used, time.Now()
		case time.Since(since) >= stillAfter:
			fmt.Fprintf(os.Stderr, "zfs-fuse has done nothing for %s while the tests wait for it\n", stillAfter)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			os.Exit(stillStatus)
		}
	}
}

// ticks is the processor time that a process has taken, in 1/100 s.
func ticks(pid int64) (n int, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, f := range fields[11:13] { // utime and stime, see proc(5)
		t, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		n += t
	}
	return n, nil
}

func (w *World) begin() (err error) {
	if w.Dir, err = os.MkdirTemp("", "inspect-zfs-test"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if os.Getenv(OpenZFS) == "" {
		// A pool in memory: what these tests wait for is not the disk. The
		// kernel would not find it, since it does not know this namespace.
		if err := unix.Mount("tmpfs", w.Dir, "tmpfs", 0, "size=6g"); err != nil {
			return err
		}
		for _, d := range []string{"/run/zfs", "/run/lock/zfs", "/run/inspect-zfs", "/var/lib/zfs"} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", d, "tmpfs", 0, ""); err != nil {
				return err
			}
		}
		if err := w.Start(); err != nil {
			return err
		}
	}
	return w.MakePool(w.Pool, poolBytes)
}

// MakePool makes a pool in a file of its name.
func (w *World) MakePool(name string, bytes int64) error {
	file := filepath.Join(w.Dir, name)
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return err
	}
	_, err = Try("zpool", "create", "-m", "none", "-O", "canmount=off", name, file)
	return err
}

// Fuse says whether it is zfs-fuse.
func (w *World) Fuse() bool { return w.daemon != nil }

// Start starts zfs-fuse and returns when it answers.
func (w *World) Start() error {
	cmd := exec.Command("zfs-fuse", "--no-daemon", "--no-kstat-mount")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	w.ended = make(chan struct{})
	go func() {
		// The signal comes when this thread ends, which is with this goroutine.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(w.ended)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	w.daemon = cmd
	w.pid.Store(int64(cmd.Process.Pid))
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := Try("zfs", "list")
		if err == nil || strings.Contains(err.Error(), "no datasets available") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("zfs-fuse does not answer: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Stop kills zfs-fuse, as a crash would.
func (w *World) Stop() {
	if w.daemon != nil {
		w.pid.Store(0)
		_ = w.daemon.Process.Kill()
		<-w.ended
		w.daemon = nil
	}
}

// Halted does something while zfs-fuse does nothing.
func (w *World) Halted(do func()) error {
	if err := w.daemon.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := unix.Waitid(unix.P_PID, w.daemon.Process.Pid, nil, unix.WSTOPPED, nil); err != nil { // every thread of it
		return err
	}
	do()
	return w.daemon.Process.Signal(syscall.SIGCONT)
}

// Try runs zfs, zpool or another program and returns what it printed.
func Try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	res, err := proc.Run(ctx, proc.Command{Argv: argv, Env: []string{"PATH=" + proc.DefaultPath, "LC_ALL=C"}})
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return strings.TrimSuffix(string(res.Stdout), "\n"), nil
}
