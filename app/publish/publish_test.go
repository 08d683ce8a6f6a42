package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/app/policy"
	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// in is the same world in a subtest.
func (w *world) in(t *testing.T) *world {
	sub := *w
	sub.t = t
	return &sub
}

// deliver publishes and asks for a receipt.
func (w *world) deliver(s storage.Session) scheduler.Receipt {
	w.t.Helper()
	out, err := w.p.Publish(context.Background(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	if out.Receipt == nil {
		w.t.Fatalf("refused: %+v", out.Refusal)
	}
	return *out.Receipt
}

// refused publishes and asks for a refusal, or for the question that a person
// could answer.
func (w *world) refused(s storage.Session, reason string, words ...string) scheduler.Refusal {
	w.t.Helper()
	out, err := w.p.Publish(context.Background(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	if out.Ask != nil {
		out.Refusal = &scheduler.Refusal{State: scheduler.Failed, Reason: out.Ask.Asked.Items[0].Reason, Words: out.Ask.Words}
	}
	if out.Refusal == nil {
		w.t.Fatalf("delivered: %+v, should be refused for %s", out.Receipt, reason)
	}
	if out.Refusal.Reason != reason {
		w.t.Fatalf("refused for %s (%s), want %s", out.Refusal.Reason, out.Refusal.Words, reason)
	}
	for _, word := range words {
		if !strings.Contains(out.Refusal.Words, word) {
			w.t.Errorf("the words %q lack %q", out.Refusal.Words, word)
		}
	}
	return *out.Refusal
}

func TestPublishDelivers(t *testing.T) {
	w := newWorld(t)
	w.opts.Quarantine = newSandboxed(t)
	w.publisher()
	tip := w.fixed()
	s := w.session(tip, nil)
	r := w.deliver(s)

	branch := "inspect/" + fmt.Sprint(w.issue) + "-add-is-wrong-" + s.ID
	if r.Branch != branch || r.PullRequest == 0 || r.EventsHead != "abcd" || r.EventsCount != 17 || len(r.Withheld) != 0 {
		t.Errorf("%+v", r)
	}
	c := w.clone(branch)
	if got := c.must("", "git", "rev-parse", "HEAD"); got != r.HeadSHA {
		t.Errorf("the branch is at %s, the receipt says %s", got, r.HeadSHA)
	}
	if got := c.must("", "git", "rev-parse", "HEAD^{tree}"); got != r.Tree || got != w.work.must("", "git", "rev-parse", tip+"^{tree}") {
		t.Errorf("the pushed tree %s is not the verified one", got)
	}
	if got := c.must("", "git", "rev-parse", "HEAD^"); got != w.base {
		t.Errorf("the parent is %s, want the base", got)
	}
	bot, err := w.app.Bot(context.Background())
	w.ok(err)
	who := fmt.Sprintf("inspect[bot] <%d+inspect[bot]@users.noreply.github.com>", bot.ID)
	if got := c.must("", "git", "log", "-1", "--format=%an <%ae>|%cn <%ce>|%at"); got != who+"|"+who+fmt.Sprintf("|%d", s.CreatedAt.Unix()) {
		t.Errorf("the commit is by %s", got)
	}
	message := c.must("", "git", "log", "-1", "--format=%B")
	for _, want := range []string{
		"Add is wrong\n\nRefs #" + fmt.Sprint(w.issue), "* Make Add add", "  Fixes #" + zeroWidth + "1, cc @" + zeroWidth + "octocat",
		"  Co-authored-by: eve", "\n\nCo-authored-by: monalisa <" + fmt.Sprint(w.writer) + "+monalisa@users.noreply.github.com>\nInspect-Session: http://127.0.0.1:8321/sessions/" + s.ID,
	} {
		if !strings.Contains(message, want) {
			t.Errorf("the message lacks %q:\n%s", want, message)
		}
	}
	if got := c.must(message+"\n", "git", "interpret-trailers", "--parse"); strings.Contains(got, "eve") || !strings.Contains(got, "monalisa") {
		t.Errorf("the trailers are %q", got)
	}

	pr, found, err := w.app.Installation(w.install).FindPullRequest(context.Background(), w.githubRepo(), branch)
	if err != nil || !found || !pr.Draft || pr.State != "open" || pr.BaseRef != "main" || pr.HeadSHA != r.HeadSHA || pr.Number != r.PullRequest || pr.URL != r.URL {
		t.Errorf("%+v %v %v", pr, found, err)
	}
	row, err := w.db.Q().BranchByName(context.Background(), storage.BranchByNameParams{RepositoryID: w.repo, Name: branch})
	if err != nil || row.LastSha != r.HeadSHA || row.PushingSha != "" || row.SessionID != s.ID {
		t.Errorf("%+v %v", row, err)
	}
	now, err := w.db.Q().PublishSession(context.Background(), s.ID)
	if err != nil || now.Branch != branch || now.HeadSha != r.HeadSHA || int(now.PullRequest) != r.PullRequest || now.Version != s.Version {
		t.Errorf("%+v %v", now, err)
	}

	var m evidence.Manifest
	body := w.file(s.ID, FileManifest)
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	if m.Verdict.Kind != evidence.Passed || m.Change.Added != 2 || m.Change.Deleted != 1 || len(m.Change.Files) != 2 || m.Snapshot.Age != time.Hour ||
		m.Snapshot.Behind == nil || *m.Snapshot.Behind != 3 || !m.Snapshot.Stale || m.Snapshot.Why != "it is 3 commits behind" || m.Snapshot.Image != "dev@sha256:ab" || len(m.Snapshot.Lockfiles) != 1 ||
		m.Snapshot.Restore != 120*time.Millisecond || m.Sandbox.Tier != "bubblewrap 0.8.0" || m.Tree != r.Tree || m.ContextDigest != "c0ffee" {
		t.Errorf("%+v", m)
	}
	if patch := w.file(s.ID, FilePatch); !strings.Contains(patch, "+func Add(a, b int) int { return a + b }") {
		t.Errorf("the patch is %s", patch)
	}
	w.file(s.ID, FileBundle)
	w.file(s.ID, "verify-unit.out")

	// Requests: permission, rules, push (2), reading back, pull request, and
	// tokens apart. Nothing is asked twice.
	counts := w.server.Counts()
	bots := counts.Routes["apps/get-authenticated"] + counts.Routes["apps/list-installations"] + counts.Routes["users/get-by-username"]
	if n := counts.Total - counts.Tokens - bots; n > 8 || counts.Writes != 2 || counts.Unknown != 0 || counts.Warnings != 0 {
		t.Errorf("%d requests: %+v", n, counts)
	}
	if p := w.pushes(); len(p) != 1 || p[0].Ref != "refs/heads/"+branch || strings.Trim(p[0].Old, "0") != "" || p[0].Refused != "" {
		t.Errorf("pushes %+v", p)
	}

	// A repetition finds everything and writes nothing.
	w.server.ResetRecord()
	if again := w.deliver(s); fmt.Sprint(again) != fmt.Sprint(r) {
		t.Errorf("%+v, then %+v", r, again)
	}
	if c := w.server.Counts(); c.Writes != 0 {
		t.Errorf("the repetition wrote: %+v", c)
	}
	if strings.Contains(w.log.String(), "ghs_") {
		t.Error("a token is in the log")
	}
	left, err := os.ReadDir(w.opts.WorkDir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestPublishWithholdsWorkflows(t *testing.T) {
	w := newWorld(t)
	w.opts.Quarantine = newSandboxed(t)
	w.publisher()
	tip := w.changed(func(g gitDir) {
		g.write("calc/add.go", "package calc\n")
		g.write(".github/workflows/ci.yml", "on: pull_request\n")
		g.write(".github/workflows/new.yml", "on: push\n")
	})
	s := w.session(tip, nil)
	r := w.deliver(s)
	if strings.Join(r.Withheld, " ") != ".github/workflows/ci.yml .github/workflows/new.yml" {
		t.Errorf("withheld %q", r.Withheld)
	}
	c := w.clone(r.Branch)
	if got := c.must("", "git", "diff", "--name-only", w.base, "HEAD"); got != "calc/add.go" {
		t.Errorf("pushed %q", got)
	}
	if got := c.must("", "git", "rev-parse", "HEAD^{tree}"); got != r.Tree {
		t.Errorf("the receipt's tree is %s, the pushed one %s", r.Tree, got)
	}
	patch := w.file(s.ID, FileWithheld)
	if !strings.Contains(patch, "on: pull_request") || !strings.Contains(patch, "new.yml") || strings.Contains(patch, "calc") {
		t.Errorf("the withheld patch is %s", patch)
	}
	c.must(patch, "git", "apply", "--index", "-")
	if got := c.must("", "git", "write-tree"); got != w.work.must("", "git", "rev-parse", tip+"^{tree}") {
		t.Error("pushed tree and withheld patch do not make the verified tree")
	}
}

// Trees that git lets pass and policy does not.
func TestPublishRefusesChanges(t *testing.T) {
	w := newWorld(t)
	blob := w.work.blob("x\n")
	baseTree := func(extra ...entry) string {
		var all []entry
		for _, l := range strings.Split(w.work.must("", "git", "ls-tree", w.base), "\n") {
			f := strings.Fields(l)
			all = append(all, entry{strings.TrimPrefix(f[0], "0"), f[3], f[2]})
		}
		return w.work.tree(sorted(append(all, extra...))...)
	}
	of := func(extra ...entry) string { return w.work.commitTree(baseTree(extra...), w.base) }
	secret := "ghs_" + strings.Repeat("a1B2", 9)
	sub := w.work.tree(entry{"100644", "x", blob})
	for name, c := range map[string]struct {
		tip    string
		reason string
		words  []string
	}{
		"link out":                {of(entry{"120000", "link", w.work.blob("../../../etc/passwd")}), policy.ReasonLink, []string{"out of the repository"}},
		"absolute link":           {of(entry{"120000", "link", w.work.blob("/etc/passwd")}), policy.ReasonLink, nil},
		"submodule":               {of(entry{"160000", "lib", w.base}), policy.ReasonSubmodule, nil},
		"newline":                 {of(entry{"100644", "a\nb", blob}), policy.ReasonFileName, []string{`"a\nb"`}},
		"bidi":                    {of(entry{"100644", "a\u202eb", blob}), policy.ReasonFileName, nil},
		"backslash":               {of(entry{"100644", `..\evil`, blob}), policy.ReasonFileName, nil},
		"collision with the base": {of(entry{"100644", "readme.MD", blob}), policy.ReasonNameCollision, []string{"README.md"}},
		"collision of folders":    {of(entry{"40000", "Calc", sub}), policy.ReasonNameCollision, nil},
		"collision of its own":    {of(entry{"100644", "new", blob}, entry{"100644", "NEW", blob}), policy.ReasonNameCollision, nil},
		"protected":               {w.changed(func(g gitDir) { g.write(".github/dependabot.yml", "x") }), policy.ReasonProtectedPath, nil},
		"workflows only":          {w.changed(func(g gitDir) { g.write(".github/workflows/ci.yml", "x") }), policy.ReasonWithheldOnly, nil},
		"secret":                  {w.changed(func(g gitDir) { g.write("c.txt", "a\nb\ntoken="+secret+"\n") }), policy.ReasonSecretFound, []string{`"c.txt" line 3`}},
		"secret hidden by attributes": {w.changed(func(g gitDir) {
			g.write(".gitattributes", "*.txt -diff binary\n")
			g.write("c.txt", "a\x00b\n"+secret+"\n")
		}), policy.ReasonSecretFound, []string{`"c.txt" line 2`}},
		"too large": {w.changed(func(g gitDir) { g.write("big", strings.Repeat("0123456789abcdef\n", 300_000)) }), policy.ReasonTooLarge, nil},
		"too many": {w.changed(func(g gitDir) {
			for i := range 101 {
				g.write(fmt.Sprintf("many/%d", i), "x")
			}
		}), policy.ReasonTooManyFiles, nil},
		"nothing":            {w.work.commitTree(w.work.must("", "git", "rev-parse", w.base+"^{tree}"), w.base), policy.ReasonNoChange, nil},
		"deep":               {of(entry{"40000", "d", deepTree(w.work, blob, 80)}), policy.ReasonFileName, []string{"deep"}},
		"changed and undone": {undone(w), policy.ReasonNoChange, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			s := w.session(c.tip, nil)
			r := w.refused(s, c.reason, c.words...)
			if want := scheduler.Failed; c.reason == policy.ReasonNoChange {
				if r.State != scheduler.NoChange {
					t.Errorf("state %s", r.State)
				}
			} else if r.State != want {
				t.Errorf("state %s", r.State)
			}
			if strings.Contains(r.Words, secret) {
				t.Errorf("the secret is in the words: %s", r.Words)
			}
		})
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
	if c := w.server.Counts(); c.Writes != 0 {
		t.Errorf("written: %+v", c)
	}
}

func sorted(es []entry) []entry {
	key := func(e entry) string {
		if e.mode == "40000" {
			return e.name + "/"
		}
		return e.name
	}
	slices.SortFunc(es, func(a, b entry) int { return strings.Compare(key(a), key(b)) })
	return es
}

func deepTree(g gitDir, blob string, depth int) string {
	tree := g.tree(entry{"100644", "x", blob})
	for range depth {
		tree = g.tree(entry{"40000", "d", tree})
	}
	return tree
}

func undone(w *world) string {
	tip := w.fixed()
	return w.work.commitTree(w.work.must("", "git", "rev-parse", w.base+"^{tree}"), tip)
}

func TestPublishRedactsMessages(t *testing.T) {
	w := newWorld(t)
	secret := "ghs_" + strings.Repeat("a1B2", 9)
	w.work.write("a", "x")
	s := w.session(w.work.commit("use it, fixes #7"), func(s *storage.Session, _ *spec.Spec, _ *wire.Outcome) {
		s.Title, s.Request = "Fixes #7: "+secret+" @octocat", "/inspect stop\nCloses #7 "+secret
	})
	r := w.deliver(s)
	message := w.clone(r.Branch).must("", "git", "log", "-1", "--format=%B")
	if strings.Contains(message, secret) || strings.Contains(message, "#7") || strings.Contains(message, "@octocat") {
		t.Errorf("the message is %s", message)
	}
	for _, q := range w.server.Requests() {
		if strings.Contains(q.Body, secret) || strings.Contains(q.Body, "#7") || strings.Contains(q.Body, "\\n/inspect") {
			t.Errorf("sent: %s", q.Body)
		}
	}
}

// A secret that only the library knows blocks publishing, wherever it stands,
// and is in nothing that is kept or told.
func TestPublishRefusesSecrets(t *testing.T) {
	w := newWorld(t)
	w.opts.Quarantine = newSandboxed(t)
	w.publisher()
	secret := "sk_" + "live_" + "4eC39HqLyjWDarjtT1zdp7dcAbCd"
	part := secret[:20]
	for name, c := range map[string]struct {
		tip   string
		title string
		words []string
		patch string // what is left of the patch
	}{
		"file": {tip: w.changed(func(g gitDir) { g.write("conf/a.txt", "one\ntwo\nkey = \""+secret+"\" # gitleaks:allow\nfour\n") }),
			words: []string{`"conf/a.txt" line 3`, "stripe"}, patch: "+two\n+[redacted]\n+four"},
		"lock file":           {tip: w.changed(func(g gitDir) { g.write("package-lock.json", "{\"k\": \""+secret+"\"}\n") }), words: []string{`"package-lock.json" line 1`}},
		"workflow, set aside": {tip: w.changed(func(g gitDir) { g.write("a", "x\n"); g.write(".github/workflows/x.yml", "k: "+secret+"\n") }), words: []string{`".github/workflows/x.yml" line 1`}},
		"marked as binary":    {tip: w.changed(func(g gitDir) { g.write(".gitattributes", "* -diff binary\n"); g.write("b", "\x00k='"+secret+"'\n") }), words: []string{`"b" line 1`}},
		"name":                {tip: w.changed(func(g gitDir) { g.write(secret+";/a", "x\n") }), words: []string{"the name of file 1"}},
		"message of a commit": {tip: func() string {
			w.changed(func(g gitDir) { g.write("a", "x\n") })
			w.work.write("a", "y\n")
			return w.work.commit("more\n\nwith " + secret)
		}(), words: []string{"the message of commit 2 line 3"}},
		"title of the request": {tip: w.fixed(), title: "Use " + secret + " here", words: []string{"the commit's message line 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.server.ResetRecord()
			s := w.session(c.tip, func(s *storage.Session, _ *spec.Spec, _ *wire.Outcome) {
				if c.title != "" {
					s.Title = c.title
				}
			})
			r := w.refused(s, policy.ReasonSecretFound, c.words...)
			if strings.Contains(r.Words, part) {
				t.Errorf("the words are %s", r.Words)
			}
			if p := w.pushes(); len(p) > 0 || w.server.Counts().Writes > 0 {
				t.Errorf("pushed %+v", p)
			}
			w.exec(`UPDATE sessions SET state = 'failed' WHERE id = $1`, s.ID)
			row, err := w.db.Q().PublishSession(context.Background(), s.ID)
			w.ok(err)
			if _, err := w.p.Keep(context.Background(), row); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{FileManifest, FilePatch} {
				if body := w.file(s.ID, file); strings.Contains(body, part) || file == FilePatch && !strings.Contains(body, c.patch) {
					t.Errorf("%s: %s", file, body)
				}
			}
			_, err = w.db.Q().EvidenceFile(context.Background(), storage.EvidenceFileParams{SessionID: s.ID, Name: FileBundle})
			if listed := err == nil; listed != (c.title != "") {
				t.Errorf("the bundle is listed: %v", listed)
			}
			if strings.Contains(w.log.String(), part) {
				t.Error("the log shows it")
			}
		})
	}
}

// One commit is pushed. What an earlier one of the agent's held and a later one
// took away again never leaves.
func TestPublishLeavesHistoryBehind(t *testing.T) {
	w := newWorld(t)
	w.changed(func(g gitDir) { g.write("a", "token ghs_"+strings.Repeat("a1B2", 9)+"\n") })
	gone := w.work.must("", "git", "rev-parse", "HEAD:a")
	before := w.work.must("", "git", "rev-parse", "HEAD")
	w.work.write("a", "nothing\n")
	r := w.deliver(w.session(w.work.commit("better"), nil))
	c := w.clone(r.Branch)
	for _, object := range []string{gone, before} {
		if _, err := c.run("", "git", "fetch", "-q", "origin", object); err == nil {
			t.Errorf("the remote has %s", object)
		}
		if _, err := c.run("", "git", "cat-file", "-e", object); err == nil {
			t.Errorf("the clone has %s", object)
		}
	}
}

func TestPublishWantsVerification(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed()
	failing := `{"Action":"run","Package":"p","Test":"TestX"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestX"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n"
	for name, c := range map[string]struct {
		change func(*storage.Session, *spec.Spec, *wire.Outcome)
		reason string
	}{
		"a test failed": {func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Results[0].Stdout, o.Results[0].ExitCode = w.put(s.ID, []byte(failing)), 1
		}, scheduler.ReasonVerifyFailed},
		"no test ran": {func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Results[0].Stdout, o.Base = w.put(s.ID, nil), &wire.Column{}
		}, scheduler.ReasonNothingVerified},
		"the report was never uploaded": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Results[0].Stdout, o.Base = strings.Repeat("ab", 32), &wire.Column{}
		}, scheduler.ReasonNothingVerified},
		"no command": {func(_ *storage.Session, sp *spec.Spec, o *wire.Outcome) {
			sp.Verify, o.Results = nil, nil
		}, scheduler.ReasonNothingVerified},
		"fewer results than commands": {func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) {
			sp.Verify = append(sp.Verify, spec.Verify{Name: "lint", Run: "make lint", Report: "exit"})
		}, ReasonNotVerified},
		"another command": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Results[0].Run = "true"
		}, ReasonNotVerified},
		"another report": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Results[0].Report = "exit"
		}, ReasonNotVerified},
		"another outcome": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Kind = wire.OutcomeFailed
		}, ReasonNotVerified},
		"another tip": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Tip = w.base
		}, ReasonNotVerified},
		"another tree": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Tree = w.base
		}, ReasonNotVerified},
		"no bundle": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Bundle = strings.Repeat("cd", 32)
		}, scheduler.ReasonNoBundle},
		"no bundle named": {func(_ *storage.Session, _ *spec.Spec, o *wire.Outcome) {
			o.Bundle = ""
		}, scheduler.ReasonNoBundle},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.refused(w.session(tip, c.change), c.reason)
		})
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
}

func TestPublishAsksForPermissionAgain(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed()
	w.ok(w.server.SetPermission(repoName, "monalisa", "read"))
	if r := w.refused(w.session(tip, nil), ReasonDenied, "monalisa"); r.State != scheduler.Stopped {
		t.Errorf("state %s", r.State)
	}
	w.ok(w.server.SetPermission(repoName, "monalisa", "write"))
	// The login belongs to another account by now.
	w.refused(w.session(tip, func(s *storage.Session, _ *spec.Spec, _ *wire.Outcome) { s.RequesterID++ }), ReasonDenied)
	// GitHub does not answer: not denied, not delivered.
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Path: "/repos/*/*/collaborators/**", Count: -1})
	w.ok(err)
	s := w.session(tip, nil)
	if out, err := w.p.Publish(context.Background(), s); err == nil {
		t.Errorf("%+v", out)
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
	w.server.ClearFaults()
	w.deliver(s)
}

func TestPublishHeedsRules(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed()
	for name, c := range map[string]struct {
		rule  githubd.Rule
		words string
	}{
		"creation": {githubd.Rule{Branch: "inspect/**", Type: "creation"}, "create"},
		"name":     {githubd.Rule{Branch: "**", Type: "branch_name_pattern", Parameters: map[string]any{"operator": "starts_with", "pattern": "feature/"}}, "feature/"},
		"message":  {githubd.Rule{Branch: "**", Type: "commit_message_pattern", Parameters: map[string]any{"operator": "regex", "pattern": `^JIRA-\d+`}}, "JIRA"},
		"address":  {githubd.Rule{Branch: "**", Type: "committer_email_pattern", Parameters: map[string]any{"operator": "ends_with", "pattern": "@example.com"}}, "@example.com"},
		"negated":  {githubd.Rule{Branch: "**", Type: "branch_name_pattern", Parameters: map[string]any{"operator": "contains", "pattern": "inspect", "negate": true}}, "not contain"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.ok(w.server.ClearRules(repoName))
			w.ok(w.server.AddRule(repoName, c.rule))
			w.refused(w.session(tip, nil), ReasonRules, c.words)
		})
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
	// Plans without rulesets answer 403: the push decides.
	w.ok(w.server.ClearRules(repoName))
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Path: "/repos/*/*/rules/**", Status: 403, Message: "Upgrade to make this repository public to enable this feature.", Count: -1})
	w.ok(err)
	w.deliver(w.session(tip, nil))
	// A protection that no list shows: the push is refused in the remote's words.
	w.ok(w.server.Protect(repoName, "inspect/**"))
	w.refused(w.session(tip, nil), ReasonPushRefused, "inspect/")
}

func TestPublishNeverToBaseOrDefault(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed()
	s := w.session(tip, nil)
	name := policy.BranchName("inspect", w.issue, s.Title, s.ID)
	w.exec(`UPDATE repositories SET default_branch = $1`, name)
	w.refused(s, ReasonRules, "default")
	w.exec(`UPDATE repositories SET default_branch = 'main'`)
	w.exec(`UPDATE sessions SET branch = 'main' WHERE id = $1`, s.ID)
	w.refused(s, policy.ReasonBranchName)
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
}

func TestNewClearsWhatWasLeft(t *testing.T) {
	w := newWorld(t)
	w.ok(os.MkdirAll(filepath.Join(w.opts.WorkDir, workPrefix+"0123", "q"), 0o755))
	w.ok(os.MkdirAll(filepath.Join(w.opts.WorkDir, "other"), 0o755))
	w.publisher()
	left, err := os.ReadDir(w.opts.WorkDir)
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("%v %v", left, err)
	}
}
