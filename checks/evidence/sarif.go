package evidence

import (
	"bytes"
	"strings"

	"github.com/owenrumney/go-sarif/v2/sarif"

	"inspect/checks/redact"
)

// maxSARIFObjects bounds the objects of a document: the library makes of the two
// bytes of an empty one several hundred.
const maxSARIFObjects = 25 * maxFindings

// readSARIF reads what linters and scanners write. Suppressed results are left out.
func readSARIF(name string, body []byte, r *report) {
	if bytes.Count(body, []byte("{")) > maxSARIFObjects {
		r.broken("%s has more than %d objects", name, maxSARIFObjects)
		return
	}
	s, err := sarif.FromBytes(body)
	switch {
	case err != nil:
		r.broken("%s is not JSON that can be read: %s", name, redact.OneLine(err.Error(), 200))
		return
	case !strings.HasPrefix(s.Version, "2."):
		r.broken("%s is not a SARIF report of version 2", name)
		return
	}
	for _, run := range s.Runs {
		if run == nil {
			continue
		}
		for _, res := range run.Results {
			if res == nil || len(res.Suppressions) > 0 || kindOf(res) != "fail" {
				continue
			}
			if len(r.findings) == maxFindings {
				r.broken("it has more than %d findings", maxFindings)
				return
			}
			r.findings = append(r.findings, sarifFinding(res))
		}
	}
}

// kindOf is the kind of a result: only "fail" is a complaint.
func kindOf(res *sarif.Result) string {
	if res.Kind == nil {
		return "fail"
	}
	return *res.Kind
}

func sarifFinding(res *sarif.Result) Finding {
	f := Finding{Level: "warning"}
	if res.Level != nil {
		switch *res.Level {
		case "error":
			f.Level = "error"
		case "note", "none":
			f.Level = "note"
		}
	}
	if res.RuleID != nil {
		f.Rule = redact.OneLine(*res.RuleID, 200)
	}
	if res.Message.Text != nil {
		f.Message = redact.Cut(redact.Visible(*res.Message.Text), 1000)
	}
	for _, l := range res.Locations {
		if l == nil || l.PhysicalLocation == nil || l.PhysicalLocation.ArtifactLocation == nil || l.PhysicalLocation.ArtifactLocation.URI == nil {
			continue
		}
		p, err := inRepository(*l.PhysicalLocation.ArtifactLocation.URI)
		if err != nil {
			continue
		}
		f.Path = p
		if at := l.PhysicalLocation.Region; at != nil && at.StartLine != nil && *at.StartLine > 0 {
			f.Line = *at.StartLine
		}
		break
	}
	return f
}
