package policy

import (
	"encoding/json"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"inspect/envs/spec"
)

// Texts is a file before and after a change; empty where there is none.
type Texts struct {
	Old, New string
}

// deciders are the files that say what a program of a verify command runs, by
// the file's name in lower case.
var deciders = map[string][]string{
	"package.json": {"npm", "npx", "yarn", "pnpm", "bun"},
	"makefile":     {"make", "gmake"}, "gnumakefile": {"make", "gmake"},
	"justfile": {"just"}, ".justfile": {"just"},
	"taskfile.yml": {"task"}, "taskfile.yaml": {"task"},
	"rakefile": {"rake"}, "tox.ini": {"tox"}, "noxfile.py": {"nox"},
	"composer.json": {"composer"}, "deno.json": {"deno"},
}

// scripted are the members of such files in JSON that do. Of another file all
// does.
var scripted = map[string][]string{
	"package.json":  {"scripts", "jest", "mocha", "ava", "vitest", "nyc", "c8", "workspaces", "packageManager"},
	"composer.json": {"scripts"},
	"deno.json":     {"tasks", "test"},
}

// ScriptFiles are the paths of a change whose texts Change.Scripts needs.
func ScriptFiles(entries []Entry) (out []Entry) {
	for _, e := range entries {
		if _, ok := scripted[strings.ToLower(path.Base(e.Path))]; ok {
			out = append(out, e)
		}
	}
	return out
}

// replaced are the paths of a change that decide what a verify command runs, and
// decide otherwise after it. The tests themselves are not among them.
func replaced(c Change, verify []string) []string {
	commands := slices.Clone(verify)
	for _, p := range slices.Sorted(maps.Keys(c.Scripts)) {
		commands = append(commands, scriptsOf(c.Scripts[p].Old)...)
	}
	var out []string
	for _, e := range c.Entries {
		base := strings.ToLower(path.Base(e.Path))
		programs := deciders[base]
		if path.Ext(base) == ".mk" {
			programs = deciders["makefile"]
		}
		switch {
		case slices.ContainsFunc(programs, func(p string) bool { return namedBy(verify, p) }):
			if t, ok := c.Scripts[e.Path]; !ok || !sameScripts(base, t) {
				out = append(out, show(e.Path))
			}
		case namedBy(commands, e.Path) && !spec.IsTestOfLanguage(e.Path):
			out = append(out, show(e.Path))
		}
	}
	return out
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

// sameScripts says whether two versions of a file in JSON have the same of what
// is scripted. What cannot be read is not the same.
func sameScripts(base string, t Texts) bool {
	var was, is map[string]any
	if json.Unmarshal([]byte(t.Old), &was) != nil || json.Unmarshal([]byte(t.New), &is) != nil {
		return false
	}
	return !slices.ContainsFunc(scripted[base], func(k string) bool { return !reflect.DeepEqual(was[k], is[k]) })
}
