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
		Annotation
		rank int
	}
	var all []ranked
	for _, c := range m.Checks {
		for _, f := range c.Findings {
			if f.Path == "" || f.Path != redact.OneLine(f.Path, len(f.Path)) {
				continue // GitHub could not show it at its file
			}
			r := ranked{Annotation: Annotation{Path: f.Path, Line: max(f.Line, 1), Level: "warning"}, rank: 2}
			switch f.Level {
			case "error":
				r.Level, r.rank = "failure", 1
			case "note":
				r.Level, r.rank = "notice", 3
			}
			if !f.New {
				r.rank += 10
			}
			if !files[f.Path].Has(f.Line) {
				r.rank += 100
			}
			r.Title = redact.OneLine(c.Name+": "+f.Rule, 200)
			r.Message = cmp.Or(redact.OneLine(f.Message, 1000), "no words")
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	var out []Annotation
	for _, r := range all[:min(len(all), maxAnnotations)] {
		out = append(out, r.Annotation)
	}
	return out
}
