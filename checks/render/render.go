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
	Title   string
	Summary string
	Text    string
}

// CheckRun writes the check run of a delivered session.
func CheckRun(m evidence.Manifest, d Delivery) Output {
	return Output{
		Title:   Title(m),
		Summary: redact.Cut(summary(m, d), MaxSummary),
		Text:    closeFences(details(m), MaxText),
	}
}

// Title is the verdict in one line.
func Title(m evidence.Manifest) string {
	v := m.Verdict
	var parts []string
	if v.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d fail", v.Failed))
	}
	parts = append(parts, fmt.Sprintf("%d pass", v.Passed))
	if v.Skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", v.Skipped))
	}
	parts = append(parts, Statistics(m.Change))
	return redact.Cut(strings.Join(parts, ", "), MaxTitle)
}

// Statistics says how large a change is: "+14 −3 in 2 files".
func Statistics(c evidence.Change) string {
	files := "files"
	if len(c.Files) == 1 {
		files = "file"
	}
	return fmt.Sprintf("+%d −%d in %d %s", c.Added, c.Deleted, len(c.Files), files)
}

func summary(m evidence.Manifest, d Delivery) string {
	var b strings.Builder
	switch m.Verdict.Kind {
	case evidence.Passed:
		b.WriteString("**The repository's own commands pass in a clean clone of the result.**")
	case evidence.Failed:
		b.WriteString("**The repository's own commands fail in a clean clone of the result.**")
	default:
		b.WriteString("**Nothing ran that could show whether the result works.**")
	}
	b.WriteString(" They ran after the agent had ended, outside its reach: " + reach(m.Egress) + ".\n\n")
	if n := len(m.Change.Withheld); n > 0 {
		fmt.Fprintf(&b, "> %d changed path(s) are not in this commit, since GitHub refuses them to apps; they are in the evidence as a patch: %s. The commands ran with them.\n\n", n, codeList(m.Change.Withheld, 10))
	}

	if len(m.Risks) > 0 {
		b.WriteString("**Look twice**\n\n")
		for i, r := range m.Risks {
			if i == 20 {
				break
			}
			b.WriteString("- " + redact.Neutralise(redact.OneLine(r, 600)) + "\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("| command | result | time |\n|---|---|---|\n")
	for i, c := range m.Checks {
		if i == 50 {
			fmt.Fprintf(&b, "| %d more | | |\n", len(m.Checks)-i)
			break
		}
		mark := "❌"
		if c.Passed {
			mark = "✅"
		}
		fmt.Fprintf(&b, "| %s %s | %s %s | %s |\n", redact.Cell(redact.Neutralise(redact.OneLine(c.Name, 60))),
			redact.Cell(redact.Code(redact.Cut(c.Run, 120))), mark, redact.Cell(redact.Neutralise(redact.OneLine(c.Words, 200))), Duration(c.Duration))
	}

	fmt.Fprintf(&b, "\n**Changed**: %s\n\n", Statistics(m.Change))
	b.WriteString("| file | added | deleted |\n|---|---|---|\n")
	for i, f := range m.Change.Files {
		if i == 30 {
			fmt.Fprintf(&b, "| %d more | | |\n", len(m.Change.Files)-i)
			break
		}
		added, deleted := fmt.Sprintf("+%d", f.Added), fmt.Sprintf("−%d", f.Deleted)
		if f.Added < 0 {
			added, deleted = "binary", ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", redact.Cell(redact.Code(redact.Cut(f.Path, 200))), added, deleted)
	}

	drift := "the session's base"
	if m.Snapshot.Drift {
		drift = "older than the session's base " + short(m.BaseSHA) + ", synchronised before the work"
	}
	b.WriteString("\n**Where it ran**\n\n| | |\n|---|---|\n")
	row := func(k, v string) { fmt.Fprintf(&b, "| %s | %s |\n", k, redact.Cell(v)) }
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

	b.WriteString("\n**Receipt**\n\n| | |\n|---|---|\n")
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
	if d.SessionURL != "" {
		row("session", d.SessionURL)
	}
	return b.String()
}

func details(m evidence.Manifest) string {
	var b strings.Builder
	for _, c := range m.Checks {
		fmt.Fprintf(&b, "### %s: %s\n\n", redact.Neutralise(redact.OneLine(c.Name, 60)), redact.Neutralise(redact.OneLine(c.Words, 200)))
		b.WriteString(redact.Fence(redact.Cut(c.Run, 2000), "sh") + "\n\n")
		if c.Tests == nil {
			continue
		}
		fmt.Fprintf(&b, "%d passed, %d failed, %d skipped\n\n", c.Tests.Passed, c.Tests.Failed, c.Tests.Skipped)
		for _, f := range c.Tests.Failures {
			name := f.Test
			if name == "" {
				name = "(package)"
			}
			fmt.Fprintf(&b, "<details><summary>%s %s</summary>\n\n%s\n\n</details>\n\n", redact.Neutralise(f.Package), redact.Neutralise(name), redact.Fence(f.Output, ""))
		}
	}
	b.WriteString("### Evidence files\n\n| file | bytes | sha256 |\n|---|---|---|\n")
	for i, f := range m.Files {
		if i == 200 {
			fmt.Fprintf(&b, "| %d more | | |\n", len(m.Files)-i)
			break
		}
		fmt.Fprintf(&b, "| %s | %d | %s |\n", redact.Cell(redact.Code(redact.Cut(f.Name, 120))), f.Bytes, redact.Code(f.SHA256))
	}
	return b.String()
}

// closeFences cuts text to max bytes at the end of a line and ends a code
// block or fold that the cut left open.
func closeFences(text string, max int) string {
	if len(text) <= max {
		return text
	}
	const note = "\n\n(cut: the rest is in the evidence)\n"
	keep := redact.Cut(text, max-len(note)-128)
	if at := strings.LastIndexByte(keep, '\n'); at > 0 {
		keep = keep[:at]
	}
	fence := ""
	for line := range strings.SplitSeq(keep, "\n") {
		ticks := line[:len(line)-len(strings.TrimLeft(line, "`"))]
		switch {
		case len(ticks) < 3:
		case fence == "":
			fence = ticks
		case len(ticks) >= len(fence) && strings.TrimLeft(line, "`") == "":
			fence = ""
		}
	}
	if fence != "" {
		keep += "\n" + redact.Cut(fence, 100)
	}
	if strings.Count(keep, "<details>") > strings.Count(keep, "</details>") {
		keep += "\n\n</details>"
	}
	return keep + note
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
