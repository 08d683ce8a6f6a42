package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"inspect/app/github"
	"inspect/app/publish"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// CheckName is the name of the check run on a pushed commit.
const CheckName = "inspect"

// checkRun creates the one check run of an ended session that pushed a commit:
// one request, completed from the start. A session that pushed nothing has
// none; its comment is the result.
func (r *Reporter) checkRun(ctx context.Context, st *story) error {
	s := st.session
	if !st.ended || s.HeadSha == "" || s.CheckRunID != 0 {
		return nil
	}
	run, err := r.run(st)
	if err != nil {
		return err
	}
	step, err := r.steps.Begin(ctx, s.ID, s.Generation, "check")
	if err != nil {
		return err
	}
	if step.Done {
		var id int64
		if err := json.Unmarshal(step.Result, &id); err != nil {
			return fmt.Errorf("read which check run session %s has: %w", s.ID, err)
		}
		return r.checked(ctx, st, nil, id)
	}
	if step.Repeated {
		id, found, err := st.github.FindCheckRun(ctx, st.repo, s.HeadSha, run.ExternalID)
		if err != nil {
			return fmt.Errorf("look for the check run of session %s: %w", s.ID, err)
		}
		if found {
			return r.checked(ctx, st, step, id)
		}
	}
	ctx = github.ForSession(ctx, s.ID, step.Key())
	id, err := st.github.CreateCheckRun(ctx, st.repo, run)
	if errors.Is(err, github.ErrInvalid) {
		// Better a short report than none.
		run.Summary, run.Text = "The full text was refused by GitHub: "+redact.Neutralise(redact.OneLine(r.redactor.String(said(err)), 300))+"\n\nThe session's page has it: "+run.DetailsURL, ""
		id, err = st.github.CreateCheckRun(ctx, st.repo, run)
	}
	if errors.Is(err, github.ErrAmbiguous) {
		found := false
		id, found, err = st.github.FindCheckRun(ctx, st.repo, s.HeadSha, run.ExternalID)
		if err == nil && !found {
			err = errors.New("GitHub's answer was lost and there is no check run yet")
		}
	}
	if err != nil {
		return fmt.Errorf("create the check run of session %s: %w", s.ID, err)
	}
	return r.checked(ctx, st, step, id)
}

func (r *Reporter) checked(ctx context.Context, st *story, step *publish.Step, id int64) error {
	s := &st.session
	if step != nil {
		if err := step.End(ctx, id); err != nil {
			return err
		}
	}
	if err := r.db.Q().SetSessionCheckRun(ctx, storage.SetSessionCheckRunParams{ID: s.ID, CheckRunID: id}); err != nil {
		return fmt.Errorf("record the check run of session %s: %w", s.ID, err)
	}
	s.CheckRunID = id // the comment links it
	return nil
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
		run.Conclusion = conclusion(s.State)
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
	run.Conclusion, run.Title, run.Summary, run.Text = render.Success, out.Title, out.Summary, out.Text
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
