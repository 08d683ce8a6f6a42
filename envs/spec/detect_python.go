package spec

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// venv is where a guessed setup installs Python packages: outside the
// workspace, which stays as the repository has it.
const venv = `"$HOME/venv/bin/`

// python recognises what pip can install, and plain files with tests.
func (d *detector) python() *guess {
	tests := d.pythonTests()
	marker := d.first("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile", "manage.py")
	if marker == "" && len(tests) > 0 {
		marker = tests[0]
	}
	if marker == "" {
		return nil
	}
	g := &guess{marker: marker, programs: []string{"python3"}}
	if d.read == nil {
		d.pythonByName(g)
		return g
	}
	p := d.pythonProject(g)
	var packages []string
	django := d.has("manage.py") && !p.pytest
	pytest := p.pytest
	if !pytest && !django {
		switch {
		case len(tests) == 0:
			g.gap("there are no tests: no file is named test_*.py. Say under verify in %s what proves a change", FileName)
			return g
		case !d.unittests(tests):
			pytest = true
			g.gap("the tests are written for pytest, which no file declares: its newest version is installed")
		case !d.entered(tests):
			pytest = true
			g.gap("the tests lie in directories that python3 -m unittest does not enter: the newest pytest is installed to run them")
		}
	}
	if pytest && !slices.ContainsFunc(p.packages, func(r string) bool { return pytestPackage.MatchString(r) }) {
		packages = append(packages, "pytest")
	}
	packages = append(packages, p.packages...)
	var args []string
	for _, f := range p.requirements {
		if text, ok := d.text(f); !ok || strings.ContainsFunc(comment.ReplaceAllString(text, ""), func(r rune) bool { return !unicode.IsSpace(r) }) {
			args = append(args, "-r "+f)
		}
	}
	if p.install != "" {
		args = append(args, "-e "+p.install)
	}
	for _, pkg := range packages {
		if strings.Trim(pkg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
			pkg = quote(pkg)
		}
		args = append(args, pkg)
	}
	interpreter := "python3"
	if len(args) > 0 {
		g.setup = []string{`python3 -m venv "$HOME/venv"`, venv + `pip" install --disable-pip-version-check --no-input ` + strings.Join(args, " ")}
		g.egress = []string{"pypi"}
		interpreter = venv + `python"`
	}
	switch {
	case pytest:
		g.tests(interpreter+" -m pytest", ReportExit)
	case django:
		g.tests(interpreter+" manage.py test", ReportExit)
	default:
		start := ""
		if dir := d.unittestStart(tests); dir != "." {
			start = " -s " + quote(dir)
		}
		g.tests(interpreter+" -m unittest discover"+start, ReportExit)
	}
	return g
}

// pythonByName is all that can be said without reading: requirements can be
// installed, and tests are run by pytest more often than not.
func (d *detector) pythonByName(g *guess) {
	interpreter := "python3"
	if files := d.requirements(); len(files) > 0 {
		g.setup = []string{`python3 -m venv "$HOME/venv"`, venv + `pip" install --disable-pip-version-check --no-input -r ` + strings.Join(files, " -r ") + " pytest"}
		g.egress = []string{"pypi"}
		interpreter = venv + `python"`
	}
	g.tests(interpreter+" -m pytest", ReportExit)
}

// requirements are the files that pip is given: what runs, and what tests need.
func (d *detector) requirements() (files []string) {
	if f := d.first("requirements.txt", "requirements/base.txt"); f != "" {
		files = append(files, f)
	}
	if f := d.first("requirements-test.txt", "requirements_test.txt", "requirements-tests.txt", "test-requirements.txt", "test_requirements.txt", "requirements/test.txt", "requirements/tests.txt", "requirements/testing.txt"); f != "" {
		files = append(files, f)
	}
	if f := d.first("requirements-dev.txt", "requirements_dev.txt", "dev-requirements.txt", "dev_requirements.txt", "requirements/dev.txt", "requirements/development.txt"); f != "" {
		files = append(files, f)
	}
	return files
}

// pythonProject is what the files tell about a project.
type pythonProject struct {
	requirements []string // files
	install      string   // what pip install -e gets, quoted: "." or "'.[test]'"; empty: nothing
	packages     []string // further ones
	pytest       bool     // declared, or set up
}

