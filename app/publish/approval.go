package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// maxItems of a question are kept; its digest is over all of them.
const maxItems = 100

// question is an error that says what a person has to allow first.
type question struct{ scheduler.Ask }

func (q *question) Error() string { return q.Words }

// allowed asks a person about what the verdict asks for, unless exactly this was
// allowed: the same work, under the same rules, on the same commits, by somebody
// who may still answer.
func (p *Publisher) allowed(ctx context.Context, j *job, branch string, rules policy.Rules) error {
	items := j.verdict.Ask
	if len(items) == 0 {
		return nil
	}
	words := j.redactor.String(policy.AskWords(items))
	if p.noForge { // there is nobody to ask
		return refuse(items[0].Reason, "%s", words)
	}
	remote, ours, err := p.remoteBefore(ctx, j, branch)
	if err != nil {
		return err
	}
	if ours {
		return nil // it was allowed, and was pushed before we could say so
	}
	basis := scheduler.Basis{Bundle: j.outcome.Bundle, Policy: rules.Digest(), Base: j.session.BaseSha, Remote: remote}
	ask := scheduler.Ask{Basis: basis, Digest: basis.Digest(j.session.ID, scheduler.ApprovePublish, items), Words: words + " Somebody has to allow it."}
	given, err := scheduler.AllowedTo(ctx, p.db.Q(), j.session.ID)
	if err != nil {
		return err
	}
	given = slices.DeleteFunc(given, func(a storage.Approval) bool { return a.Kind != scheduler.ApprovePublish })
	if n := len(given); n > 0 {
		a := given[n-1]
		if ask.Void, err = p.holds(ctx, j, a, ask, rules); err != nil || ask.Void == "" {
			return err
		}
		ask.Words = fmt.Sprintf("What %s allowed does not count any more: %s. %s", a.AnsweredLogin, ask.Void, ask.Words)
	}
	// What needs another person is kept first: who may answer is seen from it.
	kept := slices.Clone(items)
	slices.SortStableFunc(kept, func(a, b policy.Item) int { return cmp.Compare(rank(a), rank(b)) })
	for _, i := range kept[:min(len(kept), maxItems)] {
		ask.Asked.Items = append(ask.Asked.Items, scheduler.AskedItem{Reason: i.Reason, What: j.redactor.String(i.What)})
	}
	ask.Asked.More = len(items) - len(ask.Asked.Items)
	return &question{ask}
}

func rank(i policy.Item) int {
	if policy.NeedsAnother(i.Reason) {
		return 0
	}
	return 1
}

// holds says why an approval does not count for what is asked now; "" if it does.
func (p *Publisher) holds(ctx context.Context, j *job, a storage.Approval, now scheduler.Ask, rules policy.Rules) (string, error) {
	if a.Digest != now.Digest {
		return changedSince(a, now.Basis), nil
	}
	perm, err := j.github.Permission(ctx, j.repo, a.AnsweredLogin)
	switch {
	case errors.Is(err, github.ErrNotFound), errors.Is(err, github.ErrDenied):
		return a.AnsweredLogin + " may not write to the repository any more", nil
	case err != nil:
		return "", fmt.Errorf("ask for the permission of %s: %w", a.AnsweredLogin, err)
	case !perm.Write || perm.UserID != 0 && perm.UserID != a.AnsweredBy:
		return a.AnsweredLogin + " may not write to the repository any more", nil
	}
	if !rules.FourEyes && !slices.ContainsFunc(j.verdict.Ask, func(i policy.Item) bool { return policy.NeedsAnother(i.Reason) }) {
		return "", nil
	}
	people, err := scheduler.Requesters(ctx, p.db.Q(), j.session.ID)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(people, func(r storage.SessionPerson) bool { return r.UserID == a.AnsweredBy }) {
		return a.AnsweredLogin + " had a hand in the session since", nil
	}
	return "", nil
}

// changedSince names what is not as it was when an approval was asked for.
func changedSince(a storage.Approval, now scheduler.Basis) string {
	var out []string
	for _, part := range []struct{ was, is, what string }{
		{a.Bundle, now.Bundle, "the work is another"}, {a.Policy, now.Policy, "the rules have changed"},
		{a.BaseSha, now.Base, "the work starts from another commit"}, {a.RemoteHead, now.Remote, "the branch on GitHub has moved"},
	} {
		if part.was != part.is {
			out = append(out, part.what)
		}
	}
	if len(out) == 0 {
		return "what is found in the change is not the same"
	}
	return strings.Join(out, ", ")
}

// remoteBefore is the commit that the work would be put on: the head of its
// branch or, while there is none, of the one it starts from. ours: our own push
// of it has reached the remote.
func (p *Publisher) remoteBefore(ctx context.Context, j *job, branch string) (sha string, ours bool, err error) {
	if sha, err = p.remoteHead(ctx, j, branch); err != nil {
		return "", false, err
	}
	if sha == "" {
		sha, err = p.remoteHead(ctx, j, j.session.BaseBranch)
		return sha, false, err
	}
	row, err := p.db.Q().BranchByName(ctx, storage.BranchByNameParams{RepositoryID: j.session.RepositoryID, Name: branch})
	if storage.IsMissing(err) {
		return sha, false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("look up the branch %s: %w", branch, err)
	}
	return sha, row.SessionID == j.session.ID && (sha == row.PushingSha || sha == j.session.HeadSha), nil
}

// nothingWaits refuses a push while something of the session waits for an answer.
func (p *Publisher) nothingWaits(ctx context.Context, session string) error {
	pending, err := scheduler.Approvals(ctx, p.db.Q(), session)
	if err == nil && len(pending) > 0 {
		err = fmt.Errorf("%q of session %s waits for an answer; nothing is pushed meanwhile", pending[0].Words, session)
	}
	return err
}
