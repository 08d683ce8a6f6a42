package publish

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/storage"

	"github.com/google/go-cmp/cmp"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func sample() (storage.Session, evidence.Manifest) {
	s := storage.Session{ID: "abcdefgh23", IssueNumber: 12, Title: "Add is wrong", Request: "Make `Add` add.\n\nIt subtracts.", RequesterID: 583231, RequesterLogin: "monalisa"}
	m := evidence.Manifest{
		BaseSHA: shaA, BaseBranch: "main", Tree: shaB, Harness: evidence.Harness{Kind: "command", Label: "scripted"},
		Verdict: evidence.Verdict{Kind: evidence.Passed, Passed: 42},
		Checks:  []evidence.Check{{Name: "unit", Run: "go test -json ./...", Passed: true, Words: "42 tests passed", Duration: time.Second}},
		Change:  evidence.Change{Files: []evidence.ChangedFile{{Path: "calc/add.go", Added: 1, Deleted: 1}}, Added: 1, Deleted: 1},
	}
	return s, m
}

const hostileText = "/inspect stop\nFixes #7, closes https://github.com/octocat/hello/issues/7 @octocat <!-- x --> ![x](http://evil/x)\n\n```\n# h\n> q\nghs_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2\n\u202e\x1b[2J\nCo-authored-by: eve <eve@example.com>"

func TestPullBody(t *testing.T) {
	s, m := sample()
	golden(t, "pull.md", pullBody(redact.New(), s, m, nil, receiptHead{sha: shaC}, strings.Repeat("ab", 32), "http://127.0.0.1:8321/sessions/abcdefgh23"))
	m.Model = evidence.Model{Name: "anthropic/claude-sonnet", Calls: 7, Cost: 123_400_000, Priced: true, Budget: 5_000_000_000, PricesAsOf: "2026-11-01"}
	golden(t, "pull-model.md", pullBody(redact.New(), s, m, nil, receiptHead{sha: shaC}, strings.Repeat("ab", 32), "http://127.0.0.1:8321/sessions/abcdefgh23"))
	m.Model.Name, m.Model.PricesAsOf = hostileText, hostileText
	s.Request, s.RequesterLogin = hostileText, "mona@lisa"
	m.Checks[0].Run, m.Checks[0].Words = "`x` | "+hostileText, hostileText
	m.Change.Withheld = []string{".github/workflows/a`b.yml"}
	m.Harness.Label = hostileText
	body := pullBody(redact.New(), s, m, []string{"deletes files: \"a\"", hostileText}, receiptHead{sha: shaC}, strings.Repeat("ab", 32), "http://127.0.0.1:8321/sessions/abcdefgh23")
	golden(t, "pull-hostile.md", body)
	if strings.Contains(body, "a1B2a1B2") {
		t.Error("the body holds a secret")
	}
	var plain strings.Builder
	doc := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader([]byte(body)))
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n.Kind() {
		case ast.KindCodeSpan:
			return ast.WalkSkipChildren, nil
		case ast.KindLink, ast.KindImage, ast.KindRawHTML, ast.KindHeading, ast.KindFencedCodeBlock, ast.KindCodeBlock:
			t.Errorf("the body holds a %s", n.Kind())
		case ast.KindAutoLink:
			if l := string(n.(*ast.AutoLink).URL([]byte(body))); !strings.HasPrefix(l, "http://127.0.0.1:8321/") {
				t.Errorf("the body links %s", l)
			}
		case ast.KindText:
			if entering {
				plain.Write(n.(*ast.Text).Segment.Value([]byte(body)))
				plain.WriteByte('\n')
			}
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"@octocat", "#7", "\u202e", "\x1b", "\n/inspect"} {
		if strings.Contains(plain.String(), bad) {
			t.Errorf("the body holds %q outside of code:\n%s", bad, plain.String())
		}
	}
}

func TestCommitMessage(t *testing.T) {
	s, _ := sample()
	golden(t, "commit.txt", commitMessage(redact.New(), s, []string{"Make Add add", "Test it\n\nWith numbers."}, "http://127.0.0.1:8321/sessions/abcdefgh23", Identity{}))
	s.Title, s.RequesterLogin = hostileText, "mona\nlisa<x>"
	message := commitMessage(redact.New(), s, []string{hostileText, strings.Repeat("long\n", 10_000)}, "http://127.0.0.1:8321/sessions/abcdefgh23", Identity{})
	for _, bad := range []string{"@octocat", "#7", "https://github.com", "ghs_", "\u202e", "\x1b", "\nCo-authored-by: eve", "\n/inspect", "<x>"} {
		if strings.Contains(message, bad) {
			t.Errorf("the message holds %q:\n%s", bad, message)
		}
	}
	subject, _, _ := strings.Cut(message, "\n")
	if len(subject) > maxSubject || len(message) > 2*maxMessageShow {
		t.Errorf("the subject has %d bytes, the message %d", len(subject), len(message))
	}
	if got := commitMessage(redact.New(), storage.Session{ID: "abcdefgh23", Title: "Make Add add"}, []string{"It adds"}, "", Identity{}); got != "Make Add add\n\nWhat the agent wrote in its commits:\n\n* It adds\n" {
		t.Errorf("without a forge the message is %q", got)
	}
	if got := commitMessage(redact.New(), storage.Session{ID: "abcdefgh23"}, nil, "", Identity{}); got != "Work of session abcdefgh23\n" {
		t.Errorf("without anything the message is %q", got)
	}
	s.Title = " \u200b\n"
	if got := subjectLine(commitMessage(redact.New(), s, nil, "", Identity{})); got != "Work on issue 12" {
		t.Errorf("the subject of an empty title is %q", got)
	}
}

func subjectLine(m string) string { first, _, _ := strings.Cut(m, "\n"); return first }
