package evidence

import (
	"errors"

	"inspect/checks/redact"
)

// JUnitFailures are the tests that failed in a JUnit report that somebody else's
// machine wrote: name and words of each, at most most. The report is an enemy's.
func JUnitFailures(name string, body []byte, most int) ([]string, error) {
	if len(body) > maxFileBytes {
		return nil, errors.New("the report is too large")
	}
	var r report
	readJUnit(name, body, &r)
	if r.damage != "" {
		return nil, errors.New(r.damage)
	}
	var out []string
	for _, c := range r.cases {
		if c.Outcome == TestFailed && len(out) < most {
			out = append(out, c.String()+"\n"+redact.Tail(redact.Visible(c.output), maxOutput))
		}
	}
	return out, nil
}

// JUnitCounts says how many tests a report has, and how many of them failed and
// were skipped.
func JUnitCounts(name string, body []byte) (tests, failed, skipped int, err error) {
	if len(body) > maxFileBytes {
		return 0, 0, 0, errors.New("the report is too large")
	}
	var r report
	if readJUnit(name, body, &r); r.damage != "" {
		return 0, 0, 0, errors.New(r.damage)
	}
	t := r.tests()
	return len(r.cases), t.Failed, t.Skipped, nil
}
