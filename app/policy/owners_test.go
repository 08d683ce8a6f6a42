package policy

import (
	"slices"
	"strings"
	"testing"
)

// The examples are those of GitHub's documentation, and what it says does not work.
func TestOwners(t *testing.T) {
	for name, c := range map[string]struct {
		file   string
		path   string
		people string
		teams  string
	}{
		"everything":                    {"*  @global-owner1 @global-owner2", "a/b/c", "global-owner1 global-owner2", ""},
		"the last line that matches":    {"* @octocat\n*.js @hubot #This is an inline comment.", "src/a.js", "hubot", ""},
		"and not the first":             {"*.js @hubot\n* @octocat", "src/a.js", "octocat", ""},
		"by address":                    {"* @octocat\n*.go docs@example.com", "a.go", "", ""},
		"a team":                        {"*.txt @octo-org/octocats", "x/y.txt", "", "octo-org/octocats"},
		"a folder at the root":          {"/build/logs/ @doctocat", "build/logs/a/b", "doctocat", ""},
		"and only there":                {"/build/logs/ @doctocat", "x/build/logs/a", "", ""},
		"files of a folder":             {"docs/* @octocat", "docs/getting-started.md", "octocat", ""},
		"and none below":                {"docs/* @octocat", "docs/build-app/troubleshooting.md", "", ""},
		"a folder anywhere":             {"apps/ @octocat", "x/apps/y/z", "octocat", ""},
		"which is no file":              {"apps/ @octocat", "x/apps", "", ""},
		"/docs/":                        {"/docs/ @doctocat", "docs/x/y", "doctocat", ""},
		"two owners":                    {"/scripts/ @doctocat @octocat", "scripts/x", "doctocat octocat", ""},
		"**/logs":                       {"**/logs @octocat", "deeply/nested/logs/x", "octocat", ""},
		"without owners":                {"/apps/ @octocat\n/apps/github", "apps/github/x", "", ""},
		"beside that":                   {"/apps/ @octocat\n/apps/github", "apps/x", "octocat", ""},
		"a path with a folder's name":   {"/apps/github @doctocat", "apps/github", "doctocat", ""},
		"inner stars":                   {"a/**/z @octocat", "a/b/c/z", "octocat", ""},
		"a space":                       {`a\ b/ @octocat`, "a b/c", "octocat", ""},
		"a comment":                     {"# * @octocat", "a", "", ""},
		"an indented line":              {"\t * @octocat", "a", "octocat", ""},
		"CRLF and a mark":               {"\ufeff* @octocat\r\n*.x @hubot\r\n", "a.x", "hubot", ""},
		"negation is passed over":       {"* @octocat\n!*.js @hubot", "a.js", "octocat", ""},
		"ranges are passed over":        {"* @octocat\n*.[jt]s @hubot", "a.js", "octocat", ""},
		"an escaped # is passed over":   {"* @octocat\n\\#x @hubot", "#x", "octocat", ""},
		"an owner that is none":         {"* @octocat\n*.js hubot", "a.js", "octocat", ""},
		"one good and one bad":          {"* @octocat\n*.js @hubot @-", "a.js", "octocat", ""},
		"a section of another forge":    {"* @octocat\n[Docs] @hubot", "Docs", "octocat", ""},
		"braces are themselves":         {"* @octocat\n{a,b} @hubot", "a", "octocat", ""},
		"case counts":                   {"README @octocat", "readme", "", ""},
		"the root is nobody's":          {"/ @octocat", "a", "", ""},
		"each once, whatever its case":  {"* @Octocat @octocat @o/T @O/t", "a", "Octocat", "o/T"},
		"nothing":                       {"", "a", "", ""},
		"a markdown file in any folder": {"*.md @octocat", "x/y/z.md", "octocat", ""},
		"what is below a file's match":  {"foo @octocat", "a/foo/b", "octocat", ""},
		"a file of 3 MB is not read":    {"* @octocat\n" + strings.Repeat("#", MaxOwners), "a", "", ""},
	} {
		people, teams := Owners(c.file, []string{c.path})
		if strings.Join(people, " ") != c.people || strings.Join(teams, " ") != c.teams {
			t.Errorf("%s: %q is owned by %q and %q, want %q and %q", name, c.path, people, teams, c.people, c.teams)
		}
	}
	people, teams := Owners("*.go @octocat @acme/go\n*.md @hubot @octocat\n", []string{"b.md", "a.go", "c.txt"})
	if !slices.Equal(people, []string{"hubot", "octocat"}) || !slices.Equal(teams, []string{"acme/go"}) {
		t.Errorf("%q %q", people, teams)
	}
	hostile := strings.Repeat("**/**/a*a*a*a*b @octocat\n", 1_000)
	if people, _ := Owners(hostile, slices.Repeat([]string{strings.Repeat("a", 200)}, 100)); len(people) != 0 {
		t.Errorf("%q", people)
	}
}

func FuzzOwners(f *testing.F) {
	f.Add("* @octocat\n/a\\ b/ @o/t # x\n", "a b/c")
	f.Fuzz(func(t *testing.T, file, path string) {
		people, teams := Owners(file, []string{path})
		for _, o := range people {
			if !ownerPerson.MatchString("@" + o) {
				t.Errorf("%q is no login", o)
			}
		}
		for _, o := range teams {
			if !ownerTeam.MatchString("@" + o) {
				t.Errorf("%q is no team", o)
			}
		}
	})
}
