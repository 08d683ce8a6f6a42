package publish

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"inspect/checks/evidence"
	"inspect/storage"
)

// FileReceipt is the receipt in an export.
const FileReceipt = "receipt.json"

// Export writes a session's manifest, its receipt if there is one, all files that
// the manifest names, and what came after it was sealed, as a tar archive. blobs
// has the files.
func Export(ctx context.Context, out io.Writer, q *storage.Queries, blobs Getter, s storage.Session, manifest []byte) error {
	var m evidence.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return fmt.Errorf("read the manifest of session %s: %w", s.ID, err)
	}
	t := tar.NewWriter(out)
	put := func(name string, n int64, r io.Reader) error {
		err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: n, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
		if err == nil {
			_, err = io.CopyN(t, r, n)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return nil
	}
	copyOf := func(name, sum string, n int64) error {
		r, err := blobs.Get(ctx, s.ID, sum)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		defer r.Close()
		return put(name, n, r)
	}
	if err := put(FileManifest, int64(len(manifest)), strings.NewReader(string(manifest))); err != nil {
		return err
	}
	if s.Receipt.Valid {
		if err := put(FileReceipt, int64(len(s.Receipt.RawMessage)), strings.NewReader(string(s.Receipt.RawMessage))); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		if err := copyOf(f.Name, f.SHA256, f.Bytes); err != nil {
			return err
		}
	}
	later, err := q.LaterEvidence(ctx, s.ID)
	if err != nil {
		return fmt.Errorf("look for later evidence of session %s: %w", s.ID, err)
	}
	for _, f := range later {
		if err := copyOf(f.Name, f.Sha256, f.Bytes); err != nil {
			return err
		}
	}
	return t.Close()
}

// Getter reads files of the evidence; *storage.Blobs has it.
type Getter interface {
	Get(ctx context.Context, session, sum string) (io.ReadCloser, error)
}
