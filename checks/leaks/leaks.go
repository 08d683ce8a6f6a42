// Package leaks finds secrets in what would be published: what a change adds
// to files, names, messages. Text comes in, places and names of rules go out,
// never a value. It asks the redactor (exact values, tokens of any length) and
// gitleaks with its rules and without its exceptions: what an agent writes must
// not switch the search off.
//
// Not found: a secret that is cut into pieces, encrypted, packed into an
// archive, or encoded in other ways than base64, hexadecimal and percent signs,
// each at most twice.
package leaks

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zricethezav/gitleaks/v8/config"
	"github.com/zricethezav/gitleaks/v8/detect"
	"github.com/zricethezav/gitleaks/v8/regexp"

	"inspect/checks/redact"
)

const (
	// Most findings are told of one text; where so many are, more say nothing.
	Most = 50
	// chunk is what gitleaks sees at once, in bytes: for each finding it counts
	// lines from the beginning.
	chunk = 64 << 10
	// overlap of two chunks: a secret of several lines may lie across their border.
	overlap = 8 << 10
)

// Finder finds secrets. It is safe for concurrent use.
type Finder struct {
	known    *redact.Redactor
	detector *detect.Detector
}

// New returns a Finder that also finds what known knows.
func New(known *redact.Redactor) (*Finder, error) {
	d, err := detector()
	if err != nil {
		return nil, fmt.Errorf("prepare the search for secrets: %w", err)
	}
	return &Finder{known: known, detector: d}, nil
}

// detector is gitleaks with its own rules. Reading them takes 40 ms, and the
// library does it through variables of its own.
var detector = sync.OnceValues(func() (*detect.Detector, error) {
	d, err := detect.NewDetectorDefaultConfig()
	if err != nil {
		return nil, err
	}
	d.IgnoreGitleaksAllow = true // else a comment in the change silences it
	d.MaxDecodeDepth = 2
	// Whole files (go.sum, package-lock.json, *.svg, node_modules) and values
	// that hold the word "false" would be passed over.
	d.Config.Allowlists = nil
	for id, rule := range d.Config.Rules {
		rule.Allowlists = slices.DeleteFunc(rule.Allowlists, func(a *config.Allowlist) bool { return len(a.Paths) > 0 })
		if id == genericRule {
			sums := &config.Allowlist{RegexTarget: "line", Regexes: []*regexp.Regexp{regexp.MustCompile(goSumLine)}}
			if err := sums.Validate(); err != nil {
				return nil, err
			}
			rule.Allowlists = append(rule.Allowlists, sums)
		}
		d.Config.Rules[id] = rule
	}
	return d, nil
})

const (
	// genericRule takes whatever looks random after a word like "auth".
	genericRule = "generic-api-key"
	// goSumLine has checksums after names like oauth2. It is told by its form,
	// not by the name of the file it stands in.
	goSumLine = `^\n?[\w.~!/-]+ v[\w.+-]+(?:/go\.mod)? h1:[A-Za-z0-9+/]{43}=$`
)

// Find lists the secrets in text in order of lines, one for each line and at
// most Most. path is the file that text is from or would be added to; empty for
// none. Some rules look at the names of files.
func (f *Finder) Find(path, text string) []redact.Finding {
	out := f.known.Find(text)
	if len(out) < Most {
		out = append(out, f.gitleaks(path, text)...)
	}
	if strings.ContainsRune(text, 0) && len(out) < Most { // UTF-16 and the like
		out = append(out, f.gitleaks(path, strings.ReplaceAll(text, "\x00", ""))...)
	}
	slices.SortStableFunc(out, func(a, b redact.Finding) int { return cmp.Compare(a.Line, b.Line) })
	kept := out[:0]
	for _, n := range out {
		if last := len(kept) - 1; last >= 0 && kept[last].Line == n.Line {
			kept[last].End = max(kept[last].End, n.End)
			continue
		}
		kept = append(kept, n)
	}
	return kept[:min(len(kept), Most)]
}

func (f *Finder) gitleaks(path, text string) []redact.Finding {
	var out []redact.Finding
	first := 0 // lines before the chunk
	for {
		part := text
		if len(part) > chunk {
			part = part[:chunk]
			if end := strings.LastIndexByte(part, '\n') + 1; end > chunk/2 {
				part = part[:end]
			}
		}
		//lint:ignore SA1019 what replaces it comes with v9 of the library; DetectSource keeps all it finds
		for _, n := range f.detector.Detect(detect.Fragment{Raw: part, FilePath: path}) {
			// The library counts from 0. A rule about names alone tells no line.
			line := first + n.StartLine + 1
			out = append(out, redact.Finding{Line: line, End: max(line, first+n.EndLine+1), Rule: n.RuleID})
		}
		if len(part) == len(text) || len(out) >= Most {
			return out
		}
		next := len(part) - overlap
		if at := strings.IndexByte(part[next:], '\n') + 1; at > 0 && next+at < len(part) {
			next += at // the next chunk begins with a line
		}
		first += strings.Count(text[:next], "\n")
		text = text[next:]
	}
}
