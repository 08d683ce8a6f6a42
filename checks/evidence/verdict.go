package evidence

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Verdict kinds.
const (
	Passed  = "passed"
	Failed  = "failed"
	Nothing = "nothing" // nothing ran that could show anything: never a success
	// Doubtful: the commands ended well, and something about what they showed is
	// for a person to accept first. See Verdict.Doubts.
	Doubtful = "doubtful"
	// NoNew: something is fixed, and what still fails fails on the base in the same
	// way. It shows no more than that: never a success either.
	NoNew = "no_new_failures"
)

// Verdict is what all checks together say.
type Verdict struct {
	Kind    string `json:"kind"`
	Words   string `json:"words"`
	Passed  int    `json:"passed"` // tests, or commands where there is no report
	Failed  int    `json:"failed"`
	Skipped int    `json:"skipped"`
	Fixed   int    `json:"fixed,omitempty"` // failed on the base
	// Standing are how many of Failed fail on the base in the same way, Stands what
	// they are, at most maxNamed. Both are only there with NoNew.
	Standing int      `json:"standing,omitempty"`
	Stands   []string `json:"stands,omitempty"`
	Flaky    int      `json:"flaky,omitempty"`
	// Vanished are tests that ran on the base and do not, or are skipped, now.
	Vanished int `json:"vanished,omitempty"`
	// Doubts are what a person who did not ask for the work has to accept, most
	// important first, at most maxNamed of each reason.
	Doubts []Doubt `json:"doubts,omitempty"`
	// Old are what fails of the base's own tests over the result and is not what
	// fails of it: the change has changed what is expected, at most maxNamed.
	Old []string `json:"old,omitempty"`
	// Uncompared are commands of which no test ran on the base, each with why: what
	// has vanished of them is not known, nor held against the result.
	Uncompared []string `json:"uncompared,omitempty"`
	// Notes are what a reviewer should know besides.
	Notes []string `json:"notes,omitempty"`
}

// Reasons of doubts.
const (
	DoubtVanished = "tests_vanished" // deleted, renamed or skipped now
	DoubtReport   = "report_doubted" // missing, unreadable, or at odds with what happened
	DoubtCompared = "not_compared"   // nobody knows what ran on the base
)

// Doubt is one thing that a person has to accept. What is plain text.
type Doubt struct {
	Reason string `json:"reason"`
	What   string `json:"what"`
}

// maxNamed bounds lists of names.
const maxNamed = 1_000

// Compared is a verify command on the base and on the result.
type Compared struct {
	Name string `json:"name"`
	// Tests by name, at most maxNamed of each; the numbers in Verdict are of all.
	Fixed   []string `json:"fixed,omitempty"`   // fail on the base and pass now, and not only because something else is expected
	Broken  []string `json:"broken,omitempty"`  // pass on the base and fail now
	Still   []string `json:"still,omitempty"`   // fail on both
	Gone    []string `json:"gone,omitempty"`    // ran on the base and do not any more
	Skipped []string `json:"skipped,omitempty"` // ran on the base and are skipped now
	New     []string `json:"new,omitempty"`
	Old     []string `json:"old,omitempty"` // of the base's tests: fail over the result, and passed on the base or pass as they are now
}

// Judgement is what came of verification.
type Judgement struct {
	Checks    []Check // on the result
	Base      []Check
	BaseTests []Check // the base's tests over the result
	Same      bool    // BaseTests would be Checks: no test is another
	Compared  []Compared
	Verdict   Verdict

	outcome wire.Outcome
}

// Judge reads the reports of all columns and decides. An error means that a file
// of ours could not be read, not that a report is bad.
func Judge(o wire.Outcome, open Opener) (Judgement, error) {
	j := Judgement{outcome: o}
	var err error
	if j.Checks, err = judgeAll(o.Results, open); err != nil {
		return j, err
	}
	if o.Base != nil {
		if j.Base, err = judgeAll(o.Base.Results, open); err != nil {
			return j, err
		}
	}
	if o.BaseTests != nil {
		j.Same = o.BaseTests.Same
		if j.BaseTests, err = judgeAll(o.BaseTests.Results, open); err != nil {
			return j, err
		}
	}
	j.decide()
	return j, nil
}

