package main

import (
	"io"
	"log/slog"
	"os"

	"inspect/checks/redact"
)

// newLog writes to standard error what the redactor lets through. What it
// learns later counts from then on.
func newLog(format string, r *redact.Redactor) *slog.Logger {
	return logTo(os.Stderr, format, r)
}

func logTo(w io.Writer, format string, r *redact.Redactor) *slog.Logger {
	out := redactedLines{w, r}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(out, nil))
	}
	return slog.New(slog.NewTextHandler(out, nil))
}

// redactedLines takes secrets out of what is written with one call, as slog
// writes each record: message, attributes and whatever errors say, as they were
// escaped for the line.
type redactedLines struct {
	w io.Writer
	r *redact.Redactor
}

func (l redactedLines) Write(p []byte) (int, error) {
	if _, err := io.WriteString(l.w, l.r.String(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
