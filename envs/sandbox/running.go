package sandbox

import (
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
	"inspect/envs/wire"
)

// Sandbox is a running sandbox that this process has started.
type Sandbox struct {
	l     *Launcher
	id    string
	spec  Spec
	group *group // nil without enforced limits

	pid   int // of the init, outside
	mu    sync.Mutex
	pidfd *os.File // of the init; nil before it is known

	cmd    *exec.Cmd
	exited chan struct{} // closed when bubblewrap has ended; then code and stderr are set
	code   int
	stderr proc.Tail
	helper sync.WaitGroup

	diskFull atomic.Bool
	end      wire.SandboxEnd
	words    string
	done     chan struct{} // closed when nothing is left; then end and words are set
}

// cleanTimeout is how long the removal of an ended sandbox may take.
const cleanTimeout = 30 * time.Second

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
// words of bubblewrap or the init, or what could not be cleaned up. Mostly "".
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

// begin collects what bubblewrap says and its end.
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
		// If only bubblewrap has ended, its init still holds the pipe.
		box.strike()
		if box.group != nil {
			ctx, cancel := proc.WithTimeout(context.Background(), proc.System(), cleanTimeout)
			defer cancel()
			if err := box.group.kill(ctx); err != nil {
				box.l.log.Error("sandbox does not end", "sandbox", box.id, "error", err)
			}
		}
		<-read
	})
}

// watch waits for the end, ends it for disk usage, and cleans up.
func (box *Sandbox) watch() {
	stop := make(chan struct{})
	var disk sync.WaitGroup
	if box.spec.Limits.DiskBytes > 0 {
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
	if err := box.clean(); err != nil {
		box.words += err.Error()
		box.l.log.Error("sandbox left something behind", "sandbox", box.id, "error", err)
	}
	box.l.release(box.id)
	close(box.done)
}

func (box *Sandbox) clean() error {
	if f := box.initFD(); f != nil {
		f.Close()
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
	if box.group == nil && box.cmd == nil {
		return nil
	}
	return box.clean()
}
