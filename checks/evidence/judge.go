package evidence

import (
	"fmt"
	"io"
	"time"

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
	Duration time.Duration `json:"duration"`
	Tests    *Tests        `json:"tests,omitempty"`  // nil for a bare exit status
	Stdout   string        `json:"stdout,omitempty"` // digest of the file
	Stderr   string        `json:"stderr,omitempty"`
}

// Tests are the counts of a report. A test and its subtests count each.
type Tests struct {
	Passed   int       `json:"passed"`
	Failed   int       `json:"failed"`
	Skipped  int       `json:"skipped"`
	Failures []Failure `json:"failures,omitempty"` // at most maxFailures
}

// Failure is a failed test with the end of its output.
type Failure struct {
	Package string `json:"package"`
	Test    string `json:"test,omitempty"` // empty: the package itself
	Output  string `json:"output,omitempty"`
}

// Verdict kinds.
const (
	Passed  = "passed"
	Failed  = "failed"
	Nothing = "nothing" // nothing ran that could show anything: never a success
)

// Verdict is what all checks together say.
type Verdict struct {
	Kind    string `json:"kind"`
	Words   string `json:"words"`
	Passed  int    `json:"passed"` // tests, or commands where there is no report
	Failed  int    `json:"failed"`
	Skipped int    `json:"skipped"`
}

// Opener opens an evidence file by its digest.
type Opener func(sha256 string) (io.ReadCloser, error)

// Judge reads the reports of all results and decides. An error means that a
// file of ours could not be read, not that a report is bad: bad reports are
// failed checks with words.
func Judge(results []wire.VerifyResult, open Opener) ([]Check, Verdict, error) {
	checks := make([]Check, 0, len(results))
	for _, r := range results {
		c := Check{
			Name: r.Name, Run: r.Run, Report: r.Report, ExitCode: r.ExitCode, Signal: r.Signal,
			Duration: r.Duration, Stdout: r.Stdout, Stderr: r.Stderr,
		}
		if r.Report == spec.ReportGoTest {
			if r.Stdout == "" {
				c.Words = "left no report"
				checks = append(checks, c)
				continue
			}
			f, err := open(r.Stdout)
			if err != nil {
				return nil, Verdict{}, fmt.Errorf("read the report of %s: %w", r.Name, err)
			}
			tests, damage, err := parseGoTest(f)
			f.Close()
			if err != nil {
				return nil, Verdict{}, fmt.Errorf("read the report of %s: %w", r.Name, err)
			}
			c.Tests = &tests
			judgeGoTest(&c, r, damage)
		} else {
			judgeExit(&c, r)
		}
		checks = append(checks, c)
	}
	return checks, decide(checks), nil
}

func judgeExit(c *Check, r wire.VerifyResult) {
	switch {
	case r.TimedOut:
		c.Words = "did not end in time"
	case r.Signal != "":
		c.Words = "was ended by " + r.Signal
	case r.ExitCode != 0:
		c.Words = fmt.Sprintf("exit status %d", r.ExitCode)
	default:
		c.Passed, c.Words = true, "exit status 0"
	}
}

// judgeGoTest believes a report only where it agrees with the exit status.
func judgeGoTest(c *Check, r wire.VerifyResult, damage string) {
	t := c.Tests
	judgeExit(c, r)
	ended := c.Words
	switch {
	case r.TimedOut || r.Signal != "":
		c.Words = fmt.Sprintf("%s, after %d passed and %d failed", ended, t.Passed, t.Failed)
	case r.Truncated:
		c.Passed, c.Words = false, "its report was longer than the limit and is cut, so it is not believed"
	case damage != "":
		c.Passed, c.Words = false, "its report cannot be believed: "+damage
	case r.ExitCode != 0 && t.Failed > 0:
		c.Words = fmt.Sprintf("%d of %d tests failed", t.Failed, t.Passed+t.Failed)
	case r.ExitCode != 0:
		c.Words = ended + ", though no test is reported as failed: the build or the set-up failed"
	case t.Failed > 0:
		c.Passed, c.Words = false, fmt.Sprintf("exit status 0, but its report says %d failed: the report or the command is not honest", t.Failed)
	case t.Passed == 0:
		c.Passed, c.Words = false, "ran no test"
	default:
		c.Words = fmt.Sprintf("%d tests passed", t.Passed)
		if t.Passed == 1 {
			c.Words = "1 test passed"
		}
	}
	if c.Passed && t.Skipped > 0 {
		c.Words += fmt.Sprintf(", %d skipped", t.Skipped)
	}
}

func decide(checks []Check) Verdict {
	v := Verdict{}
	var bad []string
	for _, c := range checks {
		switch {
		case c.Tests != nil:
			v.Passed += c.Tests.Passed
			v.Failed += c.Tests.Failed
			v.Skipped += c.Tests.Skipped
			if !c.Passed && c.Tests.Failed == 0 {
				v.Failed++ // the command itself
			}
		case c.Passed:
			v.Passed++
		default:
			v.Failed++
		}
		if !c.Passed {
			bad = append(bad, c.Name+": "+c.Words)
		}
	}
	switch {
	case len(checks) == 0:
		v.Kind, v.Words = Nothing, "no verify command is declared, so nothing shows that the change works"
	case len(bad) > 0:
		v.Kind, v.Words = Failed, bad[0]
		if len(bad) > 1 {
			v.Words = fmt.Sprintf("%s; %d more commands failed", bad[0], len(bad)-1)
		}
		ran := false
		for _, c := range checks {
			ran = ran || c.Tests == nil || c.Tests.Passed+c.Tests.Failed > 0 || c.ExitCode != 0
		}
		if !ran {
			v.Kind = Nothing
		}
	default:
		v.Kind, v.Words = Passed, fmt.Sprintf("%d pass", v.Passed)
	}
	return v
}
