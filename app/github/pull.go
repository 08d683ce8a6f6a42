package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// PullRequest is a pull request by its number, as it is now.
func (c *Client) PullRequest(ctx context.Context, repo Repo, number int) (PullRequest, error) {
	var got *gh.PullRequest
	op := fmt.Sprintf("read pull request %s#%d", repo, number)
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.PullRequests.Get(ctx, r.Owner, r.Name, number)
		return err
	})
	if err != nil {
		return PullRequest{}, err
	}
	if got.GetNumber() != number || !forms["sha"].MatchString(got.GetHead().GetSHA()) {
		return PullRequest{}, &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	return pullRequest(got), nil
}

// Review of a pull request.
type Review struct {
	Comment
	State    string // "APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED"
	CommitID string
}

// Reviews lists the reviews of a pull request, oldest first, at most a
// thousand. GitHub does not say when one was edited.
func (c *Client) Reviews(ctx context.Context, repo Repo, number int) ([]Review, error) {
	var out []Review
	err := listed(ctx, c, repo, fmt.Sprintf("pulls/%d/reviews", number), func(a struct {
		apiComment
		State     string    `json:"state"`
		CommitID  string    `json:"commit_id"`
		Submitted time.Time `json:"submitted_at"`
	}) {
		r := Review{a.comment(), a.State, a.CommitID}
		r.Created, r.Updated = a.Submitted, a.Submitted
		out = append(out, r)
	})
	return out, err
}

// listed reads the pages of a list below a repository.
func listed[T any](ctx context.Context, c *Client, repo Repo, path string, each func(T)) error {
	var all []T
	err := c.in(ctx, repo, "read "+path+" of "+repo.String(), func(api *gh.Client, r Repo) error {
		all = nil
		_, err := pages(maxCommentPages, func(o gh.ListOptions) (*gh.Response, error) {
			req, err := api.NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/%s?per_page=%d&page=%d", r.Owner, r.Name, path, o.PerPage, o.Page), nil)
			if err != nil {
				return nil, err
			}
			var page []T
			resp, err := api.Do(ctx, req, &page)
			all = append(all, page...)
			return resp, err
		})
		return err
	})
	for _, one := range all {
		each(one)
	}
	return err
}
