package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"inspect/app/github"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// builds are those of the commit that a session pushed.
type builds struct {
	list    []render.Build
	missing bool // a required one, and nobody has looked yet
	changes int  // of what is told of them
}

func (r *Reporter) readBuilds(ctx context.Context, s storage.Session, sp spec.Spec) (b builds, err error) {
	if s.State != scheduler.Delivered || sp.Checks.Buildkite.Builds == "" {
		return b, nil
	}
	rows, err := r.db.Q().SessionBuilds(ctx, s.ID)
	if err != nil {
		return b, fmt.Errorf("look up the builds of session %s: %w", s.ID, err)
	}
	b.missing = len(rows) == 0 && sp.Checks.Buildkite.Required
	for _, row := range rows {
		one := render.Build{}
		if row.Result.Valid {
			if err := json.Unmarshal(row.Result.RawMessage, &one); err != nil {
				return b, fmt.Errorf("read what a build of session %s shows: %w", s.ID, err)
			}
		}
		one.Pipeline, one.Number, one.State, one.SHA = row.Slug, int(row.Number), row.State, row.Sha
		one.Done, one.Required, one.Words = row.DoneAt.Valid, row.Required, r.redactor.String(row.Words)
		for i := range one.Jobs {
			one.Jobs[i].Name = r.redactor.String(one.Jobs[i].Name)
		}
		b.list = append(b.list, one)
		b.changes += 1 + int(row.Changes)
	}
	return b, nil
}

// decide makes of a check run that says success what the builds make of it, and
// says what they are.
func (b builds) decide(run *github.CheckRun) {
	conclusion, pending := render.BuildsVerdict(b.list, b.missing)
	run.Title = redact.Cut(render.BuildsTitle(b.list, b.missing)+run.Title, render.MaxTitle)
	run.Summary = render.WithBuilds(run.Summary, b.list)
	switch {
	case pending:
		run.Status, run.Conclusion, run.Completed = "in_progress", "", time.Time{}
	case conclusion != render.Success: // a build that passed makes nothing better
		run.Conclusion = conclusion
	}
}

// tellBuilds brings the check run up to date with the builds, each change once.
func (r *Reporter) tellBuilds(ctx context.Context, st *story) error {
	if st.builds.changes == 0 {
		return nil
	}
	s := st.session
	step, err := r.steps.Begin(ctx, s.ID, s.Generation, fmt.Sprintf("check-builds-%d-%d", s.CheckRunID, st.builds.changes))
	if err != nil || step.Done {
		return err
	}
	run, err := r.run(st)
	if err != nil {
		return err
	}
	run.Annotations = nil // they are there
	if run.Conclusion != "" {
		run.Completed = r.clock.Now()
	}
	// To say the same twice does no harm.
	ctx = github.ForSession(ctx, s.ID, step.Key())
	err = st.github.UpdateCheckRun(ctx, st.repo, s.CheckRunID, run)
	if errors.Is(err, github.ErrInvalid) { // whoever waits for the check run waits for its conclusion
		err = st.github.UpdateCheckRun(ctx, st.repo, s.CheckRunID, r.short(run, err))
	}
	if errors.Is(err, github.ErrNotFound) || errors.Is(err, github.ErrInvalid) {
		r.log.Warn("the check run cannot be told of a build", "session", s.ID, "error", err)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("tell the builds of session %s: %w", s.ID, err)
	}
	return step.End(ctx, st.builds.changes)
}

// Told is what the check run of a session says, or would say if it had pushed a
// commit. It writes nothing.
func (r *Reporter) Told(ctx context.Context, session string) (github.CheckRun, error) {
	st, _, err := r.read(ctx, session)
	if err != nil {
		return github.CheckRun{}, err
	}
	s := st.session
	if s.State == scheduler.Delivered && st.receipt != nil {
		kept, err := r.evidence.Kept(ctx, s.ID, st.receipt.Evidence)
		if err != nil {
			return github.CheckRun{}, fmt.Errorf("read the evidence of session %s: %w", s.ID, err)
		}
		st.kept = &kept
		run, err := r.run(st)
		if run.Status != "completed" {
			run.Conclusion = render.Neutral // the build is waited for
		}
		return run, err
	}
	state := render.StateOf(string(s.State))
	words := r.redactor.String(s.Words)
	run := github.CheckRun{Conclusion: state.Conclusion}
	if s.State == scheduler.NeedsApproval {
		run.Conclusion = render.ActionRequired
	}
	if run.Conclusion == "" {
		run.Conclusion = render.Neutral
	}
	run.Title = redact.OneLine(state.Title+": "+words, render.MaxTitle)
	run.Summary = redact.Cut(redact.Neutralise(words), render.MaxSummary)
	return run, nil
}
