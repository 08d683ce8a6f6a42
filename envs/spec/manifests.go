package spec

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// manifests are the files that declare or lock dependencies, by the ecosystem
// whose programs read them. A * stands for any part of a name.
var manifests = map[string][]string{
	"node":   {"package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "pnpm-workspace.yaml", "yarn.lock", "bun.lock", "bun.lockb", "deno.json", "deno.lock"},
	"go":     {"go.mod", "go.sum", "go.work", "go.work.sum"},
	"python": {"requirements*.txt", "requirements*.in", "constraints*.txt", "pyproject.toml", "poetry.lock", "uv.lock", "pdm.lock", "pylock*.toml", "Pipfile", "Pipfile.lock", "setup.py", "setup.cfg", "environment.yml", "environment.yaml"},
	"rust":   {"Cargo.toml", "Cargo.lock"},
	"ruby":   {"Gemfile", "Gemfile.lock", "gems.rb", "gems.locked", "*.gemspec"},
	"php":    {"composer.json", "composer.lock"},
	"maven":  {"pom.xml"},
	"gradle": {"build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.properties", "gradle.lockfile", "buildscript-gradle.lockfile", "libs.versions.toml", "gradle-wrapper.properties"},
	"elixir": {"mix.exs", "mix.lock"},
	"dotnet": {"*.csproj", "*.fsproj", "*.vbproj", "packages.lock.json", "packages.config", "Directory.Packages.props"},
	"dart":   {"pubspec.yaml", "pubspec.lock"},
}

// programs are those of each ecosystem that set dependencies up or build on them.
var programs = map[string][]string{
	"node":   {"npm", "npx", "pnpm", "pnpx", "yarn", "yarnpkg", "bun", "bunx", "deno", "node", "nodejs", "corepack"},
	"go":     {"go"},
	"python": {"pip", "pip3", "pipx", "poetry", "uv", "uvx", "pipenv", "pdm", "hatch", "tox", "virtualenv", "conda", "mamba", "micromamba"},
	"rust":   {"cargo"},
	"ruby":   {"bundle", "bundler", "gem", "rake", "ruby"},
	"php":    {"composer", "composer.phar", "php"},
	"maven":  {"mvn", "mvnw", "mvnd"},
	"gradle": {"gradle", "gradlew"},
	"elixir": {"mix", "elixir"},
	"dotnet": {"dotnet", "nuget"},
	"dart":   {"dart", "flutter"},
}

// anything are programs that run whatever the repository tells them to.
var anything = []string{"make", "gmake", "just", "task", "bazel", "bazelisk", "sh", "bash", "dash", "zsh", "source", "."}

// vendored are directories whose files are of somebody else's making.
var vendored = []string{"node_modules", "bower_components", "vendor", "site-packages", ".venv", "venv", ".tox", ".git"}

// python names its program after its version.
var python = regexp.MustCompile(`^python[0-9.]*$`)

// Manifest says whether a file of a repository, named by its path with slashes,
// declares or locks dependencies, and of which ecosystem. What lies in a
// directory of vendored code does not.
func Manifest(name string) (ecosystem string, ok bool) {
	dirs := strings.Split(path.Dir(name), "/")
	if slices.ContainsFunc(dirs, func(d string) bool { return slices.Contains(vendored, d) }) {
		return "", false
	}
	base := path.Base(name)
	for e, patterns := range manifests {
		for _, p := range patterns {
			if match, _ := path.Match(p, base); match {
				return e, true
			}
		}
	}
	// requirements/dev.txt
	if dirs[len(dirs)-1] == "requirements" && strings.HasSuffix(base, ".txt") {
		return "python", true
	}
	return "", false
}

// ManifestPathspecs have git find the files that Manifest may know, in any
// directory.
func ManifestPathspecs() (out []string) {
	for _, patterns := range manifests {
		for _, p := range patterns {
			out = append(out, ":(glob)**/"+p)
		}
	}
	out = append(out, ":(glob)**/requirements/*.txt")
	for _, d := range vendored {
		out = append(out, ":(exclude,glob)**/"+d+"/**")
	}
	slices.Sort(out)
	return out
}

// RerunFrom is the index of the first line of setup that has to run again when
// these manifests have changed; the lines after it build on what it does and run
// again too. It is the first that has a program of an ecosystem in question, or
// one that may run anything. Where there is none, all lines run again. Without
// a changed manifest none does: the result is the number of lines.
func RerunFrom(setup, changed []string) int {
	var concerned []string
	for _, c := range changed {
		if e, ok := Manifest(c); ok {
			concerned = append(concerned, e)
		}
	}
	if len(concerned) == 0 {
		return len(setup)
	}
	for i, line := range setup {
		of, whatever := belongs(line)
		if whatever || slices.ContainsFunc(concerned, func(e string) bool { return slices.Contains(of, e) }) {
			return i
		}
	}
	return 0
}

// belongs says of which ecosystems a shell line has programs, in whatever place
// of it, and whether it runs what may be anything. It errs on the side of
// running a line once too often.
func belongs(line string) (ecosystems []string, whatever bool) {
	first := true // the next word is the name of a program
	for _, w := range shellWords(line) {
		if strings.Trim(w, ";&|()\n") == "" {
			first = true
			continue
		}
		name, _, assigned := strings.Cut(w, "=")
		if first && assigned && name != "" && !strings.Contains(name, "/") {
			continue // it is set for the program that follows
		}
		base, known := path.Base(w), false
		for e, names := range programs {
			if slices.Contains(names, base) || e == "python" && python.MatchString(base) {
				ecosystems, known = append(ecosystems, e), true
			}
		}
		script := strings.HasPrefix(w, "./") || first && strings.Contains(w, "/") || strings.HasSuffix(base, ".sh")
		whatever = whatever || !known && script || slices.Contains(anything, w) && (first || w != ".") || slices.Contains(anything, base) && first
		first = false
	}
	return ecosystems, whatever
}

// shellWords takes a line apart at blanks, quotes and the signs between
// commands, which are words of their own.
func shellWords(line string) (out []string) {
	word := ""
	end := func() {
		if word != "" {
			out = append(out, word)
		}
		word = ""
	}
	for _, r := range line {
		switch {
		case strings.ContainsRune(";&|()\n", r):
			end()
			out = append(out, string(r))
		case strings.ContainsRune(" \t\"'`{}$<>", r):
			end()
		default:
			word += string(r)
		}
	}
	end()
	return out
}
