package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"inspect/app/policy"
)

// readChange fills in what the tree of the result changes.
func (c *cell) readChange(ctx context.Context, im *Imported, base string, maxPatch int64) error {
	raw, err := c.text(ctx, nil, maxRawBytes, "diff-tree", "-r", "--raw", "--numstat", "-z", "--no-abbrev", "--no-renames",
		"--no-ext-diff", "--no-textconv", im.BaseTree, im.Tree)
	if err != nil {
		return err
	}
	entries, rest, err := parseRaw(raw)
	if err != nil {
		return refuse(ReasonBundle, "%s", err)
	}
	if im.Stats, err = parseNumstat(rest); err != nil {
		return refuse(ReasonBundle, "%s", err)
	}
	im.Change.Entries = entries
	if len(entries) == 0 {
		return nil
	}
	if err := c.readLinks(ctx, im); err != nil {
		return err
	}
	if err := c.readScripts(ctx, im); err != nil {
		return err
	}
	col := policy.NewCollisions(entries)
	if err := mirror(c.mirror).paths(ctx, base, col.Base); err != nil {
		return err
	}
	im.Change.Collisions = col.Found()
	return c.readAdded(ctx, im, maxPatch)
}

// readLinks reads the targets of new symbolic links.
func (c *cell) readLinks(ctx context.Context, im *Imported) error {
	const maxLinks, maxTarget = 1000, 4 << 10
	var ids, paths []string
	for _, e := range im.Change.Entries {
		if e.NewMode == policy.ModeLink && len(ids) < maxLinks {
			ids, paths = append(ids, e.NewSHA), append(paths, e.Path)
		}
	}
	targets, err := c.contents(ctx, ids, maxTarget)
	if err != nil {
		return err
	}
	im.Change.Links = map[string]string{}
	for i, p := range paths {
		im.Change.Links[p] = targets[i]
	}
	return nil
}

// maxScript bounds a file that is read to see what verification runs, in bytes.
const maxScript = 1 << 20

// readScripts reads what decides what verification runs, before and after. What
// is no plain file, or larger, is left out: nobody knows what it decides.
func (c *cell) readScripts(ctx context.Context, im *Imported) error {
	const maxScripts = 50
	files := policy.ScriptFiles(im.Change.Entries)
	files = files[:min(len(files), maxScripts)]
	var ids []string
	for _, e := range files {
		for _, id := range versions(e) {
			if id != "" && id != noPlainFile {
				ids = append(ids, id)
			}
		}
	}
	small, err := c.smallOf(ctx, ids, maxScript)
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !small[id] })
	texts, err := c.contents(ctx, ids, maxScript)
	if err != nil {
		return err
	}
	text := map[string]string{"": ""}
	for i, id := range ids {
		text[id] = texts[i]
	}
	im.Change.Scripts = map[string]policy.Texts{}
	for _, e := range files {
		v := versions(e)
		old, ok1 := text[v[0]]
		now, ok2 := text[v[1]]
		if ok1 && ok2 {
			im.Change.Scripts[e.Path] = policy.Texts{Old: old, New: now}
		}
	}
	return nil
}

// noPlainFile stands for the content of what is none.
const noPlainFile = "no plain file"

// versions are the contents of a path before and after: "" where there is none.
func versions(e policy.Entry) (out [2]string) {
	for i, v := range [2]struct {
		mode uint32
		id   string
	}{{e.OldMode, e.OldSHA}, {e.NewMode, e.NewSHA}} {
		switch v.mode {
		case policy.ModeNone:
		case policy.ModeFile, policy.ModeExecutable:
			out[i] = v.id
		default:
			return [2]string{"", noPlainFile}
		}
	}
	return out
}

// splitter calls each for every NUL-ended piece written to it.
type splitter struct {
	each func(string)
	rest []byte
}

func (s *splitter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, 0)
		if i < 0 {
			s.rest = append(s.rest, p...)
			return n, nil
		}
		s.each(string(append(s.rest, p[:i]...)))
		s.rest, p = s.rest[:0], p[i+1:]
	}
}

