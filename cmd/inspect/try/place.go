package try

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot/tree"
)

// place is the directory a try works in.
type place struct {
	dir  string
	temp bool // ours to remove
	lock *os.File
}

const (
	tempPrefix = "inspect-try-"
	lockName   = "try.lock"
	logName    = "try.log"
)

// openPlace makes the directory a try works in: the given one, or a temporary
// one. Temporary ones that killed tries left are removed.
func openPlace(ctx context.Context, data string) (*place, error) {
	p := &place{dir: data, temp: data == ""}
	var err error
	if p.temp {
		sweep(ctx, os.TempDir())
		if p.dir, err = os.MkdirTemp("", tempPrefix); err != nil {
			return nil, fmt.Errorf("make a directory to work in: %w", err)
		}
	} else if p.dir, err = filepath.Abs(data); err != nil {
		return nil, Usagef("--data %s: %v", data, err)
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711 // the accounts of sandboxes and runners pass through it
	}
	if err = os.MkdirAll(p.dir, mode); err == nil {
		err = os.Chmod(p.dir, mode)
	}
	if err == nil {
		err = p.take()
	}
	if err == nil {
		err = passable(p.dir)
	}
	if err != nil {
		p.close(ctx, false)
		return nil, err
	}
	return p, nil
}

// take locks the directory: one try at a time works in it.
func (p *place) take() error {
	f, err := os.OpenFile(filepath.Join(p.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w", p.dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return Usagef("another inspect try works in %s: wait for it, or give another --data (without it each has its own)", p.dir)
	}
	p.lock = f
	return nil
}

// passable says which directory on the way to dir other accounts cannot pass,
// where there are other accounts: for root.
func passable(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for d := dir; ; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil {
			return err
		}
		if st.Mode().Perm()&0o001 == 0 {
			return Usagef("the sandboxes' account may not pass through %s: choose another directory with --data or TMPDIR", d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// close lets the directory go and removes it if it is ours and not to be kept.
func (p *place) close(ctx context.Context, keep bool) error {
	if p.lock != nil {
		defer p.lock.Close()
	}
	if !p.temp || keep || p.dir == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := tree.Remove(ctx, p.dir); err != nil {
		return fmt.Errorf("remove %s: %w", p.dir, err)
	}
	return nil
}

// sweep removes temporary directories of tries that were killed: whoever works
// in one holds its lock.
func sweep(ctx context.Context, temp string) {
	left, _ := filepath.Glob(filepath.Join(temp, tempPrefix+"*"))
	for _, dir := range left {
		var st syscall.Stat_t
		if err := syscall.Lstat(dir, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR || int(st.Uid) != os.Geteuid() {
			continue
		}
		// One that is just being made has no lock yet and is young.
		if time.Since(time.Unix(st.Mtim.Unix())) < time.Minute {
			continue
		}
		p := &place{dir: dir, temp: true}
		if _, err := os.Lstat(filepath.Join(dir, keptName)); err == nil || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if p.take() == nil {
			_ = p.close(ctx, false)
		}
	}
}

// keptName marks a directory that was to be kept.
const keptName = "kept"

// remember marks the directory as one to keep.
func (p *place) remember() error {
	return os.WriteFile(filepath.Join(p.dir, keptName), nil, 0o600)
}
