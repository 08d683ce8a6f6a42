package try

import (
	"context"
	"errors"
	"fmt"

	"inspect/app/github"
	"inspect/app/publish"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// The forge of a try: private bare repositories, where everybody may do what
// publishing asks for, and nobody is told anything.

// reasonBranch is why a verified result did not become a branch.
const reasonBranch = "branch_refused"

// requester is who asks for everything in a try; the person at the terminal.
const requester = "you"

// forge implements publish.GitHub over the origins.
type forge struct{ plans map[int64]*plan }

var _ publish.GitHub = forge{}

func (forge) AppID(context.Context, string) (int64, error) { return 0, errNoForge }
func (forge) Permission(context.Context, github.Repo, string) (github.Permission, error) {
	return github.Permission{}, errNoForge
}

func (forge) BranchRules(context.Context, github.Repo, string) ([]github.Rule, error) {
	return nil, errNoForge
}

func (forge) Bypass(context.Context, github.Repo, int64) (string, error) { return "", errNoForge }

func (forge) BranchProtected(context.Context, github.Repo, string) (bool, error) {
	return false, errNoForge
}

func (forge) File(context.Context, github.Repo, string, string) ([]byte, error) {
	return nil, errNoForge
}

// Ref reads a branch back from the origin.
func (f forge) Ref(ctx context.Context, repo github.Repo, ref string) (string, error) {
	p := f.plans[repo.ID]
	if p == nil {
		return "", github.ErrNotFound
	}
	sha, err := p.origin.git.line(ctx, "rev-parse", "--verify", "--quiet", "refs/"+ref)
	switch {
	case status(err) == 1:
		return "", github.ErrNotFound
	case err != nil:
		return "", errors.New(said(err))
	}
	return sha, nil
}

var errNoForge = errors.New("there is no forge")

func (f forge) FindPullRequest(context.Context, github.Repo, string) (github.PullRequest, bool, error) {
	return github.PullRequest{}, false, nil
}

func (f forge) CreatePullRequest(context.Context, github.Repo, github.NewPullRequest) (github.PullRequest, error) {
	return github.PullRequest{}, errNoForge
}

func (f forge) PullRequest(context.Context, github.Repo, int) (github.PullRequest, error) {
	return github.PullRequest{}, errNoForge
}

func (f forge) Protected(context.Context, github.Repo, string) (bool, error) {
	return false, errNoForge
}

func (f forge) RevokeToken(context.Context, wire.GitToken) {}

func (forge) SignedCommit(context.Context, github.Repo, wire.GitToken, github.NewCommit) (github.MadeCommit, error) {
	return github.MadeCommit{}, errNoForge
}

func (forge) PutBranch(context.Context, github.Repo, wire.GitToken, string, string, string) error {
	return errNoForge
}

func (forge) RequestReviewers(context.Context, github.Repo, int, []string, []string) error {
	return errNoForge
}

func (forge) Reviewers(context.Context, github.Repo, int) (people, teams []string, err error) {
	return nil, nil, errNoForge
}

func (f forge) PushToken(context.Context, int64) (wire.GitToken, error) {
	return wire.GitToken{}, errNoForge
}

// effects are the scheduler's in a try.
type effects struct {
	plans     map[int64]*plan
	publisher *publish.Publisher
}

var _ scheduler.Effects = effects{}

// Publish has the result judged and pushed to the origin, and then brings it
// into the person's repository: only that is a delivery.
func (e effects) Publish(ctx context.Context, s storage.Session) (scheduler.Published, error) {
	out, err := e.publisher.Publish(ctx, s)
	if err != nil || out.Receipt == nil {
		return out, err
	}
	p := e.plans[s.RepositoryID]
	if p == nil {
		return scheduler.Published{}, fmt.Errorf("%w: nobody knows whose repository %d is", scheduler.ErrPermanent, s.RepositoryID)
	}
	branch, err := p.repo.bring(ctx, p.origin, out.Receipt.Branch, out.Receipt.HeadSHA)
	switch {
	case errors.Is(err, errBranch):
		return scheduler.Published{Refusal: &scheduler.Refusal{
			State: scheduler.Failed, Reason: reasonBranch,
			Words: "The result was verified, but " + err.Error() + ". It is kept in the evidence.",
		}}, nil
	case err != nil:
		return scheduler.Published{}, err
	}
	out.Receipt.Branch = branch
	return out, nil
}

// Report has the evidence of a session kept when it ends.
func (e effects) Report(ctx context.Context, s storage.Session) error {
	if !scheduler.Terminal(s.State) || s.State == scheduler.Delivered || s.Generation == 0 {
		return nil
	}
	_, err := e.publisher.Keep(ctx, s)
	return err
}

func (e effects) GitTokenDone(context.Context, int64) {}

func (e effects) GitToken(context.Context, int64, int64) (wire.GitToken, error) {
	return wire.GitToken{}, errNoForge
}
