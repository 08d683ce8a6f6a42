package evidence

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/joshdk/go-junit"

	"inspect/checks/redact"
)

// maxJUnitDepth bounds how deep elements are nested: the library keeps the text of
// each once for every element around it.
const maxJUnitDepth = 10

// maxJUnitElements of a document are read: the library makes a tree of them.
const maxJUnitElements = 3 * maxCases

// readJUnit reads the XML that pytest, Maven, Jest, mocha, cargo-nextest and many
// others write.
func readJUnit(name string, body []byte, r *report) {
	var said junitCounts
	if why := badXML(body, maxJUnitDepth, maxJUnitElements, said.element); why != "" {
		r.broken("%s %s", name, why)
		return
	}
	suites, err := junit.Ingest(body)
	if err != nil {
		r.broken("%s is not XML that can be read: %s", name, redact.OneLine(err.Error(), 200))
		return
	}
	read, failed := 0, 0
	for _, s := range suites {
		n, bad := junitSuite(s, "", r)
		read, failed = read+n, failed+bad
	}
	switch {
	case said.suites == 0:
		r.broken("%s is not a JUnit report", name)
	case read < said.cases:
		r.broken("%s has tests where no JUnit report has any", name)
	case read == 0 && said.tests > 0:
		r.odd = fmt.Sprintf("%s says that there were %d tests and names none", name, said.tests)
	case failed == 0 && said.failures > 0:
		r.odd = fmt.Sprintf("%s says that %d failed and names none", name, said.failures)
	}
}

// junitCounts are what a document has and what it says of itself. Runners count in
// different ways; only what no way of counting explains is held against it.
type junitCounts struct {
	suites, cases   int
	tests, failures int // the most that one suite says
}

func (n *junitCounts) element(e xml.StartElement) {
	switch e.Name.Local {
	case "testcase":
		n.cases++
	case "testsuite", "testsuites":
		n.suites++
		failures := 0
		for _, a := range e.Attr {
			v, err := strconv.Atoi(a.Value)
			if err != nil || v < 0 || v > maxCases {
				continue
			}
			switch a.Name.Local {
			case "tests":
				n.tests = max(n.tests, v)
			case "failures", "errors":
				failures += v
			}
		}
		n.failures = max(n.failures, failures)
	}
}

// junitSuite adds a suite's tests and says how many there are, and how many of them
// failed.
func junitSuite(s junit.Suite, above string, r *report) (n, failed int) {
	at := cmp.Or(s.Name, above)
	for _, t := range s.Tests {
		c := Case{Suite: cmp.Or(t.Classname, at), Name: cmp.Or(t.Name, "(no name)"), Outcome: TestPassed, Duration: t.Duration}
		n++
		switch t.Status {
		case junit.StatusSkipped:
			c.Outcome = TestSkipped
		case junit.StatusFailed, junit.StatusError:
			c.Outcome = TestFailed
			failed++
			var e junit.Error
			errors.As(t.Error, &e)
			c.output = strings.TrimSpace(strings.Join([]string{e.Message, e.Body, t.SystemOut, t.SystemErr}, "\n"))
		default:
			// GoogleTest says it in attributes.
			for _, key := range []string{"status", "result"} {
				switch t.Properties[key] {
				case "notrun", "disabled", "skipped", "suppressed":
					c.Outcome = TestSkipped
				}
			}
		}
		r.add(c)
	}
	for _, sub := range s.Suites {
		more, bad := junitSuite(sub, at, r)
		n, failed = n+more, failed+bad
	}
	return n, failed
}

// badXML says what is wrong with a document before a reader gets it that an
// enemy's could hurt; empty if nothing is. Each element is shown to see.
func badXML(body []byte, deepest, most int, see func(xml.StartElement)) string {
	d := xml.NewDecoder(bytes.NewReader(body))
	depth, elements := 0, 0
	for {
		t, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			if depth > 0 {
				return "ends in the middle"
			}
			if elements == 0 {
				return "has no element"
			}
			return ""
		}
		if err != nil {
			return "is not XML that can be read: " + redact.OneLine(err.Error(), 200)
		}
		switch t := t.(type) {
		case xml.Directive:
			if bytes.Contains(t, []byte("ENTITY")) || bytes.HasPrefix(t, []byte("DOCTYPE")) && bytes.Contains(t, []byte("[")) {
				return "declares entities, which no report needs"
			}
		case xml.StartElement:
			if depth++; depth > deepest {
				return "nests its elements deeper than any report"
			}
			if elements++; elements > most {
				return "has too many elements"
			}
			if len(t.Attr) > 100 {
				return "has an element with too many attributes"
			}
			see(t)
		case xml.EndElement:
			depth--
		}
	}
}

// milliseconds makes a duration of a number of milliseconds.
func milliseconds(ms float64) time.Duration {
	if !(ms > 0 && ms < 1e12) {
		return 0
	}
	return time.Duration(ms * float64(time.Millisecond))
}
