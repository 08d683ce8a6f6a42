// Package zfs is the snapshot store on a ZFS pool: OpenZFS in the kernel, or
// zfs-fuse. A snapshot and a clone are made in the time of a few commands,
// whatever the size of the tree, and a clone has a hard quota. Ids and trees
// written by enemies come in, host paths go out.
//
// Below the root dataset:
//
//	base/<id>                 what is being prepared
//	snapshot/<id>@published   what clones are made of; never mounted
//	session/<clone id>        clones; @turn-<n> in it are the turns that were kept
//	image/<digest>            root file systems of container images, read-only
//	reserve                   holds back a little space, so that a full pool can be cleared
//
// Whose a dataset is and what it is stands in local user properties of its own
// (io.inspect:…), given in the very step in which it is made; no sandbox sees
// them. A dataset that cannot be destroyed when it is discarded, because a
// process stands in it or others were made from it, is a tombstone: a property
// says so, its id is free, Sweep destroys it when nothing uses it any more. It
// is not renamed, because zfs-fuse renames nothing that is in use; what takes
// its id has a colon and a second part in the dataset's name.
//
// What decides (mark.go) and what does (tool.go, mount.go) are apart. Nothing is
// ever destroyed recursively or by force.
package zfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
	"inspect/envs/snapshot/locks"
	"inspect/envs/snapshot/tree"
)

// Options of Open.
type Options struct {
	Dataset string // POOL/DATASET: the root; made if the pool is there
	Mounts  string // directory below which trees are mounted; made if it is not there
	Owner   string // id of the installation: nothing else is ever removed
	// Fill is how full the root may be, in percent, for something new to be
	// made in it; ZFS becomes slow before it is full. Default 80.
	Fill  int
	Clock proc.Clock   // default the system's
	Log   *slog.Logger // default: nothing is logged
}

// Store implements snapshot.Store.
type Store struct {
	tool
	root   string
	mounts string
	owner  string
	fill   int
	log    *slog.Logger
	kernel bool // OpenZFS: we mount; zfs-fuse mounts itself

	ids   locks.Keyed
	holds locks.Keyed
	turn  sync.Mutex // of zfs-fuse's one mount at a time

	mu      sync.Mutex
	moved   map[string]string // kind/id: name of the dataset, where a tombstone has the usual one
	reading map[string]int    // clones being made from a dataset's snapshots
	ending  map[string]*ending
}

var _ snapshot.Store = (*Store)(nil)

const (
	lockFile = "zfs.lock"
	locksDir = "/run/inspect-zfs"
	holdTag  = "inspect" // one, so that what a killed process held is known
)

var datasetPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)

// datasetBytes bounds the root's name: ZFS takes 255 bytes in all, and the
// longest id with what stands around it has 150.
const datasetBytes = 100

// Open opens the store at o.Dataset. Errors that wrap snapshot.ErrBusy: another
// process has it open, or a command that a killed one has started still runs;
// snapshot.ErrUnavailable: there is no such pool, or no ZFS.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open the zfs store at %s: %w", o.Dataset, err)
		}
	}()
	switch {
	case o.Owner == "":
		return nil, errors.New("no installation id was given; without one nothing could be told to be ours")
	case !datasetPattern.MatchString(o.Dataset) || len(o.Dataset) > datasetBytes:
		return nil, fmt.Errorf("expected POOL/DATASET of at most %d bytes: %w", datasetBytes, snapshot.ErrName)
	case o.Fill < 0 || o.Fill > 100:
		return nil, fmt.Errorf("a pool is filled from 0 to 100 percent, not %d", o.Fill)
	}
	mounts, err := filepath.Abs(o.Mounts)
	if err != nil {
		return nil, err
	}
	if o.Fill == 0 {
		o.Fill = 80
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range append([]string{""}, mounted...) {
		// 0711: a sandbox's uid must pass to its own mounts but need not list.
		if err := os.MkdirAll(filepath.Join(mounts, d), 0o711); err != nil {
			return nil, err
		}
	}
	// Mounts are known by their real paths.
	if mounts, err = filepath.EvalSymlinks(mounts); err != nil {
		return nil, err
	}
	s := &Store{
		root: o.Dataset, mounts: mounts, owner: o.Owner, fill: o.Fill, log: o.Log,
		tool:  tool{clock: o.Clock, slots: make(chan struct{}, atOnce)},
		moved: map[string]string{}, reading: map[string]int{}, ending: map[string]*ending{},
	}
	if err = s.take(); err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.letGo())
	}
	return s, nil
}

