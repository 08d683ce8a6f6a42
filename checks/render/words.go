package render

import (
	"fmt"
	"strings"
	"time"

	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/envs/spec"
)

// The words below are told in several places: the check run, the comment, the
// pull request, the session's page.

// Duration writes a length of time in the unit a person would use: "340 ms",
// "2.4 s", "3 min 20 s".
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// Bytes writes a number of bytes with a binary unit: "340 B", "2.4 MiB".
func Bytes(n int64) string {
	switch {
	case n < 0:
		return ""
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// Age says how old something is.
func Age(d time.Duration) string {
	if d < time.Second {
		return "just made"
	}
	return Duration(d) + " old"
}

// Count is a number and its noun: "1 call", "7 calls".
func Count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Cost says what the model calls of an ended session came to. It is plain text.
func Cost(m evidence.Model) string {
	all := m.Calls + m.Unreported
	switch {
	case m.Name == "":
		return ""
	case all == 0 && m.Failed > 0:
		return "none of " + Count(m.Failed, "call", "calls") + " came to anything"
	case all == 0:
		return "no call was made"
	case m.Unpriced >= all:
		return "no price is configured for this model, so nobody knows what its " + Count(all, "call", "calls") + " cost"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s by the provider's numbers for %s", spec.Money(m.Cost), Count(m.Calls, "call", "calls"))
	if m.Unreported > 0 {
		counted := ""
		if m.UnreportedCost > 0 {
			counted = ", counted with " + spec.Money(m.UnreportedCost).String() + ","
		}
		were := "were"
		if m.Unreported == 1 {
			were = "was"
		}
		fmt.Fprintf(&b, "; %s%s %s never reported", Count(m.Unreported, "further call", "further calls"), counted, were)
	}
	if m.Failed > 0 {
		fmt.Fprintf(&b, "; %s failed", Count(m.Failed, "further call", "further calls"))
	}
	if m.Unpriced > 0 {
		fmt.Fprintf(&b, "; for %d of them there was no price", m.Unpriced)
	}
	if m.Budget > 0 {
		b.WriteString("; budget " + spec.Money(m.Budget).String())
	}
	if m.PricesAsOf != "" {
		b.WriteString("; prices as of " + redact.OneLine(m.PricesAsOf, 40))
	}
	return b.String()
}

// Spent says what a session has spent so far.
func Spent(spent, budget int64) string {
	if budget <= 0 {
		return spec.Money(spent).String()
	}
	return fmt.Sprintf("%s of %s", spec.Money(spent), spec.Money(budget))
}

// Tools says what the agent did, in plain text; "" for an agent whose harness
// told nothing.
func Tools(a evidence.Agent) string {
	if a.ToolCalls == 0 {
		return ""
	}
	s := Count(a.ToolCalls, "tool call", "tool calls")
	if a.Commands > 0 {
		s += ", " + Count(a.Commands, "command", "commands")
		if a.FailedCommands > 0 {
			s += fmt.Sprintf(" (%d failed)", a.FailedCommands)
		}
	}
	if a.FilesTouched > 0 {
		s += ", " + Count(a.FilesTouched, "file", "files") + " touched"
	}
	return s
}

// Asked says what asked for a refused destination and, unless declaring it
// would do, why it was refused: " (`psql`; its address is not a public one)".
// It is Markdown.
func Asked(r evidence.Refused) string {
	var parts []string
	if r.Command != "" {
		parts = append(parts, code(r.Command, 80))
	}
	if !r.Addable() && r.Reason != "" {
		parts = append(parts, plain(r.Reason, 160))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}
