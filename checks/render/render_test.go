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
	failed.Change.Withheld = []string{".github/workflows/ci.yml"}
	for name, m := range map[string]evidence.Manifest{"passed": manifest(), "failed": failed, "agent": agent()} {
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
	for i := range evidence.MaxRefused {
		m.Egress.Declared = append(m.Egress.Declared, strings.Repeat("d", 250))
		m.Egress.Refused = append(m.Egress.Refused, evidence.Refused{Host: strings.Repeat("😀", 4000), Port: 443, Command: strings.Repeat("`|", 4000), Reason: strings.Repeat("`|", 4000), Count: 1, Noise: i%2 == 0})
		m.Environment.Services = append(m.Environment.Services, strings.Repeat("s", 4000))
	}
	m.Model = evidence.Model{Name: strings.Repeat("m|", 4000), Calls: 1, PricesAsOf: strings.Repeat("|", 4000)}
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