// readAdded reads the lines the change adds. Attributes of the repository and
// binary content do not hide anything: all files are read as text.
func (c *cell) readAdded(ctx context.Context, im *Imported, maxPatch int64) error {
	var b bytes.Buffer
	exit, err := c.git(ctx, nil, &b, maxPatch, "diff-tree", "-r", "-p", "-U0", "--text", "--irreversible-delete", "--full-index", "--no-renames",
		"--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", im.BaseTree, im.Tree)
	switch {
	case errors.Is(err, errOverflow):
		im.Change.PatchBytes = maxPatch + 1
		return nil
	case err != nil:
		return err
	case exit != 0:
		return refuse(ReasonBundle, "git diff-tree ended with status %d", exit)
	}
	im.Change.PatchBytes = int64(b.Len())
	if im.Change.Added, err = parseAdded(b.Bytes()); err != nil {
		return refuse(ReasonBundle, "%s", err)
	}
	if err := sameCount(im.Change.Added, im.Stats); err != nil {
		return refuse(ReasonBundle, "%s", err)
	}
	return nil
}

// errRaw is the error of a list that git would not write.
var errRaw = errors.New("the list of changed files cannot be read")

// parseRaw reads `git diff-tree -r --raw -z --no-renames --no-abbrev` up to the
// first line of another form.
func parseRaw(s string) (entries []policy.Entry, rest string, err error) {
	for strings.HasPrefix(s, ":") {
		meta, after, ok := strings.Cut(s[1:], "\x00")
		path, after, ok2 := strings.Cut(after, "\x00")
		f := strings.Split(meta, " ")
		if !ok || !ok2 || path == "" || len(f) != 5 {
			return nil, "", errRaw
		}
		if len(f[4]) != 1 || !strings.Contains("AMDT", f[4]) {
			return nil, "", fmt.Errorf("the list of changed files has an entry of an unknown kind: %.10q", f[4])
		}
		old, err1 := strconv.ParseUint(f[0], 8, 32)
		now, err2 := strconv.ParseUint(f[1], 8, 32)
		if err1 != nil || err2 != nil || now != 0 && !isSHA(f[3]) || old != 0 && !isSHA(f[2]) {
			return nil, "", errRaw
		}
		entries = append(entries, policy.Entry{Status: f[4][0], OldMode: uint32(old), NewMode: uint32(now), OldSHA: f[2], NewSHA: f[3], Path: path})
		s = after
	}
	return entries, s, nil
}

// parseNumstat reads `git diff-tree -r --numstat -z --no-renames`.
func parseNumstat(s string) ([]Stat, error) {
	var out []Stat
	for s != "" {
		line, rest, ok := strings.Cut(s, "\x00")
		f := strings.SplitN(line, "\t", 3)
		if !ok || len(f) != 3 || f[2] == "" {
			return nil, errors.New("the list of changed lines cannot be read")
		}
		s = rest
		st := Stat{Path: f[2]}
		if f[0] == "-" && f[1] == "-" {
			st.Binary = true
		} else {
			var err1, err2 error
			st.Added, err1 = strconv.Atoi(f[0])
			st.Deleted, err2 = strconv.Atoi(f[1])
			if err1 != nil || err2 != nil || st.Added < 0 || st.Deleted < 0 {
				return nil, errors.New("the list of changed lines has no numbers")
			}
		}
		out = append(out, st)
	}
	return out, nil
}

// parseAdded takes the added lines out of a patch.
func parseAdded(patch []byte) ([]policy.AddedText, error) {
	files, _, err := gitdiff.Parse(bytes.NewReader(patch))
	if err != nil {
		return nil, errors.New("the patch cannot be read")
	}
	var out []policy.AddedText
	for _, f := range files {
		if f.IsBinary {
			return nil, errors.New("the patch shows a file as binary that was to be shown as text")
		}
		add := policy.AddedText{Path: f.NewName}
		for _, frag := range f.TextFragments {
			at := int(frag.NewPosition)
			for _, l := range frag.Lines {
				switch l.Op {
				case gitdiff.OpAdd:
					add.Lines = append(add.Lines, strings.TrimSuffix(l.Line, "\n"))
					add.Numbers = append(add.Numbers, at)
					at++
				case gitdiff.OpContext:
					at++
				}
			}
		}
		if len(add.Lines) > 0 {
			out = append(out, add)
		}
	}
	return out, nil
}

// sameCount compares the lines read from the patch with the numbers git gives
// by another way: a patch written to confuse our reader must not hide a line.
func sameCount(added []policy.AddedText, stats []Stat) error {
	read := map[string]int{}
	for _, a := range added {
		read[a.Path] += len(a.Lines)
	}
	for _, s := range stats {
		if !s.Binary && read[s.Path] != s.Added {
			return errors.New("the patch cannot be read: it shows other lines than git counts")
		}
	}
	return nil
}
