package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// Comment on an issue or pull request, as it is now.
type Comment struct {
	ID          int64
	UserID      int64
	Login       string
	Bot         bool // GitHub calls the account a bot
	AppID       int64
	Association string // a hint only, never a decision about rights
	Body        string
	Created     time.Time
	Updated     time.Time
}

// apiComment is decoded by ourselves: the library's type drops the App.
type apiComment struct {
	ID   int64 `json:"id"`
	User struct {
		ID    int64  `json:"id"`
		Login string `json:"login"`
		Type  string `json:"type"`
	} `json:"user"`
	App *struct {
		ID int64 `json:"id"`
	} `json:"performed_via_github_app"`
	Association string    `json:"author_association"`
	Body        string    `json:"body"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

func (a apiComment) comment() Comment {
	c := Comment{
		ID: a.ID, UserID: a.User.ID, Login: a.User.Login, Bot: a.User.Type == "Bot",
		Association: a.Association, Body: a.Body, Created: a.CreatedAt, Updated: a.UpdatedAt,
	}
	if a.App != nil {
		c.AppID = a.App.ID
	}
	return c
}

// maxCommentPages of a hundred comments are read of one issue.
const maxCommentPages = 10

// ReactIssue puts a reaction ("eyes") on an issue. It being there already is
// success.
func (c *Client) ReactIssue(ctx context.Context, repo Repo, issue int, content string) error {
	return c.in(ctx, repo, fmt.Sprintf("react to %s#%d", repo, issue), func(api *gh.Client, r Repo) error {
		_, _, err := api.Reactions.CreateIssueReaction(ctx, r.Owner, r.Name, issue, content)
		return err
	})
}

// ReactComment puts a reaction on a comment.
func (c *Client) ReactComment(ctx context.Context, repo Repo, commentID int64, content string) error {
	return c.in(ctx, repo, fmt.Sprintf("react to comment %d in %s", commentID, repo), func(api *gh.Client, r Repo) error {
		_, _, err := api.Reactions.CreateIssueCommentReaction(ctx, r.Owner, r.Name, commentID, content)
		return err
	})
}

// CreateComment writes a comment on an issue or pull request and returns its
// id. The body is redacted and cut at MaxComment bytes: a marker to find it by
// belongs at its beginning.
func (c *Client) CreateComment(ctx context.Context, repo Repo, issue int, body string) (int64, error) {
	op := fmt.Sprintf("comment on %s#%d", repo, issue)
	var id int64
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		got, _, err := api.Issues.CreateComment(ctx, r.Owner, r.Name, issue, &gh.IssueComment{Body: &body})
		id = got.GetID()
		return err
	})
	return created(id, op, err)
}

// EditComment replaces the text of one of our comments.
func (c *Client) EditComment(ctx context.Context, repo Repo, id int64, body string) error {
	return c.in(ctx, repo, fmt.Sprintf("edit comment %d in %s", id, repo), func(api *gh.Client, r Repo) error {
		_, _, err := api.Issues.EditComment(ctx, r.Owner, r.Name, id, &gh.IssueComment{Body: &body})
		return err
	})
}

// FindComment looks for the oldest comment of this App that holds marker.
// Others may have copied the marker: their comments do not count.
func (c *Client) FindComment(ctx context.Context, repo Repo, issue int, marker string) (id int64, found bool, err error) {
	all, err := c.Comments(ctx, repo, issue)
	if err != nil {
		return 0, false, err
	}
	for _, m := range all {
		if !strings.Contains(m.Body, marker) {
			continue
		}
		ours := m.AppID == c.app.id
		if !ours && m.Bot && m.AppID == 0 { // GitHub does not always name the App
			bot, err := c.app.Bot(ctx)
			if err != nil {
				return 0, false, err
			}
			ours = m.UserID == bot.ID
		}
		if ours {
			return m.ID, true, nil
		}
	}
	return 0, false, nil
}

// Comments lists the comments of an issue or pull request, oldest first, at
// most a thousand.
func (c *Client) Comments(ctx context.Context, repo Repo, issue int) ([]Comment, error) {
	var out []Comment
	err := c.in(ctx, repo, fmt.Sprintf("read the comments of %s#%d", repo, issue), func(api *gh.Client, r Repo) error {
		out = nil
		_, err := pages(maxCommentPages, func(o gh.ListOptions) (*gh.Response, error) {
			u := fmt.Sprintf("repos/%s/%s/issues/%d/comments?per_page=%d&page=%d", r.Owner, r.Name, issue, o.PerPage, o.Page)
			req, err := api.NewRequest(http.MethodGet, u, nil)
			if err != nil {
				return nil, err
			}
			var page []apiComment
			resp, err := api.Do(ctx, req, &page)
			for _, m := range page {
				out = append(out, m.comment())
			}
			return resp, err
		})
		return err
	})
	return out, err
}

// Issue is an issue, or a pull request as its conversation shows it, as it is now.
type Issue struct {
	Labelled
	State string // "open" or "closed"
}

// Issue reads an issue by its number.
func (c *Client) Issue(ctx context.Context, repo Repo, number int) (Issue, error) {
	var got *gh.Issue
	op := fmt.Sprintf("read %s#%d", repo, number)
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.Issues.Get(ctx, r.Owner, r.Name, number)
		return err
	})
	if err != nil {
		return Issue{}, err
	}
	if got.GetNumber() != number {
		// One that was moved to another repository is answered for there.
		return Issue{}, &Error{Op: op, Kind: ErrNotFound, Cause: errors.New("GitHub's answer is about something else")}
	}
	return Issue{labelled(got), got.GetState()}, nil
}

// RemoveLabel takes a label off an issue. It not being there is success.
func (c *Client) RemoveLabel(ctx context.Context, repo Repo, issue int, label string) error {
	err := c.in(ctx, repo, fmt.Sprintf("take the label %q off %s#%d", label, repo, issue), func(api *gh.Client, r Repo) error {
		// The library puts the label into the path as it is: "a#b" would take off "a".
		_, err := api.Issues.RemoveLabelForIssue(ctx, r.Owner, r.Name, issue, url.PathEscape(label))
		return err
	})
	if isKind(err, ErrNotFound) {
		return nil
	}
	return err
}
