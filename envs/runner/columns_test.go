package runner

import (
	"context"
	"strings"
	"testing"

	"inspect/envs/wire"
)

// compared makes a world whose control plane asks for all columns.
func compared(t *testing.T, verify ...wire.Verify) *world {
	t.Helper()
	w := newWorld(t)
	w.spec.Compare, w.spec.Verify = true, verify
	return w
}

func (w *world) artifact(sum string) string {
	w.t.Helper()
	w.control.mu.Lock()
	defer w.control.mu.Unlock()
	body, ok := w.control.artifacts[sum]
	if !ok {
		w.t.Fatalf("no artifact %q", sum)
	}
	return string(body)
}

// agentDoes has the agent run shell lines beside its edit.
func (w *world) agentDoes(lines string) {
	w.spec.Harness.Command = []string{"sh", "-c", "sed -i s/bad/good/ state.txt\n" + lines}
}

// Each column is in a clone of its own, with the files that belong to it.
func TestColumns(t *testing.T) {
	show := `cat state.txt state_test.go; ls new_test.go gone_test.go 2>/dev/null; ls left 2>/dev/null; touch left; grep -q good state.txt`
	w := compared(t, wire.Verify{Name: "state", Run: show, Report: "exit"})
	w.agentDoes("echo changed >state_test.go; echo x >new_test.go")
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Base == nil || o.BaseTests == nil || o.Base.Words+o.BaseTests.Words != "" || o.BaseTests.Same {
		t.Fatalf("%+v", o)
	}
	const tests = "one\ntwo\nthree\nfour\n"
	for name, c := range map[string]struct {
		got  []wire.VerifyResult
		exit int
		out  string
		runs int
	}{
		"result": {o.Results, 0, "good\nchanged\nnew_test.go\n", 0},
		"base":   {o.Base.Results, 1, "bad\n" + tests, 1}, "base's tests": {o.BaseTests.Results, 0, "good\n" + tests, 0},
	} {
		r := c.got[0]
		if r.ExitCode != c.exit || w.artifact(r.Stdout) != c.out || len(r.Again) != c.runs {
			t.Errorf("%s: %+v, %q", name, r, w.artifact(r.Stdout))
		}
	}
	if again := o.Base.Results[0].Again[0]; again.ExitCode != 1 || !strings.HasSuffix(w.artifact(again.Stdout), "left\n") {
		t.Errorf("run again: %+v", again)
	}
}

func TestNoTestIsAnother(t *testing.T) {
	w := compared(t, wire.Verify{Name: "state", Run: "grep good state.txt", Report: "exit"})
	w.agentDoes("")
	if o := w.outcome(); o.BaseTests == nil || !o.BaseTests.Same || len(o.BaseTests.Results) != 0 || len(o.Base.Results) != 1 {
		t.Errorf("%+v", o)
	}
	w = compared(t, wire.Verify{Name: "state", Run: "sh drift.txt; grep good state.txt", Report: "exit"})
	w.agentDoes("echo true >drift.txt") // no test, but the command names it
	if o := w.outcome(); o.BaseTests == nil || o.BaseTests.Same || len(o.BaseTests.Results) != 1 {
		t.Errorf("%+v", o)
	}
}

// A control plane that does not ask gets what it knows.
func TestNoColumnsUnasked(t *testing.T) {
	w := newWorld(t)
	w.spec.Verify[0].Run = "false"
	if o := w.outcome(); o.Base != nil || o.BaseTests != nil || o.Results[0].Again != nil {
		t.Errorf("%+v", o)
	}
}

// What fails is run again, and what passes then is known as flaky.
func TestFailuresRunAgain(t *testing.T) {
	w := compared(t, wire.Verify{Name: "state", Run: `echo x >>cache/runs; test $(wc -l <cache/runs) -ge 3`, Report: "exit"})
	w.agentDoes("")
	o := w.outcome()
	if r := o.Results[0]; r.ExitCode != 1 || len(r.Again) != 2 || r.Again[0].ExitCode != 1 || r.Again[1].ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(o.Words, "1 of 1 verification commands passed") {
		t.Errorf("%q", o.Words)
	}
	if r := o.Base.Results[0]; len(r.Again) != 1 {
		t.Errorf("base: %+v", r)
	}
}

