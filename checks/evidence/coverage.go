package evidence

import (
	"fmt"
	"strings"

	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// Coverage is how much of what a change adds its tests have run.
type Coverage struct {
	Lines   int `json:"lines"`   // added lines that a test could run
	Covered int `json:"covered"` // of them
	// Damage is why the numbers cannot be believed; empty: they can.
	Damage string `json:"damage,omitempty"`
}

// Added are the lines that a change adds to a file, from 1.
type Added struct {
	Path  string
	Lines []int
}

// Bounds of all coverage files of a command.
const (
	maxCovered      = 5_000_000 // lines
	maxCoveredFiles = 200_000   // files of the repository
)

// profile says of lines that can run whether one did, by the name of the file as
// the tool has it.
type profile struct {
	files  map[string]map[int]bool
	lines  int
	damage string
}

func (p *profile) broken(format string, args ...any) {
	if p.damage == "" {
		p.damage = fmt.Sprintf(format, args...)
	}
}

// mark takes a line. It is covered if any of what is said of it says so.
func (p *profile) mark(file string, line int, covered bool) {
	if line < 1 || file == "" || len(file) > 1024 {
		return
	}
	if p.files == nil {
		p.files = map[string]map[int]bool{}
	}
	m := p.files[file]
	if m == nil {
		if len(p.files) == maxCoveredFiles {
			p.broken("they name more than %d files", maxCoveredFiles)
			return
		}
		m = map[int]bool{}
		p.files[file] = m
	}
	was, there := m[line]
	if !there {
		if p.lines == maxCovered {
			p.broken("they name more than %d lines", maxCovered)
			return
		}
		p.lines++
	}
	m[line] = was || covered
}

// readCoverage reads a command's coverage files. nil: none were asked for. An
// error is ours.
func readCoverage(v wire.VerifyResult, added []Added, open Opener) (*Coverage, error) {
	kind, _ := spec.ReportFiles(v.Coverage)
	if kind == "" {
		return nil, nil
	}
	p := &profile{}
	err := eachFile(v.CoverageFiles, open, p.broken, func(name string, body []byte) {
		switch kind {
		case spec.CoverageGo:
			readGoCover(name, body, p)
		case spec.CoverageCobertura:
			readCobertura(name, body, p)
		case spec.CoverageLCOV:
			readLCOV(name, body, p)
		}
		if p.lines == 0 {
			p.broken("%s names no line", name)
		}
	})
	if err != nil {
		return nil, err
	}
	out := &Coverage{Damage: redact.OneLine(p.damage, 300)}
	for _, a := range added {
		lines := p.of(a.Path)
		for _, n := range a.Lines {
			if covered, can := lines[n]; can {
				out.Lines++
				if covered {
					out.Covered++
				}
			}
		}
	}
	return out, nil
}

// of are the lines of a file of the repository. Tools name files by their path
// there, with the module's or the sandbox's path before it, or by the end of it:
// the name that has most in common with the path is taken.
func (p *profile) of(path string) map[int]bool {
	var best map[int]bool
	most := -1
	for name, lines := range p.files {
		switch {
		case name == path:
			return lines
		case strings.HasSuffix(name, "/"+path) && len(path) > most:
			best, most = lines, len(path)
		case strings.HasSuffix(path, "/"+name) && len(name) > most:
			best, most = lines, len(name)
		}
	}
	return best
}
