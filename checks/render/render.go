// Package render turns evidence into the text of a check run: a title that is
// the verdict, a summary of one screen, details below. It is pure. Whatever an
// agent or a repository wrote appears only as neutralised text or in fences,
// and every part fits GitHub's limits, which count bytes.
package render

import (
	"fmt"
	"strings"

	"inspect/checks/evidence"
	"inspect/checks/redact"
)

// GitHub's limits, in bytes. The server answers 422 one byte above
// ("exceeds a maximum bytesize of 65535"); a margin is kept for what the
// outbound funnel replaces.
const (
	MaxTitle   = 255
	MaxSummary = 65535 - 1024
	MaxText    = 65535 - 1024
)

// Conclusions of a check run that we use.
const (
	Success        = "success"
	Failure        = "failure"
	Neutral        = "neutral"
	Cancelled      = "cancelled"
	TimedOut       = "timed_out"
	ActionRequired = "action_required"
)

// Conclusion of the check run of a result that was delivered: success only for
// what passed, or what a person accepted.
func Conclusion(m evidence.Manifest, required bool) string {
	switch m.Verdict.Kind {
	case evidence.Passed, evidence.Doubtful:
		return Success
	case evidence.NoNew:
		return Ask(Neutral, required)
	}
	return Failure
}

// Ask is a conclusion as a repository wants it that requires the check: GitHub
// counts a neutral one as passed.
func Ask(conclusion string, required bool) string {
	if required && conclusion == Neutral {
		return ActionRequired
	}
	return conclusion
}

// Delivery is what the manifest cannot know: where the result went.
type Delivery struct {
	Branch         string
	HeadSHA        string // read back from the remote
	PullRequest    int
	EvidenceDigest string
	EventsHead     string
	EventsCount    int64
	SessionURL     string
}

// Output is the text of a check run.
type Output struct {
	Title       string
	Summary     string
	Text        string
	Annotations []Annotation
}

// CheckRun writes the check run of a delivered session.
func CheckRun(m evidence.Manifest, d Delivery) Output {
	return Output{
		Title:       Title(m),
		Summary:     closeOpen(summary(m, d), MaxSummary),
		Text:        closeOpen(details(m, d), MaxText),
		Annotations: annotations(m),
	}
}

// Brief is what verification showed of a result that is not delivered yet. What is
// to be accepted stands in the question above it.
func Brief(m evidence.Manifest) string {
	m.Verdict.Doubts = nil
	s := Verdict(m) + table(m)
	if notes := Notes(m); len(notes) > 0 {
		s += "**Look twice**\n\n" + list(notes, 12)
	}
	return s
}

// Title is the verdict in one line: what is bad first.
func Title(m evidence.Manifest) string {
	v := m.Verdict
	var parts []string
	say := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, many))
		}
	}
	failed, passed := v.Failed, fmt.Sprintf("%d pass", v.Passed)
	switch v.Kind {
	case evidence.NoNew:
		fails := "fail"
		if v.Standing == 1 {
			fails = "fails"
		}
		parts, failed = append(parts, fmt.Sprintf("no new failures: %d %s on the base too", v.Standing, fails)), 0
	case evidence.Doubtful:
		// The commands themselves, whose reports are doubted, are counted as failed.
		failed = 0
		for _, c := range m.Checks {
			if c.Tests != nil {
				failed += c.Tests.Failed
			}
		}
		doubted := map[string]int{}
		for _, d := range v.Doubts {
			doubted[d.Reason]++
		}
		if doubted[evidence.DoubtReport] > 0 {
			v.Fixed, passed = 0, passed+" by what is reported"
		}
		say(doubted[evidence.DoubtReport], "report is not to be believed", "reports are not to be believed")
		if v.Vanished == 0 && doubted[evidence.DoubtCompared] > 0 {
			parts = append(parts, "not compared with the base")
		}
	case evidence.Nothing:
		parts = append(parts, "nothing ran that shows anything")
	}
	say(v.Vanished, "test vanished or is skipped now", "tests vanished or are skipped now")
	say(failed, "fails", "fail")
	say(len(v.Old), "of the base's tests fails: expectations changed", "of the base's tests fail: expectations changed")
	say(v.Flaky, "flaky", "flaky")
	if v.Fixed > 0 {
		parts = append(parts, fmt.Sprintf("fixed %d", v.Fixed))
	}
	parts = append(parts, passed)
	if n := added(m); n > 0 {
		parts = append(parts, fmt.Sprintf("%d new", n))
	}
	if len(v.Uncompared) > 0 {
		parts = append(parts, "no test ran on the base")
	}
	if v.Skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", v.Skipped))
	}
	parts = append(parts, Statistics(m.Change))
	return redact.Cut(strings.Join(parts, ", "), MaxTitle)
}

