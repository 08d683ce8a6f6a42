package tree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// smallFile is copied through memory: cheaper than asking the kernel first.
const smallFile = 64 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, smallFile); return &b }}

// content copies one regular file with its attributes.
func (c *copier) content(src, dst *dir, rel, name string, st *unix.Stat_t) (err error) {
	defer func() {
		if err != nil {
			err = &os.PathError{Op: "copy", Path: shown(rel), Err: err}
		}
	}()
	// O_NONBLOCK: should the name have become a FIFO, opening must not hang.
	in, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(src.fd(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var now unix.Stat_t
	if err := unix.Fstat(in, &now); err != nil {
		return err
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG || now.Ino != st.Ino && !c.o.Live {
		return errors.New("it changed while it was copied")
	}
	out, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(dst.fd(), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := unix.Close(out); err == nil {
			err = cerr
		}
	}()
	if now.Size > 0 {
		if err := c.data(in, out, &now); err != nil {
			return err
		}
	}
	c.files.Add(1)
	c.bytes.Add(now.Size)
	return c.finish(out, &now, now.Mode&0o777)
}

func (c *copier) data(in, out int, st *unix.Stat_t) error {
	if c.reflink.Load() {
		err := unix.IoctlFileClone(out, in)
		if err == nil {
			c.cloned.Add(1)
			return nil
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
			return err
		}
		c.reflink.Store(false) // this filesystem cannot: do not ask for every file
	}
	sparse := st.Blocks*512 < st.Size
	if !sparse {
		return copyRange(in, out, 0, st.Size)
	}
	if err := unix.Ftruncate(out, st.Size); err != nil {
		return err
	}
	for off := int64(0); off < st.Size; {
		start, err := unix.Seek(in, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return copyRange(in, out, off, st.Size-off) // no holes on this filesystem
		}
		end, err := unix.Seek(in, start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := copyRange(in, out, start, end-start); err != nil {
			return err
		}
		off = end
	}
	return nil
}

// copyRange copies n bytes at off. A file that became shorter is an error: a
// snapshot does not change.
func copyRange(in, out int, off, n int64) error {
	if n > smallFile {
		left, err := copyInKernel(in, out, off, n)
		if err != nil || left == 0 {
			return err
		}
		off, n = off+n-left, left
	}
	p := buffers.Get().(*[]byte)
	defer buffers.Put(p)
	for n > 0 {
		b := (*p)[:min(n, smallFile)]
		got, err := ignoringEINTR(func() (int, error) { return unix.Pread(in, b, off) })
		if err != nil {
			return err
		}
		if got == 0 {
			return fmt.Errorf("it became shorter while it was copied: %w", io.ErrUnexpectedEOF)
		}
		for done := 0; done < got; {
			w, err := ignoringEINTR(func() (int, error) { return unix.Pwrite(out, b[done:got], off+int64(done)) })
			if err != nil {
				return err
			}
			done += w
		}
		off += int64(got)
		n -= int64(got)
	}
	return nil
}

// copyInKernel uses copy_file_range and returns what it could not do.
func copyInKernel(in, out int, off, n int64) (left int64, err error) {
	ro, wo := off, off
	for n > 0 {
		done, err := ignoringEINTR(func() (int, error) {
			return unix.CopyFileRange(in, &ro, out, &wo, int(min(n, 1<<30)), 0)
		})
		switch {
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO), errors.Is(err, unix.EFBIG):
			return n, err
		case err != nil, done == 0:
			return n, nil // not on this filesystem or kernel
		}
		n -= int64(done)
	}
	return 0, nil
}
