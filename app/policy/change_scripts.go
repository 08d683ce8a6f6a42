package policy

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"inspect/envs/spec"
)

// Texts is a file before and after a change; empty where there is none.
type Texts struct {
	Old, New string
}

// ScriptFiles are the paths of a change whose texts Change.Scripts needs.
func ScriptFiles(entries []Entry) (out []Entry) {
	for _, e := range entries {
		if d, ok := deciderOf(e.Path); ok && d.same != nil {
			out = append(out, e)
		}
	}
	return out
}

// replaced are the paths of a change that decide what a verify command runs, and
// decide otherwise after it. looks are those that may.
func replaced(c Change, verify []string) (out, looks []string) {
	commands := slices.Clone(verify)
	for _, p := range slices.Sorted(maps.Keys(c.Scripts)) {
		commands = append(commands, scriptsOf(c.Scripts[p].Old)...)
	}
	for _, e := range c.Entries {
		d, decides := deciderOf(e.Path)
		t, read := c.Scripts[e.Path]
		switch {
		case decides && d.same != nil && read && d.same(strings.ToLower(path.Base(e.Path)), t):
			// What else is in it is not about tests.
		case decides && d.same != nil && !read && d.asks(verify):
			out = append(out, show(e.Path)+" (it could not be compared: it is no plain file, or larger than is read)")
		case decides && d.asks(verify):
			out = append(out, show(e.Path))
		case namedBy(commands, e.Path) && !spec.IsTestOfLanguage(e.Path):
			out = append(out, show(e.Path))
		case decides:
			looks = append(looks, show(e.Path))
		}
	}
	return out, looks
}

// scriptsOf are the shell lines in a package.json.
func scriptsOf(text string) (out []string) {
	var f struct{ Scripts map[string]string }
	if json.Unmarshal([]byte(text), &f) != nil {
		return nil
	}
	for _, k := range slices.Sorted(maps.Keys(f.Scripts)) {
		out = append(out, f.Scripts[k])
	}
	return out
}
