package zfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

// mountFlags keep what an enemy puts into a tree from gaining anything on the
// host. zfs-fuse does not honour setuid=off and devices=off.
const mountFlags = unix.MS_NOSUID | unix.MS_NODEV

// isZFS says whether a filesystem is OpenZFS ("zfs") or zfs-fuse ("fuse.zfs").
func isZFS(m *mountinfo.Info) bool { return m.FSType == "zfs" || m.FSType == "fuse.zfs" }

// mountsAt are the mounts at path, the lowest first, and those that ZFS makes
// below it for .zfs/snapshot.
func mountsAt(path string) ([]*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != path && !strings.HasPrefix(m.Mountpoint, path+"/.zfs/"), false
	})
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	return all, nil
}

// stale says whether the daemon behind a mount is gone.
func stale(path string) bool {
	var st unix.Statfs_t
	return errors.Is(unix.Statfs(path, &st), unix.ENOTCONN)
}

// mount makes sure that the dataset is mounted at path, with these flags, and
// nothing else is.
func (s *Store) mount(ctx context.Context, name, path string, flags uintptr) error {
	if stale(path) {
		if err := detach(path); err != nil {
			return err
		}
	}
	at, err := mountsAt(path)
	if err != nil {
		return err
	}
	if top := topmost(at, path); top != nil {
		if isZFS(top) && top.Source == name {
			return s.fit(top, flags)
		}
		return fmt.Errorf("mount %s: %s is mounted at %s: %w", name, top.Source, path, snapshot.ErrBusy)
	}
	if err := makePath(path); err != nil {
		return err
	}
	if s.kernel {
		err = unix.Mount(name, path, "zfs", flags, "")
		switch {
		case errors.Is(err, unix.ENOENT):
			err = snapshot.ErrNotFound
		case errors.Is(err, unix.EBUSY): // mounted elsewhere
			err = snapshot.ErrBusy
		}
	} else {
		// Just after an unmount zfs-fuse still counts it as mounted.
		err = s.patiently(ctx, func() error { return s.mounting(ctx, "mount", name) })
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", name, path, err)
	}
	if at, err = mountsAt(path); err != nil {
		return err
	}
	top := topmost(at, path)
	if top == nil || !isZFS(top) || top.Source != name {
		return fmt.Errorf("%s is not mounted at %s, although no mount failed: look at `zfs get mountpoint,mounted %s`", name, path, name)
	}
	return s.fit(top, flags)
}

// fit makes a mount what it is to be. ErrUnavailable: it is to be written in and
// cannot be.
func (s *Store) fit(m *mountinfo.Info, flags uintptr) error {
	if err := s.harden(m, flags); err != nil || flags&unix.MS_RDONLY != 0 {
		return err
	}
	only := slices.Contains(strings.Split(m.Options+","+m.VFSOptions, ","), "ro")
	if !s.kernel {
		// Options of zfs-fuse do not tell. OpenZFS is not asked by writing: in a pool
		// that is suspended that would wait.
		access := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}
		only = errors.Is(unix.UtimesNanoAt(unix.AT_FDCWD, m.Mountpoint, access, unix.AT_SYMLINK_NOFOLLOW), unix.EROFS)
	}
	if only {
		return fmt.Errorf("%s can only be read: look at its property readonly, and the pool's: %w", m.Source, snapshot.ErrUnavailable)
	}
	return nil
}

