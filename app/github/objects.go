package github

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"

	gh "github.com/google/go-github/v60/github"

	"inspect/envs/wire"
)

// Limits of what is sent of one commit, in bytes.
const (
	MaxBlob       = 12 << 20 // of one file
	MaxTreeInline = 4 << 20  // of the files that are sent with a tree
)

// as is a client whose every request has a token that was minted for one push.
func (c *Client) as(token wire.GitToken) *Client {
	return &Client{app: c.app, installation: c.installation, pace: c.pace, bearer: func(context.Context, int64, purpose) (string, error) { return token.Token, nil }}
}

// NewCommit is a commit for GitHub to make.
type NewCommit struct {
	Message  string
	Parent   string
	BaseTree string // the tree that it is made from, which GitHub has
	Tree     string // the tree that must come of it
	Files    []TreeEntry
}

// TreeEntry is a path of a new tree that is not as in the tree it is made from.
type TreeEntry struct {
	Path string
	Mode uint32 // of git, as in 0o100755; of what is taken away, that which it has
	// SHA is the file's, if GitHub has its content already, or the submodule's.
	SHA string
	// Text is the file's content, if SHA is empty; nil: the path is taken away.
	Text *string
	// Alone: the content is sent in a request of its own, because it is no text or
	// too large to go with the others.
	Alone bool
}

// MadeCommit is a commit that GitHub made, and what it says of its signature.
type MadeCommit struct {
	SHA      string // empty if GitHub made another tree than was wanted, and so no commit
	Tree     string
	Verified bool
	Reason   string // GitHub's word: "valid", "unsigned", …
}

// SignedCommit has GitHub make a commit that no branch has. It names the App as
// its author and signs it, because it is not told of an author, committer or
// signature (docs: signature verification for bots). What no branch has nobody
// sees, so that to repeat it does no harm; made again it has another time, and
// another SHA. token is one of PushToken.
func (c *Client) SignedCommit(ctx context.Context, repo Repo, token wire.GitToken, n NewCommit) (MadeCommit, error) {
	c = c.as(token)
	files := slices.Clone(n.Files)
	for i, f := range files {
		if !f.Alone {
			continue
		}
		sha, err := c.createBlob(ctx, repo, []byte(*f.Text))
		if err != nil {
			return MadeCommit{}, err
		}
		files[i].SHA, files[i].Text = sha, nil
	}
	tree, err := c.createTree(ctx, repo, n.BaseTree, files)
	if err != nil || tree != n.Tree {
		return MadeCommit{Tree: tree}, err
	}
	return c.createCommit(ctx, repo, n)
}

func (c *Client) createBlob(ctx context.Context, repo Repo, content []byte) (string, error) {
	return c.create(ctx, repo, "give a file to "+repo.String(), "git/blobs", map[string]string{
		"content": base64.StdEncoding.EncodeToString(content), "encoding": "base64",
	})
}

func (c *Client) createTree(ctx context.Context, repo Repo, base string, entries []TreeEntry) (string, error) {
	type entry struct {
		Path    string  `json:"path"`
		Mode    string  `json:"mode"`
		Type    string  `json:"type"`
		SHA     *string `json:"sha,omitempty"`
		Content *string `json:"content,omitempty"`
	}
	type gone struct {
		Path string  `json:"path"`
		Mode string  `json:"mode"`
		Type string  `json:"type"`
		SHA  *string `json:"sha"` // null
	}
	list := make([]any, len(entries))
	for i, e := range entries {
		one := entry{Path: e.Path, Mode: fmt.Sprintf("%06o", e.Mode), Type: "blob", Content: e.Text}
		if e.Mode == 0o160000 {
			one.Type = "commit"
		}
		switch {
		case e.SHA != "":
			one.SHA = &e.SHA
		case e.Text == nil:
			list[i] = gone{Path: one.Path, Mode: one.Mode, Type: one.Type}
			continue
		}
		list[i] = one
	}
	return c.create(ctx, repo, "make a tree in "+repo.String(), "git/trees", map[string]any{"base_tree": base, "tree": list})
}

