package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/scheduler"
)

func (w *world) names() string {
	w.t.Helper()
	var out string
	err := w.db.SQL().QueryRow("SELECT coalesce(string_agg(id || ' ' || owner || '/' || name, ', ' ORDER BY id), '') FROM repositories WHERE removed_at IS NULL").Scan(&out)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) number(query string) (n int) {
	w.t.Helper()
	if err := w.db.SQL().QueryRow(query).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func event(action string, more string) string {
	return fmt.Sprintf(`{"action":%q,"installation":{"id":11,"account":{"id":1,"login":"octocat"}}%s}`, action, more)
}

func TestInstallation(t *testing.T) {
	w := setup(t, nil)
	w.deliver("installation", event("created", `,"repositories":[{"id":1,"full_name":"octocat/r1"},{"id":2,"name":"r2","full_name":"octocat/r2"},null,{"id":null},{"id":3}]`))
	if got := w.names(); got != "1 octocat/r1, 2 octocat/r2" {
		t.Errorf("repositories %s", got)
	}
	if len(w.gh.calls) != 0 {
		t.Errorf("GitHub was asked %q though nothing is to be prepared", w.gh.calls)
	}
	w.deliver("installation_repositories", event("added", `,"repositories_added":[{"id":4,"full_name":"octocat/r4"}],"repositories_removed":null`))
	w.deliver("installation_repositories", event("removed", `,"repositories_removed":[{"id":1}]`))
	if got := w.names(); got != "2 octocat/r2, 4 octocat/r4" {
		t.Errorf("repositories %s", got)
	}
	w.deliver("installation_repositories", strings.Replace(event("removed", `,"repositories_removed":[{"id":2}]`), `"id":11`, `"id":12`, 1))
	if got := w.names(); got != "2 octocat/r2, 4 octocat/r4" {
		t.Errorf("another installation removed a repository: %s", got)
	}
	w.deliver("installation", event("suspend", "")) // days old: GitHub answers
	if w.number("SELECT count(*) FROM installations WHERE suspended_at IS NOT NULL") != 0 {
		t.Error("suspended, though it is not any more")
	}
	w.gh.fail["Repository"] = github.ErrSuspended
	w.deliver("installation", event("suspend", ""))
	delete(w.gh.fail, "Repository")
	if w.number("SELECT count(*) FROM installations WHERE suspended_at IS NOT NULL") != 1 {
		t.Error("not suspended")
	}
	w.deliver("installation", event("unsuspend", ""))
	if w.number("SELECT count(*) FROM installations WHERE suspended_at IS NOT NULL") != 0 {
		t.Error("still suspended")
	}
	w.deliver("installation", event("deleted", ""))
	if w.number("SELECT count(*) FROM installations WHERE id = 11 AND deleted_at IS NOT NULL") != 1 || w.names() != "" {
		t.Errorf("not deleted; repositories %s", w.names())
	}
	for _, odd := range []string{"null", "{}", `{"action":"created"}`, event("invented", "")} {
		if d := w.deliver("installation", odd); d.Status != "ignored" {
			t.Errorf("%s: %s", odd, d.Status)
		}
	}
}

func TestPrepareInAdvance(t *testing.T) {
	w := setup(t, func(o *Options) { o.Prepare = 3 })
	list := `,"repositories":[{"id":99,"full_name":"octocat/r99"},{"id":1,"full_name":"octocat/r1"},{"id":2,"full_name":"octocat/r2"},{"id":3,"full_name":"octocat/r3"}]`
	w.deliver("installation", event("created", list))
	if n := w.number("SELECT count(*) FROM environments"); n != 2 {
		t.Errorf("%d environments, want those of the two that are not archived, and none beyond the bound", n)
	}
}

func TestPrepareIsolatesRepositories(t *testing.T) {
	w := setup(t, func(o *Options) { o.Prepare = 10 })
	o := w.in.o
	broken := &fakeGitHub{fail: map[string]error{"BranchHead": github.ErrDenied}}
	o.GitHub = func(int64) GitHub { return router{w.gh, broken} }
	in, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.in = in
	list := `,"repositories":[{"id":1,"full_name":"octocat/r1"},{"id":2,"full_name":"octocat/r2"}]`
	if d := w.deliver("installation", event("created", list)); d.Status != "done" {
		t.Errorf("delivery %s: %s", d.Status, d.Note)
	}
	if n := w.number("SELECT count(*) FROM environments WHERE repository_id = 2"); n != 1 {
		t.Error("the second repository was not prepared because of the first")
	}
	broken.fail["BranchHead"] = github.ErrUnavailable
	guid := w.store("installation", event("created", list))
	if err := w.in.Deliver(t.Context(), guid); err == nil || errors.Is(err, scheduler.ErrPermanent) {
		t.Errorf("error %v, want one that passes", err)
	}
}

// router sends what concerns repository 1 elsewhere.
type router struct {
	*fakeGitHub
	first *fakeGitHub
}

func (r router) BranchHead(ctx context.Context, repo github.Repo, branch string) (string, error) {
	if repo.ID == 1 {
		return r.first.BranchHead(ctx, repo, branch)
	}
	return r.fakeGitHub.BranchHead(ctx, repo, branch)
}

func TestOtherDeliveries(t *testing.T) {
	w := setup(t, nil)
	if d := w.deliver("ping", `{"zen":"x","hook":null}`); d.Status != "done" {
		t.Errorf("ping: %s", d.Status)
	}
	if d := w.deliver("sponsorship", "{}"); d.Status != "unknown" {
		t.Errorf("unknown event: %s", d.Status)
	}
	if d := w.deliver("issues", `{"issue":5}`); d.Status != "undecodable" {
		t.Errorf("undecodable: %s", d.Status)
	}
	if err := w.in.Deliver(t.Context(), "no-such"); !errors.Is(err, scheduler.ErrPermanent) {
		t.Errorf("no such delivery: %v", err)
	}
	for _, e := range Events() {
		if d := w.deliver(e, "null"); d.Status == "unknown" || d.Status == "pending" {
			t.Errorf("%s: %s", e, d.Status)
		}
	}
}

// TestNullsEverywhere puts null in the place of every value, one at a time,
// and takes every key away.
func TestNullsEverywhere(t *testing.T) {
	w := setup(t, nil)
	for e, o := range map[string]object{"issues": labeled(), "issue_comment": commented("/inspect fix it"), "installation": installed(), "push": pushed("refs/heads/main")} {
		var visit func(in object)
		visit = func(in object) {
			for key, value := range in {
				for _, put := range []func(){func() { in[key] = nil }, func() { delete(in, key) }} {
					put()
					w.deliver(e, body(o))
					in[key] = value
				}
				if inner, ok := value.(object); ok {
					visit(inner)
				}
			}
		}
		visit(o)
	}
}

func installed() object {
	var o object
	if err := json.Unmarshal([]byte(event("created", `,"repositories":[{"id":1,"full_name":"octocat/r1"}],"sender":{"id":101,"login":"octocat","type":"User"}`)), &o); err != nil {
		panic(err)
	}
	return o
}

func FuzzPayload(f *testing.F) {
	for _, s := range payloadSeeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p payload
		if json.Unmarshal([]byte(text), &p) != nil {
			return
		}
		p.known()
		p.actor()
		p.Repository.clone().names()
		if p.Issue != nil && p.Label != nil && p.Repository != nil {
			if key := labelKey(p.Repository.ID, *p.Issue, *p.Label); len(key) > 500 {
				t.Fatalf("key of %d bytes", len(key))
			}
		}
		for _, r := range append(append(p.Repositories, p.RepositoriesAdded...), p.RepositoriesRemoved...) {
			r.names()
		}
	})
}

// clone stands in for a repository that is missing.
func (r *repository) clone() *repository {
	if r == nil {
		return &repository{}
	}
	return r
}