// makePath makes the directory to mount at. Nobody but root can write in it
// while nothing is mounted there.
func makePath(path string) error {
	if err := os.Mkdir(path, 0); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// mounting runs a command that may mount something: zfs-fuse also mounts a new
// clone, whatever canmount says. Measured: it hangs for ever when it is to make
// fifty mounts at once.
func (s *Store) mounting(ctx context.Context, argv ...string) error {
	if !s.kernel {
		s.turn.Lock()
		defer s.turn.Unlock()
	}
	_, err := s.run(ctx, argv...)
	return err
}

// harden gives a mount of zfs-fuse the flags that it has no way to ask for.
func (s *Store) harden(m *mountinfo.Info, flags uintptr) error {
	options := strings.Split(m.Options, ",")
	if slices.Contains(options, "nosuid") && slices.Contains(options, "nodev") && (flags&unix.MS_RDONLY == 0 || slices.Contains(options, "ro")) {
		return nil
	}
	if err := unix.Mount("", m.Mountpoint, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		return fmt.Errorf("mount %s with flags %#x: %w", m.Mountpoint, flags, err)
	}
	return nil
}

func topmost(at []*mountinfo.Info, path string) *mountinfo.Info {
	for _, m := range slices.Backward(at) {
		if m.Mountpoint == path {
			return m
		}
	}
	return nil
}

// unmount takes the dataset off path, if it is mounted there. The directory
// stays: removing it would take the mount away from every namespace that has a
// copy of it. ErrBusy: a process stands in it. What is unmounted has to be
// ended, too.
func (s *Store) unmount(name, path string) error {
	at, err := mountsAt(path)
	if err != nil {
		return err
	}
	top := topmost(at, path)
	if top == nil {
		return nil
	}
	if top.Source != name { // another one has taken its place, or hides it
		if slices.ContainsFunc(at, func(m *mountinfo.Info) bool { return m.Mountpoint == path && m.Source == name }) {
			// What destroys it would take that away.
			return fmt.Errorf("unmount %s: %s is mounted over it: %w", path, top.Source, snapshot.ErrBusy)
		}
		return nil
	}
	if !s.kernel {
		if err := s.keep(name, top); err != nil {
			return err
		}
		// Not only at the end: if we are killed, nothing is kept any more.
		if err := answered(top); err != nil {
			return err
		}
	}
	if stale(path) {
		return detach(path)
	}
	slices.SortStableFunc(at, func(a, b *mountinfo.Info) int { return cmp.Compare(len(b.Mountpoint), len(a.Mountpoint)) })
	for _, m := range at {
		err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmount %s: %w%s", path, snapshot.ErrBusy, by(standingIn(m)))
		}
		if err != nil && !errors.Is(err, unix.EINVAL) { // gone meanwhile
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return nil
}

// detach takes what is mounted at path out of sight, whoever stands in it.
func detach(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("detach %s: %w", path, err)
	}
	return nil
}

// standingIn names the processes that stand in what is mounted, or have
// something of it open; this one, which keeps it, does not count. Processes come
// and go: it may be short of some.
func standingIn(m *mountinfo.Info) []string {
	dev := unix.Mkdev(uint32(m.Major), uint32(m.Minor))
	self := filepath.Join("/proc", strconv.Itoa(os.Getpid()))
	return processes(func(pid string) bool { return pid != self && uses(pid, dev) })
}

// keeping names the processes whose mount namespace has the dataset mounted,
// those of our own namespace left out.
func keeping(name string) []string {
	here, _ := os.Readlink("/proc/self/ns/mnt")
	known := map[string]bool{here: false} // whether it is mounted in a namespace
	return processes(func(pid string) bool {
		ns, err := os.Readlink(pid + "/ns/mnt")
		if err != nil {
			return false
		}
		has, ok := known[ns]
		if !ok {
			has = mountedIn(pid+"/mountinfo", name)
			known[ns] = has
		}
		return has
	})
}

// processes names those that match finds by their directory in /proc.
func processes(match func(pid string) bool) (names []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, pid := range all {
		if match(pid) {
			comm, _ := os.ReadFile(pid + "/comm")
			names = append(names, fmt.Sprintf("%s (process %s)", printable(strings.TrimSpace(string(comm))), filepath.Base(pid)))
		}
	}
	return names
}

// by says in words who holds something.
func by(names []string) string {
	const most = 5
	switch {
	case len(names) == 0:
		return ""
	case len(names) > most:
		names = append(slices.Clone(names[:most]), strconv.Itoa(len(names)-most)+" more")
	}
	return ": held by " + strings.Join(names, ", ")
}

func mountedIn(file, name string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	at, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		it := isZFS(m) && m.Source == name
		return !it, it
	})
	return err == nil && len(at) > 0
}

// uses says whether a process stands in a filesystem or has a file of it open.
func uses(pid string, dev uint64) bool {
	links := []string{pid + "/cwd", pid + "/root", pid + "/exe"}
	open, _ := filepath.Glob(pid + "/fd/*")
	return slices.ContainsFunc(append(links, open...), func(link string) bool {
		var st unix.Stat_t
		return unix.Stat(link, &st) == nil && st.Dev == dev
	})
}
