package spec

import (
	"fmt"
	"strings"
)

// Problem is one thing wrong with a .inspect.yml, in words for its author.
type Problem struct {
	Line int    // 1-based; 0 when it concerns the whole file
	Key  string // dotted path, "verify[0].report"
	Want string // what was expected, or why the key is refused
	Got  string // what stood there, cut; empty where it adds nothing
}

// String is one sentence: line, key, what was expected, what stood there.
func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	b.WriteString(p.Want)
	if p.Got != "" {
		fmt.Fprintf(&b, ", but found %s", p.Got)
	}
	return b.String()
}

// Problems is a list that reads as an error.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = FileName + ": " + p.String()
	}
	return strings.Join(lines, "\n")
}
