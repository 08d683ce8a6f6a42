package tally

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"inspect/app/measure"
	"inspect/storage"
)

// Period is which sessions are read: those that ended from Since on and before
// Until, everywhere or in some repositories.
type Period struct {
	Since, Until time.Time
	Everywhere   bool
	Repositories []int64 // ids; none: nothing is read
}

// window is how much of a period is read at once, so that a long one takes no more
// memory than a short one.
const window = 10 * 24 * time.Hour

// Ended reads the sessions of a period, the first to end first.
func Ended(ctx context.Context, q *storage.Queries, p Period) (all []measure.Ended, err error) {
	err = Each(ctx, q, p, func(e *measure.Ended) { all = append(all, *e) })
	return all, err
}

// Each shows the sessions of a period to see, the first to end first. What it is
// shown is another session's afterwards.
func Each(ctx context.Context, q *storage.Queries, p Period, see func(*measure.Ended)) error {
	var ids []string
	for _, id := range p.Repositories {
		ids = append(ids, strconv.FormatInt(id, 10))
	}
	repositories := strings.Join(ids, ",")
	first, err := q.ReportBegin(ctx, p.Since) // a period may begin long before anything did
	if storage.IsMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the first session that ended since %s: %w", p.Since.UTC().Format(time.DateOnly), err)
	}
	for from := first.Time; from.Before(p.Until); from = from.Add(window) {
		until := from.Add(window)
		if until.After(p.Until) {
			until = p.Until
		}
		rows, err := q.ReportSessions(ctx, storage.ReportSessionsParams{Since: from, Until: until, Everywhere: p.Everywhere, Repositories: repositories})
		if err != nil {
			return fmt.Errorf("read the sessions that ended since %s: %w", from.UTC().Format(time.DateOnly), err)
		}
		for i := range rows {
			e := ended(&rows[i])
			see(&e)
		}
	}
	return nil
}

func ended(r *storage.ReportSessionsRow) measure.Ended {
	e := measure.Ended{
		Repository: r.Owner + "/" + r.Name, Harness: r.Harness, Model: r.Model, Requester: r.RequesterLogin,
		State: string(r.State), Reason: r.Reason, At: r.FinishedAt.Time,
		Attempts: int(r.Attempts), Ready: durations(r.Ready), Restore: durations(r.Restore), Stale: r.Stale,
		Sandbox: time.Duration(r.SandboxSeconds * float64(time.Second)), SandboxOpen: r.Endless > 0,
		Unpriced: int(r.Unpriced), Cost: r.Cost, Tools: int(r.Tools),
		Pull: r.PullRequest > 0, Fate: r.Opened.Valid, Opened: r.Opened.Bool,
		Outcome: measure.Outcome{
			Opened: r.OpenedAt.Time, Merged: r.MergedAt.Time, Closed: r.ClosedAt.Time, Reverted: r.RevertedAt.Time,
			Review: time.Duration(r.ReviewSeconds) * time.Second, Fixes: int(r.Fixes),
		},
	}
	var paths []string
	if json.Unmarshal(r.Paths, &paths) == nil {
		e.Risk = measure.Risk(paths)
	}
	return e
}

// maxWait is the most that is believed of what a runner says how long a start took.
const maxWait = 24 * time.Hour

// durations are what a runner said, as far as it can be.
func durations(data json.RawMessage) (out []time.Duration) {
	var all []time.Duration
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	for _, d := range all {
		if d > 0 && d <= maxWait {
			out = append(out, d)
		}
	}
	return out
}
