package report

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"inspect/app/approve"
	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/app/publish"
	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// Asking is the check run about what holds a result back: a completed one, for
// GitHub shows buttons on no other, whose buttons answer it. When it is answered
// another run takes its place; a completed one is not opened again.
func Asking(session, head, page string, a comment.Approval) github.CheckRun {
	items := ""
	for i, item := range a.Items {
		if i == 50 {
			items += fmt.Sprintf("- and %d more\n", len(a.Items)-i+a.More)
			break
		}
		items += "- " + redact.Neutralise(redact.OneLine(item, 300)) + "\n"
	}
	digest := a.Digest[:min(len(a.Digest), 12)]
	return github.CheckRun{
		Name: CheckName, HeadSHA: head, ExternalID: approve.ExternalID(session, a.Digest), DetailsURL: page,
		Status: "completed", Conclusion: render.ActionRequired,
		Title: "Held back until a person allows it",
		Summary: redact.Cut(redact.Neutralise(redact.Cut(a.Words, 2000))+"\n\n"+items+"\nAnswer with a button here, or with `/inspect approve "+digest+"` or `/inspect reject "+digest+"`, until "+
			a.Until.UTC().Format("2 January 2006, 15:04 MST")+".", render.MaxSummary),
		Actions: []github.Action{
			{Label: "Approve", Description: "Push this result as it is", Identifier: approve.Identifier(true, a.Digest)},
			{Label: "Reject", Description: "Push nothing and end the session", Identifier: approve.Identifier(false, a.Digest)},
		},
	}
}

// askedOn is the commit that the run which asks is put on: what was pushed, else
// the head of the pull request that is worked on; empty: there is none.
func askedOn(s storage.Session) string {
	if s.HeadSha == "" && s.PullNumber > 0 {
		return s.BaseSha
	}
	return s.HeadSha
}

// askingRun creates that run, once for each question, on a head if there is one
// to put it on.
func (r *Reporter) askingRun(ctx context.Context, st *story, head string) error {
	if head == "" || st.session.State != scheduler.NeedsApproval {
		return nil
	}
	for _, p := range st.pending {
		if p.Kind != scheduler.ApprovePublish {
			continue
		}
		run := Asking(st.session.ID, head, r.sessionURL(st.session.ID), r.redacted(approve.One(p)))
		m, err := r.shown(ctx, st.session.ID)
		if err != nil {
			return err
		}
		asked, err := scheduler.ReadAsked(p)
		if err != nil {
			return err
		}
		withEvidence(&run, asked.Items, m)
		step, err := r.steps.Begin(ctx, st.session.ID, 0, askingStep(p))
		if err != nil || step.Done {
			return err
		}
		id, found := int64(0), false
		if step.Repeated {
			if id, found, err = st.github.FindCheckRun(ctx, st.repo, head, run.ExternalID); err != nil {
				return fmt.Errorf("look for the check run that asks: %w", err)
			}
		}
		if !found {
			id, err = st.github.CreateCheckRun(github.ForSession(ctx, st.session.ID, step.Key()), st.repo, run)
			if err != nil { // an answer that was lost is looked for next time
				return fmt.Errorf("create the check run that asks: %w", err)
			}
		}
		return step.End(ctx, id)
	}
	return nil
}

// askingStep names the making of that run: the same may be asked twice.
func askingStep(a storage.Approval) string { return fmt.Sprintf("asking-%d", a.ID) }

// answeredRuns takes back what the runs of questions say that wait no more. On the
// head of a pull request they are newer than the session's own run, so that GitHub
// would go on counting them.
func (r *Reporter) answeredRuns(ctx context.Context, st *story) error {
	s := st.session
	if s.PullNumber == 0 {
		return nil
	}
	all, err := r.db.Q().PublishQuestions(ctx, s.ID)
	if err != nil {
		return fmt.Errorf("look for the questions of session %s: %w", s.ID, err)
	}
	for _, a := range all {
		if slices.ContainsFunc(st.pending, func(p storage.Approval) bool { return p.ID == a.ID }) {
			continue
		}
		made, err := r.steps.Done(ctx, s.ID, 0, askingStep(a))
		if err != nil {
			return err
		}
		if made == nil {
			continue // there was nothing to put it on
		}
		var id int64
		if err := json.Unmarshal(made, &id); err != nil {
			return fmt.Errorf("read which check run asked in session %s: %w", s.ID, err)
		}
		step, err := r.steps.Begin(ctx, s.ID, 0, fmt.Sprintf("answered-%d", a.ID))
		if err != nil {
			return err
		}
		if step.Done {
			continue
		}
		words := map[string]string{scheduler.ApprovalApproved: "Allowed", scheduler.ApprovalRejected: "Rejected"}[a.State]
		switch {
		case words == "":
			words = "Does not wait any more"
		case a.AnsweredLogin != "":
			words += " by " + a.AnsweredLogin
		}
		run := github.CheckRun{
			Name: CheckName, Status: "completed", Conclusion: render.Neutral, Completed: r.clock.Now(), DetailsURL: r.sessionURL(s.ID),
			Title:   redact.OneLine(words, render.MaxTitle),
			Summary: "What held the result back is answered. How the session goes on, and ends, is in its own check run.",
		}
		err = st.github.UpdateCheckRun(github.ForSession(ctx, s.ID, step.Key()), st.repo, id, run)
		if err != nil && !lost(err) {
			return fmt.Errorf("take back the question of session %s: %w", s.ID, err)
		}
		if err := step.End(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// withEvidence says in the title why it is held back, and below the question what
// verification showed.
func withEvidence(run *github.CheckRun, items []scheduler.AskedItem, m *evidence.Manifest) {
	var why []string
	for _, r := range []struct{ reason, words string }{
		{policy.ReasonSecretFound, "may hold a secret"}, {policy.ReasonReplaced, "what verification runs is replaced"},
		{policy.ReasonTestsVanished, "tests vanish"}, {policy.ReasonProtectedPath, "touches protected paths"},
	} {
		told := m != nil && m.Verdict.Vanished > 0 && r.reason == policy.ReasonTestsVanished // by the numbers
		if !told && slices.ContainsFunc(items, func(i scheduler.AskedItem) bool { return i.Reason == r.reason }) {
			why = append(why, r.words)
		}
	}
	if m != nil {
		why = append(why, render.Title(*m))
		run.Summary = redact.Cut(run.Summary+"\n\n"+render.Brief(*m), render.MaxSummary)
	}
	if len(why) > 0 {
		run.Title = redact.Cut("Held back: "+strings.Join(why, ", "), render.MaxTitle)
	}
}

// shown is what verification showed of a result that is held back; nil: nothing is
// kept of it.
func (r *Reporter) shown(ctx context.Context, session string) (*evidence.Manifest, error) {
	f, err := r.db.Q().EvidenceFile(ctx, storage.EvidenceFileParams{SessionID: session, Name: publish.FileManifest})
	if storage.IsMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the evidence of session %s: %w", session, err)
	}
	kept, err := r.evidence.Kept(ctx, session, f.Sha256)
	if err != nil {
		return nil, err
	}
	return &kept.Manifest, nil
}