// added counts the tests that the base does not have.
func added(m evidence.Manifest) (n int) {
	for _, c := range m.Compared {
		n += len(c.New)
	}
	return n
}

// Statistics says how large a change is: "+14 −3 in 2 files".
func Statistics(c evidence.Change) string {
	files := "files"
	if len(c.Files) == 1 {
		files = "file"
	}
	return fmt.Sprintf("+%d −%d in %d %s", c.Added, c.Deleted, len(c.Files), files)
}

// summary is one screen: the verdict, the receipt, the table, what to look at
// twice, and what it cost.
func summary(m evidence.Manifest, d Delivery) string {
	var b strings.Builder
	b.WriteString(Verdict(m))
	fmt.Fprintf(&b, "**Receipt**: commit %s on %s, read back from the remote", short(d.HeadSHA), code(d.Branch, 120))
	if d.PullRequest > 0 {
		fmt.Fprintf(&b, "; pull request %d", d.PullRequest)
	}
	fmt.Fprintf(&b, "; evidence %s; events %d, chain head %s", redact.Code("sha256:"+d.EvidenceDigest), d.EventsCount, short(d.EventsHead))
	if d.SessionURL != "" {
		b.WriteString("; [session and all files](" + d.SessionURL + ")")
	}
	b.WriteString("\n\n" + table(m))
	b.WriteString(screenshots(m, d))
	if n := len(m.Change.Withheld); n > 0 {
		fmt.Fprintf(&b, "> %d changed path(s) are not in this commit, since GitHub refuses them to apps; they are in the evidence as a patch: %s. The commands ran with them.\n\n", n, codeList(m.Change.Withheld, 10))
	}
	if notes := Notes(m); len(notes) > 0 {
		b.WriteString("**Look twice**\n\n" + list(notes, 12))
	}
	fmt.Fprintf(&b, "**Changed** %s. **Took** %s to restore, %s of work, %s to verify.", Statistics(m.Change), Duration(m.Times.Restore), Duration(m.Times.Work), Duration(m.Times.Verify))
	if m.Model.Name != "" {
		b.WriteString(" **Cost** " + plain(Cost(m.Model), 400) + ".")
	}
	b.WriteString("\n")
	return b.String()
}

// Verdict says what verification showed, with what a person has to know first:
// what nobody should believe without looking, then what is expected otherwise.
func Verdict(m evidence.Manifest) string {
	var b strings.Builder
	v := m.Verdict
	for _, a := range m.Approvals {
		if a.Kind == "publish" && a.State == "approved" {
			b.WriteString("**Held back until " + plain(a.By, 60) + " allowed it:** " + plain(a.Words, 600) + "\n\n")
		}
	}
	if n := len(v.Doubts); n > 0 {
		b.WriteString("**" + Count(n, "thing", "things") + " to be accepted by a person who did not ask for this work:**\n\n")
		var items []string
		for _, d := range v.Doubts {
			items = append(items, d.What)
		}
		b.WriteString(list(items, 10))
	}
	if v.Kind == evidence.NoNew {
		b.WriteString("**" + Count(v.Standing, "failure", "failures") + ", on the base as well:**\n\n" + listOf(v.Stands, 10, v.Standing))
	}
	if len(v.Old) > 0 {
		b.WriteString("**What is expected has changed: with the base's own tests over the changed sources, these do not pass. Where the result's own do, they ask for something else:**\n\n" + list(v.Old, 10))
	}
	switch v.Kind {
	case evidence.Passed:
		b.WriteString("**The repository's own commands pass in a clean clone of the result.**")
	case evidence.Doubtful:
		b.WriteString("**The repository's own commands end well in a clean clone of the result, but what they show is in doubt.**")
	case evidence.NoNew:
		b.WriteString("**The repository's own commands fail in a clean clone of the result as they fail in one of the base.**")
		if v.Passed == 0 {
			b.WriteString(" **Nothing passes besides, so nothing shows that the result works.**")
		} else {
			b.WriteString(" That nothing else fails is the word of their reports alone.")
		}
	case evidence.Failed:
		b.WriteString("**The repository's own commands fail in a clean clone of the result.**")
	default:
		b.WriteString("**Nothing ran that could show whether the result works.**")
	}
	if len(v.Uncompared) > 0 {
		b.WriteString(" **On the base no test ran, so nobody knows whether one has vanished:** " + plain(strings.Join(v.Uncompared, "; "), 400) + ".")
	}
	b.WriteString(" They ran after the agent had ended, outside its reach: " + reach(m.Egress) + ".\n\n")
	return b.String()
}

