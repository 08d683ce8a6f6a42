package intake

import (
	"context"
	"fmt"
	"time"

	"inspect/app/approve"
	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// checkRun handles the event of that name: buttons of a run of ours, and the
// wish to have it run again.
func (in *Intake) checkRun(ctx context.Context, guid string, received time.Time, p payload) (result, error) {
	switch p.Action {
	case "rerequested":
		if p.CheckRun == nil || p.CheckRun.App == nil || p.CheckRun.App.ID != in.o.AppID {
			return ignore("the check run is of another App")
		}
		return in.rerun(ctx, guid, received, p, p.CheckRun.HeadSHA, p.CheckRun.ExternalID)
	case "requested_action":
	default:
		return ignore("nothing to do for the action %q", p.Action)
	}
	repo, ok := p.known()
	if !ok || p.CheckRun == nil || p.RequestedAction == nil {
		return ignore("the event does not name installation, repository, check run and button")
	}
	if p.CheckRun.App == nil || p.CheckRun.App.ID != in.o.AppID {
		return ignore("the check run is of another App")
	}
	b, ok := approve.ReadButton(p.CheckRun.ExternalID, p.RequestedAction.Identifier)
	if !ok {
		return ignore("the check run has no such button")
	}
	s, err := in.o.DB.Q().PublishSession(ctx, b.Session)
	if storage.IsMissing(err) || err == nil && s.RepositoryID != repo.ID {
		return ignore("the check run is of no session of this repository")
	}
	if err != nil {
		return result{}, fmt.Errorf("reading session %s: %w", b.Session, err)
	}
	w := &wish{
		key: "button:" + guid, kind: kindButton, guid: guid, installation: p.Installation, repo: repo, repository: p.Repository,
		issue: issue{Number: int(s.IssueNumber)}, actor: p.actor(), need: policy.NeedWrite, at: received, button: &b,
	}
	if err := in.work(ctx, w); err != nil {
		return result{}, err
	}
	return in.settle(ctx, w.asker(), "button-"+guid, []string{w.key})
}

// press does what a button says.
func (in *Intake) press(ctx context.Context, w *wish) error {
	s, err := in.o.DB.Q().PublishSession(ctx, w.button.Session)
	if err != nil {
		return fmt.Errorf("reading session %s: %w", w.button.Session, err)
	}
	return in.given(ctx, w, s, approve.Given{
		Session: s.ID, Digest: w.button.Digest, Approve: w.button.Approve, Actor: w.actor, How: scheduler.ByButton, At: w.at,
	})
}
