package policy

import (
	"strings"
	"testing"
)

// What decides what tests run is told apart from what stands beside it.
func TestDeciders(t *testing.T) {
	const (
		asks  = "asks"
		looks = "looks"
		quiet = ""
	)
	pyproject := func(deps, addopts string) string {
		return "[project]\nname = 'x'\ndependencies = [" + deps + "]\n[tool.pytest.ini_options]\naddopts = '" + addopts + "'\n"
	}
	cargo := func(dep, rest string) string {
		return "[package]\nname = 'x'\n[dependencies]\na = '" + dep + "'\n" + rest
	}
	pom := func(dep, property, plugin string) string {
		return "<?xml version='1.0'?>\n<project><modelVersion>4.0.0</modelVersion><parent><artifactId>p</artifactId><version>" + dep + "</version></parent><properties><lib.version>" + dep + "</lib.version>" + property +
			"</properties><dependencies><dependency><artifactId>a</artifactId><version>" + dep + "</version></dependency></dependencies><build><plugins>" + plugin + "</plugins></build></project>"
	}
	gradle := func(deps, rest string) string {
		return "plugins { id 'java' }\ndependencies {\n  implementation 'org.example:a:1.0'\n" + deps + "}\n" + rest
	}
	cfg := func(deps, pytest string) string {
		return "[options]\ninstall_requires =\n  " + deps + "\n[tool:pytest]\naddopts = -q" + pytest + "\n[flake8]\nmax = 1\n"
	}
	for name, c := range map[string]struct {
		path     string
		old, new string // both empty: it is not read
		verify   string
		want     string
	}{
		"a library of pyproject.toml":           {"pyproject.toml", pyproject("'a'", "-q"), pyproject("'a', 'b'", "-q"), "pytest", quiet},
		"options of pytest":                     {"pyproject.toml", pyproject("'a'", "-q"), pyproject("'a'", "-q --deselect x"), "python3 -m pytest", asks},
		"options of pytest behind a makefile":   {"pyproject.toml", pyproject("'a'", "-q"), pyproject("'a'", "-q -k x"), "make test", asks},
		"options of pytest where Go is tested":  {"pyproject.toml", pyproject("'a'", "-q"), pyproject("'a'", "-q -k x"), "go test ./...", looks},
		"a plugin of pytest":                    {"pyproject.toml", "[project]\nname='x'\n", "[project]\nname='x'\n[project.entry-points.pytest11]\nx='x'\n", "pytest", asks},
		"pyproject.toml that is none":           {"pyproject.toml", pyproject("", ""), "[", "pytest", asks},
		"pyproject.toml that nobody read":       {"pyproject.toml", "", "", "pytest", asks},
		"a library of setup.cfg":                {"setup.cfg", cfg("a", ""), cfg("b", ""), "pytest", quiet},
		"options in setup.cfg":                  {"setup.cfg", cfg("a", ""), cfg("a", " -k x"), "pytest", asks},
		"options that look like a section":      {"setup.cfg", cfg("a", ""), cfg("a", "\n  [x]\n  --deselect=y"), "pytest", asks},
		"options below a header with a comment": {"setup.cfg", "[a]\nb = 1\n", "[a]\nb = 1\n[tool:pytest] ; x]\naddopts = -k y\n", "pytest", asks},
		"pytest.ini":                            {"sub/pytest.ini", "", "", "uv run pytest", asks},
		"conftest.py":                           {"tests/conftest.py", "", "", "pytest", looks},
		"sitecustomize.py":                      {"sitecustomize.py", "", "", "pytest", asks},
		"a library of Cargo.toml":               {"Cargo.toml", cargo("1", ""), cargo("2", ""), "cargo nextest run", quiet},
		"a target of Cargo.toml":                {"Cargo.toml", cargo("1", ""), cargo("1", "[lib]\ntest = false\n"), "cargo test", asks},
		"members of a workspace":                {"Cargo.toml", "[workspace]\nmembers=['a','b']\n", "[workspace]\nmembers=['a']\n", "cargo test --workspace", asks},
		"an alias of cargo's":                   {".cargo/config.toml", "", "", "cargo test", asks},
		"nextest":                               {".config/nextest.toml", "", "", "cargo nextest run", asks},
		"build.rs":                              {"build.rs", "", "", "cargo test", looks},
		"a library of pom.xml":                  {"pom.xml", pom("1", "", "<plugin/>"), pom("2", "", "<plugin/>"), "./mvnw -q verify", quiet},
		"tests skipped in pom.xml":              {"pom.xml", pom("1", "", "<plugin/>"), pom("1", "<maven.test.skip>true</maven.test.skip>", "<plugin/>"), "mvn test", asks},
		"a plugin of pom.xml":                   {"pom.xml", pom("1", "", "<plugin/>"), pom("1", "", "<plugin><configuration><skip>true</skip></configuration></plugin>"), "mvn test", asks},
		"pom.xml with a declaration":            {"pom.xml", pom("1", "", ""), "<!DOCTYPE a [<!ENTITY b 'c'>]>" + pom("1", "", ""), "mvn test", asks},
		"pom.xml that closes what it did not":   {"pom.xml", pom("1", "", ""), "</project>" + pom("1", "", ""), "mvn test", asks},
		"maven's own options":                   {".mvn/maven.config", "", "", "mvn test", asks},
		"a library of Gradle's":                 {"app/build.gradle.kts", gradle("", ""), gradle("  testImplementation(\"org.example:b:2.0\")\n  implementation platform('a.b:c:1')\n", ""), "./gradlew test", quiet},
		"code among Gradle's libraries":         {"build.gradle", gradle("", ""), gradle("  implementation 'a:b:1'; tasks.withType(Test){enabled=false}\n", ""), "./gradlew test", asks},
		"a library by a variable":               {"build.gradle", gradle("", ""), gradle("  implementation \"a:b:${sneaky()}\"\n", ""), "gradle test", asks},
		"tests disabled in Gradle":              {"build.gradle", gradle("", ""), gradle("", "test { enabled = false }\n"), "gradle test", asks},
		"gradle.properties":                     {"gradle.properties", "", "", "./gradlew check", asks},
		"go.work":                               {"go.work", "", "", "go test ./...", asks},
		"go.work elsewhere":                     {"go.work", "", "", "pytest", looks},
		"jest.config":                           {"web/jest.config.js", "", "", "npm test", asks},
		"vite.config, which builds as well":     {"vite.config.ts", "", "", "npm test", looks},
		".npmrc":                                {".npmrc", "", "", "npm test", asks},
		".mocharc":                              {".mocharc.json", "", "", "npx mocha", asks},
		"phpunit.xml":                           {"phpunit.xml.dist", "", "", "vendor/bin/phpunit", asks},
		"Rakefile":                              {"Rakefile", "", "", "bundle exec rake test", asks},
		"Rakefile where nobody runs rake":       {"Rakefile", "", "", "npm test", looks},
		"Gemfile":                               {"Gemfile", "", "", "bundle exec rspec", looks},
		".rspec":                                {".rspec", "", "", "bundle exec rspec", asks},
		"an environment file":                   {".env.test", "", "", "npm test", looks},
		"a source file":                         {"make.go", "", "", "make test", quiet},
	} {
		change := of(changed(c.path))
		if c.old+c.new != "" {
			change.Scripts = map[string]Texts{c.path: {c.old, c.new}}
		}
		v := Judge(change, Rules{MaxFiles: 10, MaxBytes: 1000, Verify: []string{c.verify}})
		got := quiet
		for _, i := range v.Ask {
			if i.Reason == ReasonReplaced {
				got = asks
			}
		}
		if strings.Contains(strings.Join(v.Risks, "\n"), "files of the build that may decide") {
			got += looks
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
