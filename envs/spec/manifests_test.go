package spec

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestManifest(t *testing.T) {
	for name, want := range map[string]string{
		"package.json": "node", "web/package-lock.json": "node", "a/b/c/pnpm-lock.yaml": "node", "yarn.lock": "node",
		"go.mod": "go", "tools/go.sum": "go",
		"requirements.txt": "python", "requirements-dev.txt": "python", "requirements/dev.txt": "python", "api/requirements/prod.txt": "python",
		"pyproject.toml": "python", "poetry.lock": "python", "uv.lock": "python", "Pipfile": "python", "Pipfile.lock": "python",
		"Cargo.toml": "rust", "crates/x/Cargo.lock": "rust", "Gemfile": "ruby", "Gemfile.lock": "ruby", "x.gemspec": "ruby",
		"composer.json": "php", "composer.lock": "php", "pom.xml": "maven", "app/build.gradle": "gradle", "build.gradle.kts": "gradle",
		"gradle.lockfile": "gradle", "gradle/libs.versions.toml": "gradle", "mix.exs": "elixir", "mix.lock": "elixir", "src/App.csproj": "dotnet", "pubspec.lock": "dart",

		"node_modules/x/package.json": "", "web/node_modules/package.json": "", "vendor/github.com/x/go.mod": "", ".venv/lib/pyproject.toml": "",
		"main.go": "", "package.json.md": "", "docs/requirements.md": "", "notes/requirements/a.md": "", "mypackage.json": "", "": "", "/": "",
		"vendored/go.mod": "go", "vendor.go/go.mod": "go",
	} {
		if got, ok := Manifest(name); got != want || ok != (want != "") {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestRerunFrom(t *testing.T) {
	node := []string{"apt-get moo", "npm ci", "npm run build", "createdb x"}
	for _, c := range []struct {
		name    string
		setup   []string
		changed []string
		want    int
	}{
		{"nothing", node, nil, 4},
		{"no manifest", node, []string{"src/main.ts"}, 4},
		{"no setup", nil, []string{"package.json"}, 0},
		{"the first of its ecosystem", node, []string{"web/package.json"}, 1},
		{"not the first step", []string{"go mod download", "npm ci", "go build ./..."}, []string{"package-lock.json"}, 1},
		{"of several", []string{"go mod download", "npm ci", "go build ./..."}, []string{"package-lock.json", "go.sum"}, 0},
		{"nobody's: all", []string{"createdb x", "echo hello"}, []string{"package.json"}, 0},
		{"another's only: all", []string{"echo hello", "cargo fetch"}, []string{"package.json"}, 0},
		{"make may be anything", []string{"echo hello", "make deps", "npm run build"}, []string{"package.json"}, 1},
		{"a script may be anything", []string{"echo hello", "./bin/setup", "npm run build"}, []string{"package.json"}, 1},
		{"a script by its name", []string{"echo hello", "script/bootstrap --all", "npm run build"}, []string{"package.json"}, 1},
		{"a script in a shell", []string{"echo hello", "bash scripts/install.sh", "npm run build"}, []string{"package.json"}, 1},
		{"read in", []string{"echo hello", ". ./env; true", "npm run build"}, []string{"package.json"}, 1},
		{"a file is no script", []string{"mkdir -p /var/lib/x a/b", "cp conf/a.yml .", "npm ci"}, []string{"package.json"}, 2},
		{"wrapper", []string{"echo x", "cd app && ./gradlew assemble"}, []string{"app/build.gradle"}, 1},
		{"wrapper of another", []string{"./mvnw package", "pip install -r requirements.txt"}, []string{"requirements.txt"}, 1},
		{"in a virtual environment", []string{"python3 -m venv .venv", ".venv/bin/pip install -e ."}, []string{"pyproject.toml"}, 0},
		{"python of a version", []string{"echo x", "python3.11 setup.py develop"}, []string{"setup.py"}, 1},
		{"behind an assignment", []string{"echo x", "CI=1 NODE_ENV=test npm ci"}, []string{"package.json"}, 1},
		{"behind cd", []string{"echo x", "cd web && npm ci"}, []string{"web/package.json"}, 1},
		{"in quotes", []string{"echo x", `env -i sh -c "npm ci"`}, []string{"package.json"}, 1},
		{"after a pipe", []string{"echo x", "cat list|xargs -n1 go install"}, []string{"go.mod"}, 1},
		{"uv", []string{"go build", "uv sync --frozen"}, []string{"uv.lock"}, 1},
		{"bundle", []string{"bundle install"}, []string{"Gemfile.lock"}, 0},
		{"a word that only begins so", []string{"gofmt -l .", "mixer", "go build"}, []string{"go.mod"}, 2},
	} {
		if got := RerunFrom(c.setup, c.changed); got != c.want {
			t.Errorf("%s: from %d, want %d", c.name, got, c.want)
		}
	}
}

// Git finds what Manifest knows by the pathspecs, and nothing that is vendored.
func TestManifestPathspecs(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	var want []string
	for _, name := range []string{
		"package.json", "a/b/go.mod", "requirements/dev.txt", "x/requirements-ci.txt", "node_modules/p/package.json", "web/node_modules/q/package.json",
		"vendor/m/go.mod", "main.go", "a/x.gemspec", "sub/.venv/pyproject.toml",
	} {
		git("update-index", "--add", "--cacheinfo", "100644,"+strings.TrimSpace(git("hash-object", "-w", "--stdin"))+","+name)
		if _, ok := Manifest(name); ok {
			want = append(want, name)
		}
	}
	got := strings.Split(strings.TrimSuffix(git(append([]string{"ls-files", "-z", "--"}, ManifestPathspecs()...)...), "\x00"), "\x00")
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) != 5 {
		t.Errorf("in %s git finds %q, want %q", filepath.Base(dir), got, want)
	}
}
