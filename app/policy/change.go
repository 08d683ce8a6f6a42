package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"inspect/checks/redact"
	"inspect/envs/spec"
)

// Reasons a change is refused for, as they appear on a session.
const (
	ReasonNoChange      = "no_change"
	ReasonFileName      = "file_name"      // a path no file of a repository should have
	ReasonFileMode      = "file_mode"      // neither a plain file nor an executable nor a link
	ReasonSubmodule     = "submodule"      // submodules are not supported yet
	ReasonLink          = "link"           // a symbolic link that leaves the tree
	ReasonNameCollision = "name_collision" // two paths that are one on some file systems
	ReasonSecretFound   = "secret_found"
	ReasonProtectedPath = "protected_path"
	ReasonTooManyFiles  = "too_many_files"
	ReasonTooLarge      = "too_large"
	ReasonWithheldOnly  = "withheld_only" // all of it is what GitHub refuses us
	ReasonBranchName    = "branch_name"
	ReasonTestsVanished = "tests_vanished"
	ReasonReportDoubted = "report_doubted" // what verification reports is missing or cannot be right
	ReasonNotCompared   = "not_compared"   // with what the base does
	ReasonReplaced      = "verify_replaced"
	ReasonKnownSecret   = "known_secret" // the value of a secret that is in use here
)

// File modes git knows, as numbers of an object's tree entry.
const (
	ModeNone       = 0
	ModeFile       = 0o100644
	ModeExecutable = 0o100755
	ModeLink       = 0o120000
	ModeSubmodule  = 0o160000
)

// Entry is one path a change touches. Renames are a deletion and an addition.
type Entry struct {
	Status  byte // 'A', 'M', 'D' or 'T' (the kind changed)
	OldMode uint32
	NewMode uint32
	OldSHA  string
	NewSHA  string
	Path    string // as git has it; may hold any byte but NUL
}

// AddedText is what a change adds to one file. Numbers[i] is the line number
// of Lines[i] in the new file, from 1.
type AddedText struct {
	Path    string
	Lines   []string
	Numbers []int
}

// Change is all that Judge looks at. Every part of it was written by an enemy.
type Change struct {
	Entries    []Entry
	Added      []AddedText
	Links      map[string]string // path of each added or changed symbolic link -> its target
	Collisions []Collision       // see Collisions
	Messages   []string          // of the commits, oldest first
	PatchBytes int64             // of the text patch, deletions of whole files left out
	Scripts    map[string]Texts  // of the paths that ScriptFiles names
	Doubts     []Item            // about what verification showed
	Branch     string            // the branch it would be pushed to; empty: not judged
}

// Rules bound a change. They are the stricter of a repository's publish
// section and the operator's floor.
type Rules struct {
	Prefix    string   // of branch names
	Protected []string // doublestar patterns, matched without regard to case
	MaxFiles  int      // paths touched; 0 means none may be
	MaxBytes  int64    // of Change.PatchBytes
	// Find looks for secrets in what a file, if it is one, gains; nil means
	// redact.Find. It may know exact values besides patterns.
	Find func(path, text string) []redact.Finding
	// Known says whether a text holds the value of a secret that is in use here.
	// Such a change is never pushed. nil: none is known.
	Known func(text string) bool
	// FourEyes: what a person may allow is not allowed by a requester.
	FourEyes bool
	// Verify are the repository's verify commands: a change of a file they name
	// is a risk.
	Verify []string
}

// PublishRules are the rules of a repository's publish section. What is always
// protected stays so whatever the section says.
func PublishRules(p spec.Publish) Rules {
	return Rules{
		Prefix:    p.Prefix,
		Protected: append(spec.AlwaysProtected(), p.Protected...),
		MaxFiles:  p.MaxFiles,
		MaxBytes:  p.MaxBytes,
		FourEyes:  p.FourEyes,
	}
}

