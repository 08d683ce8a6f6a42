package zfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

// Seal makes a base an image.
func (s *Store) Seal(ctx context.Context, baseID snapshot.BaseID, id snapshot.ImageID) (snapshot.Image, error) {
	if err := errors.Join(baseID.Check(), id.Check()); err != nil {
		return snapshot.Image{}, err
	}
	unlockBase, err := s.ids.Lock(ctx, kindBase+"/"+string(baseID))
	if err != nil {
		return snapshot.Image{}, err
	}
	defer unlockBase()
	unlock, err := s.ids.Lock(ctx, kindImage+"/"+string(id))
	if err != nil {
		return snapshot.Image{}, err
	}
	defer unlock()
	base, to := s.thing(kindBase, string(baseID)), s.thing(kindImage, string(id))
	v, err := s.look(ctx, base, to)
	if err != nil {
		return snapshot.Image{}, err
	}
	if v.taken(to) {
		a, err := v.about(to)
		if err == nil && (a.Base != string(baseID) || v.taken(base)) {
			err = fmt.Errorf("image %s: %w", id, snapshot.ErrExists)
		}
		if err != nil {
			return snapshot.Image{}, err
		}
		return s.shown(ctx, to, a)
	}
	if _, err := v.about(base); err != nil {
		return snapshot.Image{}, err
	}
	a := about{Base: string(baseID), Image: string(id), Created: s.clock.Now().UTC()}
	name := v.free(to)
	if err := s.seal(ctx, base, to, name, a); err != nil {
		return snapshot.Image{}, fmt.Errorf("seal base %s as image %s: %w", baseID, id, err)
	}
	to.name = name
	return s.shown(ctx, to, a)
}

// seal closes a base to writing and makes it an image. The rename at its end is
// what does it: before it there is a base, which nobody takes for an image.
func (s *Store) seal(ctx context.Context, base, to thing, name string, a about) error {
	if err := s.unmountBase(ctx, base); err != nil {
		return err
	}
	mark, err := json.Marshal(a)
	if err != nil {
		return err
	}
	set := []string{propAbout + "=" + string(mark), "readonly=on"}
	if !s.kernel {
		set = append(set, "mountpoint="+to.path)
	}
	for _, property := range set { // zfs-fuse takes one at a time
		if _, err := s.run(ctx, "set", property, base.name); err != nil {
			return err
		}
	}
	return s.moveBase(ctx, base, to, name)
}

// shown is an image, mounted.
func (s *Store) shown(ctx context.Context, t thing, a about) (snapshot.Image, error) {
	if err := s.mount(ctx, t.name, t.path, mountFlags|unix.MS_RDONLY); err != nil {
		return snapshot.Image{}, err
	}
	return a.image(s.mounts), nil
}

// Image returns an image, mounted.
func (s *Store) Image(ctx context.Context, id snapshot.ImageID) (snapshot.Image, error) {
	if err := id.Check(); err != nil {
		return snapshot.Image{}, err
	}
	unlock, err := s.ids.Lock(ctx, kindImage+"/"+string(id))
	if err != nil {
		return snapshot.Image{}, err
	}
	defer unlock()
	t := s.thing(kindImage, string(id))
	v, err := s.look(ctx, t)
	if err != nil {
		return snapshot.Image{}, err
	}
	a, err := v.about(t)
	if err != nil {
		return snapshot.Image{}, err
	}
	return s.shown(ctx, t, a)
}
