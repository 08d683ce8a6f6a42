package harness

import (
	"strings"

	"inspect/envs/wire"
)

// Instructions are a repository's own words to agents.
type Instructions struct {
	Name string // of the file
	Text string
}

// Instruct puts a repository's instructions into the prompt the control plane
// wrote, at its wire.InstructionsMark. The first mark is ours; whatever else
// looks like one is somebody's text and stays.
func Instruct(prompt string, files []Instructions) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, f := range files {
		if f.Text == "" || seen[f.Text] {
			continue // one of them is often a copy of the other
		}
		seen[f.Text] = true
		b.WriteString("\n# The repository's instructions (" + f.Name + ")\n\n" + f.Text + "\n")
	}
	return strings.Replace(prompt, wire.InstructionsMark, b.String(), 1)
}

// Words to an agent whose means are nearly used up.
const (
	WrapUpTime   = "80 % of your time is over. Finish what you are at, commit it, and stop: what is committed counts even if you are cut off."
	WrapUpBudget = "80 % of the budget for model calls is used up. Finish what you are at, commit it, and stop: what is committed counts even if you are cut off."
)
