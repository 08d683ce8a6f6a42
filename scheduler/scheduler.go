package scheduler

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/riverqueue/river"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// Options is what a Scheduler needs. Fields without a documented zero value
// must be set.
type Options struct {
	DB      *storage.DB
	Blobs   *storage.Blobs
	Effects Effects
	Engine  Engine
	Clock   proc.Clock   // zero: the machine's
	Log     *slog.Logger // zero: silent

	Limits Limits
	// MaxRefreshes is how many snapshots are prepared at once on all nodes
	// together; zero: 4.
	MaxRefreshes int
	Times        Times // zero fields: the defaults written there

	// GrantKey signs grants for node daemons. Runner tokens and one-time secrets
	// are derived from it, so it must be the same after a restart.
	GrantKey  ed25519.PrivateKey
	RunnerUID int // uid the runners run as; grants are bound to it
	// MirrorNode is the node whose mirrors results are read over: it fetches the
	// base of each session that works elsewhere. Empty: no session does.
	MirrorNode string
	// EgressInternal are the address ranges of the operator's own network that
	// hosts of an environment's egress may have.
	EgressInternal []string

	// Delivery handles one stored webhook delivery. It is called at most once at
	// a time for each, and again after an error or a crash. A delivery that is
	// still pending after it returned nil is marked done.
	Delivery func(ctx context.Context, guid string) error
	// Look reads the head of a repository's default branch and, if it has moved,
	// what the configuration there describes, and calls Prepare with it. nil:
	// nothing is refreshed by itself.
	Look func(ctx context.Context, repositoryID int64) error
	// CloneURL is the address nodes fetch a repository from, without credentials.
	CloneURL func(r storage.Repository) string

	// KeepEvents is how long the events of an ended session are kept; zero: for
	// ever.
	KeepEvents time.Duration

	// NoForge: results are branches of repositories on this machine. A receipt
	// without a pull request proves a delivery only then.
	NoForge bool

	// Bound says what binds a repository now: it is asked when a session is about
	// to be placed and when a snapshot is about to be prepared, so that what was
	// tightened since counts. It may make a spec stricter, never wider, and must
	// not change its EnvironmentDigest. nil: a spec counts as it was pinned.
	Bound func(repositoryID int64, ownerName string, sp spec.Spec) (Bound, error)

	// ModelAPI says which API a kind of harness is to speak for a model. nil:
	// there is no model gateway.
	ModelAPI func(model, harness string) (string, error)

	// Secrets are what environments name; nil: there are none.
	Secrets *secrets.Store
	// SecretsAllowed says in words which of the names the operator does not let
	// a repository have now. nil: all may be had.
	SecretsAllowed func(r storage.Repository, names []string) error
	// SubmoduleAllowed says whether the operator lets submodules of a repository
	// be read with a token from another now. nil: from none.
	SubmoduleAllowed func(r, module storage.Repository) bool
	// Redactor takes secrets out of what machines say before it is kept. nil:
	// patterns only.
	Redactor *redact.Redactor

	// AuthorName and AuthorEmail are what commits inside sandboxes are made with.
	AuthorName, AuthorEmail string // zero: "Inspect", "inspect@localhost"
}

// Bound is what binds a repository.
type Bound struct {
	Spec   spec.Spec
	Tier   string // the least sandbox (wire.Tier…); empty: any
	Pull   bool   // the operator names the spec's image as one to be fetched from its registry
	Denied string // in words, why nothing may run; the rest means nothing then
}

// Limits of how many sessions hold a machine at once.
type Limits struct {
	Total         int // zero: 4
	PerRepository int // zero: no limit but Total and the repository's own
	// PerOwner and PerInstallation bound the sessions of all repositories of one
	// account, and of one installation of the App; zero: no limit but Total.
	PerOwner        int
	PerInstallation int
}

// Times are how long things may take before somebody looks or gives up.
type Times struct {
	Queue       time.Duration // in the queue; zero: 24 h
	Place       time.Duration // from the start of an attempt to its first word; zero: 2 min
	Restore     time.Duration // restore and sync; zero: 10 min
	WorkMargin  time.Duration // beyond limits.timeout before we end it ourselves; zero: 2 min
	Verify      time.Duration // verification at least; the longer of this and limits.timeout counts; zero: 10 min
	Publish     time.Duration // zero: 1 h
	Approval    time.Duration // a person's answer; zero: 72 h
	Report      time.Duration // how long the end is tried to be told; zero: 72 h
	StopGrace   time.Duration // from a stop request to the engine's; zero: 30 s
	Heartbeat   time.Duration // silence after which the engine is asked; zero: 60 s
	Check       time.Duration // between two looks at a session that runs; zero: 10 s
	Sweep       time.Duration // between two sweeps; zero: 1 s
	Lease       time.Duration // of node work, renewed by the node's state; zero: 60 s
	NodeSilence time.Duration // after which a node counts as away; zero: NodeSilence
	Refresh     time.Duration // preparing a snapshot; zero: 30 min
	Drain       time.Duration // running steps are waited for at the end; zero: 20 s
}

