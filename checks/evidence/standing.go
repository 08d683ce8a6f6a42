package evidence

import "inspect/envs/spec"

// standing says whether all that fails on the result fails on the base in the
// same way, and if so writes down what that is.
func (j *Judgement) standing() bool {
	if j.outcome.Base == nil || j.outcome.Base.Words != "" {
		return false
	}
	var all []string
	for i := range j.Checks {
		c := &j.Checks[i]
		if c.Passed {
			continue
		}
		names := failAlike(c, find(j.Base, c.Name))
		if len(names) == 0 {
			return false
		}
		all = append(all, names...)
	}
	v := &j.Verdict
	v.Standing, v.Stands = len(all), all[:min(len(all), maxNamed)]
	return true
}

// failAlike names what fails of a command on the result if all of it fails on the
// base as well. nil: it does not, or nobody can tell. A report has to be whole in
// both places and to name what fails; without one the exit status has to be the
// same. What was ended from outside, or could not be started at all, is no answer
// of the repository's own commands.
func failAlike(c, base *Check) []string {
	if base == nil || !c.answered() || !base.answered() || c.torn || base.torn || base.Doubt != "" {
		return nil
	}
	kind, _ := spec.ReportFiles(c.Report)
	switch {
	case (c.Tests == nil) != (base.Tests == nil):
		return nil
	case c.Tests != nil:
		return testsFailAlike(c, base)
	case c.ExitCode != base.ExitCode:
		return nil
	case kind == spec.ReportSARIF:
		return findingsAlike(c, base)
	}
	return []string{c.Name + ": " + c.ended + ", here and there; without a report nobody knows whether for the same reason"}
}

// answered says that a command ran to its own end and said no.
func (c *Check) answered() bool {
	return !c.clean && !c.late && c.Signal == "" && c.ExitCode > 0 && c.ExitCode != notRunnable && c.ExitCode != notFound
}

// The shell's words for a program that it may not run, and for one that is not there.
const (
	notRunnable = 126
	notFound    = 127
)

// testsFailAlike counts no test as failing on either side that passed when it ran
// again: on the result it is told as flaky, on the base it is no excuse.
func testsFailAlike(c, base *Check) (names []string) {
	was, is := failedIDs(base), failedIDs(c)
	for _, t := range c.Tests.Cases { // in the report's order
		if _, fails := is[t.ID()]; !fails {
			continue
		}
		if had, fails := was[t.ID()]; !fails || t.failed > had.failed {
			return nil
		}
		names = append(names, c.Name+": "+t.String())
	}
	return names
}

func failedIDs(c *Check) map[ID]Case {
	flaky := map[string]bool{}
	for _, name := range c.Flaky {
		flaky[name] = true
	}
	out := map[ID]Case{}
	for _, t := range c.Tests.Cases {
		if t.Outcome == TestFailed && !flaky[t.String()] {
			out[t.ID()] = t
		}
	}
	return out
}

// findingsAlike asks that all findings could be compared and none is new.
func findingsAlike(c, base *Check) (names []string) {
	if c.FindingsTotal == 0 || c.FindingsTotal > MaxFindings || base.FindingsTotal > MaxFindings {
		return nil
	}
	for _, f := range c.Findings {
		if f.New {
			return nil
		}
	}
	return []string{c.Name + ": " + plural(c.FindingsTotal, "finding", "findings") + ", each of which the base has"}
}
