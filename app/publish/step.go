package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/proc"
	"inspect/storage"
)

// Steps records side effects in the world before they are done, so that a
// retry knows that it has to look for an earlier try's effect first.
type Steps struct {
	DB    *storage.DB
	Clock proc.Clock
}

// Step is one side effect and what is known of it.
type Step struct {
	steps *Steps
	key   string
	// Repeated: an earlier try was begun, and its effect may or may not be in
	// the world.
	Repeated bool
	// Done: the effect is in the world; Result tells what came of it.
	Done   bool
	Result json.RawMessage
}

// Begin records that a step is about to be done. Generation 0 is for effects a
// session has once, whatever attempt they come from.
func (s *Steps) Begin(ctx context.Context, session string, generation int32, name string) (*Step, error) {
	st := &Step{steps: s, key: stepKey(session, generation, name)}
	n, err := s.DB.Q().BeginEffect(ctx, storage.BeginEffectParams{Key: st.key, SessionID: session, Now: s.Clock.Now()})
	if err != nil {
		return nil, fmt.Errorf("record the step %s: %w", st.key, err)
	}
	if n > 0 {
		return st, nil
	}
	row, err := s.DB.Q().EffectByKey(ctx, st.key)
	if err != nil {
		return nil, fmt.Errorf("look up the step %s: %w", st.key, err)
	}
	st.Repeated, st.Done, st.Result = true, row.State == "done", row.Result.RawMessage
	return st, nil
}

// Done is what came of a step that is done; nil if it is not.
func (s *Steps) Done(ctx context.Context, session string, generation int32, name string) (json.RawMessage, error) {
	key := stepKey(session, generation, name)
	row, err := s.DB.Q().EffectByKey(ctx, key)
	switch {
	case storage.IsMissing(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up the step %s: %w", key, err)
	case row.State != "done":
		return nil, nil
	}
	return row.Result.RawMessage, nil
}

func stepKey(session string, generation int32, name string) string {
	return fmt.Sprintf("%s/%d/%s", session, generation, name)
}

// Key names the effect in the world.
func (st *Step) Key() string { return st.key }

// End records that the effect is in the world.
func (st *Step) End(ctx context.Context, result any) error {
	body, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("record the end of the step %s: %w", st.key, err)
	}
	err = st.steps.DB.Q().EndEffect(ctx, storage.EndEffectParams{
		Key: st.key, Now: st.steps.Clock.Now(), Result: pqtype.NullRawMessage{RawMessage: body, Valid: true},
	})
	if err != nil {
		return fmt.Errorf("record the end of the step %s: %w", st.key, err)
	}
	st.Done, st.Result = true, body
	return nil
}

// Turns lets one caller at a time work on a session. The zero value is ready.
type Turns struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// Take waits for the session's turn; the returned function gives it back.
func (t *Turns) Take(ctx context.Context, session string) (func(), error) {
	for {
		t.mu.Lock()
		if t.held == nil {
			t.held = map[string]chan struct{}{}
		}
		wait, busy := t.held[session]
		if !busy {
			mine := make(chan struct{})
			t.held[session] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.held, session)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another step of session %s: %w", session, context.Cause(ctx))
		}
	}
}