// take takes the place for mounts, and what the installation has at the root:
// another daemon of it, with another place for mounts, would collect what this
// one is to keep.
func (s *Store) take() error {
	if err := os.MkdirAll(locksDir, 0o700); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(s.root + "\x00" + s.owner))
	for _, path := range []string{filepath.Join(s.mounts, lockFile), filepath.Join(locksDir, hex.EncodeToString(sum[:16]))} {
		f, err := locks.File(path)
		if err != nil {
			return err
		}
		s.locks = append(s.locks, f)
	}
	return nil
}

func (s *Store) letGo() (err error) {
	for _, f := range s.locks {
		err = errors.Join(err, f.Close())
	}
	return err
}

// begin learns what the machine can and what is there, and clears away what a
// crash left of mounts and holds.
func (s *Store) begin(ctx context.Context) error {
	version, err := s.run(ctx, "version")
	if err != nil && !errors.Is(err, errUnknown) {
		return err
	}
	s.kernel = err == nil
	if first, _, _ := strings.Cut(version, "\n"); s.kernel {
		s.log.Info("the store is on OpenZFS", "version", first, "dataset", s.root)
	} else {
		s.log.Info("the store is on zfs-fuse", "dataset", s.root)
	}
	if err := s.makeRoot(ctx); err != nil {
		return err
	}
	all, err := s.below(ctx, append([]string{"userrefs"}, read...), 3, s.root)
	if err != nil {
		return err
	}
	f, err := tellApart(all, s.root, s.owner, s.mounts)
	if err != nil {
		return err
	}
	for key, name := range f.live {
		if strings.Contains(name, ":") {
			s.moved[key] = name
		}
		if path := filepath.Join(s.mounts, key); stale(path) {
			s.log.Warn("a mount whose daemon is gone is taken away; it is made anew when it is asked for", "path", path)
			if err := detach(path); err != nil {
				return err
			}
		}
	}
	for name, row := range all {
		if n := row["userrefs"].text; ours(row, s.owner) && n != "" && n != "-" && n != "0" {
			if _, err := s.run(ctx, "release", holdTag, name); err != nil && !errors.Is(err, errNoTag) {
				return err
			}
		}
	}
	return s.keepReserve(ctx)
}

// makeRoot makes the root and what everything stands below, without a mark:
// installations may share it.
func (s *Store) makeRoot(ctx context.Context) error {
	names := []string{s.root}
	for _, k := range kinds {
		names = append(names, s.root+"/"+k)
	}
	have, err := s.get(ctx, []string{"type"}, names...)
	if err != nil {
		return err
	}
	for i, name := range names {
		if have[name] != nil {
			continue
		}
		argv := []string{"create", "-o", "canmount=off", "-o", "mountpoint=none", "-o", propMade + "=" + s.owner}
		if i == 0 {
			argv = append(argv, "-o", "atime=off")
		}
		if _, err := s.run(ctx, append(argv, name)...); errors.Is(err, snapshot.ErrNotFound) {
			return fmt.Errorf("%w: %w", snapshot.ErrUnavailable, err) // no pool, or no dataset above it
		} else if err != nil && !errors.Is(err, snapshot.ErrExists) {
			return err
		}
	}
	return nil
}

// Name is "zfs".
func (s *Store) Name() string { return "zfs" }

// Forks is true.
func (s *Store) Forks() bool { return true }

// HardQuota is true.
func (s *Store) HardQuota() bool { return true }

// Close releases the store. What is mounted stays mounted.
func (s *Store) Close() error {
	for name := range s.ending {
		s.forget(name)
	}
	return s.letGo()
}

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
	unlock, err := s.ids.Lock(ctx, kindBase+"/"+string(id))
	if err != nil {
		return snapshot.Base{}, err
	}
	defer unlock()
	base, origin := s.thing(kindBase, string(id)), s.thing(kindSnapshot, string(from))
	v, err := s.look(ctx, base, origin)
	if err != nil {
		return snapshot.Base{}, err
	}
	if v.taken(base) {
		return snapshot.Base{}, fmt.Errorf("base %s: %w", id, snapshot.ErrExists)
	}
	var source string
	if from != "" {
		if _, err := v.snapshot(origin); err != nil {
			return snapshot.Base{}, err
		}
		source = origin.name + published
	}
	a := about{Base: string(id), Created: s.clock.Now().UTC()}
	if err := s.make(ctx, v, base, a, source); err != nil {
		return snapshot.Base{}, fmt.Errorf("prepare base %s: %w", id, err)
	}
	return a.base(s.mounts), nil
}

