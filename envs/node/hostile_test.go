package node_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Whatever a repository says about submodules and large files: the daemon
// fetches the repository and, without its token, what others may read of the
// same host, and nothing else; and what it planted for others to run is not run
// by the daemon.
func TestNothingOfARepositorySaysWhatIsFetched(t *testing.T) {
	w := newWorld(t)
	outside := t.TempDir() // no sandbox sees it
	must(t, os.Chmod(outside, 0o777))
	var mu sync.Mutex
	var asked []string
	note := func(from string, next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			asked = append(asked, from+r.URL.Path)
			if token := r.Header.Get("Authorization"); (token != "") != strings.HasPrefix(r.URL.Path, "/octocat/hello.git/") {
				t.Errorf("%s is asked for with %q", r.URL.Path, token)
			}
			mu.Unlock()
			next.ServeHTTP(rw, r)
		})
	}
	evil := httptest.NewServer(note("evil", http.NotFoundHandler()))
	t.Cleanup(evil.Close)
	host := w.git.srv
	w.git.srv = httptest.NewServer(note("", host.Config.Handler))
	t.Cleanup(func() { w.git.srv.Close(); host.Close() })

	g := w.git
	dir := t.TempDir()
	g.run(dir, "clone", "--quiet", "-b", "main", g.repo, "c")
	dir = filepath.Join(dir, "c")
	for name, body := range map[string]string{
		".gitmodules": "[submodule \"a\"]\n\tpath = a\n\turl = ../other.git\n[submodule \"b\"]\n\tpath = b\n\turl = " + evil.URL + "/b.git\n" +
			"[submodule \"c\"]\n\tpath = c\n\turl = ext::sh -c touch% " + outside + "/ext\n[submodule \"d\"]\n\tpath = d\n\turl = file:///etc\n",
		".lfsconfig":     "[lfs]\n\turl = " + evil.URL + "/lfs\n[remote \"origin\"]\n\tlfsurl = " + evil.URL + "/lfs2\n",
		".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n*.txt filter=evil diff=evil\n",
		"large.bin":      "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 12345\n",
		"a.txt":          "x\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644))
	}
	g.run(dir, "-c", "filter.lfs.clean=cat", "add", "-A")
	for _, name := range []string{"a", "b", "c", "d"} {
		g.run(dir, "update-index", "--add", "--cacheinfo", "160000,"+g.head()+","+name)
	}
	g.run(dir, "commit", "--quiet", "-m", "hostile")
	g.run(dir, "push", "--quiet", "origin", "HEAD:refs/heads/main")

	w.start()
	run := "touch " + outside + "/ran"
	o := w.refreshed(1, "snap-1", "git config core.pager '"+run+"'", "git config alias.fetch '!"+run+"'", "git config uploadpack.packObjectsHook '"+run+"'",
		"git config core.sshCommand '"+run+"'", "git config submodule.recurse true", "git config remote.origin.uploadpack '"+run+"'",
		"mkdir -p .git/hooks && for h in post-checkout post-index-change reference-transaction; do printf '#!/bin/sh\\n"+run+"\\nexit 0\\n' >.git/hooks/$h; chmod +x .git/hooks/$h; done")
	if o.Commit != g.head() {
		t.Errorf("%+v", o)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) == 0 {
		t.Error("nothing was fetched at all")
	}
	for _, a := range asked {
		if !strings.HasPrefix(a, "/octocat/hello.git/") && !strings.HasPrefix(a, "/octocat/other.git/") || strings.Contains(a, "lfs") {
			t.Errorf("somebody asked for %s", a)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("ran outside of a sandbox: %v %v", left, err)
	}
}
