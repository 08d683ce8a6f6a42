package scheduler

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"inspect/storage"
)

// The clone of a session that failed can be kept for people to look at. Its
// attempt counts as referenced until then, so that no node collects it.

// keepScene says how long the clones of a session's attempt are kept that
// enters a state: by keep_failed once it has failed, and as long as it takes
// where that is not known yet.
func (s *Scheduler) keepScene(ctx context.Context, q *storage.Queries, row storage.Session, to State, deadline time.Time) error {
	if row.Generation == 0 || OnMachine(to) {
		return nil
	}
	sp, err := sessionSpec(row)
	if err != nil || sp.KeepFailed == 0 {
		return err
	}
	var until sql.NullTime
	switch to {
	case Failed, TimedOut, OverBudget, Infrastructure:
		until = sql.NullTime{Time: s.clock.Now().Add(sp.KeepFailed), Valid: true}
	case Publishing, NeedsApproval:
		until = sql.NullTime{Time: deadline.Add(s.times.Check), Valid: true}
	}
	if err := q.SetAttemptKeep(ctx, storage.SetAttemptKeepParams{SessionID: row.ID, Generation: row.Generation, KeepUntil: until}); err != nil {
		return fmt.Errorf("keeping the clones of session %s: %w", row.ID, err)
	}
	return nil
}

// ReleaseScene lets the clones of a session that has ended go before their
// time, and says whether there were any. It needs no running scheduler.
func ReleaseScene(ctx context.Context, q *storage.Queries, session string) (bool, error) {
	n, err := q.ReleaseScene(ctx, session)
	if err != nil {
		return false, fmt.Errorf("letting the clones of session %s go: %w", session, err)
	}
	return n > 0, nil
}
