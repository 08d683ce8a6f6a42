package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// CopyOptions bounds a copy. Zero values mean the defaults.
type CopyOptions struct {
	Workers int  // directories copied at the same time; default 4
	Depth   int  // default 512
	Owners  bool // give every copy the owner of its original (needs root)
	Live    bool // something may write meanwhile: a name that is gone is left out
}

// Copied tells what a copy did.
type Copied struct {
	Files        int64
	Bytes        int64    // content of regular files
	Cloned       int64    // files that share their blocks with the original
	LeftOut      []string // the first 20 FIFOs, sockets and devices, and mounts
	LeftOutCount int
}

// maxLeftOut bounds Copied.LeftOut.
const maxLeftOut = 20

// Copy makes the directory to, which must not exist, a copy of the directory
// from. Content, permission bits, modification times, links and hard links
// within the tree are kept, holes too; setuid and setgid of files are dropped.
// Where the filesystem can, files share their blocks (FICLONE). What is left
// out is named. The first error ends it; what was copied so far stays there for
// the caller to remove.
func Copy(ctx context.Context, from, to string, o CopyOptions) (Copied, error) {
	if o.Workers <= 0 {
		o.Workers = 4
	}
	if o.Depth <= 0 {
		o.Depth = 512
	}
	src, err := openRoot(from)
	if err != nil {
		return Copied{}, err
	}
	if err := unix.Mkdir(to, 0o700); err != nil {
		src.Close()
		return Copied{}, &os.PathError{Op: "mkdir", Path: to, Err: err}
	}
	dst, err := openRoot(to)
	if err != nil {
		src.Close()
		return Copied{}, err
	}
	root, err := openRoot(to) // stays open for hard links while dst is closed by its worker
	if err != nil {
		src.Close()
		dst.Close()
		return Copied{}, err
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &copier{
		o: o, root: root, cancel: cancel,
		slots: make(chan struct{}, o.Workers-1),
		links: map[inode]*link{},
	}
	c.reflink.Store(true)
	err = c.dir(ctx, src, dst, "", 1)
	c.wait.Wait()
	if c.first != nil {
		err = c.first
	}
	return Copied{
		Files: c.files.Load(), Bytes: c.bytes.Load(), Cloned: c.cloned.Load(),
		LeftOut: c.leftOut, LeftOutCount: c.leftCount,
	}, err
}

type copier struct {
	o       CopyOptions
	root    *dir // the copy's top
	slots   chan struct{}
	wait    sync.WaitGroup
	cancel  context.CancelFunc
	reflink atomic.Bool

	files, bytes, cloned atomic.Int64

	mu        sync.Mutex
	first     error
	links     map[inode]*link
	leftOut   []string
	leftCount int
}

// link is the first copy of a file that has several names.
type link struct {
	done chan struct{} // closed when the copy is there
	path string        // in the copy
	ok   bool
}

func (c *copier) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		c.first = err
		c.cancel()
	}
	return c.first
}

func (c *copier) skip(rel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftCount++
	if len(c.leftOut) < maxLeftOut {
		if len(rel) > 200 {
			rel = rel[:200] + "…"
		}
		c.leftOut = append(c.leftOut, rel)
	}
}

// dir copies what is in src to dst and closes both. A subdirectory goes to
// another worker if one is free, else it is done at once; so nobody waits for
// a slot, and open files are bounded by workers × depth.
func (c *copier) dir(ctx context.Context, src, dst *dir, rel string, depth int) error {
	defer src.Close()
	defer dst.Close()
	var st unix.Stat_t
	if err := unix.Fstat(src.fd(), &st); err != nil {
		return c.fail(&os.PathError{Op: "stat", Path: shown(rel), Err: err})
	}
	var others sync.WaitGroup
	err := names(ctx, src, func(name string) error {
		err := c.entry(ctx, src, dst, path.Join(rel, name), name, depth, &others)
		if c.o.Live && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist)) {
			return nil // gone since it was read, or read twice
		}
		return err
	})
	others.Wait()
	if err != nil {
		return c.fail(err)
	}
	if ctx.Err() != nil {
		return c.fail(ctx.Err())
	}
	// Last, when nothing in it changes any more: owner, mode, time.
	if err := c.finish(dst.fd(), &st, st.Mode&0o7777); err != nil {
		return c.fail(&os.PathError{Op: "set attributes of", Path: shown(rel), Err: err})
	}
	return nil
}

