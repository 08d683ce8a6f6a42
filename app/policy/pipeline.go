package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"inspect/envs/spec"
)

// PipelineID is a pipeline of Buildkite by ids that are never used again.
type PipelineID struct{ Organization, Pipeline string }

// Pipeline is what the floor says of a pipeline.
type Pipeline struct {
	spec.FloorPipeline
	From string // "floor: buildkite.pipelines[0]"
}

// Reasons of a decision about a pipeline.
const (
	PipelineUnknown    = "pipeline_unknown"
	PipelineRepository = "pipeline_repository"
	PipelineAct        = "pipeline_act"
	PipelineFork       = "pipeline_fork"
	PipelineOwnBranch  = "pipeline_own_branch"
	PipelineUnseen     = "pipeline_unseen"
)

// Pipeline finds a pipeline by both of its ids, or says that it may ask for
// nothing. Names play no part: another organization's pipeline of the same name
// is another pipeline.
func (f Floor) Pipeline(id PipelineID) (Pipeline, bool) {
	for i, p := range f.file.Pipelines {
		if p.ID == id.Pipeline && p.Organization == id.Organization && p.ID != "" && p.Organization != "" {
			return Pipeline{p, fmt.Sprintf("floor: buildkite.pipelines[%d]", i)}, true
		}
	}
	return Pipeline{}, false
}

// PipelineByID finds a pipeline by its own id alone, where its organization is not
// told. No two pipelines of Buildkite have one id.
func (f Floor) PipelineByID(pipeline string) (Pipeline, bool) {
	for _, p := range f.file.Pipelines {
		if p.ID == strings.ToLower(pipeline) {
			return f.Pipeline(PipelineID{p.Organization, p.ID})
		}
	}
	return Pipeline{}, false
}

// PipelinesOf are those that are bound to a repository.
func (f Floor) PipelinesOf(repoID int64, ownerName string) (out []Pipeline) {
	for i, p := range f.file.Pipelines {
		if one := (Pipeline{p, fmt.Sprintf("floor: buildkite.pipelines[%d]", i)}); one.Bound(repoID, ownerName) {
			out = append(out, one)
		}
	}
	return out
}

// HasPipelines says whether any pipeline may ask for anything.
func (f Floor) HasPipelines() bool { return len(f.file.Pipelines) > 0 }

// Bound says whether the pipeline may ask for a repository.
func (p Pipeline) Bound(repoID int64, ownerName string) bool {
	return slices.ContainsFunc(p.Repositories, func(r spec.PipelineRepository) bool {
		return r.ID != 0 && r.ID == repoID || r.Name != "" && r.Name == strings.ToLower(ownerName)
	})
}

// BuildFacts are what is known of the build that asks.
type BuildFacts struct {
	// Seen: the build was read from Buildkite. What else there is comes from it,
	// and from our own records of what was pushed.
	Seen      bool
	Fork      bool // of a pull request from another repository, or nobody knows
	OwnBranch bool // it builds what a session pushed
}

// DecidePipeline says whether a build of a pipeline may have act done in a
// repository. Whatever is not known denies.
func DecidePipeline(p Pipeline, found bool, repoID int64, ownerName, act string, b BuildFacts) ActorDecision {
	switch {
	case !found:
		return deny(PipelineUnknown, "the operator's policy does not name the pipeline")
	case !p.Bound(repoID, ownerName):
		return deny(PipelineRepository, "the pipeline is not bound to the repository")
	case !slices.Contains(p.May, act):
		return deny(PipelineAct, "the pipeline may not ask for "+act)
	case b.Fork:
		return deny(PipelineFork, "the build is of a fork's pull request, or that is not known")
	case !b.Seen && !p.NoForks:
		return deny(PipelineUnseen, "the build could not be looked up, and the operator does not say that the pipeline builds no forks (no_forks)")
	case b.OwnBranch && !p.OwnBranches:
		return deny(PipelineOwnBranch, "the build is of a branch that a session pushed, and the operator does not let those start sessions (own_branches)")
	}
	return ActorDecision{Allow: true, Reason: ActorAllowed, Words: "the operator's policy lets the pipeline ask for it (" + p.From + ")"}
}

// FixAttempts is how many sessions may try to fix one commit: the stricter of the
// floor and the repository.
func (p Pipeline) FixAttempts(t spec.Triggers) int {
	return min(max(p.Attempts, 1), cmp.Or(t.BuildkiteAttempts, 1))
}

// BuildWanted is what is done about the builds of what a session pushed.
type BuildWanted struct {
	Pipeline Pipeline
	Create   bool
	spec.BuildkiteChecks
}

// Builds says which pipelines' builds of a push are looked at: those that are
// bound to the repository and whose builds the operator lets be looked at. What
// the repository asks for beyond that is not done.
func (f Floor) Builds(repoID int64, ownerName string, c spec.BuildkiteChecks) (out []BuildWanted) {
	if c.Builds == "" {
		return nil
	}
	c.Timeout = cmp.Or(c.Timeout, spec.DefaultBuildTimeout)
	for _, p := range f.PipelinesOf(repoID, ownerName) {
		if p.FloorPipeline.Builds != "" {
			out = append(out, BuildWanted{p, c.Builds == spec.BuildsCreate && p.FloorPipeline.Builds == spec.BuildsCreate, c})
		}
	}
	return out
}

// ExplainPipelines are the lines of what counts for a repository that are about
// Buildkite.
func (f Floor) ExplainPipelines(repoID int64, ownerName string, sp spec.Spec) (out []Value) {
	for _, p := range f.PipelinesOf(repoID, ownerName) {
		add := func(key, value string) { out = append(out, Value{Key: "buildkite." + key, Value: value, From: p.From}) }
		add("pipeline", p.Slug+" ("+p.ID+" of "+p.Organization+")")
		add("may", words(p.May))
		add("own_branches", fmt.Sprint(p.OwnBranches))
		add("no_forks", fmt.Sprint(p.NoForks))
		attempts := Value{Key: "buildkite.attempts", Value: intWords(p.FixAttempts(sp.Triggers)), From: p.From}
		if asked := cmp.Or(sp.Triggers.BuildkiteAttempts, 1); asked > p.Attempts {
			attempts.Instead = intWords(asked)
		} else if asked < p.Attempts {
			attempts.From = spec.FileName
		}
		out = append(out, attempts)
		builds := Value{Key: "buildkite.builds", Value: cmp.Or(sp.Checks.Buildkite.Builds, "none"), From: spec.FileName}
		switch most := p.FloorPipeline.Builds; {
		case sp.Checks.Buildkite.Builds == "":
			builds.From = fromDefault
		case most == "" || most == spec.BuildsFollow && builds.Value == spec.BuildsCreate:
			builds.Value, builds.Instead, builds.From = cmp.Or(most, "none"), builds.Value, p.From
		}
		out = append(out, builds)
	}
	if len(out) > 0 {
		e := effect{}
		e.plain("triggers.on_buildkite_failure", fmt.Sprint(sp.Triggers.OnBuildkiteFailure), "false")
		e.plain("checks.buildkite.required", fmt.Sprint(sp.Checks.Buildkite.Required), "false")
		e.plain("checks.buildkite.timeout", durationWords(cmp.Or(sp.Checks.Buildkite.Timeout, spec.DefaultBuildTimeout)), durationWords(spec.DefaultBuildTimeout))
		out = append(out, e.values...)
	}
	return out
}
