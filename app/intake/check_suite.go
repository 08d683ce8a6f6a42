package intake

import (
	"context"
	"fmt"
	"strings"
	"time"

	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// checkSuite handles the event of that name: all runs of ours on a commit are
// wanted again.
func (in *Intake) checkSuite(ctx context.Context, guid string, received time.Time, p payload) (result, error) {
	if p.Action != "rerequested" {
		return ignore("nothing to do for the action %q", p.Action)
	}
	if p.CheckSuite == nil || p.CheckSuite.App == nil || p.CheckSuite.App.ID != in.o.AppID {
		return ignore("the check suite is of another App")
	}
	return in.rerun(ctx, guid, received, p, p.CheckSuite.HeadSHA, "")
}

// rerun has those who may write run what is on a commit again; external is that
// of one run, empty for all.
func (in *Intake) rerun(ctx context.Context, guid string, received time.Time, p payload, sha, external string) (result, error) {
	repo, ok := p.known()
	if !ok || sha == "" {
		return ignore("the event does not name installation, repository and commit")
	}
	w := &wish{
		key: "rerun:" + guid, kind: kindRerun, guid: guid, installation: p.Installation, repo: repo, repository: p.Repository,
		actor: p.actor(), need: policy.NeedWrite, at: received, rerun: &rerun{sha, external},
	}
	if err := in.work(ctx, w); err != nil {
		return result{}, err
	}
	i, err := in.o.DB.Q().IntentByKey(ctx, w.key)
	if err != nil {
		return result{}, fmt.Errorf("reading an intent: %w", err)
	}
	return result{done, i.Outcome + " " + i.Note}, nil
}

// rerun names what is to run again.
type rerun struct{ sha, external string }

// of says whether a session's runs are meant.
func (r rerun) of(session string) bool {
	return r.external == "" || r.external == session || strings.HasPrefix(r.external, session+"/")
}

// runAgain gives each session on the commit a new attempt. Where that cannot be,
// because it has delivered or is at work, what its run says is said anew: GitHub
// has cleared it. So it is for reviews.
func (in *Intake) runAgain(ctx context.Context, w *wish) error {
	q := in.o.DB.Q()
	sessions, err := q.SessionsOfCommit(ctx, storage.SessionsOfCommitParams{RepositoryID: w.repo.ID, Sha: w.rerun.sha})
	if err != nil {
		return fmt.Errorf("looking for the sessions on %.12s: %w", w.rerun.sha, err)
	}
	var notes []string
	for _, s := range sessions {
		if !w.rerun.of(s.ID) {
			continue
		}
		note, err := in.sessionAgain(ctx, w, s)
		if err != nil {
			return err
		}
		notes = append(notes, note)
	}
	if w.rerun.external == "" || strings.HasPrefix(w.rerun.external, "review/") {
		pulls, err := q.ReviewsAskedAgain(ctx, storage.ReviewsAskedAgainParams{RepositoryID: w.repo.ID, Sha: w.rerun.sha})
		if err != nil {
			return fmt.Errorf("looking for the reviews of %.12s: %w", w.rerun.sha, err)
		}
		for _, pull := range pulls {
			if pull == 0 && in.o.Reviews != nil {
				if err := in.o.Reviews.GroupAgain(ctx, w.installation.ID, w.repo, w.rerun.sha); err != nil {
					return err
				}
				notes = append(notes, "the review of the merge group was said anew")
				continue
			}
			if err := in.lookAtReview(ctx, w.installation.ID, w.repo, int(pull)); err != nil {
				return err
			}
			notes = append(notes, fmt.Sprintf("the review of pull request %d was said anew", pull))
		}
	}
	if len(notes) == 0 {
		return in.end(ctx, w, outcomeRefused, "there is nothing of ours to run again")
	}
	return in.end(ctx, w, outcomeStarted, strings.Join(notes, "; "))
}

// sessionAgain says what it did.
func (in *Intake) sessionAgain(ctx context.Context, w *wish, s storage.Session) (string, error) {
	now := time.Now()
	say := func(tx *storage.Tx) error {
		err := tx.Q().ForgetCheckRuns(ctx, storage.ForgetCheckRunsParams{ID: s.ID, Now: now, Deadline: now.Add(time.Hour)})
		if err != nil {
			return err
		}
		return in.o.Sessions.InsertReconcile(ctx, tx, s.ID)
	}
	retry := func(tx *storage.Tx) error {
		by := scheduler.Point{Session: s.ID, By: scheduler.Person{ID: w.actor.ID, Login: w.actor.Login}}
		if _, err := scheduler.Retry(ctx, tx, by, w.actor.Login, now); err != nil {
			return err
		}
		return say(tx)
	}
	if _, allowed := in.floor(w.repo); allowed {
		err := in.o.DB.InTx(ctx, retry)
		if err == nil {
			return "session " + s.ID + " runs again", nil
		}
		if !scheduler.IsPointError(err) {
			return "", fmt.Errorf("running session %s again: %w", s.ID, err)
		}
	}
	if err := in.o.DB.InTx(ctx, say); err != nil {
		return "", fmt.Errorf("having session %s told again: %w", s.ID, err)
	}
	return "session " + s.ID + " stays as it is, and says so anew", nil
}
