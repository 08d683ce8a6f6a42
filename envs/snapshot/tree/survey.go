package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// Surveyed is what Survey found.
type Surveyed struct {
	Bytes        int64    // allocated on disk; a file with several links counts once
	Entries      int64    // names in the tree
	LeftOut      []string // what Copy will leave out, the first 20
	LeftOutCount int
}

// SurveyOptions says what Survey changes on its way. The zero value: nothing.
type SurveyOptions struct {
	Depth int // default 512
	// Readable gives every file the owner's read bit and every directory the
	// owner's rwx: an ordinary user cannot copy what its owner cannot read. Git
	// does not see the difference.
	Readable bool
	// Remove removes the FIFOs, sockets and devices that a copy would leave out.
	Remove bool
}

// Survey walks a tree that nothing writes any more and says what a copy of it
// will hold. ErrDepth: Copy would refuse it. ErrMounted, with Remove: something
// is mounted in it.
func Survey(ctx context.Context, p string, o SurveyOptions) (Surveyed, error) {
	if o.Depth <= 0 {
		o.Depth = 512
	}
	root, err := openRoot(p)
	if err != nil {
		return Surveyed{}, err
	}
	defer root.Close()
	s := &surveyor{o: o, seen: map[inode]struct{}{}}
	err = s.dir(ctx, root, "", 1)
	return s.found, err
}

type surveyor struct {
	o     SurveyOptions
	found Surveyed
	seen  map[inode]struct{}
}

func (s *surveyor) dir(ctx context.Context, d *dir, rel string, depth int) error {
	return names(ctx, d, func(name string) error {
		p := path.Join(rel, name)
		st, err := lstatAt(d, name)
		if err != nil {
			return &os.PathError{Op: "stat", Path: shown(p), Err: err}
		}
		s.found.Entries++
		kind := st.Mode & unix.S_IFMT
		if (kind == unix.S_IFREG || kind == unix.S_IFLNK) && st.Nlink > 1 {
			key := inode{uint64(st.Dev), st.Ino}
			if _, again := s.seen[key]; again {
				return nil
			}
			s.seen[key] = struct{}{}
		}
		s.found.Bytes += st.Blocks * 512 // st_blocks is in units of 512 bytes: stat(2)
		switch {
		case kind == unix.S_IFLNK:
			return nil
		case kind == unix.S_IFREG:
			return s.ensure(d, name, p, st.Mode, 0o400)
		case kind != unix.S_IFDIR, uint64(st.Dev) != d.dev:
			s.found.LeftOutCount++
			if len(s.found.LeftOut) < maxLeftOut {
				s.found.LeftOut = append(s.found.LeftOut, cut(p, 200))
			}
			return s.leaveOut(d, name, p, kind)
		case depth >= s.o.Depth:
			return fmt.Errorf("%w: more than %d levels at %s…", ErrDepth, s.o.Depth, cut(p, 60))
		}
		if err := s.ensure(d, name, p, st.Mode, 0o700); err != nil {
			return err
		}
		sub, err := openAt(d, name)
		if err != nil {
			return err
		}
		defer sub.Close()
		return s.dir(ctx, sub, p, depth+1)
	})
}

func (s *surveyor) leaveOut(d *dir, name, rel string, kind uint32) error {
	if !s.o.Remove {
		return nil
	}
	if kind == unix.S_IFDIR {
		return fmt.Errorf("%s: %w", shown(rel), ErrMounted)
	}
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil {
		return &os.PathError{Op: "remove", Path: shown(rel), Err: err}
	}
	return nil
}

func (s *surveyor) ensure(d *dir, name, rel string, mode, want uint32) error {
	if !s.o.Readable || mode&want == want {
		return nil
	}
	err := chmodAt(d, name, mode&0o7777|want)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return &os.PathError{Op: "chmod", Path: shown(rel), Err: err}
	}
	return nil
}
