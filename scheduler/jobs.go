package scheduler

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"inspect/storage"
)

// DeliveryArgs is the job that handles one stored webhook delivery.
type DeliveryArgs struct {
	GUID string `json:"guid"`
}

// Kind implements river.JobArgs.
func (DeliveryArgs) Kind() string { return "delivery" }

// ReconcileArgs is the job that looks at one session and moves it on.
type ReconcileArgs struct {
	Session string `json:"session"`
	// Swept: the sweeper asked, and will again. Everybody else asks once.
	Swept bool `json:"swept,omitempty"`
}

// Kind implements river.JobArgs.
func (ReconcileArgs) Kind() string { return "reconcile" }

const (
	queueDeliveries = "deliveries"
	queueSessions   = "sessions"
	queueLooks      = "looks"

	deliveryTimeout  = 3 * time.Minute
	reconcileTimeout = 15 * time.Minute // a publish is the longest step
	rescueAfter      = 20 * time.Minute // must be longer than any timeout

	// A client that inserts wakes nobody for jobs that follow one of the same queue
	// within its cooldown, and they wait for the next poll. River's default of
	// 100 ms loses a whole burst; its least still loses a few.
	insertCooldown = river.FetchCooldownMin
	fetchCooldown  = 10 * time.Millisecond
	pollInterval   = 200 * time.Millisecond
)

// Jobs are not retried by River: the sweeper looks again at whatever is due,
// and it also finds jobs that were lost. Nor are they unique: River counts a
// job whose process was killed as running until it is rescued, and uniqueness
// would keep the sweeper's out for as long.
func deliveryOpts() *river.InsertOpts {
	return &river.InsertOpts{Queue: queueDeliveries, MaxAttempts: 1}
}

func reconcileOpts() *river.InsertOpts {
	return &river.InsertOpts{Queue: queueSessions, MaxAttempts: 1}
}

func newInsertClient(db *storage.DB, log *slog.Logger) (*river.Client[*sql.Tx], error) {
	return river.NewClient(riverdatabasesql.New(db.SQL()), &river.Config{
		FetchCooldown: insertCooldown, Logger: quiet(log),
	})
}

// quiet keeps River's own chatter, which has no meaning for an operator, to errors.
func quiet(log *slog.Logger) *slog.Logger {
	return slog.New(levelHandler{log.Handler(), slog.LevelError})
}

type levelHandler struct {
	slog.Handler
	least slog.Level
}

func (h levelHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.least && h.Handler.Enabled(ctx, l)
}

func (h levelHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return levelHandler{h.Handler.WithAttrs(a), h.least}
}

func (h levelHandler) WithGroup(g string) slog.Handler {
	return levelHandler{h.Handler.WithGroup(g), h.least}
}

// newWorkClient registers every kind of job: a leader discards kinds it does
// not know.
func (s *Scheduler) newWorkClient() (*river.Client[pgx.Tx], error) {
	w := river.NewWorkers()
	river.AddWorker(w, &deliveryWorker{s: s})
	river.AddWorker(w, &reconcileWorker{s: s})
	river.AddWorker(w, &lookWorker{s: s})
	return river.NewClient(riverpgxv5.New(s.db.Pool()), &river.Config{
		FetchCooldown:               fetchCooldown,
		FetchPollInterval:           pollInterval,
		JobTimeout:                  reconcileTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		CompletedJobRetentionPeriod: time.Hour,
		DiscardedJobRetentionPeriod: 24 * time.Hour,
		SoftStopTimeout:             s.times.Drain,
		Logger:                      quiet(s.log),
		Queues: map[string]river.QueueConfig{
			queueDeliveries: {MaxWorkers: 4},
			queueSessions:   {MaxWorkers: 8},
			queueLooks:      {MaxWorkers: 2},
		},
		Workers: w,
	})
}

// InsertDelivery enqueues the work on a delivery in the transaction that stores it.
func (s *Scheduler) InsertDelivery(ctx context.Context, tx *storage.Tx, guid string) error {
	_, err := s.insert.InsertTx(ctx, tx.SQL(), DeliveryArgs{GUID: guid}, deliveryOpts())
	if err != nil {
		return fmt.Errorf("enqueueing the work on a delivery: %w", err)
	}
	return nil
}

