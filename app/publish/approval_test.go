package publish

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// asked publishes and wants a question.
func (w *world) asked(s storage.Session, words ...string) scheduler.Ask {
	w.t.Helper()
	out, err := w.p.Publish(context.Background(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	if out.Ask == nil {
		w.t.Fatalf("not asked: %+v %+v", out.Receipt, out.Refusal)
	}
	for _, word := range words {
		if !strings.Contains(out.Ask.Words, word) {
			w.t.Errorf("the words %q lack %q", out.Ask.Words, word)
		}
	}
	return *out.Ask
}

// approve has somebody allow it, as the scheduler writes it down.
func (w *world) approve(s storage.Session, ask scheduler.Ask, login string) {
	w.t.Helper()
	ctx := context.Background()
	perm, err := w.app.Installation(w.install).Permission(ctx, w.githubRepo(), login)
	w.ok(err)
	w.exec(`UPDATE approvals SET state = 'void' WHERE session_id = $1`, s.ID)
	a, err := w.db.Q().InsertApproval(ctx, storage.InsertApprovalParams{
		SessionID: s.ID, Kind: scheduler.ApprovePublish, Asked: []byte(`{}`), Digest: ask.Digest,
		Bundle: ask.Basis.Bundle, Policy: ask.Basis.Policy, BaseSha: ask.Basis.Base, RemoteHead: ask.Basis.Remote,
		RequestedAt: w.clock.Now(), ExpiresAt: w.clock.Now().Add(time.Hour),
	})
	w.ok(err)
	_, err = w.db.Q().AnswerApproval(ctx, storage.AnswerApprovalParams{
		ID: a.ID, State: scheduler.ApprovalApproved, ByID: perm.UserID, Login: login, How: scheduler.ByCommand, Now: w.clock.Now(),
	})
	w.ok(err)
}

// protectedResult touches what only a person may allow.
func (w *world) protectedResult() string {
	return w.changed(func(g gitDir) { g.write(".github/dependabot.yml", "x\n"); g.write("a.go", "package a\n") })
}

func TestWhatAPersonAllowsIsPublished(t *testing.T) {
	w := newWorld(t)
	secret := "ghs_" + strings.Repeat("a1B2", 9)
	for name, c := range map[string]struct {
		tip    string
		reason string
		words  string
		path   string
	}{
		"protected path": {w.protectedResult(), policy.ReasonProtectedPath, `".github/dependabot.yml"`, ".github/dependabot.yml"},
		"secret":         {w.changed(func(g gitDir) { g.write("c.txt", "token="+secret+"\n") }), policy.ReasonSecretFound, `"c.txt" line 1`, "c.txt"},
		"message":        {w.changed(func(g gitDir) { g.write("c.txt", "x\n"); g.commit("with " + secret); g.write("d.txt", "y\n") }), policy.ReasonSecretFound, "the message of commit 1", "d.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.server.ResetRecord()
			s := w.session(c.tip, nil)
			ask := w.asked(s, c.words)
			if len(ask.Asked.Items) != 1 || ask.Asked.Items[0].Reason != c.reason || ask.Void != "" || ask.Basis.Bundle == "" || ask.Basis.Base != w.base || ask.Basis.Remote != w.base || ask.Basis.Policy == "" {
				t.Errorf("%+v", ask)
			}
			if strings.Contains(fmt.Sprintf("%+v", ask), "a1B2a1B2") {
				t.Errorf("the secret is told: %+v", ask)
			}
			if again := w.asked(s); again.Digest != ask.Digest {
				t.Error("the same question has another digest")
			}
			if len(w.pushes()) != 0 || w.server.Counts().Writes != 0 {
				t.Errorf("pushed before it was allowed: %+v", w.pushes())
			}
			if patch := w.file(s.ID, FilePatch); !strings.Contains(patch, c.path) || strings.Contains(patch, "a1B2a1B2") {
				t.Errorf("whoever is asked sees %s", patch)
			}
			w.approve(s, ask, "octocat")
			r := w.deliver(s)
			g := w.clone(r.Branch)
			if g.must("", "git", "ls-files", c.path) != c.path {
				t.Errorf("%s was not pushed", c.path)
			}
			if m := g.must("", "git", "log", "-1", "--format=%B"); strings.Contains(m, "a1B2a1B2") {
				t.Errorf("the secret is in the message %q", m)
			}
		})
	}
}

// Whatever changed since makes an approval void, and it is asked again.
func TestApprovalsCountForWhatTheyAreOf(t *testing.T) {
	floor := policy.Floor{}
	for name, c := range map[string]struct {
		change func(*world, *storage.Session)
		words  string
	}{
		"the branch on GitHub": {func(w *world, _ *storage.Session) {
			_, err := w.server.PushCommit(repoName, "octocat", "main", "new", map[string]githubd.File{"new.txt": {Body: "x\n", Mode: 0o100644}})
			w.ok(err)
		}, "has moved"},
		"the work": {func(w *world, s *storage.Session) {
			tip := w.changed(func(g gitDir) { g.write(".github/dependabot.yml", "other\n") })
			next := w.session(tip, nil)
			w.exec(`UPDATE sessions SET outcome = (SELECT outcome FROM sessions WHERE id = $2) WHERE id = $1`, s.ID, next.ID)
			w.put(s.ID, w.work.bundle(tip, w.base))
			w.put(s.ID, []byte(goTest))
			w.put(s.ID, nil)
		}, "the work is another"},
		"the operator's policy": {func(w *world, _ *storage.Session) {
			var problems policy.Problems
			floor, problems = policy.ParseFloor([]byte("version: 1\ndefaults: {publish: {protected: [\"x/**\"]}}\n"))
			if len(problems) > 0 {
				w.t.Fatal(problems)
			}
		}, "the rules have changed"},
		"four eyes": {func(w *world, _ *storage.Session) {
			floor, _ = policy.ParseFloor([]byte("version: 1\ndefaults: {publish: {four_eyes: true}}\n"))
		}, "the rules have changed"},
		"the approver's permission": {func(w *world, _ *storage.Session) {
			w.ok(w.server.SetPermission(repoName, "monalisa", "read"))
			w.exec(`UPDATE sessions SET requester_login = 'octocat', requester_id = 0`)
		}, "may not write to the repository any more"},
	} {
		t.Run(name, func(t *testing.T) {
			floor = policy.Floor{}
			w := newWorld(t)
			w.opts.Floor = func(id int64, name string) (policy.Bounds, bool) { return floor.For(id, name) }
			w.publisher()
			s := w.session(w.protectedResult(), nil)
			ask := w.asked(s)
			w.approve(s, ask, "monalisa")
			c.change(w, &s)
			again := w.asked(s, "What monalisa allowed does not count any more", c.words)
			if !strings.Contains(again.Void, c.words) {
				t.Errorf("void because %q", again.Void)
			}
			if len(w.pushes()) != 0 {
				t.Errorf("pushed: %+v", w.pushes())
			}
		})
	}
}

// Who became a requester after he allowed it does not count where four eyes do.
func TestApproverWhoBecameARequester(t *testing.T) {
	w := newWorld(t)
	s := w.session(w.protectedResult(), func(_ *storage.Session, sp *spec.Spec, _ *wire.Outcome) { sp.Publish.FourEyes = true })
	ask := w.asked(s)
	w.approve(s, ask, "octocat")
	perm, err := w.app.Installation(w.install).Permission(context.Background(), w.githubRepo(), "octocat")
	w.ok(err)
	w.exec(`INSERT INTO session_people (session_id, user_id, login, role) VALUES ($1, $2, 'octocat', 'pushed')`, s.ID, perm.UserID)
	w.asked(s, "octocat had a hand in the session since")
	w.exec(`DELETE FROM session_people`)
	w.deliver(s)
}

// A push that was allowed and whose answer was lost is not asked about again,
// whatever happened to the base meanwhile.
func TestAllowedPushIsFoundAgain(t *testing.T) {
	w := newWorld(t)
	s := w.session(w.protectedResult(), nil)
	w.approve(s, w.asked(s), "octocat")
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Status: 502, Method: "POST", Path: "/repos/*/*/pulls", Count: 1})
	w.ok(err)
	if out, err := w.p.Publish(context.Background(), s); err == nil {
		t.Fatalf("%+v", out)
	}
	_, err = w.server.PushCommit(repoName, "octocat", "main", "new", map[string]githubd.File{"new.txt": {Body: "x\n", Mode: 0o100644}})
	w.ok(err)
	w.publisher()
	w.deliver(s)
	if p := w.pushes(); len(p) != 1 {
		t.Errorf("%+v", p)
	}
}

