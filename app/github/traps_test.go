package github

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/envs/proc"
)

// A POST answered with 301 is repeated by the standard library as a GET, and
// the library then reports success although nothing was written.
func TestWriteIsNotFollowedAsARead(t *testing.T) {
	for _, status := range []int{301, 302, 303} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
				if r.Method == "GET" && strings.HasPrefix(r.URL.Path, "/repositories/7") && !strings.Contains(r.URL.Path, "comments") {
					reply(w, 200, map[string]any{"id": 7, "name": "hello", "owner": map[string]any{"login": "octocat"}})
					return
				}
				w.Header().Set("Location", "/repositories/7/issues/3/comments")
				reply(w, status, map[string]any{"message": "Moved Permanently"})
			})
			_, err := h.client(t).CreateComment(ctxFor(t), hello, 3, "hi")
			if !errors.Is(err, ErrMoved) {
				t.Fatalf("got %v, want ErrMoved", err)
			}
			if got := h.sent(); slices.Contains(got, "GET /repositories/7/issues/3/comments") {
				t.Errorf("the write was followed as a read: %q", got)
			}
		})
	}
}

func TestRenamedRepositoryIsFoundByID(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		switch r.Method + " " + r.URL.Path {
		case "POST /repos/octocat/hello/issues/3/comments":
			w.Header().Set("Location", "/repositories/7/issues/3/comments")
			reply(w, 301, map[string]any{"message": "Moved Permanently"})
		case "GET /repositories/7":
			reply(w, 200, map[string]any{"id": 7, "name": "world", "owner": map[string]any{"login": "hubot"}})
		case "POST /repos/hubot/world/issues/3/comments":
			reply(w, 201, map[string]any{"id": 41})
		default:
			reply(w, 404, nil)
		}
	})
	id, err := h.client(t).CreateComment(ctxFor(t), hello, 3, "hi")
	if err != nil || id != 41 {
		t.Fatalf("got %d, %v", id, err)
	}
}

func TestWriteIsRepeatedWhereGitHubSaysSoByMethod(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, body string) {
		if strings.HasPrefix(r.URL.Path, "/repos/") {
			w.Header().Set("Location", "/repositories/7/issues/3/comments")
			reply(w, 307, nil)
			return
		}
		if r.Method != "POST" || !strings.Contains(body, "hi") {
			reply(w, 400, nil)
			return
		}
		reply(w, 201, map[string]any{"id": 5})
	})
	if id, err := h.client(t).CreateComment(ctxFor(t), hello, 3, "hi"); err != nil || id != 5 {
		t.Fatalf("got %d, %v", id, err)
	}
}

func TestReadFollowsARename(t *testing.T) {
	sha := strings.Repeat("a", 40)
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		if strings.HasPrefix(r.URL.Path, "/repos/") {
			w.Header().Set("Location", "/repositories/7/git/ref/heads/main")
			reply(w, 301, nil)
			return
		}
		reply(w, 200, map[string]any{"ref": "refs/heads/main", "object": map[string]any{"sha": sha}})
	})
	if got, err := h.client(t).BranchHead(ctxFor(t), hello, "main"); err != nil || got != sha {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestNoRedirectElsewhere(t *testing.T) {
	var elsewhere []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere = append(elsewhere, r.Header.Get("Authorization"))
		reply(w, 200, map[string]any{})
	}))
	defer other.Close()
	for name, to := range map[string]string{
		"another host":       other.URL + "/repos/octocat/hello/git/ref/heads/main",
		"another repository": "/repositories/8/git/ref/heads/main",
		"what we never call": "/repos/octocat/hello/actions/secrets",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
				w.Header().Set("Location", to)
				reply(w, 307, nil)
			})
			_, err := h.client(t).BranchHead(ctxFor(t), hello, "main")
			if !errors.Is(err, ErrForbidden) {
				t.Errorf("got %v, want ErrForbidden", err)
			}
			if n := len(h.sent()); n != 1 {
				t.Errorf("%d requests, want 1: %q", n, h.sent())
			}
		})
	}
	if len(elsewhere) > 0 {
		t.Errorf("a request with %q went to another host", elsewhere[0])
	}
}

