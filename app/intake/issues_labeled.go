package intake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/storage"
)

// issues handles the event of that name: a label starts a session.
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
	}
	return ignore("nothing to do for the action %q", p.Action)
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
	if err := in.o.DB.Q().SetSessionsLocked(ctx, storage.SetSessionsLockedParams{
		RepositoryID: repo.ID, Number: int32(number), Locked: p.Action == "locked",
	}); err != nil {
		return result{}, fmt.Errorf("recording that conversation %d was %s: %w", number, p.Action, err)
	}
	return result{done, fmt.Sprintf("conversation %d was %s", number, p.Action)}, nil
}

// hasLabel compares as GitHub does: without case.
func hasLabel(list []string, name string) bool {
	return slices.ContainsFunc(list, func(l string) bool { return strings.EqualFold(l, name) })
}