var (
	comment       = regexp.MustCompile(`(?m)^\s*#.*$`)
	pytestWord    = regexp.MustCompile(`\bpytest\b`)
	pytestPackage = regexp.MustCompile(`^pytest($|[^A-Za-z0-9._-])`)
	// A requirement that can be handed to pip as it stands.
	requirement = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,80}(\[[A-Za-z0-9,._-]{0,80}\])? ?([<>=!~]=?=? ?[A-Za-z0-9.*+!_-]{1,40}(, ?[<>=!~]=? ?[A-Za-z0-9.*+!_-]{1,40}){0,4})?$`)
)

func (d *detector) pythonProject(g *guess) pythonProject {
	p := pythonProject{requirements: d.requirements()}
	for _, f := range append(slices.Clone(p.requirements), "setup.py", "setup.cfg", "tox.ini", "Pipfile") {
		text, _ := d.text(f)
		p.pytest = p.pytest || pytestWord.MatchString(text)
	}
	p.pytest = p.pytest || d.first("pytest.ini", "conftest.py", "tests/conftest.py", "test/conftest.py") != ""
	text, _ := d.text("pyproject.toml")
	p.pytest = p.pytest || pytestWord.MatchString(text)
	toml := parseTOML(text)

	config, _ := d.text("setup.cfg")
	needs := d.has("setup.py") || strings.Contains(config, "[metadata]")
	if toml.hasTable("project") {
		needs = needs || len(toml.texts("project", "dependencies")) > 0 || slices.Contains(toml.texts("project", "dynamic"), "dependencies") ||
			d.dirs["src"] || toml.hasTable("project.optional-dependencies")
	}
	if toml.hasTable("tool.poetry") && !toml.hasTable("project") {
		deps := len(toml["tool.poetry.dependencies"])
		if _, ok := toml["tool.poetry.dependencies"]["python"]; ok {
			deps--
		}
		switch {
		case toml["tool.poetry"]["package-mode"] == false:
			if deps > 0 {
				g.gap("pyproject.toml is in Poetry's package-mode = false, which pip cannot install: write %s with a setup that does", FileName)
			}
		default:
			needs = needs || deps > 0 || d.dirs["src"]
		}
	}
	if needs {
		p.install = "."
		for _, extra := range []string{"test", "tests", "testing", "dev"} {
			if _, ok := toml["project.optional-dependencies"][extra]; ok {
				p.install = quote(".[" + extra + "]")
				break
			}
		}
	}
	for _, group := range []string{"test", "tests", "testing", "dev"} {
		for _, r := range toml.texts("dependency-groups", group) {
			if requirement.MatchString(r) && len(p.packages) < 40 && !slices.Contains(p.packages, r) {
				p.packages = append(p.packages, r)
			}
		}
	}
	if lock := d.first("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock"); lock != "" && (needs || lock == "Pipfile.lock") {
		if lock == "Pipfile.lock" && len(p.requirements) == 0 && !needs {
			g.gap("Pipfile is read by pipenv only: write %s with a setup that installs what it names", FileName)
		} else {
			g.gap("%s is not read: pip installs the newest versions that are allowed", lock)
		}
	}
	return p
}

// pythonTests are the files with tests, by their names.
func (d *detector) pythonTests() (files []string) {
	isTest := func(n string) bool {
		base := path.Base(n)
		return strings.HasSuffix(base, ".py") && (strings.HasPrefix(base, "test_") || strings.HasSuffix(base, "_test.py"))
	}
	for _, n := range d.sorted {
		if !strings.Contains(n, "/") && isTest(n) {
			files = append(files, n)
		}
	}
	return append(files, d.below(isTest)...)
}

var (
	testFunction = regexp.MustCompile(`(?m)^(async )?def test_`)
	pytestImport = regexp.MustCompile(`(?m)^\s*(import|from) pytest\b`)
)

// unittests says whether the standard library's runner runs all of these tests.
// It passes over functions and plain classes without a word.
func (d *detector) unittests(files []string) bool {
	const enough = 20
	seen := false
	for _, f := range files[:min(len(files), enough)] {
		text, ok := d.text(f)
		switch {
		case !ok:
		case pytestImport.MatchString(text) || testFunction.MatchString(text) || !strings.HasPrefix(path.Base(f), "test"):
			return false
		case strings.Contains(text, "unittest"):
			seen = true
		}
	}
	return seen
}

// unittestStart is the directory where discovery begins: the root, or the one
// that all tests lie in if that is in no package.
func (d *detector) unittestStart(tests []string) string {
	dir := path.Dir(tests[0])
	for _, t := range tests[1:] {
		for dir != "." && !strings.HasPrefix(t, dir+"/") {
			dir = path.Dir(dir)
		}
	}
	if d.packaged(dir, ".") {
		return "."
	}
	return dir
}

// entered says whether discovery finds all tests: below its start it enters
// packages only.
func (d *detector) entered(tests []string) bool {
	start := d.unittestStart(tests)
	return !slices.ContainsFunc(tests, func(t string) bool { return !d.packaged(path.Dir(t), start) })
}

// packaged says whether dir and all above it, up to top, are packages.
func (d *detector) packaged(dir, top string) bool {
	for ; dir != top && dir != "."; dir = path.Dir(dir) {
		if !d.has(dir + "/__init__.py") {
			return false
		}
	}
	return true
}
