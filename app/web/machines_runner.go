package web

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"inspect/envs/wire"
)

func (m *machines) exchange(c *call) (any, error) {
	var in wire.TokenRequest
	if err := c.decode(maxSmallBody, &in); err != nil {
		return nil, err
	}
	return m.Exchange(c.r.Context(), in)
}

func (m *machines) spec(c *call) (any, error) { return m.Spec(c.r.Context(), c.run) }

func (m *machines) events(c *call) (any, error) {
	var in struct {
		Events []struct {
			Number int64           `json:"number"`
			Kind   string          `json:"kind"`
			At     time.Time       `json:"at"`
			Data   json.RawMessage `json:"data"`
		} `json:"events"`
	}
	if err := c.decode(maxEventsBody, &in); err != nil {
		return nil, err
	}
	if len(in.Events) > maxBatch {
		return nil, &wire.Error{Code: "too_large", Message: "more than " + strconv.Itoa(maxBatch) + " events in one request"}
	}
	// Data stays as it came; whoever knows the kind looks into it.
	out := make([]wire.Event, len(in.Events))
	for i, e := range in.Events {
		out[i] = wire.Event{Number: e.Number, Kind: e.Kind, At: e.At, Data: e.Data}
	}
	return m.AppendEvents(c.r.Context(), c.run, out)
}

func (m *machines) putArtifact(c *call) (any, error) {
	sum := c.r.PathValue("sha256")
	if !digest.MatchString(sum) {
		return nil, badRequest("an artifact is named by its sha256, 64 hexadecimal digits")
	}
	return nil, c.upload(wire.MaxArtifactBytes, func(r io.Reader) error {
		return m.PutArtifact(c.r.Context(), c.run, sum, r)
	})
}

var commit = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

func (m *machines) putBundle(c *call) (any, error) {
	turn, err := strconv.ParseInt(c.r.PathValue("turn"), 10, 32)
	if err != nil || turn < 0 {
		return nil, badRequest("the turn is not a number from 0 on")
	}
	q := c.r.URL.Query()
	tip, sum := q.Get("tip"), q.Get("sha256")
	if !commit.MatchString(tip) || !digest.MatchString(sum) {
		return nil, badRequest("a bundle is sent with ?tip=COMMIT&sha256=DIGEST")
	}
	return nil, c.upload(wire.MaxBundleBytes, func(r io.Reader) error {
		return m.PutBundle(c.r.Context(), c.run, int(turn), tip, sum, r)
	})
}

// upload hands the body on, at most limit bytes of it.
func (c *call) upload(limit int64, store func(io.Reader) error) error {
	if c.r.ContentLength > limit { // refused before it is sent
		return &http.MaxBytesError{Limit: limit}
	}
	body, done := c.body(limit, uploadTime)
	defer done()
	err := store(body)
	// What was not wanted is read all the same, so that the machine finds the
	// answer and not a broken connection: all of it where we have it already,
	// some of it after a refusal.
	rest := limit
	if err != nil {
		rest = maxSmallBody * 64
	}
	_, _ = io.CopyN(io.Discard, body, rest)
	return err
}

func (m *machines) getBundle(c *call) (any, error) {
	sum := c.r.PathValue("sha256")
	if !digest.MatchString(sum) {
		return nil, badRequest("a bundle is named by its sha256, 64 hexadecimal digits")
	}
	content, err := m.Bundle(c.r.Context(), c.run, sum)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, err := io.Copy(c.w, content); err != nil {
		m.log.WarnContext(c.r.Context(), "a bundle could not be sent whole", "session", c.run.Session, "error", err)
		panic(http.ErrAbortHandler) // so that the runner sees it is not whole
	}
	return answered, nil
}

func (m *machines) secrets(c *call) (any, error) {
	var in wire.SecretsRequest
	if err := c.decode(maxSmallBody, &in); err != nil {
		return nil, err
	}
	return m.Secrets(c.r.Context(), c.run, in.Names)
}

func (m *machines) directives(c *call) (any, error) {
	after := int64(0)
	if s := c.r.URL.Query().Get("after"); s != "" {
		var err error
		if after, err = strconv.ParseInt(s, 10, 64); err != nil || after < 0 {
			return nil, badRequest("after is not a number from 0 on")
		}
	}
	return m.Directives(c.r.Context(), c.run, after)
}

func (m *machines) beat(c *call) (any, error) {
	var in wire.Heartbeat
	if err := c.decode(maxSmallBody, &in); err != nil {
		return nil, err
	}
	return m.Beat(c.r.Context(), c.run, in)
}

func (m *machines) outcome(c *call) (any, error) {
	var in wire.Outcome
	if err := c.decode(maxResultBody, &in); err != nil {
		return nil, err
	}
	return nil, m.Outcome(c.r.Context(), c.run, in)
}
