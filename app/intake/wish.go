package intake

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"inspect/app/approve"
	"inspect/app/authority"
	"inspect/app/command"
	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/storage"
)

// Kinds of intents.
const (
	kindLabel   = "label"
	kindCommand = "command"
	kindButton  = "button"
	kindRerun   = "rerun"
	kindPage    = "page"
)

// Outcomes of intents.
const (
	outcomePending   = "pending"
	outcomeStarted   = "started"
	outcomeDenied    = "denied"
	outcomeReplied   = "replied" // the note is the reply, "" if the answer is elsewhere
	outcomeRefused   = "refused" // silently; the note says why
	outcomeDuplicate = "duplicate"
	outcomePrompted  = "prompted" // a session that is at work was asked for it too
)

// wish is one thing a person asks for.
type wish struct {
	key, kind, guid string
	installation    *installation
	repo            github.Repo
	repository      *repository
	issue           issue
	actor           policy.Actor
	asked           *asked // shared by the wishes of one comment
	need            policy.Need
	at              time.Time // when it was asked: what came later is not looked at
	label           string
	comment         int64  // that the command stands in
	place           string // what kind of comment: inComment, …
	seen            string // head of the pull request as the event showed it
	command         command.Command
	wrong           string // a reply instead of a command
	priority        int    // of the session
	button          *approve.Button
	rerun           *rerun
	session         string // whose page it comes from
	piped           *piped // of a pipeline; nil: a person's or a bot's
}

// labels are those of the issue, with the one that was just put on it.
func (w *wish) labels() []string {
	out := []string{w.label}
	for _, l := range w.issue.Labels[:min(len(w.issue.Labels), 100)] { // GitHub: at most 100
		out = append(out, l.Name)
	}
	return out
}

// asker is where a reply goes.
type asker struct {
	installation int64
	repo         github.Repo
	issue        int
	guid         string
	pull, locked bool // the issue is a pull request; nothing can be written there
}

func (w *wish) asker() asker {
	return asker{w.installation.ID, w.repo, w.issue.Number, w.guid, w.issue.PullRequest != nil, w.issue.Locked}
}

// work brings a wish to its outcome: it is recorded, its actor is judged, and
// then it is done or answered.
func (in *Intake) work(ctx context.Context, w *wish) error {
	mine, err := in.claim(ctx, w)
	if err != nil || !mine {
		return err
	}
	if stop, err := in.breakLoop(ctx, w); err != nil || stop {
		return err
	}
	decision, err := in.judge(ctx, w)
	if err != nil {
		return err
	}
	if !decision.Allow {
		return in.end(ctx, w, outcomeDenied, decision.Reason+": "+decision.Words)
	}
	if w.repository.Archived {
		return in.end(ctx, w, outcomeRefused, "the repository is archived")
	}
	switch {
	case w.wrong != "":
		return in.end(ctx, w, outcomeReplied, w.wrong)
	case w.kind == kindButton:
		return in.press(ctx, w)
	case w.kind == kindRerun:
		return in.runAgain(ctx, w)
	case w.kind == kindPage:
		return in.pressPage(ctx, w)
	case w.kind == kindCommand && w.command.Name != command.Request:
		return in.obey(ctx, w)
	}
	return in.start(ctx, w)
}

// claim records the wish. It is not ours if another delivery told of it first,
// or if an earlier try has brought it to an end.
func (in *Intake) claim(ctx context.Context, w *wish) (mine bool, err error) {
	n, err := in.o.DB.Q().ClaimIntent(ctx, storage.ClaimIntentParams{
		Key: w.key, DeliveryGuid: w.guid, RepositoryID: w.repo.ID, IssueNumber: int32(w.issue.Number),
		ActorID: w.actor.ID, ActorLogin: storable(w.actor.Login, 100), Kind: w.kind,
	})
	if err != nil {
		return false, fmt.Errorf("recording an intent: %w", err)
	}
	if n == 1 {
		return true, nil
	}
	i, err := in.o.DB.Q().IntentByKey(ctx, w.key)
	if err != nil {
		return false, fmt.Errorf("reading an intent: %w", err)
	}
	return i.Outcome == outcomePending && i.DeliveryGuid == w.guid, nil
}

// One account may ask for maxWishes things in one thread within loopWindow. More
// is no person but two programs that answer each other, or one that floods;
// every question would cost a request of the installation's few.
const (
	maxWishes  = 20
	loopWindow = 10 * time.Minute
)

// breakLoop ends a wish that is one too many. A pipeline is told from others by
// what it is called. Who was never denied is told so
// once in a thread and window.
func (in *Intake) breakLoop(ctx context.Context, w *wish) (stop bool, err error) {
	n, err := in.o.DB.Q().RecentIntents(ctx, storage.RecentIntentsParams{
		RepositoryID: w.repo.ID, IssueNumber: int32(w.issue.Number), ActorID: w.actor.ID,
		ActorLogin: storable(w.actor.Login, 100), Seconds: int32(loopWindow / time.Second),
	})
	if err != nil {
		return false, fmt.Errorf("counting what %s asked for: %w", w.actor.Login, err)
	}
	if w.piped != nil {
		n.Asked -= n.Denied // builds of forks are refused, and anybody can make many
	}
	if n.Asked <= maxWishes {
		return false, nil
	}
	in.log.Warn("an account asks for too much in one thread", "repository", w.repo.ID, "issue", w.issue.Number, "actor", w.actor.ID)
	if n.Denied == 0 && n.Asked == maxWishes+1 {
		return true, in.end(ctx, w, outcomeReplied, comment.TooMany(maxWishes, loopWindow))
	}
	return true, in.end(ctx, w, outcomeRefused, "too many wishes of one account in one thread")
}

