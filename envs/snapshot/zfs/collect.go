package zfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"inspect/envs/snapshot"
)

// reserveBytes bounds what the reserve holds back: a hundredth of the root, and
// never more than this. Destroying needs little, but not nothing.
const reserveBytes = 1 << 30

// bury makes the thing a tombstone and destroys it, if that can be done now.
// After the first step its id is free.
func (s *Store) bury(ctx context.Context, t thing) error {
	if err := s.surely(ctx, "set", propState+"="+stateDiscarded, t.name); err != nil {
		return err
	}
	s.standsAt(t, "")
	err := s.patiently(ctx, func() error { return s.remove(ctx, t.name, t.path) })
	if err == nil {
		return nil
	}
	// Whoever stands in it keeps it; nobody else comes across it any more.
	if at, merr := mountsAt(t.path); merr == nil {
		if top := topmost(at, t.path); top != nil && top.Source == t.name {
			err = errors.Join(err, s.leave(t.name, t.path))
		}
	}
	s.log.Info("discarded, but it could not be destroyed yet; a sweep will", "dataset", t.name, "error", err)
	return nil
}

// remove unmounts a dataset that is given up and destroys it with its
// snapshots, each only if it is ours, none recursively. errDependent: others
// were made from it. ErrBusy: a process has it.
func (s *Store) remove(ctx context.Context, name, path string) error {
	if err := s.unmount(name, path); err != nil {
		return err
	}
	// Looked at first: to zfs-fuse even a destroy that fails is not harmless.
	if have := keeping(name); len(have) > 0 {
		return fmt.Errorf("%s: %w%s", name, snapshot.ErrBusy, by(have))
	}
	if err := s.end(ctx, name); err != nil {
		return err
	}
	all, err := s.below(ctx, []string{propOwner}, 1, name)
	if err != nil || all[name] == nil {
		return err
	}
	if !ours(all[name], s.owner) {
		return fmt.Errorf("%s: %w", name, snapshot.ErrForeign)
	}
	for _, of := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(of, name+"@") {
			continue
		}
		if !ours(all[of], s.owner) {
			return fmt.Errorf("%s was made by somebody else and keeps what was discarded: %w", of, snapshot.ErrForeign)
		}
		if err := s.destroy(ctx, of); err != nil {
			return err
		}
	}
	if err := s.destroy(ctx, name); err != nil {
		return err
	}
	_ = os.Remove(path) // not if another one is mounted there by now
	return nil
}

// destroy destroys one dataset or snapshot that its caller has seen to be ours.
func (s *Store) destroy(ctx context.Context, name string) error {
	err := s.surely(ctx, "destroy", name)
	if errors.Is(err, snapshot.ErrNotFound) {
		return nil
	}
	return err
}

// surely runs a command that has to work in a full pool, too.
func (s *Store) surely(ctx context.Context, argv ...string) error {
	_, err := s.run(ctx, argv...)
	if !errors.Is(err, snapshot.ErrNoSpace) || !s.giveReserve(ctx) {
		return err
	}
	_, err = s.run(ctx, argv...)
	return err
}

// giveReserve gives the reserve back to the pool, if it is ours.
func (s *Store) giveReserve(ctx context.Context) bool {
	name := s.root + "/" + reserve
	found, err := s.get(ctx, read, name)
	if err != nil || !ours(found[name], s.owner) {
		return false
	}
	_, err = s.run(ctx, "set", "refreservation=none", name)
	s.log.Warn("the pool is full; the reserve is given up so that something can be destroyed", "dataset", name, "error", err)
	return err == nil
}

