package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"inspect/checks/redact"
	"inspect/envs/proc"
)

// defaultOutputBytes is what is kept of one command's output stream when the
// spec does not say.
const defaultOutputBytes = 8 << 20

// tailBytes is what is kept of an output's end to be shown.
const tailBytes = 4 << 10

// spool is the attempt's directory on the host. Only the runner writes to it;
// it holds bytes that came out of a sandbox as nothing but bytes.
type spool struct {
	dir string
}

func openSpool(dir string) (*spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the spool directory: %w", err)
	}
	return &spool{dir: dir}, nil
}

func (s *spool) remove() error { return os.RemoveAll(s.dir) }

// blob is a finished file of the spool.
type blob struct {
	path      string
	sha256    string // hexadecimal
	size      int64
	truncated bool   // there was more than the limit
	tail      string // the end of it, as it was written
}

func (b blob) remove() {
	if b.path != "" {
		_ = os.Remove(b.path)
	}
}

// create begins a blob that keeps the first limit bytes of what is written.
// With a redactor, secrets are replaced before anything is stored or hashed.
func (s *spool) create(limit int64, red *redact.Redactor) (*spoolWriter, error) {
	f, err := os.CreateTemp(s.dir, "blob-")
	if err != nil {
		return nil, fmt.Errorf("write to the spool directory: %w", err)
	}
	w := &spoolWriter{sink: &sink{f: f, sum: sha256.New(), left: limit}, last: &proc.Tail{N: tailBytes}}
	if red != nil {
		w.redactor, w.red = red, red.Writer(w.sink)
	}
	return w, nil
}

// spoolWriter takes an output stream. Its Write never fails, so that no
// command is disturbed by trouble on our side: finish tells. It is not safe
// for concurrent use.
type spoolWriter struct {
	sink     *sink
	redactor *redact.Redactor
	red      *redact.Writer
	held     []byte     // collected for red, which is slow on many small pieces
	last     *proc.Tail // as it came
}

func (w *spoolWriter) Write(p []byte) (int, error) {
	n := len(p)
	if w.red == nil {
		_, _ = w.sink.Write(p) // remembers its error
		return n, nil
	}
	_, _ = w.last.Write(p)
	if w.sink.cut {
		return n, nil // nothing more is kept: spare the redactor
	}
	w.held = append(w.held, p...)
	if len(w.held) >= 32<<10 {
		_, _ = w.red.Write(w.held)
		w.held = w.held[:0]
	}
	return n, nil
}

// finish closes the blob. The error is that of our own disk.
func (w *spoolWriter) finish() (blob, error) {
	if w.red != nil {
		_, _ = w.red.Write(w.held)
		_ = w.red.Flush()
	}
	s := w.sink
	if err := s.f.Close(); err != nil && s.err == nil {
		s.err = err
	}
	b := blob{
		path: s.f.Name(), sha256: hex.EncodeToString(s.sum.Sum(nil)), size: s.size,
		truncated: s.cut, tail: w.tail(),
	}
	if s.err != nil {
		b.remove()
		return blob{}, fmt.Errorf("write to the spool directory: %w", s.err)
	}
	return b, nil
}

// tail is the redacted end of the output. A cut line at its beginning is left
// out: the rest of a secret would not be known for one.
func (w *spoolWriter) tail() string {
	text := string(w.last.Bytes())
	if w.last.Cut() {
		_, text, _ = strings.Cut(text, "\n")
	}
	return w.redactor.String(text)
}

// abandon removes what was written.
func (w *spoolWriter) abandon() {
	_ = w.sink.f.Close()
	_ = os.Remove(w.sink.f.Name())
}

type sink struct {
	f    *os.File
	sum  hash.Hash
	left int64
	size int64
	cut  bool
	err  error
}

func (s *sink) Write(p []byte) (int, error) {
	n := len(p)
	if int64(len(p)) > s.left {
		s.cut = true
		p = p[:s.left]
	}
	if s.err != nil || len(p) == 0 {
		return n, nil
	}
	m, err := s.f.Write(p)
	s.sum.Write(p[:m])
	s.left -= int64(m)
	s.size += int64(m)
	if err != nil {
		s.err = err
	}
	return n, nil
}

// readHead reads at most n bytes from a blob's beginning.
func (b blob) readHead(n int64) ([]byte, error) {
	f, err := os.Open(b.path)
	if err != nil {
		return nil, fmt.Errorf("read from the spool directory: %w", err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, n))
}

// openAt opens a blob for reading from an offset.
func (b blob) openAt(offset int64) (*os.File, error) {
	f, err := os.Open(b.path)
	if err != nil {
		return nil, fmt.Errorf("read from the spool directory: %w", err)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("read from the spool directory: %w", err)
	}
	return f, nil
}
