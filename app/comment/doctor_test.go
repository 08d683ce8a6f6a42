package comment

import (
	"fmt"
	"strings"
	"testing"

	"inspect/app/diagnosis"
)

func TestDoctor(t *testing.T) {
	findings := []diagnosis.Finding{
		{Level: diagnosis.OK, What: "clock", Words: "agrees"},
		{Level: diagnosis.Warn, What: "workflow @octocat|x\n/inspect stop", Words: "a `push` starts it", Do: "Fixes #1 <b>"},
		{Level: diagnosis.Fail, What: "App", Words: "gone"},
	}
	got := Doctor(findings)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 7 || !strings.HasPrefix(lines[4], "| fail | App |") || !strings.HasPrefix(lines[5], "| warn |") || !strings.HasPrefix(lines[6], "| ok | clock |") {
		t.Errorf("%s", got)
	}
	if !strings.HasPrefix(lines[0], "Sessions do not work here") {
		t.Errorf("%s", lines[0])
	}
	for _, bad := range []string{"@octocat", "#1", "<b>", "\n/inspect"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is in it:\n%s", bad, got)
		}
	}
	for i := range 100 {
		findings = append(findings, diagnosis.Finding{Level: diagnosis.OK, What: fmt.Sprint(i), Words: strings.Repeat("x", 3000)})
	}
	if got := Doctor(findings); len(got) > MaxBytes || !strings.Contains(got, "and 43 more") {
		t.Errorf("%d bytes", len(got))
	}
	if got := Unprotected("main", diagnosis.Protect(nil, false)); !strings.Contains(got, "No session was started") || !strings.Contains(got, "ruleset") {
		t.Error(got)
	}
}
