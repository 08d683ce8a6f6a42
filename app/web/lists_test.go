package web

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// A page of the list is full of what the person may read, and no address names
// what they may not.
func TestListNamesNothingHidden(t *testing.T) {
	h, b := newHouse(t, "http://127.0.0.1:7461")
	b.signIn("/")
	h.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt, base_branch, base_sha, environment_id, spec, spec_source, created_at, deadline)
		SELECT CASE WHEN i % 3 = 0 THEN 'shown' ELSE 'secret' END || i, 1, CASE WHEN i % 3 = 0 THEN 7 ELSE 8 END, 1, 'many' || i, 3, 'monalisa', 'x', 'x', 'x', 'main', '', 'env-7-x', '{}', '', $1::timestamptz - i * interval '1 hour', now() FROM generate_series(1, 1200) i`, h.clock.Now())
	seen := map[string]bool{}
	path := "/"
	pages := 0
	for ; path != "" && pages < 30; pages++ {
		body := b.send("GET", path, nil).Body.String()
		if strings.Contains(body, "secret") || strings.Contains(body, "Nobody") {
			t.Fatalf("%s tells of what the person may not read", path)
		}
		for _, part := range strings.Split(body, `href="/sessions/`)[1:] {
			id, _, _ := strings.Cut(part, `"`)
			if seen[id] {
				t.Errorf("%s is listed twice", id)
			}
			seen[id] = true
		}
		_, rest, _ := strings.Cut(body, `<a href="/?`)
		path, _, _ = strings.Cut(rest, `"`)
		if path != "" {
			path = "/?" + strings.ReplaceAll(path, "&amp;", "&")
		}
	}
	if len(seen) != 401 || pages != 9 {
		t.Errorf("%d sessions on %d pages", len(seen), pages)
	}

	// Where there is much of it, the way on is there all the same.
	h.sql(`UPDATE sessions SET repository_id = 8 WHERE id LIKE 'shown%' AND intent_key <> 'many1200'`)
	h.sql(`UPDATE sessions SET repository_id = 8 WHERE id = 'open'`)
	body := b.send("GET", "/", nil).Body.String()
	if !strings.Contains(body, "None of the newest sessions") || !strings.Contains(body, "Older sessions") || strings.Contains(body, "secret") || strings.Contains(body, "shown") {
		t.Errorf("%s", body)
	}
}

// What page views cost in requests is bounded, also while GitHub does not answer.
func TestQuestionsAreBounded(t *testing.T) {
	h, b := newHouse(t, "http://127.0.0.1:7461")
	b.signIn("/")
	h.hub.mu.Lock()
	h.hub.asked, h.hub.failing = 0, errors.New("GitHub is away")
	h.hub.mu.Unlock()
	for range 20 {
		if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusNotFound {
			t.Fatalf("%d", w.Code)
		}
	}
	if n := h.hub.count(); n > 2 {
		t.Errorf("GitHub, which fails, is asked %d times", n)
	}
	h.hub.mu.Lock()
	h.hub.failing = nil
	h.hub.mu.Unlock()
	h.clock.Advance(failedFor)
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusOK {
		t.Errorf("when GitHub is back: %d", w.Code)
	}

	h.clock.Advance(mayFor)
	before := h.hub.count()
	var all sync.WaitGroup
	for range 10 {
		other := &browser{t: t, to: b.to, base: b.base, jar: map[string]*http.Cookie{}}
		for k, v := range b.jar {
			other.jar[k] = v
		}
		all.Go(func() { other.send("GET", "/sessions/open", nil) })
	}
	all.Wait()
	if n := h.hub.count() - before; n > 2 {
		t.Errorf("ten pages at once ask %d times", n)
	}

	h.clock.Advance(mayFor)
	before = h.hub.count()
	h.sql(`INSERT INTO repositories (id, installation_id, owner, name) SELECT 1000 + i, 1, 'octocat', 'r' || i FROM generate_series(1, 300) i`)
	h.sql(`INSERT INTO sessions (id, installation_id, repository_id, issue_number, intent_key, requester_id, requester_login, title, request, prompt, base_branch, base_sha, environment_id, spec, spec_source, created_at, deadline)
		SELECT 'r' || i, 1, 1000 + i, 1, 'r' || i, 3, 'monalisa', 'x', 'x', 'x', 'main', '', 'env-7-x', '{}', '', $1::timestamptz - interval '1 day', now() FROM generate_series(1, 300) i`, h.clock.Now())
	for range 3 {
		b.send("GET", "/", nil)
	}
	if n := h.hub.count() - before; n > maxQuestions*2 {
		t.Errorf("one person has %d questions asked in a minute", n)
	}
}
