package spec

import (
	"path"
	"slices"
	"strings"
)

// golang recognises a module or a workspace in the root.
func (d *detector) golang() *guess {
	g := &guess{marker: d.first("go.work", "go.mod"), programs: []string{"go"}}
	if g.marker == "" {
		nested := d.below(func(n string) bool { return path.Base(n) == "go.mod" })
		if len(nested) == 0 {
			return nil
		}
		g.marker, g.aside = nested[0], true
		dir := path.Dir(nested[0])
		if len(nested) > 1 {
			g.gap("there are %d Go modules and none in the root%s: say in %s which to build and test", len(nested), among(shown(nested)), FileName)
		} else {
			g.gap("%s lies below the root: say in %s how to build and test it, for example \"cd %s && go test ./...\"", show(nested[0]), FileName, show(dir))
		}
		return g
	}
	patterns, modules := "./...", []string{"."}
	if g.marker == "go.work" {
		if text, ok := d.text("go.work"); ok {
			patterns, modules = d.workspace(g, text)
			if modules == nil {
				return g
			}
		} else {
			// Go itself knows which modules are in the workspace.
			patterns = "$(go list -m -f '{{.Dir}}/...')"
		}
	}
	vendored := d.has("vendor/modules.txt")
	var sums, required bool
	for _, m := range modules {
		sums = sums || d.has(path.Join(m, "go.sum"))
		text, _ := d.text(path.Join(m, "go.mod"))
		required = required || len(directives(text, "require")) > 0
		for _, r := range directives(text, "replace") {
			_, to, _ := strings.Cut(r, "=>")
			if f := strings.Fields(to); len(f) > 0 && outside(m, strings.Trim(f[0], `"`)) {
				g.gap("%s replaces a module by %s, which lies outside the repository and will be missing", show(path.Join(m, "go.mod")), show(f[0]))
			}
		}
	}
	switch {
	case vendored:
	case sums || d.has("go.work.sum"):
		g.setup, g.egress = append(g.setup, "go mod download"), []string{"go"}
	case required:
		g.gap("go.mod requires modules but there is no go.sum: run go mod tidy and commit it")
	}
	if g.marker == "go.mod" {
		if nested := d.below(func(n string) bool { return path.Base(n) == "go.mod" }); len(nested) > 0 {
			g.gap("modules below the root are not built or tested%s: add their commands to %s if they must pass", among(shown(nested)), FileName)
		}
	}
	// The second line compiles what the tests are made of, which the snapshot then
	// has; a test that does not compile is for the agent to mend.
	g.setup = append(g.setup, "go build "+patterns, "go test -run '^$' "+patterns+" || true")
	g.tests("go test -json "+patterns, ReportGoTest)
	return g
}

// workspace reads the modules of a go.work.
func (d *detector) workspace(g *guess, text string) (patterns string, modules []string) {
	var words []string
	for _, u := range directives(text, "use") {
		dir := path.Clean(strings.Trim(u, "\"`"))
		switch {
		case outside(".", dir):
			g.gap("go.work uses %s, which lies outside the repository and will be missing", show(u))
		case len(modules) < 50:
			word := "./" + dir + "/..."
			if dir == "." {
				word = "./..."
			}
			if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") != "" {
				word = quote(word)
			}
			modules, words = append(modules, dir), append(words, word)
		}
	}
	if modules == nil {
		g.gap("go.work uses no module of the repository: say in %s what to build and test", FileName)
	}
	return strings.Join(words, " "), modules
}

// outside says whether a path named in directory dir leads out of the repository.
func outside(dir, to string) bool {
	switch {
	case strings.HasPrefix(to, "/"):
		return true
	case to != "." && to != ".." && !strings.HasPrefix(to, "./") && !strings.HasPrefix(to, "../"):
		return false // another module's path, or a directory below
	}
	p := path.Join(dir, to)
	return p == ".." || strings.HasPrefix(p, "../")
}

// directives returns what follows a word in a go.mod or go.work, alone or in
// brackets, one entry a line.
func directives(text, word string) (out []string) {
	open := false
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		rest, ours := strings.CutPrefix(line, word)
		switch {
		case line == "":
		case open && line == ")":
			open = false
		case open:
			out = append(out, line)
		case ours && strings.TrimSpace(rest) == "(":
			open = true
		case ours && strings.HasPrefix(rest, " "):
			out = append(out, strings.TrimSpace(rest))
		}
	}
	return out
}

func shown(names []string) []string {
	names = slices.Clone(names[:min(len(names), 50)])
	for i, n := range names {
		names[i] = show(n)
	}
	return names
}
