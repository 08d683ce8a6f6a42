package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/app/measure"
)

func TestReport(t *testing.T) {
	s := newShelf(t)
	s.sql(`UPDATE sessions SET state = 'failed', reason = 'disk', requester_login = E'=octo\u001b[31m', finished_at = now() - interval '1 h' WHERE id = 'abcdefgh22'`)
	s.sql(`UPDATE sessions SET state = 'delivered', pull_request = 3, finished_at = now() - interval '40 days' WHERE id = 'workwork22'`)
	report := func(args ...string) (string, error) {
		return s.run(reportCommand(), append([]string{"--since=30d"}, args...)...)
	}
	out, err := report()
	if err != nil || strings.Contains(out, "\x1b") {
		t.Fatalf("%q, %v", out, err)
	}
	twice, err := report("--by=repository,repository")
	if err != nil || strings.Count(twice, "octocat/hello") != 1 {
		t.Errorf("what is named twice: %q, %v", twice, err)
	}
	wantLines(t, out, "Sessions that ended", "Merge rate", "not known", "no pull request was opened", "failed: disk", "REQUESTER", "octocat/hello")
	for args, want := range map[string]float64{"": 1, "--since 6w": 2, "--since 6w --requester octocat": 1, "--repository octocat/other": 0, "--model m": 0, "--harness h": 0, "--since 1h": 0} {
		out, err := report(append([]string{"--json"}, strings.Fields(args)...)...)
		var r measure.Report
		if err != nil || json.Unmarshal([]byte(out), &r) != nil || *r.Total.Get("sessions").Value != want {
			t.Errorf("%s: %s, %v", args, out, err)
		}
	}
	out, err = report("--csv", "--by", "requester")
	rows, bad := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || bad != nil || !strings.Contains(out, "requester,'=octo,") || len(rows) < 40 {
		t.Errorf("%s, %v, %v", out, err, bad)
	}
	dir := filepath.Join(t.TempDir(), "charts")
	out, err = report("--svg", dir, "--by", "harness")
	files, _ := os.ReadDir(dir)
	if err != nil || len(files) != 8 || strings.Count(out, "\n") != 8 {
		t.Errorf("%s, %v, %d files", out, err, len(files))
	}
	for _, args := range [][]string{{"--since", "x"}, {"--by", "x"}, {"--csv", "--json"}, {"--json", "--svg", dir}} {
		var usage usageError
		if _, err := report(args...); !errors.As(err, &usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
