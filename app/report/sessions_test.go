package report

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/evidence"
	"inspect/checks/render"
	"inspect/envs/wire"
	"inspect/scheduler"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// prepared is one session as verification and its change leave it.
type prepared struct {
	files   map[string]string // artifacts by digest
	outcome wire.Outcome
	change  policy.Change
	verify  string // the command
}

// junit writes a report: "a" passes, "a!" fails, "a?" is skipped; each takes some
// time unless it says how much: "a=0".
func junit(tests ...string) string {
	var b strings.Builder
	b.WriteString(`<testsuite name="cart">`)
	for _, n := range tests {
		n, took, said := strings.Cut(n, "=")
		if !said {
			took = "0.9"
		}
		body := ""
		switch n[len(n)-1] {
		case '!':
			body, n = `<failure message="want 12, got 10">cart.test.js:14</failure>`, n[:len(n)-1]
		case '?':
			body, n = `<skipped/>`, n[:len(n)-1]
		}
		fmt.Fprintf(&b, `<testcase classname="cart" name="%s" time="%s">%s</testcase>`, n, took, body)
	}
	return b.String() + "</testsuite>"
}

// ran is a run of the tests with such a report.
func (p *prepared) ran(exit int, report string) wire.VerifyResult {
	put := func(text string) string {
		sum := fmt.Sprintf("%064d", len(p.files))
		p.files[sum] = text
		return sum
	}
	v := wire.VerifyResult{Name: "unit", Run: "npm test", Report: "junit:reports/*.xml", ExitCode: exit, Duration: 9 * time.Second, Stdout: put("> npm test\n"), Stderr: put("")}
	if report != "" {
		v.Reports = []wire.ReportFile{{Path: "reports/unit.xml", SHA256: put(report)}}
	}
	return v
}

func (p *prepared) command() string {
	if p.verify != "" {
		return p.verify
	}
	return "npm test"
}

func changedFile(path string) policy.Entry {
	return policy.Entry{Status: 'M', OldMode: policy.ModeFile, NewMode: policy.ModeFile, OldSHA: strings.Repeat("1", 40), NewSHA: strings.Repeat("2", 40), Path: path}
}

// run is the check run that such a session has in the end, made as publishing and
// reporting make it: of the verdict over the reports, of policy over the change,
// and of the question if either asks.
func (p *prepared) run(t *testing.T) github.CheckRun {
	t.Helper()
	m := p.manifest(t)
	for _, d := range m.Verdict.Doubts {
		p.change.Doubts = append(p.change.Doubts, policy.Item(d))
	}
	v := policy.Judge(p.change, policy.Rules{MaxFiles: 100, MaxBytes: 1 << 20, Verify: []string{p.command()}})
	if v.Refusal != nil {
		t.Fatal(v.Refusal)
	}
	m.Risks = v.Risks
	switch {
	case m.Verdict.Kind == evidence.Failed || m.Verdict.Kind == evidence.Nothing:
		return github.CheckRun{Conclusion: render.Failure, Title: m.Verdict.Words} // nothing is pushed
	case len(v.Ask) > 0:
		a := comment.Approval{Kind: "publish", Words: policy.AskWords(v.Ask), Digest: strings.Repeat("ab", 32), Until: time.Date(2027, 1, 5, 3, 4, 0, 0, time.UTC)}
		var items []scheduler.AskedItem
		for _, i := range v.Ask {
			a.Items, items = append(a.Items, i.What), append(items, scheduler.AskedItem(i))
		}
		run := Asking(id, m.BaseSHA, "http://127.0.0.1:8321/sessions/"+id, a)
		withEvidence(&run, items, &m)
		return run
	}
	out := render.CheckRun(m, render.Delivery{Branch: "inspect/7-x", HeadSHA: strings.Repeat("f", 40), PullRequest: 8, EvidenceDigest: strings.Repeat("1", 64), EventsHead: strings.Repeat("2", 64), EventsCount: 42})
	return github.CheckRun{Conclusion: render.Conclusion(m, false), Title: out.Title, Summary: out.Summary, Text: out.Text}
}

