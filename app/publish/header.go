package publish

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ResultRef is the one ref a bundle may hold.
const ResultRef = "refs/inspect/result"

// Bounds of a bundle's header.
const (
	maxHeaderLine    = 16 << 10 // bytes; a prerequisite line carries a commit's subject
	maxPrerequisites = 64       // boundary commits; a result with merges has some
)

const signatureV2 = "# v2 git bundle\n"

// errHeader is the error of a bundle whose header we do not accept.
var errHeader = errors.New("the bundle's header is not acceptable")

func headerError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errHeader, fmt.Sprintf(format, args...))
}

// Header is what stands before the pack of a bundle.
type Header struct {
	Tip           string   // commit at ResultRef
	Prerequisites []string // commits the pack builds upon, without duplicates
}

// ReadHeader reads the header of a git bundle and nothing beyond it: what is
// left in r is the pack. Accepted is version 2 with exactly one ref,
// refs/inspect/result, and at least one prerequisite; everything else is
// refused. It is our own parser because git guesses what a bundle file is and
// can be led to read another repository instead.
func ReadHeader(r *bufio.Reader) (Header, error) {
	var h Header
	first, err := headerLine(r)
	if err != nil {
		return h, err
	}
	switch {
	case string(first) == signatureV2:
	case bytes.HasPrefix(first, []byte("# v3 git bundle")):
		return h, headerError("it is of version 3, only version 2 is read")
	default:
		return h, headerError("it does not begin as a git bundle of version 2")
	}
	for {
		line, err := headerLine(r)
		if err != nil {
			return Header{}, err
		}
		if len(line) == 1 { // the empty line ends the header
			break
		}
		text := string(line[:len(line)-1])
		if rest, ok := strings.CutPrefix(text, "-"); ok {
			if h.Tip != "" {
				return Header{}, headerError("a prerequisite stands after the ref")
			}
			id, _, _ := strings.Cut(rest, " ") // what follows is the commit's subject
			if !isSHA(id) {
				return Header{}, headerError("a prerequisite is not a commit id")
			}
			if !slices.Contains(h.Prerequisites, id) {
				h.Prerequisites = append(h.Prerequisites, id)
			}
			if len(h.Prerequisites) > maxPrerequisites {
				return Header{}, headerError("it has more than %d prerequisites", maxPrerequisites)
			}
			continue
		}
		id, ref, ok := strings.Cut(text, " ")
		switch {
		case !ok || !isSHA(id):
			return Header{}, headerError("a line is neither a prerequisite nor a ref")
		case ref != ResultRef:
			return Header{}, headerError("it holds the ref %.80q, only %s is read", ref, ResultRef)
		case h.Tip != "":
			return Header{}, headerError("it holds more than one ref")
		}
		h.Tip = id
	}
	if h.Tip == "" {
		return Header{}, headerError("it holds no ref")
	}
	if len(h.Prerequisites) == 0 {
		return Header{}, headerError("it names no commit it builds upon")
	}
	return h, nil
}

// headerLine reads one line with its end, of bounded length.
func headerLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		b, err := r.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil, headerError("it ends in the middle")
		}
		if err != nil {
			return nil, fmt.Errorf("read the bundle: %w", err)
		}
		if b == 0 {
			return nil, headerError("it holds a NUL byte")
		}
		line = append(line, b)
		if b == '\n' {
			return line, nil
		}
		if len(line) >= maxHeaderLine {
			return nil, headerError("a line is longer than %d bytes", maxHeaderLine)
		}
	}
}

// isSHA reports a full lower-case SHA-1 object id that is not the null id.
func isSHA(s string) bool {
	if len(s) != 40 {
		return false
	}
	null := true
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
		null = null && c == '0'
	}
	return !null
}
