package web

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"inspect/envs/wire"
)

// followed is an open stream of one session.
type followed struct {
	t    *testing.T
	body *bufio.Scanner
	end  context.CancelFunc
}

func (s *site) follow(path string) *followed {
	s.t.Helper()
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+accessToken)
	resp, err := server.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("%s: %s, %v", path, resp.Status, resp.Header)
	}
	f := &followed{t: s.t, body: bufio.NewScanner(resp.Body), end: cancel}
	f.body.Buffer(nil, 16<<20)
	return f
}

// next message of the stream; "" if it ended.
func (f *followed) next() (kind, data string) {
	for f.body.Scan() {
		line := f.body.Text()
		switch key, value, _ := strings.Cut(line, ": "); {
		case line == "" && kind != "":
			return kind, data
		case key == "event":
			kind = value
		case key == "data":
			data += value + "\n"
		}
	}
	return kind, data
}

func TestLive(t *testing.T) {
	s := newSite(t)
	s.session("live", "Work")
	const n = 5000
	s.sql(`INSERT INTO events (session_id, seq, generation, kind, data, at, hash)
		SELECT 'live', i, 1, $1, jsonb_build_object('words', 'note ' || i || $2::text), now(), '' FROM generate_series(1, $3) i`, wire.EventNote, evil, n)
	f := s.follow("/sessions/live/live?after=10&state=queued")
	seen, stands := 10, ""
	for seen < n || stands == "" {
		kind, data := f.next()
		switch kind {
		case "state":
			stands = data
			continue
		case "add":
		default:
			t.Fatalf("after %d of %d events comes %q", seen, n, kind)
		}
		first := true // of a batch, of which the page keeps the end alone
		for line := range strings.Lines(data) {
			if strings.HasPrefix(line, "<li") {
				if seen++; first {
					was := seen
					if _, err := fmt.Sscanf(line, `<li value="%d"`, &seen); err != nil || seen < was || seen > was+liveBatch-liveKept {
						t.Fatalf("after line %d comes %s", was-1, line)
					}
				}
				first = false
				if !strings.Contains(line, fmt.Sprintf(`value="%d"`, seen)) || strings.Contains(line, "<script") {
					t.Fatalf("line %d is %s", seen, line)
				}
			}
		}
	}
	if !strings.Contains(stands, "two others are before it") {
		t.Errorf("the session stands at %s", stands)
	}
	s.event("live", n+1, wire.EventNote, wire.Note{Words: "one more"})
	s.sql(`UPDATE sessions SET state = 'working' WHERE id = 'live'`)
	if err := s.clock.BlockUntil(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	s.clock.Advance(liveLook)
	if kind, data := f.next(); kind != "add" || !strings.Contains(data, "one more") {
		t.Errorf("a new event is told as %q %s", kind, data)
	}
	if kind, _ := f.next(); kind != "reload" {
		t.Errorf("the session moves on, and the page hears %q", kind)
	}
	if kind, _ := f.next(); kind != "" {
		t.Errorf("then comes %q", kind)
	}

	f = s.follow(fmt.Sprintf("/sessions/live/live?after=%d&state=working", n+1))
	if kind, _ := f.next(); kind != "state" {
		t.Errorf("first comes %q", kind)
	}
	if err := s.clock.BlockUntil(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	s.clock.Advance(liveFor)
	if kind, _ := f.next(); kind != "" {
		t.Errorf("after its time the stream goes on with %q", kind)
	}
}

// deadlined notes by when everything must be written.
type deadlined struct {
	*httptest.ResponseRecorder
	by time.Time
}

func (d *deadlined) SetWriteDeadline(by time.Time) error { d.by = by; return nil }

// Who follows and reads nothing does not keep a place for good.
func TestLiveEndsForWhoReadsNothing(t *testing.T) {
	s := newSite(t)
	s.session("live", "Work")
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/sessions/live/live?after=0&state=another", nil)
	r.Header.Set("Authorization", "Bearer "+accessToken)
	w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
	s.ServeHTTP(w, r)
	if left := time.Until(w.by); w.Code != http.StatusOK || left <= 0 || left > 2*liveFor {
		t.Errorf("%d, written by %s", w.Code, w.by)
	}
}

func TestLiveIsRefused(t *testing.T) {
	h, b := newHouse(t, "https://inspect.example")
	b.signIn("/")
	for path, want := range map[string]int{
		"/sessions/hidden/live?after=0": http.StatusNotFound, "/sessions/none/live?after=0": http.StatusNotFound,
		"/sessions/open/live": http.StatusBadRequest, "/sessions/open/live?after=-1": http.StatusBadRequest, "/sessions/open/live?after=x": http.StatusBadRequest,
	} {
		if w := b.send("GET", path, nil); w.Code != want {
			t.Errorf("%s is %d", path, w.Code)
		}
	}
	stranger := &browser{t: t, to: h.site.Handler, base: b.base, jar: map[string]*http.Cookie{}}
	if w := stranger.send("GET", "/sessions/open/live?after=0", nil); w.Code != http.StatusUnauthorized {
		t.Errorf("a stranger follows: %d", w.Code)
	}
}

func TestFilters(t *testing.T) {
	s := newSite(t)
	s.session("one", "First")
	s.session("two", "Second")
	s.sql(`UPDATE sessions SET state = 'failed', requester_login = 'hubot' WHERE id = 'two'`)
	for query, want := range map[string][2]bool{
		"": {true, true}, "state=failed": {false, true}, "state=queued": {true, false}, "requester=HUBOT": {false, true},
		"repository=Octocat/Parcel": {true, true}, "repository=octocat/other": {false, false}, "state=nonsense%00": {false, false},
		"repository=octocat/parcel&requester=monalisa": {true, false},
	} {
		for _, path := range []string{"/?", "/sessions.json?"} {
			page := s.get(path + query).Body.String()
			if got := [2]bool{strings.Contains(page, "First"), strings.Contains(page, "Second")}; got != want {
				t.Errorf("%s%s shows %v", path, query, got)
			}
		}
	}
}