// list is Markdown's, of untrusted texts, with how many are left out.
func list(items []string, most int) string { return listOf(items, most, len(items)) }

// listOf is list where not all of them are named.
func listOf(items []string, most, all int) string {
	var b strings.Builder
	for i, s := range items {
		if i == most {
			fmt.Fprintf(&b, "- and %d more\n", all-i)
			break
		}
		b.WriteString("- " + plain(s, 400) + "\n")
	}
	return b.String() + "\n"
}

// table has a row for each command and a column for each clone it ran in.
func table(m evidence.Manifest) string {
	var b strings.Builder
	b.WriteString("| command | base | result | base's tests on the result | time |\n|---|---|---|---|---|\n")
	for i, c := range m.Checks {
		if i == 20 {
			fmt.Fprintf(&b, "| %d more | | | | |\n", len(m.Checks)-i)
			break
		}
		old := cell(m.BaseTests, c.Name)
		if m.SameTests {
			old = "the same tests"
		}
		fmt.Fprintf(&b, "| %s %s | %s | %s | %s | %s |\n", redact.Cell(plain(c.Name, 60)), redact.Cell(code(c.Run, 80)),
			cell(m.Base, c.Name), mark(c)+" "+redact.Cell(plain(c.Words, 160)), old, Duration(c.Duration))
	}
	return b.String() + "\n"
}

// screenshots says of each page how much of it has changed, and where it is shown.
func screenshots(m evidence.Manifest, d Delivery) string {
	var parts []string
	for i, s := range m.Screenshots {
		if i == 10 {
			parts = append(parts, fmt.Sprintf("and %d more", len(m.Screenshots)-i))
			break
		}
		words := s.Share()
		if words == "" {
			words = strings.TrimSuffix(strings.TrimSpace(s.Words), ".")
		}
		name := plain(s.Name, 60)
		if d.SessionURL != "" {
			name = "[" + name + "](" + d.SessionURL + "#screenshots)"
		}
		parts = append(parts, name+": "+plain(words, 300))
	}
	if len(parts) == 0 {
		return ""
	}
	return "**Screenshots** before and after: " + strings.Join(parts, " · ") + "\n\n"
}

func mark(c evidence.Check) string {
	switch {
	case c.Passed && len(c.Flaky) == 0:
		return "✅"
	case c.Passed, c.Doubt != "":
		return "⚠️"
	}
	return "❌"
}

func cell(checks []evidence.Check, name string) string {
	for _, c := range checks {
		if c.Name == name {
			return mark(c) + " " + redact.Cell(plain(c.Words, 100))
		}
	}
	return "not run"
}