// Cover fills in how much of what the change adds its tests have run.
func (j *Judgement) Cover(added []Added, open Opener) error {
	for i, v := range j.outcome.Results {
		if i == len(j.Checks) {
			break
		}
		for _, again := range v.Again { // the last run has written last
			v.CoverageFiles = again.CoverageFiles
		}
		c, err := readCoverage(v, added, open)
		if err != nil {
			return fmt.Errorf("read the coverage of %s: %w", v.Name, err)
		}
		j.Checks[i].Coverage = c
	}
	return nil
}

// ColumnTests are the tests of a command on the result, on the base and of the
// base's over the result.
type ColumnTests struct {
	Name      string `json:"name"`
	Result    []Case `json:"result,omitempty"`
	Base      []Case `json:"base,omitempty"`
	BaseTests []Case `json:"base_tests,omitempty"`
}

// Tests are all tests of the commands that have some.
func (j *Judgement) Tests() (out []ColumnTests) {
	of := func(checks []Check, name string) []Case {
		if c := find(checks, name); c != nil && c.Tests != nil {
			return c.Tests.Cases
		}
		return nil
	}
	for _, c := range j.Checks {
		t := ColumnTests{c.Name, of(j.Checks, c.Name), of(j.Base, c.Name), of(j.BaseTests, c.Name)}
		if len(t.Result)+len(t.Base)+len(t.BaseTests) > 0 {
			out = append(out, t)
		}
	}
	return out
}

func find(checks []Check, name string) *Check {
	if i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name }); i >= 0 {
		return &checks[i]
	}
	return nil
}

func (j *Judgement) decide() {
	v := &j.Verdict
	var bad []string
	ran := false
	for i := range j.Checks {
		c := &j.Checks[i]
		switch {
		case c.Tests != nil:
			v.Passed, v.Failed, v.Skipped = v.Passed+c.Tests.Passed, v.Failed+c.Tests.Failed, v.Skipped+c.Tests.Skipped
			if !c.Passed && c.Tests.Failed == 0 {
				v.Failed++ // the command itself
			}
		case c.Passed:
			v.Passed++
		default:
			v.Failed++
		}
		v.Flaky += len(c.Flaky)
		if !c.Passed && c.Doubt == "" {
			bad = append(bad, c.Name+": "+c.Words)
		}
		ran = ran || c.Tests == nil || c.Tests.Passed+c.Tests.Failed > 0 || c.ExitCode != 0
		j.compare(c)
		c.shotNotes(find(j.Base, c.Name), v)
	}
	for i := range j.Checks {
		c := &j.Checks[i]
		if c.Doubt != "" {
			v.doubt(DoubtReport, c.Name+": "+c.Doubt)
		}
	}
	j.judgeColumns(ran)
	slices.SortStableFunc(v.Doubts, func(a, b Doubt) int { return cmp.Compare(doubtRank(a.Reason), doubtRank(b.Reason)) })
	hadTests := slices.ContainsFunc(j.Base, func(c Check) bool { return c.Tests != nil && len(c.Tests.Cases) > 0 })
	switch {
	case len(j.Checks) == 0:
		v.Kind, v.Words = Nothing, "no verify command is declared, so nothing shows that the change works"
	case len(bad) > 0 && len(v.Doubts) == 0 && v.Fixed > 0 && j.standing(): // who mends nothing has failed, whatever was broken before
		v.Kind, v.Words = NoNew, "what fails, fails on the base in the same way: "+bad[0]
		if len(bad) > 1 {
			v.Words += fmt.Sprintf("; %s more", plural(len(bad)-1, "command", "commands"))
		}
	case len(bad) > 0:
		v.Kind, v.Words = Failed, bad[0]
		if len(bad) > 1 {
			v.Words = fmt.Sprintf("%s; %d more commands failed", bad[0], len(bad)-1)
		}
	case !ran && !hadTests:
		v.Kind, v.Words = Nothing, j.Checks[0].Name+": "+j.Checks[0].Words
	case len(v.Doubts) > 0:
		v.Kind, v.Words = Doubtful, v.Doubts[0].What
		if n := len(v.Doubts) - 1; n > 0 {
			v.Words += fmt.Sprintf("; %d more to accept", n)
		}
	default:
		v.Kind, v.Words = Passed, fmt.Sprintf("%d pass", v.Passed)
	}
}

