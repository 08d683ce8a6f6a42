// Package approve is where people ask for more than a session has, and where
// their answers to what waits come in: from comments, buttons and pages alike.
// In comes what somebody wants, of whom the caller has learnt that he may write
// to the repository now; out go the scheduler's act and words for him, as
// Markdown. What may be asked for at all is decided by the operator's policy,
// each time anew.
package approve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/app/terms"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// Sessions is what is asked of the scheduler; *scheduler.Scheduler has it.
type Sessions interface {
	Answer(ctx context.Context, n scheduler.Answer) error
	Request(ctx context.Context, session, kind string, asked scheduler.Asked, words string, by scheduler.Person) (storage.Approval, error)
}

// Desk takes answers and requests. It may be used by several at once.
type Desk struct {
	DB       *storage.DB
	Sessions Sessions
	// Floor says what binds a repository, or false if it may not use Inspect.
	Floor func(repositoryID int64, ownerName string) (policy.Bounds, bool)
	// GitHub gives the client of an installation, which the repository's
	// configuration is read with as it is when somebody answers. nil: there is no
	// forge, the pinned one counts.
	GitHub func(installation int64) terms.GitHub
}

// Given is an answer as it comes in.
type Given struct {
	Session string
	Digest  string // the first digits of what is answered; empty: of the only one
	Approve bool
	Actor   policy.Actor // may write to the repository
	How     string       // scheduler.ByCommand, …
	At      time.Time    // when it was given: one that was taken since is not missed
}

// Answer takes an answer. Words say why it does not count; they are empty if it
// was taken.
func (d *Desk) Answer(ctx context.Context, g Given) (words string, err error) {
	if g.Actor.Bot {
		return comment.BotsDoNotAnswer(), nil
	}
	q := d.DB.Q()
	row, bounds, sp, err := d.session(ctx, g.Session)
	if err != nil {
		return "", err
	}
	pending, err := scheduler.Approvals(ctx, q, g.Session)
	if err != nil {
		return "", err
	}
	a, found, several := scheduler.PickApproval(pending, g.Digest)
	switch {
	case several:
		return comment.Several(waiting(pending)), nil
	case !found:
		if taken, err := d.taken(ctx, g); err != nil || taken {
			return "", err
		}
		return comment.NothingWaits(g.Digest, waiting(pending)), nil
	}
	if g.Approve {
		if err := within(a, bounds); err != nil {
			return beyond(err)
		}
		var broken *terms.Unusable
		if sp.Publish, err = d.terms(ctx, row, sp.Publish); errors.As(err, &broken) {
			return comment.Unusable(broken.Error()), nil
		} else if err != nil {
			return "", err
		}
	}
	asked, err := scheduler.ReadAsked(a)
	if err != nil {
		return "", err
	}
	another := slices.ContainsFunc(asked.Items, func(i scheduler.AskedItem) bool { return policy.NeedsAnother(i.Reason) })
	err = d.Sessions.Answer(ctx, scheduler.Answer{
		Session: row.ID, Approval: a.ID, Approve: g.Approve, By: scheduler.Person{ID: g.Actor.ID, Login: g.Actor.Login}, How: g.How,
		FourEyes: sp.Publish.FourEyes || bounds.FourEyes() || another,
	})
	switch {
	case errors.Is(err, scheduler.ErrRequester):
		return comment.FourEyes(), nil
	case errors.Is(err, scheduler.ErrExpired):
		return comment.Expired(), nil
	case errors.Is(err, scheduler.ErrNotPending):
		return comment.NothingWaits(g.Digest, nil), nil
	case err != nil:
		return "", fmt.Errorf("taking an answer in session %s: %w", row.ID, err)
	}
	return "", nil
}

// terms are what binds publishing when somebody answers.
func (d *Desk) terms(ctx context.Context, row storage.Session, pinned spec.Publish) (spec.Publish, error) {
	if d.GitHub == nil {
		return pinned, nil
	}
	place, err := d.DB.Q().PublishPlace(ctx, row.RepositoryID)
	if err != nil {
		return pinned, fmt.Errorf("reading the repository of session %s: %w", row.ID, err)
	}
	repo := github.Repo{ID: place.ID, Owner: place.Owner, Name: place.Name}
	return terms.Now(ctx, d.GitHub(place.InstallationID), repo, place.DefaultBranch, pinned)
}

// clockSkew is how far GitHub's clock may be ahead of ours.
const clockSkew = time.Minute

// taken says whether this very answer was taken by an earlier try.
func (d *Desk) taken(ctx context.Context, g Given) (bool, error) {
	if g.At.IsZero() {
		return false, nil
	}
	mine, err := d.DB.Q().AnsweredSince(ctx, storage.AnsweredSinceParams{SessionID: g.Session, ByID: g.Actor.ID, Since: g.At.Add(-clockSkew)})
	if err != nil {
		return false, fmt.Errorf("looking for an answer in session %s: %w", g.Session, err)
	}
	return slices.ContainsFunc(mine, func(a storage.Approval) bool {
		return (a.State != scheduler.ApprovalRejected) == g.Approve && strings.HasPrefix(a.Digest, strings.TrimPrefix(strings.ToLower(g.Digest), "sha256:"))
	}), nil
}

