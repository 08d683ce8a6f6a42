package unpack

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks that are followed on the way to one directory; the kernel's own
// bound is the same.
const maxLinks = 40

// errNoDirectory is the error of a way that leads through something else.
var errNoDirectory = errors.New("it leads through something that is no directory")

// tree is a root file system that is being made. Names in it are walked step by
// step without ever letting the kernel follow a link: a link of an earlier
// layer is followed by us, and its root is the tree's.
type tree struct {
	root *os.File
}

func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the directory to unpack into: %w", err)
	}
	return &tree{os.NewFile(uintptr(fd), dir)}, nil
}

func (t *tree) Close() error { return t.root.Close() }

// dir opens a directory by its path, which is clean and relative; "" is the
// root. With create, what is missing of it is made. The caller closes it. The
// error is unix.ENOENT if it is not there, errNoDirectory if it cannot be.
func (t *tree) dir(path string, create bool) (fd int, err error) {
	var stack []int // below the root, the last is where we are
	defer func() {
		for _, s := range stack {
			if s != fd {
				unix.Close(s)
			}
		}
	}()
	at := func() int {
		if len(stack) == 0 {
			return int(t.root.Fd())
		}
		return stack[len(stack)-1]
	}
	way := split(path)
	for links := 0; len(way) > 0; {
		name := way[0]
		way = way[1:]
		if name == ".." { // only of a link; of the root it is the root
			if n := len(stack); n > 0 {
				unix.Close(stack[n-1])
				stack = stack[:n-1]
			}
			continue
		}
		next, err := openDir(at(), name)
		if errors.Is(err, unix.ENOENT) && create {
			if err := unix.Mkdirat(at(), name, 0o755); err != nil {
				return -1, err
			}
			next, err = openDir(at(), name)
		}
		if err == nil {
			if stack = append(stack, next); len(stack) > maxDepth { // links can lead deeper than names
				return -1, fmt.Errorf("it is more than %d directories deep", maxDepth)
			}
			continue
		}
		if !errors.Is(err, unix.ENOTDIR) {
			return -1, err
		}
		target, err := readLink(at(), name)
		if err != nil {
			return -1, errNoDirectory
		}
		if links++; links > maxLinks {
			return -1, unix.ELOOP
		}
		if strings.HasPrefix(target, "/") {
			for _, s := range stack {
				unix.Close(s)
			}
			stack = nil
		}
		way = append(split(target), way...)
	}
	if len(stack) == 0 {
		return unix.FcntlInt(t.root.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	return at(), nil
}

// split is the steps of a path.
func split(path string) (out []string) {
	for s := range strings.SplitSeq(path, "/") {
		if s != "" && s != "." {
			out = append(out, s)
		}
	}
	return out
}

// openDir opens a directory, and never what a link leads to.
func openDir(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func readLink(at int, name string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// remove removes a name and, if it is a directory, all below it but what keep
// keeps; path is where the name is in the tree. It follows no link. kept says
// that something stays.
func remove(at int, name, path string, keep func(string) bool) (kept bool, err error) {
	if keep(path) {
		kept = true
	} else if err := unix.Unlinkat(at, name, 0); err == nil || errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return false, err
	}
	fd, err := openDir(at, name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
		return kept, nil
	}
	if err != nil {
		return kept, err
	}
	defer unix.Close(fd)
	below, err := empty(fd, path, keep)
	if err != nil || below || kept {
		return true, err
	}
	return false, unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}

// empty removes all that is in a directory, but what keep keeps.
func empty(fd int, path string, keep func(string) bool) (kept bool, err error) {
	// A path descriptor cannot be listed.
	open, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(open), path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return false, err
	}
	for _, n := range names {
		below := n
		if path != "" {
			below = path + "/" + n
		}
		k, err := remove(fd, n, below, keep)
		if err != nil {
			return false, err
		}
		kept = kept || k
	}
	return kept, nil
}
