package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"inspect/app/command"
	"inspect/app/comment"
	agent "inspect/app/context"
	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// target is what a wish is about besides its issue: the pull request whose head
// is worked on, pinned.
type target struct {
	github.PullRequest
	fork bool
}

// aim finds out whether a wish is about a pull request's head, and pins it: the
// pull request that it stands in, or the one that the last session delivered, if
// that is open. nil: neither.
func (in *Intake) aim(ctx context.Context, w *wish, last storage.Session) (*target, error) {
	if w.issue.PullRequest != nil {
		return in.pin(ctx, w, w.issue.Number)
	}
	if w.command.Flags.Head != "" {
		return nil, &answer{comment.NoPull("--head")}
	}
	if w.kind != kindCommand || last.State != scheduler.Delivered || last.PullRequest == 0 || w.command.Flags.Base != "" {
		return nil, nil
	}
	live, err := in.gh(w).PullRequest(ctx, w.repo, int(last.PullRequest))
	switch {
	case errors.Is(err, github.ErrNotFound), err == nil && live.State != "open":
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading pull request %d: %w", last.PullRequest, err)
	}
	return in.pinned(ctx, w, live)
}

// openPull reads a pull request that must be open.
func (in *Intake) openPull(ctx context.Context, w *wish, number int) (github.PullRequest, error) {
	live, err := in.gh(w).PullRequest(ctx, w.repo, number)
	switch {
	case errors.Is(err, github.ErrNotFound):
		return live, &answer{comment.PullGone()}
	case err != nil:
		return live, fmt.Errorf("reading pull request %d: %w", number, err)
	case live.Merged:
		return live, &answer{comment.PullOver("merged")}
	case live.State != "open":
		return live, &answer{comment.PullOver("closed")}
	}
	return live, nil
}

func (in *Intake) pin(ctx context.Context, w *wish, number int) (*target, error) {
	if w.command.Flags.Base != "" {
		return nil, &answer{comment.NoBase()}
	}
	live, err := in.openPull(ctx, w, number)
	if err != nil {
		return nil, err
	}
	return in.pinned(ctx, w, live)
}

// pinned pins a head that was read after the wish, if it is the one its author
// can have meant: the one they named, or one that has not moved since. A fork's
// must be named, because everybody may push there.
func (in *Intake) pinned(ctx context.Context, w *wish, live github.PullRequest) (*target, error) {
	t := &target{live, live.HeadRepoID != w.repo.ID}
	named := w.command.Flags.Head
	if word := lastWord(w.command.Text); named == "" && command.HeadPattern.MatchString(word) && (t.fork || strings.HasPrefix(live.HeadSHA, word)) {
		named = word
	}
	switch {
	case named != "" && !strings.HasPrefix(live.HeadSHA, named):
		return nil, &answer{comment.HeadMoved(live.HeadSHA)}
	case named != "":
		return t, nil
	case t.fork:
		return nil, &answer{comment.NameHead(live.HeadSHA)}
	}
	moved, err := in.headMoved(ctx, w, live)
	if err != nil {
		return nil, err
	}
	if moved {
		return nil, &answer{comment.HeadMoved(live.HeadSHA)}
	}
	return t, nil
}

// lastWord of the first line of a request.
func lastWord(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	if f := strings.Fields(first); len(f) > 0 {
		return f[len(f)-1]
	}
	return ""
}

// headMoved says whether the head may be younger than the wish: the event
// showed another one, a push was told of since, or the commit says of itself
// that it is younger. What arrives in the same second counts in its order.
func (in *Intake) headMoved(ctx context.Context, w *wish, live github.PullRequest) (bool, error) {
	if w.seen != "" && w.seen != live.HeadSHA {
		return true, nil
	}
	if w.at.IsZero() {
		return false, nil
	}
	own, err := in.o.DB.Q().DeliveryByGUID(ctx, w.guid)
	if err != nil {
		return false, fmt.Errorf("reading delivery %s: %w", w.guid, err)
	}
	seen, err := in.o.DB.Q().PushesSeen(ctx, storage.PushesSeenParams{RepositoryID: w.repo.ID, Since: own.ReceivedAt.Add(-7 * 24 * time.Hour)})
	if err != nil {
		return false, fmt.Errorf("looking for pushes to pull request %d: %w", live.Number, err)
	}
	for _, d := range seen {
		var p payload
		if json.Unmarshal(d.Payload, &p) != nil || p.PullRequest == nil || p.PullRequest.Number != live.Number {
			continue
		}
		at := moment(p.PullRequest.UpdatedAt)
		if at.After(w.at) || at.Equal(w.at) && d.ReceivedAt.After(own.ReceivedAt) {
			return true, nil
		}
	}
	made, err := in.gh(w).CommitTime(ctx, w.repo, live.HeadSHA)
	if err != nil {
		return false, fmt.Errorf("reading when the head of pull request %d was made: %w", live.Number, err)
	}
	return made.After(w.at), nil
}

