package spec

import "slices"

// Detect guesses an environment from the names of the files in a repository's
// root, for repositories without a .inspect.yml. source names what it was
// guessed from, for people. ok is false if nothing is recognised; the caller
// then asks for a .inspect.yml.
//
// A guessed environment has no network in setup, so what a package manager
// would have to download must be in the repository or on the node.
func Detect(rootFiles []string) (s Spec, source string, ok bool) {
	s = Default()
	has := func(name string) bool { return slices.Contains(rootFiles, name) }
	switch {
	case has("go.mod"):
		s.Setup = []string{"go build ./..."}
		s.Verify = []Verify{{Name: "test", Run: "go test -json ./...", Report: ReportGoTest}}
		return s, "detected from go.mod", true
	case has("Cargo.toml"):
		s.Verify = []Verify{{Name: "test", Run: "cargo test --offline", Report: ReportExit}}
		return s, "detected from Cargo.toml", true
	case has("package.json"):
		s.Verify = []Verify{{Name: "test", Run: "npm test", Report: ReportExit}}
		return s, "detected from package.json", true
	case has("pyproject.toml"):
		s.Verify = []Verify{{Name: "test", Run: "python3 -m pytest", Report: ReportExit}}
		return s, "detected from pyproject.toml", true
	case has("Makefile"):
		s.Verify = []Verify{{Name: "test", Run: "make test", Report: ReportExit}}
		return s, "detected from Makefile", true
	}
	return Spec{}, "", false
}