func TestRedirectLoopEnds(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		w.Header().Set("Location", r.URL.Path)
		reply(w, 307, nil)
	})
	if _, err := h.client(t).BranchHead(ctxFor(t), hello, "main"); err == nil {
		t.Error("no error")
	}
	// Once under its name, once under its id.
	if n := len(h.sent()); n > 2*(maxRedirects+1) {
		t.Errorf("%d requests", n)
	}
}

// The library leaves the label raw in the path: "a#b" would remove "a".
func TestLabelIsEscapedOnce(t *testing.T) {
	for label, want := range map[string]string{
		"inspect": "inspect", "a#b": "a%23b", "approved?": "approved%3F", "kind/bug": "kind%2Fbug",
		"100%": "100%25", "%252f": "%25252f", "good first issue": "good%20first%20issue", "größe": "gr%C3%B6%C3%9Fe",
		"..": "", ".": "",
	} {
		h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) { reply(w, 200, []any{}) })
		err := h.client(t).RemoveLabel(ctxFor(t), hello, 3, label)
		if want == "" {
			if !errors.Is(err, ErrForbidden) || len(h.sent()) > 0 {
				t.Errorf("%q: got %v and %q", label, err, h.sent())
			}
			continue
		}
		if got := h.sent(); err != nil || len(got) != 1 || got[0] != "DELETE /repos/octocat/hello/issues/3/labels/"+want {
			t.Errorf("%q: got %q, %v", label, got, err)
		}
	}
}

func TestRemovingALabelThatIsNotThere(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		reply(w, 404, map[string]any{"message": "Label does not exist"})
	})
	if err := h.client(t).RemoveLabel(ctxFor(t), hello, 3, "x"); err != nil {
		t.Error(err)
	}
}

// The library takes 403 for a limit in some cases and 429 in none.
func TestLimitsAreRecognised(t *testing.T) {
	t0 := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		until  time.Duration // 0: no limit
		kind   error
	}{
		{"429 with seconds", 429, map[string]string{"Retry-After": "30"}, `{}`, 30 * time.Second, nil},
		{"429 with a date", 429, map[string]string{"Retry-After": t0.Add(45 * time.Second).UTC().Format(http.TimeFormat)}, `{}`, 45 * time.Second, nil},
		{"429 with a reset", 429, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000600"}, `{}`, 10 * time.Minute, nil},
		{"429 alone", 429, nil, `not json`, time.Minute, nil},
		{"403 primary", 403, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000120"}, `{"message":"API rate limit exceeded for installation ID 99."}`, 2 * time.Minute, nil},
		{"403 secondary", 403, nil, `{"message":"You have exceeded a secondary rate limit. Please wait."}`, time.Minute, nil},
		{"403 secondary by address", 403, nil, `{"message":"no","documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`, time.Minute, nil},
		{"403 abuse", 403, map[string]string{"Retry-After": "5"}, `{"message":"You have triggered an abuse detection mechanism."}`, 5 * time.Second, nil},
		{"Retry-After beats reset", 403, map[string]string{"Retry-After": "7", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000600"}, `{}`, 7 * time.Second, nil},
		{"reset in the past", 403, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1600000000"}, `{}`, time.Second, nil},
		{"absurd wait", 429, map[string]string{"Retry-After": "99999999999"}, `{}`, farthest, nil},
		{"long wait", 429, map[string]string{"Retry-After": "999999"}, `{}`, farthest, nil},
		{"403 for rights", 403, map[string]string{"X-RateLimit-Remaining": "17"}, `{"message":"Resource not accessible by integration"}`, 0, ErrDenied},
		{"403 locked", 403, nil, `{"message":"Unable to create comment because issue is locked."}`, 0, ErrGone},
		{"403 archived", 403, nil, `{"message":"Repository was archived so is read-only."}`, 0, ErrGone},
		{"403 suspended", 403, nil, `{"message":"This installation has been suspended"}`, 0, ErrSuspended},
		{"404", 404, nil, `{"message":"Not Found"}`, 0, ErrNotFound},
		{"410", 410, nil, `{"message":"This issue was deleted"}`, 0, ErrGone},
		{"422", 422, nil, `{"message":"Validation Failed","errors":[{"message":"Body is too long"}]}`, 0, ErrInvalid},
		{"422 exists", 422, nil, `{"message":"Validation Failed","errors":[{"message":"A pull request already exists for octocat:x."}]}`, 0, ErrExists},
		{"500", 500, nil, `oops`, 0, ErrAmbiguous},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := proc.NewFake(t0)
			h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
				for k, v := range c.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			})
			h.now = clock.Now
			client := h.client(t, func(o *Options) { o.Clock = clock })
			_, err := client.CreateComment(ctxFor(t), hello, 3, "hi")
			var limit *RateLimited
			if c.until == 0 {
				if errors.As(err, &limit) || !errors.Is(err, c.kind) {
					t.Fatalf("got %v, want %v", err, c.kind)
				}
				return
			}
			if !errors.As(err, &limit) {
				t.Fatalf("got %v, want a rate limit", err)
			}
			if got := limit.Until.Sub(t0); got != c.until {
				t.Errorf("until %s from now, want %s", got, c.until)
			}
			// While it lasts nothing is sent, of any kind.
			before := len(h.all())
			if _, err := client.BranchHead(ctxFor(t), hello, "main"); !errors.As(err, &limit) {
				t.Errorf("during the silence: %v", err)
			}
			if n := len(h.all()); n != before {
				t.Errorf("%d requests were sent during the silence", n-before)
			}
			clock.Advance(c.until)
			_, _ = client.CreateComment(ctxFor(t), hello, 3, "hi")
			if n := len(h.all()); n == before {
				t.Error("nothing was sent after the silence")
			}
		})
	}
}

