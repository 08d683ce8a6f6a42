package publish

import (
	"context"
	"errors"
	"fmt"

	"inspect/app/github"
	"inspect/storage"
)

// pullRequest finds or creates the one draft pull request of the session.
func (p *Publisher) pullRequest(ctx context.Context, j *job, n github.NewPullRequest) (github.PullRequest, error) {
	s := j.session
	step, err := p.steps.Begin(ctx, s.ID, 0, "pull")
	if err != nil {
		return github.PullRequest{}, err
	}
	if step.Repeated || s.PullRequest != 0 {
		pr, found, err := j.github.FindPullRequest(ctx, j.repo, n.Head)
		if err != nil {
			return pr, fmt.Errorf("look for the pull request of %s: %w", n.Head, err)
		}
		if found {
			return pr, p.pulled(ctx, j, step, pr)
		}
	}
	pr, err := j.github.CreatePullRequest(github.ForSession(ctx, s.ID, step.Key()), j.repo, n)
	switch {
	case err == nil:
		return pr, p.pulled(ctx, j, step, pr)
	case errors.Is(err, github.ErrAmbiguous), errors.Is(err, github.ErrExists):
		pr, found, ferr := j.github.FindPullRequest(ctx, j.repo, n.Head)
		if ferr != nil {
			return pr, fmt.Errorf("look for the pull request of %s: %w", n.Head, ferr)
		}
		if found {
			return pr, p.pulled(ctx, j, step, pr)
		}
		return pr, fmt.Errorf("create the pull request of %s: %w", n.Head, err)
	case errors.Is(err, github.ErrInvalid), errors.Is(err, github.ErrDenied), errors.Is(err, github.ErrForbidden):
		return pr, refuse(ReasonPullRefused, "The work is on the branch %s, but GitHub refused the draft pull request: %s", n.Head, sentence(said(err)))
	}
	return pr, err
}

func (p *Publisher) pulled(ctx context.Context, j *job, step *Step, pr github.PullRequest) error {
	err := p.db.Q().SetSessionPullRequest(ctx, storage.SetSessionPullRequestParams{ID: j.session.ID, PullRequest: int32(pr.Number)})
	if err != nil {
		return fmt.Errorf("record pull request %d: %w", pr.Number, err)
	}
	return step.End(ctx, map[string]any{"number": pr.Number, "url": pr.URL})
}

// said is what GitHub answered, without what we tried.
func said(err error) string {
	var e *github.Error
	if errors.As(err, &e) && e.Message != "" {
		return e.Message
	}
	return err.Error()
}
