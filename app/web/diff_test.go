package web

import (
	"fmt"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	v := readDiff("diff --git a/a.go b/a.go\nindex 1..2 100644\n--- a/a.go\n+++ b/a.go\n@@ -1,2 +1,2 @@ func A\n one\n-two \x1b[31m\n+three\u202e\ndiff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\ndiff --git a/gone b/gone\ndeleted file mode 100644\nindex 1..0\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n")
	if len(v.Files) != 3 || v.More != "" {
		t.Fatalf("%+v", v)
	}
	a := v.Files[0]
	if a.Path != "a.go" || len(a.Lines) != 4 || a.Lines[0].Class != "at" || a.Lines[2].Class != "del" || a.Lines[2].Sign != "-" || a.Lines[3].Class != "add" {
		t.Errorf("%+v", a)
	}
	for _, l := range a.Lines {
		if strings.ContainsAny(l.Text, "\x1b\u202e\n") {
			t.Errorf("%q", l.Text)
		}
	}
	if v.Files[1].What != "renamed from old" || v.Files[2].Path != "gone" || v.Files[2].What != "deleted" {
		t.Errorf("%+v", v.Files[1:])
	}
	if v := readDiff("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,9 +1 @@\n-x\n"); len(v.Files) != 0 || v.More == "" {
		t.Errorf("%+v", v)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "diff --git a/a b/a\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/a\n@@ -0,0 +1,%d @@\n", maxDiffLines+9)
	for range maxDiffLines + 9 {
		b.WriteString("+" + strings.Repeat("ä", maxDiffLine) + "\n")
	}
	v = readDiff(b.String())
	if len(v.Files[0].Lines) != maxDiffLines || !strings.HasPrefix(v.More, "10 further lines") || len(v.Files[0].Lines[1].Text) > maxDiffLine {
		t.Errorf("%d lines, %q", len(v.Files[0].Lines), v.More)
	}
}
