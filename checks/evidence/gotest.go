package evidence

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"gotest.tools/gotestsum/testjson"

	"inspect/checks/redact"
)

const (
	// maxReportBytes is what is read of one report.
	maxReportBytes = 64 << 20
	// maxReportLine is the longest event that counts; longer ones are output
	// and are left out. The library's scanner takes 64 KiB.
	maxReportLine = 60 << 10
	maxFailures   = 200
	maxOutput     = 4 << 10
)

// parseGoTest reads `go test -json`. damage is why the report cannot be
// believed, empty if it can. An error is the reader's.
func parseGoTest(r io.Reader) (t Tests, damage string, err error) {
	lines := &lineFilter{from: bufio.NewReaderSize(io.LimitReader(r, maxReportBytes+1), maxReportLine)}
	exec, scanErr := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: lines, Handler: quiet{}, IgnoreNonJSONOutputLines: true})
	if lines.err != nil {
		return Tests{}, "", lines.err
	}
	if scanErr != nil {
		return Tests{}, "it is not what go test -json prints", nil
	}
	for _, name := range exec.Packages() {
		p := exec.Package(name)
		t.Passed += len(p.Passed)
		t.Skipped += len(p.Skipped)
		t.Failed += len(p.Failed)
		for _, f := range p.Failed {
			t.add(Failure{Package: name, Test: f.Test.Name(), Output: strings.Join(p.OutputLines(f), "")})
		}
		if p.Result() == testjson.ActionFail && len(p.Failed) == 0 {
			t.Failed++
			t.add(Failure{Package: name, Output: packageOutput(p)})
		}
	}
	if lines.read > maxReportBytes {
		damage = fmt.Sprintf("it is longer than %d MiB", maxReportBytes>>20)
	}
	return t, damage, nil
}

func (t *Tests) add(f Failure) {
	if len(t.Failures) >= maxFailures {
		return
	}
	f.Package = redact.OneLine(f.Package, 300)
	f.Test = redact.OneLine(f.Test, 300)
	f.Output = redact.Tail(redact.Visible(f.Output), maxOutput)
	t.Failures = append(t.Failures, f)
}

// quiet takes the library's events and complaints and does nothing with them.
type quiet struct{}

func (quiet) Event(testjson.TestEvent, *testjson.Execution) error { return nil }
func (quiet) Err(string) error                                    { return nil }

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
