package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// wantSigned has a ruleset want signed commits on all branches.
func (w *world) wantSigned() {
	w.t.Helper()
	w.ok(w.server.AddRule(repoName, githubd.Rule{Branch: "**", Type: "required_signatures"}))
}

// branches are all there are but the default.
func (w *world) branches() []string {
	w.t.Helper()
	refs, err := w.server.Refs(repoName)
	w.ok(err)
	var out []string
	for ref := range refs {
		if name, is := strings.CutPrefix(ref, "refs/heads/"); is && name != "main" {
			out = append(out, name)
		}
	}
	return out
}

// sent are the routes of the App's requests.
func (w *world) sent() []string {
	var out []string
	for _, r := range w.server.Requests() {
		if r.FromApp() && !r.IsToken() {
			out = append(out, r.Route)
		}
	}
	return out
}

// isSigned asks GitHub whether the head of a receipt is what was verified, signed
// and by the App.
func (w *world) isSigned(r scheduler.Receipt, tip string) gitDir {
	w.t.Helper()
	c := w.clone(r.Branch)
	if got := c.must("", "git", "rev-parse", "HEAD"); got != r.HeadSHA {
		w.t.Errorf("the branch is at %s, the receipt says %s", got, r.HeadSHA)
	}
	if got, want := c.must("", "git", "rev-parse", "HEAD^{tree}"), w.work.must("", "git", "rev-parse", tip+"^{tree}"); got != r.Tree || got != want {
		w.t.Errorf("the tree is %s, the receipt says %s, verified was %s", got, r.Tree, want)
	}
	if got := c.must("", "git", "log", "-1", "--format=%an|%cn"); got != "inspect[bot]|GitHub" {
		w.t.Errorf("the commit is by %s", got)
	}
	if !strings.Contains(c.must("", "git", "cat-file", "commit", "HEAD"), "\ngpgsig ") {
		w.t.Error("the commit has no signature")
	}
	return c
}

// all has one of each kind of change.
func all(g gitDir) {
	g.t.Helper()
	g.write("bin/run.sh", "#!/bin/sh\necho \"é\u2028 <&>\\\"\r\n")
	ok := func(err error) {
		if err != nil {
			g.t.Fatal(err)
		}
	}
	ok(os.Chmod(filepath.Join(g.path, "bin/run.sh"), 0o755))
	ok(os.Chmod(filepath.Join(g.path, "calc/add.go"), 0o755)) // only its mode changes
	ok(os.Symlink("bin/run.sh", filepath.Join(g.path, "link")))
	ok(os.WriteFile(filepath.Join(g.path, "bytes.bin"), []byte{0, 1, 2, 0xff, '\n'}, 0o600))
	ok(os.WriteFile(filepath.Join(g.path, "latin1.txt"), []byte("gr\xfc\xdfe\n"), 0o600))
	g.write("empty", "")
	g.write("no-newline", "x")
	g.must("", "git", "mv", "README.md", "MOVED.md")
}