func doubtRank(reason string) int {
	return slices.Index([]string{DoubtReport, DoubtVanished, DoubtCompared}, reason)
}

func (v *Verdict) doubt(reason, what string) {
	n := 0
	for _, d := range v.Doubts {
		if d.Reason == reason {
			n++
		}
	}
	if n < maxNamed {
		v.Doubts = append(v.Doubts, Doubt{reason, what})
	}
}

func (v *Verdict) old(what string) {
	if len(v.Old) < maxNamed {
		v.Old = append(v.Old, what)
	}
}

// judgeColumns says what of the other columns is not there.
func (j *Judgement) judgeColumns(ran bool) {
	v, o := &j.Verdict, j.outcome
	tests := slices.ContainsFunc(j.Checks, func(c Check) bool { return c.Tests != nil })
	switch {
	case o.Base == nil && tests && ran:
		v.doubt(DoubtCompared, "the commands did not run on the base, so nobody knows whether tests have vanished")
	case o.Base != nil && o.Base.Words != "" && tests:
		v.doubt(DoubtCompared, "on the base the commands did not all run, so nobody knows whether tests have vanished: "+o.Base.Words)
	}
	if o.BaseTests != nil && o.BaseTests.Words != "" {
		v.old("the base's tests did not all run over the changed sources: " + o.BaseTests.Words)
	}
}

