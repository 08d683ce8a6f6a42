package scheduler

import (
	"context"
	"fmt"
	"time"

	"inspect/storage"
)

const (
	// sumEvery is how often sessions are summed up for reports.
	sumEvery = 10 * time.Minute
	// sumAfter is how long after its end a session is: what its runner and its
	// models still tell has been told by then.
	sumAfter = time.Hour
	sumBatch = 1000 // sessions in one statement
)

// sumLoop sums up sessions until ctx ends.
func (s *Scheduler) sumLoop(ctx context.Context) {
	for {
		if err := s.Sum(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("sessions were not all summed up for reports", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(sumEvery):
		}
	}
}

// Sum writes down what the sessions that ended a while ago come to in a report,
// which then has not to read their events. Run does this every ten minutes.
func (s *Scheduler) Sum(ctx context.Context) error {
	for {
		n, err := s.db.Q().SumSessions(ctx, storage.SumSessionsParams{Before: s.clock.Now().Add(-sumAfter), AtMost: sumBatch})
		if err != nil {
			return fmt.Errorf("summing up sessions that ended: %w", err)
		}
		if n < sumBatch {
			return nil
		}
	}
}