// Bound sets the quota of a base.
func (s *Store) Bound(ctx context.Context, id snapshot.BaseID, bytes int64) error {
	if err := id.Check(); err != nil {
		return err
	}
	if bytes <= 0 {
		return fmt.Errorf("bound base %s: expected a number of bytes, not %d", id, bytes)
	}
	unlock, err := s.ids.Lock(ctx, kindBase+"/"+string(id))
	if err != nil {
		return err
	}
	defer unlock()
	base := s.thing(kindBase, string(id))
	v, err := s.look(ctx, base)
	if err != nil {
		return err
	}
	if _, err := v.about(base); err != nil {
		return err
	}
	has, err := referenced(v.rows[base.name])
	if err != nil {
		return err
	}
	most := max(bytes, has)
	quota := most + most/boundSpare + boundLeast
	for {
		_, err := s.run(ctx, "set", "refquota="+strconv.FormatInt(quota, 10), base.name)
		if errors.Is(err, errLess) && quota < 1<<60 { // what was written last is not in what it says it has
			quota *= 2
			continue
		}
		if err != nil {
			return fmt.Errorf("bound base %s: %w", id, err)
		}
		return nil
	}
}

// What ZFS takes for itself beside what is in files: more for many small ones.
const (
	boundSpare = 8       // an eighth
	boundLeast = 1 << 20 // and so many bytes
)

// Snapshot publishes a base.
func (s *Store) Snapshot(ctx context.Context, baseID snapshot.BaseID, id snapshot.SnapshotID, meta snapshot.Meta) (snapshot.Info, error) {
	if err := errors.Join(baseID.Check(), id.Check()); err != nil {
		return snapshot.Info{}, err
	}
	unlockBase, err := s.ids.Lock(ctx, kindBase+"/"+string(baseID))
	if err != nil {
		return snapshot.Info{}, err
	}
	defer unlockBase()
	unlock, err := s.ids.Lock(ctx, kindSnapshot+"/"+string(id))
	if err != nil {
		return snapshot.Info{}, err
	}
	defer unlock()
	base, to := s.thing(kindBase, string(baseID)), s.thing(kindSnapshot, string(id))
	v, err := s.look(ctx, base, to)
	if err != nil {
		return snapshot.Info{}, err
	}
	if v.taken(to) {
		a, err := v.snapshot(to)
		if err != nil {
			return snapshot.Info{}, err
		}
		if a.Base == string(baseID) && !v.taken(base) {
			return a.info(v.rows[to.name+published])
		}
		return snapshot.Info{}, fmt.Errorf("snapshot %s: %w", id, snapshot.ErrExists)
	}
	if _, err := v.about(base); err != nil {
		return snapshot.Info{}, err
	}
	info, err := s.publish(ctx, v, base, to, about{Base: string(baseID), Snapshot: string(id), Meta: meta})
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("snapshot base %s as %s: %w", baseID, id, err)
	}
	return info, nil
}

// publish makes the base a snapshot. The rename at its end is what publishes:
// before it the base is a base.
func (s *Store) publish(ctx context.Context, v view, base, to thing, a about) (_ snapshot.Info, err error) {
	if err := s.mount(ctx, base.name, base.path, mountFlags); err != nil {
		return snapshot.Info{}, err
	}
	defer func() {
		if err != nil { // it is still the caller's
			if merr := s.mount(context.WithoutCancel(ctx), base.name, base.path, mountFlags); merr != nil {
				s.log.Warn("a base is not mounted any more", "base", base.name, "error", merr)
			}
		}
	}()
	held, err := tree.Survey(ctx, base.path, tree.SurveyOptions{Depth: snapshot.MaxDepth, Remove: true})
	if err != nil {
		return snapshot.Info{}, err
	}
	a.Created, a.LeftOut, a.LeftOutCount = s.clock.Now().UTC(), held.LeftOut, held.LeftOutCount
	argv, err := marks(s.owner, a)
	if err != nil {
		return snapshot.Info{}, err
	}
	if row := v.rows[base.name+published]; row != nil { // a publication that was broken off
		if !ours(row, s.owner) {
			return snapshot.Info{}, fmt.Errorf("%s: %w", base.name+published, snapshot.ErrForeign)
		}
		if err := s.destroy(ctx, base.name+published); err != nil {
			return snapshot.Info{}, err
		}
	}
	if err := s.unmountBase(ctx, base); err != nil {
		return snapshot.Info{}, err
	}
	if _, err := s.run(ctx, append(append([]string{"snapshot"}, argv...), base.name+published)...); err != nil {
		return snapshot.Info{}, err
	}
	row, err := s.get(ctx, read, base.name+published)
	if err != nil {
		return snapshot.Info{}, err
	}
	info, err := a.info(row[base.name+published])
	if err != nil {
		return snapshot.Info{}, err
	}
	return info, s.moveBase(ctx, base, to, v.free(to))
}

