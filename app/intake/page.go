package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/app/approve"
	"inspect/app/command"
	"inspect/app/comment"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// pageEvent is the delivery that a page makes. No event of GitHub's has a dot in
// its name, and the webhook takes none that has.
const pageEvent = "inspect.page"

// MaxAsk is the longest request that a page takes, in bytes.
const MaxAsk = 32 << 10

// Pressed is what a person who is signed in asks for on a session's page. It is
// worked on as any other wish: who it is may write there now, or it is denied.
type Pressed struct {
	ID      string `json:"id"` // a GUID of the form: sent twice, it is one wish
	Session string `json:"session"`
	Do      string `json:"do"`     // a command's name: stop, retry, approve, reject, request
	Digest  string `json:"digest"` // of what is approved or rejected
	Text    string `json:"text"`   // of a request
	ActorID int64  `json:"actor_id"`
	Login   string `json:"login"`
}

// pageCommands are those that have a button.
var pageCommands = []string{command.Stop, command.Retry, command.Approve, command.Reject, command.Request}

// PageKey is the key of the intent that a Pressed becomes.
func PageKey(id string) string { return "page:" + id }

// Press stores what a page asks for, and has it worked on. An error is ours.
func (in *Intake) Press(ctx context.Context, p Pressed) error {
	body, err := json.Marshal(payload{Pressed: &p})
	if err != nil {
		return err
	}
	s, err := in.o.DB.Q().PublishSession(ctx, p.Session)
	if err != nil {
		return fmt.Errorf("reading session %s: %w", p.Session, err)
	}
	err = in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		n, err := tx.Q().StoreDelivery(ctx, storage.StoreDeliveryParams{
			Guid: p.ID, Event: pageEvent, Action: storable(p.Do, 100), RepositoryID: s.RepositoryID, SenderID: p.ActorID, Payload: body, Status: "pending",
		})
		if err != nil || n == 0 {
			return err
		}
		return in.o.Sessions.InsertDelivery(ctx, tx, p.ID)
	})
	if err != nil {
		return fmt.Errorf("storing what a page asks for: %w", err)
	}
	return nil
}

// page works on what was pressed. What there is to say is read by the page.
func (in *Intake) page(ctx context.Context, guid string, received time.Time, p payload) (result, error) {
	a := p.Pressed
	if a == nil || !slices.Contains(pageCommands, a.Do) {
		return ignore("the page asks for nothing that has a button")
	}
	s, err := in.o.DB.Q().PublishSession(ctx, a.Session)
	if storage.IsMissing(err) {
		return ignore("there is no such session")
	}
	if err != nil {
		return result{}, fmt.Errorf("reading session %s: %w", a.Session, err)
	}
	place, err := in.o.DB.Q().PublishPlace(ctx, s.RepositoryID)
	if err != nil {
		return result{}, fmt.Errorf("reading the repository of session %s: %w", a.Session, err)
	}
	on := issue{Number: int(s.IssueNumber), Locked: true} // nothing is written there
	if s.PullNumber == s.IssueNumber && s.PullNumber > 0 {
		on.PullRequest = &pullLink{}
	}
	w := &wish{
		key: PageKey(guid), kind: kindPage, guid: guid, installation: &installation{ID: place.InstallationID},
		repo:       github.Repo{ID: place.ID, Owner: place.Owner, Name: place.Name},
		repository: &repository{ID: place.ID, Name: place.Name, DefaultBranch: place.DefaultBranch},
		issue:      on, actor: policy.ActorOf(a.ActorID, a.Login), need: policy.NeedWrite, at: received,
		command: command.Command{Name: a.Do, Arg: a.Digest, Text: strings.TrimSpace(a.Text)}, session: s.ID,
	}
	if err := in.work(ctx, w); err != nil {
		return result{}, err
	}
	i, err := in.o.DB.Q().IntentByKey(ctx, w.key)
	if err != nil {
		return result{}, fmt.Errorf("reading an intent: %w", err)
	}
	return result{done, i.Outcome}, nil
}

// pressPage does what a button of a session's page asks, to that session.
func (in *Intake) pressPage(ctx context.Context, w *wish) error {
	s, err := in.o.DB.Q().PublishSession(ctx, w.session)
	if err != nil {
		return fmt.Errorf("reading session %s: %w", w.session, err)
	}
	if w.command.Name == command.Approve || w.command.Name == command.Reject {
		return in.given(ctx, w, s, approve.Given{
			Session: s.ID, Digest: w.command.Arg, Approve: w.command.Name == command.Approve, Actor: w.actor, How: scheduler.ByPage, At: w.at,
		})
	}
	last, found, err := in.lastSession(ctx, w)
	if err != nil {
		return err
	}
	if found && last.ID != s.ID {
		return in.end(ctx, w, outcomeReplied, comment.NotTheLast(last.ID, in.o.SessionURL(last.ID)))
	}
	switch w.command.Name {
	case command.Stop:
		return in.stop(ctx, w)
	case command.Retry:
		return in.said(ctx, w, in.again(ctx, w))
	}
	return in.said(ctx, w, in.askAgain(ctx, w, s))
}

// askAgain asks a session for one more thing: while it works, or by having it go
// on. Unlike on GitHub no other session is started for it.
func (in *Intake) askAgain(ctx context.Context, w *wish, s storage.Session) error {
	switch {
	case w.command.Text == "":
		return &answer{comment.NothingAsked()}
	case len(w.command.Text) > MaxAsk:
		return &answer{comment.TooLong(MaxAsk)}
	case !scheduler.Terminal(s.State):
		return in.addTo(ctx, w, s)
	}
	if _, allowed := in.floor(w.repo); !allowed {
		return &answer{comment.NotAllowed()}
	}
	var at *target
	if s.PullNumber > 0 {
		var err error
		if at, err = in.pin(ctx, w, int(s.PullNumber)); err != nil {
			return err
		}
	}
	on, err := in.goOn(ctx, w, s, at)
	if err != nil || on {
		return err
	}
	return &answer{comment.CannotGoOn(errCannotGoOn.Error())}
}

var errCannotGoOn = errors.New("this session does not go on from here; ask for it on the issue or the pull request")
