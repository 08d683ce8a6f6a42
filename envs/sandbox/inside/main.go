// Package inside is PID 1 of a sandbox: the one process of ours in there. In
// come frames on the control stream (package stream), out go the commands they
// ask for and what those write. It reaps every orphan, passes termination
// signals on, carries connections out (package forward), and ends the sandbox
// when the control stream is closed outside.
//
// The commands have its uid, so it trusts none of them: it makes itself
// undumpable before anything else exists in the sandbox (no ptrace, no reading
// of its memory, environment or descriptors), closes what it inherited, and
// hands a command nothing but its three streams.
package inside

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"inspect/envs/image/unpack"
	"inspect/envs/sandbox/collect"
	"inspect/envs/sandbox/forward"
	"inspect/envs/sandbox/search"
)

// Ready is what the init writes to its standard output when it serves.
const Ready = "ready\n"

// Full is what the init writes to its standard output, if it is told to, each
// time it sees that there are as many processes as there may be.
const Full = "full\n"

// LifelineExit is the exit status of a sandbox whose control stream was closed.
const LifelineExit = 137

// ReservedPids is how many processes and threads of a sandbox are its init and
// what started it. A limit of processes for the commands is raised by it.
const ReservedPids = 48

// spareThreads are made at the start and kept, because in a full process table
// the Go runtime could make no more and would crash. Those of package forward
// are more, where it has something to do. Fewer will do (--spare) where there
// are no more than fewProcessors: each of these runs one, and the init is in a
// handful of system calls at a time. In gVisor a thread costs 3 ms.
const (
	spareThreads  = 16
	fewProcessors = 2
)

// Main runs the init and returns its exit status. The arguments are those
// after the word sandbox-init:
//
//	--control FD   the control stream
//	--beside FD    a pidfd of another sandbox's init, or a pipe: its end is this one's
//	--apart        it was started by apartMain
//	--fresh PATH=BYTES
//	               a temporary file system of its own there; may be repeated
//	--filter FD    a system-call filter for everything here, itself included
//	--nofile N     most open files of a process
//	--fsize N      most bytes of one file
//	--nproc N      most processes, where no cgroup bounds them
//	--spare N      threads kept for a full process table, if not spareThreads
//	--tell         write Full to standard output whenever there are that many
//	--forward PORT=PATH[,named]
//	               a port of the loopback that leads to a socket; may be repeated
//
// With the first argument "apart" it starts itself anew in namespaces of its
// own, see apartMain. With "dial" it is a connection to the loopback, see
// dialMain. With "search" it looks for secrets, see package search; with
// "unpack" it makes a root file system of an image, see package unpack; with
// "collect" it takes out what a command left, see package collect. With
// the first argument "exec" it is the short-lived step between the init
// and a command with limits of its own, see execArgs.
func Main(args []string) int {
	if len(args) > 0 && args[0] == execWord {
		return complain(execMain(args[1:]))
	}
	if len(args) > 0 && args[0] == ApartWord {
		status, err := apartMain(args[1:])
		if err != nil {
			return complain(err)
		}
		return status
	}
	if len(args) > 0 && args[0] == DialWord {
		return complain(dialMain(args[1:]))
	}
	if len(args) > 0 && args[0] == search.Word {
		return complain(search.Main(os.Stdin, os.Stdout))
	}
	if len(args) > 0 && args[0] == collect.Word {
		return complain(collect.Main(args[1:], os.Stdin, os.Stdout))
	}
	if len(args) > 0 && args[0] == unpack.Word {
		return complain(unpack.Main(args[1:]))
	}
	// First of all: nothing else runs in the sandbox yet, and from here on
	// nothing in it can look into this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return complain(fmt.Errorf("become undumpable: %w", err))
	}
	if err := run(args); err != nil {
		return complain(err)
	}
	return LifelineExit
}

func complain(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "sandbox init: %v\n", err)
	return 125
}

type config struct {
	control, beside      int
	filter               int
	tell, apart          bool
	spare                int
	fresh                []fresh
	nofile, fsize, nproc uint64
	forwards             []forward.Way
}

func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("sandbox-init", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&c.control, "control", 3, "")
	f.IntVar(&c.beside, "beside", -1, "")
	f.IntVar(&c.filter, "filter", -1, "")
	f.Uint64Var(&c.nofile, "nofile", 0, "")
	f.Uint64Var(&c.fsize, "fsize", 0, "")
	f.Uint64Var(&c.nproc, "nproc", 0, "")
	f.IntVar(&c.spare, "spare", spareThreads, "")
	f.BoolVar(&c.tell, "tell", false, "")
	f.BoolVar(&c.apart, "apart", false, "")
	f.Func("fresh", "", func(s string) error {
		t, err := parseFresh(s)
		c.fresh = append(c.fresh, t)
		return err
	})
	f.Func("forward", "", func(s string) error {
		w, err := forward.Parse(s)
		c.forwards = append(c.forwards, w)
		return err
	})
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if c.control < 3 {
		return c, fmt.Errorf("descriptor %d cannot be the control stream", c.control)
	}
	return c, nil
}

