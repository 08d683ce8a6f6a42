package zfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"inspect/envs/snapshot"
)

// propMade is on the datasets that everything stands below, with the
// installation that made them. They are no installation's own: others may use them.
const propMade = "io.inspect:made"

// Erase removes all that an installation has at o.Dataset, for good, and what
// everything stands below if it made that and nobody else has anything there.
// What does not carry its mark stays. snapshot.ErrBusy: a store of it is open, or
// a process has something of it.
func Erase(ctx context.Context, o Options) error {
	s, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.patiently(ctx, func() error { return s.erase(ctx) }); err != nil {
		return fmt.Errorf("erase the zfs store at %s: %w", o.Dataset, err)
	}
	return nil
}

func (s *Store) erase(ctx context.Context) error {
	l, err := s.List(ctx)
	if err != nil {
		return err
	}
	var all []snapshot.Ref
	for _, c := range l.Clones {
		all = append(all, c.ID)
	}
	for _, b := range l.Bases {
		all = append(all, b.ID)
	}
	for _, i := range l.Snapshots {
		all = append(all, i.ID)
	}
	for _, i := range l.Images {
		all = append(all, i.ID)
	}
	for _, what := range all {
		if err := s.Discard(ctx, what); err != nil {
			return err
		}
	}
	if err := s.Sweep(ctx); err != nil {
		return err
	}
	f, err := s.all(ctx)
	if err != nil {
		return err
	}
	if left := len(f.live) + len(f.tombstones); left > 0 {
		return fmt.Errorf("%d datasets are still used: %w", left, snapshot.ErrBusy)
	}
	return s.eraseRoot(ctx)
}

// eraseRoot destroys the reserve and what is empty then, the deepest first.
func (s *Store) eraseRoot(ctx context.Context) error {
	all, err := s.below(ctx, append([]string{propMade}, read...), 3, s.root)
	if err != nil {
		return err
	}
	if name := s.root + "/" + reserve; ours(all[name], s.owner) {
		if err := s.destroy(ctx, name); err != nil {
			return err
		}
		delete(all, name)
	}
	made := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return strings.Compare(b, a) })
	for _, name := range made {
		if all[name][propMade] != (value{s.owner, "local"}) {
			return nil // somebody else's, or below what somebody else has made
		}
	}
	for _, name := range made {
		err := s.destroy(ctx, name)
		if errors.Is(err, errDependent) {
			return nil // somebody else has come
		}
		if err != nil {
			return err
		}
	}
	return nil
}
