package dir

import (
	"context"
	"errors"
	"fmt"
	"os"

	"inspect/envs/snapshot"
)

// Seal makes a base an image.
func (s *Store) Seal(ctx context.Context, base snapshot.BaseID, id snapshot.ImageID) (snapshot.Image, error) {
	if err := errors.Join(base.Check(), id.Check()); err != nil {
		return snapshot.Image{}, err
	}
	unlockBase, err := s.ids.Lock(ctx, baseDir+"/"+string(base))
	if err != nil {
		return snapshot.Image{}, err
	}
	defer unlockBase()
	unlock, err := s.ids.Lock(ctx, imageDir+"/"+string(id))
	if err != nil {
		return snapshot.Image{}, err
	}
	defer unlock()
	from, to := s.path(baseDir, string(base)), s.path(imageDir, string(id))
	if exists(to) {
		m, err := s.read(imageDir, string(id))
		if err != nil {
			return snapshot.Image{}, err
		}
		if m.Base == string(base) && !exists(from) {
			return m.image(s), nil
		}
		return snapshot.Image{}, fmt.Errorf("image %s: %w", id, snapshot.ErrExists)
	}
	m, err := s.read(baseDir, string(base))
	if err != nil {
		return snapshot.Image{}, err
	}
	m.Image, m.Created = string(id), s.now().UTC()
	err = s.write(from, m)
	if err == nil {
		err = s.sync() // its content must be on disk before its name is
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = os.Rename(from, to)
	}
	if err != nil {
		return snapshot.Image{}, fmt.Errorf("seal base %s as image %s: %w", base, id, typed(err))
	}
	return m.image(s), nil
}

// Image returns an image.
func (s *Store) Image(ctx context.Context, id snapshot.ImageID) (snapshot.Image, error) {
	if err := id.Check(); err != nil {
		return snapshot.Image{}, err
	}
	m, err := s.read(imageDir, string(id))
	if err != nil {
		return snapshot.Image{}, err
	}
	return m.image(s), ctx.Err()
}