func run(args []string) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return errors.New("it is not the first process of a sandbox; Inspect starts it, not you")
	}
	if c.apart {
		if err := takeView(c.fresh); err != nil {
			return err
		}
	}
	if c.filter >= 0 {
		if err := putFilter(c.filter); err != nil {
			return fmt.Errorf("put the system-call filter on: %w", err)
		}
	}
	if err := closeInherited(c.control, c.beside); err != nil {
		return err
	}
	if err := setLimits(c); err != nil {
		return err
	}
	unix.Umask(0o022)
	most := 4
	if c.spare < spareThreads {
		most = fewProcessors
	}
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), most))
	if len(c.forwards) > 0 {
		c.spare += forward.Threads
	}
	keepThreads(c.spare)
	if c.beside >= 0 {
		go endWith(c.beside) // in a system call until the end of both
	}

	if err := unix.SetNonblock(c.control, true); err != nil {
		return fmt.Errorf("descriptor %d is no control stream: %w", c.control, err)
	}
	s := newServer(os.NewFile(uintptr(c.control), "control"))
	stop := s.handleSignals()
	defer stop()
	// Before any command exists that could take the ports. It ends with this
	// process, whose end waits for nothing.
	if _, err := forward.Open(c.forwards); err != nil {
		return err
	}
	if c.tell {
		out, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fmt.Errorf("keep the pipe to the launcher: %w", err)
		}
		go tellFull(out, c.nproc) // ends with this process
	}
	if err := sayReady(); err != nil {
		return err
	}
	return s.serve()
}

// endWith ends this sandbox when the process of a pidfd ends, or the other end
// of a pipe is closed, or that cannot be waited for.
func endWith(fd int) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, -1); err != unix.EINTR {
			os.Exit(LifelineExit)
		}
	}
}

// fullEvery is how often it is seen whether there are too many processes.
const fullEvery = 50 * time.Millisecond

// tellFull writes Full while there are as many processes and threads as there
// may be. It is for gVisor, whose kernel counts what is in the sandbox alone,
// and refuses without counting refusals.
func tellFull(out int, most uint64) {
	for range time.Tick(fullEvery) {
		var now unix.Sysinfo_t
		if err := unix.Sysinfo(&now); err == nil && uint64(now.Procs) >= most {
			if _, err := unix.Write(out, []byte(Full)); err != nil {
				return
			}
		}
	}
}

// putFilter puts the filter in a file on every thread of this process: struct
// sock_filter after struct sock_filter, as bubblewrap reads it.
func putFilter(fd int) error {
	f := os.NewFile(uintptr(fd), "filter")
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	const size = 8 // of a struct sock_filter
	if len(b) == 0 || len(b)%size != 0 {
		return fmt.Errorf("%d bytes are no filter", len(b))
	}
	p := unix.SockFprog{Len: uint16(len(b) / size), Filter: (*unix.SockFilter)(unsafe.Pointer(&b[0]))}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&p)))
	if e != 0 {
		return e
	}
	return nil
}

// sayReady tells the launcher that the sandbox stands, and lets go of the pipe
// it is told on.
func sayReady() error {
	if _, err := unix.Write(1, []byte(Ready)); err != nil {
		return fmt.Errorf("say that the sandbox is ready: %w", err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	for _, fd := range []int{0, 1} {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("let go of descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// closeInherited closes every descriptor above 2 that came from outside but
// those named, which it marks close-on-exec. What the Go runtime has opened
// itself is close-on-exec already; what was inherited cannot be.
func closeInherited(control, beside int) error {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list the inherited descriptors: %w", err)
	}
	for _, e := range dir {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 || fd == control || fd == beside {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	if _, err := unix.FcntlInt(uintptr(control), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return fmt.Errorf("descriptor %d is no control stream: %w", control, err)
	}
	if beside >= 0 {
		if _, err := unix.FcntlInt(uintptr(beside), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return fmt.Errorf("descriptor %d is no process: %w", beside, err)
		}
	}
	return nil
}

func setLimits(c config) error {
	for _, l := range []struct {
		what  int
		value uint64
		set   bool
		name  string
	}{
		// 1 means none, also where cores go to a program of the host's, to which 0
		// is no limit: core(5).
		{unix.RLIMIT_CORE, 1, true, "core size"},
		{unix.RLIMIT_NOFILE, c.nofile, c.nofile > 0, "open files"},
		{unix.RLIMIT_FSIZE, c.fsize, c.fsize > 0, "file size"},
		{unix.RLIMIT_NPROC, c.nproc, c.nproc > 0, "processes"},
	} {
		if !l.set {
			continue
		}
		if err := lower(l.what, l.value); err != nil {
			return fmt.Errorf("limit %s to %d: %w", l.name, l.value, err)
		}
	}
	return nil
}

// lower sets a limit, soft and hard, to value or to the hard limit there is,
// whichever is less.
func lower(what int, value uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(what, &now); err != nil {
		return err
	}
	value = min(value, now.Max)
	return unix.Setrlimit(what, &unix.Rlimit{Cur: value, Max: value})
}

// keepThreads makes the runtime own n threads more than it needs; it never
// gives idle ones back.
func keepThreads(n int) {
	var started, ended sync.WaitGroup
	release := make(chan struct{})
	started.Add(n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread() // held by a thread each while they wait
			defer runtime.UnlockOSThread()
			started.Done()
			<-release
		})
	}
	started.Wait()
	close(release)
	ended.Wait()
}
