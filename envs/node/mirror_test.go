package node

import (
	"net/url"
	"strings"
	"testing"

	"inspect/envs/wire"
)

func TestGitBase(t *testing.T) {
	for base, ok := range map[string]bool{
		"https://github.com": true, "https://git.internal.example:8443": true, "http://127.0.0.1:3000": true,
		"http://[::1]:3000": true, "http://localhost:80": true, "https://git.internal.example/prefix": true,
		"http://github.com": false, "http://10.0.0.1": false, "ssh://github.com": false, "file:///srv": false, "": false,
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
