package tree

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// UsageLimits bounds one measurement. Zero values mean the defaults.
type UsageLimits struct {
	Entries int64 // default 5,000,000
	Depth   int   // default 512
}

// Used is how much disk a tree takes.
type Used struct {
	Bytes   int64 // allocated on disk; a file with several links counts once
	Entries int64
	// Whole is false if a limit was reached or something could not be read:
	// there is at least this much.
	Whole bool
	Limit bool // a limit was reached
}

// Usage measures the tree at p. It follows no link, crosses no mount and
// tolerates a tree that changes under it. The error is the context's, or that p
// cannot be opened.
func Usage(ctx context.Context, p string, lim UsageLimits) (Used, error) {
	if lim.Entries <= 0 {
		lim.Entries = 5_000_000
	}
	if lim.Depth <= 0 {
		lim.Depth = 512
	}
	root, err := openRoot(p)
	if err != nil {
		return Used{}, err
	}
	defer root.Close()
	m := meter{lim: lim, used: Used{Whole: true}, seen: map[inode]struct{}{}}
	var st unix.Stat_t
	if unix.Fstat(root.fd(), &st) == nil {
		m.used.Bytes += st.Blocks * 512
	}
	err = m.dir(ctx, root, 1)
	if errors.Is(err, errFull) {
		err = nil
	}
	return m.used, err
}

type inode struct{ dev, ino uint64 }

// errFull ends a measurement at its limit.
var errFull = errors.New("limit reached")

type meter struct {
	lim  UsageLimits
	used Used
	seen map[inode]struct{}
}

func (m *meter) dir(ctx context.Context, d *dir, depth int) error {
	return names(ctx, d, func(name string) error {
		if m.used.Entries >= m.lim.Entries {
			m.used.Whole, m.used.Limit = false, true
			return errFull
		}
		m.used.Entries++
		st, err := lstatAt(d, name)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) { // removed meanwhile
				m.used.Whole = false
			}
			return nil
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if !isDir && st.Nlink > 1 {
			key := inode{uint64(st.Dev), st.Ino}
			if _, again := m.seen[key]; again {
				return nil
			}
			m.seen[key] = struct{}{}
		}
		m.used.Bytes += st.Blocks * 512 // st_blocks is in units of 512 bytes: stat(2)
		if !isDir || uint64(st.Dev) != d.dev {
			return nil
		}
		if depth >= m.lim.Depth {
			m.used.Whole, m.used.Limit = false, true
			return nil
		}
		sub, err := openAt(d, name)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				m.used.Whole = false
			}
			return nil
		}
		defer sub.Close()
		err = m.dir(ctx, sub, depth+1)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errFull) {
			m.used.Whole = false // a directory that cannot be read to its end
			return nil
		}
		return err
	})
}
