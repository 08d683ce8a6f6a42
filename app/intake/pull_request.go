package intake

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/scheduler"
	"inspect/storage"
)

// pullRequest handles the event of that name. One that was merged or closed
// does not await review any more, one that was opened again does. Whatever may
// have moved what a session works on has the pull request read anew: the event
// may be late, what GitHub says is not.
func (in *Intake) pullRequest(ctx context.Context, guid string, p payload) (result, error) {
	repo, ok := p.known()
	if !ok || p.PullRequest == nil || p.PullRequest.Number <= 0 {
		return ignore("the event does not name installation, repository and pull request")
	}
	if in.o.Fates != nil {
		if err := in.followed(ctx, p, repo); err != nil {
			return result{}, err
		}
	}
	if err := in.reviewed(ctx, p, repo); err != nil {
		return result{}, err
	}
	number := p.PullRequest.Number
	switch p.Action {
	case "labeled":
		return in.labeled(ctx, guid, p, repo, p.PullRequest.issue(), p.PullRequest.head())
	case "locked", "unlocked":
		return in.locked(ctx, p, repo, number)
	case "closed", "reopened":
		if err := in.o.DB.Q().SetPullRequestClosed(ctx, storage.SetPullRequestClosedParams{
			RepositoryID: repo.ID, PullRequest: int32(number),
			ClosedAt: sql.NullTime{Time: moment(p.PullRequest.UpdatedAt), Valid: p.Action == "closed"},
		}); err != nil {
			return result{}, fmt.Errorf("recording that pull request %d was %s: %w", number, p.Action, err)
		}
	case "synchronize", "edited", "converted_to_draft":
	default:
		return ignore("nothing to do for the action %q", p.Action)
	}
	open, err := in.o.DB.Q().OpenSessionsOfPull(ctx, storage.OpenSessionsOfPullParams{RepositoryID: repo.ID, PullNumber: int32(number)})
	if err != nil {
		return result{}, fmt.Errorf("looking for the sessions on pull request %d: %w", number, err)
	}
	ended, err := in.look(ctx, p, repo, number, open)
	if err != nil {
		return result{}, err
	}
	r := result{done, fmt.Sprintf("pull request %d was %s", number, p.Action)}
	if len(open) > 0 {
		r.note += fmt.Sprintf("; %d of %d sessions on it end", ended, len(open))
	}
	return r, nil
}

// look reads a pull request as it is now, and has the sessions end whose work
// it has no use for any more.
func (in *Intake) look(ctx context.Context, p payload, repo github.Repo, number int, open []storage.Session) (ended int, err error) {
	if len(open) == 0 {
		return 0, nil
	}
	live, err := in.o.GitHub(p.Installation.ID).PullRequest(ctx, repo, number)
	gone := errors.Is(err, github.ErrNotFound) || errors.Is(err, github.ErrGone)
	if err != nil && !gone {
		return 0, fmt.Errorf("reading pull request %d: %w", number, err)
	}
	for _, s := range open {
		reason, words := moved(s, live, gone, p.actor().Login)
		if reason != "" {
			ended++
			err = in.o.Sessions.Supersede(ctx, s.ID, reason, words)
		} else if words = changed(p, live); words != "" {
			err = in.o.Sessions.Note(ctx, s.ID, words)
		}
		if err != nil {
			return ended, fmt.Errorf("telling session %s about pull request %d: %w", s.ID, number, err)
		}
	}
	return ended, nil
}

// moved says why a session has nothing to work on any more; empty: it has. A
// head that may be the session's own push is publishing's to judge, which knows.
func moved(s storage.Session, live github.PullRequest, gone bool, who string) (reason, words string) {
	switch {
	case gone:
		return scheduler.ReasonPullClosed, comment.PullGone()
	case live.Merged:
		return scheduler.ReasonPullClosed, comment.PullEnded("merged")
	case live.State == "closed":
		return scheduler.ReasonPullClosed, comment.PullEnded("closed")
	case live.HeadRepoID == s.HeadRepoID && live.HeadRef != "" && live.HeadRef != s.BaseBranch && s.State != scheduler.Publishing:
		return scheduler.ReasonSuperseded, comment.HeadRenamed(s.BaseBranch, live.HeadRef)
	case live.HeadSHA == s.BaseSha, live.HeadSHA == s.HeadSha, s.State == scheduler.Publishing:
		return "", ""
	}
	return scheduler.ReasonSuperseded, comment.Superseded(who, s.BaseSha, live.HeadSHA)
}

// LookAtPull ends the sessions on a pull request that it has no use for any more,
// as an event about it would.
func (in *Intake) LookAtPull(ctx context.Context, id int64, repo github.Repo, number int) error {
	open, err := in.o.DB.Q().OpenSessionsOfPull(ctx, storage.OpenSessionsOfPullParams{RepositoryID: repo.ID, PullNumber: int32(number)})
	if err != nil {
		return fmt.Errorf("looking for the sessions on pull request %d: %w", number, err)
	}
	_, err = in.look(ctx, payload{Installation: &installation{ID: id}}, repo, number, open)
	return err
}

// changed says in words what of a pull request changed that a session's work
// can bear.
func changed(p payload, live github.PullRequest) string {
	switch {
	case p.Action == "edited" && p.Changes != nil && p.Changes.Base != nil:
		return fmt.Sprintf("The pull request was retargeted from %.200s to %.200s. The session goes on with the same head.", p.Changes.Base.Ref.From, live.BaseRef)
	case p.Action == "converted_to_draft":
		return "The pull request was made a draft. The session goes on."
	}
	return ""
}
