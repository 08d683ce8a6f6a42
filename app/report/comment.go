package report

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"inspect/app/approve"
	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/publish"
	"inspect/checks/evidence"
	"inspect/checks/render"
	"inspect/scheduler"
	"inspect/storage"
)

// commentStep is what came of creating the comment.
type commentStep struct {
	ID   int64 `json:"id"`
	Gone bool  `json:"gone,omitempty"` // the issue takes none
}

// comment creates or edits the one comment of the session.
func (r *Reporter) comment(ctx context.Context, st *story) error {
	s := st.session
	if s.Locked {
		return nil // the check run is the result
	}
	if s.IssueNumber == 0 { // a pipeline asked: the pull request that it leads to is its conversation
		if s.IssueNumber = s.PullRequest; s.IssueNumber == 0 {
			return nil
		}
		ctx = github.OnPull(ctx)
	}
	if s.PullNumber > 0 && s.PullNumber == s.IssueNumber {
		ctx = github.OnPull(ctx)
	}
	facts := r.facts(st)
	body := comment.Render(facts)
	digest := st.digest(body)
	if s.CommentID != 0 {
		return r.edit(ctx, st, facts, body)
	}
	step, err := r.steps.Begin(ctx, s.ID, 0, "comment")
	if err != nil {
		return err
	}
	if step.Done {
		var was commentStep
		if err := json.Unmarshal(step.Result, &was); err != nil {
			return fmt.Errorf("read which comment session %s has: %w", s.ID, err)
		}
		if was.Gone {
			return nil
		}
		return r.adopt(ctx, st, was.ID, facts, body)
	}
	if step.Repeated {
		id, found, err := st.github.FindComment(ctx, st.repo, int(s.IssueNumber), comment.Marker(s.ID))
		if silent(err) {
			return step.End(ctx, commentStep{Gone: true})
		}
		if err != nil {
			return fmt.Errorf("look for the comment of session %s: %w", s.ID, err)
		}
		if found {
			if err := step.End(ctx, commentStep{ID: id}); err != nil {
				return err
			}
			return r.adopt(ctx, st, id, facts, body)
		}
	}
	ctx = github.ForSession(ctx, s.ID, step.Key())
	id, err := st.github.CreateComment(ctx, st.repo, int(s.IssueNumber), body)
	if errors.Is(err, github.ErrInvalid) {
		body = comment.Render(least(facts))
		id, err = st.github.CreateComment(ctx, st.repo, int(s.IssueNumber), body)
	}
	switch {
	case silent(err):
		r.log.Info("the issue takes no comment", "session", s.ID, "why", err)
		return step.End(ctx, commentStep{Gone: true})
	case errors.Is(err, github.ErrAmbiguous):
		found := false
		id, found, err = st.github.FindComment(ctx, st.repo, int(s.IssueNumber), comment.Marker(s.ID))
		if err != nil {
			return fmt.Errorf("look for the comment of session %s: %w", s.ID, err)
		}
		if !found {
			return fmt.Errorf("comment on issue %d: GitHub's answer was lost and there is no comment yet", s.IssueNumber)
		}
	case err != nil:
		return fmt.Errorf("comment on issue %d: %w", s.IssueNumber, err)
	}
	if err := step.End(ctx, commentStep{ID: id}); err != nil {
		return err
	}
	return r.wrote(ctx, s, id, digest)
}

// adopt takes over a comment that an earlier try wrote. What it says is not
// known, so it is edited.
func (r *Reporter) adopt(ctx context.Context, st *story, id int64, facts comment.Facts, body string) error {
	st.session.CommentID = id
	st.session.CommentDigest = ""
	st.session.CommentAt.Valid = false
	return r.edit(ctx, st, facts, body)
}

// edit replaces the text if it changed. While the session runs that is done no
// sooner than pace allows.
func (r *Reporter) edit(ctx context.Context, st *story, facts comment.Facts, body string) error {
	s := st.session
	digest := st.digest(body)
	if strings.HasSuffix(s.CommentDigest, sum(body)) {
		return nil
	}
	if !st.ended && s.CommentAt.Valid {
		if strings.HasPrefix(s.CommentDigest, "wait") && st.stage() == "work" { // only then it is looked up
			var err error
			if st.signs, err = publish.Signs(ctx, r.db.Q(), s.RepositoryID, st.spec); err != nil {
				return err
			}
		}
		if r.clock.Now().Sub(s.CommentAt.Time) < st.pace(s.CommentDigest) {
			return nil
		}
	}
	ctx = github.ForSession(ctx, s.ID, fmt.Sprintf("%s/comment/%.12s", s.ID, sum(body)))
	err := st.github.EditComment(ctx, st.repo, s.CommentID, body)
	if errors.Is(err, github.ErrInvalid) {
		err = st.github.EditComment(ctx, st.repo, s.CommentID, comment.Render(least(facts)))
	}
	switch {
	case silent(err):
		// Somebody deleted it, or locked the issue: we do not insist.
		r.log.Info("the comment of a session cannot be edited any more", "session", s.ID, "why", err)
	case err != nil: // also where it may have been done: editing again does no harm
		return fmt.Errorf("edit the comment of session %s: %w", s.ID, err)
	}
	return r.wrote(ctx, s, s.CommentID, digest)
}

func (r *Reporter) wrote(ctx context.Context, s storage.Session, id int64, digest string) error {
	err := r.db.Q().SetSessionComment(ctx, storage.SetSessionCommentParams{ID: s.ID, CommentID: id, CommentDigest: digest, Now: r.clock.Now()})
	if err != nil {
		return fmt.Errorf("record the comment of session %s: %w", s.ID, err)
	}
	return nil
}

