package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"inspect/checks/evidence"
	"inspect/envs/wire"
)

// 10,000 tests, 3,000 findings, 2 MB of output, four-byte characters wherever a
// limit falls, nested fences, a file named with a newline and a bar: one correct
// check run, which githubd takes, who counts bytes, and GitHub's own description,
// which the fixture asks of each request.
func TestHostileSize(t *testing.T) {
	w := &world{t: t}
	p := &prepared{files: map[string]string{}}
	odd := "a|b\n`c`\n@octocat </details> 😀.js"
	fence := strings.Repeat("`", 9)
	output := strings.Repeat("😀", 300) + "\n" + fence + "\n```\n~~~~\n</details></summary> @octocat fixes #1 <img src=x>\n<!-- " + strings.Repeat("`", 40) + "\n"
	gotest := func(failed int) string {
		var b strings.Builder
		line := func(v map[string]any) {
			body, err := json.Marshal(v)
			w.ok(err)
			b.Write(append(body, '\n'))
		}
		for i := range 10_000 {
			name := fmt.Sprintf("Test%d/😀|<b>`@octocat`", i)
			line(map[string]any{"Action": "run", "Package": "m/" + odd, "Test": name})
			action := "pass"
			if i < failed {
				action = "fail"
				line(map[string]any{"Action": "output", "Package": "m/" + odd, "Test": name, "Output": output})
			}
			line(map[string]any{"Action": action, "Package": "m/" + odd, "Test": name, "Elapsed": 0})
		}
		line(map[string]any{"Action": "fail", "Package": "m/" + odd, "Elapsed": 1})
		return b.String()
	}
	many := gotest(1_200) // each with its output: some 2 MB
	if len(many) < 2<<20 {
		t.Fatalf("the report has only %d bytes", len(many))
	}
	var findings []string
	for i := range 3_000 {
		path, err := json.Marshal([]string{"a.go", odd}[i%2])
		w.ok(err)
		findings = append(findings, fmt.Sprintf(`{"ruleId":"R|%d😀","level":"error","message":{"text":%q},"locations":[{"physicalLocation":{"artifactLocation":{"uri":%s},"region":{"startLine":%d}}}]}`, i, strings.Repeat("😀", 300), path, i+1))
	}
	sarif := `{"version":"2.1.0","runs":[{"results":[` + strings.Join(findings, ",") + `]}]}`
	unit := wire.VerifyResult{Name: "unit", Run: "go test -json " + strings.Repeat("😀|`\n", 500), Report: "gotest", ExitCode: 1, Duration: time.Minute, Stdout: "many"}
	lint := wire.VerifyResult{Name: "lint", Run: "lint", Report: "sarif:l.json", ExitCode: 1, Duration: time.Minute, Stdout: "none", Reports: []wire.ReportFile{{Path: "l.json", SHA256: "sarif"}}}
	p.files["many"], p.files["sarif"], p.files["none"] = many, sarif, ""
	// All that fails does on the base as well, and one command is mended, so that it is delivered.
	mended := wire.VerifyResult{Name: "mended", Run: "make", Duration: time.Minute, Stdout: "none"}
	broken := mended
	broken.ExitCode = 2
	p.outcome = wire.Outcome{Results: []wire.VerifyResult{unit, lint, mended}, Base: &wire.Column{Results: []wire.VerifyResult{unit, lint, broken}}, BaseTests: &wire.Column{Same: true}}
	m := p.manifest(t)
	if m.Verdict.Kind != evidence.NoNew || m.Verdict.Standing != 1_202 || m.Verdict.Passed != 8_801 {
		t.Fatalf("%s, %d standing, %d pass: %s", m.Verdict.Kind, m.Verdict.Standing, m.Verdict.Passed, m.Verdict.Words)
	}
	m.Change.Files = []evidence.ChangedFile{{Path: odd, Added: 1}}
	for range 200 {
		m.Files = append(m.Files, evidence.File{Name: odd, SHA256: strings.Repeat("9", 64)})
	}
	for lead := range 4 { // wherever a limit falls among the four bytes
		w := newWorld(t)
		w.report()
		w.delivered()
		w.kept.manifest = m
		w.kept.manifest.Checks = append([]evidence.Check(nil), m.Checks...)
		w.kept.manifest.Checks[0].Run = strings.Repeat("x", lead) + m.Checks[0].Run
		w.server.ResetRecord()
		w.report()
		runs, err := w.server.CheckRuns(repoName)
		w.ok(err)
		if len(runs) != 1 || runs[0].Conclusion != "neutral" || runs[0].Title != "no new failures: 1202 fail on the base too, fixed 1, 8801 pass, +0 −0 in 1 file" {
			t.Fatalf("%d runs: %s %q", len(runs), runs[0].Conclusion, runs[0].Title)
		}
		if n, err := w.client().CountAnnotations(t.Context(), w.githubRepo(), w.head, id); err != nil || n != 250 {
			t.Errorf("%d annotations, %v", n, err)
		}
		if c := w.server.Counts(); c.Warnings != 0 || c.Unknown != 0 {
			t.Errorf("%+v", c)
		}
		created := 0
		for _, r := range w.server.Requests() {
			if r.Route == "checks/create" {
				created++
			}
		}
		for name, text := range map[string]string{"summary": runs[0].Summary, "text": runs[0].Text} {
			if len(text) > 65535 || !utf8.ValidString(text) || strings.Contains(text, "\uFFFD") {
				t.Errorf("%s: %d bytes, or a character that was cut", name, len(text))
			}
			outside, open := outsideFences(text)
			if open || strings.Count(outside, "<details>") != strings.Count(outside, "</details>") {
				t.Errorf("%s leaves something open", name)
			}
			for _, live := range []string{"@octocat", "<img", "<b>", "fixes #1"} {
				if strings.Contains(outside, live) {
					t.Errorf("%s has %q outside of code", name, live)
				}
			}
		}
		if !strings.Contains(runs[0].Summary, "1202 failures, on the base as well") || !strings.Contains(runs[0].Summary, "and 1192 more") || !strings.Contains(runs[0].Summary, "3000 findings; at most 250") {
			t.Errorf("the summary does not say how many there are:\n%s", runs[0].Summary)
		}
		if created != 1 {
			t.Errorf("%d check runs were made", created)
		}
	}
}

