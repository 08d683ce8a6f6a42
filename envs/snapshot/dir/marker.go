package dir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"crypto/rand"

	"golang.org/x/sys/unix"

	"inspect/envs/snapshot"
)

const (
	markerName   = "owner.json"
	markerSuffix = ".marker"
	markerBytes  = 64 << 10 // a larger one is not ours
)

// marker says whose a tree is and what it is.
type marker struct {
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`

	Base     string        `json:"base,omitempty"`     // the base it is, or was before it became a snapshot
	Snapshot string        `json:"snapshot,omitempty"` // the snapshot it is, or was made from
	Meta     snapshot.Meta `json:"meta"`               // of that snapshot

	Bytes        int64    `json:"bytes,omitempty"`
	LeftOut      []string `json:"left_out,omitempty"`
	LeftOutCount int      `json:"left_out_count,omitempty"`

	Clone      string `json:"clone,omitempty"` // the clone it is
	Session    string `json:"session,omitempty"`
	Generation int    `json:"generation,omitempty"`
	Purpose    string `json:"purpose,omitempty"`
	ForkOf     string `json:"fork_of,omitempty"` // the clone it is a fork of
	Turn       int    `json:"turn,omitempty"`    // after this turn of it

	Image string `json:"image,omitempty"` // the image it is, or is about to be
}

func (m marker) madeFrom() string {
	if m.ForkOf != "" {
		return fmt.Sprintf("turn %d of %s", m.Turn, m.ForkOf)
	}
	return "snapshot " + m.Snapshot
}

func (m marker) base(s *Store) snapshot.Base {
	return snapshot.Base{ID: snapshot.BaseID(m.Base), Path: filepath.Join(s.path(baseDir, m.Base), treeDir), Created: m.Created}
}

func (m marker) image(s *Store) snapshot.Image {
	return snapshot.Image{ID: snapshot.ImageID(m.Image), Path: filepath.Join(s.path(imageDir, m.Image), treeDir), Created: m.Created}
}

func (m marker) info() snapshot.Info {
	return snapshot.Info{
		ID: snapshot.SnapshotID(m.Snapshot), Meta: m.Meta, Created: m.Created, Bytes: m.Bytes,
		LeftOut: m.LeftOut, LeftOutCount: m.LeftOutCount,
	}
}

func (m marker) clone(s *Store) snapshot.Clone {
	return snapshot.Clone{
		ID:       snapshot.CloneID{Session: m.Session, Generation: m.Generation, Purpose: m.Purpose},
		Path:     filepath.Join(s.path(sessionDir, m.Clone), treeDir),
		Snapshot: snapshot.SnapshotID(m.Snapshot), Commit: m.Meta.Commit, Image: m.Meta.Image, Created: m.Created,
	}
}

// read returns the mark of a thing that is ours and in its right place.
func (s *Store) read(kind, name string) (marker, error) {
	path := s.path(kind, name)
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return marker{}, fmt.Errorf("%s %s: %w", kind, name, snapshot.ErrNotFound)
	}
	if err != nil {
		return marker{}, err
	}
	foreign := fmt.Errorf("%s: %w", path, snapshot.ErrForeign)
	if !st.IsDir() {
		return marker{}, foreign
	}
	m, err := readMarker(filepath.Join(path, markerName))
	if err != nil || m.Owner != s.owner {
		if !exists(path) {
			return marker{}, fmt.Errorf("%s %s: %w", kind, name, snapshot.ErrNotFound)
		}
		return marker{}, foreign
	}
	its := map[string]string{baseDir: m.Base, snapshotDir: m.Snapshot, sessionDir: m.Clone, imageDir: m.Image}[kind]
	if its != name {
		return marker{}, foreign
	}
	return m, nil
}

func readMarker(path string) (marker, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return marker{}, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, markerBytes+1))
	if err != nil {
		return marker{}, err
	}
	if len(body) > markerBytes {
		return marker{}, errors.New("the mark is too large")
	}
	var m marker
	if err := json.Unmarshal(body, &m); err != nil {
		return marker{}, err
	}
	return m, nil
}

// mark makes the directory path with its mark in it. The mark is written beside
// it first: a directory that is not empty always has a whole one.
func (s *Store) mark(path string, m marker) error {
	if err := writeMarker(path+markerSuffix, m); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o711); err != nil {
		return err
	}
	return os.Rename(path+markerSuffix, filepath.Join(path, markerName))
}

// write replaces the mark of the directory path in one step.
func (s *Store) write(path string, m marker) error {
	tmp := filepath.Join(s.root, tmpDir, rand.Text())
	s.begin(tmp)
	defer s.end(tmp)
	if err := writeMarker(tmp+markerSuffix, m); err != nil {
		return err
	}
	return os.Rename(tmp+markerSuffix, filepath.Join(path, markerName))
}

func writeMarker(path string, m marker) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > markerBytes {
		return errors.New("the mark is too large: shorten environment, commit or digest")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	return errors.Join(err, f.Close())
}