func (t Times) withDefaults() Times {
	for _, f := range []struct {
		at  *time.Duration
		def time.Duration
	}{
		{&t.Queue, 24 * time.Hour}, {&t.Place, 2 * time.Minute}, {&t.Restore, 10 * time.Minute},
		{&t.WorkMargin, 2 * time.Minute}, {&t.Verify, 10 * time.Minute}, {&t.Publish, time.Hour}, {&t.Approval, approvalTime},
		{&t.Report, 72 * time.Hour}, {&t.StopGrace, stopGrace}, {&t.Heartbeat, time.Minute},
		{&t.Check, 10 * time.Second}, {&t.Sweep, time.Second}, {&t.Lease, time.Minute},
		{&t.NodeSilence, NodeSilence}, {&t.Refresh, 30 * time.Minute}, {&t.Drain, 20 * time.Second},
	} {
		*f.at = cmp.Or(*f.at, f.def)
	}
	return t
}

// Scheduler moves sessions on. Its methods may be called from several
// goroutines, also while Run is not running: then rows change and nothing
// happens until it does.
type Scheduler struct {
	o      Options
	db     *storage.DB
	clock  proc.Clock
	log    *slog.Logger
	times  Times
	began  time.Time // of this process's life
	secret []byte    // tokens and one-time secrets are derived from it
	insert *river.Client[*sql.Tx]
	locks  *locks
	rates  rates
	wakes  wakes
	asked  asked
}

// New returns a scheduler; Run starts it.
func New(o Options) (*Scheduler, error) {
	switch {
	case o.DB == nil, o.Blobs == nil, o.Effects == nil, o.Engine == nil:
		return nil, errors.New("the scheduler needs a database, blobs, effects and an engine")
	case len(o.GrantKey) != ed25519.PrivateKeySize:
		return nil, errors.New("the scheduler needs an Ed25519 key to sign grants with")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Limits.Total = cmp.Or(o.Limits.Total, 4)
	o.MaxRefreshes = cmp.Or(o.MaxRefreshes, 4)
	o.AuthorName = cmp.Or(o.AuthorName, "Inspect")
	o.AuthorEmail = cmp.Or(o.AuthorEmail, "inspect@localhost")
	if o.CloneURL == nil {
		o.CloneURL = func(storage.Repository) string { return "" }
	}
	mac := hmac.New(sha256.New, o.GrantKey.Seed())
	mac.Write([]byte("inspect runner secrets v1"))
	s := &Scheduler{
		o: o, db: o.DB, clock: o.Clock, log: o.Log, times: o.Times.withDefaults(), began: o.Clock.Now(),
		secret: mac.Sum(nil), locks: newLocks(o.DB.Pool()),
	}
	var err error
	if s.insert, err = newInsertClient(o.DB, o.Log); err != nil {
		return nil, fmt.Errorf("preparing the queue: %w", err)
	}
	return s, nil
}

// Run works until ctx ends, then takes no new step, waits for the running ones
// (at most Times.Drain, after which they are interrupted) and returns. Any
// number of schedulers may run on one database.
func (s *Scheduler) Run(ctx context.Context) error {
	workers, err := s.newWorkClient()
	if err != nil {
		return fmt.Errorf("preparing the queue's workers: %w", err)
	}
	defer s.locks.close()
	// The client is stopped by us, so that jobs are drained and not cut off.
	if err := workers.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("starting the queue's workers: %w", err)
	}
	var sweeping sync.WaitGroup
	sweeping.Go(func() { s.sweepLoop(ctx) })
	sweeping.Go(func() { s.sumLoop(ctx) })
	if s.o.KeepEvents > 0 {
		sweeping.Go(func() { s.retainLoop(ctx) })
	}
	<-ctx.Done()
	s.log.Info("the scheduler drains")
	sweeping.Wait()
	// Longer than the soft stop, which interrupts the steps that are left.
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.times.Drain+30*time.Second)
	defer cancel()
	if err := workers.Stop(stopCtx); err != nil {
		return fmt.Errorf("steps were still running when the scheduler had to end: %w", err)
	}
	return nil
}

// encode is JSON for one of our own types, which always marshal.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("scheduler: %T does not marshal: %v", v, err))
	}
	return b
}
