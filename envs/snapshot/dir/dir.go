// Package dir is the snapshot store for any Linux filesystem: a snapshot is a
// directory tree, a clone a copy of it, made by sharing blocks where the
// filesystem can do that and by copying where it cannot. It has no hard disk
// quota. Ids and trees written by enemies come in, host paths go out.
//
// Below the root:
//
//	base/ snapshot/ session/ image/   one directory per thing: owner.json and
//	                                  tree/, and turn-<n>/ where turns of a clone
//	                                  are kept
//	tmp/                              what is being made; renamed into place when whole
//	trash/                            what is being removed
//	store.lock                        held by the process that has the store open
//
// owner.json names the installation and stands beside the tree, where no
// sandbox sees it.
package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
	"inspect/envs/snapshot/locks"
	"inspect/envs/snapshot/tree"
)

// Options of Open.
type Options struct {
	Root    string           // made if it is not there
	Owner   string           // id of the installation: nothing else is ever removed
	Workers int              // directories copied at the same time in one restore; default 4
	Now     func() time.Time // default time.Now
	Log     *slog.Logger     // default: nothing is logged
}

// Store implements snapshot.Store.
type Store struct {
	root    string
	owner   string
	workers int
	now     func() time.Time
	log     *slog.Logger
	lock    *os.File
	owners  bool // running as root: owners are kept
	reflink bool // files can share their blocks: a turn is kept in the time of its names

	ids locks.Keyed

	mu       sync.Mutex
	reading  map[string]int  // copies being made from what is at kind/name
	inFlight map[string]bool // paths in tmp and trash that a call is working on
}

var _ snapshot.Store = (*Store)(nil)

// Where things stand below the root.
const (
	baseDir     = "base"
	snapshotDir = "snapshot"
	sessionDir  = "session"
	imageDir    = "image"
	tmpDir      = "tmp"
	trashDir    = "trash"
	lockFile    = "store.lock"
	treeDir     = "tree"
)

