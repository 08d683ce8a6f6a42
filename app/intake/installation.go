package intake

import (
	"context"
	"errors"
	"fmt"

	"inspect/app/github"
	"inspect/scheduler"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// installation handles the event of that name.
func (in *Intake) installation(ctx context.Context, p payload) (result, error) {
	if p.Installation == nil || p.Installation.ID <= 0 {
		return ignore("the event names no installation")
	}
	id := p.Installation.ID
	switch p.Action {
	case "created", "new_permissions_accepted", "unsuspend":
		var err error
		if p.Repositories, err = in.still(ctx, id, p.Repositories); err != nil {
			return result{}, err
		}
		err = in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
			if err := tx.Q().SawInstallation(ctx, storage.SawInstallationParams{ID: id, Account: storable(p.Installation.Account.login(), 100)}); err != nil {
				return err
			}
			if err := tx.Q().UnsuspendInstallation(ctx, id); err != nil {
				return err
			}
			return sawRepositories(ctx, tx.Q(), id, p.Repositories)
		})
		if err != nil {
			return result{}, fmt.Errorf("storing the installation: %w", err)
		}
		return in.prepare(ctx, id, p.Repositories)
	case "deleted":
		err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
			if err := tx.Q().DeleteInstallation(ctx, id); err != nil {
				return err
			}
			return tx.Q().RemoveRepositoriesOf(ctx, id)
		})
		if err != nil {
			return result{}, fmt.Errorf("removing the installation: %w", err)
		}
		return result{done, "the installation is gone"}, nil
	case "suspend":
		if on, err := in.atWorkAgain(ctx, id); err != nil {
			return result{}, err
		} else if on {
			return result{done, "the installation was suspended, but is not any more"}, nil
		}
		if err := in.o.DB.Q().SuspendInstallation(ctx, id); err != nil {
			return result{}, fmt.Errorf("storing the suspension: %w", err)
		}
		return result{done, "the installation is suspended"}, nil
	}
	return ignore("nothing to do for the action %q", p.Action)
}

// atWorkAgain says whether an installation that is said to be suspended answers:
// the event may be days old.
func (in *Intake) atWorkAgain(ctx context.Context, id int64) (bool, error) {
	repo, err := in.o.DB.Q().RepositoryOfInstallation(ctx, id)
	if storage.IsMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a repository of installation %d: %w", id, err)
	}
	_, err = in.o.GitHub(id).Repository(ctx, repo)
	if err != nil && !final(err) {
		return false, fmt.Errorf("asking whether installation %d is suspended: %w", id, err)
	}
	return err == nil, nil
}

// installationRepositories handles the event of that name.
func (in *Intake) installationRepositories(ctx context.Context, p payload) (result, error) {
	if p.Installation == nil || p.Installation.ID <= 0 {
		return ignore("the event names no installation")
	}
	id := p.Installation.ID
	added, err := in.still(ctx, id, p.RepositoriesAdded)
	if err != nil {
		return result{}, err
	}
	removed, err := in.without(ctx, id, p.RepositoriesRemoved)
	if err != nil {
		return result{}, err
	}
	err = in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if err := tx.Q().SawInstallation(ctx, storage.SawInstallationParams{ID: id, Account: storable(p.Installation.Account.login(), 100)}); err != nil {
			return err
		}
		for _, r := range removed {
			if err := tx.Q().RemoveRepository(ctx, storage.RemoveRepositoryParams{ID: r.ID, InstallationID: id}); err != nil {
				return err
			}
		}
		return sawRepositories(ctx, tx.Q(), id, added)
	})
	if err != nil {
		return result{}, fmt.Errorf("storing the repositories: %w", err)
	}
	return in.prepare(ctx, id, added)
}

// still are the repositories of a list that an installation got and that have not
// left it since: the event may be days old.
func (in *Intake) still(ctx context.Context, id int64, list []repository) (out []repository, err error) {
	for _, r := range list {
		if left, err := in.left(ctx, id, r.ID); err != nil {
			return nil, err
		} else if !left {
			out = append(out, r)
		}
	}
	return out, nil
}

// without are those of a list that an installation lost and has not got back. GitHub
// is asked only where a session is at work; looking after it finds the others.
func (in *Intake) without(ctx context.Context, id int64, list []repository) (out []repository, err error) {
	for _, r := range list {
		open, err := in.o.DB.Q().OpenSessionsOfRepository(ctx, r.ID)
		if err != nil {
			return nil, fmt.Errorf("looking for the sessions of repository %d: %w", r.ID, err)
		}
		if len(open) > 0 {
			if has, err := in.has(ctx, id, r.ID); err != nil {
				return nil, err
			} else if has {
				continue
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func sawRepositories(ctx context.Context, q *storage.Queries, installation int64, list []repository) error {
	for _, r := range list {
		owner, name := r.names()
		if r.ID <= 0 || owner == "" || name == "" {
			continue
		}
		err := q.SawRepository(ctx, storage.SawRepositoryParams{
			ID: r.ID, InstallationID: installation, Owner: storable(owner, 100), Name: storable(name, 200), DefaultBranch: storable(r.DefaultBranch, 300),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare has environments made before anybody asks for them. What is wrong
// with one repository does not keep the others from it; only GitHub being
// away makes the delivery be worked on again.
func (in *Intake) prepare(ctx context.Context, installation int64, list []repository) (result, error) {
	var passing error
	prepared := 0
	for i, r := range list {
		if i >= in.o.Prepare {
			break
		}
		ok, err := in.prepareOne(ctx, installation, r)
		var words *answer
		var limited *github.RateLimited
		switch {
		case errors.As(err, &words), err != nil && final(err):
			in.log.Info("an environment was not prepared", "repository", r.ID, "error", err)
		case errors.As(err, &limited), ctx.Err() != nil:
			return result{}, err // the others would not fare better
		case err != nil:
			passing = err
		case ok:
			prepared++
		}
	}
	if passing != nil {
		return result{}, passing
	}
	return result{done, fmt.Sprintf("%d repositories, %d environments prepared", len(list), prepared)}, nil
}

func (in *Intake) prepareOne(ctx context.Context, installation int64, r repository) (bool, error) {
	owner, name := r.names()
	if r.ID <= 0 || owner == "" || name == "" {
		return false, nil
	}
	client := in.o.GitHub(installation)
	info, err := client.Repository(ctx, r.ID)
	if err != nil {
		return false, fmt.Errorf("reading repository %d: %w", r.ID, err)
	}
	if info.Archived || info.DefaultBranch == "" {
		return false, nil
	}
	bounds, allowed := in.floor(info.Repo)
	if !allowed {
		return false, nil
	}
	env, err := in.environment(ctx, client, info.Repo, info.DefaultBranch)
	if err != nil {
		return false, err
	}
	if env.spec, err = in.bound(env.spec, bounds, info.Repo); err != nil {
		return false, err
	}
	err = in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if err := tx.Q().SawRepository(ctx, storage.SawRepositoryParams{
			ID: r.ID, InstallationID: installation, Owner: storable(info.Repo.Owner, 100), Name: storable(info.Repo.Name, 200), DefaultBranch: storable(env.branch, 300),
		}); err != nil {
			return err
		}
		err := in.o.Sessions.Prepare(ctx, tx, scheduler.Head{RepositoryID: r.ID, Branch: env.branch, Commit: env.sha, Spec: &env.spec})
		var p *secrets.Problem
		if errors.As(err, &p) {
			return &answer{p.Words}
		}
		return err
	})
	return err == nil, err
}
