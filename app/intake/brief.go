package intake

import (
	"context"
	"fmt"
	"slices"

	agent "inspect/app/context"
	"inspect/app/github"
	"inspect/app/policy"
)

// brief gathers what the agent is told. Title and body are those of the
// delivery; comments count as they were when the wish was expressed.
func (in *Intake) brief(ctx context.Context, w *wish, env environment, base, baseSHA string, t *target, result string) (agent.Built, error) {
	f := agent.Facts{
		Repository: w.repo.Owner + "/" + w.repo.Name, Issue: w.issue.Number,
		Title: w.issue.Title, Body: w.issue.Body, Author: w.issue.User.login(),
		Request: w.command.Text, Requester: w.actor.Login,
		BaseBranch: base, BaseSHA: baseSHA, Place: agent.PlaceOf(env.spec),
	}
	trust := in.truster(ctx, w)
	// The comment that holds the command is one of those counted.
	if t != nil || w.issue.Comments > 1 || w.issue.Comments == 1 && w.kind == kindLabel {
		if err := in.comments(ctx, w, &f, trust); err != nil {
			return agent.Built{}, err
		}
	}
	if t != nil {
		if err := in.pullBrief(ctx, w, t, result, &f, trust); err != nil {
			return agent.Built{}, err
		}
	}
	return agent.Build(f), nil
}

// How many commenters besides the requester GitHub is asked about: each costs a
// request of the session's few. A pull request's has more of them.
const (
	othersAsked     = 1
	othersAskedPull = 5
)

// truster says of whom it is known that they may write.
func (in *Intake) truster(ctx context.Context, w *wish) func(github.Comment) (bool, error) {
	trusted := map[int64]bool{w.actor.ID: true}
	left := othersAsked
	if w.issue.PullRequest != nil {
		left = othersAskedPull
	}
	return func(c github.Comment) (bool, error) {
		ok, known := trusted[c.UserID]
		if known || left == 0 || !mayBeTrusted(c) {
			return ok, nil
		}
		left--
		author, err := in.ask(ctx, w, policy.ActorOf(c.UserID, c.Login))
		if err != nil {
			return false, err
		}
		trusted[c.UserID] = author.Decide(policy.NeedWrite).Allow
		return trusted[c.UserID], nil
	}
}

// comments adds those of people who may write, and counts the rest.
func (in *Intake) comments(ctx context.Context, w *wish, f *agent.Facts, trust func(github.Comment) (bool, error)) error {
	if w.issue.PullRequest != nil {
		ctx = github.OnPull(ctx)
	}
	all, err := in.gh(w).Comments(ctx, w.repo, w.issue.Number)
	if err != nil {
		return fmt.Errorf("reading the comments: %w", err)
	}
	for _, c := range slices.Backward(all) { // the latest speakers are asked about first
		if c.ID == w.comment && w.place == inComment {
			continue
		}
		ok, err := in.admit(w, agent.ItemComment, c, f, trust)
		if err != nil {
			return err
		}
		if ok { // No secret that somebody pasted reaches the agent.
			f.Comments = append(f.Comments, agent.Comment{ID: c.ID, Author: c.Login, At: c.Created, Body: in.o.Redactor.String(c.Body)})
		}
	}
	slices.Reverse(f.Comments)
	return nil
}

// admit says whether what somebody wrote is told to the agent, and records why not.
func (in *Intake) admit(w *wish, kind string, c github.Comment, f *agent.Facts, trust func(github.Comment) (bool, error)) (bool, error) {
	leave := func(reason string) (bool, error) {
		f.Excluded = append(f.Excluded, agent.Item{Kind: kind, ID: c.ID, Author: c.Login, Reason: reason})
		return false, nil
	}
	switch {
	case c.AppID != 0 && c.AppID == in.o.AppID:
		return false, nil // our own
	case c.Bot:
		return leave(agent.ReasonBot)
	case !w.at.IsZero() && c.Created.After(w.at):
		return leave(agent.ReasonLater)
	case !w.at.IsZero() && c.Updated.After(w.at):
		f.Omitted++ // nobody knows what it said then
		return leave(agent.ReasonEdited)
	}
	ok, err := trust(c)
	if err != nil || ok {
		return ok, err
	}
	f.Omitted++
	return leave(agent.ReasonNoWrite)
}

// mayBeTrusted says whether it is worth asking. The association alone decides
// nothing: it lies in both directions.
func mayBeTrusted(c github.Comment) bool {
	switch c.Association {
	case "NONE", "FIRST_TIMER", "FIRST_TIME_CONTRIBUTOR", "MANNEQUIN":
		return false
	}
	return true
}
