package github

import (
	"context"
	"fmt"
	"strings"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// What is asked to find what no event told of.

// Labelled is an open issue or pull request that carries a label.
type Labelled struct {
	ID       int64
	Number   int
	Title    string
	Body     string
	Author   string
	AuthorID int64
	Locked   bool
	Pull     bool
	Comments int
	Updated  time.Time
	Labels   []Label
}

// Label of a repository.
type Label struct {
	ID   int64
	Name string
}

// OpenLabelled lists the open issues and pull requests of a repository that
// carry a label and changed since a time, at most a thousand, the latest first.
func (c *Client) OpenLabelled(ctx context.Context, repo Repo, label string, since time.Time) ([]Labelled, error) {
	var out []Labelled
	err := c.in(ctx, repo, "list the issues of "+repo.String()+" with the label "+label, func(api *gh.Client, r Repo) error {
		out = nil
		_, err := pages(10, func(o gh.ListOptions) (*gh.Response, error) {
			list, resp, err := api.Issues.ListByRepo(ctx, r.Owner, r.Name, &gh.IssueListByRepoOptions{
				State: "open", Labels: []string{label}, Sort: "updated", Direction: "desc", Since: since, ListOptions: o,
			})
			for _, i := range list {
				out = append(out, labelled(i))
			}
			return resp, err
		})
		return err
	})
	return out, err
}

func labelled(i *gh.Issue) Labelled {
	l := Labelled{
		ID: i.GetID(), Number: i.GetNumber(), Title: i.GetTitle(), Body: i.GetBody(), Author: i.GetUser().GetLogin(), AuthorID: i.GetUser().GetID(),
		Locked: i.GetLocked(), Pull: i.IsPullRequest(), Comments: i.GetComments(), Updated: i.GetUpdatedAt().Time,
	}
	for _, name := range i.Labels {
		l.Labels = append(l.Labels, Label{name.GetID(), name.GetName()})
	}
	return l
}

// Labelling says who put a label on an issue, and when.
type Labelling struct {
	Actor Account
	At    time.Time
}

// Account of a person or a bot.
type Account struct {
	ID    int64
	Login string
	Bot   bool
}

// LastLabelling is the latest time that a label was put on an issue. False: its
// events, of which at most a thousand are read, do not tell.
func (c *Client) LastLabelling(ctx context.Context, repo Repo, issue int, label string) (Labelling, bool, error) {
	var last Labelling
	err := c.in(ctx, repo, fmt.Sprintf("list the events of issue %d of %s", issue, repo), func(api *gh.Client, r Repo) error {
		last = Labelling{}
		_, err := pages(10, func(o gh.ListOptions) (*gh.Response, error) {
			list, resp, err := api.Issues.ListIssueEvents(ctx, r.Owner, r.Name, issue, &o)
			for _, e := range list {
				at := e.GetCreatedAt().Time
				if e.GetEvent() == "labeled" && strings.EqualFold(e.GetLabel().GetName(), label) && !at.Before(last.At) {
					u := e.GetActor()
					last = Labelling{Account{u.GetID(), u.GetLogin(), u.GetType() == "Bot"}, at}
				}
			}
			return resp, err
		})
		return err
	})
	return last, !last.At.IsZero(), err
}