func (s *Store) unmountBase(ctx context.Context, base thing) error {
	return s.patiently(ctx, func() error {
		if err := s.unmount(base.name, base.path); err != nil {
			return err
		}
		return s.end(ctx, base.name)
	})
}

// moveBase makes a base that is not mounted another thing, whose dataset has
// that name.
func (s *Store) moveBase(ctx context.Context, base, to thing, name string) error {
	err := s.patiently(ctx, func() error {
		_, err := s.run(ctx, "rename", base.name, name)
		return err
	})
	if err != nil {
		return err
	}
	_ = os.Remove(base.path)
	s.standsAt(base, "")
	s.standsAt(to, name)
	return nil
}

// Restore makes a clone.
func (s *Store) Restore(ctx context.Context, id snapshot.SnapshotID, clone snapshot.CloneID, room int64) (snapshot.Clone, error) {
	if err := errors.Join(id.Check(), clone.Check()); err != nil {
		return snapshot.Clone{}, err
	}
	unlock, err := s.ids.Lock(ctx, kindSession+"/"+clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer unlock()
	to, origin := s.thing(kindSession, clone.String()), s.thing(kindSnapshot, string(id))
	v, err := s.look(ctx, to, origin)
	if err != nil {
		return snapshot.Clone{}, err
	}
	if v.taken(to) {
		return s.again(ctx, v, to, func(a about) error {
			if a.ForkOf != "" || a.Snapshot != string(id) {
				return fmt.Errorf("clone %s was made from %s, not of snapshot %s: %w", clone, a.madeFrom(), id, snapshot.ErrExists)
			}
			return nil
		})
	}
	from, err := v.snapshot(origin)
	if err != nil {
		return snapshot.Clone{}, err
	}
	a := about{
		Clone: clone.String(), Session: clone.Session, Generation: clone.Generation, Purpose: clone.Purpose,
		Snapshot: string(id), Meta: from.Meta, Created: s.clock.Now().UTC(), Room: max(room, 0),
	}
	if err := s.make(ctx, v, to, a, origin.name+published); err != nil {
		return snapshot.Clone{}, fmt.Errorf("restore snapshot %s as %s: %w", id, clone, err)
	}
	return a.clone(s.mounts), nil
}

// again returns a clone that is there already, if check finds that it is the
// one that was asked for.
func (s *Store) again(ctx context.Context, v view, t thing, check func(about) error) (snapshot.Clone, error) {
	a, err := v.about(t)
	if err != nil {
		return snapshot.Clone{}, err
	}
	if err := check(a); err != nil {
		return snapshot.Clone{}, err
	}
	if err := s.mount(ctx, t.name, t.path, mountFlags); err != nil {
		return snapshot.Clone{}, err
	}
	c := a.clone(s.mounts)
	c.Existed = true
	return c, nil
}

// KeepTurn keeps the state of a clone. What turns keep may take as much again
// as the clone's room.
func (s *Store) KeepTurn(ctx context.Context, clone snapshot.CloneID, turn int) error {
	if err := errors.Join(clone.Check(), snapshot.CheckTurn(turn)); err != nil {
		return err
	}
	unlock, err := s.ids.Lock(ctx, kindSession+"/"+clone.String())
	if err != nil {
		return err
	}
	defer unlock()
	t := s.thing(kindSession, clone.String())
	v, err := s.look(ctx, t)
	if err != nil {
		return err
	}
	of, err := v.about(t)
	if err != nil {
		return err
	}
	kept, err := s.get(ctx, append([]string{"usedbysnapshots"}, read...), t.name, t.name+turnName(turn))
	if err != nil {
		return err
	}
	if row := kept[t.name+turnName(turn)]; row != nil {
		if !ours(row, s.owner) {
			return fmt.Errorf("%s%s: %w", t.name, turnName(turn), snapshot.ErrForeign)
		}
		return nil
	}
	used, err := strconv.ParseInt(kept[t.name]["usedbysnapshots"].text, 10, 64)
	if err != nil {
		return fmt.Errorf("keep turn %d of %s: zfs says that %q bytes are used by snapshots", turn, clone, kept[t.name]["usedbysnapshots"].text)
	}
	if of.Room > 0 && used > of.Room {
		return fmt.Errorf("keep turn %d of %s: earlier turns hold %d bytes that the clone does not have any more, %d are allowed: %w", turn, clone, used, of.Room, snapshot.ErrNoSpace)
	}
	argv, err := marks(s.owner, about{Clone: clone.String(), Turn: turn, Created: s.clock.Now().UTC()})
	if err != nil {
		return err
	}
	if _, err := s.run(ctx, append(append([]string{"snapshot"}, argv...), t.name+turnName(turn))...); err != nil {
		return fmt.Errorf("keep turn %d of %s: %w", turn, clone, err)
	}
	return nil
}

// Fork makes a clone of a kept turn.
func (s *Store) Fork(ctx context.Context, of snapshot.CloneID, turn int, clone snapshot.CloneID, room int64) (snapshot.Clone, error) {
	if err := errors.Join(of.Check(), clone.Check(), snapshot.CheckTurn(turn)); err != nil {
		return snapshot.Clone{}, err
	}
	unlock, err := s.ids.Lock(ctx, kindSession+"/"+clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer unlock()
	to, origin := s.thing(kindSession, clone.String()), s.thing(kindSession, of.String())
	source := origin.name + turnName(turn)
	v, err := s.look(ctx, to, origin, thing{name: source})
	if err != nil {
		return snapshot.Clone{}, err
	}
	if v.taken(to) {
		return s.again(ctx, v, to, func(a about) error {
			if a.ForkOf != of.String() || a.Turn != turn {
				return fmt.Errorf("clone %s was made from %s, not from turn %d of %s: %w", clone, a.madeFrom(), turn, of, snapshot.ErrExists)
			}
			return nil
		})
	}
	from, err := v.about(origin)
	if err != nil {
		return snapshot.Clone{}, err
	}
	if v.rows[source] == nil {
		return snapshot.Clone{}, fmt.Errorf("turn %d of clone %s: %w", turn, of, snapshot.ErrNotFound)
	}
	if !ours(v.rows[source], s.owner) {
		return snapshot.Clone{}, fmt.Errorf("%s: %w", source, snapshot.ErrForeign)
	}
	a := about{
		Clone: clone.String(), Session: clone.Session, Generation: clone.Generation, Purpose: clone.Purpose,
		Snapshot: from.Snapshot, Meta: from.Meta, ForkOf: of.String(), Turn: turn, Created: s.clock.Now().UTC(), Room: max(room, 0),
		Shared: from.Shared, // what was written in earlier turns has taken of the room
	}
	if err := s.make(ctx, v, to, a, source); err != nil {
		return snapshot.Clone{}, fmt.Errorf("fork turn %d of %s as %s: %w", turn, of, clone, err)
	}
	return a.clone(s.mounts), nil
}

func (a about) madeFrom() string {
	if a.ForkOf != "" {
		return fmt.Sprintf("turn %d of %s", a.Turn, a.ForkOf)
	}
	return "snapshot " + a.Snapshot
}

// Clone returns a clone, mounted.
func (s *Store) Clone(ctx context.Context, clone snapshot.CloneID) (snapshot.Clone, error) {
	if err := clone.Check(); err != nil {
		return snapshot.Clone{}, err
	}
	unlock, err := s.ids.Lock(ctx, kindSession+"/"+clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer unlock()
	t := s.thing(kindSession, clone.String())
	v, err := s.look(ctx, t)
	if err != nil {
		return snapshot.Clone{}, err
	}
	c, err := s.again(ctx, v, t, func(about) error { return nil })
	c.Existed = false
	return c, err
}

// make makes a thing, mounted: an empty one, or a clone of source. It leaves
// nothing behind if it fails.
func (s *Store) make(ctx context.Context, v view, t thing, a about, source string) (err error) {
	if err := v.admit(s.fill); err != nil {
		return err
	}
	var has int64
	if source != "" {
		if has, err = referenced(v.rows[source]); err != nil {
			return err
		}
		if a.Clone != "" && a.Shared == 0 {
			a.Shared = has
		}
	}
	argv, err := marks(s.owner, a)
	if err != nil {
		return err
	}
	mountpoint := "legacy"
	if !s.kernel {
		mountpoint = t.path
	}
	argv = append(argv, "-o", "canmount=noauto", "-o", "mountpoint="+mountpoint, "-o", "setuid=off", "-o", "devices=off")
	name := v.free(t)
	if source == "" {
		argv = append(append([]string{"create"}, argv...), name)
	} else {
		release, err := s.hold(ctx, source)
		if err != nil {
			return err
		}
		defer release()
		if a.Room > 0 {
			argv = append(argv, "-o", "refquota="+strconv.FormatInt(max(a.Shared+a.Room, has), 10))
		}
		argv = append(append([]string{"clone"}, argv...), source, name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := makePath(t.path); err != nil {
		return err
	}
	if stale(t.path) {
		if err := detach(t.path); err != nil {
			return err
		}
	}
	at, err := mountsAt(t.path)
	if err != nil {
		return err
	}
	if top := topmost(at, t.path); top != nil {
		return fmt.Errorf("%s is mounted at %s: %w", top.Source, t.path, snapshot.ErrBusy)
	}
	made := s.mounting(ctx, argv...) // an error: it may be there and only not be mounted
	if err = made; err == nil {
		err = s.mount(ctx, name, t.path, mountFlags)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil && !errors.Is(made, snapshot.ErrUnavailable) {
		ctx := context.WithoutCancel(ctx)
		if rerr := s.remove(ctx, name, t.path); rerr != nil {
			s.log.Warn("what was half made could not be removed yet", "dataset", name, "error", rerr)
		}
	}
	if err == nil {
		s.standsAt(t, name)
	}
	return err
}

// hold keeps a snapshot from being destroyed, by us or by anyone, while a clone
// is made of it.
func (s *Store) hold(ctx context.Context, source string) (release func(), err error) {
	dataset, _, _ := strings.Cut(source, "@")
	unlock, err := s.holds.Lock(ctx, source)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if s.count(source, 1) == 1 {
		if _, err := s.run(ctx, "hold", holdTag, source); err != nil && !errors.Is(err, snapshot.ErrExists) {
			s.count(source, -1)
			return nil, err
		}
	}
	s.count(dataset, 1)
	return func() {
		ctx := context.WithoutCancel(ctx)
		unlock, err := s.holds.Lock(ctx, source)
		if err != nil {
			return // never: the context does not end
		}
		defer unlock()
		s.count(dataset, -1)
		if s.count(source, -1) > 0 {
			return
		}
		if _, err := s.run(ctx, "release", holdTag, source); err != nil && !errors.Is(err, errNoTag) && !errors.Is(err, snapshot.ErrNotFound) {
			s.log.Warn("a snapshot stays held until the store is opened again", "snapshot", source, "error", err)
		}
	}, nil
}

func (s *Store) count(key string, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading[key] += n
	left := s.reading[key]
	if left == 0 {
		delete(s.reading, key)
	}
	return left
}

// Discard removes a thing.
func (s *Store) Discard(ctx context.Context, what snapshot.Ref) error {
	if err := what.Check(); err != nil {
		return err
	}
	kind := kindSession
	switch what.(type) {
	case snapshot.BaseID:
		kind = kindBase
	case snapshot.SnapshotID:
		kind = kindSnapshot
	case snapshot.ImageID:
		kind = kindImage
	}
	unlock, err := s.ids.Lock(ctx, kind+"/"+what.String())
	if err != nil {
		return err
	}
	defer unlock()
	t := s.thing(kind, what.String())
	v, err := s.look(ctx, t)
	if err != nil {
		return err
	}
	if !v.taken(t) {
		return nil
	}
	if err := v.mayDiscard(t); err != nil {
		return err
	}
	if n := s.count(t.name, 0); n > 0 {
		return fmt.Errorf("%s: %d clones are being made from it: %w", what, n, snapshot.ErrBusy)
	}
	if err := s.bury(ctx, t); err != nil {
		return fmt.Errorf("discard %s: %w", what, err)
	}
	return nil
}
