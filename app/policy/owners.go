package policy

import (
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// MaxOwners is how large a CODEOWNERS file may be, in bytes: GitHub does not
// read one of 3 MB or more.
const MaxOwners = 3<<20 - 1

// maxOwnerLooks bounds how often a path is held against a line, of a file that
// is as hostile as can be; what is known by then counts.
const maxOwnerLooks = 5_000_000

// OwnerFiles are the places of CODEOWNERS. GitHub reads the first there is.
func OwnerFiles() []string {
	return []string{".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS"}
}

var (
	ownerPerson  = regexp.MustCompile(`^@[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)
	ownerTeam    = regexp.MustCompile(`^@[A-Za-z0-9][A-Za-z0-9_-]{0,99}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	ownerAddress = regexp.MustCompile(`^[^@\s]+@[^@\s]+\.[^@\s]+$`)
)

// rule of a CODEOWNERS file.
type ownerRule struct {
	patterns []string // of doublestar; one of them matches
	owners   []string
}

// Owners are who owns paths by a CODEOWNERS file, each once, in the order of the
// paths: people by login, teams as org/slug. For each path the last line that
// matches counts, one without owners too. As on GitHub, lines that cannot be
// read are passed over: a negation, a range, an owner that is none. Owners named
// by an e-mail address are left out, since nobody can be asked by one.
func Owners(file string, paths []string) (people, teams []string) {
	if len(file) > MaxOwners {
		return nil, nil
	}
	rules := ownerRules(file)
	looks := 0
	seen := map[string]bool{}
	for _, p := range paths {
		for i := len(rules) - 1; i >= 0; i-- {
			if looks++; looks > maxOwnerLooks {
				return people, teams
			}
			r := rules[i]
			if !slices.ContainsFunc(r.patterns, func(pattern string) bool { ok, err := doublestar.Match(pattern, p); return ok && err == nil }) {
				continue
			}
			for _, o := range r.owners {
				key := strings.ToLower(o)
				switch name, at := strings.CutPrefix(o, "@"); {
				case seen[key], !at:
				case strings.Contains(name, "/"):
					teams = append(teams, name)
				default:
					people = append(people, name)
				}
				seen[key] = true
			}
			break
		}
	}
	return people, teams
}

func ownerRules(file string) (rules []ownerRule) {
	for _, line := range strings.FieldsFunc(file, func(r rune) bool { return r == '\n' || r == '\r' }) {
		words := ownerWords(strings.TrimPrefix(line, "\ufeff"))
		if len(words) == 0 {
			continue
		}
		patterns, ok := ownerPatterns(words[0])
		for _, o := range words[1:] {
			ok = ok && (ownerPerson.MatchString(o) || ownerTeam.MatchString(o) || ownerAddress.MatchString(o))
		}
		if ok {
			rules = append(rules, ownerRule{patterns, words[1:]})
		}
	}
	return rules
}

// ownerWords are the pattern of a line and its owners, without a comment. A
// space in a pattern has a backslash before it, which stays.
func ownerWords(line string) (words []string) {
	var w strings.Builder
	end := func() {
		if w.Len() > 0 {
			words = append(words, w.String())
			w.Reset()
		}
	}
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			escaped = false
			w.WriteRune(r)
		case r == '\\' && len(words) == 0:
			escaped = true
			w.WriteRune(r)
		case r == ' ' || r == '\t':
			end()
		case r == '#' && w.Len() == 0:
			return words
		default:
			w.WriteRune(r)
		}
	}
	end()
	return words
}

// ownerPatterns are a line's pattern, which is one of .gitignore with exceptions
// (GitHub: about code owners), as doublestar has it.
func ownerPatterns(p string) ([]string, bool) {
	if strings.HasPrefix(p, "!") || strings.HasPrefix(p, `\#`) || strings.ContainsAny(p, "[]") || strings.HasSuffix(p, `\`) {
		return nil, false
	}
	p = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(p)
	folder := strings.HasSuffix(p, "/")
	p = strings.TrimSuffix(p, "/")
	anchored := strings.Contains(p, "/")
	if p = strings.TrimPrefix(p, "/"); p == "" {
		return nil, false
	}
	if !anchored {
		p = "**/" + p
	}
	below := p + "/**/*"
	switch {
	case folder:
		return []string{below}, doublestar.ValidatePattern(below)
	case anchored && (p == "*" || strings.HasSuffix(p, "/*")): // the files of a folder, and none below
		return []string{p}, doublestar.ValidatePattern(p)
	}
	return []string{p, below}, doublestar.ValidatePattern(below)
}
