package intake

import (
	"context"
	"fmt"

	"inspect/app/command"
	"inspect/app/comment"
	"inspect/app/policy"
)

// issueComment handles the event of that name: commands in a new comment.
func (in *Intake) issueComment(ctx context.Context, guid string, p payload) (result, error) {
	if p.Action != "created" {
		return ignore("commands are read from new comments only, this one was %s", p.Action)
	}
	repo, ok := p.known()
	if !ok || p.Issue == nil || p.Issue.Number <= 0 || p.Comment == nil || p.Comment.ID <= 0 {
		return ignore("the event does not name installation, repository, issue and comment")
	}
	actor := p.actor()
	actor.App = p.Comment.app()
	if author := p.Comment.User; author == nil || author.ID != actor.ID {
		return ignore("the sender is not the comment's author")
	}
	parsed := command.Parse(p.Comment.Body)
	if _, none := parsed[0].(command.Ignore); none {
		return ignore("no command")
	}
	wishes := make([]*wish, 0, len(parsed))
	keys := make([]string, 0, len(parsed))
	known := &asked{}
	for _, one := range parsed {
		w := &wish{
			kind: kindCommand, guid: guid, installation: p.Installation, repo: repo, repository: p.Repository, issue: *p.Issue,
			actor: actor, asked: known, need: policy.NeedWrite, at: moment(p.Comment.CreatedAt), comment: p.Comment.ID,
		}
		switch one := one.(type) {
		case command.Command:
			w.key, w.command = commandKey(p.Comment.ID, one.Index), one
			if info, ok := command.Lookup(one.Name); ok && info.Who == command.Read {
				w.need = policy.NeedRead
			}
		case command.Reply:
			w.key, w.wrong = commandKey(p.Comment.ID, one.Index), one.Words
		}
		wishes, keys = append(wishes, w), append(keys, w.key)
	}
	for _, w := range wishes {
		if err := in.work(ctx, w); err != nil {
			return result{}, err
		}
	}
	return in.settle(ctx, wishes[0].asker(), fmt.Sprintf("comment-%d", p.Comment.ID), keys)
}

func commandKey(id int64, index int) string { return fmt.Sprintf("comment:%d:%d", id, index) }

// obey does what a command other than a request asks.
func (in *Intake) obey(ctx context.Context, w *wish) error {
	switch name := w.command.Name; name {
	case command.Help:
		// One for each issue: asking twice gets the same comment.
		if err := in.reply(ctx, w.asker(), "help", command.Table()); err != nil {
			return err
		}
		return in.end(ctx, w, outcomeReplied, "")
	case command.Status:
		return in.status(ctx, w)
	case command.Stop:
		return in.stop(ctx, w)
	case command.Approve, command.Reject:
		return in.answerWaiting(ctx, w)
	case command.Allow, command.Budget:
		return in.askMore(ctx, w)
	default:
		return in.end(ctx, w, outcomeReplied, comment.NotSupported(command.Trigger+" "+name))
	}
}

// status brings the session's own comment up to date; the answer is there.
func (in *Intake) status(ctx context.Context, w *wish) error {
	s, found, err := in.lastSession(ctx, w)
	if err != nil {
		return err
	}
	if !found {
		// Whoever can read may ask, so this is said once for each issue.
		if err := in.reply(ctx, w.asker(), "no-session", comment.NoSession()); err != nil {
			return err
		}
		return in.end(ctx, w, outcomeReplied, "")
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	return in.endWith(ctx, w, outcomeReplied, "", s.ID, true)
}

// stop ends the session that is at work on the issue.
func (in *Intake) stop(ctx context.Context, w *wish) error {
	s, ok, err := in.atWork(ctx, w)
	if err != nil || !ok {
		return err
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	if err := in.o.Sessions.Stop(ctx, s.ID, w.actor.Login, ""); err != nil {
		return fmt.Errorf("stopping session %s: %w", s.ID, err)
	}
	return in.endWith(ctx, w, outcomeReplied, "", s.ID, false)
}
