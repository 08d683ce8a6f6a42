package egress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A host that a person allows is open at once, for connections that come after it.
func TestAllowWhileServing(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "late") }))
	defer plain.Close()
	port := portOf(plain.Listener.Addr())
	w := newWorld(t, Options{})
	w.names.m["late.example"], w.names.m["other.example"] = []string{"127.0.0.1"}, []string{"127.0.0.1"}
	get := func(host string) int {
		t.Helper()
		res, err := w.client(nil).Get(fmt.Sprintf("http://%s:%d/", host, port))
		must(t, err)
		defer res.Body.Close()
		return res.StatusCode
	}
	if code := get("late.example"); code != http.StatusForbidden {
		t.Fatalf("before it was allowed: %d", code)
	}
	must(t, w.p.Allow(fmt.Sprintf("Late.example:%d", port)))
	if code := get("late.example"); code != http.StatusOK {
		t.Errorf("after it was allowed: %d", code)
	}
	if code := get("other.example"); code != http.StatusForbidden {
		t.Errorf("another host: %d", code)
	}
	for _, bad := range []string{"", "127.0.0.1", "http://x.example"} {
		if err := w.p.Allow(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
