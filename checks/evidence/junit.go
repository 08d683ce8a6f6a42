package evidence

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"io"
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
	if why := badXML(body, maxJUnitDepth, maxJUnitElements); why != "" {
		r.broken("%s %s", name, why)
		return
	}
	suites, err := junit.Ingest(body)
	if err != nil {
		r.broken("%s is not XML that can be read: %s", name, redact.OneLine(err.Error(), 200))
		return
	}
	before := len(r.cases)
	for _, s := range suites {
		junitSuite(s, "", r)
	}
	if len(r.cases) == before && !bytes.Contains(body, []byte("<testsuite")) {
		r.broken("%s is not a JUnit report", name)
	}
}

func junitSuite(s junit.Suite, above string, r *report) {
	at := cmp.Or(s.Name, above)
	for _, t := range s.Tests {
		c := Case{Suite: cmp.Or(t.Classname, at), Name: t.Name, Outcome: TestPassed, Duration: max(t.Duration, 0)}
		switch t.Status {
		case junit.StatusSkipped:
			c.Outcome = TestSkipped
		case junit.StatusFailed, junit.StatusError:
			c.Outcome = TestFailed
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
		junitSuite(sub, at, r)
	}
}

// badXML says what is wrong with a document before a reader gets it that an
// enemy's could hurt; empty if nothing is.
func badXML(body []byte, deepest, most int) string {
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
