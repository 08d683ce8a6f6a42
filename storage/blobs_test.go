package storage_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"inspect/storage"
)

func openBlobs(t *testing.T) (*storage.Blobs, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "blobs")
	b, err := storage.OpenBlobs(context.Background(), "file://"+dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b, dir
}

func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestBlobsKeepWhatWasPut(t *testing.T) {
	ctx := context.Background()
	b, dir := openBlobs(t)
	sum, n, err := b.Put(ctx, "abcdefghij", strings.NewReader("hello"), 5)
	want := hex.EncodeToString(func() []byte { s := sha256.Sum256([]byte("hello")); return s[:] }())
	if err != nil || n != 5 || sum != want {
		t.Fatalf("got %s %d %v", sum, n, err)
	}
	for range 2 { // again is harmless
		if n, err := b.PutNamed(ctx, "abcdefghij", sum, strings.NewReader("hello"), 5); err != nil || n != 5 {
			t.Fatalf("again: %d %v", n, err)
		}
	}
	r, err := b.Get(ctx, "abcdefghij", sum)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	_ = r.Close()
	if err != nil || string(got) != "hello" {
		t.Fatalf("read %q %v", got, err)
	}
	files := filesIn(t, dir)
	if len(files) != 1 {
		t.Fatalf("more than the blob itself: %v", files)
	}
	if _, err := b.Get(ctx, "otheronexx", sum); !errors.Is(err, storage.ErrBlobMissing) {
		t.Fatalf("another session's blob: %v", err)
	}
	if err := os.WriteFile(files[0], []byte("hallo"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err = b.Get(ctx, "abcdefghij", sum)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, storage.ErrBlobMismatch) {
		t.Fatalf("changed content was read: %v", err)
	}
	_ = r.Close()
}

func TestBlobsRefuse(t *testing.T) {
	ctx := context.Background()
	good := hex.EncodeToString(make([]byte, 32))
	broken := errors.New("connection lost")
	for name, c := range map[string]struct {
		session, sum string
		r            io.Reader
		want         error
	}{
		"too large":       {"s", good, bytes.NewReader(make([]byte, 11)), storage.ErrBlobTooLarge},
		"other content":   {"s", good, strings.NewReader("x"), storage.ErrBlobMismatch},
		"broken off":      {"s", good, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken)), broken},
		"path in session": {"../s", good, strings.NewReader("x"), storage.ErrBlobName},
		"path in sum":     {"s", "../../x", strings.NewReader("x"), storage.ErrBlobName},
		"upper case":      {"s", strings.ToUpper("a" + good[1:]), strings.NewReader("x"), storage.ErrBlobName},
	} {
		t.Run(name, func(t *testing.T) {
			b, dir := openBlobs(t)
			if _, err := b.PutNamed(ctx, c.session, c.sum, c.r, 10); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if files := filesIn(t, dir); len(files) != 0 {
				t.Fatalf("left behind: %v", files)
			}
		})
	}
	b, dir := openBlobs(t)
	if _, _, err := b.Put(ctx, "s", bytes.NewReader(make([]byte, 11)), 10); !errors.Is(err, storage.ErrBlobTooLarge) {
		t.Fatalf("got %v", err)
	}
	if files := filesIn(t, dir); len(files) != 0 {
		t.Fatalf("left behind: %v", files)
	}
	if _, err := b.Size(ctx, "s", good); !errors.Is(err, storage.ErrBlobMissing) {
		t.Fatalf("size of nothing: %v", err)
	}
}
