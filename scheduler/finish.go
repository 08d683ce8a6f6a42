package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// verdict is what an outcome means for its session.
type verdict struct {
	to     State // "" = another attempt
	reason string
	words  string
}

// judge decides from a runner's outcome. It is pure. A runner can bring a
// session no further than to publishing.
func judge(o wire.Outcome, sp spec.Spec) verdict {
	switch o.Kind {
	case wire.OutcomeVerified:
		return judgeVerified(o, sp)
	case wire.OutcomeNoChange:
		return verdict{NoChange, o.Reason, orWords(o.Words, "The agent changed nothing.")}
	case wire.OutcomeStopped:
		return verdict{Stopped, orWords(o.Reason, ReasonStopped), orWords(o.Words, "The work was stopped.")}
	case wire.OutcomeTimedOut:
		return verdict{TimedOut, orWords(o.Reason, ReasonTimeout), orWords(o.Words, "The work was not over in time.")}
	case wire.OutcomeOverBudget:
		return verdict{OverBudget, orWords(o.Reason, ReasonBudget), orWords(o.Words, "The budget was used up.")}
	case wire.OutcomeInfrastructure:
		return verdict{"", o.Reason, orWords(o.Words, "the machine could not do the work")}
	default:
		return verdict{Failed, o.Reason, orWords(o.Words, "The work failed.")}
	}
}

func judgeVerified(o wire.Outcome, sp spec.Spec) verdict {
	if o.Bundle == "" || o.Tip == "" || o.Tree == "" {
		return verdict{Failed, ReasonNoBundle, "The runner announced a result and did not upload one."}
	}
	if len(sp.Verify) == 0 {
		return verdict{Failed, ReasonNothingVerified, "There is a change, but the repository names no command that verifies it, so nothing was published. Add one under verify in .inspect.yml."}
	}
	byName := map[string]wire.VerifyResult{}
	for _, r := range o.Results {
		byName[r.Name] = r
	}
	var failed []string
	for _, want := range sp.Verify {
		r, ran := byName[want.Name]
		if !ran || r.Run != want.Run {
			return verdict{Failed, ReasonNothingVerified, fmt.Sprintf("The command %q of verify did not run, so nothing was published.", want.Name)}
		}
		r = lastRun(r)
		switch {
		case failsOnBase(o.Base, r):
			// Whether in the same way is seen from the reports, when it is published.
		case r.TimedOut:
			failed = append(failed, fmt.Sprintf("%q was not over in time", want.Name))
		case r.Signal != "":
			failed = append(failed, fmt.Sprintf("%q was ended by %s", want.Name, r.Signal))
		case r.ExitCode == 127: // the shell's word for a command that is not there
			failed = append(failed, fmt.Sprintf("%q ended with status 127: what it runs is not installed in the sandbox", want.Name))
		case r.ExitCode != 0:
			failed = append(failed, fmt.Sprintf("%q ended with status %d", want.Name, r.ExitCode))
		}
	}
	if len(failed) > 0 {
		return verdict{Failed, ReasonVerifyFailed, "The change did not pass verification, so it was not published: " + strings.Join(failed, ", ") + ". The work is kept in the evidence."}
	}
	return verdict{to: Publishing}
}

// lastRun is how a command ended that was run again when it failed.
func lastRun(r wire.VerifyResult) wire.VerifyResult {
	if n := len(r.Again); n > 0 {
		again := r.Again[n-1]
		again.Name, again.Run = r.Name, r.Run
		return again
	}
	return r
}

// failsOnBase says whether a command that said no said so on the base as well.
func failsOnBase(base *wire.Column, r wire.VerifyResult) bool {
	no := func(r wire.VerifyResult) bool {
		return r.ExitCode > 0 && r.ExitCode != 127 && r.Signal == "" && !r.TimedOut
	}
	if base == nil || !no(r) {
		return false
	}
	return slices.ContainsFunc(base.Results, func(b wire.VerifyResult) bool { return b.Name == r.Name && no(lastRun(b)) })
}

func orWords(s, otherwise string) string {
	if strings.TrimSpace(s) == "" {
		return otherwise
	}
	return s
}

