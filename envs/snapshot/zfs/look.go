package zfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
)

// thing is where something of ours stands, or would stand.
type thing struct {
	kind, id string
	name     string // of the dataset
	path     string // where it is mounted
}

func (s *Store) thing(kind, id string) thing {
	t := thing{kind: kind, id: id, name: s.root + "/" + kind + "/" + id, path: filepath.Join(s.mounts, kind, id)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name := s.moved[kind+"/"+id]; name != "" {
		t.name = name
	}
	return t
}

// standsAt keeps the name of a thing's dataset; empty: it is gone.
func (s *Store) standsAt(t thing, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.moved, t.kind+"/"+t.id)
	if strings.Contains(name, ":") {
		s.moved[t.kind+"/"+t.id] = name
	}
}

// view is what one look at some things found.
type view struct {
	rows  rows
	owner string
	all   []string // the pool and the root: what may be full
}

// look reads the marks of things, and how full the pool is. An error that wraps
// ErrUnavailable: not even the root is there.
func (s *Store) look(ctx context.Context, things ...thing) (view, error) {
	pool, _, _ := strings.Cut(s.root, "/")
	names := []string{pool, s.root}
	for _, t := range things {
		switch {
		case t.kind == "":
			names = append(names, t.name)
		case t.id != "":
			names = append(names, t.name, t.name+published)
		}
	}
	v := view{owner: s.owner, all: slices.Clone(names[:2])}
	slices.Sort(names)
	var err error
	if v.rows, err = s.get(ctx, append([]string{"used", "available"}, read...), slices.Compact(names)...); err != nil {
		return view{}, err
	}
	return v, s.there(v.rows)
}

// there tells a pool that is away from things that are.
func (s *Store) there(found rows) error {
	if found[s.root] == nil {
		return fmt.Errorf("%s is not there; is the pool imported? `zpool import` tells: %w", s.root, snapshot.ErrUnavailable)
	}
	return nil
}

func (v view) tombstone(t thing) bool {
	return ours(v.rows[t.name], v.owner) && discarded(v.rows[t.name])
}

// taken says whether the id is: by a thing of ours or by anything else.
func (v view) taken(t thing) bool { return v.rows[t.name] != nil && !v.tombstone(t) }

// free is a name for a thing whose id is free.
func (v view) free(t thing) string {
	if v.rows[t.name] == nil && !strings.Contains(t.name, ":") {
		return t.name
	}
	first, _, _ := strings.Cut(t.name, ":")
	return first + ":" + strings.ToLower(rand.Text()[:8])
}

// about is what a base or clone of ours is.
func (v view) about(t thing) (about, error) {
	if !v.taken(t) {
		return about{}, fmt.Errorf("%s %s: %w", t.kind, t.id, snapshot.ErrNotFound)
	}
	return v.marked(t, t.name)
}

// snapshot is what a snapshot of ours is.
func (v view) snapshot(t thing) (about, error) {
	switch {
	case !v.taken(t):
		return about{}, fmt.Errorf("%s %s: %w", t.kind, t.id, snapshot.ErrNotFound)
	case ours(v.rows[t.name], v.owner) && v.rows[t.name+published] == nil:
		return about{}, fmt.Errorf("%s%s, which clones are made of: %w", t.name, published, snapshot.ErrNotFound)
	case !ours(v.rows[t.name], v.owner):
		return about{}, fmt.Errorf("%s: %w", t.name, snapshot.ErrForeign)
	}
	return v.marked(t, t.name+published)
}

func (v view) marked(t thing, name string) (about, error) {
	a, ok := aboutOf(v.rows[name])
	if !ok || !ours(v.rows[name], v.owner) || !a.is(t.kind, t.id) {
		return about{}, fmt.Errorf("%s: %w", name, snapshot.ErrForeign)
	}
	return a, nil
}

// mayDiscard says whether what has the id is ours, in its place or broken.
func (v view) mayDiscard(t thing) error {
	var err error
	if t.kind == kindSnapshot {
		_, err = v.snapshot(t)
	} else {
		_, err = v.about(t)
	}
	if errors.Is(err, snapshot.ErrNotFound) {
		return nil // a snapshot whose published state somebody has taken away
	}
	return err
}

// space is that of the pool or of the root, whichever has less room until it is
// filled to a percentage.
func (v view) space(fill int) (least snapshot.Space, of string, err error) {
	for _, name := range v.all {
		used, available, err := sizes(v.rows[name])
		if err != nil {
			return snapshot.Space{}, "", fmt.Errorf("%s: %w", name, err)
		}
		total := used + available
		s := snapshot.Space{Total: total, Free: available, Room: int64(float64(total)*float64(fill)/100) - used}
		if of == "" || s.Room < least.Room {
			least, of = s, name
		}
	}
	return least, of, nil
}

// admit says no when there is no room.
func (v view) admit(fill int) error {
	s, of, err := v.space(fill)
	if err == nil && s.Room <= 0 {
		err = fmt.Errorf("%s is %d %% full and nothing new is made in it from %d %% on: free some space: %w", of, (s.Total-s.Free)*100/max(s.Total, 1), fill, snapshot.ErrNoSpace)
	}
	return err
}

func sizes(row map[string]value) (used, available int64, err error) {
	used, uerr := strconv.ParseInt(row["used"].text, 10, 64)
	available, aerr := strconv.ParseInt(row["available"].text, 10, 64)
	if err := errors.Join(uerr, aerr); err != nil {
		return 0, 0, fmt.Errorf("zfs tells no sizes: %w", err)
	}
	return used, available, nil
}

// patiently tries again, for two seconds, what is busy.
func (s *Store) patiently(ctx context.Context, do func() error) error {
	for left := retries; ; left-- {
		err := do()
		if left == 0 || !errors.Is(err, snapshot.ErrBusy) {
			return err
		}
		if werr := proc.Sleep(ctx, s.clock, retryEvery); werr != nil {
			return errors.Join(werr, err)
		}
	}
}
