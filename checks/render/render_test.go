package render

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"inspect/checks/evidence"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func manifest() evidence.Manifest {
	return evidence.Manifest{
		Session: "abcdefghij", Generation: 1, Repository: "octocat/hello", Issue: 7,
		BaseBranch: "main", BaseSHA: strings.Repeat("a", 40), Tip: strings.Repeat("b", 40), Tree: strings.Repeat("c", 40),
		Verdict:    evidence.Verdict{Kind: evidence.Passed, Words: "3 pass", Passed: 3},
		Checks:     []evidence.Check{{Name: "unit", Run: "go test -json ./...", Report: "gotest", Passed: true, Words: "3 tests passed", Duration: 2400 * time.Millisecond, Tests: &evidence.Tests{Passed: 3}}},
		Change:     evidence.Change{Files: []evidence.ChangedFile{{Path: "greet.go", Added: 1, Deleted: 1}}, Added: 1, Deleted: 1},
		Snapshot:   evidence.Snapshot{ID: "snap-1", Commit: strings.Repeat("a", 40), Store: "dir", Age: 90 * time.Second, Restore: 12 * time.Millisecond},
		Harness:    evidence.Harness{Kind: "command", Label: "scripted"},
		Sandbox:    evidence.Sandbox{Tier: "bubblewrap 0.8.0", Limits: "enforced"},
		SpecSource: ".inspect.yml", ContextDigest: strings.Repeat("d", 64),
		Files: []evidence.File{{Name: "change.patch", SHA256: strings.Repeat("e", 64), Bytes: 310}},
	}
}

func delivery() Delivery {
	return Delivery{Branch: "inspect/7-fix-abcdefghij", HeadSHA: strings.Repeat("f", 40), PullRequest: 8, EvidenceDigest: strings.Repeat("1", 64), EventsHead: strings.Repeat("2", 64), EventsCount: 42, SessionURL: "http://127.0.0.1:7461/sessions/abcdefghij"}
}

func TestGolden(t *testing.T) {
	failed := manifest()
	failed.Verdict = evidence.Verdict{Kind: evidence.Failed, Words: "unit: 1 of 2 tests failed", Passed: 1, Failed: 1, Skipped: 2}
	failed.Checks[0].Passed, failed.Checks[0].Words = false, "1 of 2 tests failed"
	failed.Checks[0].Tests = &evidence.Tests{Passed: 1, Failed: 1, Skipped: 2, Failures: []evidence.Failure{{Package: "example.com/m", Test: "TestHello", Output: "want `hi`\n```\n@octocat\n"}}}
	failed.Risks = []string{"changes what verification runs: test.sh"}
	failed.Snapshot.Drift = true
	failed.Change.Withheld = []string{".github/workflows/ci.yml"}
	for name, m := range map[string]evidence.Manifest{"passed": manifest(), "failed": failed} {
		o := CheckRun(m, delivery())
		got := o.Title + "\n\n--- summary\n" + o.Summary + "\n--- text\n" + o.Text
		path := filepath.Join("testdata", name+".md")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// However much there is, and whatever it is called, GitHub takes it.
func TestLimits(t *testing.T) {
	m := manifest()
	for i := range 3000 {
		m.Change.Files = append(m.Change.Files, evidence.ChangedFile{Path: strings.Repeat("日😀", 60) + fmt.Sprintf("|\n`%d", i)})
		m.Files = append(m.Files, evidence.File{Name: strings.Repeat("😀", 100), SHA256: strings.Repeat("9", 64)})
		m.Checks = append(m.Checks, evidence.Check{Name: "n", Run: strings.Repeat("😀", 2000), Words: "exit status 1"})
	}
	var failures []evidence.Failure
	for range 200 {
		failures = append(failures, evidence.Failure{Package: "p", Test: "T", Output: strings.Repeat("````\n😀", 400)})
	}
	m.Checks[0].Tests = &evidence.Tests{Failed: 10000, Failures: failures}
	m.Change.Withheld = []string{"a|b", "c\nd"}
	o := CheckRun(m, delivery())
	for name, c := range map[string]struct {
		text string
		max  int
	}{"title": {o.Title, MaxTitle}, "summary": {o.Summary, MaxSummary}, "text": {o.Text, MaxText}} {
		if len(c.text) > c.max || !utf8.ValidString(c.text) {
			t.Errorf("%s: %d bytes, valid %v", name, len(c.text), utf8.ValidString(c.text))
		}
	}
	if strings.Count(o.Text, "<details>") != strings.Count(o.Text, "</details>") {
		t.Error("a fold is left open")
	}
}
