package scheduler

import (
	"context"
	"slices"
	"strings"
	"testing"

	"inspect/envs/wire"
	"inspect/storage"
)

// A .gitmodules opens another repository of the installation only where the
// operator lists it; what else it names is read as everybody may read it.
func TestTokensOfSubmodules(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	w.sql(`INSERT INTO repositories (id, installation_id, owner, name, removed_at) VALUES
		(44, 7, 'octocat', 'Lib-A', NULL), (45, 8, 'octocat', 'lib-b', NULL), (46, 7, 'octocat', 'lib-c', now()), (47, 8, 'octocat', 'lib-d', NULL), (48, 7, 'octocat', 'lib-d', NULL)`)
	s := w.scheduler()
	ask := func(repository int64, url string) (string, error) {
		tok, err := s.NodeGitToken(ctx, "n1", wire.GitTokenRequest{RepositoryID: repository, URL: url})
		return tok.Token, err
	}
	const libA = "https://git.example/octocat/Lib-A.git"
	w.create(s)
	work := w.work(s, wire.WorkRefresh)
	if tok, err := ask(42, libA); tok != "" || err != nil {
		t.Errorf("without a policy: %q, %v", tok, err)
	}
	w.o.SubmoduleAllowed = func(r, module storage.Repository) bool {
		if r.ID != 42 {
			t.Errorf("asked about what submodules of %d may be", r.ID)
		}
		return strings.HasPrefix(strings.ToLower(module.Name), "lib-")
	}
	s = w.scheduler()
	for url, want := range map[string]string{
		libA:                                            "ghs_44 for 42",
		"https://git.example/octocat/lib-a":             "ghs_44 for 42",
		"https://GIT.example/OctoCat/LIB-A.git":         "ghs_44 for 42",
		"https://git.example/octocat/lib-d":             "ghs_48 for 42", // there is one of the name elsewhere too
		"https://git.example/octocat/other":             "",              // not listed
		"https://git.example/octocat/lib-b":             "",              // of another installation
		"https://git.example/octocat/lib-c":             "",              // removed
		"https://git.example/octocat/lib-x":             "",              // nobody knows it
		"https://other.example/octocat/Lib-A":           "",
		"https://git.example.other/octocat/Lib-A":       "",
		"https://git.example:8443/octocat/Lib-A":        "",
		"http://git.example/octocat/Lib-A":              "",
		"https://git.example/more/octocat/Lib-A":        "",
		"https://git.example//octocat/Lib-A":            "",
		"https://git.example/octocat/../octocat/Lib-A":  "",
		"https://git.example/octocat/Lib-A/":            "",
		"https://git.example/octocat/Lib-A.git.git":     "",
		"https://git.example/octocat/Lib%2DA":           "",
		"https://git.example/octocat/Lib-A?x=1":         "",
		"https://git.example/octocat/Lib-A#x":           "",
		"https://monalisa:pw@git.example/octocat/Lib-A": "",
		"https://git.example/octocat/Lib-A\x00.git":     "",
		"https://git.example/octocat/Lib-A\n":           "",
		"git@git.example:octocat/Lib-A.git":             "",
		"octocat/Lib-A":                                 "",
		"/octocat/Lib-A":                                "",
		"file:///octocat/Lib-A":                         "",
		"ext::sh -c /octocat/Lib-A":                     "",
	} {
		if tok, err := ask(42, url); tok != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", url, tok, err, want)
		}
	}
	if tok, err := ask(43, libA); tok != "" || codeOf(err) != codeNotFound {
		t.Errorf("for a repository nobody works on: %q, %v", tok, err)
	}
	w.sql("UPDATE repositories SET removed_at = now() WHERE id = 42")
	if tok, err := ask(42, libA); tok != "" || err != nil {
		t.Errorf("for a repository that was removed: %q, %v", tok, err)
	}
	w.sql("UPDATE repositories SET removed_at = NULL WHERE id = 42")
	if err := s.Offer(ctx, "n1", offerOf(work)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.effects.tokensDone, []int64{42}) {
		t.Errorf("the tokens asked for by %v are taken away", w.effects.tokensDone)
	}
	if tok, err := ask(42, libA); tok != "" || codeOf(err) != codeNotFound {
		t.Errorf("without work in hand: %q, %v", tok, err)
	}
}
