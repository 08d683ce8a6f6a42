package dir

import "fmt"

// hold keeps a thing from being discarded while something is read from it, and
// returns its mark.
func (s *Store) hold(kind, name string) (m marker, release func(), err error) {
	key := kind + "/" + name
	s.mu.Lock()
	s.reading[key]++
	s.mu.Unlock()
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reading[key]--; s.reading[key] == 0 {
			delete(s.reading, key)
		}
	}
	// Held first, looked at after: Discard looks at the holds before it renames.
	if m, err = s.read(kind, name); err != nil {
		release()
		return marker{}, nil, fmt.Errorf("restore: %w", err)
	}
	return m, release, nil
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
