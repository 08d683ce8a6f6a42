package dir

import (
	"context"
	"fmt"

	"inspect/envs/snapshot"
)

// idLock makes calls for one id run one after the other.
type idLock struct {
	held chan struct{} // capacity 1
	uses int
}

// lockID waits for the id's turn or the context's end.
func (s *Store) lockID(ctx context.Context, kind, name string) (unlock func(), err error) {
	key := kind + "/" + name
	s.mu.Lock()
	l := s.locks[key]
	if l == nil {
		l = &idLock{held: make(chan struct{}, 1)}
		s.locks[key] = l
	}
	l.uses++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.uses--; l.uses == 0 {
			delete(s.locks, key)
		}
	}
	if err := ctx.Err(); err != nil {
		leave()
		return nil, err
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// hold keeps a snapshot from being discarded while something is read from it.
func (s *Store) hold(id snapshot.SnapshotID) (release func(), err error) {
	s.mu.Lock()
	s.reading[id]++
	s.mu.Unlock()
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reading[id]--; s.reading[id] == 0 {
			delete(s.reading, id)
		}
	}
	// Held first, looked at after: Discard looks at the holds before it renames.
	if _, err := s.read(snapshotDir, string(id)); err != nil {
		release()
		return nil, fmt.Errorf("restore: %w", err)
	}
	return release, nil
}

func (s *Store) begin(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[path] = true
}

func (s *Store) end(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, path)
}

// claim is begin for Sweep: false if a call is working on the path.
func (s *Store) claim(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight[path] {
		return false
	}
	s.inFlight[path] = true
	return true
}