// delivery decides where the result of work on a head goes.
func (in *Intake) delivery(ctx context.Context, w *wish, t *target, sp spec.Spec, defaultBranch string) (string, error) {
	if t.fork {
		return scheduler.DeliverPatch, nil
	}
	row, err := in.o.DB.Q().BranchByName(ctx, storage.BranchByNameParams{RepositoryID: w.repo.ID, Name: t.HeadRef})
	switch {
	case err == nil && row.LastSha == t.HeadSHA && t.HeadRef != defaultBranch:
		return scheduler.DeliverHead, nil // ours, and nobody else pushed to it
	case err != nil && !storage.IsMissing(err):
		return "", fmt.Errorf("looking for branch %s: %w", t.HeadRef, err)
	case sp.Publish.Push != spec.PushHead || t.HeadRef == defaultBranch:
		return scheduler.DeliverPull, nil
	}
	protected, err := in.gh(w).Protected(ctx, w.repo, t.HeadRef)
	if err != nil {
		return "", fmt.Errorf("asking about branch %s: %w", t.HeadRef, err)
	}
	if protected {
		return scheduler.DeliverPull, nil
	}
	return scheduler.DeliverHead, nil
}

// resultWords says to the agent where its result goes.
func resultWords(deliver, head string) string {
	switch deliver {
	case scheduler.DeliverHead:
		return "If your work passes, it is pushed onto that branch."
	case scheduler.DeliverPatch:
		return "Your work is not pushed anywhere: it is kept as a patch that people can take."
	}
	return "If your work passes, it becomes a draft pull request against " + head + "."
}

// onlyWords says whether a request gives no flags that a session which is there
// already could not follow.
func onlyWords(f command.Flags) bool {
	f.Head = ""
	return f == command.Flags{}
}

// addTo asks a session that is at work for one more thing. What cannot be told
// to it now is asked again when it has ended.
func (in *Intake) addTo(ctx context.Context, w *wish, s storage.Session) error {
	switch {
	case w.kind == kindLabel:
		return in.end(ctx, w, outcomeDuplicate, errBusy.Error())
	case !onlyWords(w.command.Flags):
		return &answer{comment.NoFlagsNow(s.ID, in.o.SessionURL(s.ID))}
	case s.State == scheduler.NeedsApproval:
		return &answer{comment.Awaits(s.ID, in.o.SessionURL(s.ID))}
	}
	if s.PullNumber > 0 {
		t, err := in.pin(ctx, w, int(s.PullNumber))
		if err != nil {
			return err
		}
		if t.HeadSHA != s.BaseSha && t.HeadSHA != s.HeadSha { // the event that tells is late: this is for the new head
			if err := in.o.Sessions.Supersede(ctx, s.ID, scheduler.ReasonSuperseded, comment.Superseded("", s.BaseSha, t.HeadSHA)); err != nil {
				return err
			}
			return waitForEnd(s.ID)
		}
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	late := false
	err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if i, err := tx.Q().IntentByKey(ctx, w.key); err != nil || i.Outcome != outcomePending {
			return err
		}
		ok, err := in.o.Sessions.Ask(ctx, tx, s.ID, in.prompt(w))
		if late = !ok; err != nil || late {
			return err
		}
		return finishIntent(ctx, tx.Q(), w, outcomePrompted, "", s.ID)
	})
	switch {
	case scheduler.IsPointError(err):
		return &answer{comment.CannotGoOn(err.Error())}
	case err != nil:
		return fmt.Errorf("asking session %s for more: %w", s.ID, err)
	case late:
		return waitForEnd(s.ID)
	}
	return nil
}

// waitForEnd has a wish tried again when a session may have ended.
func waitForEnd(session string) error {
	return &retry{time.Now().Add(untilEnded), fmt.Errorf("session %s takes no further request now, its end is waited for", session)}
}

// untilEnded is how often it is looked whether a session has ended that takes
// no further request.
const untilEnded = 5 * time.Second

func (in *Intake) prompt(w *wish) scheduler.Prompt {
	return scheduler.Prompt{By: scheduler.Person{ID: w.actor.ID, Login: w.actor.Login}, Text: w.command.Text, Comment: w.comment, Intent: w.key}
}

