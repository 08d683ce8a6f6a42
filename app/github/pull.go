package github

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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

// CommitTime is when a commit says that it was made. Whoever makes it can say
// what they like.
func (c *Client) CommitTime(ctx context.Context, repo Repo, sha string) (time.Time, error) {
	var got *gh.Commit
	err := c.in(ctx, repo, fmt.Sprintf("read commit %.12s of %s", sha, repo), func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.Git.GetCommit(ctx, r.Owner, r.Name, sha)
		return err
	})
	return got.GetCommitter().GetDate().Time, err
}

// Protected says whether a branch is protected, by rules of whatever kind.
func (c *Client) Protected(ctx context.Context, repo Repo, branch string) (bool, error) {
	var got struct {
		Name      string `json:"name"`
		Protected bool   `json:"protected"`
	}
	op := "ask whether " + branch + " of " + repo.String() + " is protected"
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		req, err := api.NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/branches/%s", r.Owner, r.Name, url.PathEscape(branch)), nil)
		if err != nil {
			return err
		}
		_, err = api.Do(ctx, req, &got)
		return err
	})
	if err == nil && got.Name != branch {
		err = &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	return got.Protected, err
}

// ReactReviewComment puts a reaction on a comment of a review.
func (c *Client) ReactReviewComment(ctx context.Context, repo Repo, commentID int64, content string) error {
	return c.in(ctx, repo, fmt.Sprintf("react to review comment %d in %s", commentID, repo), func(api *gh.Client, r Repo) error {
		_, _, err := api.Reactions.CreatePullRequestCommentReaction(ctx, r.Owner, r.Name, commentID, content)
		return err
	})
}

// ReviewComment is a comment on a line of a pull request.
type ReviewComment struct {
	Comment
	Path      string
	Line      int   // in the head; 0: its line is not there any more, or it is about the file
	InReplyTo int64 // the first comment of its thread; 0: it is that
}

// Review of a pull request.
type Review struct {
	Comment
	State    string // "APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED"
	CommitID string
}

// ReviewComments lists the comments on lines of a pull request, oldest first,
// at most a thousand.
func (c *Client) ReviewComments(ctx context.Context, repo Repo, number int) ([]ReviewComment, error) {
	var out []ReviewComment
	err := readAll(ctx, c, repo, fmt.Sprintf("pulls/%d/comments", number), func(a struct {
		apiComment
		Path      string `json:"path"`
		Line      int    `json:"line"`
		InReplyTo int64  `json:"in_reply_to_id"`
	}) {
		out = append(out, ReviewComment{a.comment(), a.Path, a.Line, a.InReplyTo})
	})
	return out, err
}

// Reviews lists the reviews of a pull request, oldest first, at most a
// thousand. GitHub does not say when one was edited.
func (c *Client) Reviews(ctx context.Context, repo Repo, number int) ([]Review, error) {
	var out []Review
	err := readAll(ctx, c, repo, fmt.Sprintf("pulls/%d/reviews", number), func(a struct {
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

// readAll reads the pages of a list below a repository.
func readAll[T any](ctx context.Context, c *Client, repo Repo, path string, each func(T)) error {
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

// FailedCheck is a check run of a commit that did not pass.
type FailedCheck struct {
	ID         int64
	AppID      int64
	App        string // slug; "github-actions" runs have a log, see JobLog
	Name       string
	Conclusion string
	Title      string
	Summary    string
	Text       string
}

// FailedChecks lists the latest check runs of a commit that failed, at most a
// hundred are looked at.
func (c *Client) FailedChecks(ctx context.Context, repo Repo, sha string) ([]FailedCheck, error) {
	var out []FailedCheck
	err := c.in(ctx, repo, fmt.Sprintf("read the check runs of %s@%.12s", repo, sha), func(api *gh.Client, r Repo) error {
		latest := "latest"
		got, _, err := api.Checks.ListCheckRunsForRef(ctx, r.Owner, r.Name, sha, &gh.ListCheckRunsOptions{Filter: &latest, ListOptions: gh.ListOptions{PerPage: 100}})
		if err != nil {
			return err
		}
		out = nil
		for _, run := range got.CheckRuns {
			switch run.GetConclusion() {
			case "failure", "timed_out", "startup_failure":
				o := run.GetOutput()
				out = append(out, FailedCheck{
					run.GetID(), run.GetApp().GetID(), run.GetApp().GetSlug(), run.GetName(), run.GetConclusion(), o.GetTitle(), o.GetSummary(), o.GetText(),
				})
			}
		}
		return nil
	})
	return out, err
}

// maxJobLog is how much of a job's log is read for its end.
const maxJobLog = 16 << 20

// JobLog is the end, at most n bytes, of the log of a job of GitHub Actions,
// whose number is that of its check run. GitHub has logs on another host, which
// is asked without our token. It needs the permission to read Actions.
func (c *Client) JobLog(ctx context.Context, repo Repo, job int64, n int) (string, error) {
	op := fmt.Sprintf("read the log of job %d of %s", job, repo)
	var at string
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		req, err := api.NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/actions/jobs/%d/logs", r.Owner, r.Name, job), nil)
		if err != nil {
			return err
		}
		resp, err := api.BareDo(context.WithValue(ctx, elsewhere{}, &at), req)
		if at != "" {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("GitHub answered %d and not where the log is", resp.StatusCode)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, c.app.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil || req.URL.Scheme != "https" && req.URL.Scheme != c.app.api.Scheme || req.URL.User != nil {
		return "", &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub names no address that a log is read from")}
	}
	resp, err := c.app.http.RoundTrip(req)
	if err != nil {
		return "", &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("the host that has it does not answer")} // the address is a credential
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", &Error{Op: op, Kind: ErrUnavailable, Cause: fmt.Errorf("the host that has it answered %d", resp.StatusCode)}
	}
	tail := make([]byte, 0, 2*n)
	buf := make([]byte, 32<<10)
	for left := maxJobLog; left > 0; {
		k, err := resp.Body.Read(buf[:min(len(buf), left)])
		left -= k
		if tail = append(tail, buf[:k]...); len(tail) > n {
			tail = append(tail[:0], tail[len(tail)-n:]...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("the log broke off")}
		}
	}
	return string(tail), nil
}

// elsewhere marks a request whose redirect to another host is not followed but
// written down.
type elsewhere struct{}

type onPull struct{}

// OnPull marks what is said in the conversation of a pull request: it takes
// another permission than that of an issue.
func OnPull(ctx context.Context) context.Context { return context.WithValue(ctx, onPull{}, true) }

// purposeOf is what the token for a request is minted for.
func purposeOf(ctx context.Context, r *route) purpose {
	if r.purpose == forTalking && ctx.Value(onPull{}) != nil {
		return forPulls
	}
	if r.purpose == forPulls && ctx.Value(withTeams{}) != nil {
		return forTeams
	}
	return r.purpose
}