// compare puts one command's tests beside those of the base.
func (j *Judgement) compare(c *Check) {
	v := &j.Verdict
	base, old := find(j.Base, c.Name), find(j.BaseTests, c.Name)
	if base == nil {
		return
	}
	d := Compared{Name: c.Name}
	defer func() { j.Compared = append(j.Compared, d) }()
	if old != nil && !old.clean && (base.clean || c.clean) && (old.Tests == nil || old.Tests.Failed == 0) {
		v.old(c.Name + ": with the base's tests: " + old.Words)
	}
	if c.Tests == nil || base.Tests == nil {
		if c.Passed && !base.Passed && base.Doubt == "" && (old == nil || old.Passed) {
			v.Fixed++
			d.Fixed = append(d.Fixed, c.Name)
		}
		c.newFindings(base, v)
		return
	}
	had, has, held := cases(base), cases(c), cases(old)
	switch {
	case base.torn && (base.clean || !base.absent):
		// Not that it does not build yet: what it says of itself is no whole.
		v.doubt(DoubtCompared, c.Name+": on the base its report is not whole, so nobody knows whether tests have vanished: "+base.Words)
	case len(had) == 0 && len(has) > 0 && len(v.Uncompared) < maxNamed:
		v.Uncompared = append(v.Uncompared, c.Name+": "+base.Words)
	}
	note := func(list *[]string, name string) {
		if len(*list) < maxNamed {
			*list = append(*list, name)
		}
	}
	flaky := map[string]bool{}
	for _, name := range base.Flaky {
		flaky[name] = true
	}
	names := map[string]string{} // of tests that are new, by their own name
	for _, t := range c.Tests.Cases {
		if _, was := had[t.ID()]; !was && t.Name != "" && len(had) > 0 {
			note(&d.New, t.String())
			names[t.Name] = t.String()
		}
	}
	silent := c.torn || !c.clean && len(has) == 0 // says nothing about single tests
	for _, t := range base.Tests.Cases {
		if t.Name == "" || t.Outcome == TestSkipped || silent {
			continue
		}
		is, there := has[t.ID()]
		now, name := is.Outcome, t.String()
		failed := "" // whoever hides a test has a reason
		if t.Outcome == TestFailed {
			failed = "; on the base it fails"
		}
		switch {
		case there && now == TestPassed && t.Outcome == TestPassed:
			if is.times < t.times {
				note(&d.Gone, name)
				v.Vanished++
				v.doubt(DoubtVanished, fmt.Sprintf("%s: of %d tests named %s only %d still run", c.Name, t.times, name, is.times))
			}
		case !there:
			note(&d.Gone, name)
			v.Vanished++
			what := c.Name + ": " + name + " does not run any more"
			if n := names[t.Name]; n != "" {
				what += " (" + n + " is new)"
			}
			v.doubt(DoubtVanished, what+failed)
		case now == TestSkipped:
			note(&d.Skipped, name)
			v.Vanished++
			v.doubt(DoubtVanished, c.Name+": "+name+" is skipped now"+failed)
		case t.Outcome == TestFailed && now == TestPassed && !flaky[name] && held[t.ID()].Outcome != TestFailed:
			note(&d.Fixed, name)
			v.Fixed++
		case t.Outcome == TestPassed && now == TestFailed:
			note(&d.Broken, name)
		case t.Outcome == TestFailed && now == TestFailed:
			note(&d.Still, name)
		}
	}
	if old != nil && old.Tests != nil {
		for _, t := range old.Tests.Cases {
			if t.Outcome == TestFailed && (had[t.ID()].Outcome != TestFailed || has[t.ID()].Outcome == TestPassed) {
				note(&d.Old, t.String())
				v.old(c.Name + ": " + t.String())
			}
		}
	}
	c.tooFast(base)
}

// cases are a report's tests by identity, without the packages themselves.
func cases(c *Check) map[ID]Case {
	if c == nil || c.Tests == nil {
		return nil
	}
	out := make(map[ID]Case, len(c.Tests.Cases))
	for _, t := range c.Tests.Cases {
		if t.Name != "" {
			out[t.ID()] = t
		}
	}
	return out
}

// tooFast doubts a report whose tests all at once take no time.
func (c *Check) tooFast(base *Check) {
	if !c.Passed || c.Doubt != "" {
		return
	}
	took := map[ID]time.Duration{}
	for _, t := range base.Tests.Cases {
		if !t.cached {
			took[t.ID()] = t.Duration
		}
	}
	var before, now time.Duration
	for _, t := range c.Tests.Cases {
		if d, was := took[t.ID()]; was && t.Outcome == TestPassed && !t.cached {
			before, now = before+d, now+t.Duration
		}
	}
	if before >= leastCompared && now*100 < before {
		c.doubt(fmt.Sprintf("its report says that tests which took %s on the base now take %s", before.Round(time.Millisecond), now.Round(time.Millisecond)))
	}
}

// leastCompared is how long tests must take on the base for their time to say
// something.
const leastCompared = 2 * time.Second

// newFindings marks what the base does not have.
func (c *Check) newFindings(base *Check, v *Verdict) {
	if kind, _ := spec.ReportFiles(c.Report); kind != spec.ReportSARIF {
		return
	}
	type key struct{ rule, path, message string }
	had := map[key]int{}
	for _, f := range base.Findings {
		had[key{f.Rule, f.Path, f.Message}]++
	}
	fresh := 0
	for i, f := range c.Findings {
		k := key{f.Rule, f.Path, f.Message}
		if had[k] > 0 {
			had[k]--
			continue
		}
		c.Findings[i].New = true
		fresh++
	}
	if fresh > 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("%s: %s that the base does not have", c.Name, plural(fresh, "finding", "findings")))
	}
}
