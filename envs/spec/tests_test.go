package spec

import "testing"

func TestIsTest(t *testing.T) {
	for path, want := range map[string]bool{
		"a_test.go": true, "x/a_test.go": true, "x/testdata/in.json": true, "latest.go": false, "contest/a.go": false, "test.go": false,
		"src/App.test.tsx": true, "src/__snapshots__/App.snap": true, "cypress/a.cy.ts": true, "jest.config.js": true, "src/testing.ts": false,
		"tests/test_a.py": true, "pkg/test_b.py": true, "pkg/attest.py": false, "conftest.py": true, "sub/conftest.py": true,
		"src/test/java/com/x/FooTest.java": true, "src/main/java/com/x/FooTest.java": true, "src/androidTest/a.kt": true, "src/main/java/com/x/Fastest.java": false,
		"src/lib.rs": false, "src/parser/tests.rs": true, "tests/it.rs": true, "spec/models/user_spec.rb": true,
		"TESTS/A.c": true, "lib/a_test.cc": true, "README.md": false, "Makefile": false,
	} {
		if got := IsTest(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestRuns(t *testing.T) {
	for _, c := range []struct {
		command, file string
		want          bool
	}{
		{"./test.sh", "test.sh", true}, {"sh ci/run.sh -x", "ci/run.sh", true}, {"cd ci && ./run.sh", "ci/run.sh", true},
		{"go test ./...", "a.go", false}, {"make test", "Makefile", false}, {"X=a.py python b.py", "b.py", true}, {"X=a.py python b.py", "a.py", false},
		{"grep -q good state.txt", "state.txt", false}, {"pylint app.py", "app.py", false}, {"python3.12 -W error tools/check.py app.py", "tools/check.py", true},
		{"timeout 30s ./bin/check", "bin/check", true}, {"docker run x /src/ci/all.sh", "ci/all.sh", true}, {"sh -c 'node run.js'", "run.js", true},
		{"cat a.txt | python b.py", "a.txt", false}, {"make -f build/ci.mk test", "build/ci.mk", true}, {"bun run check.ts", "check.ts", true}, {"", "a", false},
	} {
		if got := Runs(c.command, c.file); got != c.want {
			t.Errorf("%q %q: %v", c.command, c.file, got)
		}
	}
}
