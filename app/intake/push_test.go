package intake

import (
	"errors"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/app/policy"
)

func pushed(ref string) object {
	return object{
		"ref": ref, "before": otherHead, "after": head, "deleted": false, "installation": object{"id": 11},
		"repository": object{"id": repositoryID, "name": "hello", "full_name": "octocat/hello", "owner": user(octocat, "octocat"), "default_branch": "main"},
		"sender":     user(octocat, "octocat"),
	}
}

func TestPush(t *testing.T) {
	w := setup(t, nil)
	due := func() int {
		t.Helper()
		return w.number("SELECT count(*) FROM repositories WHERE look_at <= now() + interval '1 second'")
	}
	if d := w.deliver("push", body(pushed("refs/heads/main"))); d.Status != done || due() != 0 {
		t.Fatalf("%s: %s; %d looks at a repository that nobody uses", d.Status, d.Note, due())
	}
	w.deliver("issues", body(labeled()))
	w.one()
	if due() != 0 {
		t.Fatal("looked at again at once after a session's start")
	}
	gone := pushed("refs/heads/main")
	gone["deleted"] = true
	for _, o := range []object{pushed("refs/heads/topic"), pushed("refs/tags/main"), gone, pushed("")} {
		if d := w.deliver("push", body(o)); d.Status != ignored || due() != 0 {
			t.Errorf("%v: %s", o["ref"], d.Status)
		}
	}
	calls := len(w.gh.calls)
	for range 5 {
		w.deliver("push", body(pushed("refs/heads/main")))
	}
	if due() != 1 || len(w.gh.calls) != calls {
		t.Errorf("%d looks, GitHub was asked %q", due(), w.gh.calls[calls:])
	}
}

// look looks at the repository and returns the requests that took.
func (w *world) look() []string {
	w.t.Helper()
	before := len(w.gh.calls)
	if err := w.in.Look(w.t.Context(), repositoryID); err != nil {
		w.t.Fatal(err)
	}
	return w.gh.calls[before:]
}

func (w *world) headOf() (branch, sha, env, words string) {
	w.t.Helper()
	err := w.db.SQL().QueryRow("SELECT default_branch, head_sha, head_environment, head_words FROM repositories WHERE id = 22").Scan(&branch, &sha, &env, &words)
	if err != nil {
		w.t.Fatal(err)
	}
	return branch, sha, env, words
}

func TestLook(t *testing.T) {
	allowed := true
	w := setup(t, func(o *Options) {
		o.Floor = func(int64, string) (policy.Bounds, bool) { return nil, allowed }
	})
	w.deliver("issues", body(labeled()))
	session := w.one()
	if calls := w.look(); len(calls) != 2 {
		t.Errorf("a first look asked %q", calls)
	}
	if _, sha, env, words := w.headOf(); sha != head || env != session.EnvironmentID || words != "" {
		t.Errorf("head %s, environment %s, words %q", sha, env, words)
	}
	// One request as long as nothing moves.
	if calls := w.look(); len(calls) != 1 || !strings.HasPrefix(calls[0], "BranchHead") {
		t.Errorf("a look at an unchanged branch asked %q", calls)
	}
	// A push that changes the configuration has the new environment prepared.
	w.gh.branches["main"] = otherHead
	w.gh.files[".inspect.yml"] = strings.Replace(goodSpec, "go build ./...", "make", 1)
	w.look()
	_, sha, env, _ := w.headOf()
	if sha != otherHead || env == session.EnvironmentID || env == "" || w.number("SELECT count(*) FROM environments") != 2 {
		t.Errorf("head %s, environment %s", sha, env)
	}
	// What cannot be used is told, and the next look reads it again.
	w.gh.branches["main"], w.gh.files[".inspect.yml"] = head, "version: 2\n"
	w.look()
	if _, sha, env, words := w.headOf(); sha != head || env != "" || !strings.Contains(words, "expected the number 1") {
		t.Errorf("head %s, environment %s, words %q", sha, env, words)
	}
	w.gh.files[".inspect.yml"] = goodSpec
	w.look()
	if _, _, env, words := w.headOf(); env != session.EnvironmentID || words != "" {
		t.Errorf("environment %s, words %q", env, words)
	}
	allowed = false
	if calls := w.look(); len(calls) != 0 {
		t.Errorf("asked %q about a repository that may not use Inspect", calls)
	}
	if _, _, env, words := w.headOf(); env != "" || !strings.Contains(words, "does not let") {
		t.Errorf("environment %s, words %q", env, words)
	}
	allowed = true
	// Another branch is the default by now.
	w.gh.branches = map[string]string{"main": head}
	if _, err := w.db.SQL().Exec("UPDATE repositories SET default_branch = 'master'"); err != nil {
		t.Fatal(err)
	}
	w.look()
	if branch, _, env, _ := w.headOf(); branch != "main" || env != session.EnvironmentID {
		t.Errorf("branch %s, environment %s", branch, env)
	}
	w.gh.fail["BranchHead"] = github.ErrUnavailable
	if err := w.in.Look(t.Context(), repositoryID); !errors.Is(err, github.ErrUnavailable) {
		t.Errorf("with GitHub away: %v", err)
	}
}