// outsideFences is what of a text stands in no block and no span of code, and
// whether a block is left open.
func outsideFences(text string) (string, bool) {
	var b strings.Builder
	fence := ""
	for line := range strings.Lines(text) {
		bare := strings.TrimRight(line, "\n")
		ticks := bare[:len(bare)-len(strings.TrimLeft(bare, "`"))]
		switch {
		case fence != "":
			if len(ticks) >= len(fence) && ticks == bare {
				fence = ""
			}
		case len(ticks) >= 3 && !strings.Contains(bare[len(ticks):], "`"):
			fence = ticks
		default:
			b.WriteString(withoutSpans(line))
		}
	}
	return b.String(), fence != ""
}

func withoutSpans(line string) string {
	var b strings.Builder
	for line != "" {
		at := strings.IndexByte(line, '`')
		if at < 0 {
			break
		}
		b.WriteString(line[:at])
		rest := strings.TrimLeft(line[at:], "`")
		ticks := line[at : len(line)-len(rest)]
		end := -1
		for from := 0; ; {
			i := strings.Index(rest[from:], ticks)
			if i < 0 {
				break
			}
			i += from
			run := len(rest[i:]) - len(strings.TrimLeft(rest[i:], "`"))
			if run == len(ticks) {
				end = i + run
				break
			}
			from = i + run
		}
		if end < 0 { // no span: the ticks are text
			b.WriteString(ticks)
			line = rest
			continue
		}
		line = rest[end:]
	}
	return b.String() + line
}
