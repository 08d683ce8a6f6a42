package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/storage"
)

// DefaultPath is where GitHub sends deliveries.
const DefaultPath = "/webhooks/github"

// MaxBody is the largest delivery GitHub sends, in bytes.
const MaxBody = 25_000_000

// Bounds of one request. GitHub hangs up after 10 seconds.
const (
	readTime  = 5 * time.Second
	storeTime = 4 * time.Second
)

// Jobs makes the job that works on a stored delivery, in the caller's transaction.
type Jobs interface {
	InsertDelivery(ctx context.Context, tx *storage.Tx, guid string) error
}

// Options of a Handler.
type Options struct {
	DB   *storage.DB
	Jobs Jobs
	Log  *slog.Logger
	// Path that is served; empty means DefaultPath.
	Path string
	// Secrets: one, or two while one replaces the other. Never empty.
	Secrets []string
	// AppID is our App's id: deliveries that say they are for another are refused.
	AppID int64
	// Events that have a handler. Others are stored and never worked on.
	Events []string
	// Concurrent bounds how many bodies are held in memory at once; 0 means 16.
	Concurrent int
	// StoreTime bounds the transaction; 0 means 4 seconds, so that GitHub, which
	// waits for 10, is always answered.
	StoreTime time.Duration
}

// Handler serves POST of one path. Stop it by closing its http.Server: it has
// no goroutines of its own.
type Handler struct {
	opts  Options
	slots chan struct{}
}

// New refuses to make a handler that could accept unsigned deliveries.
func New(o Options) (*Handler, error) {
	if len(o.Secrets) == 0 || len(o.Secrets) > 2 {
		return nil, fmt.Errorf("the webhook needs one secret, or two while one replaces the other; %d are configured", len(o.Secrets))
	}
	for _, s := range o.Secrets {
		if strings.TrimSpace(s) == "" {
			return nil, errors.New("the webhook secret is empty: set the secret that the App's settings on GitHub show")
		}
	}
	if o.DB == nil || o.Jobs == nil {
		return nil, errors.New("the webhook needs a database and a queue")
	}
	if o.Path == "" {
		o.Path = DefaultPath
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StoreTime <= 0 {
		o.StoreTime = storeTime
	}
	if o.Concurrent <= 0 {
		o.Concurrent = 16
	}
	return &Handler{opts: o, slots: make(chan struct{}, o.Concurrent)}, nil
}

// refusal is an answer other than 202.
type refusal struct {
	status int
	words  string
}

// ServeHTTP answers 202 once a delivery is stored, also when it was stored
// before. Nothing is stored with any other answer.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if no := h.serve(w, r); no != nil {
		if no.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", http.MethodPost)
		}
		if no.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "10")
		}
		http.Error(w, no.words, no.status)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) *refusal {
	if r.URL.Path != h.opts.Path {
		return &refusal{http.StatusNotFound, "deliveries are taken at " + h.opts.Path}
	}
	if r.Method != http.MethodPost {
		return &refusal{http.StatusMethodNotAllowed, "a delivery is a POST"}
	}
	signature, no := claim(r)
	if no != nil {
		return no
	}
	body, free, no := h.read(w, r)
	defer free()
	if no != nil {
		return no
	}
	if !signedBy(signature, body, h.opts.Secrets) {
		return &refusal{http.StatusUnauthorized, "the signature does not match"}
	}
	head, no := h.head(r)
	if no != nil {
		return no
	}
	return h.store(r, head, body)
}

// claim checks what needs no body, and returns the signature that the
// delivery claims to have.
func claim(r *http.Request) ([]byte, *refusal) {
	if r.ContentLength > MaxBody {
		return nil, tooLarge()
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, &refusal{http.StatusUnsupportedMediaType, "set the webhook's content type to application/json"}
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &refusal{http.StatusUnsupportedMediaType, "a delivery is not encoded"}
	}
	sig, ok := parseSignature(r.Header.Values("X-Hub-Signature-256"))
	if !ok {
		return nil, &refusal{http.StatusUnauthorized, "X-Hub-Signature-256 is missing or not of the form sha256=<64 hexadecimal digits>; set a secret for the webhook"}
	}
	return sig, nil
}

// header is what a signed delivery's headers say.
type header struct{ guid, event string }