// Where rules want signatures GitHub makes the commit and signs it: every mode,
// link and byte is as it was verified, before any branch has it.
func TestSignedWhereItIsRequired(t *testing.T) {
	w := newWorld(t)
	w.wantSigned()
	var record []string
	w.appOptions.Record = func(_ context.Context, _ string, r github.Write) error {
		record = append(record, r.Phase+" "+r.What+" "+r.Key)
		return nil
	}
	w.app = w.restarted()
	_, err := w.app.Bot(t.Context())
	w.ok(err)
	w.publisher()
	tip := w.changed(all)
	w.server.ResetRecord()
	s := w.session(tip, nil)
	r := w.deliver(s)
	c := w.isSigned(r, tip)
	if got := c.must("", "git", "rev-parse", "HEAD^"); got != w.base {
		t.Errorf("the parent is %s, want the base", got)
	}
	if got := c.must("", "git", "ls-files", "-s"); !strings.Contains(got, "100755") || !strings.Contains(got, "120000") {
		t.Errorf("files:\n%s", got)
	}
	want := []string{
		"repos/get-collaborator-permission-level", "repos/get-branch-rules", "git/create-blob", "git/create-blob", "git/create-tree", "git/create-commit",
		"git/create-ref", "git/get-ref", "pulls/create",
	}
	if got := w.sent(); !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
	pr, _, err := w.app.Installation(w.install).FindPullRequest(t.Context(), w.githubRepo(), r.Branch)
	w.ok(err)
	text, err := w.server.Issue(repoName, pr.Number)
	if err != nil || !strings.Contains(text.Body, "| commit | `"+r.HeadSHA+"` |\n| signature | by GitHub") {
		t.Errorf("%v %s", err, text.Body)
	}
	w.server.ResetRecord()
	w.publisher()
	if again := w.deliver(s); again.HeadSHA != r.HeadSHA || again.PullRequest != r.PullRequest {
		t.Errorf("again: %+v, first %+v", again, r)
	}
	for _, route := range w.sent() {
		if strings.HasPrefix(route, "git/create") || strings.HasPrefix(route, "git/update") || route == "pulls/create" {
			t.Errorf("done twice: %s", route)
		}
	}
	key := s.ID + "/1/"
	if want := []string{
		"asked file " + key + "commit", "answered file " + key + "commit", "asked file " + key + "commit", "answered file " + key + "commit",
		"asked tree " + key + "commit", "answered tree " + key + "commit", "asked commit " + key + "commit", "answered commit " + key + "commit",
		"asked branch " + key + "push", "answered branch " + key + "push", "asked pull request " + s.ID + "/0/pull", "answered pull request " + s.ID + "/0/pull",
	}; !slices.Equal(record, want) {
		t.Errorf("recorded %q, want %q", record, want)
	}
}

