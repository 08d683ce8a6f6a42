package measure_test

import (
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"inspect/app/measure"
)

func TestRisk(t *testing.T) {
	for path, want := range map[string]int{
		"main.go": 3, "src/app.ts": 3, "main_test.go": 1, "tests/a.py": 1, "a/test_b.py": 1, "a.spec.ts": 1, "README.md": 1, "docs/x.png": 1,
		"go.mod": 5, "web/package-lock.json": 5, "Cargo.toml": 5, "CHANGELOG.md": 1, "requirements.txt": 5,
		".github/workflows/ci.yml": 10, ".inspect.yml": 10, "db/migrations/1.sql": 10, "Dockerfile": 10, "docker-compose.yml": 10, "infra/main.tf": 10, "CODEOWNERS": 10,
	} {
		if got := measure.Risk([]string{path}); got != want {
			t.Errorf("%s weighs %d, want %d", path, got, want)
		}
	}
	if measure.Risk(nil) != 0 || measure.Risk([]string{"a.go", "b.md"}) != 4 {
		t.Error("the files of a change do not add up")
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]string{"30d": "2026-03-01T12:00:00Z", "2w": "2026-03-17T12:00:00Z", "36h": "2026-03-30T00:00:00Z", "2026-03-02": "2026-03-02T00:00:00Z"} {
		if got, err := measure.ParseSince(s, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s is %s, %v, want %s", s, got, err, want)
		}
	}
	for _, s := range []string{"", "d", "0d", "-3d", "3", "3m", "1.5d", "99999999999999999999d", "9999999w", "2026-04-01", "2026-02-30", "yesterday"} {
		if got, err := measure.ParseSince(s, now); err == nil {
			t.Errorf("%q is %s", s, got)
		}
	}
}

// hostile are names that sessions may have.
var hostile = []string{
	`=HYPERLINK("https://evil.example","x")`, "+1+1", "-2+3", "@SUM(A1)", " =1", "\t=1", "\r\n=1", `"=1`, "a;=1+1", "＝1+1",
	"<script>alert(1)</script>", `"/><script>`, "a\x00b\x1b[31m", "\xff\xfe", "a,b\nc", strings.Repeat("ä", 5000),
}

func hostileReport() measure.Report {
	var all []measure.Ended
	for _, name := range hostile {
		all = append(all, measure.Ended{Requester: name, Repository: name, Harness: name, Model: name, State: "failed", Reason: name, At: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)})
	}
	return measure.NewReport(time.Time{}, time.Time{}, measure.Filter{}, measure.Bys, all)
}

func TestCSVIsNoFormula(t *testing.T) {
	var b strings.Builder
	if err := hostileReport().CSV(&b); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil || len(rows) < 4*len(hostile) {
		t.Fatalf("%d lines, %v", len(rows), err)
	}
	for _, row := range rows {
		for _, cell := range row {
			for _, piece := range strings.Split(cell, ";") { // some spreadsheets end a cell there
				if piece = strings.TrimLeft(piece, " \t\r\n\""); piece != "" && strings.ContainsRune("=+-@＝＋－＠", []rune(piece)[0]) {
					t.Errorf("%q is worked out", cell)
				}
			}
			if strings.ContainsAny(cell, "\x00\x1b\r\n\t") || len(cell) > 200 {
				t.Errorf("%q is shown as it is", cell)
			}
		}
	}
	if !strings.Contains(b.String(), "'=HYPERLINK") {
		t.Error("the names are not there")
	}
}

func TestChartsAreWellFormed(t *testing.T) {
	charts := hostileReport().Charts()
	charts = append(charts, measure.NewReport(time.Time{}, time.Time{}, measure.Filter{}, measure.Bys, nil).Charts()...)
	if len(charts) != 2+4*6+2 {
		t.Errorf("%d charts", len(charts))
	}
	for _, c := range charts {
		var b strings.Builder
		if err := c.SVG(&b, true); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Errorf("%s has a length that is none: %s", c.Name, b.String())
		}
		for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v in %s", c.Name, err, b.String())
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local != "svg" && e.Name.Local != "text" && e.Name.Local != "rect" {
				t.Errorf("%s has an element %s", c.Name, e.Name.Local)
			}
		}
	}
}
