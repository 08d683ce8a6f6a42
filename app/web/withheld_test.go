package web

import (
	"net/http"
	"strings"
	"testing"
)

// A bundle that was not searched for secrets as a whole is given to people who may
// write to the repository, and to whoever runs the server; the list says what it is.
func TestUnsearchedBundle(t *testing.T) {
	h, b := newHouse(t, "https://inspect.example")
	sum := h.blob("open", "the work")
	h.sql(`INSERT INTO evidence (session_id, name, sha256, bytes, created_at) VALUES ('open', 'unsearched.bundle', $1, 8, now())`, sum)
	h.hub.levels[7] = map[string]string{"monalisa": "read"}
	b.signIn("/sessions/open")
	if w := b.send("GET", "/sessions/open", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "unsearched.bundle") {
		t.Errorf("the page is %d", w.Code)
	}
	for _, method := range []string{"GET", "HEAD"} {
		if w := b.send(method, "/sessions/open/files/"+sum, nil); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "the work") {
			t.Errorf("%s by who can read: %d %s", method, w.Code, w.Body)
		}
	}
	h.hub.levels[7] = map[string]string{"monalisa": "write"}
	h.clock.Advance(mayFor)
	if w := b.send("GET", "/sessions/open/files/"+sum, nil); w.Code != http.StatusOK || w.Body.String() != "the work" {
		t.Errorf("who can write gets %d %s", w.Code, w.Body)
	}
}
