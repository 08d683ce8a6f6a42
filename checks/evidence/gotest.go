package evidence

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// maxReportLine is the longest event that counts; longer ones are output and
// are left out. The library's scanner takes 64 KiB.
const maxReportLine = 60 << 10

// readGoTest reads `go test -json`. An error is the reader's.
func readGoTest(from io.Reader, r *report) error {
	lines := &lineFilter{from: bufio.NewReaderSize(io.LimitReader(from, maxReportBytes+1), maxReportLine)}
	over := ended{}
	exec, scanErr := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: lines, Handler: over, IgnoreNonJSONOutputLines: true})
	if lines.err != nil {
		return lines.err
	}
	if scanErr != nil {
		r.broken("it is not what go test -json prints")
		return nil
	}
	for _, name := range exec.Packages() {
		p := exec.Package(name)
		cached := strings.Contains(packageOutput(p), "\t(cached)")
		for _, t := range p.Passed {
			r.add(Case{Suite: name, Name: t.Test.Name(), Outcome: TestPassed, Duration: t.Elapsed, cached: cached})
		}
		for _, t := range p.Skipped {
			r.add(Case{Suite: name, Name: t.Test.Name(), Outcome: TestSkipped, Duration: t.Elapsed})
		}
		for _, t := range p.Failed {
			r.add(Case{Suite: name, Name: t.Test.Name(), Outcome: TestFailed, Duration: t.Elapsed, output: strings.Join(p.OutputLines(t), "")})
		}
		switch {
		case p.Result() == testjson.ActionFail && len(p.Failed) == 0:
			r.add(Case{Suite: name, Outcome: TestFailed, output: packageOutput(p)})
		case p.Result() == "" && !over[name]:
			r.broken("it ends in the middle of package %s", Case{Suite: name})
		}
	}
	if lines.read > maxReportBytes {
		r.broken("it is longer than %d MiB", maxReportBytes>>20)
	}
	return nil
}

// ended are packages whose end was told, those without tests too, of which the
// library does not remember it. Complaints are not needed.
type ended map[string]bool

func (e ended) Event(event testjson.TestEvent, _ *testjson.Execution) error {
	if event.PackageEvent() && event.Action == testjson.ActionSkip {
		e[event.Package] = true
	}
	return nil
}

func (ended) Err(string) error { return nil }

// lineFilter passes on the lines that look like events and are not too long.
type lineFilter struct {
	from *bufio.Reader
	have []byte
	read int64
	err  error // other than the end
	done bool
}

func (l *lineFilter) Read(p []byte) (int, error) {
	for len(l.have) == 0 {
		if l.done {
			return 0, io.EOF
		}
		line, err := l.from.ReadSlice('\n')
		l.read += int64(len(line))
		keep := err == nil || errors.Is(err, io.EOF)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = l.from.ReadSlice('\n')
			l.read += int64(len(line))
			line = nil
		}
		if err != nil {
			l.done = true
			if !errors.Is(err, io.EOF) {
				l.err = err
				return 0, io.EOF
			}
		}
		if keep && len(line) > 1 && line[0] == '{' {
			l.have = append(l.have[:0], line...)
			if l.have[len(l.have)-1] != '\n' {
				l.have = append(l.have, '\n')
			}
		}
	}
	n := copy(p, l.have)
	l.have = l.have[n:]
	return n, nil
}

// packageOutput is what a package printed outside its tests.
func packageOutput(p *testjson.Package) string {
	var b strings.Builder
	if err := p.WriteOutputTo(&b, 0); err != nil {
		return ""
	}
	return b.String()
}
