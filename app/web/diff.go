package web

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"inspect/app/publish"
	"inspect/checks/redact"
	"inspect/checks/render"
)

const (
	maxPatch     = 1 << 20 // bytes of a patch that are read
	maxDiffLines = 3000    // shown, of all files together
	maxDiffLine  = 500     // bytes of one line
)

// diffView is the change as a page shows it.
type diffView struct {
	Files []fileDiff
	More  string // what is left out
}

type fileDiff struct {
	Path, What string // What: new, deleted, renamed from, binary, or nothing
	Lines      []diffLine
}

// diffLine is a line of a file, or where the next ones stand. Class is add, del,
// at or nothing.
type diffLine struct{ Class, Sign, Text string }

// diff reads the evidence's patch. What it cannot show is said in words; the patch
// is there as a file in any case.
func (p *pages) diff(ctx context.Context, f *facts) *diffView {
	sum := ""
	for _, file := range f.files {
		if file.Name == publish.FilePatch {
			sum = file.SHA256
		}
	}
	if sum == "" {
		return nil
	}
	r, err := p.blobs.Get(ctx, f.row.ID, sum)
	if err != nil {
		p.log.WarnContext(ctx, "a patch cannot be read", "session", f.row.ID, "error", err)
		return nil
	}
	defer r.Close()
	body, err := io.ReadAll(io.LimitReader(r, maxPatch+1))
	if err != nil || len(body) > maxPatch {
		return &diffView{More: fmt.Sprintf("The patch has more than %s: it is among the evidence files.", render.Bytes(maxPatch))}
	}
	return readDiff(string(body))
}

func readDiff(patch string) *diffView {
	files, _, err := gitdiff.Parse(strings.NewReader(patch))
	v := &diffView{}
	if err != nil {
		return &diffView{More: "The patch cannot be shown here: it is among the evidence files."}
	}
	left, hidden := maxDiffLines, 0
	for _, f := range files {
		d := fileDiff{Path: f.NewName}
		switch {
		case f.IsNew:
			d.What = "new"
		case f.IsDelete:
			d.Path, d.What = f.OldName, "deleted"
		case f.IsRename:
			d.What = "renamed from " + f.OldName
		case f.IsBinary:
			d.What = "binary"
		}
		add := func(l diffLine) {
			if left == 0 {
				hidden++
				return
			}
			left--
			l.Text = redact.Visible(redact.Cut(strings.TrimSuffix(l.Text, "\n"), maxDiffLine))
			d.Lines = append(d.Lines, l)
		}
		for _, t := range f.TextFragments {
			add(diffLine{"at", "", fmt.Sprintf("@@ -%d,%d +%d,%d @@ %s", t.OldPosition, t.OldLines, t.NewPosition, t.NewLines, t.Comment)})
			for _, l := range t.Lines {
				class := map[gitdiff.LineOp]string{gitdiff.OpAdd: "add", gitdiff.OpDelete: "del"}[l.Op]
				add(diffLine{class, l.Op.String(), l.Line})
			}
		}
		d.Path, d.What = redact.OneLine(d.Path, 300), redact.OneLine(d.What, 300)
		v.Files = append(v.Files, d)
	}
	if hidden > 0 {
		v.More = fmt.Sprintf("%d further lines are left out: the whole patch is among the evidence files.", hidden)
	}
	return v
}
