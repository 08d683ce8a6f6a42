package policy

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Bounds of a path. 255 bytes is what ext4, xfs and zfs take for one name.
const (
	maxPathBytes = 1024
	maxNameBytes = 255
	maxDepth     = 64
)

// badName says why a path may not be in a result; empty if it may. Control and
// bidirectional characters, look-alikes of .git and the like are judged only
// where this change brings the name in: what the repository already has is
// its own affair.
func badName(e Entry) string {
	p := e.Path
	if e.NewMode == ModeNone && e.Status == 'D' {
		return ""
	}
	if p == "" || strings.HasPrefix(p, "/") {
		return "not a relative path"
	}
	parts := strings.Split(p, "/")
	for _, part := range parts {
		switch {
		case part == "" || part == "." || part == "..":
			return "not a plain path"
		case looksLikeGit(part):
			return "could be taken for git's own directory or files"
		}
	}
	if e.Status != 'A' {
		return ""
	}
	if len(p) > maxPathBytes {
		return "longer than 1024 bytes"
	}
	if len(parts) > maxDepth {
		return "more than 64 directories deep"
	}
	if !utf8.ValidString(p) {
		return "not UTF-8"
	}
	for _, r := range p {
		switch {
		case isBidi(r):
			return "a bidirectional control character"
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Cs):
			return "a control character"
		case unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
			return "an invisible character"
		case r == '\\':
			return "a backslash"
		}
	}
	for _, part := range parts {
		if len(part) > maxNameBytes {
			return "a name longer than 255 bytes"
		}
		if strings.HasSuffix(part, " ") || strings.HasSuffix(part, ".") {
			return "a name that ends in a space or a dot"
		}
	}
	return ""
}

func isBidi(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }

// shortGit are the 8.3 names NTFS gives to .git, .gitmodules and their like.
var shortGit = regexp.MustCompile(`^(git|gitmod|gitatt|gitign|mailma|lfscon|(gi|ma|lf)[0-9a-f]{4})~[0-9]+$`)

// looksLikeGit reports whether some file system takes name for .git, or for
// one of git's special files under another spelling.
func looksLikeGit(name string) bool {
	f := fold(name)
	f, _, _ = strings.Cut(f, ":") // NTFS: alternate data streams
	f = strings.TrimRight(f, " .")
	if f == ".git" || shortGit.MatchString(f) {
		return true
	}
	return gitFile(f) && name != f
}

// gitFile reports a file that git, or git-lfs, reads in every working tree.
func gitFile(name string) bool {
	switch name {
	case ".gitmodules", ".gitattributes", ".gitignore", ".mailmap", ".lfsconfig":
		return true
	}
	return false
}

// fold maps names that some file system takes for one another to one string:
// compatibility composition, case folding, and no ignorable characters.
func fold(name string) string {
	if isASCII(name) {
		return strings.ToLower(name)
	}
	name = strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return -1 // HFS+ and ext4's casefold ignore them
		}
		return r
	}, name)
	return norm.NFKC.String(cases.Fold().String(norm.NFKC.String(name)))
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// badLink says why a symbolic link may not be in a result; empty if it may.
func badLink(at, target string) string {
	switch {
	case target == "" || len(target) > maxPathBytes:
		return "its target is empty or too long"
	case strings.HasPrefix(target, "/"):
		return "it points to an absolute path"
	case !utf8.ValidString(target) || strings.ContainsFunc(target, func(r rune) bool {
		return r == '\\' || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
	}):
		return "its target has control characters or a backslash"
	}
	if gitFile(fold(path.Base(at))) {
		return "git's own files may not be links"
	}
	depth := strings.Count(at, "/")
	down := false
	for _, part := range strings.Split(target, "/") {
		switch {
		case part == "..":
			// Only at the front: after another name it could be another
			// link's parent.
			if down {
				return "its target goes up after going down"
			}
			if depth--; depth < 0 {
				return "it points out of the repository"
			}
		case part == "" || part == ".":
		case looksLikeGit(part):
			return "it points into git's own directory"
		default:
			down = true
		}
	}
	return ""
}

// isWorkflow reports a path GitHub refuses to an App without the workflows
// permission. The comparison is GitHub's: exact.
func isWorkflow(p string) bool { return strings.HasPrefix(p, ".github/workflows/") }

// protectedBy returns the pattern that protects p, or "". A pattern without a
// slash also protects that name in every directory, and a pattern that names a
// directory protects what is in it. Case does not matter: on some machines
// .GITHUB is .github. A pattern that cannot be read protects everything.
func protectedBy(p string, patterns []string) string {
	folded := fold(p)
	for _, pattern := range patterns {
		q := fold(strings.TrimSuffix(strings.TrimPrefix(pattern, "/"), "/"))
		if q == "" {
			continue
		}
		tries := []string{q, q + "/**"}
		if !strings.Contains(q, "/") {
			tries = append(tries, "**/"+q, "**/"+q+"/**")
		}
		for _, t := range tries {
			if ok, err := doublestar.Match(t, folded); ok || err != nil {
				return pattern
			}
		}
	}
	return ""
}

// Collision is a path of a change that some file systems take for Other.
type Collision struct{ New, Other string }

// Collisions finds paths that differ only in case or in the form of their
// characters. It is fed the paths of the base one after another, so that a
// large repository need not be held in memory.
type Collisions struct {
	spelled map[string][]string // folded -> spellings this change adds
	old     map[string]bool     // spellings the base has as well
	gone    map[string]bool     // paths this change deletes
	found   []Collision
}

// NewCollisions takes the entries of a change.
func NewCollisions(entries []Entry) *Collisions {
	c := &Collisions{spelled: map[string][]string{}, old: map[string]bool{}, gone: map[string]bool{}}
	for _, e := range entries {
		switch e.Status {
		case 'D':
			c.gone[e.Path] = true
		case 'A':
			eachPrefix(e.Path, func(p string) {
				f := fold(p)
				if !slices.Contains(c.spelled[f], p) {
					c.spelled[f] = append(c.spelled[f], p)
				}
			})
		}
	}
	return c
}

// Base takes one path of the base commit.
func (c *Collisions) Base(p string) {
	if len(c.spelled) == 0 || c.gone[p] {
		return
	}
	eachPrefix(p, func(p string) {
		if c.old[p] {
			return
		}
		for _, s := range c.spelled[fold(p)] {
			if s == p {
				c.old[p] = true
			} else if len(c.found) < 10*maxShown {
				c.found = append(c.found, Collision{New: s, Other: p})
			}
		}
	})
}

// Found returns the collisions, of the change with itself and with the base,
// without those the base had before.
func (c *Collisions) Found() []Collision {
	var out []Collision
	seen := map[Collision]bool{}
	keep := func(n Collision) {
		if !seen[n] && !c.old[n.New] {
			seen[n] = true
			out = append(out, n)
		}
	}
	for _, f := range c.found {
		keep(f)
	}
	for _, spellings := range c.spelled {
		for i := 1; i < len(spellings); i++ {
			keep(Collision{New: spellings[i], Other: spellings[0]})
		}
	}
	slices.SortFunc(out, func(a, b Collision) int {
		return strings.Compare(a.New+"\x00"+a.Other, b.New+"\x00"+b.Other)
	})
	return out
}

func eachPrefix(p string, fn func(string)) {
	for i := 0; i < len(p); i++ {
		if p[i] == '/' {
			fn(p[:i])
		}
	}
	fn(p)
}
