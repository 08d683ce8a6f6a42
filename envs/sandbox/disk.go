package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/proc"
)

// A sandbox's disk usage is measured every diskEvery or, if that takes long, so
// that it takes a tenth of the time, but no more than diskPause later.
const (
	diskEvery = 2 * time.Second
	diskPause = 30 * time.Second
)

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
	clock, pause, inFlight := box.l.clock, diskEvery, false
	for {
		if proc.Sleep(ctx, clock, pause) != nil {
			return
		}
		begun := clock.Now()
		n, h, err := box.diskUsage(ctx)
		// What stays in sockets is of an unknown size. A program that passes files
		// on takes them out soon, so one look is not enough.
		stays := inFlight && h.inFlight
		inFlight = h.inFlight
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			box.l.log.Warn("disk usage of a sandbox could not be measured", "sandbox", box.id, "error", err)
		case n > box.spec.Limits.DiskBytes, stays && box.spec.short():
			box.diskFull.Store(true)
			box.l.log.Info("sandbox over its disk limit", "sandbox", box.id, "bytes", n, "limit", box.spec.Limits.DiskBytes,
				"without a name", h.bytes, "files in sockets", stays)
			box.strike()
			return
		}
		pause = min(max(diskEvery, 9*clock.Now().Sub(begun)), diskPause)
	}
}

// diskUsage is what the sandbox takes on disk, in bytes, with what it holds of
// that without a name. That is looked at first: a file that is removed
// meanwhile is missed this once, and never counted twice.
func (box *Sandbox) diskUsage(ctx context.Context) (int64, held, error) {
	h, err := box.held(ctx)
	if errors.Is(err, errManyHeld) {
		return math.MaxInt64, h, nil
	}
	if err != nil {
		return 0, h, err
	}
	usage := box.spec.DiskUsage
	if usage == nil {
		usage = box.spec.mountUsage
	}
	n, err := usage(ctx)
	if n > math.MaxInt64-h.bytes { // DiskUsage may say that it is too much to count
		return n, h, err
	}
	return n + h.bytes, h, err
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