// asked remembers what was found out about a comment's author while its
// commands are worked on.
type asked struct {
	done  bool
	known authority.Known
}

// judge asks what the actor may do now.
func (in *Intake) judge(ctx context.Context, w *wish) (policy.ActorDecision, error) {
	if w.asked == nil {
		w.asked = &asked{}
	}
	if !w.asked.done {
		known, err := in.ask(ctx, w, w.actor)
		if err != nil {
			return policy.ActorDecision{}, err
		}
		w.asked.done, w.asked.known = true, known
	}
	return w.asked.known.Decide(w.need), nil
}

// ask finds out what an account may do: nothing when GitHub refuses to say. It
// is an error when GitHub may say later.
func (in *Intake) ask(ctx context.Context, w *wish, a policy.Actor) (authority.Known, error) {
	known, err := in.authority.Ask(ctx, in.gh(w), w.repo, a)
	if err != nil && final(err) {
		in.log.Info("a permission could not be learned", "repository", w.repo.ID, "actor", a.ID, "error", err)
		return known, in.mark(ctx, w, err)
	}
	return known, err
}

func (in *Intake) gh(w *wish) GitHub { return in.o.GitHub(w.installation.ID) }

// mark records that an installation is suspended when GitHub says so: the
// event that tells may have been missed.
func (in *Intake) mark(ctx context.Context, w *wish, err error) error {
	if !errors.Is(err, github.ErrSuspended) {
		return nil
	}
	return in.o.DB.Q().SuspendInstallation(ctx, w.installation.ID)
}

// react shows that a wish was seen. It is naturally done once, and nothing
// depends on it.
func (in *Intake) react(ctx context.Context, w *wish) error {
	var err error
	ctx = github.ForSession(ctx, "", w.key)
	if w.issue.PullRequest != nil {
		ctx = github.OnPull(ctx)
	}
	switch {
	case w.kind == kindPage:
		return nil // the page shows it
	case w.kind != kindCommand:
		err = in.gh(w).ReactIssue(ctx, w.repo, w.issue.Number, "eyes")
	case w.place == inComment:
		err = in.gh(w).ReactComment(ctx, w.repo, w.comment, "eyes")
	case w.place == inRemark:
		err = in.gh(w).ReactReviewComment(ctx, w.repo, w.comment, "eyes")
	default:
		return nil // a review takes no reaction
	}
	switch {
	case err == nil, final(err), errors.Is(err, github.ErrAmbiguous):
		if err != nil {
			in.log.Info("a reaction could not be given", "repository", w.repo.ID, "issue", w.issue.Number, "error", err)
		}
		return nil
	}
	return fmt.Errorf("reacting: %w", err)
}

// end gives a wish its outcome.
func (in *Intake) end(ctx context.Context, w *wish, outcome, note string) error {
	return in.endWith(ctx, w, outcome, note, "", false)
}

// endWith also names the session that a wish led to or was about, and wakes it.
func (in *Intake) endWith(ctx context.Context, w *wish, outcome, note, session string, wake bool) error {
	err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if wake {
			if err := in.o.Sessions.InsertReconcile(ctx, tx, session); err != nil {
				return err
			}
		}
		return finishIntent(ctx, tx.Q(), w, outcome, note, session)
	})
	if err != nil {
		return fmt.Errorf("recording the outcome of an intent: %w", err)
	}
	return nil
}

func finishIntent(ctx context.Context, q *storage.Queries, w *wish, outcome, note, session string) error {
	return q.FinishIntent(ctx, storage.FinishIntentParams{
		Key: w.key, Outcome: outcome, Note: storable(note, comment.MaxBytes), SessionID: sql.NullString{String: session, Valid: session != ""},
	})
}

// settle ends a delivery: what its wishes have to say goes into one reply.
func (in *Intake) settle(ctx context.Context, to asker, key string, intents []string) (result, error) {
	var words, outcomes []string
	for _, k := range intents {
		i, err := in.o.DB.Q().IntentByKey(ctx, k)
		if err != nil {
			return result{}, fmt.Errorf("reading an intent: %w", err)
		}
		if i.DeliveryGuid != to.guid {
			outcomes = append(outcomes, "told before by delivery "+i.DeliveryGuid)
			continue
		}
		outcomes = append(outcomes, i.Outcome)
		if i.Outcome == outcomeReplied && i.Note != "" {
			words = append(words, i.Note)
		}
	}
	if len(words) > 0 {
		if err := in.reply(ctx, to, key, words...); err != nil {
			return result{}, err
		}
	}
	return result{done, strings.Join(outcomes, ", ")}, nil
}
