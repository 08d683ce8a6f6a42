package node_test

import (
	"testing"

	"inspect/envs/node/dial"
	"inspect/envs/wire"
)

// Python leaves caches beside every source it runs. Where a repository ignores
// them not, they become a part of nobody's change all the same.
func TestCachesOfPythonNeverBecomeAChange(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.refreshed(1, "snap-1")
	grant := w.grant("s1", wire.PurposeWork, "snap-1")
	_, err := dial.Restore(t.Context(), w.socket, grant)
	must(t, err)
	c, _, err := dialSandbox(t.Context(), w.socket, grant)
	must(t, err)
	defer c.Close()
	if got := sh(t, c, "mkdir -p __pycache__ sub/__pycache__ && touch __pycache__/a.pyc sub/__pycache__/b.pyc sub/b.py && git add -A && git status --porcelain"); got != "A  sub/b.py" {
		t.Errorf("git status: %q", got)
	}
}
