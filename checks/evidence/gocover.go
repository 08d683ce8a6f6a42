package evidence

import (
	"bytes"

	"golang.org/x/tools/cover"
)

// maxBlockLines is the longest block of a profile that counts.
const maxBlockLines = 20_000

// readGoCover reads a profile of `go test -coverprofile`.
func readGoCover(name string, body []byte, p *profile) {
	all, err := cover.ParseProfilesFromReader(bytes.NewReader(body))
	if err != nil {
		p.broken("%s is not a profile of go test", name)
		return
	}
	for _, f := range all {
		for _, b := range f.Blocks {
			if b.EndLine-b.StartLine > maxBlockLines {
				p.broken("%s has a block that is too long", name)
				return
			}
			for n := b.StartLine; n <= b.EndLine; n++ {
				p.mark(f.FileName, n, b.Count > 0)
			}
		}
	}
}