// Notes are what a reviewer should look at twice, most important first.
func Notes(m evidence.Manifest) []string {
	var out []string
	for _, c := range m.Checks {
		if n := len(c.Flaky); n > 0 {
			out = append(out, fmt.Sprintf("%s: %s failed and passed when run again: %s", c.Name, Count(n, "test", "tests"), strings.Join(c.Flaky[:min(n, 3)], ", ")))
		}
	}
	for _, c := range m.Compared {
		if n := len(c.Still); n > 0 && m.Verdict.Kind != evidence.NoNew { // there it stands above
			out = append(out, fmt.Sprintf("%s: %s on the base as well: %s", c.Name, Count(n, "test fails", "tests fail"), strings.Join(c.Still[:min(n, 3)], ", ")))
		}
	}
	out = append(out, m.Verdict.Notes...)
	out = append(out, m.Risks...)
	for _, c := range m.Checks {
		if c.FindingsTotal > 0 {
			words := fmt.Sprintf("%s: %s", c.Name, Count(c.FindingsTotal, "finding", "findings"))
			if n := min(len(c.Findings), maxAnnotations); n < c.FindingsTotal {
				words += fmt.Sprintf("; at most %d are shown at their lines, all are in the evidence", n)
			}
			out = append(out, words)
		}
		switch cov := c.Coverage; {
		case cov == nil:
		case cov.Damage != "":
			out = append(out, c.Name+": the coverage of changed lines is not known: "+cov.Damage)
		case cov.Lines == 0:
			out = append(out, c.Name+": no changed line is one that a test could cover")
		default:
			out = append(out, fmt.Sprintf("%s: %d of %d changed lines are covered (%d %%)", c.Name, cov.Covered, cov.Lines, 100*cov.Covered/cov.Lines))
		}
	}
	return out
}

// details are folded, one fold for each thing a reviewer may want to know.
func details(m evidence.Manifest, d Delivery) string {
	var b strings.Builder
	fold := func(title string, body func()) {
		b.WriteString("<details><summary>" + title + "</summary>\n\n")
		body()
		b.WriteString("\n</details>\n\n")
	}
	for _, c := range m.Checks {
		fold(plain(c.Name, 60)+": "+plain(c.Words, 200), func() { command(&b, m, c) })
	}
	fold("Changed files: "+Statistics(m.Change), func() { changed(&b, m.Change) })
	fold("Where it ran", func() { place(&b, m) })
	fold("Receipt", func() { receipt(&b, m, d) })
	fold("Evidence files", func() {
		b.WriteString("| file | bytes | sha256 |\n|---|---|---|\n")
		for i, f := range m.Files {
			if i == 100 {
				fmt.Fprintf(&b, "| %d more | | |\n", len(m.Files)-i)
				break
			}
			fmt.Fprintf(&b, "| %s | %d | %s |\n", redact.Cell(code(f.Name, 120)), f.Bytes, redact.Code(f.SHA256))
		}
	})
	return b.String()
}

// command is one verify command in full.
func command(b *strings.Builder, m evidence.Manifest, c evidence.Check) {
	b.WriteString(redact.Fence(redact.Cut(c.Run, 2000), "sh") + "\n\n")
	if c.Tests != nil {
		fmt.Fprintf(b, "%d passed, %d failed, %d skipped\n\n", c.Tests.Passed, c.Tests.Failed, c.Tests.Skipped)
	}
	for _, d := range m.Compared {
		if d.Name != c.Name {
			continue
		}
		for _, l := range []struct {
			title string
			names []string
		}{
			{"Do not run any more", d.Gone}, {"Are skipped now", d.Skipped}, {"Fail with the base's tests", d.Old}, {"Fail now", d.Broken},
			{"Fail as on the base", d.Still}, {"Are fixed", d.Fixed}, {"Are new", d.New},
		} {
			if len(l.names) > 0 {
				fmt.Fprintf(b, "%s (%d):\n\n%s", l.title, len(l.names), list(l.names, 20))
			}
		}
	}
	if c.Tests == nil {
		return
	}
	for i, f := range c.Tests.Failures {
		if i == 20 {
			fmt.Fprintf(b, "%d more failures are in the evidence.\n", c.Tests.Failed-i)
			break
		}
		name := f.Test
		if name == "" {
			name = "(package)"
		}
		fmt.Fprintf(b, "<details><summary>%s %s</summary>\n\n%s\n\n</details>\n\n", plain(f.Package, 300), plain(name, 300), redact.Fence(f.Output, ""))
	}
}

