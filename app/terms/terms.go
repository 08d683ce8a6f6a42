// Package terms computes anew what a repository says about publishing. In come
// the section that a session was pinned to and the default branch; GitHub is
// asked for the configuration as it stands there now; out goes the stricter of
// both. What was tightened since a session began counts, what was loosened does
// not.
package terms

import (
	"context"
	"errors"
	"fmt"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/envs/spec"
)

// GitHub is what is asked of one installation; *github.Client has it.
type GitHub interface {
	File(ctx context.Context, repo github.Repo, path, ref string) ([]byte, error)
}

// Unusable says that the configuration cannot be used as it stands now, so that
// nobody knows what it forbids.
type Unusable struct {
	Branch string
	Words  string // plain text
}

func (u *Unusable) Error() string {
	return fmt.Sprintf("%s on %s cannot be used: %s", spec.FileName, u.Branch, u.Words)
}

// Now is the publish section that binds a session now. The error is *Unusable if
// the file is there and has problems. It costs one request.
func Now(ctx context.Context, gh GitHub, repo github.Repo, branch string, pinned spec.Publish) (spec.Publish, error) {
	body, err := gh.File(ctx, repo, spec.FileName, branch)
	switch {
	case errors.Is(err, github.ErrNotFound):
		return pinned, nil // nothing says otherwise
	case errors.Is(err, github.ErrTooLarge):
		return pinned, &Unusable{branch, fmt.Sprintf("it has more than %d bytes", spec.MaxFileBytes)}
	case err != nil:
		return pinned, fmt.Errorf("read %s on %s anew: %w", spec.FileName, branch, err)
	}
	sp, problems := spec.Parse(body)
	if len(problems) > 0 {
		return pinned, &Unusable{branch, problems.Error()}
	}
	return policy.StricterPublish(pinned, sp.Publish), nil
}
