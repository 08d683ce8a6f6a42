package context

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"inspect/checks/redact"
)

// Bounds of what is told of a build that failed, in bytes and in numbers.
const (
	MaxJobs        = 10
	MaxNotes       = 10
	MaxNote        = 8 << 10
	MaxFailedTests = 50
	MaxFailedTest  = 1 << 10
)

// Kinds of items of a build.
const (
	ItemJob   = "build job"
	ItemNote  = "build annotation"
	ItemTests = "build test report"
)

// FailedBuild is a build of Buildkite that failed.
type FailedBuild struct {
	Pipeline      string // organization/pipeline
	Number        int
	Branch        string
	Jobs          []BuildJob // that failed
	Notes         []BuildNote
	Tests         []BuildTests
	NoTests, Lost string // why there are none; what else could not be read. Empty: nothing is missing
}

// BuildJob is a job that failed.
type BuildJob struct {
	Name, Step, State, Command string
	Exit                       string // its exit status; empty: it has none
	Log                        string // the end of its log
	NoLog                      string // why there is none, or why it is not whole; empty: it is
}

// BuildNote is an annotation of a build.
type BuildNote struct{ Context, Style, Text string }

// BuildTests are the tests that failed in one report.
type BuildTests struct {
	Report string
	Failed []string // name and words of each
}

func (f *FailedBuild) texts() []string {
	out := []string{f.Pipeline, f.Branch}
	for _, j := range f.Jobs {
		out = append(out, j.Name, j.Command, j.Log)
	}
	for _, n := range f.Notes {
		out = append(out, n.Context, n.Text)
	}
	for _, t := range f.Tests {
		out = append(append(out, t.Report), t.Failed...)
	}
	return out
}

// write adds what a build says, all of it data. Its items name it by digest: what
// a build says is not kept anywhere else of ours.
func (f *FailedBuild) write(b *strings.Builder, in fence) (items []Item) {
	if f == nil {
		return nil
	}
	add := func(kind, name, what, data string, room bool) {
		it := Item{Kind: kind, ID: int64(f.Number), Author: line(name, 200), Included: room, Digest: digest(data)}
		if !room {
			it.Reason = ReasonRoom
		} else {
			in.write(b, what, data)
		}
		items = append(items, it)
	}
	of := fmt.Sprintf("build %d of %s", f.Number, line(f.Pipeline, 200))
	for i, j := range f.Jobs {
		text := "Command: " + clean(j.Command, 2<<10)
		if j.Exit != "" {
			text += "\nExit status: " + line(j.Exit, 20)
		}
		if j.Log != "" {
			text += "\n\nThe end of its log:\n" + redact.Tail(redact.Visible(j.Log), MaxLog)
		}
		if j.NoLog != "" {
			text += "\n\nOf its log something is missing: " + line(j.NoLog, 200)
		}
		add(ItemJob, j.Name, fmt.Sprintf("job %s of %s: %s", line(j.Name, 200), of, line(j.State, 40)), text, i < MaxJobs)
	}
	for i, n := range f.Notes {
		add(ItemNote, n.Context, fmt.Sprintf("annotation %s (%s) of %s", line(n.Context, 100), line(n.Style, 20), of), clean(n.Text, MaxNote), i < MaxNotes)
	}
	left := MaxFailedTests
	for _, t := range f.Tests {
		var text strings.Builder
		for _, one := range t.Failed[:min(len(t.Failed), left)] {
			text.WriteString("- " + clean(one, MaxFailedTest) + "\n")
		}
		if more := len(t.Failed) - left; more > 0 {
			fmt.Fprintf(&text, "and %d more\n", more)
		}
		add(ItemTests, t.Report, fmt.Sprintf("tests that failed, of the report %s of %s", line(t.Report, 200), of), text.String(), left > 0)
		left = max(0, left-len(t.Failed))
	}
	if f.NoTests != "" {
		fmt.Fprintf(b, "\nThe reports of its tests are not here: %s.\n", line(f.NoTests, 200))
	}
	if f.Lost != "" {
		fmt.Fprintf(b, "\nNot all that the build says could be read: %s.\n", line(f.Lost, 200))
	}
	return items
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
