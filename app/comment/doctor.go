package comment

import (
	"fmt"
	"strings"

	"inspect/app/diagnosis"
	"inspect/checks/redact"
)

// maxFindings are shown in one comment.
const maxFindings = 60

// Doctor shows what was found about a repository, the worst first.
func Doctor(findings []diagnosis.Finding) string {
	var b strings.Builder
	b.WriteString(map[string]string{
		diagnosis.OK:   "Everything is as it should be.",
		diagnosis.Warn: "Sessions work here, and not everything is as it should be.",
		diagnosis.Fail: "Sessions do not work here, or not as they are meant to.",
	}[diagnosis.Worst(findings)])
	b.WriteString("\n\n| | what | |\n|---|---|---|\n")
	n := 0
	for _, level := range []string{diagnosis.Fail, diagnosis.Warn, diagnosis.OK} {
		for _, f := range findings {
			if f.Level != level {
				continue
			}
			if n++; n > maxFindings {
				continue
			}
			words := sentence(redact.Cut(f.Words, 1000))
			if f.Do != "" {
				words += " " + sentence(redact.Cut(f.Do, 500))
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", level, plain(f.What), words)
		}
	}
	if n > maxFindings {
		fmt.Fprintf(&b, "| | and %d more | |\n", n-maxFindings)
	}
	return b.String()
}

// Unprotected says that a session needs protection that the repository lacks.
func Unprotected(branch string, p diagnosis.Protection) string {
	return "No session was started: " + sentence(p.Words(branch)) + " Whoever runs Inspect requires that it does not. " + sentence(diagnosis.ToProtect)
}
