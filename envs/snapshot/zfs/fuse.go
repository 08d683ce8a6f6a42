package zfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
)

// The kernel tells a FUSE daemon late that a file was closed, and does not tell
// it any more once the file system has ended. To zfs-fuse the file is open for
// ever then: it waits for it to be closed and answers nobody, whatever dataset
// they ask for. So a file system of zfs-fuse ends only when all was told.

// ending is a dataset of zfs-fuse that was unmounted.
type ending struct {
	last     *os.File // a mount of it that nobody sees: its file system has not ended
	mount    *mountinfo.Info
	detached bool // whoever stood in it still may
}

// keep keeps the file system of a dataset from ending with its mount.
func (s *Store) keep(name string, m *mountinfo.Info) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ending[name]; e != nil {
		if e.mount.Minor == m.Minor {
			return nil
		}
		_ = e.last.Close() // of a daemon that crashed
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.Mountpoint, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("keep a mount of %s: %w", m.Mountpoint, err)
	}
	s.ending[name] = &ending{last: os.NewFile(uintptr(fd), m.Mountpoint), mount: m}
	return nil
}

// leave takes what a process stands in out of sight.
func (s *Store) leave(name, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ending[name]; e != nil {
		e.detached = true
	}
	return detach(path)
}

// end ends the file system of a dataset that was unmounted, if it has not ended
// yet. ErrBusy: a process has it, or zfs-fuse was not told everything yet.
func (s *Store) end(ctx context.Context, name string) error {
	s.mu.Lock()
	e := s.ending[name]
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	if e.detached {
		if have := standingIn(e.mount); len(have) > 0 {
			return fmt.Errorf("%s: %w%s", name, snapshot.ErrBusy, by(have))
		}
	}
	if err := answered(e.mount); err != nil {
		return err
	}
	s.forget(name)
	// zfs-fuse lets go of it a little later. Measured: what comes at once finds
	// it busy in 94 of 100 cases, after this time in none.
	return proc.Sleep(ctx, s.clock, retryEvery)
}

func (s *Store) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.ending[name].last.Close()
	delete(s.ending, name)
}

// answered is an error that wraps ErrBusy while the daemon of a FUSE mount has
// not answered every request.
func answered(m *mountinfo.Info) error {
	n, err := waiting(m.Minor)
	if err != nil {
		return fmt.Errorf("count the requests to zfs-fuse for %s: %w", m.Mountpoint, err)
	}
	if n > 0 {
		return fmt.Errorf("%s: zfs-fuse has not answered %d requests yet: %w", m.Mountpoint, n, snapshot.ErrBusy)
	}
	return nil
}

func waiting(minor int) (int, error) {
	control, err := connections()
	if err != nil {
		return 0, err
	}
	defer unix.Close(control)
	fd, err := unix.Openat(control, strconv.Itoa(minor)+"/waiting", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) { // it has ended
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	f := os.NewFile(uintptr(fd), "waiting")
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// connections is a directory with what the kernel tells of each FUSE daemon. It
// may be mounted nowhere.
func connections() (int, error) {
	fs, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
}