func TestSignedBySetting(t *testing.T) {
	w := newWorld(t)
	signed := func(how string) func(*storage.Session, *spec.Spec, *wire.Outcome) {
		return func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) { sp.Publish.Signed = how }
	}
	t.Run("auto pushes what nobody wants signed", func(t *testing.T) {
		w := w.in(t)
		w.server.ResetRecord()
		w.deliver(w.session(w.fixed(), signed("")))
		want := []string{"repos/get-collaborator-permission-level", "repos/get-branch-rules", "git/receive-pack info", "git/receive-pack", "git/get-ref", "pulls/create"}
		if got := w.sent(); !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
	t.Run("always", func(t *testing.T) {
		w := w.in(t)
		tip := w.fixed()
		w.isSigned(w.deliver(w.session(tip, signed(spec.SignedAlways))), tip)
	})
	t.Run("older branch protection", func(t *testing.T) {
		w := w.in(t)
		w.ok(w.server.RequireSignatures(repoName, "inspect/**"))
		tip := w.fixed()
		w.isSigned(w.deliver(w.session(tip, signed(""))), tip)
		before := w.branches()
		w.refused(w.session(w.fixed(), signed(spec.SignedNever)), ReasonPushRefused, "must have verified signatures")
		if len(w.branches()) != len(before) {
			t.Errorf("branches %q", w.branches())
		}
		w.ok(w.server.ClearRules(repoName))
	})
	t.Run("never", func(t *testing.T) {
		w := w.in(t)
		w.wantSigned()
		before := w.branches()
		w.refused(w.session(w.fixed(), signed(spec.SignedNever)), ReasonRules, "wants signed commits", "publish.signed is never")
		if len(w.branches()) != len(before) {
			t.Errorf("branches %q", w.branches())
		}
	})
	t.Run("GitHub does not sign", func(t *testing.T) {
		w := w.in(t)
		w.server.SetSigning(false)
		defer w.server.SetSigning(true)
		before := w.branches()
		s := w.session(w.fixed(), signed(spec.SignedAlways))
		w.refused(s, ReasonUnsigned, "did not sign", "unsigned", "kept in the evidence")
		w.refused(s, ReasonUnsigned, "did not sign")
		if len(w.branches()) != len(before) {
			t.Errorf("branches %q", w.branches())
		}
	})
	t.Run("text that would be altered elsewhere", func(t *testing.T) {
		w := w.in(t)
		tip := w.changed(func(g gitDir) {
			g.write("notes.txt", "The address is http://user@example.com/?a=1\n@octocat closes #1\n")
		})
		w.isSigned(w.deliver(w.session(tip, signed(spec.SignedAlways))), tip)
	})
}

// What goes wrong between the steps leaves no second branch, commit or pull
// request, and never an unsigned one.
func TestSignedSurvivesLostAnswers(t *testing.T) {
	w := newWorld(t)
	w.wantSigned()
	for _, step := range []string{"POST /git/blobs", "POST /git/trees", "POST /git/commits", "POST /git/refs", "GET /git/ref/**", "POST /pulls"} {
		for _, kind := range []githubd.Fault{{Kind: githubd.FaultCut}, {Kind: githubd.FaultLost}, {Kind: githubd.FaultSecondary, RetryAfter: 1}} {
			if kind.Kind == githubd.FaultSecondary && step != "POST /git/refs" {
				continue
			}
			t.Run(step+" "+string(kind.Kind), func(t *testing.T) {
				w := w.in(t)
				method, path, _ := strings.Cut(step, " ")
				kind.Method, kind.Path = method, "/repos/*/*"+path
				before := len(w.branches())
				tip := w.changed(func(g gitDir) {
					g.write("calc/add.go", "package calc\n\nfunc Add(a, b int) int { return a + b }\n")
					if err := os.WriteFile(filepath.Join(g.path, "bytes.bin"), []byte{0, 0xff}, 0o600); err != nil {
						t.Fatal(err)
					}
				})
				s := w.session(tip, nil)
				_, err := w.server.AddFault(kind)
				w.ok(err)
				var out scheduler.Published
				for range 4 {
					w.app = w.restarted()
					w.publisher() // as after a crash
					if out, err = w.p.Publish(context.Background(), s); out.Receipt != nil {
						break
					}
					if out.Refusal != nil {
						t.Fatalf("refused: %+v", out.Refusal)
					}
				}
				w.server.ClearFaults()
				if out.Receipt == nil {
					t.Fatal(err)
				}
				w.isSigned(*out.Receipt, tip)
				if now := w.branches(); len(now) != before+1 {
					t.Errorf("branches %q", now)
				}
			})
		}
	}
}

// restarted is a new process's App: no silence is remembered.
func (w *world) restarted() *github.App {
	w.t.Helper()
	app, err := github.New(w.appOptions)
	w.ok(err)
	w.opts.GitHub, w.opts.Bot = func(id int64) GitHub { return app.Installation(id) }, app.Bot
	return app
}

// A branch is only ever moved forward from what this session pushed.
func TestSignedMovesItsOwnBranchForward(t *testing.T) {
	w := newWorld(t)
	w.wantSigned()
	first := w.fixed()
	s := w.session(first, nil)
	was := w.deliver(s)
	next := func() string {
		tip := w.changed(func(g gitDir) { g.write("calc/add.go", fmt.Sprintf("package calc // %d\n", len(w.server.Requests()))) })
		sum := w.put(s.ID, w.work.bundle(tip, w.base))
		w.exec(`UPDATE sessions SET generation = generation + 1, outcome = outcome || jsonb_build_object('bundle', $2::text, 'tip', $3::text, 'tree', $4::text) WHERE id = $1`,
			s.ID, sum, tip, w.work.must("", "git", "rev-parse", tip+"^{tree}"))
		return tip
	}
	second := next()
	now := w.deliver(s)
	c := w.isSigned(now, second)
	if got := c.must("", "git", "rev-parse", "HEAD^"); got != was.HeadSHA || now.PullRequest != was.PullRequest {
		t.Errorf("the second builds upon %s, want %s; %+v", got, was.HeadSHA, now)
	}
	mine, err := w.server.PushCommit(repoName, "octocat", now.Branch, "Mine", map[string]githubd.File{"mine": {Body: "mine"}})
	w.ok(err)
	next()
	w.refused(s, ReasonBranchMoved)
	if refs, err := w.server.Refs(repoName); err != nil || refs["refs/heads/"+now.Branch] != mine {
		t.Errorf("somebody's push was overwritten: %v %v", refs, err)
	}
}

func TestSignedOntoAHead(t *testing.T) {
	w := newWorld(t)
	s := w.onPull("inspect/3-add-aaaaaaaaaa", scheduler.DeliverHead, func(sp *spec.Spec) { sp.Publish.Signed = spec.SignedAlways })
	w.ours(s)
	r := w.deliver(s)
	var o wire.Outcome
	w.ok(json.Unmarshal(s.Outcome.RawMessage, &o))
	if c := w.isSigned(r, o.Tip); c.must("", "git", "rev-parse", "HEAD^") != s.BaseSha {
		t.Error("it does not build upon the head")
	}
}

// altered is a GitHub to which less is given than was asked for.
type altered struct{ *github.Client }

func (a altered) SignedCommit(ctx context.Context, repo github.Repo, token wire.GitToken, n github.NewCommit) (github.MadeCommit, error) {
	n.Files = n.Files[1:]
	return a.Client.SignedCommit(ctx, repo, token, n)
}

func TestSignedTreeMustBeTheVerifiedOne(t *testing.T) {
	w := newWorld(t)
	w.wantSigned()
	w.opts.GitHub = func(id int64) GitHub { return altered{w.app.Installation(id)} }
	w.publisher()
	w.refused(w.session(w.fixed(), nil), ReasonUnsigned, "another tree")
	if b := w.branches(); len(b) != 0 {
		t.Errorf("branches %q", b)
	}
}

// What cannot be sent is said, and nothing of it is pushed.
func TestSignedCannotCarryAll(t *testing.T) {
	w := newWorld(t)
	w.wantSigned()
	large := bytes.Repeat([]byte{0, 1}, github.MaxBlob/2+1) // random bytes take half a minute to search
	for name, c := range map[string]struct {
		fn    func(g gitDir)
		words string
	}{
		"a large file": {func(g gitDir) {
			w.ok(os.WriteFile(filepath.Join(g.path, "large.bin"), large, 0o600))
		}, "large.bin"},
		"many files that are no text": {func(g gitDir) {
			for i := range maxBlobs + 1 {
				w.ok(os.WriteFile(filepath.Join(g.path, fmt.Sprintf("b%03d.bin", i)), []byte{0, byte(i)}, 0o600))
			}
		}, "are no text"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.refused(w.session(w.changed(c.fn), func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) {
				sp.Publish.MaxFiles, sp.Publish.MaxBytes = 1000, 64<<20
			}), ReasonUnsigned, c.words, "kept in the evidence")
			if b := w.branches(); len(b) != 0 {
				t.Errorf("branches %q", b)
			}
		})
	}
}

