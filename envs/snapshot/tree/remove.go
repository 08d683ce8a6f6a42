package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrMounted: something is mounted inside the tree; it was not entered.
var ErrMounted = errors.New("something is mounted there")

// hoistDepth is how deep Remove goes before it moves a directory up to the top
// of the tree: it bounds the open files, not the depth that can be removed.
const hoistDepth = 64

// Remove removes the tree at p. What its writer made unreadable is made
// readable first (if we own it or are root); links are removed, never followed;
// a mount inside stays and makes it fail with ErrMounted. Not found is success.
func Remove(ctx context.Context, p string) error {
	parent, err := openRoot(filepath.Dir(p))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(p)
	err = unix.Unlinkat(parent.fd(), name, 0)
	switch {
	case err == nil || errors.Is(err, os.ErrNotExist):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return &os.PathError{Op: "remove", Path: p, Err: err}
	}
	top, err := openForRemoval(parent, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer top.Close()
	r := &remover{top: top}
	if err := r.empty(ctx, top, 1); err != nil {
		return err
	}
	if err := unix.Unlinkat(parent.fd(), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "remove", Path: p, Err: err}
	}
	return nil
}

type remover struct {
	top     *dir
	hoisted int
}

// rounds is how often a directory is read again before it is taken that
// something keeps writing in it. One round more than needed is usual.
const rounds = 100

// empty removes everything in d. Removing while reading may make the kernel
// skip names, so it reads again until nothing is left.
func (r *remover) empty(ctx context.Context, d *dir, depth int) error {
	for left := rounds; left > 0; left-- {
		found, hoisted := 0, r.hoisted
		var first error
		err := names(ctx, d, func(name string) error {
			found++
			if err := r.one(ctx, d, name, depth); err != nil {
				if ctx.Err() != nil {
					return err
				}
				if first == nil {
					first = err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if first != nil {
			return first
		}
		if found == 0 {
			return nil
		}
		if r.hoisted > hoisted {
			left = rounds // it has got further
		}
		if _, err := d.Seek(0, 0); err != nil {
			return err
		}
	}
	return &os.PathError{Op: "empty", Path: d.Name(), Err: unix.EBUSY}
}

func (r *remover) one(ctx context.Context, d *dir, name string, depth int) error {
	err := unix.Unlinkat(d.fd(), name, 0)
	switch {
	case err == nil || errors.Is(err, os.ErrNotExist):
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return &os.PathError{Op: "remove", Path: shown(name), Err: err}
	}
	// A directory, probably: for directories Linux answers EISDIR.
	sub, err := openForRemoval(d, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	if sub.dev != d.dev {
		return fmt.Errorf("remove %s: %w", shown(name), ErrMounted)
	}
	if depth >= hoistDepth {
		return r.hoist(d, name)
	}
	if err := r.empty(ctx, sub, depth+1); err != nil {
		return err
	}
	if err := unix.Unlinkat(d.fd(), name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "remove", Path: shown(name), Err: err}
	}
	return nil
}

// hoist moves a deep directory up to the top, where the next round finds it.
func (r *remover) hoist(d *dir, name string) error {
	for {
		r.hoisted++
		to := "removed-" + strconv.Itoa(r.hoisted)
		err := unix.Renameat2(d.fd(), name, r.top.fd(), to, unix.RENAME_NOREPLACE)
		switch {
		case err == nil || errors.Is(err, os.ErrNotExist):
			return nil
		case errors.Is(err, os.ErrExist):
			continue
		}
		return &os.PathError{Op: "rename", Path: shown(name), Err: err}
	}
}

// openForRemoval opens a directory and makes sure that its entries may be read
// and unlinked.
func openForRemoval(d *dir, name string) (*dir, error) {
	st, err := lstatAt(d, name)
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: shown(name), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, &os.PathError{Op: "remove", Path: shown(name), Err: unix.EPERM}
	}
	if uint64(st.Dev) == d.dev && st.Mode&0o700 != 0o700 {
		// Root may pass anyway; an ordinary owner may not.
		if err := chmodAt(d, name, 0o700); err != nil && os.Geteuid() != 0 {
			return nil, &os.PathError{Op: "chmod", Path: shown(name), Err: err}
		}
	}
	return openAt(d, name)
}
