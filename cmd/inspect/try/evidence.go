package try

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"inspect/app/publish"
	"inspect/checks/evidence"
	"inspect/storage"
)

// Names of files beside those of the evidence proper.
const (
	fileEvents = "events.jsonl" // the transcript: everything that happened, in order
	filePrompt = "prompt.txt"   // what the control plane told the agent
	fileResult = "result.json"  // what --json prints
	fileLog    = "try.log"      // of Inspect itself, where it is at fault
)

// openEvidence makes the directory for evidence: an empty one, closed to others.
func openEvidence(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", Usagef("--out %s: %v", dir, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", Usagef("--out: the directory for the evidence cannot be made: %v", err)
	}
	entries, err := os.ReadDir(abs)
	if err != nil {
		return "", Usagef("--out: %v", err)
	}
	if len(entries) > 0 {
		return "", Usagef("--out: %s is not empty: the evidence of a try has a directory of its own", abs)
	}
	return abs, nil
}

// defaultEvidence is where evidence goes that nobody gave a place: below the
// person's own state directory, never in the repository.
func defaultEvidence(session string) (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil || home == "" {
			return "", Usagef("there is no home directory to keep the evidence in: give one with --out")
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "inspect", "try", session), nil
}

// export writes the evidence of a session as files and returns its manifest;
// nil if it has none, because it never ran.
func export(ctx context.Context, h *House, s storage.Session, dir string) (*evidence.Manifest, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := h.DB.Q().WebEvidence(ctx, s.ID)
	if err != nil {
		return nil, fmt.Errorf("list the evidence: %w", err)
	}
	var m *evidence.Manifest
	for _, f := range files {
		name := filepath.Base(f.Name)
		if name != f.Name || strings.HasPrefix(name, ".") {
			return nil, fmt.Errorf("a file of the evidence has the name %q", f.Name)
		}
		if err := exportOne(ctx, h, s.ID, f.Sha256, filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("write %s of the evidence: %w", name, err)
		}
		if name == publish.FileManifest {
			body, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			m = &evidence.Manifest{}
			if err := json.Unmarshal(body, m); err != nil {
				return nil, fmt.Errorf("read the manifest: %w", err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, filePrompt), []byte(s.Prompt), 0o600); err != nil {
		return nil, err
	}
	return m, exportEvents(ctx, h, s.ID, filepath.Join(dir, fileEvents))
}

func exportOne(ctx context.Context, h *House, session, sum, to string) error {
	r, err := h.Blobs.Get(ctx, session, sum)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// exportEvents writes the session's events, one JSON object a line.
func exportEvents(ctx context.Context, h *House, session, to string) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	err = func() error {
		for seq := int64(0); ; {
			events, err := h.DB.Q().EventsAfter(ctx, storage.EventsAfterParams{SessionID: session, Seq: seq, Limit: 1000})
			if err != nil {
				return fmt.Errorf("read the events: %w", err)
			}
			for _, e := range events {
				seq = e.Seq
				line := struct {
					Seq        int64           `json:"seq"`
					Generation int32           `json:"generation"`
					Kind       string          `json:"kind"`
					At         time.Time       `json:"at"`
					Data       json.RawMessage `json:"data"`
				}{e.Seq, e.Generation, e.Kind, e.At.UTC(), e.Data}
				if err := enc.Encode(line); err != nil {
					return err
				}
			}
			if len(events) < 1000 {
				return w.Flush()
			}
		}
	}()
	return errors.Join(err, f.Close())
}
