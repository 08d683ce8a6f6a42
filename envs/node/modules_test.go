package node_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"inspect/envs/node"
	"inspect/envs/wire"
)

// repository makes one more repository on the git host, with one file, that is
// read with a token of its own.
func (g *gitHost) repository(name, token string) (dir string) {
	g.t.Helper()
	dir = filepath.Join(filepath.Dir(filepath.Dir(g.repo)), name)
	must(g.t, os.MkdirAll(filepath.Dir(dir), 0o755))
	g.run(filepath.Dir(dir), "init", "--quiet", "--bare", "-b", "trunk", dir)
	g.run(dir, "config", "uploadpack.allowAnySHA1InWant", "true")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tokens == nil {
		g.tokens = map[string]string{}
	}
	g.tokens["/"+name] = token
	return dir
}

// commitTo adds a commit of one file to another repository.
func (g *gitHost) commitTo(dir, content string) string {
	g.t.Helper()
	other := &gitHost{t: g.t, repo: dir}
	return other.commit("trunk", map[string]string{"lib.txt": content})
}

// pin has the first repository name submodules at commits.
func (g *gitHost) pin(list string, at map[string]string) string {
	g.t.Helper()
	w := g.t.TempDir()
	g.run(w, "clone", "-q", "-b", "main", g.repo, ".")
	must(g.t, os.WriteFile(filepath.Join(w, ".gitmodules"), []byte(list), 0o644))
	g.run(w, "add", ".gitmodules")
	for path, commit := range at {
		g.run(w, "update-index", "--add", "--cacheinfo", "160000,"+commit+","+path)
	}
	g.run(w, "commit", "-qm", "submodules")
	g.run(w, "push", "-q", "origin", "HEAD:main")
	return g.run(w, "rev-parse", "HEAD")
}

// Submodules of the same host have mirrors of their own, each read with its own
// token or as everybody may; the others are left out, and no sandbox fetches any.
func TestSubmodules(t *testing.T) {
	w, log := newWorld(t), &overheard{}
	w.start(func(o *node.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
	const ofLib, ofDeep = "ghs_" + "libLIBlibLIBlibLIBlibLIBlibLIBlib0123456789", "ghs_" + "deepDEEPdeepDEEPdeepDEEPdeepDEEP0123456789"
	lib := w.git.repository("octocat/lib.git", ofLib)
	deep := w.git.repository("monalisa/deep.git", ofDeep)
	w.git.repository("hubot/secret.git", "ghs_nobody")
	open := w.git.repository("monalisa/open.git", "")
	one, two, three := w.git.commitTo(lib, "one"), w.git.commitTo(deep, "deep one"), w.git.commitTo(open, "open")
	list := `[submodule "lib"]
	path = third/lib
	url = ../lib.git
[submodule "deep one"]
	path = deep
	url = ` + w.git.srv.URL + `/monalisa/deep.git
[submodule "elsewhere"]
	path = elsewhere
	url = https://git.example/octocat/x.git
[submodule "secret"]
	path = secret
	url = ` + w.git.srv.URL + `/hubot/secret.git
[submodule "open"]
	path = open
	url = ../../monalisa/open.git
[submodule "climbs"]
	path = climbs
	url = ../../../../etc/passwd
[submodule "command"]
	path = command
	url = "ext::sh -c touch% /tmp/pwned"
`
	all := map[string]string{"third/lib": one, "deep": two, "open": three, "elsewhere": one, "secret": one, "climbs": one, "command": one}
	w.git.pin(list, all)
	w.plane.set(func(p *plane) {
		p.modules = map[string]string{w.git.srv.URL + "/octocat/lib.git": ofLib, w.git.srv.URL + "/monalisa/deep.git": ofDeep}
	})
	w.offer(w.refreshWork(1, "snap-1", "cat third/lib/lib.txt deep/lib.txt open/lib.txt >$HOME/seen"))
	const look = `cat third/lib/lib.txt deep/lib.txt open/lib.txt; git status --porcelain; ls elsewhere secret climbs command | grep -v ":$" | grep . ; grep -r ghs_ .git $HOME 2>/dev/null | head -1; git -C third/lib remote get-url origin | cut -d/ -f1-6`
	if got := w.look("s1", "snap-1", "cat $HOME/seen; "+look+"; true"); got != "onedeep oneopenonedeep oneopenfile:///run/inspect/modules" {
		t.Errorf("it has %q", got)
	}
	const words = `msg="a submodule cannot be read: list it under submodules in the operator's policy, if it is private" `
	if said := log.String(); strings.Count(said, words) != 2 || !strings.Contains(said, "submodule=secret url="+w.git.srv.URL+"/hubot/secret.git") || !strings.Contains(said, "submodule=climbs") {
		t.Errorf("the log says %s", said)
	}

	// A refresh that goes on from it has the submodules where the new commit has
	// them, and what was done to them is gone.
	all["third/lib"] = w.git.commitTo(lib, "two")
	w.git.pin(list, all)
	o := w.offer(w.from(2, "snap-2", "snap-1", "true"))
	if got := w.look("s1", "snap-2", look+"; true"); o.From != "snap-1" || got != "twodeep oneopenfile:///run/inspect/modules" {
		t.Errorf("%+v: it has %q", o, got)
	}
	// A fetch for a session brings what its commit needs.
	all["third/lib"] = w.git.commitTo(lib, "three")
	commit := w.git.pin(list, all)
	w.plane.give(wire.Work{ID: 3, Kind: wire.WorkFetch, Fetch: &wire.FetchWork{Remote: w.refreshWork(0, "").Refresh.Remote, Commit: commit}})
	if r := <-w.plane.results; !r.OK {
		t.Fatal(r.Words)
	}
	if got := w.look("s1", "snap-2", fmt.Sprintf("git fetch -q /run/inspect/mirror.git %s && git checkout -qf %[1]s && GIT_ALLOW_PROTOCOL=file git submodule --quiet update --force && cat third/lib/lib.txt", commit)); got != "three" {
		t.Errorf("the session has %q", got)
	}
	mirrors, err := os.ReadDir(filepath.Join(w.root, "modules", "4242"))
	must(t, err)
	if len(mirrors) != 3 {
		t.Errorf("mirrors: %v", mirrors)
	}
	for _, m := range mirrors {
		w.ownedByMirrors(filepath.Join(w.root, "modules", "4242", m.Name()))
	}
}

// A mirror of a submodule goes when nothing has asked for it for long.
func TestModulesAreCollected(t *testing.T) {
	w, _, clock := collecting(t)
	mirror := func(name string, unused time.Duration) string {
		path := filepath.Join(w.root, "modules", "4242", name)
		must(t, os.MkdirAll(path, 0o755))
		must(t, os.WriteFile(filepath.Join(path, "config"), nil, 0o644))
		must(t, os.Chtimes(path, clock.Now().Add(-unused), clock.Now().Add(-unused)))
		return path
	}
	old, young, other := mirror("77.git", 31*24*time.Hour), mirror("78.git", 29*24*time.Hour), mirror("notes.git", 99*24*time.Hour)
	w.roundsWithin(clock)
	for path, want := range map[string]bool{old: false, young: true, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}
