package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"inspect/app/github"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// CheckName is the name of the check run on a pushed commit.
const CheckName = "inspect"

// checkRun creates the check run on the commit that an ended session pushed, in
// one request, completed from the start. A session that pushed none has none; its
// comment is the result. That of a pull request's head is another, see headCheck.
func (r *Reporter) checkRun(ctx context.Context, st *story) error {
	s := &st.session
	if !st.ended {
		return nil
	}
	if s.HeadSha != "" && s.CheckRunID == 0 {
		run, err := r.run(st)
		if err != nil {
			return err
		}
		if s.CheckRunID, err = r.create(ctx, st, "check", run); err != nil {
			return err
		}
		if err := r.db.Q().SetSessionCheckRun(ctx, storage.SetSessionCheckRunParams{ID: s.ID, CheckRunID: s.CheckRunID}); err != nil {
			return fmt.Errorf("record the check run of session %s: %w", s.ID, err)
		}
	}
	if s.CheckRunID != 0 && s.State == scheduler.Delivered && st.kept != nil {
		if err := r.annotate(ctx, st); err != nil {
			return err
		}
		if err := r.tellBuilds(ctx, st); err != nil {
			return err
		}
	}
	return nil
}

// perRequest is how many annotations GitHub takes at once.
const perRequest = 50

// annotate appends the annotations that the check run was not created with, each
// batch once: of one whose fate is not known GitHub is asked how many it has.
func (r *Reporter) annotate(ctx context.Context, st *story) error {
	run, err := r.run(st)
	if err != nil || len(run.Annotations) <= perRequest {
		return err
	}
	s, all := st.session, run.Annotations
	for i, from := 1, perRequest; from < len(all); i, from = i+1, from+perRequest {
		step, err := r.steps.Begin(ctx, s.ID, s.Generation, fmt.Sprintf("check-annotations-%d", i))
		if err != nil {
			return err
		}
		if step.Done {
			continue
		}
		there := 0
		if step.Repeated {
			if there, err = st.github.CountAnnotations(ctx, st.repo, run.HeadSHA, run.ExternalID); err != nil {
				return fmt.Errorf("count the annotations of session %s: %w", s.ID, err)
			}
		}
		if there <= from {
			run.Annotations = all[from:min(from+perRequest, len(all))]
			err := st.github.Annotate(github.ForSession(ctx, s.ID, step.Key()), st.repo, s.CheckRunID, run)
			if errors.Is(err, github.ErrInvalid) {
				r.log.Warn("GitHub refuses annotations; the evidence has them", "session", s.ID, "error", err)
			} else if err != nil {
				return fmt.Errorf("annotate the check run of session %s: %w", s.ID, err)
			}
		}
		if err := step.End(ctx, there); err != nil {
			return err
		}
	}
	return nil
}

// create makes a check run once and returns its number.
func (r *Reporter) create(ctx context.Context, st *story, name string, run github.CheckRun) (int64, error) {
	s := st.session
	step, err := r.steps.Begin(ctx, s.ID, s.Generation, name)
	if err != nil {
		return 0, err
	}
	if step.Done {
		var id int64
		if err := json.Unmarshal(step.Result, &id); err != nil {
			return 0, fmt.Errorf("read which check run session %s has: %w", s.ID, err)
		}
		return id, nil
	}
	if step.Repeated {
		id, found, err := st.github.FindCheckRun(ctx, st.repo, run.HeadSHA, run.ExternalID)
		if err != nil {
			return 0, fmt.Errorf("look for the check run of session %s: %w", s.ID, err)
		}
		if found {
			return id, step.End(ctx, id)
		}
	}
	run.Annotations = run.Annotations[:min(len(run.Annotations), perRequest)]
	ctx = github.ForSession(ctx, s.ID, step.Key())
	id, err := st.github.CreateCheckRun(ctx, st.repo, run)
	if errors.Is(err, github.ErrInvalid) {
		run = r.short(run, err)
		id, err = st.github.CreateCheckRun(ctx, st.repo, run)
	}
	if errors.Is(err, github.ErrAmbiguous) {
		found := false
		id, found, err = st.github.FindCheckRun(ctx, st.repo, run.HeadSHA, run.ExternalID)
		if err == nil && !found {
			err = errors.New("GitHub's answer was lost and there is no check run yet")
		}
	}
	if err != nil {
		return 0, fmt.Errorf("create the check run of session %s: %w", s.ID, err)
	}
	return id, step.End(ctx, id)
}

// short is a check run whose full text GitHub refuses: better a short report than
// none.
func (r *Reporter) short(run github.CheckRun, refused error) github.CheckRun {
	run.Annotations = nil
	run.Summary, run.Text = "The full text was refused by GitHub: "+redact.Neutralise(redact.OneLine(r.redactor.String(said(refused)), 300))+"\n\nThe session's page has it: "+run.DetailsURL, ""
	return run
}

// run is the check run as it is sent. Success is said only with a receipt for
// this very commit.
func (r *Reporter) run(st *story) (github.CheckRun, error) {
	s := st.session
	run := github.CheckRun{
		Name: CheckName, HeadSHA: s.HeadSha, ExternalID: s.ID, DetailsURL: r.sessionURL(s.ID),
		Status: "completed", Started: s.CreatedAt,
	}
	if s.StartedAt.Valid {
		run.Started = s.StartedAt.Time
	}
	if s.FinishedAt.Valid {
		run.Completed = s.FinishedAt.Time
	}
	rc := st.receipt
	if s.State != scheduler.Delivered {
		words := r.redactor.String(s.Words)
		run.Conclusion = render.Ask(conclusion(s.State), st.spec.Checks.Required)
		run.Title = redact.OneLine("Not delivered: "+words, render.MaxTitle)
		run.Summary = redact.Cut("A commit was pushed, but the session did not end as delivered.\n\n"+redact.Neutralise(words), render.MaxSummary)
		return run, nil
	}
	switch {
	case rc == nil || rc.HeadSHA != s.HeadSha:
		return run, fmt.Errorf("session %s is delivered, but has no receipt for %s", s.ID, s.HeadSha)
	case st.kept == nil:
		return run, fmt.Errorf("session %s is delivered, but its evidence cannot be read", s.ID)
	}
	out := render.CheckRun(st.kept.Manifest, render.Delivery{
		Branch: rc.Branch, HeadSHA: rc.HeadSHA, PullRequest: rc.PullRequest, EvidenceDigest: rc.Evidence,
		EventsHead: rc.EventsHead, EventsCount: rc.EventsCount, SessionURL: r.sessionURL(s.ID),
	})
	run.Conclusion, run.Title, run.Summary, run.Text = render.Conclusion(st.kept.Manifest, st.spec.Checks.Required), out.Title, out.Summary, out.Text
	st.builds.decide(&run)
	for _, a := range out.Annotations {
		run.Annotations = append(run.Annotations, github.Annotation{Path: a.Path, StartLine: a.Line, EndLine: a.Line, Level: a.Level, Title: a.Title, Message: a.Message})
	}
	return run, nil
}

// conclusion of a commit whose session ended in another state than delivered.
func conclusion(state storage.SessionState) string {
	c := render.StateOf(string(state)).Conclusion
	if c == "" || c == render.Success {
		return render.Neutral
	}
	return c
}

// said is what GitHub answered.
func said(err error) string {
	var e *github.Error
	if errors.As(err, &e) && e.Message != "" {
		return e.Message
	}
	return err.Error()
}
