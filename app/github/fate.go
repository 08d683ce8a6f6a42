package github

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// What is asked of a pull request's life.

// PullPaths are the files that a pull request changes, at most three hundred.
func (c *Client) PullPaths(ctx context.Context, repo Repo, number int) ([]string, error) {
	var out []string
	err := c.in(ctx, repo, fmt.Sprintf("list the files of %s#%d", repo, number), func(api *gh.Client, r Repo) error {
		out = nil
		_, err := pages(3, func(o gh.ListOptions) (*gh.Response, error) {
			list, resp, err := api.PullRequests.ListFiles(ctx, r.Owner, r.Name, number, &o)
			for _, f := range list {
				out = append(out, f.GetFilename())
			}
			return resp, err
		})
		return err
	})
	return out, err
}

// Commit of a branch.
type Commit struct {
	SHA     string
	Message string
	At      time.Time // when it was committed, as it says itself
}

// Commits lists those of a branch that were committed since a time, at most
// three hundred, the latest first.
func (c *Client) Commits(ctx context.Context, repo Repo, branch string, since time.Time) ([]Commit, error) {
	var out []Commit
	err := c.in(ctx, repo, "list the commits of "+branch+" in "+repo.String(), func(api *gh.Client, r Repo) error {
		out = nil
		_, err := pages(3, func(o gh.ListOptions) (*gh.Response, error) {
			list, resp, err := api.Repositories.ListCommits(ctx, r.Owner, r.Name, &gh.CommitsListOptions{SHA: branch, Since: since.UTC().Truncate(time.Second), ListOptions: o})
			for _, k := range list {
				out = append(out, Commit{k.GetSHA(), k.GetCommit().GetMessage(), k.GetCommit().GetCommitter().GetDate().Time})
			}
			return resp, err
		})
		return err
	})
	return out, err
}

// CommitPaths are the files that a commit changed against its first parent, at
// most three hundred.
func (c *Client) CommitPaths(ctx context.Context, repo Repo, sha string) ([]string, error) {
	var out []string
	err := c.in(ctx, repo, fmt.Sprintf("list the files of commit %.12s of %s", sha, repo), func(api *gh.Client, r Repo) error {
		got, _, err := api.Repositories.GetCommit(ctx, r.Owner, r.Name, sha, nil)
		out = nil
		if err == nil {
			for _, f := range got.Files {
				out = append(out, f.GetFilename())
			}
		}
		return err
	})
	return out, err
}

// Moved is one move of a branch, and who made it.
type Moved struct {
	Before, After string // zeros: there was none, there is none
	At            time.Time
	Actor         Account // ID 0: GitHub does not say
}

// Moves lists the latest hundred moves of a branch, the latest first.
func (c *Client) Moves(ctx context.Context, repo Repo, branch string) ([]Moved, error) {
	var out []Moved
	err := c.in(ctx, repo, "list who pushed to "+branch+" of "+repo.String(), func(api *gh.Client, r Repo) error {
		var list []struct {
			Before    string    `json:"before"`
			After     string    `json:"after"`
			Ref       string    `json:"ref"`
			Timestamp time.Time `json:"timestamp"`
			Actor     *struct {
				ID    int64  `json:"id"`
				Login string `json:"login"`
				Type  string `json:"type"`
			} `json:"actor"`
		}
		_, err := fetch(ctx, api, fmt.Sprintf("repos/%s/%s/activity?per_page=100&ref=%s", r.Owner, r.Name, url.QueryEscape("refs/heads/"+branch)), &list)
		out = nil
		for _, a := range list {
			if a.Ref != "refs/heads/"+branch { // GitHub ignores a filter that it does not understand
				continue
			}
			m := Moved{Before: a.Before, After: a.After, At: a.Timestamp}
			if a.Actor != nil {
				m.Actor = Account{a.Actor.ID, a.Actor.Login, a.Actor.Type == "Bot" || strings.HasSuffix(a.Actor.Login, "[bot]")}
			}
			out = append(out, m)
		}
		return err
	})
	return out, err
}
