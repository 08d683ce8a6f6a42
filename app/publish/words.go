package publish

import (
	"fmt"
	"regexp"
	"strings"

	"inspect/app/comment"
	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/storage"
)

// Bounds of texts, in bytes.
const (
	maxSubject     = 100
	maxMessageShow = 8 << 10
	maxRequestShow = 4 << 10
)

const zeroWidth = "\u200b"

var (
	atName    = regexp.MustCompile(`@(\w)`)
	numberRef = regexp.MustCompile(`(?i)(#|\bGH-)(\d)`)
	address   = regexp.MustCompile(`(?i)\b(https?|ssh|git):`)
)

// plain makes untrusted text harmless in a commit message, which is no
// Markdown: no mention, no reference that could close an issue, no address
// that is one, nothing invisible, no secret.
func plain(r *redact.Redactor, s string) string {
	s = redact.Visible(r.String(s))
	s = atName.ReplaceAllString(s, "@"+zeroWidth+"$1")
	s = numberRef.ReplaceAllString(s, "$1"+zeroWidth+"$2")
	return address.ReplaceAllString(s, "$1"+zeroWidth+":")
}

// commitMessage is the message of the commit that is pushed. Only its first
// line and what is indented come from others.
// signer, if there is one, signs off (the Developer Certificate of Origin): last
// of the trailers, as git does.
func commitMessage(r *redact.Redactor, s storage.Session, messages []string, url string, signer Identity) string {
	var b strings.Builder
	b.WriteString(subject(r, s) + "\n\n")
	if s.IssueNumber > 0 {
		fmt.Fprintf(&b, "Refs #%d\n\n", s.IssueNumber)
	}
	if len(messages) > 0 {
		b.WriteString("What the agent wrote in its commits:\n\n")
		var list strings.Builder
		for _, m := range messages {
			lines := strings.Split(strings.TrimSpace(plain(r, m)), "\n")
			for i, l := range lines {
				mark := "  "
				if i == 0 {
					mark = "* "
				}
				list.WriteString(strings.TrimRight(mark+l, " \t") + "\n")
			}
		}
		b.WriteString(strings.TrimRight(redact.Cut(list.String(), maxMessageShow), "\n") + "\n\n")
	}
	if s.RequesterID > 0 { // an account of a forge
		who := identity(s.RequesterLogin, "")
		fmt.Fprintf(&b, "Co-authored-by: %s <%d+%s@users.noreply.github.com>\n", who.Name, s.RequesterID, who.Name)
	}
	if url != "" {
		fmt.Fprintf(&b, "Inspect-Session: %s\n", url)
	}
	if signer != (Identity{}) {
		fmt.Fprintf(&b, "Signed-off-by: %s <%s>\n", signer.Name, signer.Email)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// subject is the issue's title as the first line of the commit and the title
// of the pull request.
func subject(r *redact.Redactor, s storage.Session) string {
	t := redact.Cut(strings.Join(strings.Fields(plain(r, s.Title)), " "), maxSubject)
	if t == "" && s.IssueNumber > 0 {
		return fmt.Sprintf("Work on issue %d", s.IssueNumber)
	}
	if t == "" {
		return "Work of session " + s.ID
	}
	return t
}

// receiptHead is the commit that was pushed.
type receiptHead struct {
	sha    string
	signed bool
}

// pullBody is the text of the pull request. The reference to the issue is ours
// and closes nothing; all that others wrote is redacted first and neutralised
// then, because an escaped secret is no longer seen.
func pullBody(r *redact.Redactor, s storage.Session, m evidence.Manifest, risks []string, head receiptHead, digest, url string) string {
	line := func(text string, max int) string { return redact.Neutralise(redact.OneLine(r.String(text), max)) }
	code := func(text string, max int) string { return redact.Code(redact.Cut(r.String(text), max)) }
	var b strings.Builder
	b.WriteString(comment.Marker(s.ID) + "\n")
	if s.IssueNumber > 0 {
		fmt.Fprintf(&b, "Refs #%d\n\n", s.IssueNumber)
	}
	ask := strings.TrimSpace(s.Request)
	if ask == "" {
		ask = s.Title
	}
	fmt.Fprintf(&b, "**Asked for** by %s:\n\n%s\n\n", line(s.RequesterLogin, 60), quote(redact.Neutralise(redact.Cut(r.String(ask), maxRequestShow))))

	fmt.Fprintf(&b, "**Verified** in a clean clone, after the agent had ended: %s\n\n", redact.Neutralise(render.Title(m)))
	b.WriteString("| command | result |\n|---|---|\n")
	for i, c := range m.Checks {
		if i == 20 {
			fmt.Fprintf(&b, "| %d more | |\n", len(m.Checks)-i)
			break
		}
		fmt.Fprintf(&b, "| %s | %s |\n", redact.Cell(code(c.Run, 120)), redact.Cell(line(c.Words, 200)))
	}
	b.WriteString("\n")
	if len(risks) > 0 {
		b.WriteString("**Look twice**: this change\n\n")
		for _, w := range risks {
			fmt.Fprintf(&b, "- %s\n", line(w, 500))
		}
		b.WriteString("\n")
	}
	if n := len(m.Change.Withheld); n > 0 {
		var paths []string
		for i, p := range m.Change.Withheld {
			if i == 10 {
				paths = append(paths, fmt.Sprintf("%d more", n-i))
				break
			}
			paths = append(paths, code(p, 200))
		}
		fmt.Fprintf(&b, "**Not in this branch**: GitHub takes workflow files from people only, so %d changed path(s) are left out: %s. The session's evidence has them as `%s`. What was verified includes them.\n\n",
			n, strings.Join(paths, ", "), FileWithheld)
	}
	b.WriteString("**Receipt**\n\n| | |\n|---|---|\n")
	row := func(k, v string) { fmt.Fprintf(&b, "| %s | %s |\n", k, redact.Cell(v)) }
	row("commit", redact.Code(head.sha))
	if head.signed {
		row("signature", "by GitHub, which says that it is verified")
	}
	row("base", redact.Code(m.BaseSHA)+" of "+redact.Code(m.BaseBranch))
	row("verified tree", redact.Code(m.Tree))
	row("harness", line(m.Harness.Label, 80))
	if m.Model.Name != "" {
		row("model", code(m.Model.Name, 120))
		row("cost", line(render.Cost(m.Model), 400))
	}
	row("evidence", redact.Code("sha256:"+digest))
	if url != "" {
		row("session", url)
	}
	b.WriteString("\nInspect never merges. A person decides about this pull request.\n")
	return b.String()
}

func quote(s string) string {
	return "> " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n> ")
}