// InsertReconcile makes a session be looked at as soon as tx is committed.
func (s *Scheduler) InsertReconcile(ctx context.Context, tx *storage.Tx, session string) error {
	_, err := s.insert.InsertTx(ctx, tx.SQL(), ReconcileArgs{Session: session}, reconcileOpts())
	if err != nil {
		return fmt.Errorf("enqueueing a look at a session: %w", err)
	}
	return nil
}

type reconcileWorker struct {
	river.WorkerDefaults[ReconcileArgs]
	s *Scheduler
}

func (w *reconcileWorker) Timeout(*river.Job[ReconcileArgs]) time.Duration { return reconcileTimeout }

func (w *reconcileWorker) Work(ctx context.Context, job *river.Job[ReconcileArgs]) error {
	err := w.s.Reconcile(ctx, job.Args.Session)
	switch {
	case errors.Is(err, errBusy) && job.Args.Swept:
	case errors.Is(err, errBusy):
		// Somebody is at it and may have read the row before what woke us.
		return river.JobSnooze(500 * time.Millisecond)
	case err != nil:
		// The row has a next check whatever happened here, so the job is done.
		w.s.log.Warn("a session could not be moved on", "session", job.Args.Session, "error", err)
	}
	return nil
}

type deliveryWorker struct {
	river.WorkerDefaults[DeliveryArgs]
	s *Scheduler
}

func (w *deliveryWorker) Timeout(*river.Job[DeliveryArgs]) time.Duration { return deliveryTimeout }

func (w *deliveryWorker) Work(ctx context.Context, job *river.Job[DeliveryArgs]) error {
	if err := w.s.deliver(ctx, job.Args.GUID); err != nil {
		w.s.log.Warn("a delivery could not be handled", "guid", job.Args.GUID, "error", err)
	}
	return nil
}

// deliveryClaim is when the sweeper enqueues a delivery again whose job began.
// While the job runs its lock turns the second one away; if it died, that is
// how soon it is taken up.
const deliveryClaim = 15 * time.Second

// maxDeliveryTries bounds how often one delivery is tried; with the backoff
// that is more than a day.
const maxDeliveryTries = 150

// deliver hands one delivery to app, unless it is done or somebody is at it.
func (s *Scheduler) deliver(ctx context.Context, guid string) error {
	unlock, ok, err := s.locks.try(ctx, deliveryLock(guid))
	if err != nil || !ok {
		return err
	}
	defer unlock()
	now := s.clock.Now()
	d, err := s.db.Q().BeginDelivery(ctx, storage.BeginDeliveryParams{Guid: guid, NextTryAt: now.Add(deliveryClaim)})
	if storage.IsMissing(err) {
		return nil // done already
	}
	if err != nil {
		return fmt.Errorf("reading a delivery: %w", err)
	}
	if s.o.Delivery == nil {
		return errors.New("nothing was wired to handle deliveries")
	}
	cause := s.o.Delivery(ctx, guid)
	// What is written now must be written even if the step was interrupted.
	ctx = context.WithoutCancel(ctx)
	switch {
	case cause == nil:
		return s.db.Q().EndDelivery(ctx, storage.EndDeliveryParams{Guid: guid, Status: "done", Now: s.clock.Now()})
	case errors.Is(cause, ErrPermanent), d.Tries >= maxDeliveryTries:
		err = s.db.Q().EndDelivery(ctx, storage.EndDeliveryParams{Guid: guid, Status: "failed", Note: clip(cause.Error(), 1000), Now: s.clock.Now()})
	default:
		at := retryTime(s.clock.Now(), cause, int(d.Tries)-1, 10*time.Minute)
		err = s.db.Q().SetDeliveryNextTry(ctx, storage.SetDeliveryNextTryParams{Guid: guid, NextTryAt: at})
	}
	return errors.Join(cause, err)
}
