package command

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"inspect/envs/harness"
	"inspect/envs/proc"
)

// conversation is what the program is given for p: the prompt itself, and
// before it, if there is any, what was asked and printed so far.
func (s *session) conversation(p *prompt) string {
	s.mu.Lock()
	earlier := s.prompts[:p.n-1]
	s.mu.Unlock()
	if len(earlier) == 0 {
		return p.Text
	}
	var b strings.Builder
	b.WriteString("You have worked on this repository before: below is what you were asked so far, and the end of what\n" +
		"you printed each time. What you did is in the working directory. The new prompt is the last section.\n")
	for _, e := range earlier {
		fmt.Fprintf(&b, "\n# Prompt %d%s\n\n%s\n", e.n, by(e), strings.TrimSpace(e.Text))
		fence := fenceFor(e.answer)
		fmt.Fprintf(&b, "\n# The end of what you printed then\n\n%s\n%s\n%s\n", fence, strings.TrimSpace(e.answer), fence)
	}
	fmt.Fprintf(&b, "\n# New prompt%s\n\n%s\n", by(p), strings.TrimSpace(p.Text))
	return b.String()
}

func by(p *prompt) string {
	if p.Author == "" {
		return ""
	}
	return ", by " + p.Author
}

// fenceFor is a fence that text has not in it.
func fenceFor(text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence
}

// answer keeps the end of what a program prints on both streams.
type answer struct {
	mu   sync.Mutex
	tail *proc.Tail
}

// text is what was kept, from the beginning of a line.
func (a *answer) text() string {
	text := string(a.tail.Bytes())
	if a.tail.Cut() {
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	return harness.Clean(text)
}

// of passes on to w and keeps.
func (a *answer) of(w io.Writer) io.Writer { return kept{a, w} }

type kept struct {
	a *answer
	w io.Writer
}

func (k kept) Write(p []byte) (int, error) {
	k.a.mu.Lock()
	_, _ = k.a.tail.Write(p)
	k.a.mu.Unlock()
	return k.w.Write(p)
}
