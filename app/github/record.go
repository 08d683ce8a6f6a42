package github

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Write is a write to GitHub as it is recorded: once before it is sent, so that
// there is none without a record, and once with what came of it. Neither its
// body nor a credential is in it.
type Write struct {
	Phase  string `json:"phase"`  // WriteAsked or WriteAnswered
	What   string `json:"what"`   // "comment", "check run", "push", …
	Method string `json:"method"` // of HTTP, or "push"
	Path   string `json:"path"`   // below the API's base, or repository and ref
	// Key names the effect: two writes with the same key are tries of one.
	Key    string `json:"key,omitempty"`
	SHA    string `json:"sha,omitempty"`    // pushed commit
	Status int    `json:"status,omitempty"` // of HTTP; 0 in an answer: there was none, see Words
	ID     int64  `json:"id,omitempty"`     // GitHub's, of what was written
	Number int    `json:"number,omitempty"` // of the pull request
	Words  string `json:"words,omitempty"`
}

// Phases of a Write.
const (
	WriteAsked    = "asked"
	WriteAnswered = "answered"
)

type cause struct{ session, key string }

type causeKey struct{}

// ForSession says on whose behalf the writes under a context are made: of a
// session, whose record they are added to (or "": of none), and by which key.
func ForSession(ctx context.Context, session, key string) context.Context {
	return context.WithValue(ctx, causeKey{}, cause{session, key})
}

// record records a write. Those of no session go to the process log.
func (a *App) record(ctx context.Context, w Write) error {
	c, _ := ctx.Value(causeKey{}).(cause)
	w.Key = c.key
	if c.session != "" && a.recorder != nil {
		return a.recorder(ctx, c.session, w)
	}
	a.log.InfoContext(ctx, "a write to GitHub", "phase", w.Phase, "what", w.What, "method", w.Method, "path", w.Path,
		"key", w.Key, "status", w.Status, "id", w.ID, "words", w.Words, "session", c.session)
	return nil
}

// asked records a write that is about to be sent.
func (a *App) asked(ctx context.Context, r *route, req *http.Request) error {
	if err := a.record(ctx, a.write(WriteAsked, r, req)); err != nil {
		return fmt.Errorf("it cannot be recorded, so it is not sent: %w", err)
	}
	return nil
}

func (a *App) write(phase string, r *route, req *http.Request) Write {
	return Write{Phase: phase, What: r.what, Method: req.Method, Path: a.redactor.String(req.URL.Path)}
}

// answered records what came of a write. That it was asked for is recorded, so
// a failure changes nothing.
func (a *App) answered(ctx context.Context, r *route, req *http.Request, got *answer, cause error) {
	w := a.write(WriteAnswered, r, req)
	switch {
	case got != nil:
		w.Status = got.status
		var made struct {
			ID     int64 `json:"id"`
			Number int   `json:"number"`
		}
		if json.Unmarshal(got.body, &made) == nil && got.status < 300 {
			w.ID, w.Number = made.ID, made.Number
		}
	default:
		w.Words = a.redactor.String(fmt.Sprintf("no answer: %v", cause))
	}
	if err := a.record(context.WithoutCancel(ctx), w); err != nil {
		a.log.WarnContext(ctx, "the answer to a write to GitHub could not be recorded", "what", w.What, "path", w.Path, "status", w.Status, "error", err)
	}
}
