package github

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
)

// hub is a small server that answers what a test tells it to; tokens are
// handed out properly unless the test takes that over too.
type hub struct {
	*httptest.Server
	mu       sync.Mutex
	requests []seen
	minted   int
	handle   func(w http.ResponseWriter, r *http.Request, body string)
	tokens   func(w http.ResponseWriter, ask tokenAsk) // nil: properly
	now      func() time.Time
}

type seen struct {
	method, path, auth, body string
}

type tokenAsk struct {
	RepositoryIDs []int64           `json:"repository_ids"`
	Permissions   map[string]string `json:"permissions"`
}

var testKey = sync.OnceValue(func() []byte {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
})

var hello = Repo{ID: 7, Owner: "octocat", Name: "hello"}

func newHub(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, body string)) *hub {
	h := &hub{handle: handle, now: time.Now}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	h.requests = append(h.requests, seen{r.Method, r.RequestURI, r.Header.Get("Authorization"), string(b)})
	mine := h.tokens
	h.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/access_tokens") {
		var ask tokenAsk
		_ = json.Unmarshal(b, &ask)
		if mine != nil {
			mine(w, ask)
			return
		}
		h.giveToken(w, ask)
		return
	}
	h.handle(w, r, string(b))
}

func (h *hub) giveToken(w http.ResponseWriter, ask tokenAsk) {
	h.mu.Lock()
	h.minted++
	n := h.minted
	h.mu.Unlock()
	reply(w, 201, map[string]any{
		"token": tokenText(n), "expires_at": h.now().Add(time.Hour).UTC().Format(time.RFC3339),
		"permissions": ask.Permissions, "repository_selection": "selected", "repositories": repositoriesOf(ask.RepositoryIDs),
	})
}

func repositoriesOf(ids []int64) []map[string]any {
	var out []map[string]any
	for _, id := range ids {
		out = append(out, map[string]any{"id": id})
	}
	return out
}

// tokenText is a token of today's length.
func tokenText(n int) string {
	return fmt.Sprintf("ghs_1_eyJ%04d.%s-_.%s", n, strings.Repeat("Ab", 120), strings.Repeat("x9", 120))
}

func reply(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// sent lists the requests that were no requests for tokens, as "METHOD path".
func (h *hub) sent() []string {
	var out []string
	for _, r := range h.all() {
		if !strings.HasSuffix(r.path, "/access_tokens") {
			out = append(out, r.method+" "+r.path)
		}
	}
	return out
}

func (h *hub) all() []seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]seen(nil), h.requests...)
}

func (h *hub) app(t *testing.T, change ...func(*Options)) *App {
	t.Helper()
	o := Options{
		AppID: 1, Key: testKey(), APIBase: h.URL, Log: slog.New(slog.DiscardHandler),
		WriteSpacing: -1, Reads: proc.Policy{First: time.Microsecond, Max: time.Microsecond}, Rand: none,
		Redactor: redact.New("hunter2-canary"),
	}
	for _, f := range change {
		f(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (h *hub) client(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	return h.app(t, change...).Installation(99)
}

func ctxFor(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// none is a generator that spreads nothing.
func none() float64 { return 0 }
