// Package authority says what an account may do in a repository at this very
// moment. Every way in asks it and nothing else: comments, labels, buttons,
// re-runs, pages, and once more the push. In come an account and a repository,
// GitHub is asked, package policy decides. Nothing is remembered: a permission
// that was taken away counts at the next question.
package authority

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"inspect/app/github"
	"inspect/app/policy"
)

// GitHub is what is asked of one installation; *github.Client has it.
type GitHub interface {
	Permission(ctx context.Context, repo github.Repo, login string) (github.Permission, error)
	// AppID is the number of the App with that slug, 0 if there is none.
	AppID(ctx context.Context, slug string) (int64, error)
}

// Judge decides. It is safe for concurrent use.
type Judge struct {
	// OwnAppID is our App: what it does starts nothing.
	OwnAppID int64
	// AllowedApps are the numbers of Apps whose bots count as having write
	// access. GitHub tells no permission of a bot, so whoever runs Inspect does.
	AllowedApps []int64
	// Pipelines says what the operator's policy has of a pipeline of Buildkite now.
	// nil: no pipeline may ask for anything.
	Pipelines func(policy.PipelineID) (policy.Pipeline, bool)
}

// DecidePipeline says whether a pipeline may have act done in a repository. It is
// no person and GitHub knows nothing of it: the operator's policy as it is now
// decides, with what is known of the build.
func (j Judge) DecidePipeline(id policy.PipelineID, repo github.Repo, act string, b policy.BuildFacts) policy.ActorDecision {
	if j.Pipelines == nil {
		return policy.DecidePipeline(policy.Pipeline{}, false, repo.ID, repo.Owner+"/"+repo.Name, act, b)
	}
	p, found := j.Pipelines(id)
	return policy.DecidePipeline(p, found, repo.ID, repo.Owner+"/"+repo.Name, act, b)
}

// Known is what was found out about an actor: who he is and what he may do.
type Known struct {
	Actor      policy.Actor
	Permission policy.Permission
	rules      policy.ActorRules
}

// Decide says whether the actor may do what needs need.
func (k Known) Decide(need policy.Need) policy.ActorDecision {
	return policy.DecideActor(k.Actor, k.Permission, need, k.rules)
}

// Decide asks what an actor may do and decides. The error is that of Ask.
func (j Judge) Decide(ctx context.Context, g GitHub, repo github.Repo, a policy.Actor, need policy.Need) (policy.ActorDecision, error) {
	k, err := j.Ask(ctx, g, repo, a)
	if err != nil {
		return policy.ActorDecision{Reason: policy.ActorNotChecked, Words: "the permission of the actor could not be learned"}, err
	}
	return k.Decide(need), nil
}

// Ask finds out what an actor may do now. A permission is not known, which
// allows nothing, when the login belongs to another account by now. With an
// error everything is denied; whether asking again may help is the caller's to
// tell from it.
func (j Judge) Ask(ctx context.Context, g GitHub, repo github.Repo, a policy.Actor) (Known, error) {
	k := Known{Actor: a, rules: policy.ActorRules{OwnAppID: j.OwnAppID, AllowedApps: j.AllowedApps}}
	if a.Bot && a.App == 0 && len(j.AllowedApps) > 0 {
		slug := strings.TrimSuffix(a.Login, "[bot]")
		id, err := g.AppID(ctx, slug)
		if err != nil && !errors.Is(err, github.ErrNotFound) {
			return k, fmt.Errorf("asking which App %s belongs to: %w", a.Login, err)
		}
		k.Actor.App = id
	}
	if _, denied := policy.IgnoreActor(k.Actor, k.rules); denied {
		return k, nil // no question is spent on it
	}
	if a.Bot { // one of AllowedApps
		k.Permission = policy.Permission{Known: true, Read: true, Write: true}
		return k, nil
	}
	p, err := g.Permission(ctx, repo, a.Login)
	switch {
	case err != nil:
		return k, fmt.Errorf("asking what %s may do: %w", a.Login, err)
	case p.UserID != 0 && p.UserID != a.ID:
		return k, nil
	}
	k.Permission = policy.Permission{Known: true, Read: p.Read, Write: p.Write}
	return k, nil
}
