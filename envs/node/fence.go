package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// fences keep grants of attempts that were replaced from being obeyed while they
// have not expired yet: of each session the least generation that still counts
// here is in a file, so that a daemon which is started again knows it too. It is
// raised by every grant that is obeyed and by what the control plane says.
type fences struct {
	dir string
	mu  sync.Mutex
}

// keepFences is longer than a grant lives: an attempt's deadline is hours away.
const keepFences = 60 * 24 * time.Hour

// raise makes generation the least that counts of a session and refuses one that
// counts no more.
func (f *fences) raise(session string, generation int) error {
	if err := (snapshot.CloneID{Session: session, Generation: generation, Purpose: wire.PurposeWork}).Check(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path := filepath.Join(f.dir, session)
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tell which attempt of %s counts: %w", session, err)
	}
	least, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case len(b) > 0 && err != nil:
		return fmt.Errorf("%s does not say which attempt of the session counts: %w", path, err)
	case generation < least:
		return refuse("stale_generation", fmt.Sprintf("grant refused: attempt %d of session %s has been replaced", generation, session))
	case generation == least:
		return nil
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	tmp := filepath.Join(f.dir, ".new") // no session is called that
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(generation)+"\n"), 0o600); err != nil {
		return fmt.Errorf("remember which attempt of %s counts: %w", session, err)
	}
	return os.Rename(tmp, path)
}

// learn takes from the control plane which attempts count no more.
func (f *fences) learn(refs wire.Refs) error {
	var errs []error
	for _, r := range refs.Sessions {
		errs = append(errs, known(f.raise(r.Session, r.Generation)))
	}
	for _, r := range refs.Over {
		errs = append(errs, known(f.raise(r.Session, r.Generation+1)))
	}
	return errors.Join(errs...)
}

// known is err without the refusal that says what was known already.
func known(err error) error {
	var e *wire.Error
	if errors.As(err, &e) && e.Code == "stale_generation" {
		return nil
	}
	return err
}

// forget removes what no unexpired grant can be about.
func (f *fences) forget(now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if st, err := e.Info(); err == nil && now.Sub(st.ModTime()) > keepFences {
			errs = append(errs, os.Remove(filepath.Join(f.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
