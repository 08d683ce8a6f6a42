package publish

import (
	"os"
	"strings"
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// A package.json that is too large to be read, or that is a link, is held back
// with words; what nobody can compare breaks nothing.
func TestBuildFilesThatCannotBeCompared(t *testing.T) {
	w := newWorld(t)
	withNpm := func(s *storage.Session, sp *spec.Spec, o *wire.Outcome) {
		sp.Verify[0].Run = "npm test"
		o.Results[0].Run = "npm test"
	}
	large := w.changed(func(g gitDir) {
		g.write("package.json", `{"scripts":{"test":"true"},"x":"`+strings.Repeat("a", maxScript)+`"}`)
	})
	w.refused(w.session(large, withNpm), policy.ReasonReplaced, `"package.json" (it could not be compared: it is no plain file, or larger than is read)`)
	linked := w.changed(func(g gitDir) {
		g.write("other.json", `{"scripts":{"test":"true"}}`)
		w.ok(os.Symlink("other.json", g.path+"/package.json"))
	})
	w.refused(w.session(linked, withNpm), policy.ReasonReplaced, `"package.json" (it could not`)
	quiet := w.changed(func(g gitDir) { g.write("pyproject.toml", "[project]\nname = 'x'\n") })
	w.deliver(w.session(quiet, withNpm))
}
