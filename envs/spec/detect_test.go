package spec

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// detect runs DetectFiles over files given as name → content.
func detect(files map[string]string) Detection {
	return DetectFiles(slices.Sorted(maps.Keys(files)), func(name string) ([]byte, bool) {
		b, ok := files[name]
		return []byte(b), ok
	})
}

const (
	pip    = `"$HOME/venv/bin/pip" install --disable-pip-version-check --no-input `
	mkvenv = `python3 -m venv "$HOME/venv"`
	pytest = `"$HOME/venv/bin/python" -m pytest`
	unit   = "import unittest\n\nclass T(unittest.TestCase):\n    def test_x(self): pass\n"
)

func TestDetectFiles(t *testing.T) {
	for _, c := range []struct {
		name     string
		files    map[string]string
		source   string
		setup    []string
		egress   []string
		verify   string
		programs []string
		gaps     []string // what each begins with or holds
	}{
		{
			name: "go without dependencies", files: map[string]string{"go.mod": "module example.com/x\n\ngo 1.26\n", "main.go": ""},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
		},
		{
			name: "go", files: map[string]string{"go.mod": "module x\nrequire (\n\texample.com/y v1.0.0\n)\n", "go.sum": "example.com/y v1.0.0 h1:x\n"},
			source: "go.mod", setup: []string{"go mod download", "go build ./...", "go test -run '^$' ./... || true"}, egress: []string{"go"}, verify: "go test -json ./...", programs: []string{"go"},
		},
		{
			name: "go vendored", files: map[string]string{"go.mod": "module x\nrequire example.com/y v1.0.0\n", "go.sum": "x", "vendor/modules.txt": "", "vendor/example.com/y/go.mod": ""},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
		},
		{
			name: "go without go.sum", files: map[string]string{"go.mod": "module x\nrequire example.com/y v1.0.0 // indirect\n"},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
			gaps: []string{"go.mod requires modules but there is no go.sum"},
		},
		{
			name: "go replaced from outside", files: map[string]string{"go.mod": "module x\nreplace example.com/y => ../y\nreplace example.com/z => ./z\n"},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
			gaps: []string{"go.mod replaces a module by ../y, which lies outside"},
		},
		{
			name: "go workspace", files: map[string]string{
				"go.work": "go 1.26\n\nuse (\n\t./api\n\t. // the root\n\t\"./odd name\"\n\t../other\n)\n", "go.mod": "module x", "api/go.mod": "module y\nrequire z v1\n", "api/go.sum": "z",
			},
			source: "go.work", setup: []string{"go mod download", "go build ./api/... ./... './odd name/...'", "go test -run '^$' ./api/... ./... './odd name/...' || true"}, egress: []string{"go"},
			verify: "go test -json ./api/... ./... './odd name/...'", programs: []string{"go"},
			gaps: []string{"go.work uses ../other, which lies outside"},
		},
		{
			name: "go below the root", files: map[string]string{"README.md": "", "cmd/tool/go.mod": "module x"},
			gaps: []string{`cmd/tool/go.mod lies below the root: say in .inspect.yml how to build and test it, for example "cd cmd/tool && go test ./..."`},
		},
		{
			name: "go modules below the root", files: map[string]string{"a/go.mod": "", "b/go.mod": "", "vendor/x/go.mod": "", "b/testdata/m/go.mod": ""},
			gaps: []string{"there are 2 Go modules and none in the root (a/go.mod, b/go.mod)"},
		},
		{
			name: "a go module beside the root's", files: map[string]string{"go.mod": "module x", "tools/go.mod": "module y"},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
			gaps: []string{"modules below the root are not built or tested (tools/go.mod)"},
		},
		{
			name: "node", files: map[string]string{"package.json": `{"scripts":{"test":"vitest run"},"devDependencies":{"vitest":"^3"}}`, "package-lock.json": "{}"},
			source: "package.json", setup: []string{"npm ci --no-audit --no-fund"}, egress: []string{"npm"}, verify: "CI=true npm test", programs: []string{"npm"},
		},
		{
			name: "node without dependencies", files: map[string]string{"package.json": `{"scripts":{"test":"node --test"}}`, "package-lock.json": "{}"},
			source: "package.json", verify: "CI=true npm test", programs: []string{"npm"},
		},
		{
			name: "node without a lock file", files: map[string]string{"package.json": `{"scripts":{"test":"jest"},"dependencies":{"a":"1","b":"octocat/hello","c":"git+https://user:pw@git.example/c.git","d":"file:./d"}}`},
			source: "package.json", setup: []string{"npm install --no-package-lock --no-audit --no-fund"}, egress: []string{"npm"}, verify: "CI=true npm test", programs: []string{"npm"},
			gaps: []string{"package.json has dependencies but no lock file", "package.json takes b from octocat/hello", "package.json takes c from git+https://git.example/c.git"},
		},
		{
			name: "pnpm", files: map[string]string{"package.json": `{"scripts":{"test":"jest"},"dependencies":{"a":"1"}}`, "pnpm-lock.yaml": ""},
			source: "package.json", setup: []string{"pnpm install --frozen-lockfile"}, egress: []string{"npm"}, verify: "CI=true pnpm test", programs: []string{"pnpm"},
			gaps: []string{"pnpm-lock.yaml asks for pnpm, which must be installed"},
		},
		{
			name: "new yarn", files: map[string]string{"package.json": `{"packageManager":"yarn@4.1.0","scripts":{"test":"jest"}}`, "yarn.lock": "", "package-lock.json": ""},
			source: "package.json", setup: []string{"yarn install --immutable"}, egress: []string{"npm"}, verify: "CI=true yarn test", programs: []string{"yarn"},
			gaps: []string{"yarn.lock asks for yarn"},
		},
		{
			name: "node's default test script", files: map[string]string{"package.json": `{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}`},
			gaps: []string{"package.json has no test script"},
		},
		{
			name: "node's own runner", files: map[string]string{"package.json": `{"type":"module"}`, "lib/sum.test.mjs": "", "package-lock.json": "{}"},
			source: "package.json", verify: "node --test", programs: []string{"node"},
		},
		{
			name: "broken package.json", files: map[string]string{"package.json": `{"scripts":`}, gaps: []string{"package.json is not the JSON"},
		},
		{
			name: "odd package.json", files: map[string]string{"package.json": `{"scripts":["x"],"dependencies":7}`}, gaps: []string{"package.json has no test script"},
		},
		{
			name: "python with requirements", files: map[string]string{"requirements.txt": "flask==3.0\n", "requirements-dev.txt": "-r requirements.txt\npytest\n", "tests/test_a.py": ""},
			source: "requirements.txt", setup: []string{mkvenv, pip + "-r requirements.txt -r requirements-dev.txt pytest"}, egress: []string{"pypi"}, verify: pytest, programs: []string{"python3"},
		},
		{
			name: "python project with extras", files: map[string]string{
				"pyproject.toml": "[project]\nname = \"x\"\ndependencies = [\n  \"requests>=2\", # needed\n]\n[project.optional-dependencies]\ntest = [\"pytest\"]\n", "tests/test_a.py": "",
			},
			source: "pyproject.toml", setup: []string{mkvenv, pip + "-e '.[test]' pytest"}, egress: []string{"pypi"}, verify: pytest, programs: []string{"python3"},
		},
		{
			name: "python with uv", files: map[string]string{
				"pyproject.toml": "[project]\nname = \"x\"\ndependencies = [\"httpx\"]\n\n[dependency-groups]\ndev = [\n  \"pytest>=8\", {include-group = \"lint\"},\n  \"respx\",\n]\n", "uv.lock": "", "src/x/__init__.py": "", "tests/test_x.py": "",
			},
			source: "pyproject.toml", setup: []string{mkvenv, pip + "-e . 'pytest>=8' respx"}, egress: []string{"pypi"}, verify: pytest, programs: []string{"python3"},
			gaps: []string{"uv.lock is not read"},
		},
		{
			name: "python with the standard library only", files: map[string]string{"pyproject.toml": "[project]\nname = \"x\"\n", "x.py": "", "tests/test_x.py": unit},
			source: "pyproject.toml", verify: "python3 -m unittest discover -s 'tests'", programs: []string{"python3"},
		},
		{
			name: "python files alone", files: map[string]string{"calc.py": "", "test_calc.py": unit},
			source: "test_calc.py", verify: "python3 -m unittest discover", programs: []string{"python3"},
		},
		{
			name: "python tests in a package", files: map[string]string{"pkg/__init__.py": "", "pkg/tests/__init__.py": "", "pkg/tests/test_a.py": unit},
			source: "pkg/tests/test_a.py", verify: "python3 -m unittest discover", programs: []string{"python3"},
		},
		{
			name: "python tests that unittest does not enter", files: map[string]string{"a/test_a.py": unit, "b/test_b.py": unit},
			source: "a/test_a.py", setup: []string{mkvenv, pip + "pytest"}, egress: []string{"pypi"}, verify: pytest, programs: []string{"python3"},
			gaps: []string{"the tests lie in directories that python3 -m unittest does not enter"},
		},
		{
			name: "python tests for an undeclared pytest", files: map[string]string{"calc.py": "", "test_calc.py": "def test_add():\n    assert True\n"},
			source: "test_calc.py", setup: []string{mkvenv, pip + "pytest"}, egress: []string{"pypi"}, verify: pytest, programs: []string{"python3"},
			gaps: []string{"the tests are written for pytest, which no file declares"},
		},
		{
			name: "python without tests", files: map[string]string{"pyproject.toml": "[project]\nname='x'\n", "x.py": ""},
			gaps: []string{"there are no tests: no file is named test_*.py"},
		},
		{
			name: "django", files: map[string]string{"manage.py": "", "requirements.txt": "django\n", "shop/tests.py": ""},
			source: "requirements.txt", setup: []string{mkvenv, pip + "-r requirements.txt"}, egress: []string{"pypi"}, verify: `"$HOME/venv/bin/python" manage.py test`, programs: []string{"python3"},
		},
		{
			name: "rust", files: map[string]string{
				"Cargo.toml": "[package]\nname=\"x\"\n[dependencies]\nserde = \"1\"\n",
				"Cargo.lock": "[[package]]\nname = \"serde\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n[[package]]\nname=\"y\"\nsource = \"git+https://git.example/y?rev=1#abc\"\n",
			},
			source: "Cargo.toml", setup: []string{"cargo fetch --locked", "cargo test --offline --no-run"}, egress: []string{"crates"}, verify: "cargo test --offline", programs: []string{"cargo"},
			gaps: []string{"Cargo.lock names packages from git.example"},
		},
		{
			name: "rust workspace of its own", files: map[string]string{
				"Cargo.toml": "[workspace]\nmembers = [\"a\"]\n[workspace.dependencies]\na = { path = \"a\" }\n", "Cargo.lock": "[[package]]\nname = \"a\"\n", "rust-toolchain.toml": "[toolchain]\nchannel = \"nightly-2026-01-01\"\n",
			},
			source: "Cargo.toml", setup: []string{"cargo test --offline --no-run --workspace"}, verify: "cargo test --offline --workspace", programs: []string{"cargo"},
			gaps: []string{"rust-toolchain.toml asks for Rust nightly-2026-01-01"},
		},
		{
			name: "rust library without a lock file", files: map[string]string{"Cargo.toml": "[package]\nname=\"x\"\n[dev-dependencies.proptest]\nversion = \"1\"\n"},
			source: "Cargo.toml", setup: []string{"cargo fetch", "cargo test --offline --no-run"}, egress: []string{"crates"}, verify: "cargo test --offline", programs: []string{"cargo"},
		},
		{
			name: "make", files: map[string]string{"Makefile": "all: x\nx := y\nbuild test: x\n\ttrue\n"},
			source: "Makefile", verify: "make test", programs: []string{"make"},
		},
		{name: "make without test", files: map[string]string{"Makefile": "all:\n\ttest: x\ntest := 1\n"}, gaps: []string{"Makefile has no target test"}},
		{
			name: "two languages", files: map[string]string{"go.mod": "module x", "package.json": `{"scripts":{"test":"jest"}}`, "Makefile": "test:\n"},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
			gaps: []string{"package.json is there too, but only go.mod was used"},
		},
		{
			name: "requirements of nothing", files: map[string]string{"requirements.txt": "# none\n\n", "test_a.py": unit},
			source: "requirements.txt", verify: "python3 -m unittest discover", programs: []string{"python3"},
		},
		{
			name: "a tool's package.json", files: map[string]string{"package.json": `{"devDependencies":{"prettier":"3"}}`, "requirements.txt": "six\n", "test_a.py": unit, "service/go.mod": ""},
			source: "requirements.txt", setup: []string{mkvenv, pip + "-r requirements.txt"}, egress: []string{"pypi"}, verify: `"$HOME/venv/bin/python" -m unittest discover`, programs: []string{"python3"},
			gaps: []string{"service/go.mod lies below the root"},
		},
		{
			name: "services", files: map[string]string{
				"go.mod":                   "module x",
				"docker-compose.yml":       "services:\n  app: {build: .}\n  shell: {image: 'golang:1.26'}\n  db:\n    image: docker.io/library/postgres:16\n  cache: {image: valkey/valkey:8}\n",
				".github/workflows/ci.yml": "jobs:\n  test:\n    services:\n      pg: postgres:17\n      queue: {image: 'rabbitmq:3-management'}\n",
				".env.example":             "DATABASE_URL=postgres://u:hunter2@localhost/x\nexport MONGO=\"mongodb://localhost/x\"\n# OLD=mysql://x\n",
			},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
			gaps: []string{
				"docker-compose.yml names a service of image docker.io/library/postgres:16: declare it under services in .inspect.yml",
				"docker-compose.yml names a service of image valkey/valkey:8", ".github/workflows/ci.yml names a service of image rabbitmq:3-management",
				".env.example names a mongo in MONGO",
			},
		},
		{
			name: "submodules and pointers", files: map[string]string{
				"go.mod": "module x", ".gitmodules": "[submodule \"libs/z\"]\n\tpath = libs/z\n\turl = ../z.git\n", ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n*.txt text\n",
			},
			source: "go.mod", setup: []string{"go build ./...", "go test -run '^$' ./... || true"}, verify: "go test -json ./...", programs: []string{"go"},
			gaps: []string{"submodules are checked out only where they lie on the same host and may be read (libs/z)", "files of Git LFS are only pointers: their content is not fetched (*.bin)"},
		},
		{name: "java", files: map[string]string{"pom.xml": ""}, gaps: []string{"pom.xml means Java with Maven, which is not detected"}},
		{name: "a frontend below", files: map[string]string{"web/package.json": "{}"}, gaps: []string{"web/package.json lies below the root"}},
		{name: "nothing", files: map[string]string{"README.md": ""}, gaps: []string{"nothing in the root says how to build and test"}},
		{name: "no file at all", gaps: []string{"nothing in the root says how to build and test"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := detect(c.files)
			if got.OK != (c.verify != "") {
				t.Fatalf("OK = %v, gaps %q", got.OK, got.Gaps)
			}
			if d := cmp.Diff(c.gaps, got.Gaps, cmp.Comparer(func(a, b string) bool { return strings.Contains(a, b) || strings.Contains(b, a) })); d != "" {
				t.Errorf("gaps: %s", d)
			}
			for _, g := range got.Gaps {
				if strings.ContainsAny(g, "\n\r") || strings.HasSuffix(g, ".") || strings.Contains(g, "hunter2") {
					t.Errorf("not one clear sentence: %q", g)
				}
			}
			if !got.OK {
				return
			}
			if want := "detected from " + c.source; got.Source != want {
				t.Errorf("source %q, want %q", got.Source, want)
			}
			for _, d := range []string{
				cmp.Diff(c.setup, Lines(got.Spec.Setup)), cmp.Diff(c.egress, got.Spec.Egress), cmp.Diff(c.programs, got.Programs),
				cmp.Diff(c.verify, got.Spec.Verify[0].Run),
			} {
				if d != "" {
					t.Error(d)
				}
			}
			if got.Spec.DeclaredEgress() != nil || got.Spec.EgressGuessed != (c.egress != nil) {
				t.Error("guessed egress is given to the agent")
			}
			for _, e := range got.Spec.Egress {
				if !IsEcosystem(e) {
					t.Errorf("egress %q is no ecosystem", e)
				}
			}
		})
	}
}

