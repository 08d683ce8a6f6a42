package evidence

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Bounds of what is read of reports. Whoever wrote them is an enemy.
const (
	maxReportBytes = 64 << 20 // of a command's standard output
	maxFileBytes   = 24 << 20 // of one file; the readers need several times as much memory
	maxCases       = 200_000
	maxFindings    = 20_000
	maxNameBytes   = 512 // of each part of a test's identity
	maxFailures    = 200
	maxDuration    = 1000 * time.Hour // of a test
	maxOutput      = 4 << 10
)

// Outcome of a test.
type Outcome string

// Outcomes of a test.
const (
	TestPassed  Outcome = "passed"
	TestFailed  Outcome = "failed"
	TestSkipped Outcome = "skipped"
)

// Case is one test of a report. Suite and Name are its identity: they name the
// same test in another report of the same command.
type Case struct {
	Suite    string        `json:"suite,omitempty"` // package, class or file
	Name     string        `json:"name"`            // empty: the package itself
	Outcome  Outcome       `json:"outcome"`
	Duration time.Duration `json:"duration,omitempty"`
	output   string        // of a failed one
	cached   bool          // it ran another time, and so did its duration
	times    int           // the report has it so often, those left out that were skipped
	failed   int           // and so often of these it failed
}

// String is the identity as people are shown it.
func (c Case) String() string {
	return redact.OneLine(strings.TrimSpace(c.Suite+" "+c.Name), 300)
}

// ID tells tests apart.
type ID struct{ Suite, Name string }

// ID is the test's identity.
func (c Case) ID() ID { return ID{c.Suite, c.Name} }

// Finding is what a tool says about a place in the sources.
type Finding struct {
	Rule    string `json:"rule,omitempty"`
	Level   string `json:"level"`          // "error", "warning" or "note"
	Path    string `json:"path,omitempty"` // in the repository; empty: nowhere in it
	Line    int    `json:"line,omitempty"` // from 1; 0: the whole file
	Message string `json:"message"`
	New     bool   `json:"new,omitempty"` // the base does not have it
}

// report is what the reports of one command say.
type report struct {
	cases    []Case
	at       map[ID]int
	findings []Finding
	damage   string // why it cannot be believed; empty: it can
	// odd is why it cannot be believed that all is well; empty: it can. A suite that
	// could not even begin has failures and no tests, and that is no lie.
	odd string
}

func (r *report) broken(format string, args ...any) {
	if r.damage == "" {
		r.damage = fmt.Sprintf(format, args...)
	}
}

// add takes a test. The same test again counts once, with its worst outcome.
func (r *report) add(c Case) {
	c.Suite, c.Name = identity(c.Suite), identity(c.Name)
	c.Duration = min(max(c.Duration, 0), maxDuration) // libraries make of a NaN or of too much what they like
	if r.at == nil {
		r.at = map[ID]int{}
	}
	if c.Outcome != TestSkipped {
		c.times = 1
	}
	if c.Outcome == TestFailed {
		c.failed = 1
	}
	if i, ok := r.at[c.ID()]; ok {
		have := &r.cases[i]
		have.cached = have.cached || c.cached
		have.Duration = min(have.Duration+c.Duration, maxDuration)
		have.times += c.times
		have.failed += c.failed
		switch {
		case c.Outcome == TestFailed && have.Outcome != TestFailed:
			have.Outcome, have.output = TestFailed, c.output
		case c.Outcome == TestPassed && have.Outcome == TestSkipped:
			have.Outcome = TestPassed
		}
		return
	}
	if len(r.cases) == maxCases {
		r.broken("it has more than %d tests", maxCases)
		return
	}
	r.at[c.ID()] = len(r.cases)
	r.cases = append(r.cases, c)
}

// identity bounds a part of a test's identity without making two out of one.
func identity(s string) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= maxNameBytes {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return redact.Cut(s, maxNameBytes-20) + " " + hex.EncodeToString(sum[:8])
}

// tests counts what the report lists.
func (r *report) tests() *Tests {
	t := &Tests{Cases: r.cases}
	for _, c := range r.cases {
		switch c.Outcome {
		case TestPassed:
			t.Passed++
		case TestSkipped:
			t.Skipped++
		default:
			t.Failed++
			if len(t.Failures) < maxFailures {
				t.Failures = append(t.Failures, Failure{
					Package: redact.OneLine(c.Suite, 300), Test: redact.OneLine(c.Name, 300), Output: redact.Tail(redact.Visible(c.output), maxOutput),
				})
			}
		}
	}
	return t
}

// readReport reads what a command's result has for a report. An error is ours.
func readReport(v wire.VerifyResult, open Opener) (*report, error) {
	r := &report{}
	kind, _ := spec.ReportFiles(v.Report)
	switch kind {
	case spec.ReportGoTest, spec.ReportTAP:
		if v.Truncated {
			r.broken("it is longer than is kept, and is cut")
		}
		if v.Stdout == "" {
			r.broken("it is missing")
			return r, nil
		}
		f, err := open(v.Stdout)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if kind == spec.ReportTAP {
			return r, readTAP(f, r)
		}
		return r, readGoTest(f, r)
	}
	err := eachFile(v.Reports, open, r.broken, func(name string, body []byte) {
		switch kind {
		case spec.ReportJUnit:
			readJUnit(name, body, r)
		case spec.ReportSARIF:
			readSARIF(name, body, r)
		}
	})
	return r, err
}

// eachFile reads files that a command left. Whatever is wrong with one of them is
// wrong with all.
func eachFile(files []wire.ReportFile, open Opener, broken func(string, ...any), read func(name string, body []byte)) error {
	if len(files) == 0 {
		broken("no file is where it should be")
	}
	for _, f := range files {
		name := redact.OneLine(f.Path, 200)
		switch {
		case f.Problem != "":
			broken("%s %s", cmp.Or(name, "one of its files"), redact.OneLine(f.Problem, 200))
			continue
		case f.SHA256 == "":
			broken("%s was not kept", name)
			continue
		}
		rc, err := open(f.SHA256)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(rc, maxFileBytes+1))
		rc.Close()
		switch {
		case err != nil:
			return err
		case len(body) > maxFileBytes:
			broken("%s is longer than %d MiB", name, maxFileBytes>>20)
			continue
		}
		if body = bytes.TrimPrefix(body, []byte(byteOrderMark)); len(body) == 0 {
			broken("%s is empty", name)
			continue
		}
		read(name, body)
	}
	return nil
}

// byteOrderMark is what some tools begin a file with.
const byteOrderMark = "\uFEFF"

var errPath = errors.New("no path in the repository")

// inRepository is the path in the repository that a tool's report names, which
// may be absolute in the sandbox or an address.
func inRepository(p string) (string, error) {
	p = strings.TrimPrefix(p, "file://")
	p = strings.TrimPrefix(path.Clean(p), workspace+"/")
	if p == "" || p == "." || len(p) > 1024 || strings.HasPrefix(p, "/") || p == ".." || strings.HasPrefix(p, "../") || !utf8.ValidString(p) || strings.Contains(p, "\x00") {
		return "", errPath
	}
	return p, nil
}

// workspace is where the repository is in a sandbox.
const workspace = "/workspace"
