package nomad

import (
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metaAgent answers /v1/client/metadata as an agent does.
type metaAgent struct {
	mu              sync.Mutex
	static, dynamic map[string]string
	tokens          []string
	applied         []map[string]*string
	status          int // not 0: every answer
}

func (m *metaAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens = append(m.tokens, r.Header.Get("X-Nomad-Token"))
	if m.status != 0 {
		http.Error(w, "Permission denied", m.status)
		return
	}
	if r.URL.Path != "/v1/client/metadata" {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet {
		var in struct{ Meta map[string]*string }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		m.applied = append(m.applied, in.Meta)
		for k, v := range in.Meta {
			if delete(m.dynamic, k); v != nil {
				m.dynamic[k] = *v
			}
		}
	}
	all := maps.Clone(m.static)
	maps.Copy(all, m.dynamic)
	_ = json.NewEncoder(w).Encode(map[string]any{"Meta": all, "Dynamic": m.dynamic, "Static": m.static})
}

func newMetaAgent() *metaAgent {
	return &metaAgent{
		static:  map[string]string{"rack": "r1"},
		dynamic: map[string]string{"owner": "hubot", "inspect.snapshot.env-1-aa": "gone", "inspect.snapshot.env-2-bb": "c2"},
	}
}

func TestAdvertise(t *testing.T) {
	m := newMetaAgent()
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	tokens := []string{"one", "two"}
	a, err := NewAgent(AgentOptions{Address: srv.URL, Token: func() (string, error) {
		next := tokens[0]
		tokens = append(tokens[1:], next)
		return next, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ad := Advert{Node: "node-1", Snapshots: map[string]string{"env-2-bb": "c2", "env-3-cc": "c3"}, FreeBytes: 1 << 40}
	for range 2 {
		if err := a.Advertise(t.Context(), ad); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{
		"owner": "hubot", "inspect.node": "node-1", "inspect.free_bytes": "1099511627776", "inspect.snapshot.env-2-bb": "c2", "inspect.snapshot.env-3-cc": "c3",
	}
	if diff := cmp.Diff(want, m.dynamic); diff != "" {
		t.Errorf("metadata:\n%s", diff)
	}
	if len(m.applied) != 1 {
		t.Errorf("%d changes were sent, the second advert says the same as the first", len(m.applied))
	}
	if v, ok := m.applied[0]["inspect.snapshot.env-1-aa"]; !ok || v != nil {
		t.Error("the key of a snapshot that is gone was not removed")
	}
	if diff := cmp.Diff([]string{"one", "one", "two"}, m.tokens); diff != "" {
		t.Errorf("the token is not read anew for each call:\n%s", diff)
	}
	if err := a.Advertise(t.Context(), Advert{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"owner": "hubot"}, m.dynamic); diff != "" {
		t.Errorf("what is left when all is taken back:\n%s", diff)
	}
}

func TestAdvertiseRefused(t *testing.T) {
	m := newMetaAgent()
	m.status = http.StatusForbidden
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	a, err := NewAgent(AgentOptions{Address: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Advertise(t.Context(), Advert{Node: "node-1"}); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("said %v", err)
	}
	a.token = func() (string, error) { return "", errors.New("no such file") }
	if err := a.Advertise(t.Context(), Advert{Node: "node-1"}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("said %v", err)
	}
}

func TestAdvertiseOverATasksSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "api") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	m := newMetaAgent()
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: m}}
	srv.Start()
	t.Cleanup(srv.Close)
	a, err := NewAgent(AgentOptions{Address: "unix://" + path, Token: func() (string, error) { return "task", nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Advertise(t.Context(), Advert{Node: "node-1"}); err != nil {
		t.Fatal(err)
	}
	if m.dynamic["inspect.node"] != "node-1" || m.tokens[0] != "task" {
		t.Errorf("%v with %q", m.dynamic, m.tokens)
	}
}

// A token never leaves the machine in clear.
func TestAgentAddress(t *testing.T) {
	for address, good := range map[string]bool{
		"http://127.0.0.1:4646": true, "http://localhost:4646": true, "http://[::1]:4646": true, "https://nomad.example:4646": true, "unix:///s/api.sock": true,
		"http://10.1.2.3:4646": false, "http://nomad.example": false, "unix://": false, "127.0.0.1:4646": false, "": false, "https://a:b@nomad.example": false,
	} {
		if _, err := NewAgent(AgentOptions{Address: address}); (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
	}
}