// Nothing is pushed while something of the session waits for an answer.
func TestNothingIsPushedWhileSomethingWaits(t *testing.T) {
	w := newWorld(t)
	s := w.session(w.fixed(), nil)
	_, err := w.db.Q().InsertApproval(context.Background(), storage.InsertApprovalParams{
		SessionID: s.ID, Kind: scheduler.ApproveEgress, Asked: []byte(`{}`), Words: "a.example", RequestedAt: w.clock.Now(), ExpiresAt: w.clock.Now(),
	})
	w.ok(err)
	if out, err := w.p.Publish(context.Background(), s); err == nil || !strings.Contains(err.Error(), "waits for an answer") {
		t.Fatalf("%+v %v", out, err)
	}
	if p := w.pushes(); len(p) != 0 {
		t.Fatalf("%+v", p)
	}
	w.exec(`UPDATE approvals SET state = 'void'`)
	w.deliver(s)
}

// What verification leaves in doubt waits for a person who did not ask for the
// work, whatever the configuration says of four eyes; then it is delivered, and the
// evidence has who accepted it.
func TestDoubtsWaitForAnother(t *testing.T) {
	w := newWorld(t)
	two := strings.ReplaceAll(goTest, "TestAdd", "TestSub") + goTest
	s := w.session(w.fixed(), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
		gone := o.Results[0]
		gone.Stdout = w.put(s.ID, []byte(two))
		o.Base = &wire.Column{Results: []wire.VerifyResult{gone}}
	})
	ask := w.asked(s, "Tests vanish with the change: unit: example/calc TestSub does not run any more.")
	if len(ask.Asked.Items) != 1 || !policy.NeedsAnother(ask.Asked.Items[0].Reason) {
		t.Errorf("%+v", ask)
	}
	perm, err := w.app.Installation(w.install).Permission(context.Background(), w.githubRepo(), "monalisa")
	w.ok(err)
	w.exec(`INSERT INTO session_people (session_id, user_id, login, role) VALUES ($1, $2, 'monalisa', 'started')`, s.ID, perm.UserID)
	w.approve(s, ask, "monalisa")
	w.asked(s, "monalisa had a hand in the session since")
	if p := w.pushes(); len(p) != 0 {
		t.Fatalf("pushed: %+v", p)
	}
	w.approve(s, ask, "octocat")
	r := w.deliver(s)
	kept, err := w.p.Kept(context.Background(), s.ID, r.Evidence)
	w.ok(err)
	m := kept.Manifest
	if m.Verdict.Kind != "doubtful" || m.Verdict.Vanished != 1 || len(m.Approvals) != 1 || m.Approvals[0].By != "octocat" || len(m.Base) != 1 || !m.SameTests {
		t.Errorf("%+v %+v", m.Verdict, m.Approvals)
	}
	names := map[string]bool{}
	for _, f := range m.Files {
		names[f.Name] = true
	}
	for _, want := range []string{FileTests, FileTranscript, "verify-unit.out", "base-unit.out"} {
		if !names[want] {
			t.Errorf("there is no %s among %v", want, m.Files)
		}
	}
	if tests := w.file(s.ID, FileTests); !strings.Contains(tests, `"name":"TestSub","outcome":"passed"`) {
		t.Errorf("tests: %s", tests)
	}
}
