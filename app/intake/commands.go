package intake

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"inspect/app/command"
	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// Where commands stand.
const (
	inComment = "comment"        // of an issue's or a pull request's conversation
	inRemark  = "review-comment" // of a review, on a line
	inReview  = "review"
)

// said is new text of a person in which commands may stand.
type said struct {
	kind   string
	id     int64
	body   string
	author *account
	app    int64 // through which it was written
	at     string
	on     issue
	head   string // of the pull request, as the event shows it; empty: it does not
}

// commands obeys what stands in new text: in order, with one look at what its
// author may do and one reply. Only the author's own event counts.
func (in *Intake) commands(ctx context.Context, guid string, p payload, repo github.Repo, s said) (result, error) {
	actor := p.actor()
	actor.App = s.app
	if s.author == nil || s.author.ID != actor.ID {
		return ignore("the sender is not the comment's author")
	}
	parsed := command.Parse(s.body)
	if _, none := parsed[0].(command.Ignore); none {
		return ignore("no command")
	}
	wishes := make([]*wish, 0, len(parsed))
	keys := make([]string, 0, len(parsed))
	known := &asked{}
	for _, one := range parsed {
		w := &wish{
			kind: kindCommand, guid: guid, installation: p.Installation, repo: repo, repository: p.Repository, issue: s.on,
			actor: actor, asked: known, need: policy.NeedWrite, at: moment(s.at), comment: s.id, place: s.kind, seen: s.head,
		}
		switch one := one.(type) {
		case command.Command:
			w.key, w.command = commandKey(s, one.Index), one
			if info, ok := command.Lookup(one.Name); ok && info.Who == command.Read {
				w.need = policy.NeedRead
			}
		case command.Reply:
			w.key, w.wrong = commandKey(s, one.Index), one.Words
		}
		wishes, keys = append(wishes, w), append(keys, w.key)
	}
	for _, w := range wishes {
		if err := in.work(ctx, w); err != nil {
			return result{}, err
		}
	}
	return in.settle(ctx, wishes[0].asker(), fmt.Sprintf("%s-%d", s.kind, s.id), keys)
}

func commandKey(s said, index int) string { return fmt.Sprintf("%s:%d:%d", s.kind, s.id, index) }

// obey does what a command other than a request asks.
func (in *Intake) obey(ctx context.Context, w *wish) error {
	switch name := w.command.Name; name {
	case command.Help:
		// One for each issue: asking twice gets the same comment.
		if err := in.reply(ctx, w.asker(), "help", command.Table()); err != nil {
			return err
		}
		return in.end(ctx, w, outcomeReplied, "")
	case command.Status:
		return in.status(ctx, w)
	case command.Stop:
		return in.stop(ctx, w)
	case command.Approve, command.Reject:
		return in.answerWaiting(ctx, w)
	case command.Allow, command.Budget:
		return in.askMore(ctx, w)
	case command.Retry, command.Rewind, command.Fork:
		return in.said(ctx, w, in.again(ctx, w))
	case command.Refresh:
		return in.refresh(ctx, w)
	case command.Doctor:
		return in.doctor(ctx, w)
	default:
		return fmt.Errorf("nobody obeys the command %q", name)
	}
}