// Open opens the store at o.Root, making it if needed. An error that wraps
// snapshot.ErrBusy: another process has it open.
func Open(o Options) (*Store, error) {
	if o.Owner == "" {
		return nil, errors.New("open the dir store: no installation id was given; without one nothing could be told to be ours")
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, fmt.Errorf("open the dir store at %s: %w", o.Root, err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(root, 0o711); err != nil {
		return nil, fmt.Errorf("open the dir store: %w", err)
	}
	for _, d := range []string{baseDir, snapshotDir, sessionDir, imageDir, tmpDir, trashDir} {
		// 0711: a sandbox's uid must pass to its own mounts but need not list.
		if err := os.Mkdir(filepath.Join(root, d), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("open the dir store: %w", err)
		}
	}
	lock, err := locks.File(filepath.Join(root, lockFile))
	if err != nil {
		return nil, fmt.Errorf("open the dir store at %s: %w", root, err)
	}
	s := &Store{
		root: root, owner: o.Owner, workers: o.Workers, now: o.Now, log: o.Log, lock: lock,
		owners:   os.Geteuid() == 0,
		reading:  map[string]int{},
		inFlight: map[string]bool{},
	}
	if s.reflink, err = s.sharesBlocks(); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open the dir store at %s: %w", root, err)
	}
	return s, nil
}

// Name is "dir".
func (s *Store) Name() string { return "dir" }

// Close releases the store.
func (s *Store) Close() error { return s.lock.Close() }

// Prepare makes a base.
func (s *Store) Prepare(ctx context.Context, id snapshot.BaseID, from snapshot.SnapshotID) (snapshot.Base, error) {
	if err := id.Check(); err != nil {
		return snapshot.Base{}, err
	}
	if from != "" {
		if err := from.Check(); err != nil {
			return snapshot.Base{}, err
		}
	}
	unlock, err := s.ids.Lock(ctx, baseDir+"/"+string(id))
	if err != nil {
		return snapshot.Base{}, err
	}
	defer unlock()
	if exists(s.path(baseDir, string(id))) {
		return snapshot.Base{}, fmt.Errorf("base %s: %w", id, snapshot.ErrExists)
	}
	var source string
	if from != "" {
		_, release, err := s.hold(snapshotDir, string(from))
		if err != nil {
			return snapshot.Base{}, err
		}
		defer release()
		source = filepath.Join(s.path(snapshotDir, string(from)), treeDir)
	}
	m := marker{Owner: s.owner, Base: string(id), Created: s.now().UTC()}
	err = s.make(ctx, m, source, s.path(baseDir, string(id)))
	if err != nil {
		return snapshot.Base{}, fmt.Errorf("prepare base %s: %w", id, err)
	}
	return m.base(s), nil
}

// Snapshot publishes a base.
func (s *Store) Snapshot(ctx context.Context, base snapshot.BaseID, id snapshot.SnapshotID, meta snapshot.Meta) (snapshot.Info, error) {
	if err := errors.Join(base.Check(), id.Check()); err != nil {
		return snapshot.Info{}, err
	}
	unlockBase, err := s.ids.Lock(ctx, baseDir+"/"+string(base))
	if err != nil {
		return snapshot.Info{}, err
	}
	defer unlockBase()
	unlock, err := s.ids.Lock(ctx, snapshotDir+"/"+string(id))
	if err != nil {
		return snapshot.Info{}, err
	}
	defer unlock()
	from, to := s.path(baseDir, string(base)), s.path(snapshotDir, string(id))
	if exists(to) {
		m, err := s.read(snapshotDir, string(id))
		if err != nil {
			return snapshot.Info{}, err
		}
		if m.Base == string(base) && !exists(from) {
			return m.info(), nil
		}
		return snapshot.Info{}, fmt.Errorf("snapshot %s: %w", id, snapshot.ErrExists)
	}
	m, err := s.read(baseDir, string(base))
	if err != nil {
		return snapshot.Info{}, err
	}
	found, err := tree.Survey(ctx, filepath.Join(from, treeDir), tree.SurveyOptions{Depth: snapshot.MaxDepth, Readable: !s.owners})
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("snapshot base %s: %w", base, err)
	}
	m.Snapshot, m.Meta, m.Created = string(id), meta, s.now().UTC()
	m.Bytes, m.LeftOut, m.LeftOutCount = found.Bytes, found.LeftOut, found.LeftOutCount
	err = func() error {
		if err := s.write(from, m); err != nil {
			return err
		}
		// A snapshot outlives a power cut: its content must be on disk before its name is.
		if err := s.sync(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// Nobody but us has business in a snapshot.
		if err := os.Chmod(from, 0o700); err != nil {
			return err
		}
		return os.Rename(from, to)
	}()
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("snapshot base %s as %s: %w", base, id, typed(err))
	}
	return m.info(), nil
}