// finish takes the outcome of a session's current attempt.
func (s *Scheduler) finish(ctx context.Context, sess storage.Session, a storage.Attempt) error {
	var o wire.Outcome
	if err := json.Unmarshal(a.Outcome.RawMessage, &o); err != nil {
		return fmt.Errorf("reading the outcome of session %s: %w", sess.ID, err)
	}
	sp, err := sessionSpec(sess)
	if err != nil {
		return err
	}
	v := judge(o, sp)
	if v.to == "" {
		if v.reason == ReasonSnapshotMissing {
			return s.missing(ctx, sess, a, outcomeWords(v))
		}
		return s.tryAgain(ctx, sess, outcomeWords(v))
	}
	more := false // it may have another attempt
	if o.Kind == wire.OutcomeVerified || o.Kind == wire.OutcomeNoChange {
		tried, err := s.tried(ctx, sess)
		if err != nil {
			return err
		}
		more = tried < MaxAttempts
	}
	_, err = s.apply(ctx, sess, change{
		to: v.to, reason: v.reason, words: v.words, endWords: "its outcome was " + o.Kind,
		with: func(q *storage.Queries, row *storage.Session) error {
			late, err := unheard(ctx, q, *row)
			switch {
			case err != nil:
				return fmt.Errorf("looking for what session %s was asked: %w", row.ID, err)
			case late && more:
				return errUnheard
			}
			return keepOutcome(ctx, q, row, a)
		},
	})
	if errors.Is(err, errUnheard) {
		return s.tryAgain(ctx, sess, "more was asked for when the agent had ended")
	}
	return err
}

// errUnheard says that the result is not the last: more was asked for.
var errUnheard = errors.New("more was asked for")

// keepOutcome pins the outcome of the attempt that counts.
func keepOutcome(ctx context.Context, q *storage.Queries, row *storage.Session, a storage.Attempt) error {
	if err := q.SetSessionOutcome(ctx, storage.SetSessionOutcomeParams{ID: row.ID, Outcome: a.Outcome}); err != nil {
		return fmt.Errorf("keeping the outcome of session %s: %w", row.ID, err)
	}
	return nil
}

// publishLimit bounds one call of Publish.
const publishLimit = 10 * time.Minute

// stepPublish has the result published. Publish looks up what it did before,
// so that a repetition after a crash or a lost answer does nothing twice.
func (s *Scheduler) stepPublish(ctx context.Context, sess storage.Session) error {
	pctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	var p Published
	err := s.learn(pctx)
	if err == nil {
		p, err = s.o.Effects.Publish(pctx, sess)
	}
	if err == nil {
		err = p.check(s.o.NoForge)
	}
	switch {
	case errors.Is(err, ErrPermanent):
		_, err := s.apply(ctx, sess, change{to: Failed, reason: ReasonPublishRefused,
			words: "The result could not be published: " + err.Error() + ". It is kept in the evidence."})
		return err
	case err != nil:
		return s.tryLater(ctx, sess, fmt.Errorf("publishing the result of session %s: %w", sess.ID, err), 2*time.Minute)
	}
	// What was done must be written even if the step was interrupted.
	ctx = context.WithoutCancel(ctx)
	if ask := p.Ask; ask != nil {
		_, err := s.apply(ctx, sess, change{to: NeedsApproval, words: ask.Words, with: func(q *storage.Queries, row *storage.Session) error {
			return s.askToPublish(ctx, q, row, *ask)
		}})
		return err
	}
	if r := p.Refusal; r != nil {
		_, err := s.apply(ctx, sess, change{to: r.State, reason: r.Reason, words: r.Words})
		return err
	}
	r := p.Receipt
	where := r.URL
	if s.o.NoForge {
		where = "the branch " + r.Branch
	}
	_, err = s.apply(ctx, sess, change{to: Delivered, words: "Delivered as " + where + ".",
		with: func(q *storage.Queries, row *storage.Session) error {
			return q.SetSessionReceipt(ctx, storage.SetSessionReceiptParams{
				ID: row.ID, Receipt: pqtype.NullRawMessage{RawMessage: encode(r), Valid: true},
				Branch: r.Branch, HeadSha: r.HeadSHA, PullRequest: int32(r.PullRequest),
			})
		}})
	return err
}

// check refuses what is not a proof: success is only reported with one. Where
// there is no forge there is no pull request to prove it with.
func (p Published) check(noForge bool) error {
	brought := 0
	for _, is := range []bool{p.Receipt != nil, p.Refusal != nil, p.Ask != nil} {
		if is {
			brought++
		}
	}
	switch {
	case brought != 1:
		return errors.New("publishing brought not one of a receipt, a refusal and a question")
	case p.Ask != nil && (noForge || p.Ask.Digest == "" || len(p.Ask.Asked.Items) == 0):
		return errors.New("the question lacks what is asked, or there is nobody to answer it")
	case p.Refusal != nil && !(p.Refusal.State == Failed || p.Refusal.State == NoChange || p.Refusal.State == Stopped):
		return fmt.Errorf("a refusal cannot end as %s", p.Refusal.State)
	case p.Receipt != nil && (p.Receipt.Branch == "" || p.Receipt.HeadSHA == ""):
		return errors.New("the receipt lacks the branch or the head")
	case p.Receipt != nil && noForge != (p.Receipt.PullRequest == 0) || p.Receipt != nil && p.Receipt.PullRequest < 0:
		return errors.New("the receipt lacks the pull request, or has one where there is no forge")
	}
	return nil
}