// StricterPublish returns the stricter of a pinned publish section and a later one
// of the same repository. Branches keep the prefix that is pinned.
func StricterPublish(pinned, now spec.Publish) spec.Publish {
	out := pinned
	out.Protected = slices.Clone(pinned.Protected)
	for _, p := range now.Protected {
		if !slices.Contains(out.Protected, p) {
			out.Protected = append(out.Protected, p)
		}
	}
	out.MaxFiles, out.MaxBytes = min(pinned.MaxFiles, now.MaxFiles), min(pinned.MaxBytes, now.MaxBytes)
	if now.Push != spec.PushHead {
		out.Push = ""
	}
	out.FourEyes = pinned.FourEyes || now.FourEyes
	return out
}

// Digest identifies the rules: an approval under other ones does not count. It
// is hexadecimal SHA-256.
func (r Rules) Digest() string {
	protected := slices.Clone(r.Protected)
	slices.Sort(protected)
	body, err := json.Marshal(struct {
		Prefix    string
		Protected []string
		MaxFiles  int
		MaxBytes  int64
		Verify    []string
		FourEyes  bool
	}{r.Prefix, slices.Compact(protected), r.MaxFiles, r.MaxBytes, r.Verify, r.FourEyes})
	if err != nil {
		panic("policy: texts and numbers always marshal: " + err.Error())
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Stricter returns the stricter of both rules: protected paths add up, numbers
// take the smaller value. A zero number or empty prefix of o sets no bound.
func (r Rules) Stricter(o Rules) Rules {
	out := r
	out.Protected = append(slices.Clone(r.Protected), o.Protected...)
	if o.MaxFiles > 0 {
		out.MaxFiles = min(r.MaxFiles, o.MaxFiles)
	}
	if o.MaxBytes > 0 {
		out.MaxBytes = min(r.MaxBytes, o.MaxBytes)
	}
	if out.Prefix == "" {
		out.Prefix = o.Prefix
	}
	if out.Find == nil {
		out.Find = o.Find
	}
	out.FourEyes = r.FourEyes || o.FourEyes
	return out
}

// Verdict is what may be done with a change.
type Verdict struct {
	// Refusal is nil if the change, without what is withheld, may be pushed once
	// what is asked is allowed.
	Refusal *ChangeRefusal
	// Ask is what holds the change back until a person allows it, all of it or
	// nothing.
	Ask []Item
	// Withheld are paths GitHub refuses to us (workflow files). They are left
	// out of what is pushed and delivered as a patch beside it.
	Withheld []string
	// Risks are words for the reviewer, most important first.
	Risks []string
	// Secret are the lines, names and targets that seem to hold secrets, as they
	// stand in the change: nothing that is kept or told may show them.
	Secret []string
}

// Item is one thing that a person may allow. What is plain text for people; paths
// in it are quoted, secrets are never in it.
type Item struct {
	Reason string `json:"reason"` // one of askable
	What   string `json:"what"`
}

// AskWords say in sentences what is asked for.
func AskWords(items []Item) string {
	var words []string
	for _, r := range askable {
		var what []string
		for _, i := range items {
			if i.Reason == r.reason {
				what = append(what, i.What)
			}
		}
		if len(what) > 0 {
			words = append(words, r.intro+": "+list(what)+".")
		}
	}
	return strings.Join(words, " ")
}

// askable are the reasons a person may allow, the most important first.
var askable = []struct{ reason, intro string }{
	{ReasonSecretFound, "The change seems to hold secrets; their values are not shown"},
	{ReasonProtectedPath, "The change touches protected paths"},
	{ReasonReplaced, "The change replaces what verification runs"},
	{ReasonReportDoubted, "What verification reports is not to be believed"},
	{ReasonTestsVanished, "Tests vanish with the change"},
	{ReasonNotCompared, "Verification was not compared with the base"},
}

// NeedsAnother says whether something with that reason is only accepted by a
// person who did not ask for the work, whatever publish.four_eyes says: it is
// about whether the work does what it was asked for.
func NeedsAnother(reason string) bool {
	switch reason {
	case ReasonReplaced, ReasonReportDoubted, ReasonTestsVanished, ReasonNotCompared:
		return true
	}
	return false
}

// ChangeRefusal says why a change may not be pushed. Words are plain text for
// people; paths in them are quoted, secrets are never in them.
type ChangeRefusal struct {
	Reason string
	Words  string
}

// Judge decides about a change. It is pure, and it never trusts a path: what a
// name, a mode or a link may be is decided here because git lets them pass.
func Judge(c Change, r Rules) Verdict {
	var v Verdict
	if len(c.Entries) == 0 {
		v.Refusal = &ChangeRefusal{ReasonNoChange, "The result is the same tree as the base commit."}
		return v
	}
	var found []ChangeRefusal
	add := func(reason, intro string, items []string) {
		if len(items) > 0 {
			found = append(found, ChangeRefusal{reason, intro + ": " + list(items) + "."})
		}
	}

	ask := func(reason string, items []string) {
		for _, i := range items {
			v.Ask = append(v.Ask, Item{reason, i})
		}
	}

	var names, modes, submodules, links, protected []string
	for _, e := range c.Entries {
		if why := badName(e); why != "" {
			names = append(names, show(e.Path)+" ("+why+")")
		}
		switch {
		case e.NewMode == ModeSubmodule || e.Path == ".gitmodules":
			submodules = append(submodules, show(e.Path))
		case e.NewMode == ModeLink:
			target, known := c.Links[e.Path]
			if !known {
				links = append(links, show(e.Path)+" (its target could not be read)")
			} else if why := badLink(e.Path, target); why != "" {
				links = append(links, show(e.Path)+" ("+why+")")
			}
		case e.NewMode != ModeNone && e.NewMode != ModeFile && e.NewMode != ModeExecutable:
			modes = append(modes, fmt.Sprintf("%s (mode %06o)", show(e.Path), e.NewMode))
		}
		if isWorkflow(e.Path) && (e.NewMode == ModeNone || e.NewMode == ModeFile || e.NewMode == ModeExecutable) {
			v.Withheld = append(v.Withheld, e.Path)
		} else if pattern := protectedBy(e.Path, r.Protected); pattern != "" {
			protected = append(protected, show(e.Path)+" (by "+strconv.Quote(pattern)+")")
		}
	}
	add(ReasonFileName, "The change has file names that are not safe", names)
	add(ReasonFileMode, "The change has files of a kind Inspect does not push", modes)
	add(ReasonSubmodule, "The change touches submodules, which are not supported yet", submodules)
	add(ReasonLink, "The change has symbolic links that leave the repository", links)
	add(ReasonNameCollision, "The change has names that are one and the same on some file systems", collisionWords(c.Collisions))
	where, known, lines := secrets(c, r)
	v.Secret = lines
	add(ReasonKnownSecret, "The change holds the value of a secret that is in use, which nobody can allow", known)
	ask(ReasonSecretFound, where)
	ask(ReasonProtectedPath, protected)
	other, looks := replaced(c, r.Verify)
	ask(ReasonReplaced, other)
	ask(ReasonTestsVanished, vanished(c))
	v.Ask = append(v.Ask, c.Doubts...)
	if len(c.Entries) > r.MaxFiles {
		found = append(found, ChangeRefusal{ReasonTooManyFiles, fmt.Sprintf("The change touches %d files; at most %d are allowed (publish.max_files).", len(c.Entries), r.MaxFiles)})
	}
	if c.PatchBytes > r.MaxBytes {
		found = append(found, ChangeRefusal{ReasonTooLarge, fmt.Sprintf("The patch has %d bytes; at most %d are allowed (publish.max_bytes).", c.PatchBytes, r.MaxBytes)})
	}
	if c.Branch != "" {
		if why := BadBranch(c.Branch, r.Prefix); why != "" {
			found = append(found, ChangeRefusal{ReasonBranchName, "The branch " + show(c.Branch) + " cannot be used: " + why + "."})
		}
	}
	if len(found) == 0 && len(v.Withheld) == len(c.Entries) {
		found = append(found, ChangeRefusal{ReasonWithheldOnly, "The change touches nothing but workflow files, which GitHub lets no App push that lacks the right to. It is kept as a patch: " + list(shown(v.Withheld)) + "."})
	}
	if len(found) > 0 {
		words := make([]string, len(found))
		for i, f := range found {
			words[i] = f.Words
		}
		if asked := AskWords(v.Ask); asked != "" {
			words = append(words, asked)
		}
		v.Refusal = &ChangeRefusal{found[0].Reason, strings.Join(words, " ")}
	}
	v.Risks = risks(c, r.Verify, looks)
	return v
}

// vanished are the tests that are gone after a change. A file that was moved to
// another place among the tests is not.
func vanished(c Change) []string {
	kept := map[string]bool{}
	for _, e := range c.Entries {
		if e.NewMode != ModeNone && e.NewSHA != "" && partOfTests(strings.ToLower(e.Path)) {
			kept[e.NewSHA] = true
		}
	}
	var out []string
	for _, e := range c.Entries {
		if e.NewMode == ModeNone && partOfTests(strings.ToLower(e.Path)) && !kept[e.OldSHA] {
			out = append(out, show(e.Path)+" (deleted)")
		}
	}
	return out
}

// secrets names file and line of each finding, never its value, apart those that
// hold what is in use here, and returns what holds the values.
func secrets(c Change, r Rules) (where, known, lines []string) {
	isKnown := func(text string) bool { return r.Known != nil && r.Known(text) }
	find := r.Find
	if find == nil {
		find = func(_, text string) []redact.Finding { return redact.Find(text) }
	}
	named := map[string]string{} // paths that may not be shown
	for i, e := range c.Entries {
		if e.NewMode == ModeNone {
			continue
		}
		for _, f := range find("", e.Path) {
			named[e.Path] = fmt.Sprintf("file %d of the change", i+1)
			where = append(where, "the name of "+named[e.Path]+" ("+f.Rule+")")
			lines = append(lines, e.Path)
		}
		if isKnown(e.Path) {
			known = append(known, "the name of "+cmp.Or(named[e.Path], fmt.Sprintf("file %d of the change", i+1)))
		}
		if isKnown(c.Links[e.Path]) {
			known = append(known, "the target of the link "+cmp.Or(named[e.Path], show(e.Path)))
		}
		for _, f := range find("", c.Links[e.Path]) {
			where = append(where, "the target of the link "+cmp.Or(named[e.Path], show(e.Path))+" ("+f.Rule+")")
			lines = append(lines, c.Links[e.Path])
		}
	}
	for _, a := range c.Added {
		path := cmp.Or(named[a.Path], show(a.Path))
		if isKnown(strings.Join(a.Lines, "\n")) {
			known = append(known, path)
		}
		for _, f := range find(a.Path, strings.Join(a.Lines, "\n")) {
			line := ""
			if i := f.Line - 1; i >= 0 && i < len(a.Numbers) {
				line = " line " + strconv.Itoa(a.Numbers[i])
				lines = append(lines, a.Lines[i:min(max(f.End, f.Line), len(a.Lines))]...)
			}
			where = append(where, path+line+" ("+f.Rule+")")
		}
	}
	for i, m := range c.Messages {
		for _, f := range find("", m) {
			where = append(where, fmt.Sprintf("the message of commit %d line %d (%s)", i+1, f.Line, f.Rule))
			all := strings.Split(m, "\n")
			lines = append(lines, all[f.Line-1:min(max(f.End, f.Line), len(all))]...)
		}
	}
	return slices.Compact(where), known, lines
}

// risks are things a reviewer should look at twice.
func risks(c Change, verify, looks []string) []string {
	var out []string
	say := func(intro string, items []string) {
		if len(items) > 0 {
			out = append(out, intro+": "+list(items))
		}
	}
	var own, tests, runs, ci, run, links, deps, gone []string
	for _, e := range c.Entries {
		p := strings.ToLower(e.Path)
		base := p[strings.LastIndexByte(p, '/')+1:]
		switch {
		case p == spec.FileName:
			own = append(own, show(e.Path))
		case strings.HasPrefix(p, ".buildkite/") || strings.HasPrefix(p, ".circleci/") || base == ".gitlab-ci.yml" || base == "jenkinsfile" || base == ".travis.yml" || strings.HasPrefix(p, ".vscode/") || strings.HasPrefix(p, ".husky/"):
			ci = append(ci, show(e.Path))
		case base == "go.sum" || base == "go.mod" || base == "package.json" || base == "package-lock.json" || base == "yarn.lock" || base == "pnpm-lock.yaml" || base == "cargo.lock" || base == "cargo.toml" || base == "pyproject.toml" || base == "requirements.txt":
			deps = append(deps, show(e.Path))
		}
		switch {
		case e.OldMode == ModeNone:
		case namedBy(verify, e.Path) && !spec.IsTestOfLanguage(e.Path) || partOfTests(p) && !spec.IsTest(e.Path):
			runs = append(runs, show(e.Path))
		case spec.IsTest(e.Path):
			tests = append(tests, show(e.Path))
		}
		if e.NewMode == ModeExecutable && e.OldMode != ModeExecutable {
			run = append(run, show(e.Path))
		}
		if e.NewMode == ModeLink {
			links = append(links, show(e.Path))
		}
		if e.NewMode == ModeNone {
			gone = append(gone, show(e.Path))
		}
	}
	say("changes what verification itself runs, so passing shows less than it seems", runs)
	say("changes tests that the base has; what those show as they were is in a column of its own", tests)
	say("adds what a made-up result would need", forged(c.Added))
	say("changes files of the build that may decide what tests run, and how", looks)
	say("changes what later sessions run", own)
	say("changes what other services or editors run", ci)
	say("makes files executable", run)
	say("adds symbolic links", links)
	say("changes dependencies", deps)
	say("deletes files", gone)
	var bidi []string
	for _, a := range c.Added {
		for i, l := range a.Lines {
			if strings.ContainsFunc(l, isBidi) {
				bidi = append(bidi, show(a.Path)+" line "+strconv.Itoa(a.Numbers[i]))
				break
			}
		}
	}
	say("adds text with bidirectional control characters", bidi)
	return out
}

func collisionWords(cs []Collision) []string {
	var out []string
	for _, c := range cs {
		out = append(out, show(c.New)+" and "+show(c.Other))
	}
	return out
}

// maxShown items of a list are written out.
const maxShown = 5

func list(items []string) string {
	if len(items) > maxShown {
		return strings.Join(items[:maxShown], ", ") + fmt.Sprintf(" and %d more", len(items)-maxShown)
	}
	return strings.Join(items, ", ")
}

func shown(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = show(p)
	}
	return out
}

// show makes a path fit for a sentence: quoted, ASCII escapes for whatever is
// not plainly visible, and cut.
func show(path string) string {
	const most = 120
	cut := ""
	if len(path) > most {
		path, cut = path[:most], "…"
	}
	var b strings.Builder
	for _, r := range path {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) || isBidi(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) {
			return strconv.QuoteToASCII(path) + cut
		}
		b.WriteRune(r)
	}
	return strconv.Quote(b.String()) + cut
}

// partOfTests says whether a path (in lower case) looks like tests or what
// runs them.
func partOfTests(p string) bool {
	switch p[strings.LastIndexByte(p, '/')+1:] {
	case "makefile", "package.json":
		return true
	}
	return spec.IsTest(p)
}

// namedBy says whether a command names a file.
func namedBy(commands []string, path string) bool {
	return slices.ContainsFunc(commands, func(c string) bool { return spec.Runs(c, path) })
}
