package evidence

import (
	"bytes"

	"golang.org/x/tools/cover"
)

// Bounds of a profile. Its blocks may lie over one another.
const (
	maxBlockLines = 20_000         // of one block
	maxBlocks     = 2 * maxCovered // lines of all of them
)

// readGoCover reads a profile of `go test -coverprofile`.
func readGoCover(name string, body []byte, p *profile) {
	all, err := cover.ParseProfilesFromReader(bytes.NewReader(body))
	if err != nil {
		p.broken("%s is not a profile of go test", name)
		return
	}
	lines := 0
	for _, f := range all {
		for _, b := range f.Blocks {
			long := b.EndLine - b.StartLine
			if long > maxBlockLines {
				p.broken("%s has a block that is too long", name)
				return
			}
			if lines += max(long, 0) + 1; lines > maxBlocks {
				p.broken("%s has too many blocks", name)
				return
			}
			for i := range long + 1 {
				p.mark(f.FileName, b.StartLine+i, b.Count > 0)
			}
		}
	}
}
