package intake

import (
	"context"
	"database/sql"
	"fmt"

	"inspect/storage"
)

// pullRequest handles the event of that name. One that was merged or closed
// does not await review any more, one that was opened again does.
func (in *Intake) pullRequest(ctx context.Context, p payload) (result, error) {
	repo, ok := p.known()
	if !ok || p.PullRequest == nil || p.PullRequest.Number <= 0 {
		return ignore("the event does not name installation, repository and pull request")
	}
	if err := in.reviewed(ctx, p, repo); err != nil {
		return result{}, err
	}
	if p.Action != "closed" && p.Action != "reopened" {
		return ignore("nothing to do for the action %q", p.Action)
	}
	if err := in.o.DB.Q().SetPullRequestClosed(ctx, storage.SetPullRequestClosedParams{
		RepositoryID: repo.ID, PullRequest: int32(p.PullRequest.Number),
		ClosedAt: sql.NullTime{Time: moment(p.PullRequest.UpdatedAt), Valid: p.Action == "closed"},
	}); err != nil {
		return result{}, fmt.Errorf("recording that pull request %d was %s: %w", p.PullRequest.Number, p.Action, err)
	}
	return result{done, fmt.Sprintf("pull request %d was %s", p.PullRequest.Number, p.Action)}, nil
}
