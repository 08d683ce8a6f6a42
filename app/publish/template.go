package publish

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"inspect/app/github"
	"inspect/checks/redact"
)

// Bounds of a pull request template, in bytes: one that is larger than the first
// is not read, more than the second is not shown.
const (
	maxTemplateFile = 1 << 20
	maxTemplate     = 16 << 10
)

// templateFolders are where GitHub looks for a template, in its order; "" is the
// root.
var templateFolders = []string{".github/", "", "docs/"}

// isTemplate: GitHub takes the name in any case.
var isTemplate = regexp.MustCompile(`(?i)^pull_request_template(?:\.md|\.txt)?$`)

// template is the repository's pull request template, as the default branch has
// it; "" if there is none. The mirror is read, so that GitHub is not asked.
func (p *Publisher) template(ctx context.Context, j *job) (string, error) {
	commit := j.session.BaseSha
	if j.session.BaseBranch != j.place.DefaultBranch { // what snapshots are made of is
		at, err := p.provenance(ctx, j.session)
		if err != nil || at.Snapshot.Commit == "" {
			return "", err
		}
		commit = at.Snapshot.Commit
	}
	m := mirror(j.mirror)
	files, err := m.files(ctx, commit, ".github/", "docs/")
	if err != nil {
		return "", err
	}
	root, err := m.files(ctx, commit)
	if err != nil {
		return "", err
	}
	files = append(files, root...)
	for _, folder := range templateFolders {
		i := slices.IndexFunc(files, func(f mirrorFile) bool {
			name, in := strings.CutPrefix(f.path, folder)
			return in && isTemplate.MatchString(name)
		})
		if i < 0 {
			continue
		}
		if files[i].size > maxTemplateFile {
			return "", nil
		}
		return m.git(ctx, "", nil, maxTemplateFile, "cat-file", "blob", files[i].id)
	}
	return "", nil
}

var (
	issueAddress = regexp.MustCompile(`(?i)(/(?:issues|pull|pulls|discussions)/)(\d)`)
	sessionMark  = regexp.MustCompile(`(?i)inspect:`)
)

// withTemplate puts a template below our own text, where people look for it: to
// fill it in is theirs. Its Markdown stays; but it mentions nobody, refers to
// nothing, and so closes nothing. Nothing of ours comes after it, so that nothing
// in it can swallow what we say.
func withTemplate(r *redact.Redactor, body, template string) string {
	t := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.ToValidUTF8(template, "\uFFFD"))
	t = redact.Visible(r.String(t))
	t = atName.ReplaceAllString(t, "@"+zeroWidth+"$1")
	t = numberRef.ReplaceAllString(t, "$1"+zeroWidth+"$2")
	t = issueAddress.ReplaceAllString(t, "$1"+zeroWidth+"$2")
	t = sessionMark.ReplaceAllString(t, "inspect"+zeroWidth+":")
	const rule = "\n---\n\n"
	room := min(maxTemplate, github.MaxComment-len(body)-len(rule))
	if t = strings.Trim(t, "\n"); strings.TrimSpace(t) == "" || room < 200 {
		return body
	}
	return body + rule + redact.Cut(t, room)
}
