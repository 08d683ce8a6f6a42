package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
)

// diskEvery is how often a sandbox's disk usage is measured.
const diskEvery = 2 * time.Second

// watchDisk ends the sandbox when it uses more than its limit, until stop.
func (box *Sandbox) watchDisk(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	measured := make(chan struct{})
	defer func() { <-measured }()
	go func() { // ends a measurement that is going on
		defer close(measured)
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer cancel()
	usage := box.spec.DiskUsage
	if usage == nil {
		usage = box.spec.mountUsage
	}
	clock, pause := box.l.clock, diskEvery
	for {
		if proc.Sleep(ctx, clock, pause) != nil {
			return
		}
		begun := clock.Now()
		n, err := usage(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			box.l.log.Warn("disk usage of a sandbox could not be measured", "sandbox", box.id, "error", err)
		case n > box.spec.Limits.DiskBytes:
			box.diskFull.Store(true)
			box.l.log.Info("sandbox over its disk limit", "sandbox", box.id, "bytes", n, "limit", box.spec.Limits.DiskBytes)
			box.strike()
			return
		}
		pause = max(diskEvery, 9*clock.Now().Sub(begun))
	}
}

// mountUsage is the default measure.
func (s Spec) mountUsage(ctx context.Context) (int64, error) {
	var sum int64
	for _, m := range s.Mounts {
		if !m.Writable {
			continue
		}
		n, err := Usage(ctx, m.Source)
		if err != nil {
			return 0, fmt.Errorf("measure %s: %w", m.Source, err)
		}
		sum += n
	}
	return sum, nil
}

// EntryBytes is the least that a file counts for on disk, in bytes, so that a
// flood of empty ones ends too, before it has used up a file system's inodes.
// (A file with anything in it mostly takes as much.)
const EntryBytes = 4096

// Usage is what the files under dir take on disk, in bytes. It follows no
// symbolic link and leaves no other file system's mounts out; a file with two
// names counts twice. Directories that change meanwhile, or that may not be
// read, count as far as they were seen.
func Usage(ctx context.Context, dir string) (int64, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err == unix.ENOTDIR {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return 0, err
		}
		return st.Blocks * 512, nil
	}
	if err != nil {
		return 0, err
	}
	return usage(ctx, fd, 0)
}

// deepest keeps the descriptors of a walk within bounds; what lies deeper was
// put there to be missed, and counts as too much.
const deepest = 400

var errDeep = errors.New("directories are nested too deep")

// usage takes over fd.
func usage(ctx context.Context, fd, depth int) (sum int64, err error) {
	d := os.NewFile(uintptr(fd), "directory")
	defer d.Close()
	if depth > deepest {
		return 0, errDeep
	}
	for {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		entries, rerr := d.ReadDir(512)
		for _, e := range entries {
			var st unix.Stat_t
			if unix.Fstatat(fd, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			sum += max(st.Blocks*512, EntryBytes)
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			sub, err := unix.Openat(fd, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue
			}
			n, err := usage(ctx, sub, depth+1)
			sum += n
			if err != nil {
				return sum, err
			}
		}
		if rerr == io.EOF {
			return sum, nil
		}
		if rerr != nil {
			return sum, nil
		}
	}
}
