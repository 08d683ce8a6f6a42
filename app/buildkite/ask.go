package buildkite

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"inspect/app/intake"
	"inspect/app/oidc"
	"inspect/checks/buildkite/step"
	"inspect/storage"
)

// patience is how long a step's wish is waited for until it is told to ask again.
const patience = 20 * time.Second

// look is how often it is looked.
const look = 250 * time.Millisecond

// ask starts a session, or finds the one that the same wish started before.
func (d *Door) ask(w http.ResponseWriter, r *http.Request) {
	free, ok := d.hold(w)
	if !ok {
		return
	}
	defer free()
	job, ok := d.prove(w, r)
	if !ok {
		return
	}
	wish, err := readAsk(w, r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s := intake.Stepped{Job: job, Ask: wish}
	key, err := s.Key()
	if err != nil {
		refuse(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	fresh, first, err := d.o.Steps.Step(r.Context(), "step-"+digest(key), s)
	if err != nil {
		d.o.Log.Error("what a step asks for could not be stored", "job", job.JobID, "error", err)
		refuse(w, http.StatusServiceUnavailable, "what was asked for could not be stored: ask again")
		return
	}
	if first.Job.PipelineID != job.PipelineID || first.Job.OrganizationID != job.OrganizationID {
		// Nobody else's wish is this one, whatever its key.
		d.o.Log.Warn("a step asks for what another pipeline's did", "job", job.JobID, "pipeline_id", job.PipelineID)
		refuse(w, http.StatusForbidden, noRight)
		return
	}
	if s.Ask.Once != "build" && first.Ask != s.Ask {
		refuse(w, http.StatusConflict, "this job has asked for something else already: each job starts one session")
		return
	}
	d.result(w, r, key, fresh)
}

// prove says whose step this is, or has answered.
func (d *Door) prove(w http.ResponseWriter, r *http.Request) (oidc.Job, bool) {
	token, ok := bearer(r)
	if !ok || d.o.Tokens == nil {
		d.o.Log.Info("a step shows no token", "from", r.RemoteAddr)
		refuse(w, http.StatusUnauthorized, noProof)
		return oidc.Job{}, false
	}
	job, err := d.o.Tokens.Verify(r.Context(), token)
	if errors.Is(err, oidc.ErrUntold) {
		d.o.Log.Warn("the token of a step cannot be checked", "from", r.RemoteAddr, "error", err)
		refuse(w, http.StatusServiceUnavailable, "tokens cannot be checked at the moment: ask again later")
		return job, false
	}
	if err != nil {
		d.o.Log.Warn("the token of a step is refused", "from", r.RemoteAddr, "why", err)
		refuse(w, http.StatusUnauthorized, noProof)
		return job, false
	}
	return job, true
}

// readAsk reads the body within its bounds. The error is for whoever wrote the step.
func readAsk(w http.ResponseWriter, r *http.Request) (step.Ask, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime)) // not every ResponseWriter knows deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, step.MaxAsk))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return step.Ask{}, fmt.Errorf("what is asked for has at most %d bytes", step.MaxAsk)
	case err != nil:
		return step.Ask{}, errors.New("what is asked for ended early")
	}
	return parseAsk(body)
}

