package intake

import (
	"context"
	"fmt"

	"inspect/scheduler"
	"inspect/storage"
)

// repositoryEvent handles the event "repository". A repository is known by its
// number: another name or owner changes nothing but how it is called. One that
// takes nothing any more has its sessions end.
func (in *Intake) repositoryEvent(ctx context.Context, p payload) (result, error) {
	repo, ok := p.known()
	if !ok {
		return ignore("the event does not name installation and repository")
	}
	switch p.Action {
	case "renamed", "transferred", "edited", "unarchived", "archived", "deleted":
	default:
		return ignore("nothing to do for the action %q", p.Action)
	}
	q := in.o.DB.Q()
	if left, err := in.left(ctx, p.Installation.ID, repo.ID); err != nil {
		return result{}, err
	} else if left {
		return result{done, "the repository has another installation by now"}, nil
	}
	if p.Action == "deleted" {
		if err := q.RemoveRepository(ctx, storage.RemoveRepositoryParams{ID: repo.ID, InstallationID: p.Installation.ID}); err != nil {
			return result{}, fmt.Errorf("recording that repository %d was deleted: %w", repo.ID, err)
		}
	} else if err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		return sawRepositories(ctx, tx.Q(), p.Installation.ID, []repository{*p.Repository})
	}); err != nil {
		return result{}, fmt.Errorf("recording what repository %d is called: %w", repo.ID, err)
	}
	if p.Action != "archived" && p.Action != "deleted" {
		return result{done, "the repository was " + p.Action}, nil
	}
	open, err := q.OpenSessionsOfRepository(ctx, repo.ID)
	if err != nil {
		return result{}, fmt.Errorf("looking for the sessions of repository %d: %w", repo.ID, err)
	}
	if p.Action == "archived" && len(open) > 0 { // the event may be days old
		now, err := in.o.GitHub(p.Installation.ID).Repository(ctx, repo.ID)
		if err != nil && !final(err) {
			return result{}, fmt.Errorf("reading whether repository %d is archived: %w", repo.ID, err)
		}
		if err == nil && !now.Archived {
			return result{done, "the repository was archived, but is not any more"}, nil
		}
	}
	for _, id := range open {
		if err := in.o.Sessions.Supersede(ctx, id, scheduler.ReasonArchived, "The repository was "+p.Action+" while this session was at work. The work is kept in the evidence."); err != nil {
			return result{}, err
		}
	}
	return result{done, fmt.Sprintf("the repository was %s; %d sessions end", p.Action, len(open))}, nil
}

// left says whether an event is of an installation that the repository has left: it
// was transferred since, and the event is late.
func (in *Intake) left(ctx context.Context, installation, repository int64) (bool, error) {
	row, err := in.o.DB.Q().GetRepositoryRow(ctx, repository)
	if storage.IsMissing(err) || err == nil && (row.InstallationID == installation || row.RemovedAt.Valid) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking up repository %d: %w", repository, err)
	}
	has, err := in.has(ctx, installation, repository)
	return !has, err
}

// has asks GitHub whether an installation reaches a repository.
func (in *Intake) has(ctx context.Context, installation, repository int64) (bool, error) {
	_, err := in.o.GitHub(installation).Repository(ctx, repository)
	if err != nil && !final(err) {
		return false, fmt.Errorf("asking whether installation %d has repository %d: %w", installation, repository, err)
	}
	return err == nil, nil
}