// Files are taken only if the run wrote them, and never through a link.
func TestReportsAreTaken(t *testing.T) {
	run := `mkdir -p reports; echo new >reports/a.xml; mkfifo reports/b.xml; ln -s /etc/passwd reports/c.xml; echo SF:x >cov.info`
	w := compared(t, wire.Verify{Name: "state", Run: run, Report: "junit:reports/*.xml", Coverage: "lcov:cov.info"})
	w.agentDoes("mkdir reports; echo forged >reports/forged.xml")
	o := w.outcome()
	r := o.Results[0]
	if len(r.Reports) != 3 || r.Reports[0].Path != "reports/a.xml" || w.artifact(r.Reports[0].SHA256) != "new\n" ||
		r.Reports[1].Problem != "is no regular file" || r.Reports[2].Problem != "is a symbolic link" {
		t.Errorf("%+v", r.Reports)
	}
	if len(r.CoverageFiles) != 1 || w.artifact(r.CoverageFiles[0].SHA256) != "SF:x\n" || r.Coverage != "lcov:cov.info" {
		t.Errorf("%+v", r.CoverageFiles)
	}
}

// Trouble with the base does not undo what was shown about the result.
func TestBaseThatCannotBeRestored(t *testing.T) {
	w := compared(t, wire.Verify{Name: "state", Run: "grep good state.txt", Report: "exit"})
	w.agentDoes("")
	n := 0
	w.node.onRestore = func(_ context.Context, purpose string) error {
		if purpose == wire.PurposeVerify {
			if n++; n == 2 {
				return &wire.Error{Code: "no_space", Message: "the disk is full"}
			}
		}
		return nil
	}
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || o.Base == nil || !strings.Contains(o.Base.Words, "the disk is full") || len(o.Results) != 1 {
		t.Errorf("%+v %+v", o, o.Base)
	}
}

// Names of tests may be anything.
func TestOddNamesArePutBack(t *testing.T) {
	w := compared(t, wire.Verify{Name: "state", Run: "ls *_test.go | cat -v; grep good state.txt", Report: "exit"})
	w.agentDoes(`echo x >'*_test.go'; echo x >':(top)_test.go'; git add -A; git commit -qm x; git rm -q --cached state_test.go; rm state_test.go; mkdir state_test.go; echo x >state_test.go/a`)
	o := w.outcome()
	if o.BaseTests == nil || o.BaseTests.Words != "" {
		t.Fatalf("%+v %+v", o, o.BaseTests)
	}
	if got := w.artifact(o.BaseTests.Results[0].Stdout); got != "state_test.go\ngood\n" {
		t.Errorf("%q", got)
	}
}

// A glob that matches more files than can be listed is told of the report; the
// machinery has not failed.
func TestTooManyFilesOfAReport(t *testing.T) {
	w := compared(t, wire.Verify{Name: "state", Run: "true", Report: "junit:**/*.xml"})
	w.agentDoes("mkdir many; cd many; seq 20001 | sed 's/$/.xml/' | xargs touch; cd ..")
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || len(o.Results) != 1 {
		t.Fatalf("%+v", o)
	}
	if r := o.Results[0].Reports; len(r) != 1 || r[0].Path != "**/*.xml" || !strings.Contains(r[0].Problem, "matches more than 20000 files") {
		t.Errorf("%+v", r)
	}
}

// What services said is kept, of the session and of each column, without secrets
// and no more than the end of it.
func TestServiceLogsAreKept(t *testing.T) {
	w := compared(t, wire.Verify{Name: "state", Run: "true", Report: "exit"})
	token := "ghs_" + strings.Repeat("a1B2", 9)
	w.spec.Services = []wire.Service{{Name: "db", Command: "seq 1 20000; echo '" + token + "'; echo over; touch $HOME/up; exec sleep 1000", Ready: "test -e $HOME/up"}}
	w.agentDoes("")
	o := w.outcome()
	var where []string
	for _, l := range o.ServiceLogs {
		where = append(where, l.Where)
		text := w.artifact(l.SHA256)
		if l.Service != "db" || strings.Contains(text, "a1B2a1B2") || !strings.HasSuffix(text, "over\n") || len(text) > 64<<10 || strings.HasPrefix(text, "1\n2\n") {
			t.Errorf("%+v: %d bytes, ends %q", l, len(text), text[max(0, len(text)-60):])
		}
	}
	if strings.Join(where, " ") != "session verify base" {
		t.Errorf("logs of %q", where)
	}
}
