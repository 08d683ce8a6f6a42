package intake

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/webhook"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/fixtures/webhooks"
	"inspect/storage"
)

// queue takes the place of the queue: what is stored is worked on by the test.
type queue struct{}

func (queue) InsertDelivery(context.Context, *storage.Tx, string) error { return nil }

// endpoint is the signed endpoint with the intake behind it.
type endpoint struct {
	*world
	handler http.Handler
}

const hookSecret = "It's a Secret to Everybody"

// everybody may write: no session is withheld for want of a permission.
type everybody struct{ *fakeGitHub }

func (everybody) Permission(context.Context, github.Repo, string) (github.Permission, error) {
	return github.Permission{Level: "admin", Write: true, Read: true, UserID: 21031067}, nil
}

func openEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.world = setup(t, func(o *Options) {
		o.GitHub = func(int64) GitHub { return everybody{e.gh} }
		fates, err := fate.New(fate.Options{DB: o.DB, GitHub: func(int64) fate.GitHub { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		o.Fates = fates
	})
	h, err := webhook.New(webhook.Options{DB: e.db, Jobs: queue{}, Secrets: []string{hookSecret}, Events: Events(), StoreTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	e.handler = h
	return e
}

// post sends a payload as GitHub would and works on what was stored.
func (e *endpoint) post(t *testing.T, what, event string, payload object) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: panic: %v", what, p)
		}
	}()
	e.next++
	guid, raw := fmt.Sprintf("00000000-0000-0000-0000-%012d", e.next), body(payload)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhook.DefaultPath, strings.NewReader(raw))
	req.Header = webhooks.Headers(hookSecret, event, guid, 1, appID, []byte(raw))
	rec := httptest.NewRecorder()
	e.handler.ServeHTTP(rec, req)
	if rec.Code != http.StatusAccepted {
		t.Errorf("%s: answered %d: %s", what, rec.Code, rec.Body)
		return
	}
	if err := e.in.Deliver(t.Context(), guid); err != nil {
		t.Errorf("%s: not finished: %v", what, err)
	}
}

func examples(t *testing.T) []githubdtest.Example {
	t.Helper()
	list, err := githubdtest.Examples()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 300 {
		t.Fatalf("only %d examples", len(list))
	}
	return list
}

// variants are an example, it without what is optional, and, once for each
// event and action, it with each of its parts nulled.
func variants(t *testing.T, e githubdtest.Example, each bool) map[string]object {
	t.Helper()
	out := map[string]object{"whole": e.Payload}
	for name, leave := range map[string]bool{"all optional null": false, "all optional left out": true} {
		v, err := githubdtest.WithoutOptional(e, leave)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = v
	}
	if !each {
		return out
	}
	for key, value := range e.Payload {
		null := maps.Clone(e.Payload)
		null[key] = nil
		out[key] = null
		inner, ok := value.(object)
		if !ok {
			continue
		}
		for k := range inner {
			if strings.HasSuffix(k, "url") || strings.HasSuffix(k, "_count") {
				continue
			}
			part, whole := maps.Clone(inner), maps.Clone(e.Payload)
			part[k], whole[key] = nil, part
			out[key+"."+k] = whole
		}
	}
	return out
}

// None of GitHub's own examples asks us for anything: whatever is missing in
// them, each is taken, finished, and starts nothing.
func TestPublishedPayloads(t *testing.T) {
	e := openEndpoint(t)
	seen := map[string]bool{}
	sent := 0
	for i, x := range examples(t) {
		kind := x.Event + "." + fmt.Sprint(x.Payload["action"])
		each := !seen[kind] && slices.Contains(Events(), x.Event)
		seen[kind] = true
		for name, v := range variants(t, x, each) {
			e.post(t, fmt.Sprintf("%s (example %d), %s", kind, i, name), x.Event, v)
			sent++
		}
	}
	if n := len(e.sessions()); n != 0 {
		t.Errorf("%d sessions were started", n)
	}
	if sent < 2000 {
		t.Errorf("only %d payloads were sent", sent)
	}
}

// GitHub's example of a label, with ours: it starts the one session that it
// asks for. With a part nulled it starts that one or none.
func TestPublishedLabel(t *testing.T) {
	list := examples(t)
	labeledAt := slices.IndexFunc(list, func(x githubdtest.Example) bool {
		return x.Event == "issues" && x.Payload["action"] == "labeled" && x.Payload["installation"] != nil
	})
	if labeledAt < 0 {
		labeledAt = slices.IndexFunc(list, func(x githubdtest.Example) bool { return x.Event == "issues" && x.Payload["action"] == "labeled" })
	}
	x := list[labeledAt]
	x.Payload = maps.Clone(x.Payload)
	x.Payload["installation"] = object{"id": 11}
	x.Payload["label"] = object{"id": 401, "name": "inspect"}
	issue, sender := at(x.Payload, "issue"), at(x.Payload, "sender")
	e := openEndpoint(t)
	e.gh.branches[fmt.Sprint(at(x.Payload, "repository")["default_branch"])] = head
	e.post(t, "whole", "issues", x.Payload)
	if s := e.one(); s.Title != issue["title"] || float64(s.IssueNumber) != issue["number"] || float64(s.RequesterID) != sender["id"] {
		t.Errorf("session %+v", s)
	}
	started := 0
	for name, v := range variants(t, x, true) {
		e.fresh(t)
		e.gh.branches[fmt.Sprint(at(x.Payload, "repository")["default_branch"])] = head
		e.post(t, name, "issues", v)
		all := e.sessions()
		if len(all) > 1 {
			t.Fatalf("%s: %d sessions", name, len(all))
		}
		for _, s := range all {
			started++
			if float64(s.IssueNumber) != issue["number"] || float64(s.RequesterID) != sender["id"] || s.InstallationID != 11 {
				t.Errorf("%s: session %+v", name, s)
			}
		}
		if needed := slices.Contains([]string{"action", "issue", "label", "sender", "installation", "repository", "issue.number", "sender.id", "label.name", "repository.id", "installation.id"}, name); needed && len(all) > 0 {
			t.Errorf("a session was started without %s", name)
		}
	}
	if started < 20 {
		t.Errorf("only %d variants started their session", started)
	}
}
