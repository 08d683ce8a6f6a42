package newapp

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"inspect"
	"inspect/app/github"
	"inspect/app/manifest"
)

var rsaKey = sync.OnceValue(func() string {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)}))
})

// run is a flow under way against a GitHub that answers with app.
type run struct {
	t    *testing.T
	o    Options
	app  map[string]any
	page string // its address
	end  chan result
	said *lines
}

// lines hands on what is written.
type lines struct{ ch chan string }

func (l *lines) Write(b []byte) (int, error) {
	l.ch <- string(b)
	return len(b), nil
}

func start(t *testing.T, change func(*run)) *run {
	t.Helper()
	m, err := manifest.Parse(inspect.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, end: make(chan result, 1), said: &lines{make(chan string, 10)}}
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != "POST" || req.URL.Path != "/api/v3/app-manifests/the-code/conversions" {
			w.WriteHeader(404)
			return
		}
		w.WriteHeader(201)
		_ = json.NewEncoder(w).Encode(r.app)
	}))
	t.Cleanup(hub.Close)
	m.Hook.URL, m.URL = "https://inspect.example.com/webhooks/github?<script>\"'", "https://inspect.example.com"
	r.app = map[string]any{
		"id": 12, "slug": "inspect", "name": "Inspect", "html_url": hub.URL + "/apps/inspect", "owner": map[string]any{"login": "Octocat"},
		"permissions": maps.Clone(m.Permissions), "events": m.Events, "pem": rsaKey(), "webhook_secret": "hook-secret", "client_id": "Iv23.abc", "client_secret": "oauth-secret",
	}
	r.o = Options{Manifest: m, Org: "octocat", API: hub.URL + "/api/v3", Listen: "127.0.0.1:0", Timeout: time.Minute, Out: r.said}
	dir := t.TempDir()
	if r.o.Store, err = OpenStore(dir, false); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		made, err := Run(ctx, r.o)
		r.end <- result{made, err}
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case text := <-r.said.ch:
		r.page = regexp.MustCompile(`http://127\.0\.0\.1:\d+/[0-9a-f]{64}/`).FindString(text)
	case e := <-r.end:
		t.Fatal(e.err)
	}
	return r
}

func (r *run) get(address string) (int, string, http.Header) {
	r.t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), resp.Header
}

// confirm does what a person and GitHub do.
func (r *run) confirm() (int, string) {
	_, body, _ := r.get(r.page)
	state := regexp.MustCompile(`state=([0-9a-f]{64})`).FindStringSubmatch(body)
	if state == nil {
		r.t.Fatalf("no state in %s", body)
	}
	status, answer, _ := r.get(r.page + "made?code=the-code&state=" + state[1])
	return status, answer
}

