package evidence

import (
	"fmt"
	"io"
	"time"

	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Check is one verify command: what it did and what its report says.
type Check struct {
	Name     string        `json:"name"`
	Run      string        `json:"run"`
	Report   string        `json:"report"`
	Passed   bool          `json:"passed"`
	Words    string        `json:"words"` // one clause for people
	ExitCode int           `json:"exit_code"`
	Signal   string        `json:"signal,omitempty"`
	Duration time.Duration `json:"duration"` // of all its runs
	Runs     int           `json:"runs"`
	Tests    *Tests        `json:"tests,omitempty"`  // nil where the report is of no tests
	Stdout   string        `json:"stdout,omitempty"` // digest of the file
	Stderr   string        `json:"stderr,omitempty"`
	// Flaky are tests that failed and passed when they ran again, at most maxNamed.
	Flaky []string `json:"flaky,omitempty"`
	// Findings of its report, at most MaxFindings; FindingsTotal are all.
	Findings      []Finding `json:"findings,omitempty"`
	FindingsTotal int       `json:"findings_total,omitempty"`
	Coverage      *Coverage `json:"coverage,omitempty"`
	// Shot is what the browser said, of a picture. Absent in older manifests.
	Shot *Shot `json:"shot,omitempty"`
	// Doubt is why its report is not to be believed although the exit status is
	// good; empty: there is no such reason.
	Doubt string `json:"doubt,omitempty"`

	ended string // how it ended, without its report
	clean bool   // it ended with exit status 0
	torn  bool   // its report does not say which tests or findings there are
	late  bool   // it did not end in time
	// absent: there is no report at all, as where a build has failed.
	absent bool
}

// MaxFindings bounds Check.Findings.
const MaxFindings = 5_000

// Tests are the counts of a report. A test and its subtests count each.
type Tests struct {
	Passed   int       `json:"passed"`
	Failed   int       `json:"failed"`
	Skipped  int       `json:"skipped"`
	Failures []Failure `json:"failures,omitempty"` // at most maxFailures
	Cases    []Case    `json:"-"`                  // all of them; FileTests has them
}

// Failure is a failed test with the end of its output.
type Failure struct {
	Package string `json:"package"`
	Test    string `json:"test,omitempty"` // empty: the package itself
	Output  string `json:"output,omitempty"`
}

// Opener opens an evidence file by its digest.
type Opener func(sha256 string) (io.ReadCloser, error)

// judgeAll reads the reports of all results of one clone. An error means that a
// file of ours could not be read, not that a report is bad.
func judgeAll(results []wire.VerifyResult, open Opener) ([]Check, error) {
	checks := make([]Check, 0, len(results))
	for _, v := range results {
		c, err := judgeOne(v, open)
		if err != nil {
			return nil, err
		}
		checks = append(checks, c)
	}
	return checks, nil
}

// judgeOne judges a command by all its runs: one that failed and passed when it
// ran again has passed, and what failed is flaky.
func judgeOne(v wire.VerifyResult, open Opener) (Check, error) {
	c, err := judgeRun(v, open)
	if err != nil || c.clean {
		return c, err
	}
	failed := map[ID]Case{}
	if c.Tests != nil {
		for _, t := range c.Tests.Cases {
			if t.Outcome == TestFailed && t.Name != "" {
				failed[t.ID()] = t
			}
		}
	}
	out := c
	for i, again := range v.Again {
		if i == wire.MaxAgain {
			break
		}
		again.Name, again.Run, again.Report = v.Name, v.Run, v.Report
		next, err := judgeRun(again, open)
		if err != nil {
			return c, err
		}
		if next.Tests != nil {
			for _, t := range next.Tests.Cases {
				if f, was := failed[t.ID()]; was && t.Outcome == TestPassed {
					delete(failed, t.ID())
					out.Flaky = append(out.Flaky, f.String())
				}
			}
		}
		if next.Passed {
			next.Flaky, next.Findings, next.Duration, next.Runs = out.Flaky, out.Findings, out.Duration+next.Duration, out.Runs+1
			next.Words += fmt.Sprintf("; it failed at first (%s)", c.Words)
			out = next
			break
		}
		out.Duration, out.Runs = out.Duration+next.Duration, out.Runs+1
	}
	if len(out.Flaky) > maxNamed {
		out.Flaky = out.Flaky[:maxNamed]
	}
	return out, nil
}

// judgeRun judges one run.
func judgeRun(v wire.VerifyResult, open Opener) (Check, error) {
	c := Check{
		Name: v.Name, Run: v.Run, Report: v.Report, ExitCode: v.ExitCode, Signal: v.Signal,
		Duration: v.Duration, Runs: 1, Stdout: v.Stdout, Stderr: v.Stderr,
	}
	switch {
	case v.TimedOut:
		c.ended, c.late = "did not end in time", true
	case v.Signal != "":
		c.ended = "was ended by " + redact.OneLine(v.Signal, 40)
	default:
		c.ended, c.clean = fmt.Sprintf("exit status %d", v.ExitCode), v.ExitCode == 0
	}
	c.Words, c.Passed = c.ended, c.clean
	kind, _ := spec.ReportFiles(v.Report)
	if kind == spec.ReportExit || kind == "" {
		return c, nil
	}
	if isShot(kind) {
		if err := c.judgeShot(v, open); err != nil {
			return c, fmt.Errorf("read what the browser said of %s: %w", v.Name, err)
		}
		return c, nil
	}
	r, err := readReport(v, open)
	if err != nil {
		return c, fmt.Errorf("read the report of %s: %w", v.Name, err)
	}
	c.torn, c.absent = r.damage != "", v.Stdout == "" && len(v.Reports) == 0
	if kind == spec.ReportJUnit || kind == spec.ReportSARIF {
		c.absent = len(v.Reports) == 0
	}
	if kind == spec.ReportSARIF {
		c.judgeFindings(r)
	} else {
		c.Tests = r.tests()
		c.judgeTests(r)
	}
	return c, nil
}

func (c *Check) judgeFindings(r *report) {
	c.FindingsTotal, c.Findings = len(r.findings), r.findings[:min(len(r.findings), MaxFindings)]
	switch {
	case r.damage != "" && c.clean:
		c.doubt("its report cannot be believed: " + r.damage)
	case c.clean:
		c.Words = "exit status 0, " + plural(c.FindingsTotal, "finding", "findings")
	default:
		c.Words += ", " + plural(c.FindingsTotal, "finding", "findings")
	}
}

// doubt says that a command's exit status is good and its report is not.
func (c *Check) doubt(words string) { c.Passed, c.Words, c.Doubt = false, words, words }

// judgeTests believes a report only where it agrees with the exit status and
// with the time the command took.
func (c *Check) judgeTests(r *report) {
	t := c.Tests
	switch {
	case !c.clean && (c.Signal != "" || c.ExitCode <= 0):
		c.Words = fmt.Sprintf("%s, after %d passed and %d failed", c.ended, t.Passed, t.Failed)
	case !c.clean && t.Failed > 0:
		c.Words = fmt.Sprintf("%d of %d tests failed", t.Failed, t.Passed+t.Failed)
	case !c.clean && r.damage != "":
		c.Words = c.ended + ", and its report cannot be believed: " + r.damage
	case !c.clean:
		c.Words = c.ended + ", though no test is reported as failed: the build or the set-up failed, or the report is not honest"
	case r.damage != "":
		c.doubt("its report cannot be believed: " + r.damage)
	case r.odd != "":
		c.doubt("exit status 0, but " + r.odd + ": the report or the command is not honest")
	case t.Failed > 0:
		c.doubt(fmt.Sprintf("exit status 0, but its report says %d failed: the report or the command is not honest", t.Failed))
	case t.Passed == 0:
		c.doubt("ran no test")
	default:
		c.Words = plural(t.Passed, "test passed", "tests passed")
		if t.Skipped > 0 {
			c.Words += fmt.Sprintf(", %d skipped", t.Skipped)
		}
		for _, one := range t.Cases {
			if !one.cached && one.Duration > c.Duration+clockSlack {
				c.doubt(fmt.Sprintf("its report says that %s took %s, but the whole command ran %s", one, one.Duration.Round(time.Millisecond), c.Duration.Round(time.Millisecond)))
				break
			}
		}
	}
}

// clockSlack is how much longer than its command a test may say to have taken.
const clockSlack = 2 * time.Second

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
