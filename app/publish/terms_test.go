package publish

import (
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/storage"
)

// config puts the repository's configuration on the default branch.
func (w *world) config(body string) {
	w.t.Helper()
	_, err := w.server.PushCommit(repoName, "octocat", "main", "configure", map[string]githubd.File{spec.FileName: {Body: body, Mode: 0o100644}})
	w.ok(err)
}

// What the repository forbids since the session began counts at the push; what it
// does not forbid any more stays forbidden.
func TestPublishReadsTheConfigurationAnew(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed() // two files
	pinned := func(change func(*spec.Publish)) storage.Session {
		s := w.session(tip, func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) {
			if change != nil {
				change(&sp.Publish)
			}
		})
		w.clock.Advance(freshFor)
		return s
	}
	w.config("version: 1\npublish: {protected: [\"calc/**\"]}\n")
	w.refused(pinned(nil), policy.ReasonProtectedPath, "calc/add.go", "calc/**")
	w.config("version: 1\npublish: {max_files: 1}\n")
	w.refused(pinned(nil), policy.ReasonTooManyFiles, "at most 1")
	w.config("version: 1\npublish: {max_files: 50}\n")
	w.refused(pinned(func(p *spec.Publish) { p.MaxFiles = 1 }), policy.ReasonTooManyFiles, "at most 1")
	w.refused(pinned(func(p *spec.Publish) { p.Protected = []string{"calc/**"} }), policy.ReasonProtectedPath)
	w.config("version: 1\npublish: {max_files: many}\n")
	w.refused(pinned(nil), ReasonTerms, "max_files", "the work is kept")
	if p := w.pushes(); len(p) != 0 {
		t.Fatalf("%+v", p)
	}
	w.config("version: 1\n")
	w.deliver(pinned(nil))

	// What was read a moment ago counts, until a push is told of.
	w.config("version: 1\npublish: {max_files: 1}\n")
	w.deliver(w.session(tip, nil))
	s := w.session(tip, nil)
	w.exec(`INSERT INTO deliveries (guid, event, action, repository_id, payload, received_at) VALUES ('g', 'push', '', $1, '', $2)`, w.repo, w.clock.Now())
	w.refused(s, policy.ReasonTooManyFiles, "at most 1")
}

// Four eyes that the repository asks for after somebody allowed a result make
// that void.
func TestFourEyesSinceTheApproval(t *testing.T) {
	w := newWorld(t)
	w.config("version: 1\n")
	s := w.session(w.protectedResult(), nil)
	w.clock.Advance(freshFor)
	w.approve(s, w.asked(s), "monalisa")
	w.config("version: 1\npublish: {four_eyes: true}\n")
	w.asked(s, "What monalisa allowed does not count any more", "the rules have changed")
}

// What the operator requires of the default branch is looked at once more when
// something is about to be pushed.
func TestProtectionIsRequiredAtThePush(t *testing.T) {
	w := newWorld(t)
	floor, problems := policy.ParseFloor([]byte("version: 1\ndefaults: {require_protection: true}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	w.opts.Floor = floor.For
	w.publisher()
	review := githubd.Rule{Branch: "main", Type: "pull_request", Parameters: map[string]any{
		"required_approving_review_count": 1, "dismiss_stale_reviews_on_push": true, "require_code_owner_review": false,
		"require_last_push_approval": false, "required_review_thread_resolution": false,
	}}
	w.ok(w.server.ClearRules(repoName))
	s := w.session(w.fixed(), nil)
	w.refused(s, ReasonUnprotected, "require_protection", "the work is kept")
	if p := w.pushes(); len(p) != 0 {
		t.Fatalf("%+v", p)
	}
	w.ok(w.server.AddRule(repoName, review))
	w.deliver(w.session(w.fixed(), nil))
}
