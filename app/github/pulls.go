package github

import (
	"context"
	"fmt"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// PullRequest is a pull request as it is now.
type PullRequest struct {
	Number   int
	URL      string // for people
	State    string // "open" or "closed"
	Draft    bool
	Merged   bool
	ClosedAt time.Time // zero while it is open
	MergedAt time.Time // zero unless it was merged
	MergeSHA string    // of the commit that merged it; before that, of a trial
	Opened   time.Time
	HeadRef  string
	HeadSHA  string
	BaseRef  string

	HeadRepoID int64 // 0: the fork was deleted
	Locked     bool
	Title      string
}

func pullRequest(p *gh.PullRequest) PullRequest {
	return PullRequest{
		Number: p.GetNumber(), URL: p.GetHTMLURL(), State: p.GetState(), Draft: p.GetDraft(),
		Merged: p.GetMerged() || p.MergedAt != nil, ClosedAt: p.GetClosedAt().Time,
		MergedAt: p.GetMergedAt().Time, MergeSHA: p.GetMergeCommitSHA(), Opened: p.GetCreatedAt().Time,
		HeadRef: p.GetHead().GetRef(), HeadSHA: p.GetHead().GetSHA(), BaseRef: p.GetBase().GetRef(),
		HeadRepoID: p.GetHead().GetRepo().GetID(), Locked: p.GetLocked(), Title: p.GetTitle(),
	}
}

// NewPullRequest is a pull request to create from a branch of the same
// repository.
type NewPullRequest struct {
	Title string
	Body  string
	Head  string // branch
	Base  string // branch
	Draft bool
}

// FindPullRequest looks for the newest pull request, open or closed, from a
// branch of the same repository.
func (c *Client) FindPullRequest(ctx context.Context, repo Repo, headBranch string) (PullRequest, bool, error) {
	var found *gh.PullRequest
	err := c.in(ctx, repo, "look for the pull request of "+headBranch+" in "+repo.String(), func(api *gh.Client, r Repo) error {
		list, _, err := api.PullRequests.List(ctx, r.Owner, r.Name, &gh.PullRequestListOptions{
			State: "all", Head: r.Owner + ":" + headBranch, ListOptions: gh.ListOptions{PerPage: 100},
		})
		for _, p := range list {
			// GitHub ignores a filter it does not understand and lists everything.
			if found == nil && p.GetHead().GetRef() == headBranch && p.GetHead().GetRepo().GetID() == repo.ID {
				found = p
			}
		}
		return err
	})
	if err != nil || found == nil {
		return PullRequest{}, false, err
	}
	return pullRequest(found), true, nil
}

// CreatePullRequest opens a pull request. ErrExists: there is one for this head
// and base.
func (c *Client) CreatePullRequest(ctx context.Context, repo Repo, n NewPullRequest) (PullRequest, error) {
	op := fmt.Sprintf("open a pull request from %s in %s", n.Head, repo)
	var got *gh.PullRequest
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.PullRequests.Create(ctx, r.Owner, r.Name, &gh.NewPullRequest{
			Title: &n.Title, Body: &n.Body, Head: &n.Head, Base: &n.Base, Draft: &n.Draft,
		})
		return err
	})
	if _, err := created(int64(got.GetNumber()), op, err); err != nil {
		return PullRequest{}, err
	}
	return pullRequest(got), nil
}
