package publish

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// noForge answers for a bare repository of this machine.
type noForge struct{ dir string }

var errAsked = errors.New("this must not be asked where there is no forge")

func (noForge) AppID(context.Context, string) (int64, error) { return 0, errAsked }
func (noForge) Permission(context.Context, github.Repo, string) (github.Permission, error) {
	return github.Permission{}, errAsked
}
func (noForge) BranchRules(context.Context, github.Repo, string) ([]github.Rule, error) {
	return nil, errAsked
}
func (noForge) Bypass(context.Context, github.Repo, int64) (string, error) { return "", errAsked }
func (noForge) BranchProtected(context.Context, github.Repo, string) (bool, error) {
	return false, errAsked
}
func (noForge) File(context.Context, github.Repo, string, string) ([]byte, error) {
	return nil, errAsked
}
func (n noForge) Ref(_ context.Context, _ github.Repo, ref string) (string, error) {
	out, err := exec.Command("git", "--git-dir", n.dir, "rev-parse", "--verify", "--quiet", "refs/"+ref).Output()
	if err != nil {
		return "", github.ErrNotFound
	}
	return strings.TrimSpace(string(out)), nil
}
func (n noForge) PullRequest(context.Context, github.Repo, int) (github.PullRequest, error) {
	return github.PullRequest{}, errAsked
}
func (n noForge) Protected(context.Context, github.Repo, string) (bool, error) {
	return false, errAsked
}
func (n noForge) FindPullRequest(context.Context, github.Repo, string) (github.PullRequest, bool, error) {
	return github.PullRequest{}, false, errAsked
}
func (n noForge) CreatePullRequest(context.Context, github.Repo, github.NewPullRequest) (github.PullRequest, error) {
	return github.PullRequest{}, errAsked
}
func (n noForge) RevokeToken(context.Context, wire.GitToken) {}
func (noForge) SignedCommit(context.Context, github.Repo, wire.GitToken, github.NewCommit) (github.MadeCommit, error) {
	return github.MadeCommit{}, errAsked
}

func (noForge) PutBranch(context.Context, github.Repo, wire.GitToken, string, string, string) error {
	return errAsked
}

func (noForge) RequestReviewers(context.Context, github.Repo, int, []string, []string) error {
	return errAsked
}

func (noForge) Reviewers(context.Context, github.Repo, int) (people, teams []string, err error) {
	return nil, nil, errAsked
}

func (n noForge) PushToken(context.Context, int64) (wire.GitToken, error) {
	return wire.GitToken{}, errAsked
}

// Without a forge the same judgement ends in a branch of a local repository,
// by no account and without a pull request; and GitHub hears nothing.
func TestPublishWithoutForge(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "o rigin.git")
	w.work.must("", "git", "clone", "-q", "--bare", w.mirror, dir)
	w.opts.NoForge, w.opts.Bot = true, nil
	w.opts.GitHub = func(int64) GitHub { return noForge{dir} }
	w.opts.CloneURL = func(github.Repo) string { return "file://" + strings.ReplaceAll(dir, " ", "%20") }
	w.publisher()
	s := w.session(w.fixed(), func(s *storage.Session, _ *spec.Spec, _ *wire.Outcome) {
		s.IssueNumber, s.RequesterID, s.RequesterLogin = 0, 0, "you"
	})
	for range 2 { // and once more, as after a lost answer
		r := w.deliver(s)
		if r.Branch != "inspect/add-is-wrong-"+s.ID || r.PullRequest != 0 || r.URL != "" || r.Evidence == "" {
			t.Errorf("%+v", r)
		}
		if at, err := (noForge{dir}).Ref(t.Context(), github.Repo{}, "heads/"+r.Branch); err != nil || at != r.HeadSHA {
			t.Errorf("the branch is at %q %v, the receipt says %s", at, err, r.HeadSHA)
		}
		if got := w.work.must("", "git", "--git-dir", dir, "log", "-1", "--format=%an <%ae>%n%B", r.HeadSHA); !strings.HasPrefix(got, "Inspect <inspect@localhost>\nAdd is wrong\n") ||
			strings.Contains(got, "Refs #") || strings.Contains(got, "Co-authored-by: you") {
			t.Errorf("the commit is %s", got)
		}
	}
	// What policy refuses is refused here too.
	bad := w.changed(func(g gitDir) { g.write(".github/dependabot.yml", "x") })
	w.refused(w.session(bad, nil), "protected_path")
	if n := len(w.server.Requests()); n != 0 {
		t.Errorf("GitHub was sent %d requests", n)
	}
}