// status brings the session's own comment up to date; the answer is there.
func (in *Intake) status(ctx context.Context, w *wish) error {
	s, found, err := in.lastSession(ctx, w)
	if err != nil {
		return err
	}
	if !found {
		// Whoever can read may ask, so this is said once for each issue.
		if err := in.reply(ctx, w.asker(), "no-session", comment.NoSession()); err != nil {
			return err
		}
		return in.end(ctx, w, outcomeReplied, "")
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	if err := in.o.DB.Q().AskSessionComment(ctx, s.ID); err != nil {
		return fmt.Errorf("having the comment of session %s brought up to date: %w", s.ID, err)
	}
	return in.endWith(ctx, w, outcomeReplied, "", s.ID, true)
}

// stop ends the session that is at work on the issue.
func (in *Intake) stop(ctx context.Context, w *wish) error {
	s, ok, err := in.atWork(ctx, w)
	if err != nil || !ok {
		return err
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	if err := in.o.Sessions.Stop(ctx, s.ID, w.actor.Login, ""); err != nil {
		return fmt.Errorf("stopping session %s: %w", s.ID, err)
	}
	return in.endWith(ctx, w, outcomeReplied, "", s.ID, false)
}

// again has a session go on from one of its turns, or a second one.
func (in *Intake) again(ctx context.Context, w *wish) error {
	last, found, err := in.lastSession(ctx, w)
	switch {
	case err != nil:
		return err
	case !found:
		return &answer{comment.NoSession()}
	}
	if w.kind == kindCommand { // a page's time is of another clock
		if stopped, err := in.stopped(ctx, w); err != nil {
			return err
		} else if stopped {
			return &refusal{"somebody said stop after it"}
		}
	}
	if younger, err := in.younger(ctx, last, w); err != nil {
		return err
	} else if younger {
		return &answer{comment.Younger(last.ID, in.o.SessionURL(last.ID))}
	}
	bounds, allowed := in.floor(w.repo)
	if !allowed {
		return &answer{comment.NotAllowed()}
	}
	if last.PullNumber > 0 {
		live, err := in.openPull(ctx, w, int(last.PullNumber))
		if err != nil {
			return err
		}
		if live.HeadSHA != last.BaseSha {
			return &answer{comment.HeadMoved(live.HeadSHA)}
		}
	}
	var h spec.Harness
	if w.command.Flags.Harness != "" {
		if h, err = in.forkHarness(w, last, bounds); err != nil {
			return err
		}
	}
	if err := in.react(ctx, w); err != nil {
		return err
	}
	at := scheduler.Point{Session: last.ID, By: scheduler.Person{ID: w.actor.ID, Login: w.actor.Login}}
	if w.command.Name == command.Rewind {
		if _, err := fmt.Sscan(w.command.Arg, &at.Turn); err != nil || at.Turn < 1 {
			return &answer{comment.NoTurn()}
		}
	}
	return in.changeSession(ctx, w, func(tx *storage.Tx, now time.Time) (storage.Session, error) {
		switch w.command.Name {
		case command.Fork:
			return scheduler.Fork(ctx, tx, at, h, w.actor.Login, now)
		case command.Rewind:
			return scheduler.Rewind(ctx, tx, at, w.actor.Login, now)
		}
		return scheduler.Retry(ctx, tx, at, w.actor.Login, now)
	})
}

// changeSession makes a session go on, wakes it, and ends the wish, all in one
// transaction.
func (in *Intake) changeSession(ctx context.Context, w *wish, change func(*storage.Tx, time.Time) (storage.Session, error)) error {
	err := in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		if i, err := tx.Q().IntentByKey(ctx, w.key); err != nil || i.Outcome != outcomePending {
			return err
		}
		s, err := change(tx, time.Now())
		if err != nil {
			return err
		}
		if err := in.o.Sessions.InsertReconcile(ctx, tx, s.ID); err != nil {
			return err
		}
		return finishIntent(ctx, tx.Q(), w, outcomeStarted, "", s.ID)
	})
	if scheduler.IsPointError(err) {
		return &answer{comment.CannotGoOn(err.Error())}
	}
	return err
}

// forkHarness is what a fork is to work with.
func (in *Intake) forkHarness(w *wish, last storage.Session, bounds policy.Bounds) (spec.Harness, error) {
	var sp spec.Spec
	if err := json.Unmarshal(last.Spec, &sp); err != nil {
		return spec.Harness{}, fmt.Errorf("reading the configuration of session %s: %w", last.ID, err)
	}
	h, words := chooseHarness(w.command.Flags, sp.Harness, in.o.Harness, in.o.Models)
	if words != "" {
		return h, &answer{words}
	}
	sp.Harness = h
	_, err := in.bound(sp, bounds, w.repo)
	return h, err
}
