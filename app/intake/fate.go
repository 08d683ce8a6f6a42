package intake

import (
	"context"
	"strconv"
	"time"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/measure"
)

// Fates follows pull requests; *fate.Desk has it.
type Fates interface {
	Saw(ctx context.Context, repo github.Repo, p fate.Pull, events ...measure.Event) error
	Reverts(ctx context.Context, repo github.Repo, by int, body string, at time.Time) error
	IssueReopened(ctx context.Context, repo github.Repo, issue int, at time.Time) error
	Landed(ctx context.Context, installation int64, repo github.Repo, branch string, commits []measure.Commit) error
}

var _ Fates = (*fate.Desk)(nil)

// pull of an event, as package fate knows it.
func (p *pulled) pull() fate.Pull {
	out := fate.Pull{Number: p.Number, HeadSHA: storable(p.head(), 64)}
	if p.Head != nil {
		out.HeadRef = storable(p.Head.Ref, 300)
	}
	if p.Base != nil {
		out.BaseRef = storable(p.Base.Ref, 300)
	}
	return out
}

// followed has what an event about a pull request tells recorded.
func (in *Intake) followed(ctx context.Context, p payload, repo github.Repo) error {
	pull, actor, at := p.PullRequest.pull(), p.actor(), moment(p.PullRequest.UpdatedAt)
	e := measure.Event{Key: strconv.FormatInt(at.Unix(), 10), At: at, Actor: actor.ID, Login: storable(actor.Login, 100), Bot: actor.Bot, SHA: pull.HeadSHA}
	switch p.Action {
	case "opened":
		e.Kind, e.Key = measure.Opened, ""
		if made := moment(p.PullRequest.CreatedAt); !made.IsZero() {
			e.At = made
		}
	case "ready_for_review", "review_requested":
		e.Kind = measure.Ready
	case "reopened":
		e.Kind = measure.Reopened
	case "synchronize":
		e = fate.Pushed(storable(p.Before, 64), storable(p.After, 64), e.Actor, e.Login, e.Bot, at)
	case "edited":
		if p.Changes == nil || p.Changes.Base == nil {
			return nil
		}
		pull.Retargeted = at
		return in.o.Fates.Saw(ctx, repo, pull)
	case "closed":
		end := fate.Ended(github.PullRequest{
			Merged: p.PullRequest.Merged || p.PullRequest.MergedAt != "", MergedAt: moment(p.PullRequest.MergedAt), ClosedAt: moment(p.PullRequest.ClosedAt), MergeSHA: storable(p.PullRequest.MergeSHA, 64),
		})
		end.Actor, end.Login, end.Bot = e.Actor, e.Login, e.Bot
		if end.Kind == measure.Merged {
			if err := in.o.Fates.Reverts(ctx, repo, pull.Number, p.PullRequest.Body, end.At); err != nil {
				return err
			}
		}
		e = end
	default:
		return nil
	}
	return in.o.Fates.Saw(ctx, repo, pull, e)
}

// looked has a review, or a comment of one on a line, recorded.
func (in *Intake) looked(ctx context.Context, p payload, repo github.Repo) error {
	actor := p.actor()
	var e measure.Event
	switch {
	case p.Review != nil && p.Review.ID > 0 && p.Action == "submitted":
		e = fate.Reviewed(p.Review.ID, actor.ID, storable(actor.Login, 100), actor.Bot, storable(p.Review.CommitID, 64), moment(p.Review.SubmittedAt))
	case p.Comment != nil && p.Comment.ID > 0 && p.Action == "created":
		e = measure.Event{
			Kind: measure.Remark, Key: strconv.FormatInt(p.Comment.ID, 10), At: moment(p.Comment.CreatedAt), Actor: actor.ID, Login: storable(actor.Login, 100), Bot: actor.Bot,
		}
	default:
		return nil
	}
	return in.o.Fates.Saw(ctx, repo, p.PullRequest.pull(), e)
}

// maxLanded commits of one push are looked at.
const maxLanded = 500

// landed has the commits of a push looked through.
func (in *Intake) landed(ctx context.Context, p payload, repo github.Repo, branch string) error {
	var list []measure.Commit
	for _, c := range p.Commits[:min(len(p.Commits), maxLanded)] {
		list = append(list, measure.Commit{
			SHA: storable(c.ID, 64), Message: c.Message, At: moment(c.Timestamp), Paths: append(append(append([]string{}, c.Added...), c.Modified...), c.Removed...),
		})
	}
	err := in.o.Fates.Landed(ctx, p.Installation.ID, repo, storable(branch, 300), list)
	if err != nil && final(err) {
		in.log.Warn("what landed on a branch cannot be looked through", "repository", repo.ID, "branch", branch, "error", err)
		return nil
	}
	return err
}