func changed(b *strings.Builder, c evidence.Change) {
	b.WriteString("| file | added | deleted |\n|---|---|---|\n")
	for i, f := range c.Files {
		if i == 100 {
			fmt.Fprintf(b, "| %d more | | |\n", len(c.Files)-i)
			break
		}
		added, deleted := fmt.Sprintf("+%d", f.Added), fmt.Sprintf("−%d", f.Deleted)
		if f.Added < 0 {
			added, deleted = "binary", ""
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", redact.Cell(code(f.Path, 200)), added, deleted)
	}
}

func place(b *strings.Builder, m evidence.Manifest) {
	drift := "the session's base"
	if m.Snapshot.Drift {
		drift = "older than the session's base " + short(m.BaseSHA) + ", synchronised before the work"
	}
	b.WriteString("| | |\n|---|---|\n")
	row := func(k, v string) { fmt.Fprintf(b, "| %s | %s |\n", k, redact.Cell(v)) }
	row("snapshot", fmt.Sprintf("%s of commit %s (%s), %s, restored in %s (%s store)",
		redact.Code(m.Snapshot.ID), short(m.Snapshot.Commit), drift, Age(m.Snapshot.Age), Duration(m.Snapshot.Restore), redact.OneLine(m.Snapshot.Store, 20)))
	row("harness", plain(m.Harness.Label, 80)+" ("+redact.OneLine(m.Harness.Kind, 20)+")")
	if t := Tools(m.Agent); t != "" {
		row("agent", t)
	}
	if m.Model.Name != "" {
		row("model", fmt.Sprintf("%s; %s in, %d out", code(m.Model.Name, 120), Count(m.Model.InputTokens, "token", "tokens"), m.Model.OutputTokens))
		row("cost", plain(Cost(m.Model), 400))
	}
	row("egress", egress(m.Egress))
	row("sandbox", redact.OneLine(m.Sandbox.Tier, 80)+"; limits "+plain(m.Sandbox.Limits, 200))
	row("environment", redact.Code(m.SpecSource)+setup(m.Environment))
	if m.Environment.Image != "" {
		row("image", code(m.Environment.Image, 300))
	}
	if len(m.Environment.Services) > 0 {
		row("services", codeList(m.Environment.Services, 20)+", started for the agent and again for verification")
	}
	if m.Environment.Data != "" {
		row("data", plain(m.Environment.Data, 40))
	}
	row("attempt", fmt.Sprintf("%d", m.Generation))
	row("times", times(m.Times))

}

func receipt(b *strings.Builder, m evidence.Manifest, d Delivery) {
	b.WriteString("| | |\n|---|---|\n")
	row := func(k, v string) { fmt.Fprintf(b, "| %s | %s |\n", k, redact.Cell(v)) }
	row("pushed", fmt.Sprintf("%s to %s, read back from the remote", short(d.HeadSHA), redact.Code(d.Branch)))
	row("base", fmt.Sprintf("%s of %s", short(m.BaseSHA), redact.Code(m.BaseBranch)))
	row("verified tree", short(m.Tree))
	if d.PullRequest > 0 {
		row("pull request", fmt.Sprintf("%d", d.PullRequest))
	}
	row("evidence", redact.Code("sha256:"+d.EvidenceDigest))
	row("events", fmt.Sprintf("%d, chain head %s", d.EventsCount, redact.Code(d.EventsHead)))
	told := redact.Code("sha256:" + m.ContextDigest)
	if m.Instructions != "" {
		told += "; as it got it, with the repository's instructions: " + redact.Code("sha256:"+m.Instructions)
	}
	row("told to the agent", told)
	for _, a := range m.Approvals {
		row(plain(a.Kind, 20)+" "+plain(a.State, 20), plain(a.By, 60)+": "+plain(a.Words, 400))
	}
}

// Fit is Markdown of ours in at most most bytes, which are more than a thousand:
// cut at the end of a line, with everything closed that the cut left open.
func Fit(text string, most int) string { return closeOpen(text, most) }

// closeOpen cuts text to most bytes at the end of a line and ends the code block
// and the folds that the cut left open. Folds are only ours: in what others wrote
// there is no HTML outside of code blocks.
func closeOpen(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const (
		note    = "\n\n(cut: the rest is in the evidence)\n"
		end     = "\n\n</details>"
		longest = 100 // fence that is closed; of a longer one the block is left out
		reserve = len(note) + longest + 1 + 4*len(end)
	)
	keep := redact.Cut(text, most-reserve)
	keep = keep[:strings.LastIndexByte(keep, '\n')+1]
	fence, begun, folds, at := "", 0, 0, 0
	for line := range strings.Lines(keep) {
		bare := strings.TrimRight(line, "\n")
		ticks := bare[:len(bare)-len(strings.TrimLeft(bare, "`"))]
		switch {
		case fence != "":
			if len(ticks) >= len(fence) && ticks == bare {
				fence = ""
			}
		case len(ticks) >= 3 && !strings.Contains(bare[len(ticks):], "`"):
			fence, begun = ticks, at
		default:
			folds += strings.Count(line, "<details>") - strings.Count(line, "</details>")
		}
		at += len(line)
	}
	if len(fence) > longest {
		keep, fence = keep[:begun], ""
	}
	keep = strings.TrimRight(keep, "\n")
	if fence != "" {
		keep += "\n" + fence
	}
	return keep + strings.Repeat(end, max(folds, 0)) + note
}

// reach says what verification could reach.
func reach(e evidence.Egress) string {
	if len(e.Declared) == 0 {
		return "no agent, no network"
	}
	return "no agent; network only to: " + codeList(e.Declared, 20)
}

// egress says what could be reached and what was refused.
func egress(e evidence.Egress) string {
	parts := []string{"nothing is declared"}
	if len(e.Declared) > 0 {
		parts[0] = codeList(e.Declared, 20)
	}
	if len(e.Setup) > 0 {
		parts = append(parts, "for setup alone, guessed: "+codeList(e.Setup, 20))
	}
	if e.Allowed > 0 {
		parts = append(parts, Count(e.Allowed, "connection", "connections")+" allowed")
	}
	if e.Sent+e.Received > 0 {
		parts = append(parts, Bytes(e.Sent)+" sent, "+Bytes(e.Received)+" received")
	}
	var tried, noise []evidence.Refused
	for _, r := range e.Refused {
		if r.Noise {
			noise = append(noise, r)
		} else {
			tried = append(tried, r)
		}
	}
	if s := refusedList(tried, 10); s != "" {
		parts = append(parts, "**refused**: "+s)
	}
	if s := refusedList(noise, 5); s != "" {
		parts = append(parts, "refused, but the harness's own doing and not the agent's: "+s)
	}
	if e.More > 0 {
		parts = append(parts, Count(e.More, "further destination", "further destinations")+" refused")
	}
	return strings.Join(parts, "; ")
}

// refusedList names the first few: host:port (command) ×n.
func refusedList(list []evidence.Refused, most int) string {
	var out []string
	for i, r := range list {
		if i == most {
			out = append(out, fmt.Sprintf("%d more", len(list)-i))
			break
		}
		s := code(r.Address(), 120) + Asked(r)
		if r.Verification {
			s += " by verification"
		}
		out = append(out, s+fmt.Sprintf(" ×%d", r.Count))
	}
	return strings.Join(out, ", ")
}

func setup(e evidence.Environment) string {
	if e.Setup == 0 {
		return ""
	}
	return "; " + Count(e.Setup, "setup command", "setup commands") + " in the snapshot"
}

func times(t evidence.Times) string {
	ready := ""
	if t.Ready > 0 {
		ready = fmt.Sprintf("agent ready %s after the restore began, ", Duration(t.Ready))
	}
	return fmt.Sprintf("restore %s, sync %s, %swork %s, verification %s", Duration(t.Restore), Duration(t.Sync), ready, Duration(t.Work), Duration(t.Verify))
}

// plain is untrusted text as one harmless line.
func plain(s string, maxBytes int) string { return redact.Neutralise(redact.OneLine(s, maxBytes)) }

// code is untrusted text as a code span.
func code(s string, maxBytes int) string { return redact.Code(redact.Cut(s, maxBytes)) }

func codeList(paths []string, most int) string {
	var out []string
	for i, p := range paths {
		if i == most {
			out = append(out, fmt.Sprintf("%d more", len(paths)-i))
			break
		}
		out = append(out, redact.Code(redact.Cut(p, 120)))
	}
	return strings.Join(out, ", ")
}

func short(sha string) string {
	if len(sha) > 12 {
		sha = sha[:12]
	}
	return redact.Code(sha)
}
