package publish

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/fixtures/githubd"
	"inspect/scheduler"
	"inspect/storage"
)

func TestPublishSurvivesLostAnswers(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		fault githubd.Fault
		tries int // until delivered
	}{
		"push done, answer lost":         {githubd.Fault{Kind: githubd.FaultLost, Path: "/octocat/hello.git/git-receive-pack"}, 1},
		"push cut before":                {githubd.Fault{Kind: githubd.FaultCut, Path: "/octocat/hello.git/git-receive-pack"}, 2},
		"push answered 502":              {githubd.Fault{Kind: githubd.FaultStatus, Path: "/octocat/hello.git/info/refs"}, 2},
		"reading back fails":             {githubd.Fault{Kind: githubd.FaultStatus, Path: "/repos/*/*/git/ref/**", Count: 2}, 2},
		"pull request made, answer lost": {githubd.Fault{Kind: githubd.FaultLost, Method: "POST", Path: "/repos/*/*/pulls"}, 1},
		"pull request cut before":        {githubd.Fault{Kind: githubd.FaultCut, Method: "POST", Path: "/repos/*/*/pulls"}, 2},
		"pull request answered 502":      {githubd.Fault{Kind: githubd.FaultStatus, Method: "POST", Path: "/repos/*/*/pulls"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.server.ClearFaults()
			w.server.ResetRecord()
			s := w.session(w.fixed(), nil)
			_, err := w.server.AddFault(c.fault)
			w.ok(err)
			var out scheduler.Published
			tries := 0
			for tries < 4 && out.Receipt == nil {
				tries++
				w.publisher() // as after a crash
				if out, err = w.p.Publish(context.Background(), s); out.Refusal != nil {
					t.Fatalf("refused: %+v", out.Refusal)
				}
			}
			if out.Receipt == nil {
				t.Fatal(err)
			}
			if tries > c.tries {
				t.Errorf("%d tries, want at most %d", tries, c.tries)
			}
			// Git repeats a request whose answer was lost, so one push may be sent
			// twice; it is the same commit to the same branch.
			for _, p := range w.pushes() {
				if p.New != out.Receipt.HeadSHA || p.Ref != "refs/heads/"+out.Receipt.Branch || strings.Trim(p.Old, "0") != "" {
					t.Errorf("pushed %+v", p)
				}
			}
			if _, err := w.app.Installation(w.install).CreatePullRequest(context.Background(), w.githubRepo(),
				github.NewPullRequest{Title: "x", Head: out.Receipt.Branch, Base: "main"}); !errors.Is(err, github.ErrExists) {
				t.Errorf("the pull request is not there: %v", err)
			}
		})
	}
}

func TestPublishLeavesForeignPushesAlone(t *testing.T) {
	w := newWorld(t)
	s := w.session(w.fixed(), nil)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultStatus, Method: "POST", Path: "/repos/*/*/pulls"})
	w.ok(err)
	if out, err := w.p.Publish(context.Background(), s); err == nil {
		t.Fatalf("%+v", out)
	}
	row, err := w.db.Q().PublishSession(context.Background(), s.ID)
	w.ok(err)
	c := w.clone(row.Branch)
	c.write("mine", "x")
	theirs := c.commit("by a person")
	c.must("", "git", "push", "-q", "origin", row.Branch)
	w.refused(s, ReasonBranchMoved, row.Branch)
	if got := w.clone(row.Branch).must("", "git", "rev-parse", "HEAD"); got != theirs {
		t.Errorf("the person's push was overwritten by %s", got)
	}
	// A branch of that name which we did not make is not taken over either.
	other := w.session(w.fixed(), nil)
	c.must("", "git", "push", "-q", "origin", "HEAD:refs/heads/"+policy.BranchName("inspect", w.issue, other.Title, other.ID))
	w.refused(other, ReasonBranchMoved)
}

func TestPublishWithoutBaseInMirror(t *testing.T) {
	w := newWorld(t)
	w.work.write("later", "x")
	base := w.work.commit("later")
	w.work.write("calc/add.go", "package calc\n")
	tip := w.work.commit("work")
	bundle := w.work.bundle(tip, base)
	s := w.sessionOf(tip, bundle, func(s *storage.Session, _ *spec.Spec, _ *wire.Outcome) { s.BaseSha = base })
	var asked []string
	w.opts.Fetch = func(_ context.Context, repo int64, branch, _, commit string) error {
		asked = append(asked, fmt.Sprint(repo, branch, commit))
		return nil
	}
	w.publisher()
	if out, err := w.p.Publish(context.Background(), s); !errors.Is(err, errBaseMissing) {
		t.Fatalf("%+v %v", out, err)
	}
	if len(asked) == 0 || asked[0] != fmt.Sprint(w.repo, "main", base) {
		t.Errorf("asked for %q", asked)
	}
	// No mirror at all is the same.
	moved := w.mirror + ".away"
	w.ok(os.Rename(w.mirror, moved))
	if out, err := w.p.Publish(context.Background(), s); !errors.Is(err, errBaseMissing) {
		t.Fatalf("%+v %v", out, err)
	}
	if len(asked) != 2 || asked[1] != asked[0] {
		t.Errorf("asked for %q", asked)
	}
	w.ok(os.Rename(moved, w.mirror))
	if left, err := os.ReadDir(w.opts.WorkDir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	w.work.must("", "git", "push", "-q", w.mirror, base+":refs/heads/main")
	token, err := w.server.UserToken("octocat")
	w.ok(err)
	w.ok(w.server.ClearRules(repoName))
	w.work.must("", "git", "push", "-q", strings.Replace(w.server.CloneURL(repoName), "://", "://octocat:"+token+"@", 1), base+":refs/heads/main")
	w.deliver(s)
}

func TestPublishToClosedRepositories(t *testing.T) {
	w := newWorld(t)
	tip := w.fixed()
	w.exec(`UPDATE installations SET suspended_at = now()`)
	w.refused(w.session(tip, nil), ReasonGone, "suspended")
	w.exec(`UPDATE installations SET suspended_at = NULL`)
	w.exec(`UPDATE repositories SET removed_at = now()`)
	w.refused(w.session(tip, nil), ReasonGone, "removed")
	w.exec(`UPDATE repositories SET removed_at = NULL`)
	w.ok(w.server.Suspend(w.install, "octocat")) // and the event was missed
	w.refused(w.session(tip, nil), ReasonGone, "suspended")
	w.ok(w.server.Unsuspend(w.install, "octocat"))
	w.ok(w.server.Archive(repoName))
	w.refused(w.session(tip, nil), ReasonGone)
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
}

func TestPublishTellsWhenToComeBack(t *testing.T) {
	w := newWorld(t)
	_, err := w.server.AddFault(githubd.Fault{Kind: githubd.FaultSecondary, Path: "/repos/*/*/collaborators/**", RetryAfter: 90, Count: -1})
	w.ok(err)
	_, err = w.p.Publish(context.Background(), w.session(w.fixed(), nil))
	var at scheduler.RetryAt
	if !errors.As(err, &at) || time.Until(at.RetryAt()) < 30*time.Second {
		t.Errorf("%v", err)
	}
}
