package intake

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"inspect/app/github"
	"inspect/scheduler"
	"inspect/storage"
)

// push handles the event of that name. A push to the default branch has its
// head looked at: the event may be late, the head is not.
func (in *Intake) push(ctx context.Context, p payload) (result, error) {
	repo, ok := p.known()
	if !ok || p.Repository.DefaultBranch == "" {
		return ignore("the event does not name installation, repository and default branch")
	}
	branch, isBranch := strings.CutPrefix(p.Ref, "refs/heads/")
	if isBranch && in.o.Fates != nil {
		if err := in.landed(ctx, p, repo, branch); err != nil {
			return result{}, err
		}
	}
	if !isBranch || branch != p.Repository.DefaultBranch {
		return in.pushedHead(ctx, p, repo, branch)
	}
	if p.Deleted {
		return ignore("the default branch did not move")
	}
	err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if err := sawRepositories(ctx, tx.Q(), p.Installation.ID, []repository{*p.Repository}); err != nil {
			return err
		}
		return in.o.Sessions.Pushed(ctx, tx, repo.ID)
	})
	if err != nil {
		return result{}, fmt.Errorf("taking a push: %w", err)
	}
	return result{done, "the default branch is looked at if environments of the repository are used"}, nil
}

// pushedHead looks at the pull requests from a branch that moved or is gone and
// that sessions work on.
func (in *Intake) pushedHead(ctx context.Context, p payload, repo github.Repo, branch string) (result, error) {
	open, err := in.o.DB.Q().OpenSessionsOfHead(ctx, storage.OpenSessionsOfHeadParams{RepositoryID: repo.ID, Branch: storable(branch, 300)})
	if err != nil {
		return result{}, fmt.Errorf("looking for the sessions on branch %s: %w", branch, err)
	}
	if len(open) == 0 {
		return ignore("the default branch did not move")
	}
	ended := 0
	for i := range open {
		n, err := in.look(ctx, p, repo, int(open[i].PullNumber), open[i:i+1])
		if err != nil {
			return result{}, err
		}
		ended += n
	}
	return result{done, fmt.Sprintf("%d of %d sessions on that branch end", ended, len(open))}, nil
}

// Look reads the head of a repository's default branch and, if it has moved,
// what the configuration there describes, and has that prepared.
func (in *Intake) Look(ctx context.Context, repositoryID int64) error {
	row, err := in.o.DB.Q().GetRepositoryRow(ctx, repositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", repositoryID, err)
	}
	repo := github.Repo{ID: row.ID, Owner: row.Owner, Name: row.Name}
	h, err := in.lookAt(ctx, repo, row)
	var words *answer
	if errors.As(err, &words) {
		h.Words, err = strings.TrimSpace(words.words), nil
	}
	if err != nil {
		return err
	}
	return in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if h.Branch != row.DefaultBranch {
			if err := tx.Q().SawRepository(ctx, storage.SawRepositoryParams{
				ID: row.ID, InstallationID: row.InstallationID, DefaultBranch: storable(h.Branch, 300),
			}); err != nil {
				return err
			}
		}
		return in.o.Sessions.Prepare(ctx, tx, h)
	})
}

// lookAt asks GitHub. An answer is why there is nothing to prepare.
func (in *Intake) lookAt(ctx context.Context, repo github.Repo, row storage.Repository) (scheduler.Head, error) {
	h := scheduler.Head{RepositoryID: repo.ID, Branch: row.DefaultBranch, Commit: row.HeadSha}
	bounds, allowed := in.floor(repo)
	if !allowed {
		return h, &answer{"The operator does not let this repository use Inspect."}
	}
	client := in.o.GitHub(row.InstallationID)
	env, err := in.head(ctx, client, repo, row.DefaultBranch)
	var words *answer
	if errors.As(err, &words) && row.DefaultBranch != "" { // another branch may be the default by now
		env, err = in.head(ctx, client, repo, "")
	}
	if err != nil {
		return h, err
	}
	h.Branch, h.Commit = env.branch, env.sha
	if env.sha == row.HeadSha && row.HeadEnvironment != "" {
		return h, nil
	}
	if env, err = in.describe(ctx, client, repo, env); err != nil {
		return h, err
	}
	if env.spec, err = in.bound(env.spec, bounds, repo); err != nil {
		return h, err
	}
	h.Spec = &env.spec
	return h, nil
}
