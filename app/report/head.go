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
	"inspect/scheduler"
	"inspect/storage"
)

// LeastBetween is the least time between two updates of a check run while its
// session goes on. Each is a write, of which GitHub lets an installation make a
// bounded number.
const LeastBetween = 15 * time.Second

// headStep is what is known of the check run on the head that is worked on.
type headStep struct {
	ID     int64     `json:"id"`
	Digest string    `json:"digest"` // of what it says
	At     time.Time `json:"at"`     // when it was made to
	Gone   bool      `json:"gone,omitempty"`
}

// headCheck keeps the check run on the head of a pull request that a session works
// on: there from the start, saying what happens, and completed by the end. What it
// says already is not sent again.
func (r *Reporter) headCheck(ctx context.Context, st *story) error {
	s := &st.session
	if s.PullNumber == 0 {
		return nil
	}
	// The same run for all attempts; whoever has it made anew forgets the step.
	step, err := r.steps.Begin(ctx, s.ID, 0, "check-head")
	if err != nil {
		return err
	}
	run := r.headRun(st)
	now, digest := r.clock.Now(), sum(fmt.Sprintf("%q", []string{run.Status, run.Conclusion, run.Title, run.Summary}))
	var was headStep
	switch {
	case step.Done:
		if err := json.Unmarshal(step.Result, &was); err != nil {
			return fmt.Errorf("read which check run the head of session %s has: %w", s.ID, err)
		}
	default:
		if was, err = r.createHead(ctx, st, step.Repeated, step.Key(), run, headStep{Digest: digest, At: now}); err != nil {
			return err
		}
		if err := step.End(ctx, was); err != nil {
			return err
		}
	}
	if was.Gone {
		return nil
	}
	if s.HeadCheckRunID != was.ID {
		s.HeadCheckRunID = was.ID
		if err := r.db.Q().SetSessionHeadCheckRun(ctx, storage.SetSessionHeadCheckRunParams{ID: s.ID, HeadCheckRunID: was.ID}); err != nil {
			return fmt.Errorf("record the check run of session %s: %w", s.ID, err)
		}
	}
	if was.Digest == digest || !st.ended && now.Sub(was.At) < LeastBetween {
		return nil
	}
	// To say the same twice does no harm, so that nothing is looked up first.
	ctx = github.ForSession(ctx, s.ID, fmt.Sprintf("%s/%.12s", step.Key(), digest))
	err = st.github.UpdateCheckRun(ctx, st.repo, was.ID, run)
	if errors.Is(err, github.ErrInvalid) { // of the text, where the run is still there
		err = st.github.UpdateCheckRun(ctx, st.repo, was.ID, r.short(run, err))
	}
	switch {
	case lost(err):
		r.log.Info("the check run on the head that is worked on is not there any more", "session", s.ID, "why", err)
		was.Gone = true
	case err != nil:
		return fmt.Errorf("update the check run of session %s: %w", s.ID, err)
	}
	was.Digest, was.At = digest, now
	return step.End(ctx, was)
}

// createHead makes the run, or finds the one that an earlier try made, of which
// nobody knows what it says.
func (r *Reporter) createHead(ctx context.Context, st *story, repeated bool, key string, run github.CheckRun, fresh headStep) (headStep, error) {
	s := st.session
	find := func() (headStep, bool, error) {
		id, found, err := st.github.FindCheckRun(ctx, st.repo, run.HeadSHA, run.ExternalID)
		if err != nil && !lost(err) {
			return headStep{}, false, fmt.Errorf("look for the check run of session %s: %w", s.ID, err)
		}
		return headStep{ID: id}, found && err == nil, nil
	}
	if repeated {
		if was, found, err := find(); err != nil || found {
			return was, err
		}
	}
	id, err := st.github.CreateCheckRun(github.ForSession(ctx, s.ID, key), st.repo, run)
	switch {
	case errors.Is(err, github.ErrAmbiguous):
		was, found, err := find()
		if err == nil && !found {
			err = errors.New("GitHub's answer was lost and there is no check run yet")
		}
		return was, err
	case lost(err):
		// The commit is not there any more. The comment says what came of the work.
		r.log.Info("there is no check run on the head that is worked on", "session", s.ID, "why", err)
		fresh.Gone = true
	case err != nil:
		return fresh, fmt.Errorf("create the check run of session %s: %w", s.ID, err)
	}
	fresh.ID = id
	return fresh, nil
}

// lost says that there is nothing that could be written to.
func lost(err error) bool {
	return errors.Is(err, github.ErrInvalid) || errors.Is(err, github.ErrNotFound)
}

// headRun is the check run on the head that a session works on. How the work
// goes is not that commit's fault, so it ends neutral whatever came of it, or asks
// where the repository wants no neutral one.
func (r *Reporter) headRun(st *story) github.CheckRun {
	s := st.session
	run := github.CheckRun{
		Name: CheckName, HeadSHA: s.BaseSha, ExternalID: s.ID + "/head", DetailsURL: r.sessionURL(s.ID),
		Started: s.CreatedAt,
	}
	if s.Rewound > 0 { // it has had an end before, and a run that says so
		run.ExternalID += fmt.Sprintf("/%d", s.Rewound)
	}
	state := render.StateOf(string(s.State)).Title
	if !st.ended {
		run.Status = "in_progress"
		words := r.redactor.String(st.last)
		if s.State == scheduler.Queued || s.State == scheduler.Placing {
			words = r.redactor.String(s.QueueReason)
		}
		if s.State == scheduler.Queued && s.Generation == 0 {
			run.Status = "queued"
		}
		run.Title = redact.OneLine(state, render.MaxTitle)
		if words != "" {
			run.Title = redact.OneLine(state+": "+words, 160)
		}
		run.Summary = "A session works on this commit, asked for by " + redact.Neutralise(redact.OneLine(s.RequesterLogin, 60)) + ". How it ends says nothing about the commit itself."
		return run
	}
	run.Status, run.Conclusion, run.Completed = "completed", render.Ask(render.Neutral, st.spec.Checks.Required), s.FinishedAt.Time
	words := r.redactor.String(s.Words)
	if rc := st.receipt; rc != nil && s.State == scheduler.Delivered {
		words = fmt.Sprintf("The result is commit %.12s in pull request %d.", rc.HeadSHA, rc.PullRequest)
	}
	run.Title = redact.OneLine(state+": "+words, render.MaxTitle)
	run.Summary = redact.Cut("A session worked on this commit. How it ended says nothing about the commit itself.\n\n"+redact.Neutralise(words), render.MaxSummary)
	return run
}
