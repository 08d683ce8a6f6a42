package render

import (
	"fmt"
	"strings"

	"inspect/checks/redact"
)

// Build is what a build of exactly the pushed commit shows, or that there is none.
type Build struct {
	Pipeline string `json:"pipeline"` // organization/pipeline
	Number   int    `json:"number"`   // 0: there is none yet
	URL      string `json:"url,omitempty"`
	State    string `json:"state"` // pending, passed, failed, blocked, canceled
	SHA      string `json:"sha"`
	Done     bool   `json:"done"` // nobody looks any more
	Required bool   `json:"required"`
	Words    string `json:"words,omitempty"` // why there is no result
	Jobs     []Job  `json:"jobs,omitempty"`
	More     int    `json:"more_jobs,omitempty"` // that are left out
	// Tests are what the JUnit reports of its jobs say; nil: it kept none that could
	// be read.
	Tests *BuildTests `json:"tests,omitempty"`
}

// Job of a build.
type Job struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Exit  *int   `json:"exit_status,omitempty"`
	Soft  bool   `json:"soft_failed,omitempty"`
	Bad   bool   `json:"failed"` // it is why the build failed
}

// BuildTests counts what reports say.
type BuildTests struct {
	Reports int `json:"reports"`
	Total   int `json:"total"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
	Unread  int `json:"unread,omitempty"` // reports that could not be read
}

// States of a build.
const (
	BuildPending  = "pending"
	BuildPassed   = "passed"
	BuildFailed   = "failed"
	BuildBlocked  = "blocked"
	BuildCanceled = "canceled"
)

// BuildsVerdict is what builds make of a check run that would say success.
// Only those that are required count: while one of them is waited for it is
// pending, the conclusion is success only if each has passed, and blocked,
// canceled or missing is not passed. missing: nobody has looked yet.
func BuildsVerdict(builds []Build, missing bool) (conclusion string, pending bool) {
	conclusion, pending = Success, missing
	for _, b := range builds {
		switch {
		case !b.Required:
		case b.State == BuildFailed:
			conclusion = Failure
		case b.State == BuildPassed && b.Done && b.Number > 0:
		case !b.Done:
			pending = true
		case conclusion == Success:
			conclusion = ActionRequired
		}
	}
	if conclusion == Failure {
		return Failure, false // whatever the others will say
	}
	if pending {
		return "", true
	}
	return conclusion, false
}

// BuildsTitle is what stands before the title where a required build decides.
func BuildsTitle(builds []Build, missing bool) string {
	conclusion, pending := BuildsVerdict(builds, missing)
	switch {
	case pending:
		return "Waits for the build: "
	case conclusion == Failure:
		return "The build failed: "
	case conclusion == ActionRequired:
		return "The build has not passed: "
	}
	return ""
}

// maxBuildJobs that failed are named.
const maxBuildJobs = 10

// Builds is a table of builds for a summary.
func Builds(builds []Build) string {
	if len(builds) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n**Builds of this commit**\n\n| pipeline | build | result |\n|---|---|---|\n")
	for _, one := range builds {
		number := "none"
		if one.Number > 0 {
			number = fmt.Sprint(one.Number)
			if one.URL != "" {
				number = "[" + number + "](" + strings.NewReplacer("(", "%28", ")", "%29", "|", "%7C", " ", "%20").Replace(one.URL) + ")"
			}
		}
		pipeline := one.Pipeline
		if pipeline == "" {
			pipeline = "Buildkite"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", redact.Cell(redact.Code(redact.OneLine(pipeline, 200))), number, redact.Cell(redact.Neutralise(redact.OneLine(one.result(), 1500))))
	}
	return b.String() + "\n"
}

func (o Build) result() string {
	s := o.State
	switch {
	case o.State == BuildPending && o.Number > 0 && !o.Done:
		s = "runs"
	case o.State == BuildPending && !o.Done:
		s = "is waited for"
	case o.State == BuildPending:
		s = "no result"
	case o.State == BuildBlocked:
		s = "blocked: it waits for a person at Buildkite, which is not passed"
	}
	if !o.Required {
		s += " (not required)"
	}
	if o.Words != "" {
		s += ": " + o.Words
	}
	if t := o.Tests; t != nil {
		s += fmt.Sprintf("; %d tests, %d failed, %d skipped", t.Total, t.Failed, t.Skipped)
		if t.Unread > 0 {
			s += fmt.Sprintf(", %d reports could not be read", t.Unread)
		}
	}
	var bad []string
	more := 0
	for _, j := range o.Jobs {
		switch {
		case !j.Bad:
		case len(bad) == maxBuildJobs:
			more++
		default:
			name := redact.OneLine(j.Name, 80)
			if j.Exit != nil {
				name += fmt.Sprintf(" (exit status %d)", *j.Exit)
			}
			bad = append(bad, name)
		}
	}
	if len(bad) > 0 {
		s += "; failed: " + strings.Join(bad, ", ")
	}
	if more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// WithBuilds is a summary with the builds below it, both within GitHub's bound.
func WithBuilds(summary string, builds []Build) string {
	table := Builds(builds)
	if len(table) > MaxSummary/2 {
		table = redact.Cut(table, MaxSummary/2)
	}
	if len(summary)+len(table) > MaxSummary {
		summary = closeOpen(summary, MaxSummary-len(table))
	}
	return summary + table
}
