package intake

import "context"

// issueComment handles the event of that name: commands in a new comment.
func (in *Intake) issueComment(ctx context.Context, guid string, p payload) (result, error) {
	if p.Action != "created" {
		return ignore("commands are read from new comments only, this one was %s", p.Action)
	}
	repo, ok := p.known()
	if !ok || p.Issue == nil || p.Issue.Number <= 0 || p.Comment == nil || p.Comment.ID <= 0 {
		return ignore("the event does not name installation, repository, issue and comment")
	}
	return in.commands(ctx, guid, p, repo, said{
		kind: inComment, id: p.Comment.ID, body: p.Comment.Body, author: p.Comment.User, app: p.Comment.app(), at: p.Comment.CreatedAt, on: *p.Issue,
	})
}
