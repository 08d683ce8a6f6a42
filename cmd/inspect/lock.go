package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"inspect/envs/proc"
)

// errLocked is the error of a lock that another live process holds.
var errLocked = errors.New("already running")

// lockFile takes the lock in path and writes this process's id into it. The
// kernel lets go of it when the process ends, however it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w with process id %d (lock %s)", errLocked, holder(path), path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return f, nil
}

// holder is the process id in a lock file, 0 if there is none. It means
// something only while the lock is held.
func holder(path string) int {
	body, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(body)))
	if err != nil {
		return 0
	}
	return pid
}

// soleServe takes the lock of a data directory. Where a killed serve's own
// processes are just ending, it waits for them: they hold the lock, too.
func soleServe(ctx context.Context, path string) (*os.File, error) {
	for start := time.Now(); ; {
		f, err := lockFile(path)
		if !errors.Is(err, errLocked) || syscall.Kill(holder(path), 0) == nil || time.Since(start) > 10*time.Second {
			return f, err
		}
		if err := proc.Sleep(ctx, proc.System(), 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// takeOver takes the lock in path from a process of an earlier control plane:
// it asks that process to end and waits, at last with a kill. The lock being
// held proves that the process id in the file is its holder's.
func takeOver(ctx context.Context, clock proc.Clock, path string) (*os.File, error) {
	start := clock.Now()
	asked := 0
	for {
		f, err := lockFile(path)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		if pid := holder(path); pid > 1 && pid != os.Getpid() {
			sig := syscall.SIGTERM
			if clock.Now().Sub(start) > 5*time.Second {
				sig = syscall.SIGKILL
			}
			if asked != pid || sig == syscall.SIGKILL {
				_ = syscall.Kill(pid, sig) // gone in between is what is wanted
				asked = pid
			}
		}
		if clock.Now().Sub(start) > 15*time.Second {
			return nil, err
		}
		if err := proc.Sleep(ctx, clock, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
