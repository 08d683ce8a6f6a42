package intake

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"inspect/app/command"
	"inspect/storage"
)

// Events come late and in any order: one that did not arrive is asked for again
// for days. What a person said is about what was there when they said it.

// stopped says whether somebody said stop after a wish, so that it is to start
// nothing any more.
func (in *Intake) stopped(ctx context.Context, w *wish) (bool, error) {
	if w.at.IsZero() || w.issue.Number == 0 {
		return false, nil
	}
	said, err := in.o.DB.Q().CommandsObeyed(ctx, storage.CommandsObeyedParams{RepositoryID: w.repo.ID, IssueNumber: int32(w.issue.Number)})
	if err != nil {
		return false, fmt.Errorf("looking for what was said of issue %d since: %w", w.issue.Number, err)
	}
	for _, i := range said {
		at, c, err := in.toldOf(ctx, i)
		if err != nil {
			return false, err
		}
		if c.Name == command.Stop && at.After(w.at) {
			return true, nil
		}
	}
	return false, nil
}

// younger says whether a session was asked for well after a wish about one, which
// must have got lost then.
func (in *Intake) younger(ctx context.Context, s storage.Session, w *wish) (bool, error) {
	if w.kind != kindCommand { // a page shows which session it is about
		return false, nil
	}
	i, err := in.o.DB.Q().LastStartOfSession(ctx, storage.LastStartOfSessionParams{RepositoryID: s.RepositoryID, Session: s.ID})
	if storage.IsMissing(err) || err == nil && w.at.IsZero() {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for what session %s was started by: %w", s.ID, err)
	}
	at, _, err := in.toldOf(ctx, i)
	return at.After(w.at.Add(fresh)), err
}

// toldOf is when something was asked, by GitHub's clock, and the command if it
// was one. Zero: it is not known any more.
func (in *Intake) toldOf(ctx context.Context, i storage.Intent) (at time.Time, c command.Command, err error) {
	if i.Kind == kindLabel { // its key ends with the time
		return moment(i.Key[max(0, len(i.Key)-len("2006-01-02T15:04:05Z")):]), c, nil
	}
	d, err := in.o.DB.Q().DeliveryByGUID(ctx, i.DeliveryGuid)
	if storage.IsMissing(err) {
		return at, c, nil
	}
	if err != nil {
		return at, c, fmt.Errorf("reading delivery %s: %w", i.DeliveryGuid, err)
	}
	var p payload
	if json.Unmarshal(d.Payload, &p) != nil {
		return at, c, nil
	}
	from, when := p.Comment, ""
	if from != nil {
		when = from.CreatedAt
	} else if from = p.Review; from != nil {
		when = from.SubmittedAt
	}
	if from == nil || !strings.Contains(from.Body, command.Trigger) {
		return at, c, nil
	}
	for _, one := range command.Parse(from.Body) {
		if one, ok := one.(command.Command); ok && strings.HasSuffix(i.Key, fmt.Sprintf(":%d:%d", from.ID, one.Index)) {
			return moment(when), one, nil
		}
	}
	return at, c, nil
}
