package buildkite

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"inspect/checks/buildkite/step"
	"inspect/scheduler"
	"inspect/storage"
)

var sessionID = regexp.MustCompile(`^[a-z2-7]{10}$`)

// mine is the session that a request's token reads; otherwise it was answered,
// the same whatever is wrong.
func (d *Door) mine(w http.ResponseWriter, r *http.Request) (storage.Session, bool) {
	id := r.PathValue("id")
	token, ok := bearer(r)
	if !ok || !sessionID.MatchString(id) || len(token) > 200 {
		refuse(w, http.StatusUnauthorized, noProof)
		return storage.Session{}, false
	}
	s, err := d.read(r.Context(), id, token)
	if storage.IsMissing(err) {
		d.o.Log.Info("a step shows a token that does not read the session", "session", id, "from", r.RemoteAddr)
		refuse(w, http.StatusUnauthorized, noProof)
		return s, false
	}
	if err != nil {
		d.o.Log.Error("a session could not be read for its step", "session", id, "error", err)
		refuse(w, http.StatusServiceUnavailable, "the session could not be read: ask again")
		return s, false
	}
	return s, true
}

func (d *Door) read(ctx context.Context, id, token string) (storage.Session, error) {
	sum := sha256.Sum256([]byte(token))
	return d.o.DB.Q().SessionOfPipelineToken(ctx, storage.SessionOfPipelineTokenParams{Hash: sum[:], SessionID: id, Since: d.o.Clock.Now().Add(-tokenLife)})
}

// state says where a session stands, once that is news.
func (d *Door) state(w http.ResponseWriter, r *http.Request) {
	free, ok := d.hold(w)
	if !ok {
		return
	}
	defer free()
	after := int64(-1)
	if q := r.URL.Query().Get("after"); q != "" {
		var err error
		if after, err = strconv.ParseInt(q, 10, 64); err != nil {
			refuse(w, http.StatusBadRequest, "after: expected the version that is known")
			return
		}
	}
	s, ok := d.mine(w, r)
	if !ok {
		return
	}
	deadline := d.o.Clock.Now().Add(step.Wait)
	for version(s) == after {
		left := deadline.Sub(d.o.Clock.Now())
		if left <= 0 {
			break
		}
		select {
		case <-r.Context().Done():
			return
		case <-d.o.Clock.After(min(left, 2*look)):
		}
		if s, ok = d.mine(w, r); !ok {
			return
		}
	}
	state, err := d.stateOf(r.Context(), s)
	if err != nil {
		d.o.Log.Error("a session could not be told to its step", "session", s.ID, "error", err)
		refuse(w, http.StatusServiceUnavailable, "the session could not be read: ask again")
		return
	}
	answer(w, http.StatusOK, state)
}

// version grows with each change of the state, and once more when its end is told.
func version(s storage.Session) int64 {
	v := 2 * s.Version
	if s.ReportedAt.Valid {
		v++
	}
	return v
}

// Bounds of what a step is told, in bytes; it puts it into an annotation.
const (
	maxWords   = 1000
	maxSummary = 64 << 10
)

// stateOf is what a step is told of a session.
func (d *Door) stateOf(ctx context.Context, s storage.Session) (step.State, error) {
	out := step.State{
		Version: version(s), State: string(s.State), Branch: s.Branch, SHA: s.HeadSha,
		// Over when it is told on GitHub, too: what it made can be looked at then.
		Over: scheduler.Terminal(s.State) && s.ReportedAt.Valid,
	}
	words := s.Words
	switch {
	case s.State == scheduler.Queued:
		words = s.QueueReason
	case s.State == scheduler.NeedsApproval:
		pending, err := scheduler.Approvals(ctx, d.o.DB.Q(), s.ID)
		if err != nil {
			return out, err
		}
		var all []string
		for _, a := range pending {
			all = append(all, a.Words)
		}
		words = strings.Join(all, " ")
	}
	out.Reason, out.Words = s.Reason, fit(strings.Join(strings.Fields(words), " "), maxWords)
	if scheduler.Terminal(s.State) || s.State == scheduler.NeedsApproval {
		told, err := d.o.Told(ctx, s.ID)
		if err != nil {
			return out, fmt.Errorf("reading what is told of session %s: %w", s.ID, err)
		}
		out.Conclusion, out.Title, out.Summary = told.Conclusion, fit(told.Title, maxWords), fit(told.Summary, maxSummary)
	}
	place, err := d.o.DB.Q().PublishPlace(ctx, s.RepositoryID)
	if err != nil {
		return out, fmt.Errorf("reading the repository of session %s: %w", s.ID, err)
	}
	at := repositoryURL(d.o.RepositoryURL, place.Owner, place.Name)
	out.Pull, out.CheckRun = pullURL(at, s.PullRequest), checkURL(at, s.CheckRunID)
	return out, nil
}

// evidence sends what a session's result was judged by.
func (d *Door) evidence(w http.ResponseWriter, r *http.Request) {
	free, ok := d.hold(w)
	if !ok {
		return
	}
	defer free()
	s, ok := d.mine(w, r)
	if !ok {
		return
	}
	to := &counted{w: w, begin: func() {
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Content-Disposition", `attachment; filename="evidence-`+s.ID+`.tar"`)
	}}
	err := d.o.Evidence(r.Context(), to, s.ID)
	switch {
	case err == nil:
	case to.n > 0:
		// It has begun as a good answer; only breaking it off says that it is none.
		d.o.Log.Warn("the evidence of a session could not be sent whole", "session", s.ID, "error", err)
		panic(http.ErrAbortHandler)
	case errors.Is(err, ErrNoEvidence):
		refuse(w, http.StatusNotFound, ErrNoEvidence.Error())
	case errors.Is(err, ErrUnsearched):
		refuse(w, http.StatusForbidden, ErrUnsearched.Error())
	default:
		d.o.Log.Error("the evidence of a session cannot be read", "session", s.ID, "error", err)
		refuse(w, http.StatusServiceUnavailable, "the evidence could not be read: ask again")
	}
}

// counted writes headers with the first byte.
type counted struct {
	w     http.ResponseWriter
	begin func()
	n     int64
}

func (c *counted) Write(p []byte) (int, error) {
	if c.n == 0 {
		c.begin()
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
