package egress

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"io"
	"slices"
	"strings"

	"inspect/checks/redact"
)

// minScrubbed is the shortest spelling that is looked for, in bytes: shorter
// ones stand in other content by chance.
const minScrubbed = 8

// scrubber puts asterisks, as many as there were letters, in the place of every
// spelling of a secret: what a server tells of a request must not tell it.
type scrubber [][]byte

// newScrubber is for a header's value. Of "Basic …" it knows the words behind
// the base64 too.
func newScrubber(value string) scrubber {
	secrets := []string{value}
	if scheme, rest, ok := strings.Cut(value, " "); ok {
		secrets = append(secrets, rest)
		if plain, err := base64.StdEncoding.DecodeString(rest); err == nil && strings.EqualFold(scheme, "Basic") {
			_, password, _ := strings.Cut(string(plain), ":")
			secrets = append(secrets, string(plain), password)
		}
	}
	var s scrubber
	for _, secret := range secrets {
		inJSON := strings.ReplaceAll(secret, "/", `\/`) // as some programs write it there
		for _, form := range append(redact.Forms(secret), inJSON) {
			if len(form) >= minScrubbed {
				s = append(s, []byte(form))
			}
		}
	}
	slices.SortFunc(s, func(a, b []byte) int { return cmp.Or(cmp.Compare(len(b), len(a)), bytes.Compare(a, b)) })
	return slices.CompactFunc(s, bytes.Equal)
}

func (s scrubber) clean(b []byte) {
	for _, needle := range s {
		for at := 0; ; {
			i := bytes.Index(b[at:], needle)
			if i < 0 {
				break
			}
			at += i
			for j := range needle {
				b[at+j] = '*'
			}
		}
	}
}

func (s scrubber) text(t string) string {
	b := []byte(t)
	s.clean(b)
	return string(b)
}

// reader is r without the secret. It is behind r by less than a spelling.
func (s scrubber) reader(r io.Reader) io.Reader {
	if len(s) == 0 {
		return r
	}
	return &scrubbed{s: s, r: r}
}

type scrubbed struct {
	s   scrubber
	r   io.Reader
	buf []byte // cleaned
	err error
}

func (c *scrubbed) Read(p []byte) (int, error) {
	keep := len(c.s[0]) - 1 // they may be the beginning of a spelling
	for c.err == nil && len(c.buf) <= keep {
		n := len(c.buf)
		c.buf = slices.Grow(c.buf, 32<<10)[:n+32<<10]
		var got int
		got, c.err = c.r.Read(c.buf[n:])
		c.buf = c.buf[:n+got]
		c.s.clean(c.buf)
	}
	ready := len(c.buf)
	if c.err == nil {
		ready -= keep
	}
	if ready == 0 {
		return 0, c.err
	}
	n := copy(p, c.buf[:ready])
	c.buf = append(c.buf[:0], c.buf[n:]...)
	return n, nil
}
