package render

import (
	"cmp"
	"slices"

	"inspect/checks/evidence"
	"inspect/checks/redact"
)

// Annotation is a remark of a check run on a line. Its texts are plain.
type Annotation struct {
	Path    string
	Line    int    // from 1
	Level   string // "notice", "warning" or "failure"
	Title   string
	Message string
}

// maxAnnotations of a check run are sent; the summary says how many there are.
const maxAnnotations = 250

// annotations are the findings that have a place: those on changed lines first,
// then those that are new, then the worst.
func annotations(m evidence.Manifest) []Annotation {
	files := map[string]evidence.ChangedFile{}
	for _, f := range m.Change.Files {
		files[f.Path] = f
	}
	type ranked struct {
		evidence.Finding
		check string
		rank  int
	}
	var all []ranked
	for _, c := range m.Checks {
		for _, f := range c.Findings {
			if f.Path == "" || f.Path != redact.OneLine(f.Path, len(f.Path)) {
				continue // GitHub could not show it at its file
			}
			r := ranked{f, c.Name, 2}
			switch f.Level {
			case "error":
				r.rank = 1
			case "note":
				r.rank = 3
			}
			if !f.New {
				r.rank += 10
			}
			if !files[f.Path].Has(f.Line) {
				r.rank += 100
			}
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	levels := map[string]string{"error": "failure", "note": "notice"}
	var out []Annotation
	for _, r := range all[:min(len(all), maxAnnotations)] {
		out = append(out, Annotation{
			Path: r.Path, Line: max(r.Line, 1), Level: cmp.Or(levels[r.Level], "warning"),
			Title: redact.OneLine(r.check+": "+r.Rule, 200), Message: cmp.Or(redact.OneLine(r.Message, 1000), "no words"),
		})
	}
	return out
}
