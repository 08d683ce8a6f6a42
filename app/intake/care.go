package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"inspect/app/comment"
	"inspect/app/diagnosis"
	"inspect/app/doctor"
	"inspect/scheduler"
	"inspect/storage"
)

// refresh has the snapshot built at the head of the default branch, also where
// the last try failed.
func (in *Intake) refresh(ctx context.Context, w *wish) error {
	if _, allowed := in.floor(w.repo); !allowed {
		return in.end(ctx, w, outcomeReplied, comment.NotAllowed())
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if err := in.saw(ctx, tx.Q(), w, w.repository.DefaultBranch); err != nil {
			return err
		}
		return scheduler.AskBuild(ctx, tx.Q(), w.repo.ID, false, time.Now())
	})
	if err != nil {
		return err
	}
	return in.end(ctx, w, outcomeReplied, comment.Refreshing())
}

// doctor says what keeps sessions from working here, before money is spent.
func (in *Intake) doctor(ctx context.Context, w *wish) error {
	bounds, allowed := in.floor(w.repo)
	if !allowed {
		return in.end(ctx, w, outcomeReplied, comment.NotAllowed())
	}
	env, err := in.head(ctx, in.gh(w), w.repo, w.repository.DefaultBranch)
	var words *answer
	if errors.As(err, &words) {
		return in.end(ctx, w, outcomeReplied, words.words)
	}
	if err != nil {
		return err
	}
	required, _ := bounds.RequireProtection()
	r := doctor.Repository{Repo: w.repo, DefaultBranch: env.branch, Required: required, NoSnapshots: in.o.Snapshots == nil}
	if in.o.Snapshots != nil {
		if r.Snapshots, err = in.o.Snapshots(ctx, w.repo.ID); err != nil {
			return fmt.Errorf("reading the snapshots: %w", err)
		}
	}
	return in.end(ctx, w, outcomeReplied, comment.Doctor(doctor.ExamineRepository(ctx, in.gh(w), r)))
}

// Snapshots are the current ones of a repository.
type Snapshots func(ctx context.Context, repositoryID int64) ([]diagnosis.Snapshot, error)
