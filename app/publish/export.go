package publish

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"inspect/checks/evidence"
	"inspect/storage"
)

// Export writes a session's manifest, its receipt if there is one, a list of the
// sums of all, the files that the manifest names, and what came after it was
// sealed, as a tar archive. blobs has the files.
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
		if err := put(name, n, r); err != nil {
			return err
		}
		// What was changed in the store is found at its end.
		if _, err := io.Copy(io.Discard, r); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		return nil
	}
	later, err := q.LaterEvidence(ctx, s.ID)
	if err != nil {
		return fmt.Errorf("look for later evidence of session %s: %w", s.ID, err)
	}
	sums := map[string]string{}
	for _, f := range m.Files {
		sums[f.Name] = f.SHA256
	}
	for _, f := range later {
		sums[f.Name] = f.Sha256
	}
	own := []struct {
		name string
		body []byte
	}{{evidence.ManifestName, manifest}, {evidence.ReceiptName, s.Receipt.RawMessage}, {evidence.SumsName, nil}}
	for _, f := range own {
		switch {
		case f.name == evidence.SumsName:
			f.body = evidence.Sums(sums)
		case f.name == evidence.ReceiptName && !s.Receipt.Valid:
			continue
		default:
			sum := sha256.Sum256(f.body)
			sums[f.name] = hex.EncodeToString(sum[:])
		}
		if err := put(f.name, int64(len(f.body)), bytes.NewReader(f.body)); err != nil {
			return err
		}
	}
	for _, f := range m.Files {
		if err := copyOf(f.Name, f.SHA256, f.Bytes); err != nil {
			return err
		}
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
