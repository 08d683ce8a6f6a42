package evidence

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"inspect/envs/wire"
)

func junitOf(body string) *report {
	r := &report{}
	readJUnit("r.xml", []byte(body), r)
	return r
}

func tapOf(t *testing.T, body string) *report {
	t.Helper()
	r := &report{}
	if err := readTAP(strings.NewReader(body), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// What each runner writes, in its own dialect.
func TestJUnitDialects(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []Case
	}{
		"pytest": {`<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4" time="0.06" timestamp="2026-11-30T14:00:00+00:00" hostname="h">
<testcase classname="tests.test_a.TestX" name="test_ok[a|b]" time="0.001" /><testcase classname="tests.test_a" name="test_no" time="0.002"><failure message="assert 1 == 2">def test_no():
&gt;       assert 1 == 2</failure></testcase><testcase classname="tests.test_a" name="test_skip" time="0"><skipped type="pytest.skip" message="later">x</skipped></testcase><testcase classname="tests.test_a" name="test_err" time="0"><error message="failed on setup">E</error></testcase></testsuite></testsuites>`,
			[]Case{{Suite: "tests.test_a.TestX", Name: "test_ok[a|b]", Outcome: TestPassed, Duration: time.Millisecond}, {Suite: "tests.test_a", Name: "test_no", Outcome: TestFailed, Duration: 2 * time.Millisecond},
				{Suite: "tests.test_a", Name: "test_skip", Outcome: TestSkipped}, {Suite: "tests.test_a", Name: "test_err", Outcome: TestFailed}}},
		"maven": {`<?xml version="1.0" encoding="UTF-8"?><testsuite xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" name="com.x.FooTest" time="1,234.5" tests="3"><properties><property name="java.home" value="/x"/></properties>
<testcase name="ok" classname="com.x.FooTest" time="0.5"/><testcase name="flaky" classname="com.x.FooTest" time="0.1"><flakyFailure message="m" type="t"><stackTrace>x</stackTrace></flakyFailure></testcase><testcase name="no" classname="com.x.FooTest" time="0.1"><failure type="t"><![CDATA[boom <x>]]></failure><rerunFailure type="t"/></testcase></testsuite>`,
			[]Case{{Suite: "com.x.FooTest", Name: "ok", Outcome: TestPassed, Duration: 500 * time.Millisecond}, {Suite: "com.x.FooTest", Name: "flaky", Outcome: TestPassed, Duration: 100 * time.Millisecond}, {Suite: "com.x.FooTest", Name: "no", Outcome: TestFailed, Duration: 100 * time.Millisecond}}},
		"jest": {`<?xml version="1.0" encoding="UTF-8"?><testsuites name="jest tests" tests="2" failures="0" errors="0" time="1.2"><testsuite name="adds" errors="0" failures="0" skipped="1" tests="2"><testcase classname="adds one" name="adds one" time="0.003"></testcase><testcase classname="adds two" name="adds two" time="0"><skipped/></testcase></testsuite></testsuites>`,
			[]Case{{Suite: "adds one", Name: "adds one", Outcome: TestPassed, Duration: 3 * time.Millisecond}, {Suite: "adds two", Name: "adds two", Outcome: TestSkipped}}},
		"mocha": {`<testsuites name="Mocha Tests" time="0.0060" tests="1" failures="1"><testsuite name="Root Suite" tests="0"></testsuite><testsuite name="Sum" tests="1" failures="1"><testcase name="Sum adds" time="0.0010" classname="adds"><failure message="no" type="AssertionError"><![CDATA[AssertionError: no]]></failure></testcase></testsuite></testsuites>`,
			[]Case{{Suite: "adds", Name: "Sum adds", Outcome: TestFailed, Duration: time.Millisecond}}},
		"cargo-nextest": {`<testsuites name="nextest-run" tests="2" failures="0" errors="0" uuid="u" timestamp="t" time="0.007"><testsuite name="krate::it" tests="2" disabled="0" errors="0" failures="0"><testcase name="a::b" classname="krate::it" timestamp="t" time="0.004"></testcase><testcase name="c" classname="krate::it" time="0.003"><flakyFailure timestamp="t" type="test failure"/></testcase></testsuite></testsuites>`,
			[]Case{{Suite: "krate::it", Name: "a::b", Outcome: TestPassed, Duration: 4 * time.Millisecond}, {Suite: "krate::it", Name: "c", Outcome: TestPassed, Duration: 3 * time.Millisecond}}},
		"googletest": {`<testsuites tests="2"><testsuite name="S"><testcase name="A" status="run" result="completed" time="0" classname="S"/><testcase name="B" status="notrun" result="suppressed" time="0" classname="S"/></testsuite></testsuites>`,
			[]Case{{Suite: "S", Name: "A", Outcome: TestPassed}, {Suite: "S", Name: "B", Outcome: TestSkipped}}},
		"the same test again": {`<testsuite name="s"><testcase name="a"/><testcase name="a"><failure/></testcase><testcase name="a"/></testsuite>`, []Case{{Suite: "s", Name: "a", Outcome: TestFailed}}},
		"suites in suites":    {`<testsuites><testsuite name="o"><testsuite name="i"><testcase name="a"/></testsuite><testcase name="b"/></testsuite></testsuites>`, []Case{{Suite: "o", Name: "b", Outcome: TestPassed}, {Suite: "i", Name: "a", Outcome: TestPassed}}},
		"no test":             {`<testsuites/>`, nil},
	} {
		r := junitOf(c.body)
		if r.damage != "" {
			t.Errorf("%s: %s", name, r.damage)
		}
		if d := cmp.Diff(c.want, r.cases, cmpopts.IgnoreUnexported(Case{})); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if r := junitOf(`<testsuite name="s"><testcase name="a"><failure message="m">body</failure></testcase></testsuite>`); !strings.Contains(r.cases[0].output, "body") {
		t.Errorf("output %q", r.cases[0].output)
	}
}

func TestHostileXML(t *testing.T) {
	bomb := `<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol1 "&lol;&lol;">]><testsuite name="s"><testcase name="&lol1;"/></testsuite>`
	for name, c := range map[string]struct{ body, want string }{
		"entity bomb":  {bomb, "declares entities"},
		"file entity":  {`<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&e;"/></testsuite>`, "declares entities"},
		"unknown":      {`<testsuite><testcase name="&e;"/></testsuite>`, "is not XML that can be read"},
		"deep":         {strings.Repeat("<testsuite>", 100_000), "nests its elements deeper"},
		"cut":          {`<testsuites><testsuite name="a"><testcase name="x"/>`, "ends in the middle"},
		"cut in a tag": {`<testsuites><testsuite na`, "is not XML that can be read"},
		"not XML":      {"FAIL: everything\n", "has no element"},
		"binary":       {"\x00\xff\xfe", "is not XML that can be read"},
		"other XML":    {`<html><body/></html>`, "is not a JUnit report"},
		"crossed":      {`<testsuite><testcase></testsuite></testcase>`, "is not XML that can be read"},
		"attributes":   {"<testsuite " + strings.Repeat(`a="" `, 200) + "/>", "too many attributes"},
		"misplaced":    {`<testsuites><testsuite name="s"><testcase name="a"/></testsuite><testcase name="b"><failure/></testcase></testsuites>`, "has tests where no JUnit report has any"},
		"in a comment": {`<report><!-- <testsuite> --></report>`, "is not a JUnit report"},
		"not UTF-8":    {"<testsuite name=\"s\"><testcase name=\"\xff\"/></testsuite>", "is not XML that can be read"},
		"NUL":          {"<testsuite name=\"s\"><testcase name=\"\x00\"/></testsuite>", "is not XML that can be read"},
		"encoding":     {`<?xml version="1.0" encoding="utf-16"?><testsuite/>`, "is not XML that can be read"},
	} {
		if r := junitOf(c.body); !strings.Contains(r.damage, c.want) {
			t.Errorf("%s: %q", name, r.damage)
		}
	}
}

// A file that counts failures and names none: with exit status 0 it is a lie, with
// another one that of a suite which could not begin, and no reason to doubt the rest.
func TestJUnitThatContradictsItself(t *testing.T) {
	for body, want := range map[string]string{
		`<testsuite tests="100" failures="0"><properties/></testsuite>`:                                        "says that there were 100 tests and names none",
		`<testsuites failures="2"><testsuite name="s" tests="3"><testcase name="a"/></testsuite></testsuites>`: "says that 2 failed and names none",
		`<testsuite name="s" errors="1"><testcase name="a"/></testsuite>`:                                      "says that 1 failed and names none",
	} {
		v := wire.VerifyResult{Name: "unit", Report: "junit:x", Reports: []wire.ReportFile{{Path: "x", SHA256: "f"}}}
		c, err := judgeOne(v, opener(map[string]string{"f": body}))
		if err != nil || c.Passed || !strings.Contains(c.Doubt, want) {
			t.Errorf("%s: %v %+v", body, err, c)
		}
		v.ExitCode = 1
		if c, err = judgeOne(v, opener(map[string]string{"f": body})); err != nil || c.Passed || c.Doubt != "" || c.torn {
			t.Errorf("%s: %v %+v", body, err, c)
		}
	}
}

// What is odd and no lie is read all the same.
func TestOddJUnit(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want []Case
	}{
		"times": {`<testsuite name="s"><testcase name="nan" time="NaN"/><testcase name="inf" time="Inf"/><testcase name="minus" time="-5"/><testcase name="much" time="1e300"/><testcase name="none" time="soon"/></testsuite>`,
			[]Case{{Suite: "s", Name: "nan", Outcome: TestPassed}, {Suite: "s", Name: "inf", Outcome: TestPassed}, {Suite: "s", Name: "minus", Outcome: TestPassed}, {Suite: "s", Name: "much", Outcome: TestPassed}, {Suite: "s", Name: "none", Outcome: TestPassed}}},
		"no names":          {`<testsuite><testcase/><testcase classname="c"><failure/></testcase></testsuite>`, []Case{{Name: "(no name)", Outcome: TestPassed}, {Suite: "c", Name: "(no name)", Outcome: TestFailed}}},
		"lines":             {"<?xml version=\"1.0\"?>\r\n<testsuite name=\"s\">\r\n<testcase name=\"a&#10;b\"/>\r\n</testsuite>\r\n", []Case{{Suite: "s", Name: "a\nb", Outcome: TestPassed}}},
		"a flood of output": {`<testsuite name="s"><testcase name="a"><system-out>` + strings.Repeat("x", 8<<20) + `</system-out></testcase><system-out>` + strings.Repeat("y", 8<<20) + `</system-out></testsuite>`, []Case{{Suite: "s", Name: "a", Outcome: TestPassed}}},
		"counts as people do": {`<testsuites tests="9" failures="1"><testsuite name="s" tests="2" failures="0" errors="1"><testcase name="a"/><testcase name="b"><error/></testcase></testsuite></testsuites>`,
			[]Case{{Suite: "s", Name: "a", Outcome: TestPassed}, {Suite: "s", Name: "b", Outcome: TestFailed}}},
	} {
		r := junitOf(c.body)
		for i := range r.cases { // how a number that is none is rounded differs between machines
			if d := r.cases[i].Duration; d < 0 || d > maxDuration {
				t.Errorf("%s: %s", name, d)
			}
			r.cases[i].Duration = 0
		}
		if d := cmp.Diff(c.want, r.cases, cmpopts.IgnoreUnexported(Case{})); d != "" || r.damage != "" {
			t.Errorf("%s: %s %s", name, r.damage, d)
		}
	}
	r := &report{}
	for range 100 {
		r.add(Case{Name: "a", Outcome: TestPassed, Duration: 1 << 62})
	}
	if r.cases[0].Duration != maxDuration {
		t.Errorf("%s", r.cases[0].Duration)
	}
}

// Files that begin with a byte order mark, as tools from elsewhere write them.
func TestByteOrderMark(t *testing.T) {
	files := map[string]string{
		"junit": byteOrderMark + `<?xml version="1.0"?><testsuite name="s"><testcase name="a"/></testsuite>`, "sarif": byteOrderMark + `{"version":"2.1.0","runs":[{"results":[{"message":{"text":"x"}}]}]}`,
		"tap": byteOrderMark + "1..1\r\nok 1 - a\r\n", "alone": byteOrderMark,
	}
	for _, v := range []wire.VerifyResult{
		{Report: "junit:x", Reports: []wire.ReportFile{{Path: "x", SHA256: "junit"}}}, {Report: "sarif:x", Reports: []wire.ReportFile{{Path: "x", SHA256: "sarif"}}}, {Report: "tap", Stdout: "tap"},
	} {
		if r, err := readReport(v, opener(files)); err != nil || r.damage != "" || len(r.cases)+len(r.findings) != 1 {
			t.Errorf("%s: %v %+v", v.Report, err, r)
		}
	}
	if r, _ := readReport(wire.VerifyResult{Report: "junit:x", Reports: []wire.ReportFile{{Path: "x", SHA256: "alone"}}}, opener(files)); !strings.Contains(r.damage, "x is empty") {
		t.Errorf("%q", r.damage)
	}
}

func TestTooManyTests(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`<testsuite name="s">`)
	for i := range maxCases + 1 {
		fmt.Fprintf(&b, `<testcase name="%d"/>`, i)
	}
	b.WriteString("</testsuite>")
	if r := junitOf(b.String()); !strings.Contains(r.damage, "more than 200000 tests") || len(r.cases) != maxCases {
		t.Errorf("%q %d", r.damage, len(r.cases))
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	good := `<testsuite name="s"><testcase name="a"/></testsuite>`
	files := map[string]string{"good": good, "empty": "", "huge": strings.Repeat(" ", maxFileBytes+1)}
	for name, c := range map[string]struct {
		files []wire.ReportFile
		want  string
	}{
		"good":     {[]wire.ReportFile{{Path: "a.xml", SHA256: "good"}}, ""},
		"none":     {nil, "no file is where it should be"},
		"link":     {[]wire.ReportFile{{Path: "a.xml", SHA256: "good"}, {Path: "b|\n.xml", Problem: "is a symbolic link"}}, "b| .xml is a symbolic link"},
		"lost":     {[]wire.ReportFile{{Path: "a.xml"}}, "a.xml was not kept"},
		"empty":    {[]wire.ReportFile{{Path: "a.xml", SHA256: "empty"}}, "a.xml is empty"},
		"huge":     {[]wire.ReportFile{{Path: "a.xml", SHA256: "huge"}}, "a.xml is longer than 24 MiB"},
		"too many": {[]wire.ReportFile{{Problem: "is one of more than 500"}}, "one of its files is one of more than 500"},
	} {
		r, err := readReport(wire.VerifyResult{Report: "junit:*.xml", Reports: c.files}, opener(files))
		if err != nil || (r.damage == "") != (c.want == "") || !strings.Contains(r.damage, c.want) {
			t.Errorf("%s: %v %q", name, err, r.damage)
		}
	}
}

// Names that differ stay different, however long they are and whatever is in them.
func TestIdentities(t *testing.T) {
	r := &report{}
	long := strings.Repeat("x", 5000)
	for _, n := range []string{"a\nb", "a|b", "a b", "a\x1b[31mb", "a\u202eb", long + "1", long + "2", "\xff", "日本"} {
		r.add(Case{Suite: "s", Name: n, Outcome: TestFailed})
	}
	if len(r.cases) != 9 {
		t.Fatalf("%d tests: %q", len(r.cases), r.cases)
	}
	for _, f := range r.tests().Failures {
		if strings.ContainsAny(f.Test, "\n\x1b\u202e") || len(f.Test) > 300 {
			t.Errorf("shown as %q", f.Test)
		}
	}
}

func TestTAP(t *testing.T) {
	const node = `TAP version 13
# Subtest: sum
    # Subtest: adds
    ok 1 - adds
      ---
      duration_ms: 1.5
      ...
    # Subtest: subtracts # 2
    not ok 2 - subtracts # 2
      ---
      duration_ms: 2
      error: 'no'
      ...
    1..2
not ok 1 - sum
  ---
  duration_ms: 4
  ...
# Subtest: later
ok 2 - later # SKIP not now
1..2
# tests 3
`
	r := tapOf(t, node)
	want := []Case{
		{Suite: "sum", Name: "adds", Outcome: TestPassed, Duration: 1500 * time.Microsecond}, {Suite: "sum", Name: "subtracts # 2", Outcome: TestFailed, Duration: 2 * time.Millisecond},
		{Name: "sum", Outcome: TestFailed, Duration: 4 * time.Millisecond}, {Name: "later", Outcome: TestSkipped},
	}
	if d := cmp.Diff(want, r.cases, cmpopts.IgnoreUnexported(Case{})); d != "" || r.damage != "" {
		t.Errorf("%q %s", r.damage, d)
	}
	if !strings.Contains(r.cases[1].output, "error: 'no'") {
		t.Errorf("output %q", r.cases[1].output)
	}
	for body, c := range map[string]struct {
		damage string
		n      int
	}{
		"1..2\nok 1 - a\nnot ok 2 - b # TODO later\n":                      {"", 2},
		"ok 1 - a\nok 2 - b\n":                                             {"has no plan", 2},
		"1..3\nok 1\nok 2\n":                                               {"announces 3 tests and has 2", 2},
		"1..2\nok 1 - a\nBail out! no disk\n":                              {"gave up: no disk", 1},
		"1..0 # SKIP nothing here\n":                                       {"", 0},
		"hello\n":                                                          {"", 0},
		"1..1\n" + strings.Repeat("x", 100<<10) + "\n":                     {"longer than 60 KiB", 0},
		"1..999999999999\nok 1 a\n":                                        {"no plan", 1},
		"1..1\nokay then\nok 1 - x\n":                                      {"", 1},
		"1..1\n1..3\nok 1\nok 2\nok 3\n":                                   {"two plans", 3},
		"TAP version 14\n1..1\nok 1 - a\nTAP version 14\nok 1 - b\n1..1\n": {"", 2},
		"TAP version 14\n1..2\nok 1 - a\nTAP version 14\nok 1 - b\nok 2 - c\nok 3 - d\n1..3\n":           {"announces 2 tests and has 1", 4},
		"TAP version 14\r\n# Subtest: x\r\n    1..1\r\n    ok 1 - y \\# SKIP no\r\nok 1 - x\r\n1..1\r\n": {"", 2},
		"1..1\nok 1 - \xff\xfe\n": {"", 1},
	} {
		if r := tapOf(t, body); len(r.cases) != c.n || (r.damage == "") != (c.damage == "") || !strings.Contains(r.damage, c.damage) {
			t.Errorf("%.60q: %d tests, %q", body, len(r.cases), r.damage)
		}
	}
}

// What node prints today is read right.
func TestRealTAP(t *testing.T) {
	cmd := exec.Command("node", "--test", "--test-reporter=tap")
	cmd.Dir = t.TempDir()
	if out, err := exec.Command("sh", "-c", `cat >"$1"/a.test.js <<'X'
const {test, describe, it} = require('node:test'); const assert = require('assert')
describe('sum', () => { it('adds', () => {}); it('fails', () => { assert.equal(1, 2) }) })
test('skipped', {skip: true}, () => {})
X`, "sh", cmd.Dir).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	out, err := cmd.Output()
	if err == nil {
		t.Fatal("the test should fail")
	}
	r := tapOf(t, string(out))
	got := map[string]Outcome{}
	for _, c := range r.cases {
		got[c.String()] = c.Outcome
	}
	if r.damage != "" || got["sum adds"] != TestPassed || got["sum fails"] != TestFailed || got["skipped"] != TestSkipped {
		t.Errorf("%q %v from\n%s", r.damage, got, out)
	}
}

func TestSARIF(t *testing.T) {
	body := `{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"lint"}},"results":[
{"ruleId":"R1","level":"error","message":{"text":"bad\u001b[31m"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"file:///workspace/src/a.go"},"region":{"startLine":7}}}]},
{"ruleId":"R2","message":{"text":"elsewhere"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"../../etc/passwd"},"region":{"startLine":-3}}}]},
{"ruleId":"R3","message":{"text":"quiet"},"suppressions":[{"kind":"inSource"}]},
{"ruleId":"R4","kind":"pass","message":{"text":"fine"}}]}]}`
	r := &report{}
	readSARIF("r", []byte(body), r)
	want := []Finding{{Rule: "R1", Level: "error", Path: "src/a.go", Line: 7, Message: "bad"}, {Rule: "R2", Level: "warning", Message: "elsewhere"}}
	if d := cmp.Diff(want, r.findings); d != "" || r.damage != "" {
		t.Errorf("%q %s", r.damage, d)
	}
	for body, want := range map[string]string{
		"{": "is not JSON", `{"version":"1.0.0"}`: "not a SARIF report", "[]": "is not JSON", `{"version":"2.1.0","runs":[null,{"results":[null]}]}`: "",
		strings.Repeat("[", 1<<20): "is not JSON", `{"version":"2.1.0","runs":"x"}`: "is not JSON",
	} {
		r := &report{}
		readSARIF("r", []byte(body), r)
		if (r.damage == "") != (want == "") || !strings.Contains(r.damage, want) {
			t.Errorf("%.40q: %q", body, r.damage)
		}
	}
}

// What results leave to the description of their rule, and addresses as they may
// be written.
func TestSARIFRules(t *testing.T) {
	body := `{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"lint","rules":[{"id":"A","shortDescription":{"text":"what A means"},"defaultConfiguration":{"level":"error"}},{"id":"B","shortDescription":null}]},"extensions":[{"name":"more","rules":[{"id":"X","defaultConfiguration":{"level":"note"}}]}]},
"originalUriBaseIds":{"SUB":{"uri":"file:///workspace/sub/"},"AWAY":{"uri":"file:///elsewhere/"}},"invocations":[{"executionSuccessful":true}],"results":[
{"ruleIndex":0,"message":{"id":"x"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"a%20b.go","uriBaseId":"SUB"}}}]},
{"rule":{"index":1},"message":{"markdown":"**B**"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"c.go","uriBaseId":"AWAY"}}}]},
{"ruleIndex":0,"ruleId":"A/1","level":"note","message":{"text":"own"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"%2e%2e/x"}}}]},
{"ruleIndex":4294967295,"message":{"text":"far"}},
{"ruleIndex":0,"rule":{"index":0,"toolComponent":{"index":0}},"message":{"text":"of an extension"}},
{"rule":{"index":0,"toolComponent":{"index":7}},"message":{"text":"of none"}},{"rule":{"index":0,"toolComponent":{"name":"more"}},"message":{"text":"by name"}}]}]}`
	r := &report{}
	readSARIF("r", []byte(body), r)
	want := []Finding{{Rule: "A", Level: "error", Path: "sub/a b.go", Message: "what A means"}, {Rule: "B", Level: "warning", Path: "c.go", Message: "**B**"},
		{Rule: "A/1", Level: "note", Path: "%2e%2e/x", Message: "own"}, {Level: "warning", Message: "far"},
		{Rule: "X", Level: "note", Message: "of an extension"}, {Level: "warning", Message: "of none"}, {Level: "warning", Message: "by name"}}
	if d := cmp.Diff(want, r.findings); d != "" || r.damage != "" {
		t.Errorf("%q %s", r.damage, d)
	}
	for body, want := range map[string]string{
		`{"version":"2.1.0"}`: "no run of any tool", `{"version":"2.1.0","runs":[]}`: "no run of any tool", `{"version":"2.1.0","runs":[null]}`: "no run of any tool",
		`{"version":"2.1.0","runs":[{"invocations":[{"executionSuccessful":false}],"results":[]}]}`: "did not run to a good end",
	} {
		v := wire.VerifyResult{Name: "lint", Report: "sarif:x", Reports: []wire.ReportFile{{Path: "x", SHA256: "f"}}}
		c, err := judgeOne(v, opener(map[string]string{"f": body}))
		if err != nil || c.Passed || !strings.Contains(c.Doubt, want) {
			t.Errorf("%s: %v %+v", body, err, c)
		}
	}
}

func TestCutTracefiles(t *testing.T) {
	for body, want := range map[string]string{"SF:a.go\nDA:1,1\n": "ends in the middle", "SF:a.go\nDA:1,1\nSF:b.go\nDA:1,0\nend_of_record\n": "a record without an end", "SF:a.go\r\nDA:1,1\r\nend_of_record\r\n": ""} {
		c, err := readCoverage(wire.VerifyResult{Coverage: "lcov:x", CoverageFiles: []wire.ReportFile{{Path: "x", SHA256: "f"}}}, []Added{{Path: "a.go", Lines: []int{1}}}, opener(map[string]string{"f": body}))
		if err != nil || (c.Damage == "") != (want == "") || !strings.Contains(c.Damage, want) {
			t.Errorf("%q: %v %+v", body, err, c)
		}
	}
}

func TestCoberturaPaths(t *testing.T) {
	for path, known := range map[string]bool{"/workspace/pkg/a.go": true, "pkg/a.go": true, "a.go": true, "/elsewhere/pkg/a.go": false, "../pkg/a.go": false, "file:///workspace/pkg/a.go": true} {
		body := `<coverage><class filename="` + path + `"><lines><line number="3" hits="1"/><line number="NaN" hits="1"/><line number="4" hits="NaN"/><line number="-1" hits="1"/></lines></class></coverage>`
		c, err := readCoverage(wire.VerifyResult{Coverage: "cobertura:x", CoverageFiles: []wire.ReportFile{{Path: "x", SHA256: "f"}}}, []Added{{Path: "pkg/a.go", Lines: []int{3}}}, opener(map[string]string{"f": body}))
		if err != nil || (c.Damage == "") != known || known && *c != (Coverage{Lines: 1, Covered: 1}) {
			t.Errorf("%s: %v %+v", path, err, c)
		}
	}
}

func TestCoverage(t *testing.T) {
	added := []Added{{Path: "pkg/a.go", Lines: []int{3, 4, 5, 9}}, {Path: "README.md", Lines: []int{1}}}
	files := map[string]string{
		"go":        "mode: set\nexample.com/m/pkg/a.go:3.10,4.2 1 1\nexample.com/m/pkg/a.go:9.1,9.9 1 0\nexample.com/m/other/a.go:1.1,99.9 1 1\n",
		"cobertura": `<?xml version="1.0"?><!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd"><coverage><packages><package><classes><class filename="pkg/a.go"><methods><method name="m"><lines><line number="3" hits="0"><conditions><condition number="0" type="jump" coverage="0%"/></conditions></line></lines></method></methods><lines><line number="3" hits="2"/><line number="4" hits="1"/><line number="9" hits="0"/></lines></class></classes></package></packages></coverage>`,
		"lcov":      "TN:\nSF:/workspace/pkg/a.go\nDA:3,1\nDA:4,8,abc\nDA:9,0\nDA:x,1\nend_of_record\nDA:5,1\n",
	}
	for kind, body := range files {
		v := wire.VerifyResult{Coverage: kind + ":x", CoverageFiles: []wire.ReportFile{{Path: "x", SHA256: "f"}}}
		c, err := readCoverage(v, added, opener(map[string]string{"f": body}))
		if err != nil || *c != (Coverage{Lines: 3, Covered: 2}) {
			t.Errorf("%s: %v %+v", kind, err, c)
		}
		for what, bad := range map[string]string{"cut": body[:10], "noise": "\x00\xff"} {
			if c, err := readCoverage(v, added, opener(map[string]string{"f": bad})); err != nil || c.Damage == "" {
				t.Errorf("%s %s: %v %+v", kind, what, err, c)
			}
		}
	}
	v := wire.VerifyResult{Coverage: "go:x"}
	if c, err := readCoverage(v, added, nil); err != nil || !strings.Contains(c.Damage, "no file") {
		t.Errorf("%v %+v", err, c)
	}
	v.CoverageFiles = []wire.ReportFile{{Path: "x", SHA256: "f"}}
	if c, _ := readCoverage(v, added, opener(map[string]string{"f": "mode: set\na.go:1.1,2000000000.1 1 1\n"})); !strings.Contains(c.Damage, "too long") {
		t.Errorf("%+v", c)
	}
}

// Files within their size that would cost a reader minutes, or gigabytes.
func TestCostlyFiles(t *testing.T) {
	for name, body := range map[string]string{
		"go: lines at the end of all numbers": "mode: set\na.go:9223372036854775800.1,9223372036854775807.1 1 1\n",
		"go: blocks over one another":         "mode: set\n" + blocks(maxBlocks/maxBlockLines+1),
		"lcov: files":                         tracefiles(maxCoveredFiles + 1),
	} {
		kind, _, _ := strings.Cut(name, ":")
		v := wire.VerifyResult{Coverage: kind + ":x", CoverageFiles: []wire.ReportFile{{Path: "x", SHA256: "f"}}}
		c, err := readCoverage(v, nil, opener(map[string]string{"f": body}))
		if err != nil || strings.HasSuffix(name, "numbers") == (c.Damage != "") {
			t.Errorf("%s: %v %+v", name, err, c)
		}
	}
	r := &report{}
	readSARIF("r", []byte(`{"version":"2.1.0","runs":[{"results":[`+strings.Repeat("{},", maxSARIFObjects)+`{}]}]}`), r)
	if !strings.Contains(r.damage, "objects") {
		t.Errorf("%q, %d findings", r.damage, len(r.findings))
	}
	if r := junitOf("<testsuite>" + strings.Repeat("<testcase/>", maxJUnitElements) + "</testsuite>"); !strings.Contains(r.damage, "too many elements") {
		t.Errorf("%q", r.damage)
	}
}

// blocks of a Go profile, each as long as one may be, all over one another.
func blocks(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "a.go:1.%d,%d.1 1 1\n", i+1, maxBlockLines)
	}
	return b.String()
}

