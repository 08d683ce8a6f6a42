package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/storage"
)

// What people ask of a session after it began is kept in order and given to
// every attempt from the first on: an agent that begins anew remembers nothing
// of what an earlier one was told, and is given the session's own prompt again
// too. Within one attempt each is handed over once, by a directive that is
// written in the transaction that makes it necessary.

// Prompt is one more thing that a person asks of a session.
type Prompt struct {
	By      Person
	Text    string
	Comment int64  // that it stands in
	Intent  string // one prompt for each
}

// maxPromptText bounds the text of a prompt, in bytes.
const maxPromptText = 64 << 10

// ErrPrompts says that a session takes no further prompt.
var ErrPrompts = cannot("a session takes at most %d requests after its first", wire.MaxPrompts)

// Ask adds a prompt to a session whose work is not over, and makes its author
// one of the session's requesters. false: it is too late, the result is on its
// way or the session has ended. The same intent counts once.
func (s *Scheduler) Ask(ctx context.Context, tx *storage.Tx, session string, p Prompt) (bool, error) {
	row, err := tx.Q().LockSession(ctx, session)
	if err != nil {
		return false, fmt.Errorf("reading session %s: %w", session, err)
	}
	if row.State != Queued && !OnMachine(row.State) || row.StopAt.Valid {
		return false, nil
	}
	return true, addPrompt(ctx, tx.Q(), &row, p, s.clock.Now())
}

// addPrompt adds a prompt to a session whose row is locked.
func addPrompt(ctx context.Context, q *storage.Queries, row *storage.Session, p Prompt, now time.Time) error {
	all, err := q.Prompts(ctx, row.ID)
	if err != nil {
		return fmt.Errorf("reading the prompts of session %s: %w", row.ID, err)
	}
	if len(all) >= wire.MaxPrompts {
		return ErrPrompts
	}
	n, err := q.InsertPrompt(ctx, storage.InsertPromptParams{
		SessionID: row.ID, Number: int32(len(all) + 1), Text: clip(p.Text, maxPromptText),
		AuthorID: p.By.ID, AuthorLogin: clip(p.By.Login, 100), CommentID: p.Comment, IntentKey: p.Intent, Now: now,
	})
	if err != nil {
		return fmt.Errorf("adding a prompt to session %s: %w", row.ID, err)
	}
	if n == 0 {
		return nil
	}
	if err := addPerson(ctx, q, row.ID, p.By, RolePrompted, now); err != nil {
		return err
	}
	e, err := ownEvent(row.Generation, EventAsked, now, map[string]any{
		"number": len(all) + 1, "author": clip(p.By.Login, 100), "author_id": p.By.ID, "comment": p.Comment, "text_sha256": digestOf([]byte(clip(p.Text, maxPromptText))),
	})
	if err != nil {
		return err
	}
	if err := appendEvents(ctx, q, row, e); err != nil || !OnMachine(row.State) {
		return err
	}
	return handOver(ctx, q, row.ID, row.Generation, storage.Prompt{
		Number: int32(len(all) + 1), Text: clip(p.Text, maxPromptText), AuthorLogin: clip(p.By.Login, 100),
	}, now)
}

// handOverAll gives a new attempt what was asked so far.
func handOverAll(ctx context.Context, q *storage.Queries, session string, generation int32, now time.Time) error {
	all, err := q.Prompts(ctx, session)
	if err != nil {
		return fmt.Errorf("reading the prompts of session %s: %w", session, err)
	}
	for _, p := range all {
		if err := handOver(ctx, q, session, generation, p, now); err != nil {
			return err
		}
	}
	return nil
}

func handOver(ctx context.Context, q *storage.Queries, session string, generation int32, p storage.Prompt, now time.Time) error {
	data := encode(wire.PromptDirective{
		Author: p.AuthorLogin,
		Text:   fmt.Sprintf("Request %d of this session, after the first, is from %s, who may write to this repository:\n\n%s", p.Number, p.AuthorLogin, p.Text),
	})
	if _, err := q.InsertDirective(ctx, storage.InsertDirectiveParams{
		SessionID: session, Generation: generation, Kind: wire.DirectivePrompt,
		Data: pqtype.NullRawMessage{RawMessage: json.RawMessage(data), Valid: true}, CreatedAt: now,
	}); err != nil {
		return fmt.Errorf("telling the runner of session %s what is asked: %w", session, err)
	}
	return nil
}

// unheard says whether something was asked of a session that the agent of its
// attempt did not work on, because it had ended before it was told.
func unheard(ctx context.Context, q *storage.Queries, sess storage.Session) (bool, error) {
	all, err := q.Prompts(ctx, sess.ID)
	if err != nil || len(all) == 0 {
		return false, err
	}
	n, err := q.PromptsWorkedOn(ctx, storage.PromptsWorkedOnParams{SessionID: sess.ID, Generation: sess.Generation})
	return int(n) < len(all), err
}
