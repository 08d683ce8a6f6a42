package sandbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/sandbox/inside"
	"inspect/envs/wire"
)

// Sandbox is a running sandbox that this process has started.
type Sandbox struct {
	l     *Launcher
	id    string
	spec  Spec
	uid   int    // outside
	group *group // nil without enforced limits and for a compartment
	made  bool   // there may be something to clean up

	beside *os.File // pidfd of the init whose network it joins, or nil; of use during the start only

	pid   int // of the process whose end is the sandbox's: the init, or gVisor's kernel
	mu    sync.Mutex
	pidfd *os.File // of that process; nil before it is known

	cmd    *exec.Cmd
	exited chan struct{} // closed when the tier's program has ended; then code and stderr are set
	code   int
	stderr proc.Tail
	helper sync.WaitGroup

	diskFull atomic.Bool
	full     atomic.Int64 // how often the init has said inside.Full
	end      wire.SandboxEnd
	words    string
	done     chan struct{} // closed when nothing is left; then end and words are set
}

// ID is the sandbox's name.
func (box *Sandbox) ID() string { return box.id }

// Done is closed when the sandbox has ended and nothing of it is left.
func (box *Sandbox) Done() <-chan struct{} { return box.done }

// Wait waits until the sandbox has ended and nothing of it is left, and tells
// why it ended. ExitCode is the init's: inside.LifelineExit when the control
// stream was closed or it was killed.
func (box *Sandbox) Wait() wire.SandboxEnd {
	<-box.done
	return box.end
}

// Words is, after the end, what is to be said about it beyond Wait: the last
// words of the tier's program or the init, or what could not be cleaned up. Mostly "".
func (box *Sandbox) Words() string {
	<-box.done
	return box.words
}

// Kill ends the sandbox and waits until nothing of it is left. The error is
// the context's. Killing one that has ended is no error.
func (box *Sandbox) Kill(ctx context.Context) error {
	box.strike()
	select {
	case <-box.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of sandbox %s: %w", box.id, context.Cause(ctx))
	}
}

// watchProcess keeps hold of the process whose end is the sandbox's. It reports
// whether there is one.
func (box *Sandbox) watchProcess(pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	box.mu.Lock()
	defer box.mu.Unlock()
	box.pid, box.pidfd = pid, os.NewFile(uintptr(fd), "pidfd")
	return true
}

func (box *Sandbox) initFD() *os.File {
	box.mu.Lock()
	defer box.mu.Unlock()
	return box.pidfd
}

// strike kills without waiting.
func (box *Sandbox) strike() {
	if f := box.initFD(); f != nil {
		// The end of its first process is the end of a pid namespace.
		if rc, err := f.SyscallConn(); err == nil {
			_ = rc.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
		}
	}
	if box.group != nil && box.group.c.unified != "" {
		_ = writeFile(box.group.dir(box.group.c.unified)+"/cgroup.kill", "1")
	}
}

// begin collects what the tier's program says and its end.
func (box *Sandbox) begin(cmd *exec.Cmd, stderr *os.File) {
	box.cmd = cmd
	box.exited = make(chan struct{})
	box.stderr.N = 4 << 10
	read := make(chan struct{})
	box.helper.Go(func() {
		defer close(read)
		_, _ = io.Copy(&box.stderr, stderr)
		stderr.Close()
	})
	box.helper.Go(func() {
		defer close(box.exited)
		_ = cmd.Wait()
		box.code = cmd.ProcessState.ExitCode()
		if box.code < 0 {
			box.code = 137 // a signal
		}
		// If only that program has ended, the init still holds the pipe.
		box.strike()
		if box.group != nil {
			ctx, cancel := proc.WithTimeout(context.Background(), proc.System(), cleanTimeout)
			defer cancel()
			if err := box.group.kill(ctx); err != nil {
				box.l.log.Error("sandbox does not end", "sandbox", box.id, "error", err)
			}
		} else if f := box.initFD(); f != nil {
			awaitEnd(f)
		}
		<-read
	})
}

// awaitEnd waits until a pidfd's process, which was killed, is gone.
func awaitEnd(f *os.File) {
	p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	for until := time.Now().Add(cleanTimeout); time.Now().Before(until); {
		if _, err := unix.Poll(p, int(time.Until(until).Milliseconds())); err != unix.EINTR {
			return
		}
	}
}

// hear takes over the pipe from the init and counts what it says after its word.
func (box *Sandbox) hear(from *os.File) {
	box.helper.Go(func() {
		defer from.Close()
		for lines := bufio.NewScanner(from); lines.Scan(); {
			box.full.Add(1)
		}
	})
}

// watch waits for the end, ends it for disk usage, and cleans up.
func (box *Sandbox) watch() {
	stop := make(chan struct{})
	var disk sync.WaitGroup
	if box.spec.Limits.DiskBytes > 0 && box.spec.Beside == "" {
		disk.Go(func() { box.watchDisk(stop) })
	}
	<-box.exited
	close(stop)
	disk.Wait()
	box.helper.Wait()
	box.end = wire.SandboxEnd{ExitCode: box.code, DiskFull: box.diskFull.Load()}
	box.words = string(box.stderr.Bytes())
	if box.group != nil {
		box.end.OOM, box.end.PidsHit = box.group.counts()
	}
	box.end.PidsHit += box.full.Load()
	if err := box.clean(); err != nil {
		box.words += err.Error()
		box.l.log.Error("sandbox left something behind", "sandbox", box.id, "error", err)
	}
	box.l.release(box.id)
	close(box.done)
}

func (box *Sandbox) clean() error {
	if box.spec.Beside != "" {
		if err := box.l.reserve(box.spec.Beside, -inside.ReservedPids); err != nil {
			box.l.log.Warn("the limit of processes stays raised", "sandbox", box.spec.Beside, "error", err)
		}
	}
	if f := box.initFD(); f != nil {
		f.Close()
	}
	if box.spec.Beside == "" {
		if err := box.l.removeBundle(box.id); err != nil {
			return err
		}
	}
	if box.group == nil {
		return box.l.removeMark(box.id)
	}
	ctx, cancel := proc.WithTimeout(context.Background(), proc.System(), cleanTimeout)
	defer cancel()
	return box.group.remove(ctx)
}

// abandon undoes a start that failed.
func (box *Sandbox) abandon() error {
	if box.cmd != nil {
		if box.initFD() == nil {
			_ = unix.Kill(-box.cmd.Process.Pid, unix.SIGKILL)
		}
		box.strike()
		<-box.exited
		box.helper.Wait()
	}
	if box.group == nil && box.spec.Beside == "" && !box.made {
		return nil // what is there belongs to another
	}
	return box.clean()
}
