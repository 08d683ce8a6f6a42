package evidence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

// suite is the JUnit report of tests, "name" or "name!" for one that fails and
// "name?" for one that is skipped.
func suite(tests ...string) string {
	var b strings.Builder
	b.WriteString(`<testsuite name="s">`)
	for _, n := range tests {
		body := ""
		switch n[len(n)-1] {
		case '!':
			body, n = `<failure message="no"/>`, n[:len(n)-1]
		case '?':
			body, n = `<skipped/>`, n[:len(n)-1]
		}
		fmt.Fprintf(&b, `<testcase classname="s" name="%s" time="1">%s</testcase>`, n, body)
	}
	return b.String() + "</testsuite>"
}

type judged struct {
	t     *testing.T
	files map[string]string
}

// ran is what one run of a command left.
func (w *judged) ran(exit int, report string) wire.VerifyResult {
	v := wire.VerifyResult{Name: "unit", Run: "run", Report: "junit:r.xml", ExitCode: exit, Duration: 10 * time.Second, Stdout: "out"}
	if report != "" {
		sum := fmt.Sprint("f", len(w.files))
		w.files[sum] = report
		v.Reports = []wire.ReportFile{{Path: "r.xml", SHA256: sum}}
	}
	return v
}

func (w *judged) judge(o wire.Outcome) Judgement {
	w.t.Helper()
	j, err := Judge(o, opener(w.files))
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func column(v ...wire.VerifyResult) *wire.Column {
	return &wire.Column{Results: v}
}

// What agents do to get a green light, and what is told of it.
func TestHonestVerdicts(t *testing.T) {
	w := &judged{t, map[string]string{"out": ""}}
	base := column(w.ran(1, suite("a", "b", "c!")))
	good := suite("a", "b", "c")
	same := &wire.Column{Same: true}
	for name, c := range map[string]struct {
		result    wire.VerifyResult
		base      *wire.Column
		baseTests *wire.Column
		kind      string
		doubts    []string // reason and words of each
		old       []string
		fixed     int
	}{
		"the test is fixed":                             {w.ran(0, good), base, same, Passed, nil, nil, 1},
		"the failing test is deleted":                   {w.ran(0, suite("a", "b")), base, column(w.ran(1, suite("a", "b", "c!"))), Doubtful, []string{"tests_vanished unit: s c does not run any more"}, nil, 0},
		"the test is skipped":                           {w.ran(0, suite("a", "b", "c?")), base, column(w.ran(1, suite("a", "b", "c!"))), Doubtful, []string{"tests_vanished unit: s c is skipped now"}, nil, 0},
		"the test is renamed":                           {w.ran(0, suite("a", "b", "d")), base, same, Doubtful, []string{"tests_vanished unit: s c does not run any more"}, nil, 0},
		"the expectation is changed":                    {w.ran(0, good), column(w.ran(0, good)), column(w.ran(1, suite("a", "b", "c!"))), Passed, nil, []string{"unit: s c"}, 0},
		"the expectation of a failing test is changed":  {w.ran(0, good), base, column(w.ran(1, suite("a", "b", "c!"))), Passed, nil, []string{"unit: s c"}, 0},
		"the base's tests do not compile any more":      {w.ran(0, good), base, column(w.ran(2, "")), Passed, nil, []string{"unit: with the base's tests: exit status 2"}, 1},
		"one of two tests of a name is deleted":         {w.ran(0, suite("a", "b")), column(w.ran(0, suite("a", "b", "b"))), same, Doubtful, []string{"tests_vanished unit: of 2 tests named s b only 1 still run"}, nil, 0},
		"one of two tests of a name is skipped":         {w.ran(0, suite("a", "b", "b?")), column(w.ran(0, suite("a", "b", "b"))), same, Doubtful, []string{"tests_vanished unit: of 2 tests named s b only 1 still run"}, nil, 0},
		"the command does nothing":                      {w.ran(0, ""), base, column(w.ran(1, suite("a", "b", "c!"))), Doubtful, []string{"report_doubted unit: its report cannot be believed: no file is where it should be"}, nil, 0},
		"the command runs no test":                      {w.ran(0, suite()), base, same, Doubtful, []string{"report_doubted unit: ran no test", "tests_vanished unit: s a does not run any more", "tests_vanished unit: s b does not run any more", "tests_vanished unit: s c does not run any more"}, nil, 0},
		"the report is forged, the status is not":       {w.ran(1, good), base, same, Failed, nil, nil, 1},
		"the status is forged, the report is not":       {w.ran(0, suite("a", "b", "c!")), base, same, Doubtful, []string{"report_doubted unit: exit status 0, but its report says 1 failed: the report or the command is not honest"}, nil, 0},
		"the report is cut":                             {w.ran(0, good[:len(good)-5]), base, same, Doubtful, []string{"report_doubted unit: its report cannot be believed: r.xml is not XML that can be read"}, nil, 0},
		"the report says no time was needed":            {w.ran(0, strings.ReplaceAll(good, `time="1"`, `time="0"`)), column(w.ran(0, good)), same, Doubtful, []string{"report_doubted unit: its report says that tests which took 3s on the base now take 0s"}, nil, 0},
		"the report says more time was needed than was": {w.ran(0, strings.Replace(good, `time="1"`, `time="99"`, 1)), base, same, Doubtful, []string{"report_doubted unit: its report says that s a took 1m39s, but the whole command ran 10s"}, nil, 1},
		"a test breaks":                                 {w.ran(1, suite("a!", "b", "c")), base, same, Failed, nil, nil, 1},
		"the base did not run":                          {w.ran(0, good), &wire.Column{Words: "No disk."}, same, Doubtful, []string{"not_compared unit"}, nil, 0},
		"nobody ran the base":                           {w.ran(0, good), nil, nil, Doubtful, []string{"not_compared"}, nil, 0},
		"the base's tests hang":                         {w.ran(0, good), base, &wire.Column{Words: "Not over."}, Passed, nil, []string{"the base's tests did not all run over the changed sources: Not over."}, 1},
		"the base's tests do not compile":               {w.ran(0, good), column(w.ran(0, good)), column(w.ran(2, "")), Passed, nil, []string{"unit: with the base's tests: exit status 2"}, 0},
		"the base does not compile":                     {w.ran(0, good), column(w.ran(2, "")), same, Passed, nil, nil, 0},
		"the base's report is cut":                      {w.ran(0, good), column(w.ran(1, suite("a", "b", "c!")[:120])), same, Doubtful, []string{"not_compared unit: on the base"}, nil, 0},
		"the base's report is missing":                  {w.ran(0, good), column(w.ran(0, "")), same, Doubtful, []string{"not_compared unit: on the base"}, nil, 0},
		"nothing ran anywhere":                          {w.ran(0, suite()), column(w.ran(0, suite())), same, Nothing, nil, nil, 0},
	} {
		v := w.judge(wire.Outcome{Results: []wire.VerifyResult{c.result}, Base: c.base, BaseTests: c.baseTests}).Verdict
		if v.Kind != c.kind || v.Fixed != c.fixed {
			t.Errorf("%s: %s, %d fixed: %+v", name, v.Kind, v.Fixed, v)
		}
		if c.kind == Doubtful || c.kind == Passed {
			if len(v.Doubts) != len(c.doubts) || len(v.Old) != len(c.old) {
				t.Errorf("%s: doubts %q, old %q", name, v.Doubts, v.Old)
				continue
			}
		}
		for i, d := range c.doubts {
			reason, words, _ := strings.Cut(d, " ")
			if v.Doubts[i].Reason != reason || reason != DoubtCompared && !strings.HasPrefix(v.Doubts[i].What, words) {
				t.Errorf("%s: %q, want %q", name, v.Doubts[i], d)
			}
		}
		for i, o := range c.old {
			if !strings.HasPrefix(v.Old[i], o) {
				t.Errorf("%s: %q, want %q", name, v.Old[i], o)
			}
		}
	}
}

// A failure that goes away by itself is told, and no test is fixed by it.
func TestFlaky(t *testing.T) {
	w := &judged{t, map[string]string{"out": ""}}
	again := func(runs ...wire.VerifyResult) wire.VerifyResult {
		runs[0].Again = runs[1:]
		return runs[0]
	}
	bad, good := w.ran(1, suite("a", "b!")), w.ran(0, suite("a", "b"))
	j := w.judge(wire.Outcome{Results: []wire.VerifyResult{again(bad, bad, good)}, Base: column(good), BaseTests: &wire.Column{Same: true}})
	if c := j.Checks[0]; j.Verdict.Kind != Passed || j.Verdict.Flaky != 1 || !slices.Equal(c.Flaky, []string{"s b"}) || c.Runs != 3 || c.Duration != 30*time.Second || !strings.Contains(c.Words, "failed at first (1 of 2 tests failed)") {
		t.Errorf("%+v %+v", j.Verdict, c)
	}
	j = w.judge(wire.Outcome{Results: []wire.VerifyResult{good}, Base: column(again(bad, good)), BaseTests: &wire.Column{Same: true}})
	if j.Verdict.Fixed != 0 {
		t.Errorf("fixed by chance: %+v", j.Verdict)
	}
	j = w.judge(wire.Outcome{Results: []wire.VerifyResult{again(bad, bad, bad)}, Base: column(good), BaseTests: &wire.Column{Same: true}})
	if j.Verdict.Kind != Failed || j.Verdict.Flaky != 0 || j.Checks[0].Runs != 3 {
		t.Errorf("%+v", j.Verdict)
	}
	// A report of the last run is not believed against its own exit status either.
	j = w.judge(wire.Outcome{Results: []wire.VerifyResult{again(bad, w.ran(0, suite("a", "b!")))}, Base: column(good), BaseTests: &wire.Column{Same: true}})
	if j.Verdict.Kind == Passed {
		t.Errorf("%+v", j.Verdict)
	}
}

// Exit statuses alone are compared, too.
func TestBareExit(t *testing.T) {
	w := &judged{t, map[string]string{"out": ""}}
	v := func(exit int) wire.VerifyResult {
		return wire.VerifyResult{Name: "unit", Run: "run", Report: "exit", ExitCode: exit}
	}
	j := w.judge(wire.Outcome{Results: []wire.VerifyResult{v(0)}, Base: column(v(1)), BaseTests: column(v(1))})
	if j.Verdict.Kind != Passed || j.Verdict.Fixed != 0 || len(j.Verdict.Old) != 1 {
		t.Errorf("%+v", j.Verdict)
	}
	j = w.judge(wire.Outcome{Results: []wire.VerifyResult{v(0)}, Base: column(v(1)), BaseTests: column(v(0))})
	if j.Verdict.Kind != Passed || j.Verdict.Fixed != 1 || len(j.Verdict.Old) != 0 {
		t.Errorf("%+v", j.Verdict)
	}
	j = w.judge(wire.Outcome{Results: []wire.VerifyResult{v(0)}, Base: column(v(0)), BaseTests: column(v(1))})
	if j.Verdict.Kind != Passed || len(j.Verdict.Old) != 1 {
		t.Errorf("%+v", j.Verdict)
	}
	if j = w.judge(wire.Outcome{Results: []wire.VerifyResult{v(0)}}); j.Verdict.Kind != Passed {
		t.Errorf("there is nothing to compare: %+v", j.Verdict)
	}
}

// Ten thousand tests that vanish are counted; a thousand are named.
func TestManyVanish(t *testing.T) {
	w := &judged{t, map[string]string{"out": ""}}
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprint("t", i))
	}
	j := w.judge(wire.Outcome{Results: []wire.VerifyResult{w.ran(0, suite("t0"))}, Base: column(w.ran(0, suite(names...))), BaseTests: &wire.Column{Same: true}})
	if v := j.Verdict; v.Vanished != 9_999 || len(v.Doubts) != maxNamed || v.Kind != Doubtful {
		t.Errorf("%d vanished, %d doubts, %s", v.Vanished, len(v.Doubts), v.Kind)
	}
	if len(j.Tests()) != 1 || len(j.Tests()[0].Base) != 10_000 {
		t.Error("not all tests are listed")
	}
}

