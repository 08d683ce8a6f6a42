package publish

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// based has sessions start from a base with these files.
func (w *world) based(files map[string]githubd.File) {
	w.t.Helper()
	sha, err := w.server.PushCommit(repoName, "octocat", "main", "Files", files)
	w.ok(err)
	dir, err := w.server.GitDir(repoName)
	w.ok(err)
	for _, at := range []gitDir{w.work, {w.t, w.mirror}} { // as the node fetches it
		at.must("", "git", "fetch", "-q", dir, "refs/heads/main")
	}
	gitDir{w.t, w.mirror}.must("", "git", "update-ref", "refs/inspect/commits/"+sha, sha)
	w.base = sha
	w.server.ResetRecord()
}

// grant gives the App permissions beside those that it has.
func (w *world) grant(more map[string]string) {
	w.t.Helper()
	all := map[string]string{"metadata": "read", "checks": "write", "contents": "write", "issues": "write", "pull_requests": "write"}
	for k, v := range more {
		all[k] = v
	}
	w.ok(w.server.SetInstallationPermissions(w.install, all))
}

func (w *world) reviewersOf(number int) (people, teams []string) {
	w.t.Helper()
	people, teams, err := w.app.Installation(w.install).Reviewers(w.t.Context(), w.githubRepo(), number)
	w.ok(err)
	return people, teams
}

func (w *world) asks() (n int) {
	for _, route := range w.sent() {
		if route == "pulls/request-reviewers" {
			n++
		}
	}
	return n
}

func TestCodeOwnersAreAsked(t *testing.T) {
	w := newWorld(t)
	for login, level := range map[string]string{"hubot": "write", "octo-1": "write", "reader": ""} {
		if login != "hubot" {
			_, err := w.server.AddUser(login, "User")
			w.ok(err)
		}
		if level != "" {
			w.ok(w.server.SetPermission(repoName, login, level))
		}
	}
	w.ok(w.server.AddTeam(repoName, "core"))
	check := func(name string, r scheduler.Receipt, asks int, people, teams, unasked []string) {
		t.Helper()
		gotPeople, gotTeams := w.reviewersOf(r.PullRequest)
		slices.Sort(gotPeople)
		if !slices.Equal(gotPeople, people) || !slices.Equal(gotTeams, teams) {
			t.Errorf("%s: asked %q and %q, want %q and %q", name, gotPeople, gotTeams, people, teams)
		}
		if len(r.Reviewers) != len(people)+len(teams) || len(r.Unasked) != len(unasked) {
			t.Errorf("%s: receipt %q %q", name, r.Reviewers, r.Unasked)
		}
		for i, u := range unasked {
			if i < len(r.Unasked) && !strings.Contains(r.Unasked[i], u) {
				t.Errorf("%s: %q lacks %q", name, r.Unasked[i], u)
			}
		}
		if n := w.asks(); n != asks {
			t.Errorf("%s: %d requests, want %d", name, n, asks)
		}
	}
	publish := func(owners string, files map[string]githubd.File) scheduler.Receipt {
		if files == nil {
			files = map[string]githubd.File{}
		}
		files[".github/CODEOWNERS"] = githubd.File{Body: owners}
		w.based(files)
		return w.deliver(w.session(w.fixed(), nil))
	}

	// The first place counts, and what is not changed is nobody's affair.
	r := publish("* @octocat\ncalc/ @hubot @octo-1 @HUBOT\nREADME.md @monalisa\n", map[string]githubd.File{"CODEOWNERS": {Body: "* @monalisa\n"}})
	check("people", r, 1, []string{"hubot", "octo-1"}, nil, nil)

	// One who cannot be asked keeps nobody else from being asked.
	r = publish("calc/ @hubot @reader @nobody-at-all @octo-1 docs@example.com\n", nil)
	check("without access", r, 7, []string{"hubot", "octo-1"}, nil, []string{"reader: Reviews may only be requested", "nobody-at-all: "})

	// Teams are asked where the App may know them.
	r = publish("calc/ @hubot @octocat/core @elsewhere/team\n", nil)
	check("teams, not granted", r, 1, []string{"hubot"}, nil, []string{"elsewhere/team: it is a team of another", "octocat/core: teams are asked where"})
	w.grant(map[string]string{"members": "read"})
	r = publish("calc/ @hubot @octocat/core\n", map[string]githubd.File{"x": {Body: "1"}})
	check("teams", r, 1, []string{"hubot"}, []string{"core"}, nil)

	// Nobody owns it, or nobody is to be asked: nothing is sent.
	check("nobody", publish("README.md @hubot\n", nil), 0, nil, nil, nil)
	w.based(map[string]githubd.File{".github/CODEOWNERS": {Body: "* @hubot\n"}})
	r = w.deliver(w.session(w.fixed(), func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) { sp.Publish.Reviewers = spec.ReviewersNone }))
	check("none", r, 0, nil, nil, nil)
}