func TestSilenceGrowsWithoutAWordFromGitHub(t *testing.T) {
	clock := proc.NewFake(time.Unix(1_700_000_000, 0))
	p := newPace(clock, -1, none)
	var got []time.Duration
	for range 7 {
		l := p.note(&answer{status: 429, header: http.Header{}})
		got = append(got, l.Until.Sub(clock.Now()))
		clock.Set(l.Until)
	}
	want := []time.Duration{1, 2, 4, 8, 15, 15, 15}
	for i := range want {
		if got[i] != want[i]*time.Minute {
			t.Fatalf("silences %v", got)
		}
	}
	p.note(&answer{status: 200, header: http.Header{}})
	if l := p.note(&answer{status: 429, header: http.Header{}}); l.Until.Sub(clock.Now()) != time.Minute {
		t.Error("a success does not end the growth")
	}
}

func TestLastRequestOfTheBudgetBeginsSilence(t *testing.T) {
	clock := proc.NewFake(time.Unix(1_700_000_000, 0))
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) {
		w.Header().Set("X-RateLimit-Remaining", "0")
		w.Header().Set("X-RateLimit-Reset", "1700000900")
		reply(w, 201, map[string]any{"id": 1})
	})
	h.now = clock.Now
	a := h.app(t, func(o *Options) { o.Clock = clock })
	if _, err := a.Installation(99).CreateComment(ctxFor(t), hello, 3, "hi"); err != nil {
		t.Fatal(err)
	}
	var limit *RateLimited
	if _, err := a.Installation(99).CreateComment(ctxFor(t), hello, 3, "hi"); !errors.As(err, &limit) {
		t.Fatalf("got %v", err)
	}
	// Another installation has a budget of its own.
	if _, err := a.Installation(100).CreateComment(ctxFor(t), hello, 3, "hi"); err != nil {
		t.Errorf("another installation: %v", err)
	}
	if first, second := a.Installation(99), a.Installation(99); first != second {
		t.Error("an installation has two clients")
	}
}

// RedeliverHookDelivery succeeds with 202, which the library calls an error.
func TestRedeliveryIsAcceptedWith202(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		if r.Header.Get("Authorization") == "" {
			reply(w, 401, nil)
			return
		}
		reply(w, 202, map[string]any{})
	})
	if err := h.app(t).Redeliver(ctxFor(t), 12); err != nil {
		t.Fatal(err)
	}
	if got := h.sent(); len(got) != 1 || got[0] != "POST /app/hook/deliveries/12/attempts" {
		t.Errorf("sent %q", got)
	}
}