// goOn has the last session go on from its last state with one more thing to
// do. false: it cannot, and the wish gets a session of its own.
func (in *Intake) goOn(ctx context.Context, w *wish, last storage.Session, t *target) (bool, error) {
	if w.kind == kindLabel || last.ID == "" || !scheduler.Allowed(last.State, scheduler.Queued, scheduler.Rewound) || !onlyWords(w.command.Flags) {
		return false, nil
	}
	if (last.PullNumber > 0) != (t != nil) || t != nil && (int(last.PullNumber) != t.Number || last.BaseSha != t.HeadSHA) {
		return false, nil // what it worked on has moved
	}
	err := in.changeSession(ctx, w, func(tx *storage.Tx, now time.Time) (storage.Session, error) {
		return scheduler.Continue(ctx, tx, last.ID, in.prompt(w), now)
	})
	var words *answer
	if errors.As(err, &words) {
		return false, nil // nothing of it is kept, or its means are used up
	}
	return err == nil, err
}

// pullBrief adds what is known of a pull request.
func (in *Intake) pullBrief(ctx context.Context, w *wish, t *target, result string, f *agent.Facts, trust func(github.Comment) (bool, error)) error {
	f.Pull = &agent.Pull{Base: t.BaseRef, Head: t.HeadRef, Fork: t.fork, Result: result}
	gh := in.gh(w)
	reviews, err := gh.Reviews(ctx, w.repo, t.Number)
	if err != nil {
		return fmt.Errorf("reading the reviews: %w", err)
	}
	remarks, err := gh.ReviewComments(ctx, w.repo, t.Number)
	if err != nil {
		return fmt.Errorf("reading the review comments: %w", err)
	}
	threads, err := gh.Threads(ctx, w.repo, t.Number)
	if err != nil && !final(err) {
		return fmt.Errorf("reading which review threads are resolved: %w", err)
	}
	if err != nil {
		in.log.Info("it is not known which review threads are resolved", "repository", w.repo.ID, "pull", t.Number, "error", err)
		f.Pull.Unsettled = "GitHub does not tell Inspect"
	}
	add := func(kind string, c github.Comment, r agent.Remark) error {
		if strings.TrimSpace(c.Body) == "" || w.comment == c.ID && kind == map[string]string{inReview: agent.ItemReview, inRemark: agent.ItemRemark}[w.place] {
			return nil
		}
		ok, err := in.admit(w, kind, c, f, trust)
		if err != nil || !ok {
			return err
		}
		r.ID, r.Author, r.At, r.Body = c.ID, c.Login, c.Created, in.o.Redactor.String(c.Body)
		f.Pull.Remarks = append(f.Pull.Remarks, r)
		return nil
	}
	for _, r := range reviews {
		if at, edited := threads.Edited[r.ID]; edited {
			r.Updated = at
		}
		if err := add(agent.ItemReview, r.Comment, agent.Remark{Review: r.State}); err != nil {
			return err
		}
	}
	for _, r := range remarks {
		thread := r.InReplyTo
		if thread == 0 {
			thread = r.ID
		}
		if err := add(agent.ItemRemark, r.Comment, agent.Remark{
			Thread: thread, Path: r.Path, Line: r.Line, Resolved: threads.Resolved[thread], Outdated: threads.Outdated[thread],
		}); err != nil {
			return err
		}
	}
	return in.checkBrief(ctx, w, t, f)
}

// checkBrief adds the checks of the head that failed, with the end of their
// logs where GitHub lets us read them.
func (in *Intake) checkBrief(ctx context.Context, w *wish, t *target, f *agent.Facts) error {
	failed, err := in.gh(w).FailedChecks(ctx, w.repo, t.HeadSHA)
	if err != nil && !final(err) {
		return fmt.Errorf("reading the checks of the head: %w", err)
	}
	for i, c := range failed {
		if c.AppID == in.o.AppID {
			continue
		}
		one := agent.Check{ID: c.ID, Name: c.Name, Conclusion: c.Conclusion, Text: in.o.Redactor.String(strings.TrimSpace(c.Title + "\n\n" + c.Summary + "\n\n" + c.Text))}
		if c.App == "github-actions" && i < agent.MaxChecks {
			log, err := in.gh(w).JobLog(ctx, w.repo, c.ID, agent.MaxLog)
			if one.Log = in.o.Redactor.String(log); err != nil {
				in.log.Info("the log of a failed check cannot be read", "repository", w.repo.ID, "job", c.ID, "error", err)
				one.NoLog = "GitHub does not give it to Inspect"
			}
		}
		f.Pull.Checks = append(f.Pull.Checks, one)
	}
	return nil
}
