package intake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"inspect/app/policy"
)

// issues handles the event of that name: a label starts a session.
func (in *Intake) issues(ctx context.Context, guid string, p payload) (result, error) {
	if p.Action != "labeled" {
		return ignore("nothing to do for the action %q", p.Action)
	}
	repo, ok := p.known()
	if !ok || p.Issue == nil || p.Issue.Number <= 0 || p.Label == nil || p.Label.Name == "" {
		return ignore("the event does not name installation, repository, issue and label")
	}
	if !hasLabel(in.o.Labels, p.Label.Name) {
		return ignore("the label %q starts nothing here", p.Label.Name)
	}
	if p.Issue.PullRequest != nil {
		return ignore("labels on pull requests are not supported yet")
	}
	w := &wish{
		key:  labelKey(p),
		kind: kindLabel, guid: guid, installation: p.Installation, repo: repo, repository: p.Repository, issue: *p.Issue,
		actor: p.actor(), need: policy.NeedWrite, at: moment(p.Issue.UpdatedAt), label: p.Label.Name,
	}
	if err := in.work(ctx, w); err != nil {
		return result{}, err
	}
	return in.settle(ctx, w.asker(), fmt.Sprintf("label-%d", p.Label.ID)+"-"+p.Issue.UpdatedAt, []string{w.key})
}

// labelKey is the same for every delivery that tells of this labelling, and
// another one when the label is put on again.
func labelKey(p payload) string {
	id := fmt.Sprint(p.Label.ID)
	if p.Label.ID == 0 {
		id = strings.ToLower(p.Label.Name)
	}
	issue := p.Issue.ID
	if issue == 0 {
		issue = -int64(p.Issue.Number)
	}
	return storable(fmt.Sprintf("label:%d:%d:%s:%s", p.Repository.ID, issue, id, p.Issue.UpdatedAt), 500)
}

// hasLabel compares as GitHub does: without case.
func hasLabel(list []string, name string) bool {
	return slices.ContainsFunc(list, func(l string) bool { return strings.EqualFold(l, name) })
}
