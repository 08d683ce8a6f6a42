package redact

import (
	"io"
	"slices"
	"strings"
)

// Writer redacts a stream. It holds text back until a line ends, so that a
// secret written in pieces is still seen; a known secret of several lines is
// held back too while it may be one. Of a line longer than maxHeld parts are let
// go, never in the middle of a secret.
type Writer struct {
	r    *Redactor
	to   io.Writer
	held strings.Builder
	over bool // a secret longer than is held: what follows is part of it
}

const (
	maxHeld = 64 << 10 // what one endless line can make us keep
	minTail = 4 << 10  // of it, the part that may be the beginning of a secret
)

// Writer returns a redacting writer over w. Flush must be called at the end.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{r: r, to: w} }

// Write never returns a short count without an error. Errors are the underlying writer's.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	if w.over {
		if p = afterToken(p); len(p) == 0 {
			return n, nil
		}
		w.over = false
	}
	w.held.Write(p)
	text := w.held.String()
	end := strings.LastIndexByte(text, '\n') + 1
	// A private key spans lines: nothing after its begin leaves before its end.
	if at := strings.LastIndex(text[:end], "-----BEGIN "); at >= 0 && !strings.Contains(text[at:end], "-----END ") && len(text)-at < maxHeld {
		end = strings.LastIndexByte(text[:at], '\n') + 1
	}
	end = w.r.unfinished(text, end)
	if end == 0 && len(text) > maxHeld {
		end = w.cut(text)
	}
	if end == 0 {
		return n, nil
	}
	w.held.Reset()
	w.held.WriteString(text[end:])
	if _, err := io.WriteString(w.to, w.r.String(text[:end])); err != nil {
		return 0, err
	}
	return n, nil
}

// cut says how much of a text without an end may leave: all but a tail that may
// be the beginning of a secret, and no secret in part. A secret that fills all
// of it is let go as a mark, and what follows of it is dropped.
func (w *Writer) cut(text string) int {
	end := len(text) - max(minTail, w.r.longest())
	for _, p := range slices.Backward(w.r.spans(text)) {
		if p.from < end && end < p.to {
			end = p.from
		}
	}
	if end <= 0 {
		w.over, end = true, len(text)
	}
	return end
}

// afterToken is what follows the rest of a token.
func afterToken(p []byte) []byte {
	i := slices.IndexFunc(p, func(c byte) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-.+/=%", c) >= 0)
	})
	if i < 0 {
		return nil
	}
	return p[i:]
}

// longest is the length of the longest spelling of a known secret, but no more
// than half of what is held.
func (r *Redactor) longest() (n int) {
	if r == nil {
		return 0
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	for needle := range r.needles {
		n = max(n, len(needle))
	}
	return min(n, maxHeld/2)
}

// unfinished is end, or less where text[:end] ends in the beginning of a known
// secret of several lines.
func (r *Redactor) unfinished(text string, end int) int {
	if r == nil {
		return end
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := end
	for needle := range r.needles {
		first, _, several := strings.Cut(needle, "\n")
		if !several || len(needle) >= maxHeld {
			continue
		}
		for at := max(0, end-len(needle)); at < end; {
			i := strings.Index(text[at:end], first+"\n")
			if i < 0 {
				break
			}
			if at += i; end-at < len(needle) && strings.HasPrefix(needle, text[at:end]) {
				out = min(out, at)
				break
			}
			at++
		}
	}
	return strings.LastIndexByte(text[:out], '\n') + 1
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
