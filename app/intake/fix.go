package intake

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	agent "inspect/app/context"
	"inspect/app/github"
	"inspect/checks/buildkite"
	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/storage"
)

// maxFixesOfBranch is how many sessions may try to repair builds of one branch in
// a day, whatever commits it had: each push of ours is a new commit.
const maxFixesOfBranch = 10

// fixAsked is how the repair of a build is asked for.
type fixAsked struct {
	base string // a step's word for the branch; empty: the build's
	// told: nobody asked, a webhook told of the build. Then the repository must want
	// that, and the branch be ours or its pull request carry a label.
	told bool
}

// fix starts a session that repairs the build of w, which must have been read and
// have failed, if what it built is still what the branch has. A step that asks is
// a job of the build itself: it has not ended then.
func (in *Intake) fix(ctx context.Context, w *wish, a fixAsked) error {
	b := w.piped.build
	switch {
	case b == nil:
		return &answer{"A build can be repaired only where Inspect can read it: whoever runs it has configured no API access token for Buildkite."}
	case !b.Red(), a.told && (b.Outcome() != buildkite.Failed || b.Blocked):
		return &answer{fmt.Sprintf("Build %d has not failed: it is %s.", b.Number, b.Outcome())}
	case in.o.CloneURL == nil || !buildkite.SameRepository(b.Pipeline.Repository, in.o.CloneURL(w.repo)):
		return &answer{"The pipeline does not build this repository."}
	case a.base != "" && a.base != b.Branch:
		return &answer{fmt.Sprintf("Build %d is of the branch %.200s: what is repaired is that.", b.Number, b.Branch)}
	}
	env, bounds, err := in.open(ctx, w)
	if err != nil {
		return err
	}
	if a.told && !env.spec.Triggers.OnBuildkiteFailure {
		return &refusal{env.source + " does not say triggers.on_buildkite_failure"}
	}
	w.piped.fixes, w.piped.branch = b.Commit, b.Branch
	at, err := in.fixTarget(ctx, w, a, env)
	if err != nil {
		return err
	}
	w.issue.Title = fmt.Sprintf("Repair build %d of %s", b.Number, w.piped.pipeline.Slug)
	w.command.Text = w.issue.Title
	base, deliver, result := b.Branch, "", ""
	if at != nil {
		base = at.HeadRef
		if s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, at.Number); err != nil {
			return err
		} else if found {
			return in.busyWith(ctx, w, s)
		}
	}
	if err := in.mayTry(ctx, in.o.DB.Q(), w, env.spec); err != nil {
		return err
	}
	if err := in.fit(ctx, w, &env, bounds, false); err != nil {
		return err
	}
	if at != nil {
		if deliver, err = in.delivery(ctx, w, at, env.spec, env.branch); err != nil {
			return err
		}
		result = resultWords(deliver, base)
		w.issue.Number, w.issue.PullRequest, w.issue.Locked = at.Number, &pullLink{}, at.Locked
	}
	f := in.facts(w, env, base, b.Commit)
	f.Issue, f.Title, f.Body, f.Author = 0, "", "", ""
	if at != nil {
		f.Pull = &agent.Pull{Base: at.BaseRef, Head: at.HeadRef, Result: result}
	}
	if f.Failed, err = in.failed(ctx, w); err != nil {
		return err
	}
	return in.create(ctx, w, env, base, b.Commit, agent.Build(f), at, deliver)
}

