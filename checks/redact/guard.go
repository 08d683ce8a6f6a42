package redact

import (
	"errors"
	"io"
)

// ErrKnown ends the stream of a Guard.
var ErrKnown = errors.New("the value of a secret stands in it")

// guardBlock is how much a guard looks at in one go, in bytes.
const guardBlock = 256 << 10

type guard struct {
	r      *Redactor
	from   io.Reader
	window []byte // what was looked at last
	rest   []byte // the part of it that was not handed on yet
	err    error
}

// Guard passes a stream on as it is, and fails with ErrKnown when it comes to
// an exact value r knows: for content whose digest is fixed. What stood before
// the value may have been handed on.
func (r *Redactor) Guard(from io.Reader) io.Reader { return &guard{r: r, from: from} }

func (g *guard) Read(p []byte) (int, error) {
	for len(g.rest) == 0 {
		if g.err != nil {
			return 0, g.err
		}
		keep := min(len(g.window), g.r.longest()) // a value may have begun there
		block := make([]byte, keep+guardBlock)
		copy(block, g.window[len(g.window)-keep:])
		n, err := io.ReadFull(g.from, block[keep:])
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		g.window, g.err = block[:keep+n], err
		if text := string(g.window); g.r.Known(text) != text {
			g.err = ErrKnown
			return 0, g.err
		}
		g.rest = g.window[keep:]
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}