// silent reports an answer after which no comment can be written there again:
// the issue is locked, deleted or moved away, or we may not comment. A suspension
// is lifted at times.
func silent(err error) bool {
	return errors.Is(err, github.ErrGone) || errors.Is(err, github.ErrNotFound) || errors.Is(err, github.ErrDenied)
}

// least leaves out all that is long, for a GitHub that finds the text too long.
func least(f comment.Facts) comment.Facts {
	f.Verify, f.Refused, f.Words, f.LastAction, f.Queue.Reason = nil, nil, "", "", ""
	for i := range f.Waiting {
		f.Waiting[i].Items, f.Waiting[i].Words = nil, ""
	}
	if f.Receipt != nil {
		rc := *f.Receipt
		rc.Withheld, rc.Unasked = nil, nil
		f.Receipt = &rc
	}
	return f
}

// facts are what the comment is made of.
func (r *Reporter) facts(st *story) comment.Facts {
	s := st.session
	page := r.sessionURL(s.ID)
	f := comment.Facts{
		Session: s.ID, SessionURL: page,
		State: string(s.State), Reason: s.Reason, Words: r.redactor.String(s.Words),
		Queue: render.Waiting{
			Reason: r.redactor.String(s.QueueReason), Position: int(s.QueuePosition), Of: st.waiting, Since: s.QueueAt.Time, Now: r.clock.Now(),
		},
		Requester: s.RequesterLogin, Harness: r.redactor.String(st.spec.Harness.Name()), SpecSource: s.SpecSource,
		BaseBranch: s.BaseBranch, BaseSHA: s.BaseSha, OnHead: s.Deliver == scheduler.DeliverHead, Generation: int(s.Generation), Created: s.CreatedAt,
		LastAction: r.redactor.String(st.last), Model: r.redactor.String(st.spec.Harness.Model),
		Spent: s.Spent, Budget: s.Budget, Calls: st.model,
	}
	for _, a := range st.pending {
		f.Waiting = append(f.Waiting, r.redacted(approve.One(a)))
	}
	for _, a := range st.allowed {
		f.Allowed = append(f.Allowed, r.redacted(approve.One(a)))
	}
	if s.FinishedAt.Valid {
		f.Finished = s.FinishedAt.Time
	}
	if p := st.provenance; p.Snapshot.Commit != "" && p.Sandbox.Tier != "" {
		drift, note := 0, ""
		switch {
		case p.Snapshot.Behind != nil:
			drift = *p.Snapshot.Behind
		case p.Snapshot.Drift:
			drift = -1
		}
		if p.Snapshot.Stale {
			note = p.Snapshot.Why
		}
		f.Snapshot = &comment.Snapshot{
			Commit: p.Snapshot.Commit, Age: p.Snapshot.Age, Drift: drift, Note: note, Restore: p.Snapshot.Restore,
			Sandbox: p.Sandbox.Tier, Limits: p.Sandbox.Limits,
		}
	}
	if rc := st.receipt; rc != nil && s.State == scheduler.Delivered {
		f.Receipt = &comment.Receipt{
			Branch: rc.Branch, HeadSHA: rc.HeadSHA, PullRequest: rc.PullRequest, URL: rc.URL,
			Evidence: rc.Evidence, Chain: rc.EventsHead, Events: rc.EventsCount, Withheld: rc.Withheld,
			Signed: rc.Signed, Reviewers: rc.Reviewers, Unasked: rc.Unasked,
		}
	}
	if s.CheckRunID != 0 && r.repository != nil {
		f.Check = fmt.Sprintf("%s/runs/%d", r.repository(st.repo), s.CheckRunID)
	}
	if k := st.kept; k != nil {
		if k.Manifest.Model.Name != "" {
			f.Calls = k.Manifest.Model
		}
		f.NoNew, f.Stands = k.Manifest.Verdict.Kind == evidence.NoNew, k.Manifest.Verdict.Stands
		f.Refused, f.More = k.Manifest.Egress.Refused, k.Manifest.Egress.More
		for _, c := range k.Manifest.Checks {
			f.Verify = append(f.Verify, comment.Verify{Name: c.Name, Run: c.Run, Passed: c.Passed, Words: c.Words})
		}
		f.Evidence = fileURL(page, publish.FileManifest, k.Digest)
		for _, file := range k.Manifest.Files {
			label := map[string]string{publish.FileBundle: "bundle", publish.FileUnsearched: "bundle, not searched for secrets and so only for people who may write", publish.FilePatch: "patch", publish.FileWithheld: "workflow files"}[file.Name]
			if label != "" && (f.Receipt == nil || file.Name == publish.FileWithheld) {
				f.Kept = append(f.Kept, comment.Link{Label: label, URL: fileURL(page, file.Name, file.SHA256)})
			}
		}
	}
	return f
}

// redacted is an approval without secrets: its words are partly the agent's.
func (r *Reporter) redacted(a comment.Approval) comment.Approval {
	a.Words = r.redactor.String(a.Words)
	for i := range a.Items {
		a.Items[i] = r.redactor.String(a.Items[i])
	}
	return a
}

// fileURL is where a session's page serves an evidence file.
func fileURL(page, name, sha string) string {
	if page == "" {
		return ""
	}
	return page + "/files/" + sha + "?name=" + url.QueryEscape(name)
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}
