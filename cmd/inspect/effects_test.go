package main

import (
	"context"
	"net/http"
	"testing"

	"inspect/app/github"
	"inspect/fixtures/githubd"
	"inspect/fixtures/githubd/githubdtest"
	"inspect/storage/storagetest"
)

// The tokens that work on a repository asked for, those of its submodules among
// them, end with it, and those that other work asked for do not.
func TestTokensOfSubmodulesEndWithTheWork(t *testing.T) {
	ctx := context.Background()
	gh := githubdtest.New(t, githubd.Options{AppID: 4711})
	db := storagetest.New(t)
	ids := map[string]int64{}
	for _, name := range []string{"hello", "lib"} {
		var err error
		if ids[name], err = gh.AddRepository("octocat", name, githubd.Seed{Private: true, Files: map[string]string{"a": "a\n"}}); err != nil {
			t.Fatal(err)
		}
	}
	inst, err := gh.Install("octocat", "octocat/hello", "octocat/lib")
	if err != nil {
		t.Fatal(err)
	}
	for name, id := range ids {
		if _, err := db.SQL().Exec("INSERT INTO repositories (id, installation_id, owner, name) VALUES ($1, $2, 'octocat', $3)", id, inst, name); err != nil {
			t.Fatal(err)
		}
	}
	app, err := github.New(github.Options{AppID: 4711, Key: gh.KeyPEM(), APIBase: gh.URL()})
	if err != nil {
		t.Fatal(err)
	}
	fx := &effects{app: app, db: db}
	give := func(repository, of string) string {
		t.Helper()
		tok, err := fx.GitToken(ctx, ids[repository], ids[of])
		if err != nil {
			t.Fatal(err)
		}
		return tok.Token
	}
	reads := func(token, repository string) bool {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "GET", gh.CloneURL("octocat/"+repository)+"/info/refs?service=git-upload-pack", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("x-access-token", token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}
	hello, module, lib := give("hello", "hello"), give("lib", "hello"), give("lib", "lib")
	if !reads(hello, "hello") || !reads(module, "lib") || reads(hello, "lib") || reads(module, "hello") || module != give("lib", "hello") {
		t.Error("a token is not for one repository, or not kept")
	}
	fx.GitTokenDone(ctx, ids["hello"])
	if reads(hello, "hello") || reads(module, "lib") || !reads(lib, "lib") {
		t.Errorf("after the work: hello %v, its submodule %v; of other work %v", reads(hello, "hello"), reads(module, "lib"), reads(lib, "lib"))
	}
	if again := give("lib", "hello"); again == module || !reads(again, "lib") {
		t.Error("a token that was revoked is given again")
	}
}
