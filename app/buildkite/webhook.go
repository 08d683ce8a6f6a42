package buildkite

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"
	"time"

	"inspect/app/intake"
	"inspect/checks/buildkite"
	"inspect/storage"
)

// storeTime bounds the transaction of a webhook: Buildkite waits for an answer.
const storeTime = 4 * time.Second

var eventForm = regexp.MustCompile(`^[a-z][a-z_.]{0,63}$`)

// webhook stores what Buildkite tells and answers 202; it is worked on later.
// Nothing is stored with any other answer, and none says what was wrong with the
// proof.
func (d *Door) webhook(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, words string) {
		if status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "10")
		}
		http.Error(w, words, status)
	}
	if len(d.o.Webhook.Secrets) == 0 {
		fail(http.StatusNotFound, "no webhooks of Buildkite are taken here")
		return
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" || r.Header.Get("Content-Encoding") != "" {
		fail(http.StatusUnsupportedMediaType, "a webhook of Buildkite is JSON")
		return
	}
	if r.Header.Get(buildkite.SignatureHeader) == "" && r.Header.Get(buildkite.TokenHeader) == "" {
		fail(http.StatusUnauthorized, "not accepted") // before a byte of it is read
		return
	}
	if r.ContentLength > buildkite.MaxEvent {
		fail(http.StatusRequestEntityTooLarge, "the webhook is too large")
		return
	}
	select {
	case d.bodies <- struct{}{}:
		defer func() { <-d.bodies }()
	default:
		fail(http.StatusServiceUnavailable, "too many webhooks at once")
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, buildkite.MaxEvent))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		fail(http.StatusRequestEntityTooLarge, "the webhook is too large")
		return
	case err != nil:
		fail(http.StatusBadRequest, "the webhook ended early")
		return
	}
	if err := d.o.Webhook.Verify(r.Header, body, d.o.Clock.Now()); err != nil {
		d.o.Log.Warn("a webhook of Buildkite is refused", "from", r.RemoteAddr, "why", err)
		fail(http.StatusUnauthorized, "not accepted")
		return
	}
	name := r.Header.Get(buildkite.EventHeader)
	if !eventForm.MatchString(name) {
		fail(http.StatusBadRequest, "the header "+buildkite.EventHeader+" is no event's name")
		return
	}
	if err := d.store(r.Context(), name, body); err != nil {
		d.o.Log.Error("a webhook of Buildkite could not be stored; builds of open sessions are asked for all the same", "event", name, "error", err)
		fail(http.StatusServiceUnavailable, "the webhook could not be stored")
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// store keeps a webhook and makes the job that works on it, once: the key is made
// of what it says, since Buildkite sends none.
func (d *Door) store(ctx context.Context, name string, body []byte) error {
	status, note := "pending", ""
	e, err := buildkite.ParseEvent(name, body)
	switch {
	case err != nil:
		e, status, note = buildkite.Event{Name: name}, "undecodable", "it is not the JSON of this event"
	case !strings.HasPrefix(name, "build."):
		status, note = "unknown", "no handler for this event"
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	guid := "buildkite-" + e.Key(body)
	return d.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		n, err := tx.Q().StoreDelivery(ctx, storage.StoreDeliveryParams{Guid: guid, Event: intake.BuildEvent, Action: name, Payload: body, Status: status, Note: note})
		if err != nil || n == 0 || status != "pending" {
			return err
		}
		return d.o.Jobs.InsertDelivery(ctx, tx, guid)
	})
}
