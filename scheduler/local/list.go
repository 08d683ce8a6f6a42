package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"inspect/scheduler"
)

var attemptForm = regexp.MustCompile(`^([a-z0-9]{1,64})-g([1-9][0-9]{0,8})$`)

// Logs returns the end of what a runner wrote.
func (e *Engine) Logs(_ context.Context, stored json.RawMessage, max int) ([]byte, error) {
	_, name, err := known(stored)
	if r, ok := e.stored(name); err != nil || !ok || r.Forgotten {
		return nil, err
	}
	path := filepath.Join(e.o.Dir, name, logName)
	boundLog(path)
	// What was moved aside comes first.
	earlier, err := tail(path+".1", max)
	if err != nil {
		return nil, fmt.Errorf("reading a runner's log: %w", err)
	}
	log, err := tail(path, max)
	if err != nil {
		return nil, fmt.Errorf("reading a runner's log: %w", err)
	}
	log = slices.Concat(earlier, log)
	return log[len(log)-min(len(log), max):], nil
}

// tail reads the last max bytes of a file; one that is not there is empty.
func tail(path string, max int) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	at := fi.Size() - min(fi.Size(), int64(max))
	return io.ReadAll(io.NewSectionReader(f, at, int64(max)))
}

// List returns every attempt that was started here and is not forgotten.
func (e *Engine) List(ctx context.Context) ([]scheduler.Listed, error) {
	entries, err := os.ReadDir(e.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("listing the runners: %w", err)
	}
	var out []scheduler.Listed
	for _, entry := range entries {
		m := attemptForm.FindStringSubmatch(entry.Name())
		if m == nil {
			continue
		}
		r, ok := e.stored(entry.Name())
		if !ok || r.Forgotten {
			continue
		}
		l := scheduler.Listed{Session: m[1]}
		if l.Generation, err = strconv.Atoi(m[2]); err != nil {
			continue
		}
		r.Ended = false
		if l.Ref, err = json.Marshal(r); err != nil {
			return nil, err
		}
		if l.State, err = e.State(ctx, l.Ref); err != nil {
			e.o.Log.Warn("it cannot be told whether a runner lives", "directory", entry.Name(), "error", err)
		}
		out = append(out, l)
	}
	return out, nil
}

// Forget ends a runner and keeps nothing of it but its log, for as long as
// Options.Keep says and only for who looks at the machine. An attempt that was
// forgotten is not started again meanwhile.
func (e *Engine) Forget(ctx context.Context, stored json.RawMessage) error {
	_, name, err := known(stored)
	if err != nil {
		return err
	}
	if err := e.Stop(ctx, stored); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.stored(name)
	if !ok || r.Forgotten {
		return nil
	}
	r.Forgotten = true
	_, err = e.write(r)
	return err
}

func known(stored json.RawMessage) (r ref, name string, err error) {
	if err := json.Unmarshal(stored, &r); err != nil {
		return r, "", fmt.Errorf("what the runner runs as cannot be read: %w", err)
	}
	return r, filepath.Base(r.Dir), nil
}
