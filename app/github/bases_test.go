package github

import (
	"net/http"
	"strings"
	"testing"
)

func TestBases(t *testing.T) {
	for _, c := range []struct{ api, git, wantAPI, wantGraphQL, wantGit, wantUpload string }{
		{"https://api.github.com", "", "https://api.github.com/", "https://api.github.com/graphql", "https://github.com", "https://uploads.github.com/"},
		{"https://api.github.com/", "", "https://api.github.com/", "https://api.github.com/graphql", "https://github.com", "https://uploads.github.com/"},
		{"https://ghe.example.com/api/v3", "", "https://ghe.example.com/api/v3/", "https://ghe.example.com/api/graphql", "https://ghe.example.com", "https://ghe.example.com/api/uploads/"},
		{"https://ghe.example.com:8443/api/v3/", "", "https://ghe.example.com:8443/api/v3/", "https://ghe.example.com:8443/api/graphql", "https://ghe.example.com:8443", "https://ghe.example.com:8443/api/uploads/"},
		{"https://api.ghe.example.com/api/v3", "", "https://api.ghe.example.com/api/v3/", "https://api.ghe.example.com/api/graphql", "https://api.ghe.example.com", "https://api.ghe.example.com/api/uploads/"},
		{"https://api.acme.ghe.com", "", "https://api.acme.ghe.com/", "https://api.acme.ghe.com/graphql", "https://acme.ghe.com", "https://uploads.acme.ghe.com/"},
		{"http://127.0.0.1:3000", "http://127.0.0.1:3000/git/", "http://127.0.0.1:3000/", "http://127.0.0.1:3000/graphql", "http://127.0.0.1:3000/git", "http://127.0.0.1:3000/"},
		{"http://[::1]:3000", "", "http://[::1]:3000/", "http://[::1]:3000/graphql", "http://[::1]:3000", "http://[::1]:3000/"},
	} {
		b, err := DeriveBases(c.api, c.git)
		if err != nil || b.API != c.wantAPI || b.GraphQL != c.wantGraphQL || b.Git != c.wantGit || b.Upload != c.wantUpload {
			t.Errorf("%s: %+v, %v", c.api, b, err)
		}
	}
	for _, bad := range []string{
		"", "api.github.com", "https://github.com", "https://acme.ghe.com", "http://api.github.com", "ftp://x",
		"https://u:p@api.github.com", "https://api.github.com/?x", "https://ghe.example.com/api", "http://10.0.0.1",
	} {
		if b, err := DeriveBases(bad, ""); err == nil {
			t.Errorf("%q was accepted as %+v", bad, b)
		}
	}
}

func TestEnterpriseAddressesAreUsed(t *testing.T) {
	sha := strings.Repeat("c", 40)
	h := newHub(t, func(w http.ResponseWriter, r *http.Request, _ string) {
		reply(w, 200, map[string]any{"ref": "refs/heads/main", "object": map[string]any{"sha": sha}})
	})
	a := h.app(t, func(o *Options) { o.APIBase += "/api/v3" })
	if _, err := a.Installation(99).BranchHead(ctxFor(t), hello, "main"); err != nil {
		t.Fatal(err)
	}
	for _, r := range h.all() {
		if !strings.HasPrefix(r.path, "/api/v3/") {
			t.Errorf("asked %s", r.path)
		}
	}
	if got := a.CloneURL(hello); got != h.URL+"/octocat/hello.git" {
		t.Errorf("clone address %s", got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no id":       {Key: testKey()},
		"no key":      {AppID: 1},
		"no PEM":      {AppID: 1, Key: []byte("secret")},
		"bad address": {AppID: 1, Key: testKey(), APIBase: "github.com"},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the key", name)
		}
	}
}
