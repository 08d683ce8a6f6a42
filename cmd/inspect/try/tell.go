package try

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"inspect/checks/redact"
)

// teller writes what happens, a line each. Whatever others wrote goes through
// plain first, so that no agent's output moves the cursor, paints or hides.
type teller struct {
	mu      sync.Mutex
	w       io.Writer
	colour  bool
	verbose bool
	begun   time.Time
}

// Colours of lines.
const (
	faint  = "2"
	strong = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (t *teller) print(colour, s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.colour && colour != "" {
		s = "\x1b[" + colour + "m" + s + "\x1b[0m"
	}
	fmt.Fprintln(t.w, s)
}

// head is the first line.
func (t *teller) head(format string, args ...any) { t.print(strong, fmt.Sprintf(format, args...)) }

// step says what begins, and when.
func (t *teller) step(format string, args ...any) {
	t.print("", fmt.Sprintf("%6.1f s  ", time.Since(t.begun).Seconds())+fmt.Sprintf(format, args...))
}

// indent is as wide as the time of a step.
const indent = "          "

// detail stands below a step.
func (t *teller) detail(format string, args ...any) {
	t.print(faint, indent+fmt.Sprintf(format, args...))
}

// warn is something to know that changes nothing.
func (t *teller) warn(format string, args ...any) {
	t.print(yellow, indent+fmt.Sprintf(format, args...))
}

// bad is something that failed or was refused.
func (t *teller) bad(format string, args ...any) {
	t.print(red, indent+fmt.Sprintf(format, args...))
}

// good is something that went well.
func (t *teller) good(format string, args ...any) {
	t.print(green, indent+fmt.Sprintf(format, args...))
}

// plain is text of others on one line, visible characters only, at most n bytes.
func plain(s string, n int) string {
	return redact.Cut(strings.Join(strings.Fields(redact.Visible(s)), " "), n)
}

// lines are the lines of a text of others, the last few of them.
func lines(s string, most int) []string {
	var out []string
	for l := range strings.SplitSeq(redact.Visible(s), "\n") {
		if l = redact.Cut(strings.TrimRight(l, " \t"), 1000); strings.TrimSpace(l) != "" {
			out = append(out, l)
		}
	}
	return out[max(0, len(out)-most):]
}

// took is a duration for people.
func took(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// count is a number of things.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
