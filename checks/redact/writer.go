package redact

import (
	"io"
	"strings"
)

// Writer redacts a stream. It holds text back until a line ends, so that a
// secret written in pieces is still seen; a line longer than maxHeld is let
// through in parts that overlap by the longest known secret.
type Writer struct {
	r    *Redactor
	to   io.Writer
	held strings.Builder
}

// maxHeld bounds what one endless line can make us keep.
const maxHeld = 64 << 10

// Writer returns a redacting writer over w. Flush must be called at the end.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{r: r, to: w} }

// Write never returns a short count without an error. Errors are the underlying writer's.
func (w *Writer) Write(p []byte) (int, error) {
	w.held.Write(p)
	text := w.held.String()
	end := strings.LastIndexByte(text, '\n') + 1
	// A private key spans lines: nothing after its begin leaves before its end.
	if at := strings.LastIndex(text[:end], "-----BEGIN "); at >= 0 && !strings.Contains(text[at:end], "-----END ") && len(text)-at < maxHeld {
		end = strings.LastIndexByte(text[:at], '\n') + 1
	}
	if end == 0 && len(text) > maxHeld {
		// An endless line: let go of it whole, redacted, but for a tail that
		// may be the beginning of a secret.
		end = len(text) - min(len(text)/2, 4<<10)
	}
	if end == 0 {
		return len(p), nil
	}
	w.held.Reset()
	w.held.WriteString(text[end:])
	if _, err := io.WriteString(w.to, w.r.String(text[:end])); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what is still held back.
func (w *Writer) Flush() error {
	text := w.held.String()
	w.held.Reset()
	if text == "" {
		return nil
	}
	_, err := io.WriteString(w.to, w.r.String(text))
	return err
}