// fixTarget is the pull request whose head the build is of, or nil where it is
// of a branch alone. What has moved on since is not repaired any more.
func (in *Intake) fixTarget(ctx context.Context, w *wish, a fixAsked, env environment) (*target, error) {
	b := w.piped.build
	moved := &refusal{fmt.Sprintf("build %d is of %.12s, which is not what its branch has now", b.Number, b.Commit)}
	number := b.PullRequest.Number
	own, err := in.o.DB.Q().BranchByName(ctx, storage.BranchByNameParams{RepositoryID: w.repo.ID, Name: b.Branch})
	if err != nil && !storage.IsMissing(err) {
		return nil, fmt.Errorf("looking for branch %.200s: %w", b.Branch, err)
	}
	ours := err == nil && own.LastSha == b.Commit
	if number == 0 && ours {
		n, err := in.o.DB.Q().PullOfBranch(ctx, storage.PullOfBranchParams{RepositoryID: w.repo.ID, Name: b.Branch})
		if err != nil {
			return nil, fmt.Errorf("looking for the pull request of branch %.200s: %w", b.Branch, err)
		}
		number = int(n)
	}
	if number > 0 {
		live, err := in.openPull(ctx, w, number)
		if err != nil {
			return nil, err
		}
		switch {
		case live.HeadRepoID != w.repo.ID:
			return nil, &refusal{"the pull request is of a fork"}
		case live.HeadSHA != b.Commit || live.HeadRef != b.Branch:
			return nil, moved
		case a.told && !ours:
			if err := in.labelledPull(ctx, w, env, number); err != nil {
				return nil, err
			}
		}
		return &target{live, false}, nil
	}
	if a.told {
		return nil, &refusal{"nobody asked: the branch is not ours, and the build is of no pull request"}
	}
	head, err := in.gh(w).BranchHead(ctx, w.repo, b.Branch)
	switch {
	case errors.Is(err, github.ErrNotFound):
		return nil, moved
	case err != nil:
		return nil, fmt.Errorf("reading branch %.200s: %w", b.Branch, err)
	case head != b.Commit:
		return nil, &answer{fmt.Sprintf("Build %d is of commit %.12s, but the branch has %.12s by now: only the newest is repaired.", b.Number, b.Commit, head)}
	}
	return nil, nil
}

// labelledPull refuses where the pull request carries none of the labels that may
// start sessions: then somebody who may label has not asked for this.
func (in *Intake) labelledPull(ctx context.Context, w *wish, env environment, number int) error {
	i, err := in.gh(w).Issue(github.OnPull(ctx), w.repo, number)
	if err != nil {
		return fmt.Errorf("reading the labels of pull request %d: %w", number, err)
	}
	for _, l := range i.Labels {
		if hasLabel(in.o.Labels, l.Name) && hasLabel(env.spec.Triggers.Labels, l.Name) {
			return nil
		}
	}
	return &refusal{"the pull request carries no label that may start a session"}
}

// mayTry refuses a repair that was tried often enough.
func (in *Intake) mayTry(ctx context.Context, q *storage.Queries, w *wish, sp spec.Spec) error {
	if w.piped == nil || w.piped.fixes == "" {
		return nil
	}
	n, err := q.FixAttempts(ctx, storage.FixAttemptsParams{
		RepositoryID: w.repo.ID, Branch: storable(w.piped.branch, 1000), Sha: w.piped.fixes, Since: time.Now().Add(-24 * time.Hour),
	})
	if err != nil {
		return fmt.Errorf("counting the tries to repair %.12s: %w", w.piped.fixes, err)
	}
	if most := w.piped.pipeline.FixAttempts(sp.Triggers); int(n.OfCommit) >= most {
		return &answer{fmt.Sprintf("%d of at most %d sessions have tried to repair commit %.12s: a person has to look at it.", n.OfCommit, most, w.piped.fixes)}
	}
	if n.OfBranch >= maxFixesOfBranch {
		return &answer{fmt.Sprintf("%d sessions have tried to repair this branch within a day: a person has to look at it.", n.OfBranch)}
	}
	return nil
}

// busy ends the wish of a pipeline where a session is at work already.
func (in *Intake) busy(ctx context.Context, w *wish, number int) error {
	s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, number)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w; it has ended meanwhile", errBusy)
	}
	return in.busyWith(ctx, w, s)
}

// busyWith: the pipeline's own session is what it asks for; anybody else's it is
// only told of.
func (in *Intake) busyWith(ctx context.Context, w *wish, s storage.Session) error {
	row, err := in.o.DB.Q().PipelineSession(ctx, s.ID)
	if err != nil && !storage.IsMissing(err) {
		return fmt.Errorf("reading whose session %s is: %w", s.ID, err)
	}
	if err == nil && row.PipelineID == w.piped.id.Pipeline && row.OrganizationID == w.piped.id.Organization && row.Act == w.piped.act {
		return in.endWith(ctx, w, outcomeDuplicate, errBusy.Error(), s.ID, false)
	}
	return &answer{"A session is at work there already. Ask again when it has ended."}
}

// Bounds of what is read of a failed build besides its logs.
const (
	maxReports     = 10
	maxReportBytes = 4 << 20
)

