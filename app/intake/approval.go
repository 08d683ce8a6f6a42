package intake

import (
	"context"

	"inspect/app/approve"
	"inspect/app/command"
	"inspect/app/comment"
	"inspect/app/terms"
	"inspect/scheduler"
	"inspect/storage"
)

// desk takes answers and requests.
func (in *Intake) desk() *approve.Desk {
	return &approve.Desk{
		DB: in.o.DB, Sessions: in.o.Sessions, Floor: in.o.Floor, GitHub: func(installation int64) terms.GitHub { return in.o.GitHub(installation) },
	}
}

// answerWaiting answers what waits for approval in the session of an issue.
func (in *Intake) answerWaiting(ctx context.Context, w *wish) error {
	s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, w.issue.Number)
	if err == nil && !found {
		s, found, err = in.lastSession(ctx, w) // an earlier try may have ended it
	}
	if err != nil {
		return err
	}
	if !found {
		return in.end(ctx, w, outcomeReplied, comment.NoSession())
	}
	return in.given(ctx, w, s, approve.Given{
		Session: s.ID, Digest: w.command.Arg, Approve: w.command.Name == command.Approve, Actor: w.actor, How: scheduler.ByCommand, At: w.at,
	})
}

// given takes an answer and shows that it was seen, or says why it does not count.
func (in *Intake) given(ctx context.Context, w *wish, s storage.Session, g approve.Given) error {
	words, err := in.desk().Answer(ctx, g)
	if err != nil {
		return err
	}
	if words == "" && w.kind == kindCommand {
		if err := in.react(ctx, w); err != nil {
			return err
		}
	}
	return in.endWith(ctx, w, outcomeReplied, words, s.ID, false)
}

// askMore asks for a host or a budget beyond what the session on an issue has.
func (in *Intake) askMore(ctx context.Context, w *wish) error {
	s, ok, err := in.atWork(ctx, w)
	if err != nil || !ok {
		return err
	}
	if w.command.Name == command.Allow && s.PullNumber > 0 && s.HeadRepoID != s.RepositoryID {
		return in.end(ctx, w, outcomeReplied, comment.NoAllowForFork())
	}
	ask := in.desk().Host
	if w.command.Name == command.Budget {
		ask = in.desk().Budget
	}
	words, err := ask(ctx, s.ID, w.command.Arg, w.actor)
	if err != nil {
		return err
	}
	return in.endWith(ctx, w, outcomeReplied, words, s.ID, false)
}

// atWork is the session that is at work on the issue; without one the wish ends.
func (in *Intake) atWork(ctx context.Context, w *wish) (storage.Session, bool, error) {
	s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, w.issue.Number)
	if err != nil {
		return s, found, err
	}
	if found {
		younger, err := in.younger(ctx, s, w)
		if err == nil && younger {
			err = in.end(ctx, w, outcomeReplied, comment.Younger(s.ID, in.o.SessionURL(s.ID)))
		}
		return s, !younger, err
	}
	last, any, err := in.lastSession(ctx, w)
	if err != nil {
		return s, false, err
	}
	if !any {
		return s, false, in.end(ctx, w, outcomeReplied, comment.NoSession())
	}
	return s, false, in.end(ctx, w, outcomeReplied, comment.Over(last.ID, in.o.SessionURL(last.ID), string(last.State)))
}
