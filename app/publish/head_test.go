package publish

import (
	"strings"
	"testing"

	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

// onPull makes a pull request and a session on its head whose result is one
// commit on top.
func (w *world) onPull(branch, deliver string, change func(*spec.Spec)) storage.Session {
	w.t.Helper()
	sha, err := w.server.PushCommit(repoName, "monalisa", branch, "Begin", map[string]githubd.File{"begin.txt": {Body: branch}})
	w.ok(err)
	number, err := w.server.OpenPullRequest(repoName, "monalisa", branch, "main", "Add", "It adds.", false)
	w.ok(err)
	dir, err := w.server.GitDir(repoName)
	w.ok(err)
	for _, at := range []gitDir{w.work, {w.t, w.mirror}} { // as the node fetches it
		at.must("", "git", "fetch", "-q", dir, "refs/heads/"+branch)
	}
	gitDir{w.t, w.mirror}.must("", "git", "update-ref", "refs/inspect/commits/"+sha, sha)
	w.work.must("", "git", "checkout", "-q", "-f", sha)
	w.work.write("more.txt", branch)
	tip := w.work.commit("More")
	s := w.sessionOf(tip, w.work.bundle(tip, sha), func(s *storage.Session, sp *spec.Spec, _ *wire.Outcome) {
		s.BaseBranch, s.BaseSha, s.IssueNumber = branch, sha, int32(number)
		if change != nil {
			change(sp)
		}
	})
	w.exec("UPDATE sessions SET pull_number = $2, head_repo_id = $3, base_ref = $4, deliver = $5 WHERE id = $1", s.ID, number, w.repo, "refs/pull/x/head", deliver)
	s, err = w.db.Q().GetSession(w.t.Context(), s.ID)
	w.ok(err)
	w.server.ResetRecord()
	return s
}

func (w *world) ours(s storage.Session) {
	w.exec("INSERT INTO branches (repository_id, name, session_id, last_sha) VALUES ($1, $2, 'zzzzzzzzzz', $3)", w.repo, s.BaseBranch, s.BaseSha)
}

func pushHead(sp *spec.Spec) { sp.Publish.Push = spec.PushHead }

func TestResultsForPullRequests(t *testing.T) {
	w := newWorld(t)
	floor, problems := policy.ParseFloor([]byte("version: 1\ndefaults: {publish: {push: head}}\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	open := w.opts.Floor
	allow := func(w *world) { w.opts.Floor = floor.For; w.publisher() }
	forbid := func(w *world) { w.opts.Floor = open; w.publisher() }
	t.Run("onto our branch", func(t *testing.T) {
		w := w.in(t)
		s := w.onPull("inspect/3-add-aaaaaaaaaa", scheduler.DeliverHead, nil)
		w.ours(s)
		r := w.deliver(s)
		if r.Branch != s.BaseBranch || r.PullRequest != int(s.PullNumber) || r.URL == "" {
			t.Errorf("receipt %+v", r)
		}
		if p := w.pushes(); len(p) != 1 || p[0].Old != s.BaseSha || p[0].New != r.HeadSHA {
			t.Errorf("pushes %+v", p)
		}
		again := w.deliver(s) // as after a crash
		if again.HeadSHA != r.HeadSHA || len(w.pushes()) != 1 {
			t.Errorf("receipt %+v, pushes %+v", again, w.pushes())
		}
		row, err := w.db.Q().BranchByName(t.Context(), storage.BranchByNameParams{RepositoryID: w.repo, Name: s.BaseBranch})
		if err != nil || row.LastSha != r.HeadSHA || row.SessionID != s.ID {
			t.Errorf("branch %+v, %v", row, err)
		}
	})
	t.Run("against somebody's branch", func(t *testing.T) {
		w := w.in(t)
		s := w.onPull("feature/stacked", scheduler.DeliverPull, nil)
		r := w.deliver(s)
		prs, err := w.server.PullRequests(repoName)
		w.ok(err)
		if last := prs[len(prs)-1]; last.Number != r.PullRequest || last.BaseRef != "feature/stacked" || !last.Draft || r.Branch == s.BaseBranch {
			t.Errorf("pull request %+v, receipt %+v", last, r)
		}
	})
	t.Run("onto somebody's branch", func(t *testing.T) {
		w := w.in(t)
		allow(w)
		s := w.onPull("feature/head", scheduler.DeliverHead, pushHead)
		r := w.deliver(s)
		if r.Branch != "feature/head" || r.PullRequest != int(s.PullNumber) {
			t.Errorf("receipt %+v", r)
		}
		if _, err := w.db.Q().BranchByName(t.Context(), storage.BranchByNameParams{RepositoryID: w.repo, Name: "feature/head"}); !storage.IsMissing(err) {
			t.Errorf("somebody's branch counts as ours: %v", err)
		}
	})
	t.Run("the operator allows it no more", func(t *testing.T) {
		w := w.in(t)
		forbid(w)
		s := w.onPull("feature/forbidden", scheduler.DeliverHead, pushHead)
		w.refused(s, ReasonRules, "publish.push")
		if len(w.pushes()) != 0 {
			t.Error("it was pushed")
		}
	})
	t.Run("a protected branch", func(t *testing.T) {
		w := w.in(t)
		allow(w)
		s := w.onPull("feature/protected", scheduler.DeliverHead, pushHead)
		w.ok(w.server.Protect(repoName, "feature/protected"))
		w.refused(s, ReasonRules)
		if len(w.pushes()) != 0 {
			t.Error("it was pushed")
		}
		w.ok(w.server.ClearRules(repoName))
	})
	for _, deliver := range []string{scheduler.DeliverHead, scheduler.DeliverPull} { // B18, B20
		t.Run("a head that moved, "+deliver, func(t *testing.T) {
			w := w.in(t)
			allow(w)
			s := w.onPull("feature/moved-"+deliver, deliver, pushHead)
			_, err := w.server.PushCommit(repoName, "octocat", s.BaseBranch, "Meanwhile", map[string]githubd.File{"x.txt": {Body: "x"}})
			w.ok(err)
			if r := w.refused(s, scheduler.ReasonSuperseded, "Somebody pushed"); r.State != scheduler.Stopped {
				t.Errorf("state %s", r.State)
			}
			if len(w.pushes()) != 0 {
				t.Error("it was pushed")
			}
		})
	}
	t.Run("a closed one", func(t *testing.T) {
		w := w.in(t)
		s := w.onPull("feature/closed", scheduler.DeliverPull, nil)
		w.ok(w.server.SetState(repoName, int(s.PullNumber), "monalisa", "closed"))
		w.refused(s, scheduler.ReasonPullClosed)
	})
	t.Run("from a fork", func(t *testing.T) {
		w := w.in(t)
		s := w.onPull("feature/fork", scheduler.DeliverPatch, nil)
		w.exec(`UPDATE sessions SET context = '[{"id": 5, "kind": "comment", "included": false}]' WHERE id = $1`, s.ID)
		if r := w.refused(s, scheduler.ReasonPatch, "patch"); r.State != scheduler.NoChange {
			t.Errorf("state %s", r.State)
		}
		if len(w.pushes()) != 0 {
			t.Error("it was pushed")
		}
		w.exec("UPDATE sessions SET state = 'no_change' WHERE id = $1", s.ID)
		s.State = scheduler.NoChange
		_, err := w.p.Keep(t.Context(), s)
		w.ok(err)
		if patch := w.file(s.ID, FilePatch); !strings.Contains(patch, "more.txt") {
			t.Errorf("patch %s", patch)
		}
		if seen := w.file(s.ID, FileContext); !strings.Contains(seen, `"id": 5`) {
			t.Errorf("context %s", seen)
		}
	})
}
