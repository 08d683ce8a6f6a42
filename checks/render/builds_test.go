package render

import (
	"strings"
	"testing"
)

func TestBuildsVerdict(t *testing.T) {
	b := func(state string, done, required bool) Build {
		return Build{Pipeline: "acme/web", Number: 7, State: state, Done: done, Required: required}
	}
	for _, c := range []struct {
		name       string
		builds     []Build
		missing    bool
		conclusion string
		pending    bool
	}{
		{"nobody looks", nil, false, Success, false},
		{"nobody has looked yet", nil, true, "", true},
		{"passed", []Build{b(BuildPassed, true, true)}, false, Success, false},
		{"runs", []Build{b(BuildPending, false, true)}, false, "", true},
		{"failed", []Build{b(BuildFailed, true, true)}, false, Failure, false},
		{"failed, while another runs", []Build{b(BuildFailed, true, true), b(BuildPending, false, true)}, false, Failure, false},
		{"blocked, and may go on", []Build{b(BuildBlocked, false, true)}, false, "", true},
		{"blocked is not passed", []Build{b(BuildBlocked, true, true)}, false, ActionRequired, false},
		{"canceled", []Build{b(BuildCanceled, true, true)}, false, ActionRequired, false},
		{"none in time", []Build{{State: BuildPending, Done: true, Required: true}}, false, ActionRequired, false},
		{"passed without a build", []Build{{State: BuildPassed, Done: true, Required: true}}, false, ActionRequired, false},
		{"failed, not required", []Build{b(BuildFailed, true, false)}, false, Success, false},
		{"one of two passed", []Build{b(BuildPassed, true, true), b(BuildCanceled, true, true)}, false, ActionRequired, false},
	} {
		if conclusion, pending := BuildsVerdict(c.builds, c.missing); conclusion != c.conclusion || pending != c.pending {
			t.Errorf("%s: %q, %v", c.name, conclusion, pending)
		}
	}
}

// What a pipeline is called and what its jobs are called was written by anybody.
func TestBuildsTableIsNeutral(t *testing.T) {
	one := 1
	builds := []Build{{
		Pipeline: "acme/web", Number: 7, URL: "https://buildkite.example/a(b|c", State: BuildFailed, Done: true, Required: true,
		Jobs:  []Job{{Name: "a | b\n@octocat <!-- x --> ![p](https://evil.example/p.png)", State: "failed", Exit: &one, Bad: true}},
		Tests: &BuildTests{Reports: 1, Total: 3, Failed: 1},
	}}
	s := Builds(builds)
	rows := strings.Split(strings.TrimSpace(s), "\n")
	if len(rows) != 5 {
		t.Fatalf("%d lines: %s", len(rows), s)
	}
	for _, bad := range []string{"<!--", "![p]", " @octocat", "(https://buildkite.example/a(b"} {
		if strings.Contains(s, bad) {
			t.Errorf("%q is in %s", bad, s)
		}
	}
	if !strings.Contains(s, "3 tests, 1 failed") || !strings.Contains(s, "exit status 1") {
		t.Error(s)
	}
	for range 500 {
		builds = append(builds, builds[0])
	}
	if n := len(WithBuilds(strings.Repeat("x", MaxSummary), builds)); n > MaxSummary {
		t.Errorf("%d bytes", n)
	}
}
