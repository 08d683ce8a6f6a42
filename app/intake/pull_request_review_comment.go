package intake

import "context"

// pullRequestReviewComment handles the event of that name: commands in a new
// comment on a line.
func (in *Intake) pullRequestReviewComment(ctx context.Context, guid string, p payload) (result, error) {
	if p.Action != "created" {
		return ignore("commands are read from new comments only, this one was %s", p.Action)
	}
	repo, ok := p.known()
	if !ok || p.PullRequest == nil || p.PullRequest.Number <= 0 || p.Comment == nil || p.Comment.ID <= 0 {
		return ignore("the event does not name installation, repository, pull request and comment")
	}
	if in.o.Fates != nil {
		if err := in.looked(ctx, p, repo); err != nil {
			return result{}, err
		}
	}
	return in.commands(ctx, guid, p, repo, said{
		kind: inRemark, id: p.Comment.ID, body: p.Comment.Body, author: p.Comment.User, app: p.Comment.app(), at: p.Comment.CreatedAt,
		on: p.PullRequest.issue(), head: p.PullRequest.head(),
	})
}