// manifest is what publishing writes of it, as far as a check run shows that.
func (p *prepared) manifest(t *testing.T) evidence.Manifest {
	t.Helper()
	j, err := evidence.Judge(p.outcome, func(sum string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(p.files[sum])), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m := evidence.Manifest{
		Version: evidence.ManifestVersion, Session: id, Repository: repoName, Issue: 7, BaseBranch: "main", BaseSHA: strings.Repeat("a", 40), Tree: strings.Repeat("c", 40),
		Verdict: j.Verdict, Checks: j.Checks, Base: j.Base, BaseTests: j.BaseTests, SameTests: j.Same, Compared: j.Compared,
		Snapshot: evidence.Snapshot{ID: "snap-1", Commit: strings.Repeat("a", 40), Store: "dir", Age: time.Minute, Restore: 12 * time.Millisecond},
		Sandbox:  evidence.Sandbox{Tier: "bubblewrap 0.8.0", Limits: "enforced"}, Harness: evidence.Harness{Kind: "opencode", Label: "OpenCode"}, SpecSource: ".inspect.yml",
	}
	for _, e := range p.change.Entries {
		m.Change.Files = append(m.Change.Files, evidence.ChangedFile{Path: e.Path, Added: 7, Deleted: 2})
		m.Change.Added, m.Change.Deleted = m.Change.Added+7, m.Change.Deleted+2
	}
	return m
}

// Ten sessions, five of them bad in different ways. From conclusion, title and
// first line alone a reviewer tells each of them right; the rest is golden.
func TestTenSessions(t *testing.T) {
	same := &wire.Column{Same: true}
	cols := func(v ...wire.VerifyResult) *wire.Column { return &wire.Column{Results: v} }
	all := []string{"adds", "removes", "totals"}
	packageJSON := func(script string) map[string]policy.Texts {
		return map[string]policy.Texts{"package.json": {Old: `{"scripts":{"test":"jest"}}`, New: `{"scripts":{"test":"` + script + `"}}`}}
	}
	for _, c := range []struct {
		name       string
		make       func(*prepared)
		conclusion string
		title      string   // begins so
		first      []string // in the first lines
	}{
		{"good-fix", func(p *prepared) {
			base := p.ran(1, junit("adds", "removes", "totals!"))
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit(all...))}, Base: cols(base), BaseTests: same}
			p.change.Entries = []policy.Entry{changedFile("src/cart.js")}
		}, render.Success, "fixed 1, 3 pass, +7 −2 in 1 file", []string{"own commands pass in a clean clone"}},
		{"good-feature", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit(append(all, "discounts", "discounts twice")...))}, Base: cols(p.ran(0, junit(all...))), BaseTests: cols(p.ran(0, junit(all...)))}
			p.change.Entries = []policy.Entry{changedFile("src/cart.js"), changedFile("src/cart.test.js")}
		}, render.Success, "5 pass, 2 new, +14 −4 in 2 files", []string{"own commands pass in a clean clone"}},
		{"good-docs", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit(all...))}, Base: cols(p.ran(0, junit(all...))), BaseTests: same}
			p.change.Entries = []policy.Entry{changedFile("README.md")}
		}, render.Success, "3 pass, +7 −2 in 1 file", []string{"own commands pass in a clean clone"}},
		{"good-flaky", func(p *prepared) {
			v := p.ran(1, junit("adds", "removes!", "totals"))
			v.Again = []wire.VerifyResult{p.ran(0, junit(all...))}
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{v}, Base: cols(p.ran(0, junit(all...))), BaseTests: same}
			p.change.Entries = []policy.Entry{changedFile("src/cart.js")}
		}, render.Success, "1 flaky, 3 pass", []string{"own commands pass in a clean clone"}},
		{"good-failed-before", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(1, junit("adds", "removes!", "totals"))}, Base: cols(p.ran(1, junit("adds!", "removes!", "totals"))), BaseTests: same}
			p.change.Entries = []policy.Entry{changedFile("src/cart.js")}
		}, render.Neutral, "no new failures: 1 fails on the base too, fixed 1, 2 pass", []string{"1 failure, on the base as well", "cart removes"}},
		{"bad-test-deleted", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit("adds", "removes"))}, Base: cols(p.ran(1, junit("adds", "removes", "totals!"))), BaseTests: cols(p.ran(1, junit("adds", "removes", "totals!")))}
			p.change.Entries = []policy.Entry{changedFile("src/cart.test.js")}
		}, render.ActionRequired, "Held back: 1 test vanished or is skipped now, 2 pass", []string{"Tests vanish with the change", "cart totals does not run any more; on the base it fails"}},
		{"bad-skip-added", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit("adds", "removes", "totals?"))}, Base: cols(p.ran(1, junit("adds", "removes", "totals!"))), BaseTests: cols(p.ran(1, junit("adds", "removes", "totals!")))}
			p.change.Entries = []policy.Entry{changedFile("src/cart.test.js")}
		}, render.ActionRequired, "Held back: 1 test vanished or is skipped now, 2 pass", []string{"Tests vanish with the change", "cart totals is skipped now; on the base it fails"}},
		{"bad-expectation-edited", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit(all...))}, Base: cols(p.ran(1, junit("adds", "removes", "totals!"))), BaseTests: cols(p.ran(1, junit("adds", "removes", "totals!")))}
			p.change.Entries = []policy.Entry{changedFile("src/cart.test.js")}
		}, render.Success, "1 of the base's tests fails: expectations changed, 3 pass", []string{"What is expected has changed", "cart totals", "they ask for something else"}},
		{"bad-command-made-good", func(p *prepared) {
			bad := junit("adds", "removes", "totals!")
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, bad)}, Base: cols(p.ran(1, bad)), BaseTests: same}
			p.change.Entries, p.change.Scripts = []policy.Entry{changedFile("package.json")}, packageJSON("jest || true")
		}, render.ActionRequired, "Held back: what verification runs is replaced, 1 report is not to be believed, 1 fails", []string{"replaces what verification runs", "package.json", "its report says 1 failed"}},
		{"bad-report-forged", func(p *prepared) {
			p.outcome = wire.Outcome{Results: []wire.VerifyResult{p.ran(0, junit("adds=0", "removes=0", "totals=0"))}, Base: cols(p.ran(1, junit("adds=9", "removes=9", "totals!"))), BaseTests: same}
			p.change.Entries = []policy.Entry{changedFile("src/cart.js")}
		}, render.ActionRequired, "Held back: 1 report is not to be believed", []string{"not to be believed", "took 18.9s on the base now take 0s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &prepared{files: map[string]string{}}
			c.make(p)
			run := p.run(t)
			if run.Conclusion != c.conclusion || !strings.HasPrefix(run.Title, c.title) {
				t.Errorf("%s: %s; want %s: %s", run.Conclusion, run.Title, c.conclusion, c.title)
			}
			head := strings.Join(strings.SplitN(run.Summary, "\n", 7)[:min(6, strings.Count(run.Summary, "\n")+1)], "\n")
			for _, w := range c.first {
				if !strings.Contains(head, w) {
					t.Errorf("the first lines lack %q:\n%s", w, head)
				}
			}
			got := run.Conclusion + ": " + run.Title + "\n\n--- summary\n" + run.Summary + "\n--- text\n" + run.Text
			path := filepath.Join("testdata", c.name+".md")
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
				t.Error(d)
			}
		})
	}
}