func TestNewFindings(t *testing.T) {
	sarif := func(lines ...int) string {
		var all []string
		for _, n := range lines {
			all = append(all, fmt.Sprintf(`{"ruleId":"R%d","message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"a.go"},"region":{"startLine":%d}}}]}`, n%10, n))
		}
		return `{"version":"2.1.0","runs":[{"results":[` + strings.Join(all, ",") + `]}]}`
	}
	w := &judged{t, map[string]string{"out": ""}}
	lint := func(exit int, body string) wire.VerifyResult {
		v := w.ran(exit, body)
		v.Report = "sarif:r"
		return v
	}
	j := w.judge(wire.Outcome{Results: []wire.VerifyResult{lint(0, sarif(11, 12, 22))}, Base: column(lint(0, sarif(1, 2)))})
	if c := j.Checks[0]; j.Verdict.Kind != Passed || c.FindingsTotal != 3 || c.Findings[0].New || c.Findings[1].New || !c.Findings[2].New || len(j.Verdict.Notes) != 1 {
		t.Errorf("%+v %+v", j.Verdict, c.Findings)
	}
	j = w.judge(wire.Outcome{Results: []wire.VerifyResult{lint(0, "{")}, Base: column(lint(0, sarif(1)))})
	if j.Verdict.Kind != Doubtful {
		t.Errorf("%+v", j.Verdict)
	}
}

