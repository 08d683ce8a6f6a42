package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

// turnPrefix begins the names of kept turns, beside the tree of their clone.
const turnPrefix = "turn-"

func (s *Store) turnPath(clone snapshot.CloneID, turn int) string {
	return filepath.Join(s.path(sessionDir, clone.String()), turnPrefix+strconv.Itoa(turn))
}

// sharesBlocks asks the filesystem whether files can share their blocks.
func (s *Store) sharesBlocks() (bool, error) {
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(filepath.Join(s.root, tmpDir), "probe-*"+markerSuffix) // a sweep takes what a crash leaves
		if err != nil {
			return false, err
		}
		defer f.Close()
		defer os.Remove(f.Name())
		files[i] = f
	}
	if _, err := files[0].Write(make([]byte, 64<<10)); err != nil {
		return false, err
	}
	return unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd())) == nil, nil
}

// KeepTurn copies the clone, sharing its blocks. What is written meanwhile is
// kept or not, file by file.
func (s *Store) KeepTurn(ctx context.Context, clone snapshot.CloneID, turn int) (err error) {
	if err := errors.Join(clone.Check(), snapshot.CheckTurn(turn)); err != nil {
		return err
	}
	if !s.reflink {
		return fmt.Errorf("keep a turn: the files of %s cannot share their blocks: %w", s.root, snapshot.ErrUnsupported)
	}
	unlock, err := s.ids.Lock(ctx, sessionDir+"/"+clone.String())
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.read(sessionDir, clone.String()); err != nil {
		return err
	}
	to := s.turnPath(clone, turn)
	if exists(to) {
		return nil
	}
	tmp := filepath.Join(s.root, tmpDir, rand.Text())
	s.begin(tmp)
	defer s.end(tmp)
	err = s.mark(tmp, marker{Owner: s.owner})
	if err == nil {
		err = s.copy(ctx, filepath.Join(s.path(sessionDir, clone.String()), treeDir), filepath.Join(tmp, treeDir), true)
	}
	if err == nil {
		err = os.Rename(filepath.Join(tmp, treeDir), to)
	}
	if rerr := s.erase(context.WithoutCancel(ctx), tmp); rerr != nil {
		s.log.Warn("what was half made could not be removed yet", "path", tmp, "error", rerr)
	}
	if err != nil {
		return fmt.Errorf("keep turn %d of %s: %w", turn, clone, typed(err))
	}
	return nil
}

// Fork makes a clone of a kept turn.
func (s *Store) Fork(ctx context.Context, of snapshot.CloneID, turn int, clone snapshot.CloneID, _ int64) (snapshot.Clone, error) {
	if err := errors.Join(of.Check(), clone.Check(), snapshot.CheckTurn(turn)); err != nil {
		return snapshot.Clone{}, err
	}
	if !s.reflink {
		return snapshot.Clone{}, fmt.Errorf("fork: no turn is kept where files cannot share their blocks: %w", snapshot.ErrUnsupported)
	}
	unlock, err := s.ids.Lock(ctx, sessionDir+"/"+clone.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer unlock()
	if exists(s.path(sessionDir, clone.String())) {
		return s.again(clone, func(m marker) bool { return m.ForkOf == of.String() && m.Turn == turn })
	}
	origin, release, err := s.hold(sessionDir, of.String())
	if err != nil {
		return snapshot.Clone{}, err
	}
	defer release()
	if !exists(s.turnPath(of, turn)) {
		return snapshot.Clone{}, fmt.Errorf("turn %d of clone %s: %w", turn, of, snapshot.ErrNotFound)
	}
	m := s.cloneMarker(clone, origin)
	m.ForkOf, m.Turn = of.String(), turn
	if err := s.make(ctx, m, s.turnPath(of, turn), s.path(sessionDir, clone.String())); err != nil {
		return snapshot.Clone{}, fmt.Errorf("fork turn %d of %s as %s: %w", turn, of, clone, err)
	}
	return m.clone(s), nil
}