func TestAnAppIsMadeAndKept(t *testing.T) {
	r := start(t, nil)
	_, body, h := r.get(r.page)
	action := regexp.MustCompile(`action="([^"]+)"`).FindStringSubmatch(body)
	if action == nil || !strings.Contains(html.UnescapeString(action[1]), "/organizations/octocat/settings/apps/new?state=") {
		t.Errorf("the form goes to %v", action)
	}
	value := regexp.MustCompile(`name="manifest" value="([^"]+)"`).FindStringSubmatch(body)
	var m map[string]any
	if value == nil || json.Unmarshal([]byte(html.UnescapeString(value[1])), &m) != nil || m["redirect_url"] != r.page+"made" {
		t.Errorf("the manifest is %v", m)
	}
	if strings.Contains(body, "<script>") {
		t.Error("the page does not escape")
	}
	u, _ := url.Parse(r.o.API)
	if csp := h.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "form-action http://"+u.Host+";") || !strings.Contains(csp, "frame-ancestors 'none'") {
		t.Errorf("policy %s", csp)
	}
	status, answer := r.confirm()
	end := <-r.end
	if status != 200 || end.err != nil || end.made.ID != 12 {
		t.Fatalf("%d, %+v: %s", status, end, answer)
	}
	for name, want := range map[string]string{
		KeyFile: rsaKey(), SecretFile: "hook-secret\n", ClientFile: "oauth-secret\n",
		EnvFile: "INSPECT_GITHUB_APP_ID=12\nINSPECT_GITHUB_KEY_FILE=" + r.o.Store.Path(KeyFile) + "\n",
	} {
		body, err := os.ReadFile(r.o.Store.Path(name))
		info, _ := os.Stat(r.o.Store.Path(name))
		if err != nil || !strings.Contains(string(body), want) || info.Mode().Perm() != 0o600 || name != ClientFile && strings.Contains(string(body), "oauth-secret") {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	for _, secret := range []string{"hook-secret", "PRIVATE KEY", "oauth-secret"} {
		if strings.Contains(answer, secret) {
			t.Errorf("the page shows %q", secret)
		}
	}
	if left, _ := filepath.Glob(r.o.Store.Path(".inspect-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestWhoDoesNotComeFromThePageIsRefused(t *testing.T) {
	r := start(t, nil)
	u, _ := url.Parse(r.page)
	for address, want := range map[string]int{
		"http://" + u.Host + "/":                                       404,
		"http://" + u.Host + "/made?code=the-code":                     404,
		r.page + "made?code=the-code":                                  403,
		r.page + "made?code=the-code&state=" + strings.Repeat("0", 64): 403,
		strings.Replace(r.page, "127.0.0.1", "localhost", 1):           421,
	} {
		if status, _, _ := r.get(address); status != want {
			t.Errorf("%s: %d, want %d", address, status, want)
		}
	}
	select {
	case e := <-r.end:
		t.Errorf("ended: %+v", e)
	default:
	}
}

func TestWhatGitHubMadeIsChecked(t *testing.T) {
	with := func(key string, value any) func(*run) { return func(r *run) { r.app[key] = value } }
	for name, c := range map[string]struct {
		change    func(*run)
		different bool
		kept      bool
	}{
		"another owner":      {with("owner", map[string]any{"login": "hubot"}), false, false},
		"no key":             {with("pem", ""), false, false},
		"no RSA key":         {with("pem", "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n"), false, false},
		"no secret":          {with("webhook_secret", nil), false, false},
		"no client":          {with("client_id", "a b"), false, false},
		"no client secret":   {with("client_secret", ""), false, false},
		"two lines":          {with("webhook_secret", "a\nINSPECT_X=y"), false, false},
		"no id":              {with("id", 0), false, false},
		"more than asked":    {func(r *run) { r.app["permissions"].(map[string]string)["administration"] = "write" }, true, false},
		"less than asked":    {func(r *run) { delete(r.app["permissions"].(map[string]string), "merge_queues") }, true, true},
		"events do not come": {with("events", []string{"issues"}), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.change)
			r.confirm()
			end := <-r.end
			_, err := os.Stat(r.o.Store.Path(EnvFile))
			if end.err == nil || errors.Is(end.err, ErrDifferent) != c.different || (end.made.ID != 0) != c.kept || (err == nil) != c.kept {
				t.Errorf("%+v, kept: %v", end, err == nil)
			}
			if strings.Contains(end.err.Error(), "hook-secret") {
				t.Error("the error shows the secret")
			}
		})
	}
}

func TestFilesThatAreThereStay(t *testing.T) {
	for _, name := range []string{KeyFile, SecretFile, ClientFile, EnvFile} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(dir, false); !errors.Is(err, ErrThere) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that comes into being meanwhile stays too, unless it was asked for.
	dir := t.TempDir()
	s, err := OpenStore(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(KeyFile), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	made := github.Made{Self: github.Self{ID: 1}, Key: "new", WebhookSecret: "new"}
	if err := s.keep(made, github.Bases{}); err == nil {
		t.Error("it was replaced")
	}
	if body, _ := os.ReadFile(s.Path(KeyFile)); string(body) != "mine" {
		t.Errorf("it holds %q", body)
	}
	if s, err = OpenStore(dir, true); err != nil {
		t.Fatal(err)
	}
	if err := s.keep(made, github.Bases{}); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(s.Path(KeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestItEndsWhenNobodyComes(t *testing.T) {
	r := start(t, func(r *run) { r.o.Timeout = time.Millisecond })
	if e := <-r.end; e.err == nil || !strings.Contains(e.err.Error(), "nobody confirmed") {
		t.Errorf("%+v", e)
	}
	for _, listen := range []string{"0.0.0.0:0", "10.0.0.1:0", ":0", "localhost:0", "x"} {
		if _, err := Run(t.Context(), Options{Manifest: r.o.Manifest, API: r.o.API, Listen: listen}); err == nil {
			t.Errorf("it listens at %q", listen)
		}
	}
}
