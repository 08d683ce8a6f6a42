package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mostHeld is how many open files and mappings one look goes through. More were
// made to be missed, and count as too much.
const mostHeld = 2_000_000

var errManyHeld = errors.New("too many files are open to be looked at")

type inode struct{ dev, ino uint64 }

// system tells file systems apart where devices do not: files in an overlay have
// another device than its directories have (the kernel's overlayfs.rst).
type system struct {
	kind int64
	id   unix.Fsid
}

func systemOf(path string) (s system, known bool) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil || st.Fsid == (unix.Fsid{}) {
		return s, false
	}
	return system{int64(st.Type), st.Fsid}, true
}

// held is what a sandbox keeps on disk without a name.
type held struct {
	uid     int
	devices map[uint64]bool
	systems map[system]bool
	looked  int
	seen    map[inode]bool
	bytes   int64
	// inFlight says that a unix socket has files in its queue, of which nothing
	// else can be seen from outside: unix(7), SCM_RIGHTS.
	inFlight bool
}

// held measures the files of the sandbox's user on its writable mounts that
// have no name any more, and live on because processes of the sandbox's cgroup
// have them open or mapped. (Files that the host deleted, such as the init of an
// earlier version, have another owner.) Without a cgroup nothing is seen.
func (box *Sandbox) held(ctx context.Context) (held, error) {
	h := held{uid: box.uid, devices: map[uint64]bool{}, systems: map[system]bool{}, seen: map[inode]bool{}}
	if box.group == nil {
		return h, nil
	}
	for _, m := range box.spec.Mounts {
		var st unix.Stat_t
		if m.Writable && unix.Stat(m.Source, &st) == nil {
			h.devices[uint64(st.Dev)] = true
			if fs, known := systemOf(m.Source); known {
				h.systems[fs] = true
			}
		}
	}
	for _, pid := range box.group.pids() {
		if err := h.process(ctx, pid); err != nil {
			return h, err
		}
	}
	return h, nil
}

// process looks at a process. Each of its threads may have a table of files of
// its own, and the first may have ended before the others.
func (h *held) process(ctx context.Context, pid int) error {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	last, mapped := 0, false
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if last == 0 || !shareFiles(last, tid) {
			if _, err := h.links(ctx, fmt.Sprintf("/proc/%d/fd", tid)); err != nil {
				return err
			}
			last = tid
		}
		if !mapped { // memory is shared by all threads that live
			n, err := h.links(ctx, fmt.Sprintf("/proc/%d/map_files", tid))
			if err != nil {
				return err
			}
			mapped = n > 0
		}
	}
	return nil
}

// shareFiles says whether two threads have one table of files; where the kernel
// cannot tell, they have not.
func shareFiles(a, b int) bool {
	const kcmpFiles = 2 // linux/kcmp.h
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && r == 0
}

// links looks at the files that the links of a directory in /proc lead to, and
// says how many there are.
func (h *held) links(ctx context.Context, dir string) (n int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, nil // it has ended
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		n += len(names)
		for _, name := range names {
			h.link(dir, name)
		}
		if h.looked += len(names); h.looked > mostHeld {
			return n, errManyHeld
		}
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		if err != nil {
			return n, nil // the end of the list, or of the process
		}
	}
}

func (h *held) link(dir, name string) {
	var st unix.Stat_t
	if unix.Stat(dir+"/"+name, &st) != nil {
		return
	}
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		h.inFlight = h.inFlight || counter(strings.TrimSuffix(dir, "fd")+"fdinfo/"+name, "scm_fds:") > 0
		return
	}
	key := inode{uint64(st.Dev), st.Ino}
	if st.Nlink != 0 || int(st.Uid) != h.uid || h.seen[key] || !h.ours(dir+"/"+name, key.dev) {
		return
	}
	h.seen[key] = true
	h.bytes += max(st.Blocks*512, EntryBytes)
}

// ours says whether a file is on a writable mount.
func (h *held) ours(path string, dev uint64) bool {
	if h.devices[dev] {
		return true
	}
	fs, known := systemOf(path)
	return known && h.systems[fs]
}

// leastFree is the free space below which files whose size cannot be seen end
// their sandbox: 1 GiB, or 2 % of a small file system.
const leastFree = 1 << 30

// short says whether a writable mount's file system is about to be full.
func (s Spec) short() bool {
	for _, m := range s.Mounts {
		var st unix.Statfs_t
		if m.Writable && unix.Statfs(m.Source, &st) == nil &&
			st.Bavail*uint64(st.Bsize) < min(leastFree, st.Blocks*uint64(st.Bsize)/50) {
			return true
		}
	}
	return false
}
