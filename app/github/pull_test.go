package github

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A job's log is on another host, which hears nothing of our token.
func TestJobLog(t *testing.T) {
	var auth string
	logs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if auth = r.Header.Get("Authorization"); r.URL.Path == "/gone" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(strings.Repeat("x", 100_000) + "the end"))
	}))
	t.Cleanup(logs.Close)
	where := ""
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		if where == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Location", where)
		w.WriteHeader(http.StatusFound)
	})
	c := h.client(t)
	if _, err := c.JobLog(ctxFor(t), hello, 5, 20); !errors.Is(err, ErrDenied) {
		t.Errorf("without the permission: %v", err)
	}
	where = logs.URL + "/log?sig=credential"
	got, err := c.JobLog(ctxFor(t), hello, 5, 20)
	if err != nil || got != strings.Repeat("x", 13)+"the end" || auth != "" {
		t.Errorf("%q, %v; it was sent %q", got, err, auth)
	}
	where = logs.URL + "/gone?sig=credential"
	if _, err := c.JobLog(ctxFor(t), hello, 5, 20); err == nil || strings.Contains(err.Error(), "credential") {
		t.Errorf("gone: %v", err)
	}
	where = "file:///etc/passwd"
	if _, err := c.JobLog(ctxFor(t), hello, 5, 20); err == nil {
		t.Error("a file was read")
	}
	// Nobody else's redirect is followed to another host.
	where = logs.URL + "/log"
	if _, err := c.PullRequest(ctxFor(t), hello, 5); !errors.Is(err, ErrForbidden) {
		t.Errorf("another read: %v", err)
	}
}

// What is said on a pull request takes another permission than on an issue.
func TestTalkOnAPullRequest(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id": 1}`))
	})
	c := h.client(t)
	if _, err := c.CreateComment(OnPull(ctxFor(t)), hello, 3, "x"); err != nil {
		t.Fatal(err)
	}
	asked := ""
	for _, r := range h.all() {
		if strings.HasSuffix(r.path, "/access_tokens") {
			asked += r.body
		}
	}
	if !strings.Contains(asked, `"pull_requests":"write"`) || strings.Contains(asked, `"issues"`) {
		t.Errorf("asked for %s", asked)
	}
}
