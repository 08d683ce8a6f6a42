// Package tree copies, measures and removes directory trees that an enemy
// wrote. Everything is done relative to open directories without following any
// link, so nothing outside the tree is read, changed or removed, whatever the
// tree looks like and even while something writes in it.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// ErrDepth: the tree is nested deeper than the caller allows.
var ErrDepth = errors.New("directories are nested too deeply")

// batch is how many names of a directory are read at a time: an enemy can make
// a directory of millions.
const batch = 512

// dir is an open directory.
type dir struct {
	*os.File
	dev uint64
}

func (d *dir) fd() int { return int(d.Fd()) }

// openRoot opens the directory at p, which is ours to name; only its last
// element must not be a link.
func openRoot(p string) (*dir, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return newDir(fd, p)
}

// openAt opens the directory name in d, not through a link.
func openAt(d *dir, name string) (*dir, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path.Join(d.Name(), shown(name)), Err: err}
	}
	return newDir(fd, name)
}

func newDir(fd int, name string) (*dir, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return &dir{File: os.NewFile(uintptr(fd), name), dev: uint64(st.Dev)}, nil
}

func lstatAt(d *dir, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// chmodAt sets the mode of a directory or file, never through a link.
func chmodAt(d *dir, name string, mode uint32) error {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(d.fd(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.ELOOP
	}
	// fchmod refuses O_PATH descriptors; the way through /proc names the very
	// file that is open.
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode)
}

// names calls fn for the entries of d, a batch at a time.
func names(ctx context.Context, d *dir, fn func(name string) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		list, err := d.Readdirnames(batch)
		for _, n := range list {
			if err := fn(n); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func ignoringEINTR[T any](fn func() (T, error)) (T, error) {
	for {
		v, err := fn()
		if err != unix.EINTR {
			return v, err
		}
	}
}

// shown shortens a name for an error message.
func shown(name string) string {
	if len(name) > 80 {
		return fmt.Sprintf("%q…", name[:80])
	}
	return name
}