// With names alone the guess is coarser and still one.
func TestDetect(t *testing.T) {
	for _, c := range []struct {
		files, setup []string
		source, run  string
	}{
		{[]string{"go.mod"}, []string{"go build ./...", "go test -run '^$' ./... || true"}, "go.mod", "go test -json ./..."},
		{[]string{"go.mod", "go.sum"}, []string{"go mod download", "go build ./...", "go test -run '^$' ./... || true"}, "go.mod", "go test -json ./..."},
		{[]string{"go.work"}, []string{"go build $(go list -m -f '{{.Dir}}/...')", "go test -run '^$' $(go list -m -f '{{.Dir}}/...') || true"}, "go.work", "go test -json $(go list -m -f '{{.Dir}}/...')"},
		{[]string{"Cargo.toml", "Cargo.lock"}, []string{"cargo fetch --locked", "cargo test --offline --no-run"}, "Cargo.toml", "cargo test --offline"},
		{[]string{"package.json"}, nil, "package.json", "CI=true npm test"},
		{[]string{"package.json", "package-lock.json"}, []string{"npm ci --no-audit --no-fund"}, "package.json", "CI=true npm test"},
		{[]string{"pyproject.toml"}, nil, "pyproject.toml", "python3 -m pytest"},
		{[]string{"Makefile"}, nil, "Makefile", "make test"},
	} {
		s, source, ok := Detect(append(c.files, "README.md"))
		if !ok || source != "detected from "+c.source || s.Verify[0].Run != c.run {
			t.Errorf("%s: %q %v %v", c.files, source, ok, s.Verify)
		}
		if d := cmp.Diff(c.setup, Lines(s.Setup)); d != "" {
			t.Errorf("%s: %s", c.files, d)
		}
	}
	if _, _, ok := Detect([]string{"README.md"}); ok {
		t.Error("a README is not an environment")
	}
}

