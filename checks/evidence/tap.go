package evidence

import (
	"bufio"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
)

var (
	tapPoint    = regexp.MustCompile(`^(not ok|ok)\b(?:[ \t]+(\d+))?(?:[ \t]+-)?[ \t]*(.*)$`)
	tapPlan     = regexp.MustCompile(`^1\.\.(\d{1,9})\b[ \t]*(?:#[ \t]*(.*))?$`)
	tapHash     = regexp.MustCompile(`(?i)(?:^|[ \t])#[ \t]*(SKIP|TODO)\S*`)
	tapDuration = regexp.MustCompile(`^duration_ms:[ \t]*([0-9.]+)`)
)

// maxSubtests bounds how deep subtests are nested.
const maxSubtests = 10

// readTAP reads the Test Anything Protocol in its versions 12 to 14, subtests
// indented as node and perl write them included. An error is the reader's.
func readTAP(from io.Reader, r *report) error {
	limited := &io.LimitedReader{R: from, N: maxReportBytes + 1}
	s := bufio.NewScanner(limited)
	s.Buffer(nil, maxReportLine)
	p := tapReader{r: r, planned: -1}
	for s.Scan() {
		p.line(strings.TrimPrefix(strings.TrimRight(strings.ToValidUTF8(s.Text(), "\uFFFD"), "\r"), byteOrderMark))
	}
	p.flush()
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		r.broken("it has a line that is longer than %d KiB", maxReportLine>>10)
	case err != nil:
		return err
	case limited.N == 0:
		r.broken("it is longer than %d MiB", maxReportBytes>>20)
	default:
		p.ends()
	}
	return nil
}

// ends compares what was announced with what came.
func (p *tapReader) ends() {
	switch {
	case p.planned < 0 && p.seen > 0:
		p.r.broken("it has no plan, so that it may end in the middle")
	case p.planned >= 0 && p.planned != p.seen:
		p.r.broken("it announces %d tests and has %d", p.planned, p.seen)
	}
}

type tapReader struct {
	r       *report
	names   []string // of the subtests that are open, by depth
	planned int      // -1: there was no plan
	seen    int      // test points of the outermost level
	last    *Case    // its diagnostics may follow
	indent  int      // of last
	note    strings.Builder
}

// flush adds the last test point.
func (p *tapReader) flush() {
	if p.last == nil {
		return
	}
	p.last.output = p.note.String()
	p.r.add(*p.last)
	p.last = nil
	p.note.Reset()
}

func (p *tapReader) line(text string) {
	body := strings.TrimLeft(text, " ")
	indent := len(text) - len(body)
	depth := indent / 4
	switch m := tapPoint.FindStringSubmatch(body); {
	case m != nil && indent%4 == 0:
		p.flush()
		p.point(depth, m[1] == "ok", m[2], m[3])
	case indent%4 == 0 && strings.HasPrefix(body, "# Subtest: ") && depth < maxSubtests:
		p.flush()
		for len(p.names) <= depth {
			p.names = append(p.names, "")
		}
		p.names = p.names[:depth+1]
		p.names[depth] = strings.TrimPrefix(body, "# Subtest: ")
	case indent == 0 && strings.HasPrefix(body, "Bail out!"):
		p.r.broken("the tests gave up: %s", Case{Name: strings.TrimPrefix(body, "Bail out!")})
	case indent == 0 && strings.HasPrefix(body, "TAP version "):
		// Another run's, where a command runs several.
		p.flush()
		p.ends()
		p.planned, p.seen, p.names = -1, 0, nil
	case indent == 0 && tapPlan.MatchString(body):
		if p.planned >= 0 {
			p.r.broken("it has two plans")
		}
		p.planned, _ = strconv.Atoi(tapPlan.FindStringSubmatch(body)[1])
	case p.last != nil && (strings.HasPrefix(body, "#") || indent > p.indent):
		if d := tapDuration.FindStringSubmatch(body); d != nil {
			ms, _ := strconv.ParseFloat(d[1], 64)
			p.last.Duration = milliseconds(ms)
		} else if p.note.Len() < 4*maxOutput {
			p.note.WriteString(body + "\n")
		}
	}
}

func (p *tapReader) point(depth int, ok bool, number, what string) {
	c := Case{Outcome: TestPassed, Name: what}
	if !ok {
		c.Outcome = TestFailed
	}
	if at := tapHash.FindStringSubmatchIndex(what); at != nil {
		// A failed TODO is no failure; one that is skipped did not run.
		c.Name, c.Outcome = what[:at[0]], TestSkipped
	}
	if c.Name = strings.TrimSpace(c.Name); c.Name == "" {
		c.Name = "test " + number
	}
	c.Suite = strings.Join(p.names[:min(depth, len(p.names))], " > ")
	if depth == 0 {
		p.seen++
	}
	p.names = p.names[:min(depth, len(p.names))]
	p.last, p.indent = &c, depth*4
}
