package evidence

import (
	"bytes"
	"net/url"
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
	ran := false
	for _, run := range s.Runs {
		if run == nil {
			continue
		}
		ran = true
		for _, in := range run.Invocations {
			if in != nil && in.ExecutionSuccessful != nil && !*in.ExecutionSuccessful {
				r.broken("%s says that its tool did not run to a good end", name)
			}
		}
		for _, res := range run.Results {
			if res == nil || len(res.Suppressions) > 0 || kindOf(res) != "fail" {
				continue
			}
			if len(r.findings) == maxFindings {
				r.broken("it has more than %d findings", maxFindings)
				return
			}
			r.findings = append(r.findings, sarifFinding(run, res))
		}
	}
	if !ran {
		r.broken("%s tells of no run of any tool", name)
	}
}

// kindOf is the kind of a result: only "fail" is a complaint.
func kindOf(res *sarif.Result) string {
	if res.Kind == nil {
		return "fail"
	}
	return *res.Kind
}

func sarifFinding(run *sarif.Run, res *sarif.Result) Finding {
	f := Finding{Level: "warning"}
	rule := ruleOf(run, res)
	level := ""
	switch {
	case res.Level != nil:
		level = *res.Level
	case rule != nil && rule.DefaultConfiguration != nil:
		level = rule.DefaultConfiguration.Level
	}
	switch level {
	case "error":
		f.Level = "error"
	case "note", "none":
		f.Level = "note"
	}
	switch {
	case res.RuleID != nil:
		f.Rule = *res.RuleID
	case rule != nil:
		f.Rule = rule.ID
	}
	f.Rule = redact.OneLine(f.Rule, 200)
	switch m := res.Message; {
	case m.Text != nil:
		f.Message = *m.Text
	case m.Markdown != nil:
		f.Message = *m.Markdown
	case rule != nil && rule.ShortDescription != nil && rule.ShortDescription.Text != nil:
		f.Message = *rule.ShortDescription.Text
	}
	f.Message = redact.Cut(redact.Visible(f.Message), 1000)
	for _, l := range res.Locations {
		if l == nil || l.PhysicalLocation == nil || l.PhysicalLocation.ArtifactLocation == nil || l.PhysicalLocation.ArtifactLocation.URI == nil {
			continue
		}
		p, err := inRepository(sarifPath(run, l.PhysicalLocation.ArtifactLocation))
		if err != nil { // told from a directory that is not there
			p, err = inRepository(*l.PhysicalLocation.ArtifactLocation.URI)
		}
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

// ruleOf is the rule of a result, as far as the run describes it by its number: that
// counts the rules of the tool, or of the extension that is named with it.
func ruleOf(run *sarif.Run, res *sarif.Result) *sarif.ReportingDescriptor {
	at := res.RuleIndex
	if at == nil && res.Rule != nil {
		at = res.Rule.Index
	}
	of := run.Tool.Driver
	if res.Rule != nil && res.Rule.ToolComponent != nil {
		of = nil
		if n := res.Rule.ToolComponent.Index; n != nil && *n < uint(len(run.Tool.Extensions)) {
			of = run.Tool.Extensions[*n]
		}
	}
	if at == nil || of == nil || *at >= uint(len(of.Rules)) {
		return nil
	}
	return of.Rules[*at]
}

// sarifPath is the path that an address means, in the directory that it is told
// from, if that is said.
func sarifPath(run *sarif.Run, at *sarif.ArtifactLocation) string {
	address := *at.URI
	if at.URIBaseId != nil && !strings.HasPrefix(address, "/") && !strings.Contains(address, "://") {
		if base := run.OriginalUriBaseIDs[*at.URIBaseId]; base != nil && base.URI != nil && strings.HasPrefix(*base.URI, "file://") {
			address = strings.TrimSuffix(*base.URI, "/") + "/" + address
		}
	}
	if p, err := url.PathUnescape(address); err == nil {
		address = p
	}
	return address
}