// The sign-off is the App's own, and the last of the trailers.
func TestSignOff(t *testing.T) {
	w := newWorld(t)
	bot, err := w.app.Bot(t.Context())
	w.ok(err)
	want := fmt.Sprintf("Signed-off-by: inspect[bot] <%d+inspect[bot]@users.noreply.github.com>", bot.ID)
	for _, signed := range []string{spec.SignedNever, spec.SignedAlways} {
		r := w.deliver(w.session(w.fixed(), func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) {
			sp.Publish.SignOff, sp.Publish.Signed = true, signed
		}))
		c := w.clone(r.Branch)
		message := c.must("", "git", "log", "-1", "--format=%B")
		trailers := strings.Split(c.must(message+"\n", "git", "interpret-trailers", "--parse"), "\n")
		if len(trailers) != 3 || trailers[2] != want || !strings.HasPrefix(trailers[0], "Co-authored-by: monalisa") {
			t.Errorf("the trailers are %q", trailers)
		}
		if author := c.must("", "git", "log", "-1", "--format=Signed-off-by: %an <%ae>"); author != want {
			t.Errorf("the author is %s, who signs off is %s", author, want)
		}
	}
	if r := w.deliver(w.session(w.fixed(), nil)); strings.Contains(w.clone(r.Branch).must("", "git", "log", "-1", "--format=%B"), "Signed-off-by") {
		t.Error("signed off without being asked to")
	}
}