func TestFailedDeliveries(t *testing.T) {
	t0 := time.Now().UTC().Truncate(time.Second)
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		d := func(id int, guid string, code int, ago time.Duration) map[string]any {
			return map[string]any{"id": id, "guid": guid, "status_code": code, "event": "issues", "delivered_at": t0.Add(-ago).Format(time.RFC3339)}
		}
		if r.URL.Query().Get("cursor") == "" {
			w.Header().Set("Link", `<http://x/app/hook/deliveries?cursor=c2&per_page=100>; rel="next"`)
			reply(w, 200, []any{d(5, "a", 200, time.Minute), d(4, "b", 502, 2*time.Minute), d(3, "b", 502, 3*time.Minute)})
			return
		}
		reply(w, 200, []any{d(2, "a", 500, 4*time.Minute), d(1, "c", 0, 5*time.Minute), d(0, "d", 500, time.Hour)})
	})
	got, err := h.app(t).FailedDeliveries(ctxFor(t), t0.Add(-30*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for _, d := range got {
		ids = append(ids, d.ID)
	}
	if !slices.Equal(ids, []int64{4, 1}) { // a arrived at the second attempt, d is too old
		t.Errorf("got %v", ids)
	}
}

// UpdateCheckRun of the library leaves out an empty list, so buttons could
// never be taken away.
func TestButtonsAreTakenAway(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { reply(w, 200, map[string]any{"id": 4}) })
	err := h.client(t).UpdateCheckRun(ctxFor(t), hello, 4, CheckRun{Name: "inspect", Status: "completed", Conclusion: "neutral", Title: "t"})
	if err != nil {
		t.Fatal(err)
	}
	all := h.all()
	body := all[len(all)-1].body
	if !strings.Contains(body, `"actions":[]`) {
		t.Errorf("sent %s", body)
	}
	// GitHub refuses an output without a summary.
	if !strings.Contains(body, `"summary":"t"`) {
		t.Errorf("sent %s", body)
	}
}

func TestPermission(t *testing.T) {
	user := func(m map[string]bool) map[string]any {
		u := map[string]any{"login": "Monalisa", "id": 11, "role_name": "custom"}
		if m != nil {
			u["permissions"] = m
		}
		return u
	}
	for name, c := range map[string]struct {
		status      int
		body        map[string]any
		write, read bool
		fails       bool
	}{
		"push":                        {200, map[string]any{"permission": "write", "user": user(map[string]bool{"push": true, "pull": true})}, true, true, false},
		"maintain":                    {200, map[string]any{"permission": "write", "user": user(map[string]bool{"maintain": true})}, true, true, false},
		"triage is no writer":         {200, map[string]any{"permission": "read", "user": user(map[string]bool{"triage": true, "pull": true})}, false, true, false},
		"the map decides":             {200, map[string]any{"permission": "admin", "user": user(map[string]bool{"push": false, "pull": true})}, false, true, false},
		"no map: admin":               {200, map[string]any{"permission": "admin", "user": user(nil)}, true, true, false},
		"no map: read":                {200, map[string]any{"permission": "read", "user": user(nil)}, false, true, false},
		"no map: unknown word":        {200, map[string]any{"permission": "superuser", "user": user(nil)}, false, false, false},
		"none":                        {200, map[string]any{"permission": "none", "user": user(map[string]bool{})}, false, false, false},
		"no such user":                {404, map[string]any{"message": "Not Found"}, false, false, false},
		"not answered":                {500, nil, false, false, true},
		"not allowed to ask":          {403, map[string]any{"message": "Resource not accessible by integration"}, false, false, true},
		"answer about somebody else":  {200, map[string]any{"permission": "admin", "user": map[string]any{"login": "hubot"}}, false, false, true},
		"answer about nobody":         {200, map[string]any{"permission": "admin"}, false, false, true},
		"answer that is no JSON, 200": {200, nil, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
				if r.URL.Path != "/repos/octocat/hello/collaborators/monalisa/permission" {
					t.Errorf("asked %s", r.URL.Path)
				}
				if c.body == nil {
					w.WriteHeader(c.status)
					fmt.Fprint(w, "<html>")
					return
				}
				reply(w, c.status, c.body)
			})
			p, err := h.client(t).Permission(ctxFor(t), hello, "monalisa")
			if (err != nil) != c.fails || p.Write != c.write || p.Read != c.read {
				t.Errorf("got %+v, %v", p, err)
			}
		})
	}
}

func TestPermissionOfStrangeLogins(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, _ *http.Request, _ string) { t.Error("asked") })
	for _, login := range []string{"", "a/b", "..", "a b", "a?b", "a%2fb", "ümlaut", strings.Repeat("a", 200)} {
		if p, err := h.client(t).Permission(ctxFor(t), hello, login); err == nil || p.Write || p.Read {
			t.Errorf("%q: %+v, %v", login, p, err)
		}
	}
}