// reportsWanted is how long a repair waits for test reports that the place where
// they lie does not give. It is not Buildkite's, and may never answer.
const reportsWanted = 2 * time.Minute

// failed gathers what a failed build says. What cannot be read now is tried again
// if Buildkite may give it later; what it does not give is said.
func (in *Intake) failed(ctx context.Context, w *wish) (*agent.FailedBuild, error) {
	b := w.piped.build
	org, slug, _ := strings.Cut(w.piped.pipeline.Slug, "/")
	clean := in.o.Redactor.String
	f := &agent.FailedBuild{Pipeline: w.piped.pipeline.Slug, Number: b.Number, Branch: b.Branch}
	i, err := in.o.DB.Q().IntentByKey(ctx, w.key)
	if err != nil {
		return nil, fmt.Errorf("reading an intent: %w", err)
	}
	reports := reading{wait: time.Since(i.CreatedAt) < reportsWanted}
	for i, j := range b.Failed() {
		one := agent.BuildJob{Name: clean(j.Name), Step: j.StepKey, State: j.State, Command: clean(j.Command)}
		if j.ExitStatus != nil {
			one.Exit = strconv.Itoa(*j.ExitStatus)
		}
		if i < agent.MaxJobs && j.Type == "script" {
			log, err := in.o.Builds.LogTail(ctx, org, slug, b.Number, j.ID, agent.MaxLog)
			if again(err) {
				return nil, buildError(err)
			}
			one.Log = clean(log.Text)
			switch {
			case err != nil:
				in.log.Info("the log of a failed job cannot be read", "build", b.Number, "job", j.ID, "error", err)
				one.NoLog = "Buildkite does not give it to Inspect"
			case log.Broken:
				one.NoLog = "it did not arrive whole"
			}
			if err := in.failedTests(ctx, w, f, j, &reports); err != nil {
				return nil, err
			}
		}
		f.Jobs = append(f.Jobs, one)
	}
	notes, err := in.o.Builds.Annotations(ctx, org, slug, b.Number)
	if again(err) {
		return nil, buildError(err)
	}
	if err != nil {
		f.Lost = "its annotations"
	}
	for _, n := range notes[:min(len(notes), 2*agent.MaxNotes)] {
		if n.Context == "inspect" {
			continue // our own
		}
		f.Notes = append(f.Notes, agent.BuildNote{Context: clean(n.Context), Style: n.Style, Text: clean(n.Text)})
	}
	return f, nil
}

// again says whether Buildkite may answer later.
func again(err error) bool {
	return errors.Is(err, buildkite.ErrBusy) || errors.Is(err, context.Canceled)
}

// reading is how the reports of a build are read.
type reading struct {
	n    int
	wait bool // until the place where they lie answers
}

// failedTests reads the test reports that a job kept.
func (in *Intake) failedTests(ctx context.Context, w *wish, f *agent.FailedBuild, j buildkite.Job, reports *reading) error {
	b := w.piped.build
	org, slug, _ := strings.Cut(w.piped.pipeline.Slug, "/")
	if reports.n >= maxReports {
		return nil
	}
	all, err := in.o.Builds.Artifacts(ctx, org, slug, b.Number, j.ID)
	if again(err) {
		return buildError(err)
	}
	if err != nil {
		f.NoTests = "Buildkite does not give its artifacts to Inspect"
		return nil
	}
	for _, a := range all {
		if !strings.HasSuffix(strings.ToLower(a.Path), ".xml") || a.State != "finished" {
			continue
		}
		if reports.n++; reports.n > maxReports {
			break
		}
		body, err := in.o.Builds.Artifact(ctx, org, slug, b.Number, a, maxReportBytes)
		if again(err) && reports.wait {
			return buildError(err)
		}
		var failed []string
		if err == nil {
			failed, err = evidence.JUnitFailures(a.Path, body, agent.MaxFailedTests)
		}
		if err != nil {
			in.log.Info("a test report of a failed job cannot be read", "build", b.Number, "job", j.ID, "artifact", a.ID, "error", err)
			f.NoTests = "one of them could not be read"
			continue
		}
		if len(failed) > 0 {
			for i := range failed {
				failed[i] = in.o.Redactor.String(failed[i])
			}
			f.Tests = append(f.Tests, agent.BuildTests{Report: a.Path, Failed: failed})
		}
	}
	return nil
}