// Host asks for a further host that a session may reach.
func (d *Desk) Host(ctx context.Context, session, host string, actor policy.Actor) (words string, err error) {
	host = strings.ToLower(host)
	if problem := spec.EgressProblem(host); problem != "" {
		return comment.BadHost(host, problem), nil
	}
	_, bounds, sp, err := d.session(ctx, session)
	if err != nil {
		return "", err
	}
	if slices.Contains(sp.DeclaredEgress(), host) {
		return comment.AllowedAlready(host), nil
	}
	if err := bounds.Host(host); err != nil {
		return beyond(err)
	}
	return d.request(ctx, session, scheduler.ApproveEgress, scheduler.Asked{Host: host}, actor)
}

// Budget asks for a higher budget, in US dollars as a person writes them.
func (d *Desk) Budget(ctx context.Context, session, usd string, actor policy.Actor) (words string, err error) {
	money, err := spec.ParseMoney(usd)
	if err != nil || money <= 0 {
		return comment.BadAmount(usd), nil
	}
	row, bounds, _, err := d.session(ctx, session)
	if err != nil {
		return "", err
	}
	if int64(money) <= row.Budget {
		return comment.HasBudget(row.Budget), nil
	}
	if err := bounds.Budget(money); err != nil {
		return beyond(err)
	}
	return d.request(ctx, session, scheduler.ApproveBudget, scheduler.Asked{Budget: int64(money)}, actor)
}

func (d *Desk) request(ctx context.Context, session, kind string, asked scheduler.Asked, actor policy.Actor) (string, error) {
	a, err := d.Sessions.Request(ctx, session, kind, asked, Words(kind, asked), scheduler.Person{ID: actor.ID, Login: actor.Login})
	switch {
	case errors.Is(err, scheduler.ErrWorkOver):
		return comment.WorkOver(), nil
	case errors.Is(err, scheduler.ErrAsked):
		return comment.AskedAlready(One(a)), nil
	case err != nil:
		return "", fmt.Errorf("asking in session %s: %w", session, err)
	}
	return comment.Asked(One(a)), nil
}

// session is a session as it is now, with what binds its repository now.
func (d *Desk) session(ctx context.Context, id string) (s storage.Session, b policy.Bounds, sp spec.Spec, err error) {
	q := d.DB.Q()
	if s, err = q.PublishSession(ctx, id); err != nil {
		return s, b, sp, fmt.Errorf("reading session %s: %w", id, err)
	}
	if err = json.Unmarshal(s.Spec, &sp); err != nil {
		return s, b, sp, fmt.Errorf("reading the pinned configuration of session %s: %w", id, err)
	}
	place, err := q.PublishPlace(ctx, s.RepositoryID)
	if err != nil {
		return s, b, sp, fmt.Errorf("reading the repository of session %s: %w", id, err)
	}
	b, _ = d.Floor(place.ID, place.Owner+"/"+place.Name)
	return s, b, sp, nil
}

// within is a *policy.BeyondError if the operator allows less by now than is asked.
func within(a storage.Approval, b policy.Bounds) error {
	asked, err := scheduler.ReadAsked(a)
	if err != nil {
		return err
	}
	switch a.Kind {
	case scheduler.ApproveEgress:
		return b.Host(asked.Host)
	case scheduler.ApproveBudget:
		return b.Budget(spec.Money(asked.Budget))
	}
	return nil
}

func beyond(err error) (string, error) {
	var e *policy.BeyondError
	if errors.As(err, &e) {
		return comment.BeyondOperator(e), nil
	}
	return "", err
}

// Words say what is asked for, as plain text.
func Words(kind string, asked scheduler.Asked) string {
	switch kind {
	case scheduler.ApproveEgress:
		return "Whether the session may reach " + asked.Host + "."
	case scheduler.ApproveBudget:
		return "Whether the session may spend " + spec.Money(asked.Budget).String() + "."
	}
	return ""
}

// One is an approval as the comment tells of it.
func One(a storage.Approval) comment.Approval {
	out := comment.Approval{Kind: a.Kind, Words: a.Words, Digest: a.Digest, By: a.AskedLogin, Until: a.ExpiresAt}
	if asked, err := scheduler.ReadAsked(a); err == nil {
		for _, i := range asked.Items {
			out.Items = append(out.Items, i.What)
		}
		out.More, out.Host, out.Budget = asked.More, asked.Host, asked.Budget
	}
	if a.AnsweredAt.Valid {
		out.AnsweredBy = a.AnsweredLogin
	}
	return out
}

func waiting(all []storage.Approval) (out []comment.Approval) {
	for _, a := range all {
		out = append(out, One(a))
	}
	return out
}
