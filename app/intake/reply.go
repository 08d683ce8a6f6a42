package intake

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sqlc-dev/pqtype"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/storage"
)

// reply writes a comment once, whatever happens in between: it is recorded
// before it is written, and looked for before it is written again. A place
// where nothing can be written (locked, archived, gone) gets none.
func (in *Intake) reply(ctx context.Context, to asker, key string, words ...string) error {
	if to.locked {
		return nil
	}
	if to.pull {
		ctx = github.OnPull(ctx)
	}
	q, client := in.o.DB.Q(), in.o.GitHub(to.installation)
	effect := fmt.Sprintf("reply:%d:%d:%s", to.repo.ID, to.issue, key)
	fresh, err := q.StartIntakeEffect(ctx, effect)
	if err != nil {
		return fmt.Errorf("recording a reply: %w", err)
	}
	if fresh == 0 {
		e, err := q.IntakeEffect(ctx, effect)
		if err != nil {
			return fmt.Errorf("reading about a reply: %w", err)
		}
		if e.State == "done" {
			return nil
		}
		id, found, err := client.FindComment(ctx, to.repo, to.issue, comment.ReplyMarker(key))
		switch {
		case err != nil && final(err):
			return in.replied(ctx, effect, 0, err)
		case err != nil:
			return fmt.Errorf("looking for a reply: %w", err)
		case found:
			return in.replied(ctx, effect, id, nil)
		}
	}
	id, err := client.CreateComment(github.ForSession(ctx, "", effect), to.repo, to.issue, comment.Reply(key, words...))
	if err != nil && !final(err) {
		return fmt.Errorf("replying: %w", err)
	}
	return in.replied(ctx, effect, id, err)
}

func (in *Intake) replied(ctx context.Context, effect string, id int64, cause error) error {
	result := struct {
		Comment int64  `json:"comment,omitempty"`
		Error   string `json:"error,omitempty"`
	}{Comment: id}
	if cause != nil {
		in.log.Info("a reply could not be written", "effect", effect, "error", cause)
		result.Error = storable(cause.Error(), 500)
	}
	body, err := json.Marshal(result)
	if err != nil {
		return err
	}
	err = in.o.DB.Q().FinishIntakeEffect(ctx, storage.FinishIntakeEffectParams{Key: effect, Result: pqtype.NullRawMessage{RawMessage: body, Valid: true}})
	if err != nil {
		return fmt.Errorf("recording a reply: %w", err)
	}
	return nil
}