// Restore makes a clone.
func (s *Store) Restore(ctx context.Context, id snapshot.SnapshotID, clone snapshot.CloneID, _ int64) (snapshot.Clone, error) {
	if err := errors.Join(id.Check(), clone.Check()); err != nil {
		return snapshot.Clone{}, err
	}
	unlock, err := s.ids.Lock(ctx, sessionDir+"/"+clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer unlock()
	if exists(s.path(sessionDir, clone.String())) {
		return s.again(clone, func(m marker) bool { return m.ForkOf == "" && m.Snapshot == string(id) })
	}
	origin, release, err := s.hold(snapshotDir, string(id))
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer release()
	m := s.cloneMarker(clone, origin)
	if err := s.make(ctx, m, filepath.Join(s.path(snapshotDir, string(id)), treeDir), s.path(sessionDir, clone.String())); err != nil {
		return snapshot.Clone{}, fmt.Errorf("restore snapshot %s as %s: %w", id, clone, err)
	}
	return m.clone(s), nil
}

// cloneMarker is the mark of a new clone of what origin marks.
func (s *Store) cloneMarker(clone snapshot.CloneID, origin marker) marker {
	return marker{
		Owner: s.owner, Clone: clone.String(), Snapshot: origin.Snapshot, Created: s.now().UTC(), Meta: origin.Meta,
		Session: clone.Session, Generation: clone.Generation, Purpose: clone.Purpose,
	}
}

// again returns a clone that is there already, if it is the one asked for.
func (s *Store) again(clone snapshot.CloneID, asked func(marker) bool) (snapshot.Clone, error) {
	m, err := s.read(sessionDir, clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	if !asked(m) {
		return snapshot.Clone{}, fmt.Errorf("clone %s was made from %s: %w", clone, m.madeFrom(), snapshot.ErrExists)
	}
	c := m.clone(s)
	c.Existed = true
	return c, nil
}

// Forks says whether files can share their blocks here.
func (s *Store) Forks() bool { return s.reflink }

// Bound bounds nothing.
func (s *Store) Bound(_ context.Context, base snapshot.BaseID, _ int64) error {
	if err := base.Check(); err != nil {
		return err
	}
	_, err := s.read(baseDir, string(base))
	return err
}

// HardQuota is false.
func (s *Store) HardQuota() bool { return false }

// Clone returns a clone.
func (s *Store) Clone(ctx context.Context, clone snapshot.CloneID) (snapshot.Clone, error) {
	if err := clone.Check(); err != nil {
		return snapshot.Clone{}, err
	}
	m, err := s.read(sessionDir, clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	return m.clone(s), ctx.Err()
}

// make builds a thing in tmp, empty or with a copy of the tree from, and renames
// it to its place.
func (s *Store) make(ctx context.Context, m marker, from, to string) (err error) {
	tmp := filepath.Join(s.root, tmpDir, rand.Text())
	s.begin(tmp)
	defer s.end(tmp)
	defer func() {
		if err != nil {
			err = typed(err)
			if rerr := s.erase(context.WithoutCancel(ctx), tmp); rerr != nil {
				s.log.Warn("what was half made could not be removed yet", "path", tmp, "error", rerr)
			}
		}
	}()
	if err := s.mark(tmp, m); err != nil {
		return err
	}
	if from == "" {
		if err := os.Mkdir(filepath.Join(tmp, treeDir), 0o755); err != nil {
			return err
		}
	} else {
		if err := s.copy(ctx, from, filepath.Join(tmp, treeDir), false); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if exists(to) {
		return snapshot.ErrExists
	}
	return os.Rename(tmp, to)
}

func (s *Store) copy(ctx context.Context, from, to string, live bool) error {
	got, err := tree.Copy(ctx, from, to, tree.CopyOptions{Workers: s.workers, Depth: snapshot.MaxDepth, Owners: s.owners, Live: live})
	if err == nil && got.LeftOutCount > 0 {
		s.log.Info("some names are no files and were left out of the copy", "from", from, "count", got.LeftOutCount, "names", got.LeftOut)
	}
	return err
}

// Discard removes a thing.
func (s *Store) Discard(ctx context.Context, what snapshot.Ref) error {
	if err := what.Check(); err != nil {
		return err
	}
	kind := sessionDir
	switch what.(type) {
	case snapshot.BaseID:
		kind = baseDir
	case snapshot.SnapshotID:
		kind = snapshotDir
	case snapshot.ImageID:
		kind = imageDir
	}
	unlock, err := s.ids.Lock(ctx, kind+"/"+what.String())
	if err != nil {
		return err
	}
	trash := filepath.Join(s.root, trashDir, rand.Text())
	s.begin(trash)
	defer s.end(trash)
	err = func() error {
		defer unlock()
		if _, err := s.read(kind, what.String()); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.reading[kind+"/"+what.String()]; n > 0 {
			return fmt.Errorf("%s %s: %d copies are being made from it: %w", kind, what, n, snapshot.ErrBusy)
		}
		err := os.Rename(s.path(kind, what.String()), trash)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("discard %s: %w", what, snapshot.ErrBusy)
		}
		return err
	}()
	if errors.Is(err, snapshot.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The name is free; what cannot be removed now is Sweep's.
	if err := s.erase(ctx, trash); err != nil {
		s.log.Warn("discarded, but not all of it could be removed yet", "what", what.String(), "path", trash, "error", err)
	}
	return nil
}

// erase removes a marked directory in tmp or trash: the trees first, the mark
// last, so that what a crash leaves still says whose it is.
func (s *Store) erase(ctx context.Context, path string) error {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() != treeDir && !strings.HasPrefix(e.Name(), turnPrefix) {
			continue
		}
		if err := tree.Remove(ctx, filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	for _, p := range []string{filepath.Join(path, markerName), path + markerSuffix, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Sweep clears tmp and trash.
func (s *Store) Sweep(ctx context.Context) error {
	var errs []error
	for _, kind := range []string{tmpDir, trashDir} {
		entries, err := os.ReadDir(filepath.Join(s.root, kind))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, e := range entries {
			if ctx.Err() != nil {
				return errors.Join(append(errs, ctx.Err())...)
			}
			if err := s.sweep(ctx, kind, e); err != nil {
				errs = append(errs, fmt.Errorf("sweep %s/%s: %w", kind, e.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Store) sweep(ctx context.Context, kind string, e os.DirEntry) error {
	path := s.path(kind, e.Name())
	if !s.claim(strings.TrimSuffix(path, markerSuffix)) {
		return nil // a call is working on it
	}
	defer s.end(strings.TrimSuffix(path, markerSuffix))
	if e.Type().IsRegular() && kind == tmpDir && strings.HasSuffix(e.Name(), markerSuffix) {
		return os.Remove(path) // a mark whose directory was never made
	}
	if !e.IsDir() {
		return nil
	}
	m, err := readMarker(filepath.Join(path, markerName))
	if errors.Is(err, os.ErrNotExist) {
		// The mark goes first in and last out: if the directory is empty it is
		// ours, otherwise it is not and this does nothing.
		_ = os.Remove(path)
		return nil
	}
	if err != nil || m.Owner != s.owner {
		return nil // not known to be ours
	}
	return s.erase(ctx, path)
}

// List lists what is there.
func (s *Store) List(ctx context.Context) (snapshot.Listing, error) {
	var l snapshot.Listing
	for _, kind := range []string{baseDir, snapshotDir, sessionDir, imageDir} {
		entries, err := os.ReadDir(filepath.Join(s.root, kind))
		if err != nil {
			return snapshot.Listing{}, fmt.Errorf("list the store: %w", err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return snapshot.Listing{}, err
			}
			m, err := s.read(kind, e.Name())
			switch {
			case errors.Is(err, snapshot.ErrNotFound): // gone meanwhile
			case err != nil:
				l.Foreign = append(l.Foreign, filepath.Join(kind, e.Name()))
			case kind == baseDir:
				l.Bases = append(l.Bases, m.base(s))
			case kind == snapshotDir:
				l.Snapshots = append(l.Snapshots, m.info())
			case kind == imageDir:
				l.Images = append(l.Images, m.image(s))
			default:
				l.Clones = append(l.Clones, m.clone(s))
			}
		}
	}
	return l, nil
}

// Space asks the filesystem.
func (s *Store) Space(context.Context) (snapshot.Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil {
		return snapshot.Space{}, fmt.Errorf("space of the store: %w", err)
	}
	// As df counts: blocks that are kept from us are neither used nor free.
	free := int64(st.Bavail) * st.Bsize
	return snapshot.Space{Total: int64(st.Blocks-st.Bfree+st.Bavail) * st.Bsize, Free: free, Room: free}, nil
}

// sync writes the filesystem's dirty pages out.
func (s *Store) sync() error {
	return unix.Syncfs(int(s.lock.Fd()))
}

func (s *Store) path(kind, name string) string { return filepath.Join(s.root, kind, name) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// typed adds the store's typed errors to the system's.
func typed(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %w", snapshot.ErrNoSpace, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", snapshot.ErrBusy, err)
	}
	return err
}
