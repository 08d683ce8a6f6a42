package intake

import (
	"context"
	"fmt"

	"inspect/app/github"
	"inspect/scheduler"
	"inspect/storage"
)

// Reviews keeps the check run about independent reviews; *review.Desk has it.
type Reviews interface {
	Look(ctx context.Context, installation int64, repo github.Repo, pull int) error
	GroupAgain(ctx context.Context, installation int64, repo github.Repo, headSHA string) error
	MergeGroup(ctx context.Context, installation int64, repo github.Repo, headSHA, headRef, baseRef string) error
}

// reviewed looks at a pull request after something happened to it that may
// change who has to approve it.
func (in *Intake) reviewed(ctx context.Context, p payload, repo github.Repo) error {
	switch p.Action {
	case "opened", "reopened", "ready_for_review":
	case "synchronize":
		if err := in.pusher(ctx, p, repo); err != nil {
			return err
		}
	case "edited":
		if p.Changes == nil || p.Changes.Base == nil {
			return nil
		}
	default:
		return nil
	}
	return in.lookAtReview(ctx, p.Installation.ID, repo, p.PullRequest.Number)
}

func (in *Intake) lookAtReview(ctx context.Context, installation int64, repo github.Repo, pull int) error {
	if in.o.Reviews == nil {
		return nil
	}
	err := in.o.Reviews.Look(ctx, installation, repo, pull)
	if err != nil && final(err) {
		in.log.Warn("the independent review of a pull request cannot be told", "repository", repo.ID, "pull", pull, "error", err)
		return nil
	}
	return err
}

// pusher makes whoever pushed onto a branch of ours a requester: what is there
// now is partly his.
func (in *Intake) pusher(ctx context.Context, p payload, repo github.Repo) error {
	actor := p.actor()
	if actor.ID <= 0 || actor.Bot {
		return nil
	}
	ref, sha := "", ""
	if h := p.PullRequest.Head; h != nil {
		ref, sha = h.Ref, h.SHA
	}
	err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		sessions, err := tx.Q().SessionsOfPull(ctx, storage.SessionsOfPullParams{
			RepositoryID: repo.ID, PullRequest: int32(p.PullRequest.Number), HeadRef: ref, HeadSha: sha,
		})
		if err != nil {
			return err
		}
		for _, s := range sessions {
			if err := scheduler.AddPerson(ctx, tx, s.ID, scheduler.Person{ID: actor.ID, Login: actor.Login}, scheduler.RolePushed, moment(p.PullRequest.UpdatedAt)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("recording who pushed to pull request %d: %w", p.PullRequest.Number, err)
	}
	return nil
}

// mergeGroup handles the event of that name: a merge queue asks for checks.
func (in *Intake) mergeGroup(ctx context.Context, p payload) (result, error) {
	repo, ok := p.known()
	if !ok || p.MergeGroup == nil || p.MergeGroup.HeadSHA == "" {
		return ignore("the event does not name installation, repository and merge group")
	}
	if p.Action != "checks_requested" || in.o.Reviews == nil {
		return ignore("nothing to do for the action %q", p.Action)
	}
	g := p.MergeGroup
	err := in.o.Reviews.MergeGroup(ctx, p.Installation.ID, repo, g.HeadSHA, g.HeadRef, g.BaseRef)
	if err != nil && final(err) {
		return result{done, "the merge group cannot be answered: " + err.Error()}, nil
	}
	if err != nil {
		return result{}, err
	}
	return result{done, "the merge group was looked at"}, nil
}