var (
	guidForm  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	eventForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// head reads the headers. The signature does not cover them, so they are
// bounded and checked like anything else.
func (h *Handler) head(r *http.Request) (header, *refusal) {
	guid := r.Header.Values("X-GitHub-Delivery")
	if len(guid) != 1 || !guidForm.MatchString(strings.ToLower(guid[0])) {
		return header{}, &refusal{http.StatusBadRequest, "X-GitHub-Delivery is missing or not a GUID"}
	}
	event := r.Header.Values("X-GitHub-Event")
	if len(event) != 1 || !eventForm.MatchString(event[0]) {
		return header{}, &refusal{http.StatusBadRequest, "X-GitHub-Event is missing or not an event's name"}
	}
	if t := r.Header.Get("X-GitHub-Hook-Installation-Target-Type"); t != "" && t != "integration" {
		return header{}, &refusal{http.StatusBadRequest, "this delivery is of a webhook that is not the App's"}
	}
	if id := r.Header.Get("X-GitHub-Hook-Installation-Target-ID"); id != "" && h.opts.AppID != 0 && id != strconv.FormatInt(h.opts.AppID, 10) {
		return header{}, &refusal{http.StatusBadRequest, "this delivery is for another App"}
	}
	return header{strings.ToLower(guid[0]), event[0]}, nil
}

func tooLarge() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, "a delivery has at most 25 MB"}
}

// smallBody is read without asking for a place: most deliveries are smaller,
// and someone who sends slowly must not keep others out.
const smallBody = 256 << 10

// read takes the body, whatever its length header says, within its bounds of
// size and time. How many large ones are held at once is bounded; free gives
// the place back.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) (body []byte, free func(), no *refusal) {
	free = func() {}
	// Not every ResponseWriter knows deadlines; the server's own apply then.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime))
	from := http.MaxBytesReader(w, r.Body, MaxBody)
	body, err := io.ReadAll(io.LimitReader(from, smallBody))
	if err == nil && len(body) == smallBody {
		select {
		case h.slots <- struct{}{}:
			free = func() { <-h.slots }
		case <-r.Context().Done():
			return nil, free, &refusal{http.StatusServiceUnavailable, "the sender went away"}
		case <-time.After(readTime):
			return nil, free, &refusal{http.StatusServiceUnavailable, "too many large deliveries at once"}
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTime))
		var rest []byte
		rest, err = io.ReadAll(from)
		body = append(body, rest...)
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, free, tooLarge()
	case err != nil:
		return nil, free, &refusal{http.StatusBadRequest, "the body ended early"}
	}
	return body, free, nil
}

// envelope is what every delivery has in common; all of it may be missing.
type envelope struct {
	Action       string `json:"action"`
	Installation *idOf  `json:"installation"`
	Repository   *idOf  `json:"repository"`
	Sender       *idOf  `json:"sender"`
}

type idOf struct {
	ID int64 `json:"id"`
}

func (i *idOf) id() int64 {
	if i == nil {
		return 0
	}
	return i.ID
}

// Statuses a delivery is stored with. Only pending ones get a job.
const (
	statusPending     = "pending"
	statusUnknown     = "unknown"
	statusUndecodable = "undecodable"
)

func (h *Handler) store(r *http.Request, head header, body []byte) *refusal {
	var env envelope
	status, note := statusPending, ""
	if err := json.Unmarshal(body, &env); err != nil {
		env, status, note = envelope{}, statusUndecodable, "the body is not the JSON of a delivery"
	} else if !slices.Contains(h.opts.Events, head.event) {
		status, note = statusUnknown, "no handler for this event"
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.opts.StoreTime)
	defer cancel()
	var fresh bool
	err := h.opts.DB.InTx(ctx, func(tx *storage.Tx) error {
		n, err := tx.Q().StoreDelivery(ctx, storage.StoreDeliveryParams{
			Guid: head.guid, Event: head.event, Action: clip(text(env.Action), 100),
			InstallationID: env.Installation.id(), RepositoryID: env.Repository.id(), SenderID: env.Sender.id(),
			Payload: body, Status: status, Note: text(note), RemoteAddr: remote(r.RemoteAddr),
		})
		fresh = n == 1
		if err != nil || !fresh || status != statusPending {
			return err
		}
		return h.opts.Jobs.InsertDelivery(ctx, tx, head.guid)
	})
	if err != nil {
		h.opts.Log.Error("a delivery could not be stored; redeliver it in the App's settings", "guid", head.guid, "event", head.event, "error", err)
		return &refusal{http.StatusServiceUnavailable, "the delivery could not be stored"}
	}
	if fresh && status != statusPending {
		h.opts.Log.Warn("a delivery is stored but not worked on", "guid", head.guid, "event", head.event, "status", status, "why", note)
	}
	return nil
}

// text is s as Postgres takes it.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

func clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}

func remote(addr string) pqtype.Inet {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return pqtype.Inet{}
	}
	host, _, _ = strings.Cut(host, "%")
	ip := net.ParseIP(host)
	if ip == nil {
		return pqtype.Inet{}
	}
	if v4 := ip.To4(); v4 != nil {
		ip = v4
	}
	return pqtype.Inet{IPNet: net.IPNet{IP: ip, Mask: net.CIDRMask(8*len(ip), 8*len(ip))}, Valid: true}
}