// What cannot be read, is too long or has no end leaves a guess or a sentence.
func TestDetectIsBounded(t *testing.T) {
	reads := 0
	names := []string{"go.mod", "package.json", "pyproject.toml", "docker-compose.yml", ".gitattributes"}
	for i := range 3000 {
		names = append(names, ".github/workflows/"+strings.Repeat("x", i%90+1)+".yml", strings.Repeat("d/", i%20)+"test_x.py")
	}
	d := DetectFiles(names, func(name string) ([]byte, bool) {
		reads++
		switch name {
		case "docker-compose.yml":
			return []byte("a: &a [x,x]\nservices: {a: &b {image: *a}, c: *b, d: {image: \"" + strings.Repeat("y", 5000) + "\\n\"}}\n"), true
		case ".gitattributes":
			return []byte(strings.Repeat("*.bin filter=lfs\n", 100_000)), true
		case "package.json":
			return make([]byte, maxReadBytes+1), true
		}
		return []byte(strings.Repeat("[", 100_000)), true
	})
	if !d.OK || reads > maxReads || len(d.Gaps) > maxGaps {
		t.Errorf("%v after %d reads: %d gaps", d.OK, reads, len(d.Gaps))
	}
	for _, g := range d.Gaps {
		if len(g) > 1000 || strings.Contains(g, "\n") {
			t.Errorf("a gap of %d bytes: %.200q", len(g), g)
		}
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("go.work", "use (\n./a\n)")
	f.Add("package.json", `{"scripts":{"test":"x"},"dependencies":{"a":"b/c"}}`)
	f.Add("pyproject.toml", "[project]\ndependencies = [\"x\", 'y'] # z\n[dependency-groups]\ndev=['pytest']\n")
	f.Add("Cargo.lock", "source = \"git+https://h/x\"")
	f.Add("docker-compose.yml", "services: {a: {image: b}}")
	f.Add("test_a.py", "def test_a(): pass")
	f.Fuzz(func(t *testing.T, name, text string) {
		names := []string{name, "Cargo.toml", "tests/test_b.py"}
		d := DetectFiles(names, func(string) ([]byte, bool) { return []byte(text), true })
		if d.OK != (len(d.Spec.Verify) > 0) || !d.OK && len(d.Gaps) == 0 {
			t.Fatalf("%+v", d)
		}
		for _, g := range d.Gaps {
			if strings.ContainsAny(g, "\n\r\x1b\x00") {
				t.Fatalf("%q", g)
			}
		}
		for _, line := range d.Spec.Setup {
			if strings.ContainsAny(line.Run, "\n\x00") {
				t.Fatalf("setup %q", line)
			}
		}
	})
}
