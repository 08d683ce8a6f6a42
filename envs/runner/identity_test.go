package runner

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"inspect/checks/redact"
	"inspect/envs/wire"
)

// door is the control plane's side of a runner's identity.
type door struct {
	mu      sync.Mutex
	good    string // the token that is taken; empty: none
	late    bool   // heartbeats are taken with any token
	shown   []string
	beats   int
	version string // of its answers
	away    int    // answers of 503 before it is there
	onShown func(times int)
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.version != "" {
		w.Header().Set(wire.HeaderVersion, d.version)
	}
	if d.away > 0 {
		d.away--
		refuse(w, 503, "unavailable")
		return
	}
	bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch path := strings.TrimPrefix(r.URL.Path, "/runner/v1/"); {
	case path == "token":
		var q wire.TokenRequest
		_ = json.NewDecoder(r.Body).Decode(&q)
		d.shown = append(d.shown, q.JWT+q.Secret)
		if d.onShown != nil {
			d.onShown(len(d.shown))
		}
		if q.JWT == "expired" || q.JWT == "ey" {
			refuse(w, 401, "unauthorized")
			return
		}
		d.good = "token-" + strconv.Itoa(len(d.shown))
		_ = json.NewEncoder(w).Encode(wire.TokenReply{Token: d.good})
	case path == "heartbeat" && d.late:
		d.beats++
		d.good = "beat-" + strconv.Itoa(d.beats)
		_ = json.NewEncoder(w).Encode(wire.HeartbeatReply{Token: d.good})
	case d.good == "" || bearer != d.good:
		refuse(w, 401, "unauthorized")
	default:
		_ = json.NewEncoder(w).Encode(wire.Spec{Session: "s1"})
	}
}

func (d *door) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// visitor is the client of a runner with an identity's file, or a secret.
func visitor(t *testing.T, d *door, file string) (c *control, fatal func() error) {
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	o := &Options{ControlURL: srv.URL, Session: "s1", Generation: 1, IdentityFile: file, NodeSocket: "x", Spool: "x", pace: pace{retryMax: 10 * time.Millisecond}}
	if file == "" {
		o.Secret = testSecret
	}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var told error
	c = newControl(o, redact.New(), func(err error) {
		mu.Lock()
		defer mu.Unlock()
		told = errors.Join(told, err)
	})
	t.Cleanup(c.close)
	return c, func() error {
		mu.Lock()
		defer mu.Unlock()
		return told
	}
}

func TestIdentityFileIsReadAnew(t *testing.T) {
	d := &door{}
	file := filepath.Join(t.TempDir(), "jwt")
	c, fatal := visitor(t, d, file)
	write := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Half of it is there, then all.
	write("ey")
	d.set(func() {
		d.away = 2
		d.onShown = func(int) { write("whole\n") }
	})
	if err := c.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.spec(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The control plane was away for longer than its token lives: several calls
	// find that at once, and the identity is shown once, as it is now.
	write("renewed")
	d.set(func() { d.good, d.shown, d.onShown = "", nil, nil })
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := c.spec(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	d.set(func() {
		if !slices.Equal(d.shown, []string{"renewed"}) {
			t.Errorf("shown %q", d.shown)
		}
	})
	// The cluster was away too, and what the file holds has expired: whoever was
	// let in once tries on until it is renewed.
	write("expired")
	d.set(func() {
		d.good, d.shown = "", nil
		d.onShown = func(times int) {
			if times == 2*unauthorizedTries {
				write("good again")
			}
		}
	})
	if _, err := c.spec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := fatal(); err != nil {
		t.Fatal(err)
	}
}

func TestIdentityThatWasNeverTakenEnds(t *testing.T) {
	d := &door{}
	file := filepath.Join(t.TempDir(), "jwt")
	c, fatal := visitor(t, d, file)
	if err := os.WriteFile(file, []byte("expired"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.identify(t.Context()); !errors.Is(err, ErrRefused) || !errors.Is(fatal(), ErrRefused) || len(d.shown) != unauthorizedTries {
		t.Fatalf("%v after %d tries", err, len(d.shown))
	}
}

func TestIdentityFiles(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{"good": " token\n", "empty": "\n", "long": strings.Repeat("x", maxIdentity+1)} {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(path("good"), path("link")), unix.Mkfifo(path("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, err := readIdentity(path("good")); err != nil || got != "token" {
		t.Errorf("%q, %v", got, err)
	}
	for _, name := range []string{"empty", "long", "link", "pipe", ".", "none"} {
		if got, err := readIdentity(path(name)); err == nil {
			t.Errorf("%s: %.20q", name, got)
		}
	}
}

// Without an identity the secret is used up: a heartbeat renews the token.
func TestSecretsRunnerAfterALongAbsence(t *testing.T) {
	d := &door{late: true}
	c, fatal := visitor(t, d, "")
	if err := c.identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.set(func() { d.good = "" })
	if _, err := c.spec(t.Context()); err != nil || fatal() != nil {
		t.Fatal(err, fatal())
	}
	if d.beats != 1 || len(d.shown) != 1 {
		t.Errorf("%d beats, shown %q", d.beats, d.shown)
	}
	d.set(func() { d.good, d.late = "", false })
	if _, err := c.spec(t.Context()); !errors.Is(err, ErrRefused) || !errors.Is(fatal(), ErrRefused) {
		t.Fatalf("a runner that nobody knows goes on: %v", err)
	}
}

func TestControlPlanesOfOtherVersions(t *testing.T) {
	for version, words := range map[int]string{
		wire.Version: "", wire.Version + 1: "", wire.Version + 2: "update inspect on the node", wire.Version - 2: "update the control plane",
	} {
		d := &door{version: strconv.Itoa(version)}
		c, fatal := visitor(t, d, "")
		err := c.identify(t.Context())
		if words == "" && err != nil || words != "" && (!errors.Is(err, ErrRefused) || !errors.Is(fatal(), ErrRefused) || !strings.Contains(err.Error(), words)) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}
