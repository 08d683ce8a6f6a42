package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// issues handles the event of that name: a label starts a session, and an issue
// that is opened again says something of what was done for it.
func (in *Intake) issues(ctx context.Context, guid string, p payload) (result, error) {
	repo, ok := p.known()
	if !ok || p.Issue == nil || p.Issue.Number <= 0 {
		return ignore("the event does not name installation, repository and issue")
	}
	switch p.Action {
	case "labeled":
		return in.labeled(ctx, guid, p, repo, *p.Issue, "")
	case "locked", "unlocked":
		return in.locked(ctx, p, repo, p.Issue.Number)
	case "deleted", "transferred":
		return in.issueGone(ctx, p, repo, *p.Issue)
	case "reopened":
		if in.o.Fates != nil {
			return result{done, "the issue was opened again"}, in.o.Fates.IssueReopened(ctx, repo, p.Issue.Number, moment(p.Issue.UpdatedAt))
		}
	}
	return ignore("nothing to do for the action %q", p.Action)
}

// issueGone ends the session that is at work on an issue which is there no more.
func (in *Intake) issueGone(ctx context.Context, p payload, repo github.Repo, on issue) (result, error) {
	s, found, err := in.openSession(ctx, in.o.DB.Q(), repo.ID, on.Number)
	if err != nil {
		return result{}, err
	}
	if !found {
		return ignore("no session works on the issue that was %s", p.Action)
	}
	words := "The issue was " + p.Action + " while this session was at work. The work is kept in the evidence."
	if err := in.o.Sessions.Supersede(ctx, s.ID, scheduler.ReasonIssueGone, words); err != nil {
		return result{}, err
	}
	return result{done, "session " + s.ID + " ends: its issue was " + p.Action}, nil
}

// labeled starts a session on an issue or a pull request; head is what the
// event shows of the latter.
func (in *Intake) labeled(ctx context.Context, guid string, p payload, repo github.Repo, on issue, head string) (result, error) {
	if p.Label == nil || p.Label.Name == "" {
		return ignore("the event does not name the label")
	}
	if !hasLabel(in.o.Labels, p.Label.Name) {
		return ignore("the label %q starts nothing here", p.Label.Name)
	}
	w := &wish{
		key:  labelKey(repo.ID, on, *p.Label),
		kind: kindLabel, guid: guid, installation: p.Installation, repo: repo, repository: p.Repository, issue: on,
		actor: p.actor(), need: policy.NeedWrite, at: moment(on.UpdatedAt), label: p.Label.Name, seen: head,
	}
	if err := in.work(ctx, w); err != nil {
		return result{}, err
	}
	return in.settle(ctx, w.asker(), fmt.Sprintf("label-%d", p.Label.ID)+"-"+on.UpdatedAt, []string{w.key})
}

// withdrawn says why a label has no effect any more, as later events tell: it was
// taken off again, or the issue closed. Empty: it has.
func (in *Intake) withdrawn(ctx context.Context, w *wish) (string, error) {
	own, err := in.o.DB.Q().DeliveryByGUID(ctx, w.guid)
	if storage.IsMissing(err) || err == nil && w.at.IsZero() {
		return "", nil // no delivery told of it: GitHub was asked
	}
	if err != nil {
		return "", fmt.Errorf("reading delivery %s: %w", w.guid, err)
	}
	seen, err := in.o.DB.Q().IssueChangesSeen(ctx, storage.IssueChangesSeenParams{RepositoryID: w.repo.ID, Since: own.ReceivedAt.Add(-24 * time.Hour)})
	if err != nil {
		return "", fmt.Errorf("looking for what happened to issue %d since: %w", w.issue.Number, err)
	}
	var label, state struct {
		at     time.Time
		action string
	}
	for _, d := range seen {
		var p payload
		if json.Unmarshal(d.Payload, &p) != nil {
			continue
		}
		on := p.Issue
		if on == nil && p.PullRequest != nil {
			i := p.PullRequest.issue()
			on = &i
		}
		if on == nil || on.Number != w.issue.Number || !moment(on.UpdatedAt).After(w.at) {
			continue
		}
		last := &state
		if p.Action == "labeled" || p.Action == "unlabeled" {
			if p.Label == nil || !strings.EqualFold(p.Label.Name, w.label) {
				continue
			}
			last = &label
		}
		if at := moment(on.UpdatedAt); at.After(last.at) { // of one second the latest that came
			last.at, last.action = at, p.Action
		}
	}
	if label.at.IsZero() && state.at.IsZero() && in.now().Sub(w.at) > fresh {
		return in.gone(ctx, w) // it may have been taken off, and nobody told us that either
	}
	switch {
	case label.action == "unlabeled":
		return fmt.Sprintf("the label %q was taken off again before it was worked on", w.label), nil
	case state.action == "closed":
		return "the issue was closed before the label was worked on", nil
	}
	return "", nil
}

