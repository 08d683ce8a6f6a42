package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/app/command"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/buildkite"
	"inspect/envs/spec"
	"inspect/storage"
)

// BuildEvent is the delivery that Buildkite's webhook makes; its action is the
// name of Buildkite's event.
const BuildEvent = "buildkite"

// built works on what Buildkite tells of a build. Its word only says that there is
// something to look at: what the build is now is read from the API.
func (in *Intake) built(ctx context.Context, d storage.Delivery) (result, error) {
	e, err := buildkite.ParseEvent(d.Action, d.Payload)
	if err != nil {
		return result{undecodable, err.Error()}, nil
	}
	if in.o.PipelineByID == nil || in.o.Builds == nil {
		return ignore("there is no API access token for Buildkite, or no policy")
	}
	pl, found := in.o.PipelineByID(e.Pipeline.ID)
	if !found || e.Build.Number == 0 {
		return ignore("the operator's policy does not name the pipeline, or the event names no build")
	}
	// Whoever follows the build of a push looks now.
	hurried, err := in.o.DB.Q().HurrySessionBuilds(ctx, storage.HurrySessionBuildsParams{Now: time.Now(), Sha: e.Build.Commit, PipelineID: pl.ID})
	if err != nil {
		return result{}, fmt.Errorf("looking for the sessions of %.12s: %w", e.Build.Commit, err)
	}
	if e.Name != "build.finished" && e.Name != "build.failing" {
		return result{done, fmt.Sprintf("%d sessions look at the build", hurried)}, nil
	}
	return in.repair(ctx, d.Guid, d.ReceivedAt, pl, e.Build.Number, e.Build.ID)
}

// BuildFailed does what a webhook about a failed build would have done, for
// whoever has found one without being told.
func (in *Intake) BuildFailed(ctx context.Context, pipeline string, number int) error {
	if in.o.PipelineByID == nil || in.o.Builds == nil {
		return nil
	}
	pl, found := in.o.PipelineByID(pipeline)
	if !found {
		return nil
	}
	_, err := in.repair(ctx, fmt.Sprintf("looked-%s-%d", pl.ID, number), time.Now(), pl, number, "")
	return err
}

// repair starts the repair of a build that has failed, where the operator and the
// repository want that. id is what the build is known by so far; empty: nothing is.
func (in *Intake) repair(ctx context.Context, guid string, at time.Time, pl policy.Pipeline, number int, id string) (result, error) {
	p := &piped{
		id: policy.PipelineID{Organization: pl.Organization, Pipeline: pl.ID}, pipeline: pl, found: true, act: spec.PipelineFix, number: number,
	}
	w := &wish{
		kind: kindStep, guid: guid, at: at, piped: p,
		actor: policy.Actor{Login: pipelineLogin(pl, "")}, need: policy.NeedWrite, command: command.Command{Name: command.Request},
	}
	if !slices.Contains(pl.May, spec.PipelineFix) {
		return ignore("the pipeline may not have its builds repaired")
	}
	if err := in.seeBuild(ctx, w, id); err != nil {
		return in.notSeen(err)
	}
	if b := p.build; b.Outcome() != buildkite.Failed || b.Blocked {
		return result{done, fmt.Sprintf("build %d is %s", b.Number, b.Outcome())}, nil
	}
	if placed, err := in.builtPlace(ctx, w); err != nil || !placed {
		return result{done, "the pipeline builds no repository that it is bound to"}, err
	}
	// A build that fails twice, as when a job is tried again, is one wish.
	w.key = "build:" + p.build.ID
	return in.pipe(ctx, w, nil, func() error {
		if err := in.pipelineMay(ctx, w, p.build.ID, p.build.Branch, p.build.Commit); err != nil {
			return err
		}
		return in.fix(ctx, w, fixAsked{told: true})
	})
}

// notSeen ends a delivery about a build that cannot be read; other errors are
// tried again.
func (in *Intake) notSeen(err error) (result, error) {
	var no *denial
	if errors.As(err, &no) {
		in.log.Warn("a build that a webhook told of is not looked at", "why", no.Words)
		return result{done, no.Words}, nil
	}
	return result{}, err
}

// builtPlace finds the repository that the pipeline builds among those it is bound to.
func (in *Intake) builtPlace(ctx context.Context, w *wish) (bool, error) {
	for _, bound := range w.piped.pipeline.Repositories {
		row, err := in.boundRow(ctx, bound)
		if storage.IsMissing(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("looking for the repository of a pipeline: %w", err)
		}
		repo := github.Repo{ID: row.ID, Owner: row.Owner, Name: row.Name}
		if in.o.CloneURL != nil && buildkite.SameRepository(w.piped.build.Pipeline.Repository, in.o.CloneURL(repo)) {
			in.at(w, row)
			return true, nil
		}
	}
	return false, nil
}

// boundRow is what we know of a repository that a pipeline is bound to.
func (in *Intake) boundRow(ctx context.Context, r spec.PipelineRepository) (storage.Repository, error) {
	if r.ID != 0 {
		return in.o.DB.Q().InstalledRepository(ctx, r.ID)
	}
	return in.named(ctx, r.Name)
}

func (in *Intake) named(ctx context.Context, ownerName string) (storage.Repository, error) {
	owner, name, _ := strings.Cut(ownerName, "/")
	return in.o.DB.Q().RepositoryByName(ctx, storage.RepositoryByNameParams{Owner: owner, Name: name})
}