func tracefiles(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "SF:f%d\nDA:1,1\n", i)
	}
	return b.String()
}

// Nothing that a file holds may do more than damage its own report.
func FuzzReports(f *testing.F) {
	for kind := range byte(7) {
		for _, s := range []string{passing, failing, `<testsuite name="s"><testcase name="a"><failure/></testcase></testsuite>`, "1..2\nok 1 - a\n    not ok 1 b\n  ---\n",
			`{"version":"2.1.0","runs":[{"results":[{"message":{"text":"x"}}]}]}`, "mode: set\na.go:1.1,2.2 1 1\n", "SF:a\nDA:1,1\n", `<class filename="a"><line number="1" hits="1"/></class>`} {
			f.Add(kind, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		r, p := &report{}, &profile{}
		var err error
		switch kind % 7 {
		case 0:
			err = readGoTest(bytes.NewReader(body), r)
		case 1:
			err = readTAP(bytes.NewReader(body), r)
		case 2:
			readJUnit("r", body, r)
			if r.damage == "" && xml.Unmarshal(body, new(struct{ XMLName xml.Name })) != nil {
				t.Fatal("a broken document was believed")
			}
		case 3:
			readSARIF("r", body, r)
		case 4:
			readGoCover("r", body, p)
		case 5:
			readCobertura("r", body, p)
		case 6:
			readLCOV("r", body, p)
		}
		if err != nil {
			t.Fatal(err)
		}
		tests := r.tests()
		if tests.Passed+tests.Failed+tests.Skipped != len(r.cases) || len(tests.Failures) > maxFailures {
			t.Fatalf("%+v", tests)
		}
		for _, c := range r.cases {
			if len(c.Suite) > maxNameBytes || len(c.Name) > maxNameBytes || c.Duration < 0 {
				t.Fatalf("%+v", c)
			}
		}
	})
}
