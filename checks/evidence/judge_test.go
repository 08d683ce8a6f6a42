package evidence

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

func opener(files map[string]string) Opener {
	return func(sha string) (io.ReadCloser, error) {
		body, ok := files[sha]
		if !ok {
			return nil, errors.New("no such file")
		}
		return io.NopCloser(strings.NewReader(body)), nil
	}
}

const passing = `{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Test":"TestX","Output":"=== RUN   TestX\n"}
{"Action":"pass","Package":"a","Test":"TestX","Elapsed":0.01}
{"Action":"run","Package":"a","Test":"TestY"}
{"Action":"skip","Package":"a","Test":"TestY","Elapsed":0}
{"Action":"pass","Package":"a","Elapsed":0.02}
`

const failing = `{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:3: \u001b[31mgot 1\u001b[0m\n"}
{"Action":"fail","Package":"a","Test":"TestX","Elapsed":0.01}
{"Action":"fail","Package":"a","Elapsed":0.02}
`

func TestJudge(t *testing.T) {
	long := `{"Action":"output","Package":"a","Test":"TestX","Output":"` + strings.Repeat("x", 200<<10) + "\"}\n"
	files := map[string]string{
		"pass": passing, "fail": failing, "none": `{"Action":"start","Package":"a"}` + "\n" + `{"Action":"pass","Package":"a"}` + "\n",
		"cached": strings.Replace(strings.Replace(passing, `"Elapsed":0.01`, `"Elapsed":5`, 1), `{"Action":"pass","Package":"a","Elapsed"`, `{"Action":"output","Package":"a","Output":"ok  \ta\t(cached)\n"}`+"\n"+`{"Action":"pass","Package":"a","Elapsed"`, 1),
		"slow":   strings.Replace(passing, `"Elapsed":0.01`, `"Elapsed":5`, 1), "text": "ok  \ta\t0.1s\n", "empty": "", "cut": passing[:len(passing)/2], "long": strings.Replace(passing, "{\"Action\":\"pass\",\"Package\":\"a\",\"Test\"", long+"{\"Action\":\"pass\",\"Package\":\"a\",\"Test\"", 1),
		"noise": "downloading…\n" + passing + "FAIL\nexit status 1\n{not json}\n\x00\xff\n",
		"build": `{"ImportPath":"a","Action":"build-fail"}` + "\n" + `{"Action":"fail","Package":"a","Elapsed":0,"FailedBuild":"a"}` + "\n",
	}
	for _, c := range []struct {
		name         string
		result       wire.VerifyResult
		passed       bool
		words        string
		kind         string
		nPass, nFail int
	}{
		{"passes", wire.VerifyResult{Report: "gotest", Stdout: "pass"}, true, "1 test passed, 1 skipped", Passed, 1, 0},
		{"fails", wire.VerifyResult{Report: "gotest", Stdout: "fail", ExitCode: 1}, false, "1 of 1 tests failed", Failed, 0, 1},
		{"noise around", wire.VerifyResult{Report: "gotest", Stdout: "noise"}, true, "1 test passed, 1 skipped", Passed, 1, 0},
		{"long lines", wire.VerifyResult{Report: "gotest", Stdout: "long"}, true, "1 test passed, 1 skipped", Passed, 1, 0},
		{"nothing ran", wire.VerifyResult{Report: "gotest", Stdout: "none"}, false, "ran no test", Nothing, 0, 1},
		{"empty", wire.VerifyResult{Report: "gotest", Stdout: "empty"}, false, "ran no test", Nothing, 0, 1},
		{"no report", wire.VerifyResult{Report: "gotest"}, false, "its report cannot be believed: it is missing", Nothing, 0, 1},
		{"plain text", wire.VerifyResult{Report: "gotest", Stdout: "text"}, false, "ran no test", Nothing, 0, 1},
		{"report says pass, exit says fail", wire.VerifyResult{Report: "gotest", Stdout: "pass", ExitCode: 2}, false, "exit status 2, though no test", Failed, 1, 1},
		{"report says fail, exit says pass", wire.VerifyResult{Report: "gotest", Stdout: "fail"}, false, "not honest", Doubtful, 0, 1},
		{"does not build", wire.VerifyResult{Report: "gotest", Stdout: "build", ExitCode: 1}, false, "1 of 1 tests failed", Failed, 0, 1},
		{"timed out", wire.VerifyResult{Report: "gotest", Stdout: "pass", ExitCode: -1, TimedOut: true}, false, "did not end in time", Failed, 1, 1},
		{"cut by us", wire.VerifyResult{Report: "gotest", Stdout: "pass", Truncated: true}, false, "longer than is kept", Doubtful, 1, 1},
		{"cut in the middle", wire.VerifyResult{Report: "gotest", Stdout: "cut"}, false, "ends in the middle of package a", Doubtful, 0, 1},
		{"exit 0", wire.VerifyResult{Report: "exit"}, true, "exit status 0", Passed, 1, 0},
		{"exit 3", wire.VerifyResult{Report: "exit", ExitCode: 3}, false, "exit status 3", Failed, 0, 1},
		{"killed", wire.VerifyResult{Report: "exit", ExitCode: -1, Signal: "SIGKILL"}, false, "was ended by SIGKILL", Failed, 0, 1},
		{"report of another time", wire.VerifyResult{Report: "gotest", Stdout: "cached", Duration: time.Second}, true, "1 test passed, 1 skipped", Passed, 1, 0},
		{"report of longer than it ran", wire.VerifyResult{Report: "gotest", Stdout: "slow", Duration: time.Second}, false, "says that a TestX took 5s, but the whole command ran 1s", Doubtful, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.result.Name = "unit"
			j, err := Judge(wire.Outcome{Results: []wire.VerifyResult{c.result}, Base: &wire.Column{}}, opener(files))
			if err != nil {
				t.Fatal(err)
			}
			got, v := j.Checks[0], j.Verdict
			if got.Passed != c.passed || !strings.Contains(got.Words, c.words) {
				t.Errorf("passed %v, %q; want %v, %q", got.Passed, got.Words, c.passed, c.words)
			}
			if v.Kind != c.kind || v.Passed != c.nPass || v.Failed != c.nFail {
				t.Errorf("verdict %+v; want %s %d %d", v, c.kind, c.nPass, c.nFail)
			}
		})
	}
	if j, _ := Judge(wire.Outcome{}, nil); j.Verdict.Kind != Nothing {
		t.Error("no command at all must be 'nothing'")
	}
	if _, err := Judge(wire.Outcome{Results: []wire.VerifyResult{{Report: "gotest", Stdout: "gone"}}}, opener(files)); err == nil {
		t.Error("a file of ours that cannot be read is an error")
	}
}