// fresh is how old a labelling may be for its event to be believed. An older one
// did not arrive at first, and others after it may have been lost, too.
const fresh = 2 * time.Minute

// gone says why a labelling has no effect any more, as GitHub says now.
func (in *Intake) gone(ctx context.Context, w *wish) (string, error) {
	live, err := in.gh(w).Issue(ctx, w.repo, w.issue.Number)
	switch {
	case errors.Is(err, github.ErrGone):
		return "the issue was deleted", nil
	case err != nil && final(err):
		return "", nil // nothing more is known than the event says
	case err != nil:
		return "", fmt.Errorf("reading issue %d: %w", w.issue.Number, err)
	case live.State == "closed":
		return "the issue was closed before the label was worked on", nil
	case !slices.ContainsFunc(live.Labels, func(l github.Label) bool { return strings.EqualFold(l.Name, w.label) }):
		return fmt.Sprintf("the label %q was taken off again before it was worked on", w.label), nil
	}
	return "", nil
}

// labelKey is the same for every delivery that tells of this labelling, and
// another one when the label is put on again. A pull request has a number of
// its own in each kind of event.
func labelKey(repository int64, on issue, l label) string {
	id := fmt.Sprint(l.ID)
	if l.ID == 0 {
		id = strings.ToLower(l.Name)
	}
	number := on.ID
	if number == 0 || on.PullRequest != nil {
		number = -int64(on.Number)
	}
	return storable(fmt.Sprintf("label:%d:%d:%s:%s", repository, number, id, on.UpdatedAt), 500)
}

// locked records whether anything may be written into a conversation.
func (in *Intake) locked(ctx context.Context, p payload, repo github.Repo, number int) (result, error) {
	locked := p.Action == "locked"
	_, err := in.o.DB.Q().LastSessionOfIssue(ctx, storage.LastSessionOfIssueParams{RepositoryID: repo.ID, IssueNumber: int32(number)})
	if err != nil && !storage.IsMissing(err) {
		return result{}, fmt.Errorf("looking for a session: %w", err)
	}
	if err == nil { // the event may be late, and one that has ended may go on
		now, err := in.lockedNow(ctx, p, repo, number)
		if err != nil && !final(err) {
			return result{}, fmt.Errorf("reading whether conversation %d is locked: %w", number, err)
		}
		if err == nil {
			locked = now
		}
	}
	if err := in.o.DB.Q().SetSessionsLocked(ctx, storage.SetSessionsLockedParams{
		RepositoryID: repo.ID, Number: int32(number), Locked: locked,
	}); err != nil {
		return result{}, fmt.Errorf("recording that conversation %d was %s: %w", number, p.Action, err)
	}
	return result{done, fmt.Sprintf("conversation %d was %s", number, p.Action)}, nil
}

func (in *Intake) lockedNow(ctx context.Context, p payload, repo github.Repo, number int) (bool, error) {
	client := in.o.GitHub(p.Installation.ID)
	if p.PullRequest != nil {
		live, err := client.PullRequest(ctx, repo, number)
		return live.Locked, err
	}
	live, err := client.Issue(ctx, repo, number)
	return live.Locked, err
}

// hasLabel compares as GitHub does: without case.
func hasLabel(list []string, name string) bool {
	return slices.ContainsFunc(list, func(l string) bool { return strings.EqualFold(l, name) })
}
