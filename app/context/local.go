package context

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"inspect/envs/wire"
)

// LocalFacts are what is known of a request that somebody makes on a clone of
// their own: there is no issue, nobody else wrote anything, and the result is a
// branch in that clone.
type LocalFacts struct {
	Repository string // what it is called, for people
	Branch     string // that the commit is the head of, for people
	Commit     string
	Request    string
	Notes      []string // what of the clone is not there, a sentence each
	Place
}

// BuildLocal writes the prompt of a local request. The same facts give the same
// prompt.
func BuildLocal(f LocalFacts) Built {
	var b strings.Builder
	fmt.Fprintf(&b, "You work on the repository %s, checked out in /workspace on branch inspect/work at commit %s of %s.\n",
		line(f.Repository, 200), line(f.Commit, 64), line(f.Branch, 200))
	f.Place.Local = true
	b.WriteString(rules(f.Place))
	if len(f.Notes) > 0 {
		b.WriteString("\n# What is not here\n\n")
		for _, n := range f.Notes {
			fmt.Fprintf(&b, "- %s\n", line(n, 500))
		}
	}
	b.WriteString(wire.InstructionsMark)
	fmt.Fprintf(&b, "\n# The request\n\nWhoever the repository belongs to asks:\n\n%s\n", strings.TrimRight(clean(f.Request, MaxRequest), "\n"))
	prompt := b.String()
	sum := sha256.Sum256([]byte(prompt))
	return Built{Prompt: prompt, Digest: hex.EncodeToString(sum[:])}
}
