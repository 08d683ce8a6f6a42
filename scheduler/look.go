package scheduler

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"

	"inspect/envs/spec"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// A look reads the head of a repository's default branch and what the
// configuration there describes, so that its snapshots follow. There is one
// every refresh.every while environments of the repository are used, one after
// a push, and one when a person asks.

// Times of looks.
const (
	usedWithin  = 7 * 24 * time.Hour // an environment that was used so lately is refreshed
	lookClaim   = 5 * time.Minute    // a look that was lost is repeated after it
	lookTimeout = 2 * time.Minute
	lookRetry   = time.Hour // the longest wait after looks that failed
)

// Head is what a look at a repository found.
type Head struct {
	RepositoryID int64
	Branch       string // the default branch
	Commit       string // its head
	// Spec is what the configuration there describes, within the floor. nil: the
	// commit is the one of the look before, so nothing has changed; or Words say
	// why there is nothing to prepare.
	Spec  *spec.Spec
	Words string
}

// Prepare has the environment of a head prepared where it is not yet. A spec
// that names a secret which is not set is a *secrets.Problem.
func (s *Scheduler) Prepare(ctx context.Context, tx *storage.Tx, h Head) error {
	q, now := tx.Q(), s.clock.Now()
	repo, err := q.LockRepository(ctx, h.RepositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", h.RepositoryID, err)
	}
	head := storage.SetHeadParams{ID: repo.ID, HeadSha: h.Commit, HeadWords: clip(h.Words, 1000), Now: now}
	switch {
	case h.Spec != nil:
		if err := s.haveSecrets(ctx, q, repo.ID, h.Spec.SecretNames()); err != nil {
			return err
		}
		digest := h.Spec.EnvironmentDigest()
		env, err := q.PrepareEnvironment(ctx, storage.PrepareEnvironmentParams{
			ID: environmentID(repo.ID, digest), RepositoryID: repo.ID, ConfigDigest: digest, Spec: encode(h.Spec), CreatedAt: now,
		})
		if err != nil {
			return fmt.Errorf("storing an environment: %w", err)
		}
		head.HeadEnvironment = env.ID
	case h.Words == "":
		head.HeadEnvironment, head.HeadWords = repo.HeadEnvironment, repo.HeadWords
	}
	if err := q.SetHead(ctx, head); err != nil {
		return fmt.Errorf("storing the head of repository %d: %w", repo.ID, err)
	}
	if err := q.ScheduleLook(ctx, storage.ScheduleLookParams{ID: repo.ID, At: now.Add(s.every(h.Spec))}); err != nil {
		return err
	}
	if head.HeadEnvironment == "" {
		return nil
	}
	env, err := q.LockEnvironment(ctx, head.HeadEnvironment)
	if err != nil {
		return fmt.Errorf("reading environment %s: %w", head.HeadEnvironment, err)
	}
	return s.refreshAll(ctx, q, env, wanted{branch: h.Branch, commit: h.Commit, afresh: repo.Build == buildAfresh, asked: repo.Build != ""})
}

func environmentID(repositoryID int64, digest string) string {
	return fmt.Sprintf("env-%d-%.8s", repositoryID, digest)
}

// every is the time between looks for a spec; nil is one of which nothing is known.
func (s *Scheduler) every(sp *spec.Spec) time.Duration {
	if sp == nil || sp.Refresh.Every <= 0 {
		return spec.Default().Refresh.Every
	}
	return sp.Refresh.Every
}

// Pushed says that a default branch has moved. Many pushes before the look at
// it are one.
func (s *Scheduler) Pushed(ctx context.Context, tx *storage.Tx, repositoryID int64) error {
	now := s.clock.Now()
	n, err := tx.Q().AskLook(ctx, storage.AskLookParams{ID: repositoryID, Now: now, Since: now.Add(-usedWithin)})
	if err != nil {
		return fmt.Errorf("asking for a look at repository %d: %w", repositoryID, err)
	}
	if n == 0 {
		return nil
	}
	if _, err := s.insert.InsertTx(ctx, tx.SQL(), LookArgs{Repository: repositoryID}, lookOpts()); err != nil {
		return fmt.Errorf("enqueueing a look at a repository: %w", err)
	}
	return nil
}

// What a person asks for.
const (
	buildNow    = "build"
	buildAfresh = "afresh"
)

// AskBuild has a repository's snapshot prepared at the head of its default
// branch as soon as a scheduler sees it, also where nobody uses an environment
// and where the last try failed; afresh, from nothing and even if nothing has
// changed. It needs no running scheduler.
func AskBuild(ctx context.Context, q *storage.Queries, repositoryID int64, afresh bool, now time.Time) error {
	build := buildNow
	if afresh {
		build = buildAfresh
	}
	if err := q.AskBuild(ctx, storage.AskBuildParams{ID: repositoryID, Build: build, Now: now}); err != nil {
		return fmt.Errorf("asking for a snapshot of repository %d: %w", repositoryID, err)
	}
	return nil
}