// Nobody is asked twice, and GitHub's silence does not fail a session.
func TestCodeOwnersAreAskedOnce(t *testing.T) {
	w := newWorld(t)
	w.ok(w.server.SetPermission(repoName, "hubot", "write"))
	w.based(map[string]githubd.File{"docs/CODEOWNERS": {Body: "* @hubot\n"}})
	path := "/repos/*/*/pulls/*/requested_reviewers"
	for name, c := range map[string]struct {
		fault         githubd.Fault
		asks          int // that GitHub read
		asked, silent bool
	}{
		"done, the answer lost": {githubd.Fault{Kind: githubd.FaultLost, Method: "POST", Path: path}, 1, true, false},
		"cut before":            {githubd.Fault{Kind: githubd.FaultCut, Method: "POST", Path: path}, 1, true, false},
		"502 for ever":          {githubd.Fault{Kind: githubd.FaultStatus, Method: "POST", Path: path, Status: 502, Count: -1}, 2, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.server.ResetRecord()
			s := w.session(w.fixed(), nil)
			_, err := w.server.AddFault(c.fault)
			w.ok(err)
			if out, err := w.p.Publish(t.Context(), s); err == nil {
				t.Fatalf("%+v", out)
			}
			w.publisher()
			r := w.deliver(s)
			w.server.ClearFaults()
			people, _ := w.reviewersOf(r.PullRequest)
			if n := w.asks(); n != c.asks || slices.Contains(people, "hubot") != c.asked || slices.Contains(r.Reviewers, "hubot") != c.asked || (len(r.Unasked) > 0) != c.silent {
				t.Errorf("%d requests, asked %q, receipt %+v", n, people, r)
			}
			w.server.ResetRecord()
			w.deliver(s)
			if n := w.asks(); n != 0 {
				t.Errorf("asked %d times more", n)
			}
		})
	}
}

func TestPullRequestTemplate(t *testing.T) {
	w := newWorld(t)
	body := func(s storage.Session) string {
		w.t.Helper()
		r := w.deliver(s)
		i, err := w.server.Issue(repoName, r.PullRequest)
		w.ok(err)
		return i.Body
	}
	w.based(map[string]githubd.File{
		"docs/pull_request_template.md":          {Body: "from docs\n"},
		"Pull_Request_Template.MD":               {Body: "from the root\n"},
		".github/PULL_REQUEST_TEMPLATE.md":       {Body: "## What\r\n\r\n<!-- Say it. -->\r\n- [ ] Tests, asks @octocat/core\r\n\r\nFixes #1, closes https://github.com/octocat/hello/issues/7\r\n"},
		".github/PULL_REQUEST_TEMPLATE/other.md": {Body: "other\n"},
	})
	got := body(w.session(w.fixed(), nil))
	want := "\nInspect never merges. A person decides about this pull request.\n\n---\n\n## What\n\n<!-- Say it. -->\n- [ ] Tests, asks @" + zeroWidth + "octocat/core\n\n" +
		"Fixes #" + zeroWidth + "1, closes https://github.com/octocat/hello/issues/" + zeroWidth + "7"
	if !strings.HasSuffix(got, want) {
		t.Errorf("the text ends in %q", got[max(0, len(got)-len(want)-100):])
	}

	// A result cannot bring its own, and a link leads nowhere.
	w.based(map[string]githubd.File{
		".github/PULL_REQUEST_TEMPLATE.md": {Deleted: true}, "Pull_Request_Template.MD": {Body: "/etc/passwd", Mode: 0o120000},
	})
	if got := body(w.session(w.fixed(), nil)); !strings.HasSuffix(got, "\n---\n\nfrom docs") {
		t.Errorf("the text is %s", got)
	}

	// A session on another branch has the default branch's.
	w.exec(`UPDATE snapshots SET commit_sha = $1`, w.base)
	s := w.onPull("feature/stacked", scheduler.DeliverPull, nil)
	if got := body(s); !strings.HasSuffix(got, "\n---\n\nfrom docs") {
		t.Errorf("the text is %s", got)
	}
}

func TestHostileTemplates(t *testing.T) {
	const ours = "ours\n"
	for name, template := range map[string]string{
		"nothing": "", "blank": " \n\t\n",
	} {
		if got := withTemplate(redact.New(), ours, template); got != ours {
			t.Errorf("%s: %q", name, got)
		}
	}
	huge := withTemplate(redact.New(), ours, strings.Repeat("```\n<details>\n<!--\n", 1<<16))
	if !strings.HasPrefix(huge, ours+"\n---\n") || len(huge) > len(ours)+maxTemplate+20 {
		t.Errorf("%d bytes", len(huge))
	}
	long := strings.Repeat("x", github.MaxComment-300)
	if got := withTemplate(redact.New(), long, strings.Repeat("y", 1000)); len(got) > github.MaxComment || !strings.HasPrefix(got, long) {
		t.Errorf("%d bytes", len(got))
	}
	token := "ghs_" + strings.Repeat("a1B2", 9)
	got := withTemplate(redact.New(), ours, "closes GH-7, octocat/hello#8 @octocat \u202e\x1b[2J"+token+" <!-- inspect:session=abc --> \xff")
	for _, bad := range []string{token, "@octocat", "#8", "GH-7", "\u202e", "\x1b", "inspect:session", "\xff"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is left in %q", bad, got)
		}
	}
}

// What a session changes in CODEOWNERS waits for a person, and does not say who
// reviews it.
func TestOwnersAreThoseOfTheBase(t *testing.T) {
	w := newWorld(t)
	w.ok(w.server.SetPermission(repoName, "hubot", "write"))
	w.based(map[string]githubd.File{"CODEOWNERS": {Body: "* @hubot\n"}})
	s := w.session(w.changed(func(g gitDir) {
		w.ok(os.WriteFile(filepath.Join(g.path, "CODEOWNERS"), []byte("* @monalisa\n"), 0o600))
	}), nil)
	out, err := w.p.Publish(t.Context(), s)
	w.ok(err)
	if out.Ask == nil || out.Ask.Asked.Items[0].Reason != policy.ReasonProtectedPath {
		t.Fatalf("nobody is asked: %+v", out)
	}
	w.approve(s, *out.Ask, "octocat")
	r := w.deliver(s)
	if people, _ := w.reviewersOf(r.PullRequest); fmt.Sprint(people) != "[hubot]" {
		t.Errorf("asked %q", people)
	}
}
