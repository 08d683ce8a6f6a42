package policy

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// decider is a kind of file that says what the programs of a verify command run,
// or how. The tests themselves are none.
type decider struct {
	names    []string // doublestar's, of the file's name in lower case
	programs []string // that read it; none: it is only worth a second look
	// exact: only where a verify command names such a program. Else also where one
	// runs something that may start it: make, npm, a script.
	exact bool
	// same says whether two versions decide alike; nil: any other byte decides.
	same func(base string, t Texts) bool
}

var (
	npm    = []string{"npm", "npx", "yarn", "pnpm", "bun", "bunx", "node"}
	pytest = []string{"pytest", "py.test", "python", "python3", "tox", "nox"}
	maven  = []string{"mvn", "mvnw", "mvnd"}
	gradle = []string{"gradle", "gradlew"}
	cargo  = []string{"cargo", "cross"}
)

// deciders are looked through in this order. A file whose every change would ask a
// person although most are harmless, and whose form does not let us see which are
// not, is only named as a risk: the third column of verification runs the base's
// tests, and what fewer tests run is seen in any case.
var deciders = []decider{
	{names: []string{"makefile", "gnumakefile", "*.mk"}, programs: []string{"make", "gmake"}, exact: true},
	{names: []string{"justfile", ".justfile"}, programs: []string{"just"}, exact: true},
	{names: []string{"taskfile.yml", "taskfile.yaml"}, programs: []string{"task"}, exact: true},
	{names: []string{"rakefile"}, programs: []string{"rake", "bundle"}, exact: true},
	{names: []string{"noxfile.py"}, programs: []string{"nox"}, exact: true},

	{names: []string{"package.json"}, programs: npm, same: sameMembers("scripts", "jest", "mocha", "ava", "vitest", "nyc", "c8", "workspaces", "packageManager")},
	{names: []string{"deno.json"}, programs: []string{"deno"}, same: sameMembers("tasks", "test")},
	{names: []string{"{jest,vitest,karma,playwright,cypress,mocha,ava,wdio}.{config,conf,setup}.*", ".mocharc*", ".npmrc", ".yarnrc*", ".pnpmfile.cjs", "turbo.json", "nx.json", "lerna.json"}, programs: npm},
	{names: []string{"vite.config.*", "babel.config.*", ".babelrc*", "tsconfig*.json"}},

	{names: []string{"pyproject.toml"}, programs: pytest, same: sameTables("tool.pytest", "tool.tox", "tool.nox", "tool.coverage", "tool.hatch.envs", "tool.pdm.scripts", "tool.poe", "tool.taskipy", "tool.pixi.tasks", "tool.rye.scripts", "tool.poetry.plugins", "project.entry-points")},
	{names: []string{"setup.cfg"}, programs: pytest, same: sameSections("tool:pytest", "pytest", "tox", "testenv", "coverage", "aliases", "options.entry_points")},
	{names: []string{"pytest.ini", "tox.ini", "sitecustomize.py", "usercustomize.py"}, programs: pytest},
	{names: []string{"conftest.py", "setup.py", ".coveragerc"}},

	{names: []string{"cargo.toml"}, programs: cargo, same: sameTables("lib", "bin", "test", "bench", "example", "profile", "features.default", "package.autotests", "package.autobins", "package.build", "workspace.members", "workspace.exclude", "workspace.default-members")},
	{names: []string{".cargo/*", ".config/nextest.toml"}, programs: cargo},
	{names: []string{"build.rs"}},

	{names: []string{"pom.xml"}, programs: maven, same: samePOM},
	{names: []string{".mvn/**"}, programs: maven},
	{names: []string{"{build,settings}.gradle{,.kts}"}, programs: gradle, same: sameGradle},
	{names: []string{"gradle.properties", "gradle/wrapper/*"}, programs: gradle},

	{names: []string{"go.work"}, programs: []string{"go", "gotestsum"}},
	{names: []string{"composer.json"}, programs: []string{"composer"}, same: sameMembers("scripts")},
	{names: []string{"phpunit.xml*"}, programs: []string{"phpunit", "composer", "php"}},
	{names: []string{".rspec"}, programs: []string{"rspec", "rake", "bundle"}},
	{names: []string{".bazelrc"}, programs: []string{"bazel", "bazelisk"}},
	{names: []string{"gemfile", "cmakelists.txt", "meson.build", "mix.exs", "build", "build.bazel", "workspace", "module.bazel", ".env", ".env.*"}},
}

// deciderOf is what a path is of them.
func deciderOf(p string) (decider, bool) {
	p = strings.ToLower(p)
	i := slices.IndexFunc(deciders, func(d decider) bool {
		return slices.ContainsFunc(d.names, func(n string) bool { return doublestar.MatchUnvalidated("**/"+n, p) })
	})
	if i < 0 {
		return decider{}, false
	}
	return deciders[i], true
}

// starters are programs that run what nobody sees from the verify command.
var starters = []string{"make", "gmake", "just", "task", "npm", "npx", "yarn", "pnpm", "bun", "nox", "tox", "rake", "bundle", "composer", "sh", "bash", "dash", "zsh"}

// asks says whether a change of such a file replaces what the commands run.
func (d decider) asks(verify []string) bool {
	for _, line := range verify {
		for i, word := range strings.FieldsFunc(line, notInWord) {
			name := path.Base(word)
			switch {
			case slices.Contains(d.programs, name):
				return true
			case d.exact || len(d.programs) == 0:
			case slices.Contains(starters, name), i == 0 && strings.Contains(word, "/"), path.Ext(name) == ".sh":
				return true
			}
		}
	}
	return false
}

func notInWord(r rune) bool {
	return !(r == '.' || r == '/' || r == '-' || r == '_' || r == '+' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
}

// aDependency is a line of a Gradle script that only names a library by its
// coordinates: no block, no code, no variable.
var aDependency = regexp.MustCompile(`^\s*(?:[a-z][A-Za-z]*)?(?:[iI]mplementation|[aA]pi|[cC]ompileOnly|[rR]untimeOnly|[kK]apt|[kK]sp|[aA]nnotationProcessor)\s*\(?\s*(?:platform\s*\()?\s*["'][\w.-]+:[\w.-]+(?::[\w.+-]+)?["']\s*\)?\s*\)?\s*$`)

// sameGradle compares what is left without those lines.
func sameGradle(_ string, t Texts) bool {
	rest := func(text string) string {
		var b strings.Builder
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !aDependency.MatchString(line) {
				b.WriteString(line + "\n")
			}
		}
		return b.String()
	}
	return rest(t.Old) == rest(t.New)
}