// create makes a git object and returns its SHA.
func (c *Client) create(ctx context.Context, repo Repo, op, path string, body any) (string, error) {
	var got struct {
		SHA string `json:"sha"`
	}
	if err := c.post(ctx, repo, http.MethodPost, op, path, body, &got); err != nil {
		return "", err
	}
	if !forms["sha"].MatchString(got.SHA) {
		return "", &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer does not say what was made")}
	}
	return got.SHA, nil
}

// post sends a body and reads the answer.
func (c *Client) post(ctx context.Context, repo Repo, method, op, path string, body, into any) error {
	return c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		req, err := api.NewRequest(method, fmt.Sprintf("repos/%s/%s/%s", r.Owner, r.Name, path), body)
		if err != nil {
			return err
		}
		_, err = api.Do(ctx, req, into)
		return err
	})
}

func (c *Client) createCommit(ctx context.Context, repo Repo, n NewCommit) (MadeCommit, error) {
	op := "make a commit in " + repo.String()
	var got struct {
		SHA  string `json:"sha"`
		Tree struct {
			SHA string `json:"sha"`
		} `json:"tree"`
		Parents []struct {
			SHA string `json:"sha"`
		} `json:"parents"`
		Verification struct {
			Verified bool   `json:"verified"`
			Reason   string `json:"reason"`
		} `json:"verification"`
	}
	err := c.post(ctx, repo, http.MethodPost, op, "git/commits", map[string]any{"message": n.Message, "tree": n.Tree, "parents": []string{n.Parent}}, &got)
	switch {
	case err != nil:
		return MadeCommit{}, err
	case !forms["sha"].MatchString(got.SHA) || got.Tree.SHA != n.Tree || len(got.Parents) != 1 || got.Parents[0].SHA != n.Parent:
		return MadeCommit{}, &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	return MadeCommit{SHA: got.SHA, Tree: got.Tree.SHA, Verified: got.Verification.Verified, Reason: got.Verification.Reason}, nil
}

// PutBranch makes a branch of a commit that GitHub has, if from is empty: there
// must be none of that name (ErrExists). Else it moves the branch from there to
// a commit that builds upon it; GitHub refuses (ErrInvalid) to move it from
// where that is not so, since nothing is ever forced.
func (c *Client) PutBranch(ctx context.Context, repo Repo, token wire.GitToken, branch, from, sha string) error {
	if from == "" {
		return c.as(token).post(ctx, repo, http.MethodPost, "make the branch "+branch+" of "+repo.String(), "git/refs",
			map[string]string{"ref": "refs/heads/" + branch, "sha": sha}, nil)
	}
	return c.as(token).post(ctx, repo, http.MethodPatch, "move the branch "+branch+" of "+repo.String(), "git/refs/heads/"+escapeRef(branch),
		map[string]string{"sha": sha}, nil)
}

type withTeams struct{}

// RequestReviewers asks people, by login, and teams of the repository's owner,
// by slug, to review a pull request. GitHub asks nobody (ErrInvalid) if one of
// them cannot be asked. Teams need the permission to read members (ErrDenied).
func (c *Client) RequestReviewers(ctx context.Context, repo Repo, number int, people, teams []string) error {
	body := map[string][]string{}
	if len(people) > 0 {
		body["reviewers"] = people
	}
	if len(teams) > 0 {
		body["team_reviewers"] = teams
		ctx = context.WithValue(ctx, withTeams{}, true)
	}
	return c.post(ctx, repo, http.MethodPost, fmt.Sprintf("ask for a review of %s#%d", repo, number), fmt.Sprintf("pulls/%d/requested_reviewers", number), body, nil)
}

// Reviewers are the people, by login, and teams, by slug, who were asked to
// review a pull request and have not done it yet.
func (c *Client) Reviewers(ctx context.Context, repo Repo, number int) (people, teams []string, err error) {
	var got *gh.Reviewers
	err = c.in(ctx, repo, fmt.Sprintf("read who reviews %s#%d", repo, number), func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.PullRequests.ListReviewers(ctx, r.Owner, r.Name, number, nil)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, u := range got.Users {
		people = append(people, u.GetLogin())
	}
	for _, t := range got.Teams {
		teams = append(teams, t.GetSlug())
	}
	return people, teams, nil
}
