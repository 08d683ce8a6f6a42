package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Detection is an environment guessed from a repository's files.
type Detection struct {
	// OK says that Spec can be used: it has something to verify. Otherwise Gaps
	// say what is missing and a .inspect.yml must.
	OK     bool
	Spec   Spec
	Source string // what it was guessed from, for people: "detected from go.mod"
	// Gaps are what was seen and not understood or not provided for, one
	// sentence each, without a full stop. An environment with gaps may still do.
	Gaps []string
	// Programs are what the commands begin with and the machine must have: "go".
	Programs []string
}

// Bounds of a detection. The files are as hostile as any of the repository's.
const (
	maxNames     = 500_000 // looked at
	maxReads     = 80      // files
	maxReadBytes = 2 << 20 // of one; a longer one counts as unreadable
	maxYAMLBytes = 256 << 10
	maxGaps      = 12
	maxDepth     = 6 // directories above a file that is still looked at
)

// Detect guesses an environment from nothing but the names of the files in a
// repository's root. ok is false if nothing is recognised; the caller then asks
// for a .inspect.yml.
func Detect(rootFiles []string) (s Spec, source string, ok bool) {
	d := DetectFiles(rootFiles, nil)
	return d.Spec, d.Source, d.OK
}

// DetectFiles guesses an environment from a repository's files: names are their
// paths, with slashes, and read returns the content of one. With a nil read
// only the names are known, and what a file would tell is left open. The spec's
// egress is what its setup needs to fetch dependencies and is marked as guessed.
func DetectFiles(names []string, read func(name string) ([]byte, bool)) Detection {
	d := &detector{read: read, names: map[string]bool{}, dirs: map[string]bool{}}
	for _, n := range names[:min(len(names), maxNames)] {
		if strings.Count(n, "/") > maxDepth {
			continue
		}
		d.names[n] = true
		for dir := path.Dir(n); dir != "." && dir != "/" && !d.dirs[dir]; dir = path.Dir(dir) {
			d.dirs[dir] = true
		}
	}
	for n := range d.names {
		d.sorted = append(d.sorted, n)
	}
	slices.Sort(d.sorted)

	var out Detection
	var gaps, aside []string
	for _, language := range []func() *guess{d.golang, d.rust, d.node, d.python, d.makefile} {
		g := language()
		switch {
		case g == nil:
		case g.aside:
			aside = append(aside, g.gaps...)
		case g.verify == nil || out.OK && g.weak:
			if !out.OK {
				gaps = append(gaps, g.gaps...)
			}
		case out.OK:
			gaps = append(gaps, fmt.Sprintf("%s is there too, but only %s was used: add its commands to %s if they must pass", show(g.marker), strings.TrimPrefix(out.Source, "detected from "), FileName))
		default:
			out = Detection{OK: true, Spec: g.spec(), Source: "detected from " + show(g.marker), Programs: g.programs}
			// What the other languages lack is no matter any more.
			gaps = slices.Clone(g.gaps)
		}
	}
	gaps = append(append(gaps, aside...), d.services()...)
	gaps = append(gaps, d.contents()...)
	if !out.OK {
		gaps = append(gaps, d.unknown()...)
		if len(gaps) == 0 {
			gaps = []string{fmt.Sprintf("nothing in the root says how to build and test: write %s with setup and verify", FileName)}
		}
	}
	if more := len(gaps) - maxGaps; more > 0 {
		gaps = append(gaps[:maxGaps-1], fmt.Sprintf("%d more things are not provided for", more+1))
	}
	out.Gaps = gaps
	return out
}

// guess is what one language makes of the files. Without verify it is only
// gaps.
type guess struct {
	marker   string // the file it was recognised by
	setup    []string
	egress   []string
	verify   []Verify
	gaps     []string
	programs []string
	weak     bool // not worth a word beside another language
	aside    bool // only gaps, and those are worth a word beside any language
}

func (g *guess) gap(format string, args ...any) {
	g.gaps = append(g.gaps, fmt.Sprintf(format, args...))
}

func (g *guess) tests(line, report string) {
	g.verify = []Verify{{Name: "test", Run: line, Report: report}}
}

func (g *guess) spec() Spec {
	s := Default()
	s.Setup, s.Verify, s.Egress = Steps(g.setup...), g.verify, g.egress
	s.EgressGuessed = len(g.egress) > 0
	return s
}

type detector struct {
	read   func(string) ([]byte, bool)
	reads  int
	names  map[string]bool
	dirs   map[string]bool
	sorted []string
}

func (d *detector) has(name string) bool { return d.names[name] }

// first is the first of names that is there, or nothing.
func (d *detector) first(names ...string) string {
	for _, n := range names {
		if d.names[n] {
			return n
		}
	}
	return ""
}

