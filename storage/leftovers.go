package storage

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clearLeftovers deals with what an earlier server of this directory left when
// its parent died: a server still running is stopped, and a lock file whose
// owner is gone is removed. The caller holds the directory's own lock, so any
// server found here is a leftover.
//
// Postgres itself refuses to start while the pid in postmaster.pid, or in the
// socket's lock file, lives, even if it is a zombie or another program by now.
func clearLeftovers(ctx context.Context, data, sock string, log *slog.Logger) error {
	if err := stopServer(ctx, data, log); err != nil {
		return err
	}
	// Nobody serves from here, so the socket is nobody's.
	left, err := filepath.Glob(filepath.Join(sock, ".s.PGSQL.*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("removing what an earlier Postgres left: %w", err)
		}
	}
	return nil
}

// stopServer returns when no process uses the data directory and no lock file
// is in it.
func stopServer(ctx context.Context, data string, log *slog.Logger) error {
	path := filepath.Join(data, "postmaster.pid")
	ctx, cancel := context.WithTimeout(ctx, leftoverLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	asked := 0
	for {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading what an earlier Postgres left: %w", err)
		}
		first, _, _ := strings.Cut(string(b), "\n")
		pid, err := strconv.Atoi(strings.TrimSpace(first))
		if err != nil || pid <= 1 {
			pid = 0
		}
		users, err := usersOf(data)
		if err != nil {
			return err
		}
		switch {
		case pid != 0 && serves(pid, data):
			if asked != pid {
				log.Info("stopping a Postgres that outlived its parent", "pid", pid)
				_ = syscall.Kill(pid, syscall.SIGINT)
				asked = pid
			}
		case len(users) == 0:
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("removing what an earlier Postgres left: %w", err)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of an earlier Postgres still use %s: end them and start again", users, data)
		case <-tick.C:
		}
	}
}

// serves tells whether the process is a living Postgres of this data directory.
func serves(pid int, data string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	if err != nil || !strings.HasPrefix(filepath.Base(exe), "postgres") {
		return false
	}
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	return err == nil && cwd == data && !zombie(proc)
}

func zombie(proc string) bool {
	b, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return true
	}
	// The name in parentheses may hold anything; the state follows the last one.
	i := bytes.LastIndexByte(b, ')')
	return i < 0 || i+2 >= len(b) || b[i+2] == 'Z' || b[i+2] == 'X'
}

// usersOf lists the living processes that have the data directory as their own.
func usersOf(data string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		proc := filepath.Join("/proc", e.Name())
		if cwd, err := os.Readlink(filepath.Join(proc, "cwd")); err == nil && cwd == data && !zombie(proc) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
