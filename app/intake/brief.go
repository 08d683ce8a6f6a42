package intake

import (
	"context"
	"fmt"

	agent "inspect/app/context"
	"inspect/app/github"
	"inspect/app/policy"
)

// brief gathers what the agent is told. Title and body are those of the
// delivery; comments count as they were when the wish was expressed.
func (in *Intake) brief(ctx context.Context, w *wish, env environment, base, baseSHA string) (agent.Built, error) {
	f := agent.Facts{
		Repository: w.repo.Owner + "/" + w.repo.Name, Issue: w.issue.Number,
		Title: w.issue.Title, Body: w.issue.Body, Author: w.issue.User.login(),
		Request: w.command.Text, Requester: w.actor.Login,
		BaseBranch: base, BaseSHA: baseSHA, Place: agent.PlaceOf(env.spec),
	}
	// The comment that holds the command is one of those counted.
	if w.issue.Comments > 1 || w.issue.Comments == 1 && w.kind == kindLabel {
		if err := in.comments(ctx, w, &f); err != nil {
			return agent.Built{}, err
		}
	}
	return agent.Build(f), nil
}

// othersAsked is for how many commenters besides the requester GitHub is asked
// about their permission: each costs a request of the session's few.
const othersAsked = 1

// comments adds those of people who may write, and counts the rest.
func (in *Intake) comments(ctx context.Context, w *wish, f *agent.Facts) error {
	all, err := in.gh(w).Comments(ctx, w.repo, w.issue.Number)
	if err != nil {
		return fmt.Errorf("reading the comments: %w", err)
	}
	trusted := map[int64]bool{w.actor.ID: true}
	asked := 0
	var kept []agent.Comment
	for i := len(all) - 1; i >= 0; i-- { // the latest speakers are asked about first
		c := all[i]
		switch {
		case c.ID == w.comment, c.Bot, c.AppID != 0 && c.AppID == in.o.AppID, !w.at.IsZero() && c.Created.After(w.at):
			continue // not said by a person before the wish
		case !w.at.IsZero() && c.Updated.After(w.at):
			f.Omitted++ // nobody knows what it said then
			continue
		}
		ok, known := trusted[c.UserID]
		if !known && asked < othersAsked && mayBeTrusted(c) {
			asked++
			author, err := in.ask(ctx, w, policy.ActorOf(c.UserID, c.Login))
			if err != nil {
				return err
			}
			ok = author.Decide(policy.NeedWrite).Allow
			trusted[c.UserID] = ok
		}
		if !ok {
			f.Omitted++
			continue
		}
		// No secret that somebody pasted reaches the agent.
		kept = append(kept, agent.Comment{ID: c.ID, Author: c.Login, At: c.Created, Body: in.o.Redactor.String(c.Body)})
	}
	for i := len(kept) - 1; i >= 0; i-- {
		f.Comments = append(f.Comments, kept[i])
	}
	return nil
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