// text is a file's content. Not ok: it is not there, too long, or cannot be read.
func (d *detector) text(name string) (string, bool) {
	if d.read == nil || !d.names[name] || d.reads >= maxReads {
		return "", false
	}
	d.reads++
	b, ok := d.read(name)
	if !ok || len(b) > maxReadBytes {
		return "", false
	}
	return strings.TrimPrefix(strings.ToValidUTF8(string(b), "\uFFFD"), "\uFEFF"), true
}

// notOurs are directories whose files say nothing about the repository itself.
var notOurs = []string{"node_modules", "vendor", "third_party", "testdata", "fixtures", "examples", "example", "site-packages", "dist"}

// below are the names outside the root, and outside of what others brought, for
// which ok holds.
func (d *detector) below(ok func(name string) bool) (out []string) {
	for _, n := range d.sorted {
		if strings.Contains(n, "/") && ok(n) && !slices.ContainsFunc(strings.Split(path.Dir(n), "/"), func(part string) bool {
			return slices.Contains(notOurs, part) || strings.HasPrefix(part, ".") || strings.HasPrefix(part, "_")
		}) {
			out = append(out, n)
		}
	}
	return out
}

// makefile recognises a Makefile by its target "test".
func (d *detector) makefile() *guess {
	name := d.first("GNUmakefile", "makefile", "Makefile")
	if name == "" {
		return nil
	}
	g := &guess{marker: name, programs: []string{"make"}, weak: true}
	if text, ok := d.text(name); ok && !hasTarget(text, "test") {
		g.gap("%s has no target test: say under verify in %s what proves a change", name, FileName)
		return g
	}
	g.tests("make test", ReportExit)
	return g
}

// hasTarget says whether a Makefile has a rule for a target.
func hasTarget(text, target string) bool {
	for line := range strings.Lines(text) {
		targets, rest, rule := strings.Cut(line, ":")
		if rule && !strings.HasPrefix(rest, "=") && !strings.HasPrefix(line, "\t") && slices.Contains(strings.Fields(targets), target) {
			return true
		}
	}
	return false
}

// unknown names what a person would recognise and the detection does not.
func (d *detector) unknown() (gaps []string) {
	for _, k := range []struct{ name, language string }{
		{"pom.xml", "Java with Maven"}, {"build.gradle", "Gradle"}, {"build.gradle.kts", "Gradle"}, {"Gemfile", "Ruby"},
		{"composer.json", "PHP"}, {"mix.exs", "Elixir"}, {"CMakeLists.txt", "CMake"}, {"Package.swift", "Swift"},
		{"deno.json", "Deno"}, {"build.sbt", "Scala"}, {"stack.yaml", "Haskell"}, {"pubspec.yaml", "Dart"}, {"meson.build", "Meson"},
	} {
		if d.has(k.name) {
			gaps = append(gaps, fmt.Sprintf("%s means %s, which is not detected: write %s with setup and verify", k.name, k.language, FileName))
		}
	}
	for _, n := range d.sorted {
		if ext := path.Ext(n); !strings.Contains(n, "/") && (ext == ".sln" || ext == ".csproj") {
			gaps = append(gaps, fmt.Sprintf("%s means .NET, which is not detected: write %s with setup and verify", show(n), FileName))
			break
		}
	}
	lower := d.below(func(n string) bool {
		return slices.Contains([]string{"package.json", "pyproject.toml", "setup.py", "Cargo.toml"}, path.Base(n)) && !d.has(path.Base(n))
	})
	if len(lower) > 0 {
		gaps = append(gaps, fmt.Sprintf("%s lies below the root: say in %s how to build and test it", show(lower[0]), FileName))
	}
	return gaps
}

// contents says which files are not what they seem in a plain clone.
func (d *detector) contents() (gaps []string) {
	if d.has(".gitmodules") {
		which := ""
		if text, ok := d.text(".gitmodules"); ok {
			var paths []string
			for line := range strings.Lines(text) {
				if key, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == "path" {
					paths = append(paths, show(strings.TrimSpace(value)))
				}
			}
			which = among(paths)
		}
		gaps = append(gaps, "submodules are checked out only where they lie on the same host and may be read"+which)
	}
	if d.has(".gitattributes") {
		text, _ := d.text(".gitattributes")
		var patterns []string
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 1 && !strings.HasPrefix(f[0], "#") && slices.Contains(f[1:], "filter=lfs") {
				patterns = append(patterns, show(f[0]))
			}
		}
		if len(patterns) > 0 {
			gaps = append(gaps, "files of Git LFS are only pointers: their content is not fetched"+among(patterns))
		}
	}
	return gaps
}

// among lists the first few in brackets.
func among(names []string) string {
	const most = 3
	if len(names) == 0 {
		return ""
	}
	shown := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return " (" + shown + ")"
}

// show makes text from a file fit for a sentence: short, printable, one line.
func show(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	return cut(s, 80)
}

// quote makes one word of a shell line.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
