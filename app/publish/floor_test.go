package publish

import (
	"strings"
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// What was tightened since the session began counts, what was loosened does not.
func TestPublishAsksTheFloorAgain(t *testing.T) {
	w := newWorld(t)
	var floor policy.Floor
	set := func(body string) {
		t.Helper()
		var problems policy.Problems
		if floor, problems = policy.ParseFloor([]byte("version: 1\n" + body)); len(problems) > 0 {
			t.Fatal(problems)
		}
	}
	w.opts.Floor = func(id int64, name string) (policy.Bounds, bool) {
		if id != w.repo || name != repoName {
			t.Errorf("asked about %d %s", id, name)
		}
		return floor.For(id, name)
	}
	w.publisher()
	tip := w.fixed() // two files
	pinned := func(change func(*spec.Publish)) storage.Session {
		return w.session(tip, func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) {
			if change != nil {
				change(&sp.Publish)
			}
		})
	}

	set("defaults: {publish: {protected: [\"calc/**\"]}}\n")
	w.refused(pinned(nil), policy.ReasonProtectedPath, "calc/add.go", "calc/**")
	set("repositories: [{match: \"octocat/*\", publish: {max_files: 1}}]\n")
	w.refused(pinned(nil), policy.ReasonTooManyFiles, "at most 1")
	set("defaults: {publish: {max_bytes: 20B}}\n")
	w.refused(pinned(nil), policy.ReasonTooLarge, "at most 20")
	set("defaults: {publish: {max_files: 10000, max_bytes: 64MiB}}\n")
	w.refused(pinned(func(p *spec.Publish) { p.MaxFiles = 1 }), policy.ReasonTooManyFiles)
	w.refused(pinned(func(p *spec.Publish) { p.Protected = []string{"calc/**"} }), policy.ReasonProtectedPath)

	set("repositories: [{match: \"hubot/*\"}]\n")
	s := pinned(nil)
	if r := w.refused(s, ReasonNotAllowed, "does not allow it for this repository any more", "kept"); r.State != scheduler.Stopped {
		t.Errorf("state %s", r.State)
	}
	if len(w.pushes()) != 0 {
		t.Errorf("pushed: %+v", w.pushes())
	}
	if _, err := w.p.Keep(t.Context(), s); err != nil {
		t.Fatalf("the work is not kept: %v", err)
	}
	if patch := w.file(s.ID, FilePatch); !strings.Contains(patch, "return a + b") {
		t.Errorf("the kept patch: %q", patch)
	}
	set("repositories: [{match: \"octocat/hello\"}]\n")
	w.deliver(pinned(nil))
}
