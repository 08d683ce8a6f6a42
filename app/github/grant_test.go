package github

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"inspect/envs/proc"
)

func TestWhatTheAppIsAndWhereItIsInstalled(t *testing.T) {
	w := newWorld(t)
	ctx := ctxFor(t)
	self, err := w.app.Self(ctx)
	if err != nil || self.ID != 4711 || self.Slug == "" || self.URL == "" || self.Permissions["contents"] != "write" || len(self.Events) == 0 {
		t.Errorf("self %+v, %v", self, err)
	}
	list, err := w.app.Installations(ctx)
	if err != nil || len(list) != 1 || list[0].Account != "octocat" || list[0].Suspended || list[0].Permissions["contents"] != "write" || list[0].URL == "" {
		t.Errorf("installations %+v, %v", list, err)
	}
	must(t, w.Suspend(w.c.installation, "octocat"))
	if list, err = w.app.Installations(ctx); err != nil || len(list) != 1 || !list[0].Suspended {
		t.Errorf("suspended: %+v, %v", list, err)
	}
	hook, err := w.app.HookConfig(ctx)
	if err != nil || hook.ContentType != "json" || hook.Insecure {
		t.Errorf("hook %+v, %v", hook, err)
	}
	if _, err := w.app.Deliveries(ctx); err != nil {
		t.Error(err)
	}
}

func TestFoldersAreListed(t *testing.T) {
	w := newWorld(t)
	names, err := w.c.Files(ctxFor(t), w.repo, "docs", "main")
	if err != nil || !slices.Equal(names, []string{"a.md"}) {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := w.c.Files(ctxFor(t), w.repo, ".github/workflows", "main"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestProtectionAsGitHubTellsIt(t *testing.T) {
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		switch r.URL.EscapedPath() {
		case "/repos/octocat/hello/rulesets/5":
			reply(w, 200, map[string]any{"id": 5, "current_user_can_bypass": "pull_requests_only"})
		case "/repos/octocat/hello/rulesets/6":
			reply(w, 200, map[string]any{"id": 5})
		case "/repos/octocat/hello/branches/release%2F1%232":
			reply(w, 200, map[string]any{"name": "release/1#2", "protected": true, "protection": map[string]any{"enabled": true}})
		case "/repos/octocat/hello/branches/main": // by a ruleset only
			reply(w, 200, map[string]any{"name": "main", "protected": true, "protection": map[string]any{"enabled": false}})
		case "/repos/octocat/hello/branches/old":
			reply(w, 200, map[string]any{"name": "main", "protected": true, "protection": map[string]any{"enabled": true}})
		default:
			reply(w, 404, nil)
		}
	})
	c, ctx := h.client(t), ctxFor(t)
	if got, err := c.Bypass(ctx, hello, 5); got != "pull_requests_only" || err != nil {
		t.Errorf("bypass %q, %v", got, err)
	}
	if _, err := c.Bypass(ctx, hello, 6); !errors.Is(err, ErrUnavailable) {
		t.Errorf("another ruleset's answer: %v", err)
	}
	for branch, want := range map[string]bool{"release/1#2": true, "main": false} {
		if got, err := c.BranchProtected(ctx, hello, branch); got != want || err != nil {
			t.Errorf("%s: %v, %v", branch, got, err)
		}
	}
	if _, err := c.BranchProtected(ctx, hello, "old"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a renamed branch's answer: %v", err)
	}
}

func TestTokenForms(t *testing.T) {
	for token, want := range map[string]string{
		tokenText(1): "ghs_<App>_<JWT>, 497 characters", "ghs_" + strings.Repeat("a", 36): "ghs_…, 40 characters", "gho_x": "not known",
	} {
		if got := tokenForm(token); !strings.Contains(got, want) || strings.Contains(got, token) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	w := newWorld(t)
	if form, err := w.c.TokenForm(ctxFor(t)); err != nil || !strings.HasPrefix(form, "ghs_") {
		t.Errorf("%q, %v", form, err)
	}
}

func TestACodeIsRedeemedOnceAndWithoutCredentials(t *testing.T) {
	const code = "0123456789abcdef0123456789abcdef01234567"
	status, tries := 201, 0
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, body string) {
		tries++
		if r.Method != "POST" || r.URL.Path != "/api/v3/app-manifests/"+code+"/conversions" || body != "" || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %s with %q and credentials %q", r.Method, r.URL.Path, body, r.Header.Get("Authorization"))
		}
		if status == 301 {
			w.Header().Set("Location", "/api/v3/app-manifests/"+code+"/conversions")
		}
		reply(w, status, map[string]any{
			"id": 12, "slug": "inspect", "html_url": "https://ghe.example/github-apps/inspect", "owner": map[string]any{"login": "octocat"},
			"permissions": map[string]string{"contents": "write", "something_new": "write"}, "events": []string{"issues"},
			"pem": "the key", "webhook_secret": "the secret", "client_secret": "not ours",
		})
	})
	o := Options{APIBase: h.URL + "/api/v3", Reads: proc.Policy{First: 1, Max: 1}, Rand: none}
	m, err := Convert(ctxFor(t), o, code)
	if err != nil || m.ID != 12 || m.Key != "the key" || m.WebhookSecret != "the secret" || m.Owner != "octocat" || m.Permissions["something_new"] != "write" || tries != 1 {
		t.Errorf("%+v, %v after %d tries", m, err, tries)
	}
	for s, want := range map[int]int{404: 1, 422: 1, 301: 1, 502: 3} {
		status, tries = s, 0
		if _, err := Convert(ctxFor(t), o, code); err == nil || strings.Contains(err.Error(), code) || tries != want {
			t.Errorf("%d: %v after %d tries, want %d", s, err, tries, want)
		}
	}
	h.Close()
	if _, err := Convert(ctxFor(t), o, code); err == nil || strings.Contains(err.Error(), code) {
		t.Errorf("GitHub away: %v", err)
	}
	tries = 0
	for _, bad := range []string{"", "../app", "a/b", "a?b", strings.Repeat("a", 101)} {
		if _, err := Convert(ctxFor(t), o, bad); err == nil || tries != 0 {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
