package redact

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestGuard(t *testing.T) {
	const canary = "canary-5f3c9a71d2"
	long := strings.Repeat("two\nlines ", 3000)
	r := New(canary, long)
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"empty":         {"", nil},
		"harmless":      {strings.Repeat("x", 3*guardBlock), nil},
		"at the start":  {canary + strings.Repeat("x", guardBlock), ErrKnown},
		"over a border": {strings.Repeat("x", guardBlock-5) + canary, ErrKnown},
		"far behind":    {strings.Repeat("x", 2*guardBlock-1) + canary + "y", ErrKnown},
		"base64":        {"x" + base64.StdEncoding.EncodeToString([]byte("ab"+canary)), ErrKnown},
		"a long one":    {strings.Repeat("x", 2*guardBlock-10000) + long, ErrKnown},
		"a part":        {canary[:len(canary)-1] + " " + canary[1:], nil},
	} {
		for _, from := range []io.Reader{strings.NewReader(c.text), iotest.HalfReader(strings.NewReader(c.text)), iotest.DataErrReader(strings.NewReader(c.text))} {
			got, err := io.ReadAll(r.Guard(from))
			if !errors.Is(err, c.want) || c.want == nil && string(got) != c.text || bytes.Contains(got, []byte(canary)) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
		}
	}
	if _, err := io.ReadAll(r.Guard(iotest.ErrReader(io.ErrClosedPipe))); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("an error on the way: %v", err)
	}
	if got, err := io.ReadAll((*Redactor)(nil).Guard(strings.NewReader(canary))); err != nil || string(got) != canary {
		t.Errorf("who knows nothing: %q, %v", got, err)
	}
}