func TestFailureOutputIsCleaned(t *testing.T) {
	j, err := Judge(wire.Outcome{Results: []wire.VerifyResult{{Report: "gotest", Stdout: "f", ExitCode: 1}}}, opener(map[string]string{"f": failing}))
	if err != nil {
		t.Fatal(err)
	}
	f := j.Checks[0].Tests.Failures
	if len(f) != 1 || f[0].Test != "TestX" || !strings.Contains(f[0].Output, "got 1") || strings.Contains(f[0].Output, "\x1b") {
		t.Errorf("%+v", f)
	}
}

// What the real tool prints today is read right.
func TestRealGoTest(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{
		"go.mod":       "module example.com/m\n\ngo 1.21\n",
		"none/none.go": "package none\n", // a package without tests is no report that is cut
		"a_test.go":    "package m\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {}\nfunc TestB(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Error(\"no\") }) }\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-json", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	out, err := cmd.Output()
	if err == nil {
		t.Fatal("the test should fail")
	}
	r := &report{}
	if err := readGoTest(bytes.NewReader(out), r); err != nil || r.damage != "" {
		t.Fatal(err, r.damage)
	}
	tests := r.tests()
	if tests.Passed != 1 || tests.Failed != 2 {
		t.Errorf("%+v from\n%s", tests, out)
	}
}