// What fails on the base in the same way is told apart from what the change broke.
func TestNoNewFailures(t *testing.T) {
	w := &judged{t, map[string]string{"out": ""}}
	bad := suite("a!", "b!", "c")
	again := func(runs ...wire.VerifyResult) wire.VerifyResult {
		runs[0].Again = runs[1:]
		return runs[0]
	}
	ended := func(v wire.VerifyResult, signal string, late bool) wire.VerifyResult {
		v.Signal, v.TimedOut = signal, late
		return v
	}
	bare := func(exit int) wire.VerifyResult {
		return wire.VerifyResult{Name: "unit", Run: "run", Report: "exit", ExitCode: exit}
	}
	lint := func(exit int, rules ...string) wire.VerifyResult {
		var all []string
		for _, r := range rules {
			all = append(all, fmt.Sprintf(`{"ruleId":%q,"message":{"text":"m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"a.go"},"region":{"startLine":3}}}]}`, r))
		}
		v := w.ran(exit, `{"version":"2.1.0","runs":[{"results":[`+strings.Join(all, ",")+`]}]}`)
		v.Report = "sarif:r"
		return v
	}
	same := &wire.Column{Same: true}
	for name, c := range map[string]struct {
		result wire.VerifyResult
		base   *wire.Column
		kind   string
		stands int
		fixed  int
	}{
		"the same tests fail":                     {w.ran(1, bad), column(w.ran(1, bad)), NoNew, 2, 0},
		"one of them is fixed":                    {w.ran(1, suite("a!", "b", "c")), column(w.ran(1, bad)), NoNew, 1, 1},
		"one fails that passed":                   {w.ran(1, suite("a!", "b!", "c!")), column(w.ran(1, bad)), Failed, 0, 0},
		"one fails that is new":                   {w.ran(1, suite("a!", "b!", "c", "d!")), column(w.ran(1, bad)), Failed, 0, 0},
		"one of a name fails, now both":           {w.ran(1, suite("a!", "a!", "c")), column(w.ran(1, suite("a!", "a", "c"))), Failed, 0, 0},
		"a passing one vanished":                  {w.ran(1, suite("a!", "b!")), column(w.ran(1, bad)), Failed, 0, 0},
		"a failing one vanished":                  {w.ran(1, suite("a!", "c")), column(w.ran(1, bad)), Failed, 0, 0},
		"a failing one is skipped":                {w.ran(1, suite("a!", "b?", "c")), column(w.ran(1, bad)), Failed, 0, 0},
		"the result's report is cut":              {w.ran(1, bad[:len(bad)-4]), column(w.ran(1, bad)), Failed, 0, 0},
		"the base's report is cut":                {w.ran(1, bad), column(w.ran(1, bad[:len(bad)-4])), Failed, 0, 0},
		"no report in either place":               {w.ran(1, ""), column(w.ran(1, "")), Failed, 0, 0},
		"the reports name nothing":                {w.ran(1, suite("a", "b", "c")), column(w.ran(1, suite("a", "b", "c"))), Failed, 0, 0},
		"a forged report":                         {w.ran(0, bad), column(w.ran(1, bad)), Doubtful, 0, 0},
		"the base passes when it runs again":      {w.ran(1, bad), column(again(w.ran(1, bad), w.ran(0, suite("a", "b", "c")))), Failed, 0, 0},
		"one of the base's fails only now and so": {w.ran(1, bad), column(again(w.ran(1, bad), w.ran(1, suite("a!", "b", "c")))), Failed, 0, 0},
		"a flaky one besides":                     {again(w.ran(1, suite("a!", "b!", "c!")), w.ran(1, bad)), column(w.ran(1, bad)), NoNew, 2, 0},
		"the base was not all run":                {w.ran(1, bad), &wire.Column{Results: []wire.VerifyResult{w.ran(1, bad)}, Words: "No disk."}, Failed, 0, 0},
		"there is no base":                        {w.ran(1, bad), nil, Failed, 0, 0},
		"it was killed":                           {ended(w.ran(-1, bad), "SIGKILL", false), column(ended(w.ran(-1, bad), "SIGKILL", false)), Failed, 0, 0},
		"it was not over in time":                 {ended(w.ran(1, bad), "", true), column(ended(w.ran(1, bad), "", true)), Failed, 0, 0},
		"the same bare status":                    {bare(2), column(bare(2)), NoNew, 1, 0},
		"another bare status":                     {bare(2), column(bare(1)), Failed, 0, 0},
		"its program is not there":                {bare(127), column(bare(127)), Failed, 0, 0},
		"the same findings":                       {lint(1, "R1", "R2"), column(lint(1, "R2", "R1")), NoNew, 1, 0},
		"a new finding":                           {lint(1, "R1", "R3"), column(lint(1, "R2", "R1")), Failed, 0, 0},
		"no finding":                              {lint(1), column(lint(1)), Failed, 0, 0},
	} {
		if v := w.judge(wire.Outcome{Results: []wire.VerifyResult{c.result}, Base: c.base, BaseTests: same}).Verdict; c.fixed == 0 && v.Kind == NoNew {
			t.Errorf("%s: nothing was mended, and it is no failure", name)
		}
		mended := func(code int) wire.VerifyResult {
			return wire.VerifyResult{Name: "mended", Run: "make", ExitCode: code, Duration: time.Second}
		}
		if c.base != nil {
			c.base = &wire.Column{Results: append(slices.Clone(c.base.Results), mended(1)), Words: c.base.Words}
		}
		v := w.judge(wire.Outcome{Results: []wire.VerifyResult{c.result, mended(0)}, Base: c.base, BaseTests: same}).Verdict
		if v.Kind != c.kind || v.Standing != c.stands || len(v.Stands) != c.stands || v.Kind == NoNew && v.Fixed != c.fixed+1 {
			t.Errorf("%s: %+v", name, v)
		}
	}
	// Another command that is broken decides.
	lintNow := bare(1)
	lintNow.Name = "lint"
	lintThen := lintNow
	lintThen.ExitCode = 0
	if v := w.judge(wire.Outcome{Results: []wire.VerifyResult{w.ran(1, bad), lintNow}, Base: column(w.ran(1, bad), lintThen), BaseTests: same}).Verdict; v.Kind != Failed {
		t.Errorf("%+v", v)
	}
}
