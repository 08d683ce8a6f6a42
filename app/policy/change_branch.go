package policy

import (
	"regexp"
	"strconv"
	"strings"
)

// maxSlug is the length of the readable part of a branch name, in bytes.
const maxSlug = 60

// BranchName returns the name of a session's branch:
// <prefix>/<issue>-<slug>-<session>. The slug is made of the title's ASCII
// letters and digits; a title without any gives issue-<n>. A session without an
// issue has <slug>-<session>, or work-<session>.
func BranchName(prefix string, issue int, title, session string) string {
	name := slug(title)
	switch {
	case issue == 0 && name == "":
		name = "work"
	case issue != 0 && name == "":
		name = "issue-" + strconv.Itoa(issue)
	case issue != 0:
		name = strconv.Itoa(issue) + "-" + name
	}
	return prefix + "/" + name + "-" + session
}

func slug(title string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			b.WriteRune(r)
		case r == '.' && b.Len() > 0 && !strings.HasSuffix(b.String(), "."):
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() >= maxSlug {
			break
		}
	}
	s := strings.Trim(b.String(), "-._")
	for strings.Contains(s, "..") || strings.Contains(s, ".lock") || strings.Contains(s, ".-") {
		s = strings.NewReplacer("..", "-", ".lock", "-lock", ".-", "-").Replace(s)
	}
	return s
}

var branchForm = regexp.MustCompile(`^[a-z0-9._-]+$`)

// BadBranch says why a name cannot be a branch of ours; empty if it can.
func BadBranch(name, prefix string) string {
	rest, ok := strings.CutPrefix(name, prefix+"/")
	switch {
	case prefix == "" || !ok:
		return "it is not under " + prefix + "/"
	case len(name) > 200:
		return "it is longer than 200 bytes"
	case !branchForm.MatchString(rest):
		return "it has characters other than a-z, 0-9, '.', '_' and '-'"
	case strings.Contains(rest, "..") || strings.HasSuffix(rest, ".lock") || strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "-") || strings.HasSuffix(rest, "."):
		return "git does not allow it"
	}
	return ""
}
