package intake

import (
	"context"
	"fmt"

	"inspect/app/command"
)

// pullRequestReview handles the event of that name: who has to approve a pull
// request is looked at anew, and commands are read from the text of a new review.
func (in *Intake) pullRequestReview(ctx context.Context, guid string, p payload) (result, error) {
	repo, ok := p.known()
	if !ok || p.PullRequest == nil || p.PullRequest.Number <= 0 {
		return ignore("the event does not name installation, repository and pull request")
	}
	switch p.Action {
	case "submitted", "dismissed", "edited":
	default:
		return ignore("nothing to do for the action %q", p.Action)
	}
	if in.o.Fates != nil {
		if err := in.looked(ctx, p, repo); err != nil {
			return result{}, err
		}
	}
	if err := in.lookAtReview(ctx, p.Installation.ID, repo, p.PullRequest.Number); err != nil {
		return result{}, err
	}
	if _, none := command.Parse(p.Review.text())[0].(command.Ignore); none || p.Action != "submitted" || p.Review.ID <= 0 {
		return result{done, fmt.Sprintf("a review of pull request %d was %s", p.PullRequest.Number, p.Action)}, nil
	}
	return in.commands(ctx, guid, p, repo, said{
		kind: inReview, id: p.Review.ID, body: p.Review.Body, author: p.Review.User, app: p.Review.app(), at: p.Review.SubmittedAt,
		on: p.PullRequest.issue(), head: p.Review.CommitID,
	})
}