// keepReserve makes the reserve, or fills it again. In a full pool it does not.
func (s *Store) keepReserve(ctx context.Context) error {
	name := s.root + "/" + reserve
	found, err := s.get(ctx, append([]string{"used", "available", "refreservation"}, read...), s.root, name)
	if err != nil {
		return err
	}
	if err := s.there(found); err != nil {
		return err
	}
	used, available, err := sizes(found[s.root])
	if err != nil {
		return err
	}
	size := "refreservation=" + strconv.FormatInt(min((used+available)/100, reserveBytes), 10)
	row := found[name]
	switch has := row["refreservation"].text; {
	case row == nil:
		argv, merr := marks(s.owner, about{Created: s.clock.Now().UTC()})
		if merr != nil {
			return merr
		}
		argv = append(argv, "-o", "canmount=off", "-o", "mountpoint=none", "-o", size)
		_, err = s.run(ctx, append(append([]string{"create"}, argv...), name)...)
	case ours(row, s.owner) && (has == "0" || has == "none"):
		_, err = s.run(ctx, "set", size, name)
	}
	if errors.Is(err, snapshot.ErrNoSpace) {
		s.log.Warn("there is no room for the reserve", "dataset", name, "error", err)
		return nil
	}
	return err
}

// all is everything below the root, told apart.
func (s *Store) all(ctx context.Context) (found, error) {
	rows, err := s.below(ctx, append([]string{"used", "origin"}, read...), 3, s.root)
	if err != nil {
		return found{}, err
	}
	if err := s.there(rows); err != nil {
		return found{}, err
	}
	return tellApart(rows, s.root, s.owner, s.mounts)
}

// List lists what is there.
func (s *Store) List(ctx context.Context) (snapshot.Listing, error) {
	f, err := s.all(ctx)
	if err != nil {
		return snapshot.Listing{}, fmt.Errorf("list the store: %w", err)
	}
	return f.listing, nil
}

// Space is that of the pool or of the root dataset, whichever is fuller, without
// the reserve.
func (s *Store) Space(ctx context.Context) (snapshot.Space, error) {
	v, err := s.look(ctx)
	if err != nil {
		return snapshot.Space{}, fmt.Errorf("space of the store: %w", err)
	}
	least, _, err := v.space(s.fill)
	if err != nil {
		return snapshot.Space{}, fmt.Errorf("space of the store: %w", err)
	}
	return least, nil
}

// Sweep destroys tombstones that nothing uses any more. What others were made
// from stays without an error; what a process has is one.
func (s *Store) Sweep(ctx context.Context) error {
	f, err := s.all(ctx)
	if err != nil {
		return fmt.Errorf("sweep the store: %w", err)
	}
	var errs []error
	// What depends on another may come after it, so until nothing goes any more.
	for left := f.tombstones; len(left) > 0; {
		var depended []string
		for _, name := range left {
			if err := ctx.Err(); err != nil {
				return errors.Join(append(errs, err)...)
			}
			err := s.collect(ctx, name)
			switch {
			case errors.Is(err, errDependent):
				depended = append(depended, name)
			case err != nil:
				errs = append(errs, fmt.Errorf("sweep: %w", err))
			}
		}
		if len(depended) == len(left) {
			break
		}
		left = depended
	}
	s.clearPaths(f)
	return errors.Join(append(errs, s.keepReserve(ctx))...)
}

// collect destroys a tombstone, unless a call works on what has its id.
func (s *Store) collect(ctx context.Context, name string) error {
	kind := filepath.Base(filepath.Dir(name))
	unlock, ok := s.ids.Try(kind + "/" + idOf(name))
	if !ok {
		return nil
	}
	defer unlock()
	return s.remove(ctx, name, s.thing(kind, idOf(name)).path)
}

// clearPaths removes the directories that nothing is mounted at any more,
// in no namespace.
func (s *Store) clearPaths(f found) {
	known := maps.Clone(f.live)
	for _, name := range f.tombstones {
		known[filepath.Base(filepath.Dir(name))+"/"+idOf(name)] = name
	}
	for _, kind := range mounted {
		entries, _ := os.ReadDir(filepath.Join(s.mounts, kind))
		for _, e := range entries {
			key := kind + "/" + e.Name()
			if known[key] != "" {
				continue
			}
			if unlock, ok := s.ids.Try(key); ok {
				_ = os.Remove(filepath.Join(s.mounts, key)) // not if it is in use since
				unlock()
			}
		}
	}
}