func (c *copier) entry(ctx context.Context, src, dst *dir, rel, name string, depth int, others *sync.WaitGroup) error {
	st, err := lstatAt(src, name)
	if err != nil {
		return &os.PathError{Op: "stat", Path: shown(rel), Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.file(ctx, src, dst, rel, name, &st)
	case unix.S_IFLNK:
		return c.symlink(src, dst, rel, name, &st)
	case unix.S_IFDIR:
		if uint64(st.Dev) != src.dev {
			c.skip(rel)
			return nil
		}
		if depth >= c.o.Depth {
			return fmt.Errorf("%w: more than %d levels at %s…", ErrDepth, c.o.Depth, cut(rel, 60))
		}
		subSrc, err := openAt(src, name)
		if err != nil {
			return err
		}
		if err := unix.Mkdirat(dst.fd(), name, 0o700); err != nil {
			subSrc.Close()
			return &os.PathError{Op: "mkdir", Path: shown(rel), Err: err}
		}
		subDst, err := openAt(dst, name)
		if err != nil {
			subSrc.Close()
			return err
		}
		select {
		case c.slots <- struct{}{}:
			c.wait.Add(1)
			others.Add(1)
			go func() {
				defer c.wait.Done()
				defer others.Done()
				defer func() { <-c.slots }()
				_ = c.dir(ctx, subSrc, subDst, rel, depth+1) // kept in c.first
			}()
			return nil
		default:
			return c.dir(ctx, subSrc, subDst, rel, depth+1)
		}
	default:
		c.skip(rel)
		return nil
	}
}

func (c *copier) symlink(src, dst *dir, rel, name string, st *unix.Stat_t) error {
	buf := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(src.fd(), name, buf)
	if err != nil {
		return &os.PathError{Op: "readlink", Path: shown(rel), Err: err}
	}
	if err := unix.Symlinkat(string(buf[:n]), dst.fd(), name); err != nil {
		return &os.PathError{Op: "symlink", Path: shown(rel), Err: err}
	}
	if c.o.Owners {
		if err := unix.Fchownat(dst.fd(), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "chown", Path: shown(rel), Err: err}
		}
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}
	if err := unix.UtimesNanoAt(dst.fd(), name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "set time of", Path: shown(rel), Err: err}
	}
	return nil
}

func (c *copier) file(ctx context.Context, src, dst *dir, rel, name string, st *unix.Stat_t) error {
	if st.Nlink < 2 {
		return c.content(src, dst, rel, name, st)
	}
	key := inode{uint64(st.Dev), st.Ino}
	c.mu.Lock()
	l, again := c.links[key]
	if !again {
		l = &link{done: make(chan struct{}), path: rel}
		c.links[key] = l
	}
	c.mu.Unlock()
	if !again {
		err := c.content(src, dst, rel, name, st)
		l.ok = err == nil
		close(l.done)
		return err
	}
	<-l.done // its worker is copying one file and waits for nobody
	if !l.ok {
		return ctx.Err()
	}
	if unix.Linkat(c.root.fd(), l.path, dst.fd(), name, 0) == nil {
		return nil
	}
	// Too long a path, too many links, or a directory its owner cannot enter.
	return c.content(src, dst, rel, name, st)
}

// finish sets owner, mode and modification time of an open file.
func (c *copier) finish(fd int, st *unix.Stat_t, mode uint32) error {
	if c.o.Owners {
		if err := unix.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return err
	}
	return futimens(fd, st.Mtim)
}

func futimens(fd int, mtime unix.Timespec) error {
	// utimensat(fd, NULL, …) is what futimens(3) does; x/sys has no call with a
	// nil path, so the open file is named through /proc.
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	err := unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times, 0)
	if err != nil && errors.Is(err, os.ErrNotExist) {
		return errors.New("/proc is not mounted")
	}
	return err
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
