package intake

import "context"

// pullRequestReview handles the event of that name: commands in the text of a
// new review.
func (in *Intake) pullRequestReview(ctx context.Context, guid string, p payload) (result, error) {
	if p.Action != "submitted" {
		return ignore("commands are read from new reviews only, this one was %s", p.Action)
	}
	repo, ok := p.known()
	if !ok || p.PullRequest == nil || p.PullRequest.Number <= 0 || p.Review == nil || p.Review.ID <= 0 {
		return ignore("the event does not name installation, repository, pull request and review")
	}
	return in.commands(ctx, guid, p, repo, said{
		kind: inReview, id: p.Review.ID, body: p.Review.Body, author: p.Review.User, app: p.Review.App, at: p.Review.SubmittedAt,
		on: p.PullRequest.issue(), head: p.Review.CommitID,
	})
}
