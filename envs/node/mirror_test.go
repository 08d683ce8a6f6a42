package node

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/envs/proc"
	"inspect/envs/wire"
)

func TestGitBase(t *testing.T) {
	for base, ok := range map[string]bool{
		"https://github.com": true, "https://git.internal.example:8443": true, "http://127.0.0.1:3000": true,
		"http://[::1]:3000": true, "http://localhost:80": true, "https://git.internal.example/prefix": true,
		"http://github.com": false, "http://10.0.0.1": false, "ssh://github.com": false, "": false,
		"file:///srv/git": true, "file:///srv/a%20b": true, "file://host/srv": false, "file:///": false, "file:srv": false, "file:///srv/../etc": false,
		"file:///srv/git/": false, "file:///srv?a=b": false, "/srv/git": false,
		"https://octocat:secret@github.com": false, "https://github.com/?a=b": false, "http://127.0.0.1.example.com": false,
	} {
		if _, err := parseGitBase(base); (err == nil) != ok {
			t.Errorf("%q: %v", base, err)
		}
	}
}

func TestOnlyTheConfiguredHostIsFetchedFrom(t *testing.T) {
	base, err := url.Parse("https://github.com/base")
	if err != nil {
		t.Fatal(err)
	}
	m := &mirrors{gitBase: base}
	good := wire.Remote{RepositoryID: 1, URL: "https://github.com/base/octocat/hello.git", Branch: "main"}
	for name, test := range map[string]struct {
		change func(*wire.Remote)
		ok     bool
	}{
		"as it is":        {func(*wire.Remote) {}, true},
		"port spelt out":  {func(r *wire.Remote) { r.URL = "https://github.com:443/base/octocat/hello.git" }, true},
		"case":            {func(r *wire.Remote) { r.URL = "https://GitHub.com/base/octocat/hello.git" }, true},
		"branch with /":   {func(r *wire.Remote) { r.Branch = "release/1.x_y-z" }, true},
		"other host":      {func(r *wire.Remote) { r.URL = "https://github.com.example.com/base/x" }, false},
		"other port":      {func(r *wire.Remote) { r.URL = "https://github.com:8443/base/x" }, false},
		"in clear":        {func(r *wire.Remote) { r.URL = "http://github.com/base/x" }, false},
		"file":            {func(r *wire.Remote) { r.URL = "file:///base/x" }, false},
		"path":            {func(r *wire.Remote) { r.URL = "/base/x" }, false},
		"helper":          {func(r *wire.Remote) { r.URL = "ext::sh -c true" }, false},
		"option":          {func(r *wire.Remote) { r.URL = "--upload-pack=true" }, false},
		"other user":      {func(r *wire.Remote) { r.URL = "https://x:y@github.com/base/x" }, false},
		"beside the base": {func(r *wire.Remote) { r.URL = "https://github.com/other/x" }, false},
		"above the base":  {func(r *wire.Remote) { r.URL = "https://github.com/base/../x" }, false},
		"no id":           {func(r *wire.Remote) { r.RepositoryID = 0 }, false},
		"empty branch":    {func(r *wire.Remote) { r.Branch = "" }, false},
		"branch with #":   {func(r *wire.Remote) { r.Branch = "feature/#12(x)" }, true},
		"branch of words": {func(r *wire.Remote) { r.Branch = "développement" }, true},
		"branch blank":    {func(r *wire.Remote) { r.Branch = "a b" }, false},
		"branch line":     {func(r *wire.Remote) { r.Branch = "a\nb" }, false},
		"branch zero":     {func(r *wire.Remote) { r.Branch = "a\x00b" }, false},
		"branch revision": {func(r *wire.Remote) { r.Branch = "a~1" }, false},
		"branch bytes":    {func(r *wire.Remote) { r.Branch = "a\xffb" }, false},
		"branch option":   {func(r *wire.Remote) { r.Branch = "-f" }, false},
		"branch refspec":  {func(r *wire.Remote) { r.Branch = "a:refs/heads/b" }, false},
		"branch pattern":  {func(r *wire.Remote) { r.Branch = "*" }, false},
		"branch ..":       {func(r *wire.Remote) { r.Branch = "a/../../config" }, false},
		"branch lock":     {func(r *wire.Remote) { r.Branch = "main.lock" }, false},
		"branch reflog":   {func(r *wire.Remote) { r.Branch = "main@{1}" }, false},
	} {
		r := good
		test.change(&r)
		if err := m.check(r); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A directory of this machine is fetched from only if the operator named it.
func TestOnlyTheConfiguredDirectoryIsFetchedFrom(t *testing.T) {
	base, err := parseGitBase("file:///srv/origins")
	if err != nil {
		t.Fatal(err)
	}
	m := &mirrors{gitBase: base, token: func(context.Context, wire.Remote) (wire.GitToken, error) {
		t.Error("a token was asked for")
		return wire.GitToken{}, nil
	}}
	for address, ok := range map[string]bool{
		"file:///srv/origins/1.git": true, "file:///srv/origins/a%20b.git": true,
		"file:///srv/origins": false, "file:///srv/origins2/1.git": false, "file:///srv/origins/../x": false, "file:///srv/origins/%2e%2e/x": false,
		"file://host/srv/origins/1.git": false, "/srv/origins/1.git": false, "https://github.com/srv/origins/1.git": false, "ext::sh -c true": false,
	} {
		if err := m.check(wire.Remote{RepositoryID: 1, URL: address, Branch: "main"}); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
	if token, err := m.tokenFor(t.Context(), wire.Remote{RepositoryID: 1}); token != "" || err != nil {
		t.Errorf("%q %v", token, err)
	}
	if env := strings.Join(gitSettings(base, ""), "\n"); strings.Contains(env, "Authorization") || !strings.Contains(env, "protocol.file.allow") {
		t.Errorf("%s", env)
	}
}

// A clone whose history is cut off gives a mirror whose history is.
func TestShallowRepositoryIsMirrored(t *testing.T) {
	dir := t.TempDir()
	git := func(at string, args ...string) string {
		t.Helper()
		res, err := proc.Run(t.Context(), proc.Command{
			Argv: append([]string{"git", "-c", "user.name=hubot", "-c", "user.email=hubot@localhost", "-c", "protocol.file.allow=always"}, args...), Dir: at,
			Env: []string{"PATH=" + proc.DefaultPath, "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"},
		})
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return strings.TrimSpace(string(res.Stdout))
	}
	src, origins := filepath.Join(dir, "src"), filepath.Join(dir, "origins")
	git(dir, "init", "-q", "-b", "main", src)
	for range 3 {
		git(src, "commit", "-q", "--allow-empty", "-m", "x")
	}
	git(dir, "clone", "-q", "--bare", "--depth", "1", "file://"+src, filepath.Join(origins, "7.git"))
	git(filepath.Join(origins, "7.git"), "config", "uploadpack.allowAnySHA1InWant", "true")
	head := git(src, "rev-parse", "HEAD")
	base, err := parseGitBase("file://" + origins)
	if err != nil {
		t.Fatal(err)
	}
	m := &mirrors{dir: filepath.Join(dir, "mirrors"), gitBase: base, clock: proc.System(), locks: map[int64]chan struct{}{}, ready: map[int64]bool{}}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.Fetch(t.Context(), wire.Remote{RepositoryID: 7, URL: "file://" + origins + "/7.git", Branch: "main"}, head); err != nil {
		t.Fatal(err)
	}
	if n := git(m.path(7), "rev-list", "--count", head); n != "1" {
		t.Errorf("the mirror has %s commits", n)
	}
	git(m.path(7), "fsck", "--connectivity-only")
}

// The token is in a value, for the git host only, and nowhere else.
func TestTokenIsForTheGitHostOnly(t *testing.T) {
	base, err := url.Parse("https://github.com/base")
	if err != nil {
		t.Fatal(err)
	}
	env := gitSettings(base, "sesame")
	found := 0
	for _, e := range env {
		if strings.Contains(e, "sesame") {
			t.Errorf("the token stands bare in %s", e)
		}
		if strings.Contains(e, "Authorization") {
			found++
			key := strings.Replace(strings.SplitN(e, "=", 2)[0], "VALUE", "KEY", 1)
			for _, k := range env {
				if strings.HasPrefix(k, key+"=") && k != key+"=http.https://github.com/.extraHeader" {
					t.Errorf("it is sent to %s", k)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("%d headers", found)
	}
}

func TestExcludesMatchJustTheName(t *testing.T) {
	got, err := excludes([]string{"a b", "x*[y]?", `back\slash`, "dir/"})
	if err != nil || got != "/a\\ b\n/x\\*\\[y\\]\\?\n/back\\\\slash\n/dir/\n" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := excludes([]string{"a\nb"}); err == nil {
		t.Error("a line break was taken")
	}
}

func TestAddressesOfSubmodules(t *testing.T) {
	base, err := url.Parse("https://github.com")
	if err != nil {
		t.Fatal(err)
	}
	m := &mirrors{gitBase: base}
	for raw, want := range map[string]string{
		"../lib.git":                         "https://github.com/octocat/lib.git",
		"../../monalisa/lib":                 "https://github.com/monalisa/lib",
		"./lib":                              "https://github.com/octocat/hello.git/lib",
		"https://github.com/hubot/x.git":     "https://github.com/hubot/x.git",
		"https://github.com/hubot/x/":        "https://github.com/hubot/x",
		"git@github.com:hubot/x.git":         "https://github.com/hubot/x.git",
		"ssh://git@github.com/hubot/x.git":   "https://github.com/hubot/x.git",
		"git@git.example:hubot/x.git":        "",
		"https://git.example/hubot/x.git":    "",
		"http://github.com/hubot/x.git":      "",
		"https://o:p@github.com/hubot/x.git": "",
		"git://github.com/hubot/x.git":       "",
		"/etc/passwd":                        "",
		"file:///etc/passwd":                 "",
		"ext::sh -c true":                    "",
		"--upload-pack=true":                 "",
		"https://github.com/../x":            "",
		"":                                   "",
	} {
		got, problem := m.moduleURL("https://github.com/octocat/hello.git", raw)
		if problem == "" {
			if err := m.check(module{url: got}.remote()); err != nil {
				problem = err.Error()
			}
		}
		if problem != "" {
			got = ""
		}
		if got != want {
			t.Errorf("%q: %q (%s), want %q", raw, got, problem, want)
		}
	}
}
