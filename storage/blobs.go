package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/url"
	"os"
	"regexp"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // file://
	"gocloud.dev/gcerrors"
)

// Errors of Blobs that a caller decides on.
var (
	ErrBlobMissing  = errors.New("there is no such blob")
	ErrBlobTooLarge = errors.New("the blob is larger than allowed")
	ErrBlobMismatch = errors.New("the content does not have the sha256 it was announced with")
	ErrBlobName     = errors.New("not a name of a blob")
)

// Blobs keeps evidence, addressed by the session it belongs to and the sha256
// of its content: no session reads another's, and what was stored cannot be
// changed. Safe for use by several goroutines.
type Blobs struct{ bucket *blob.Bucket }

// OpenBlobs opens a bucket by its URL. A file:// bucket is made if it is not
// there, writes each blob beside its place and renames it, and keeps no files
// but the blobs.
func OpenBlobs(ctx context.Context, bucketURL string) (*Blobs, error) {
	u, err := url.Parse(bucketURL)
	if err != nil {
		return nil, fmt.Errorf("the address of the evidence cannot be understood: %w", err)
	}
	if u.Scheme == "file" {
		q := u.Query()
		for k, v := range map[string]string{
			"metadata": "skip", "no_tmp_dir": "true", "create_dir": "true", "dir_file_mode": "448", // 0700
		} {
			if !q.Has(k) {
				q.Set(k, v)
			}
		}
		u.RawQuery = q.Encode()
	}
	b, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, fmt.Errorf("opening the store of evidence: %w", err)
	}
	return &Blobs{bucket: b}, nil
}

// Close releases the bucket.
func (b *Blobs) Close() error { return b.bucket.Close() }

var (
	blobSession = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)
	blobSum     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func blobKey(session, sum string) (string, error) {
	if !blobSession.MatchString(session) || !blobSum.MatchString(sum) {
		return "", ErrBlobName
	}
	return "sessions/" + session + "/" + sum[:2] + "/" + sum, nil
}

// Put stores the content of r and returns its sha256 and length. More than
// limit bytes are ErrBlobTooLarge, and nothing is stored.
func (b *Blobs) Put(ctx context.Context, session string, r io.Reader, limit int64) (sum string, n int64, err error) {
	// The name is only known at the end, so the content waits in a file.
	f, err := os.CreateTemp("", "inspect-blob-*")
	if err != nil {
		return "", 0, fmt.Errorf("keeping a blob aside: %w", err)
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	h := sha256.New()
	n, err = io.Copy(io.MultiWriter(f, h), io.LimitReader(r, limit+1))
	if err != nil {
		return "", 0, fmt.Errorf("reading a blob: %w", err)
	}
	if n > limit {
		return "", 0, ErrBlobTooLarge
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, fmt.Errorf("keeping a blob aside: %w", err)
	}
	sum = hex.EncodeToString(h.Sum(nil))
	_, err = b.PutNamed(ctx, session, sum, f, limit)
	return sum, n, err
}

// PutNamed stores the content of r, which must have the sha256 it is announced
// with (else ErrBlobMismatch) and at most limit bytes (else ErrBlobTooLarge).
// Storing the same again is harmless. It returns the length.
func (b *Blobs) PutNamed(ctx context.Context, session, sum string, r io.Reader, limit int64) (int64, error) {
	key, err := blobKey(session, sum)
	if err != nil {
		return 0, err
	}
	// A writer whose context ends before it is closed stores nothing.
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := b.bucket.NewWriter(wctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return 0, fmt.Errorf("storing a blob: %w", err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		err = fmt.Errorf("storing a blob: %w", err)
	case n > limit:
		err = ErrBlobTooLarge
	case hex.EncodeToString(h.Sum(nil)) != sum:
		err = ErrBlobMismatch
	}
	if err != nil {
		cancel()
		_ = w.Close()
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, fmt.Errorf("storing a blob: %w", err)
	}
	return n, nil
}

// Get opens a blob. It is ErrBlobMissing if the session has none of that sum;
// reading ends with ErrBlobMismatch if the content was changed behind our back.
func (b *Blobs) Get(ctx context.Context, session, sum string) (io.ReadCloser, error) {
	key, err := blobKey(session, sum)
	if err != nil {
		return nil, err
	}
	r, err := b.bucket.NewReader(ctx, key, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, ErrBlobMissing
	}
	if err != nil {
		return nil, fmt.Errorf("opening a blob: %w", err)
	}
	return &checkedReader{r: r, h: sha256.New(), sum: sum}, nil
}

// Size returns the length of a blob, or ErrBlobMissing.
func (b *Blobs) Size(ctx context.Context, session, sum string) (int64, error) {
	key, err := blobKey(session, sum)
	if err != nil {
		return 0, err
	}
	a, err := b.bucket.Attributes(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return 0, ErrBlobMissing
	}
	if err != nil {
		return 0, fmt.Errorf("looking for a blob: %w", err)
	}
	return a.Size, nil
}

// checkedReader fails at the end if what was read is not what was stored.
type checkedReader struct {
	r   io.ReadCloser
	h   hash.Hash
	sum string
}

func (c *checkedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.h.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(c.h.Sum(nil)) != c.sum {
		return n, ErrBlobMismatch
	}
	return n, err
}

func (c *checkedReader) Close() error { return c.r.Close() }