func parseAsk(body []byte) (step.Ask, error) {
	var a step.Ask
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		return a, errors.New("what is asked for is not the JSON of this protocol, or of a newer one: " + fit(err.Error(), 200))
	}
	if dec.More() {
		return a, errors.New("what is asked for is more than one JSON value")
	}
	wishes := 0
	for _, one := range []bool{strings.TrimSpace(a.Prompt) != "", a.Issue != 0, a.FixBuild} {
		if one {
			wishes++
		}
	}
	switch {
	case wishes != 1:
		return a, errors.New("expected one of prompt, issue and fix_build")
	case a.Issue < 0 || a.Issue > 1<<31-1:
		return a, errors.New("issue: expected its number")
	case len(a.Prompt) > step.MaxPrompt:
		return a, fmt.Errorf("prompt: expected at most %d bytes", step.MaxPrompt)
	case a.Once != "" && a.Once != "job" && a.Once != "build":
		return a, errors.New("once: expected job or build")
	case a.Repository != "" && strings.Count(a.Repository, "/") != 1 || len(a.Repository) > 210:
		return a, errors.New("repository: expected owner/name")
	case len(a.Base) > 250 || strings.HasPrefix(a.Base, "-"):
		return a, errors.New("base: expected the name of a branch")
	}
	for name, s := range map[string]string{
		"prompt": a.Prompt, "repository": a.Repository, "base": a.Base, "harness": a.Harness, "model": a.Model, "budget": a.Budget, "timeout": a.Timeout,
	} {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return a, fmt.Errorf("%s: expected text", name)
		}
		if name != "prompt" && (len(s) > 250 || strings.ContainsAny(s, "\r\n\t")) {
			return a, fmt.Errorf("%s: expected one short line", name)
		}
	}
	if a.Once == "job" {
		a.Once = ""
	}
	return a, nil
}

// result waits for what became of a wish, and answers it.
func (d *Door) result(w http.ResponseWriter, r *http.Request, key string, fresh bool) {
	deadline := d.o.Clock.Now().Add(patience)
	for {
		i, err := d.o.DB.Q().IntentByKey(r.Context(), key)
		switch {
		case storage.IsMissing(err), err == nil && i.Outcome == "pending":
		case err != nil:
			d.o.Log.Error("what became of a step's wish could not be read", "key", key, "error", err)
			refuse(w, http.StatusServiceUnavailable, "what became of this could not be read: ask again")
			return
		case i.SessionID.Valid && i.SessionID.String != "":
			d.started(w, r, i.SessionID.String, fresh && i.Outcome == "started")
			return
		case i.Outcome == "denied":
			refuse(w, http.StatusForbidden, noRight)
			return
		default:
			refuse(w, http.StatusUnprocessableEntity, fit(i.Note, 4<<10))
			return
		}
		left := deadline.Sub(d.o.Clock.Now())
		if left <= 0 {
			refuse(w, http.StatusServiceUnavailable, "this is being worked on: ask again, it is the same wish")
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-d.o.Clock.After(min(left, look)):
		}
	}
}

// maxTokens of one session are good at a time: a step that asks again gets a new one.
const maxTokens = 8

// tokenLife is how long after a session's end its tokens read it.
const tokenLife = 24 * time.Hour

// started answers with the session and a token for it.
func (d *Door) started(w http.ResponseWriter, r *http.Request, session string, fresh bool) {
	token, err := d.newToken(r.Context(), session)
	var s storage.Session
	if err == nil {
		s, err = d.o.DB.Q().GetSession(r.Context(), session)
	}
	var state step.State
	if err == nil {
		state, err = d.stateOf(r.Context(), s)
	}
	if err != nil {
		d.o.Log.Error("a session could not be told to its step", "session", session, "error", err)
		refuse(w, http.StatusServiceUnavailable, "the session is there, but could not be read: ask again")
		return
	}
	status := http.StatusOK
	if fresh {
		status = http.StatusCreated
	}
	answer(w, status, step.Answer{Session: session, URL: d.o.SessionURL(session), Token: token, Started: fresh, State: state})
}

// newToken makes a token that reads one session. Only its digest is kept.
func (d *Door) newToken(ctx context.Context, session string) (string, error) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	token := "ibs_" + hex.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	now := d.o.Clock.Now()
	err := d.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		if err := q.InsertPipelineToken(ctx, storage.InsertPipelineTokenParams{Hash: sum[:], SessionID: session, Now: now}); err != nil {
			return err
		}
		if err := q.TrimPipelineTokens(ctx, storage.TrimPipelineTokensParams{SessionID: session, Most: maxTokens}); err != nil {
			return err
		}
		_, err := q.DropPipelineTokens(ctx, now.Add(-tokenLife))
		return err
	})
	return token, err
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