// LookArgs is the job that looks at one repository's default branch.
type LookArgs struct {
	Repository int64 `json:"repository"`
}

// Kind implements river.JobArgs.
func (LookArgs) Kind() string { return "look" }

func lookOpts() *river.InsertOpts {
	return &river.InsertOpts{Queue: queueLooks, MaxAttempts: 1}
}

// sweepLooks enqueues the looks that are due.
func (s *Scheduler) sweepLooks(ctx context.Context) error {
	if s.o.Look == nil {
		return nil
	}
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		ids, err := tx.Q().DueLooks(ctx, storage.DueLooksParams{Now: s.clock.Now(), AtMost: sweepBatch})
		if err != nil {
			return err
		}
		var jobs []river.InsertManyParams
		for _, id := range ids {
			jobs = append(jobs, river.InsertManyParams{Args: LookArgs{Repository: id}, InsertOpts: lookOpts()})
		}
		return s.insertMany(ctx, tx, jobs)
	})
	if err != nil {
		return fmt.Errorf("sweeping looks at repositories: %w", err)
	}
	return nil
}

type lookWorker struct {
	river.WorkerDefaults[LookArgs]
	s *Scheduler
}

func (w *lookWorker) Timeout(*river.Job[LookArgs]) time.Duration { return lookTimeout }

func (w *lookWorker) Work(ctx context.Context, job *river.Job[LookArgs]) error {
	err := w.s.look(ctx, job.Args.Repository)
	switch {
	case errors.Is(err, errBusy):
		return river.JobSnooze(500 * time.Millisecond)
	case err != nil:
		w.s.log.Warn("a repository's branch could not be looked at", "repository", job.Args.Repository, "error", err)
	}
	return nil
}

// look looks at a repository if that is due.
func (s *Scheduler) look(ctx context.Context, id int64) error {
	if s.o.Look == nil {
		return nil
	}
	unlock, ok, err := s.locks.try(ctx, lookLock(id))
	if err != nil {
		return err
	}
	if !ok {
		return errBusy
	}
	defer unlock()
	now := s.clock.Now()
	repo, err := s.db.Q().TakeLook(ctx, storage.TakeLookParams{ID: id, Now: now, ClaimUntil: now.Add(lookClaim)})
	if storage.IsMissing(err) {
		return nil // somebody was faster
	}
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", id, err)
	}
	used, err := s.db.Q().RepositoryInUse(ctx, storage.RepositoryInUseParams{RepositoryID: id, Since: now.Add(-usedWithin)})
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", id, err)
	}
	end := storage.EndLookParams{ID: id, Claimed: repo.LookAt.Time}
	var cause error
	if used || repo.Build != "" {
		cause = s.o.Look(ctx, id)
		end.Next = sql.NullTime{Time: now.Add(s.headEvery(ctx, id)), Valid: true}
		if p := new(secrets.Problem); errors.As(cause, &p) {
			cause = s.noHead(ctx, id, p.Error())
		}
	}
	ctx = context.WithoutCancel(ctx)
	if cause != nil {
		end.Tries, end.Error = repo.LookTries+1, clip(cause.Error(), 1000)
		end.Next.Time = retryTime(s.clock.Now(), cause, int(end.Tries)+3, lookRetry)
	}
	return errors.Join(cause, s.db.Q().EndLook(ctx, end))
}

// noHead notes that what the head describes cannot be prepared.
func (s *Scheduler) noHead(ctx context.Context, id int64, words string) error {
	return s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		repo, err := tx.Q().LockRepository(ctx, id)
		if err != nil {
			return err
		}
		return tx.Q().SetHead(ctx, storage.SetHeadParams{ID: id, HeadWords: clip(words, 1000), Now: s.clock.Now(), HeadSha: repo.HeadSha})
	})
}

// headEvery is the time between looks at a repository.
func (s *Scheduler) headEvery(ctx context.Context, id int64) time.Duration {
	repo, err := s.db.Q().GetRepositoryRow(ctx, id)
	if err != nil || repo.HeadEnvironment == "" {
		return s.every(nil)
	}
	env, err := s.db.Q().GetEnvironment(ctx, repo.HeadEnvironment)
	if err != nil {
		return s.every(nil)
	}
	b, err := s.boundEnvironment(ctx, s.db.Q(), env)
	if err != nil {
		return s.every(nil)
	}
	return s.every(&b.Spec)
}
