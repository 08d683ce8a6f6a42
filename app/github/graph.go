package github

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// What only GraphQL tells. Questions are constants: what varies goes as a
// variable, so that no text of anybody's is read as GraphQL.

// threadsQuestion asks about the newest hundred threads and reviews of a pull
// request. Ids beyond 32 bits are told as fullDatabaseId only.
const threadsQuestion = `query($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) {
    databaseId
    pullRequest(number: $number) {
      reviewThreads(last: 100) { nodes { isResolved isOutdated comments(first: 1) { nodes { fullDatabaseId } } } }
      reviews(last: 100) { nodes { fullDatabaseId lastEditedAt } }
    }
  }
}`

// questions are all that may be asked.
var questions = []string{threadsQuestion}

// Threads is what is known of the review threads and reviews of a pull request.
type Threads struct {
	Resolved map[int64]bool      // by a thread's first comment
	Outdated map[int64]bool      // the same: the lines it is about have changed
	Edited   map[int64]time.Time // by review: when it was last edited, of those that were
}

// Threads tells which review threads of a pull request are resolved, and which
// reviews were edited: of the newest hundred each.
func (c *Client) Threads(ctx context.Context, repo Repo, number int) (Threads, error) {
	op := fmt.Sprintf("ask which review threads of %s#%d are resolved", repo, number)
	out := Threads{map[int64]bool{}, map[int64]bool{}, map[int64]time.Time{}}
	var got struct {
		Repository struct {
			ID   int64 `json:"databaseId"`
			Pull *struct {
				Threads nodes[struct {
					Resolved bool `json:"isResolved"`
					Outdated bool `json:"isOutdated"`
					Comments nodes[struct {
						ID bigInt `json:"fullDatabaseId"`
					}] `json:"comments"`
				}] `json:"reviewThreads"`
				Reviews nodes[struct {
					ID     bigInt     `json:"fullDatabaseId"`
					Edited *time.Time `json:"lastEditedAt"`
				}] `json:"reviews"`
			} `json:"pullRequest"`
		} `json:"repository"`
	}
	if err := c.ask(ctx, repo, op, threadsQuestion, map[string]any{"owner": repo.Owner, "name": repo.Name, "number": number}, &got); err != nil {
		return out, err
	}
	if got.Repository.ID != repo.ID || got.Repository.Pull == nil {
		return out, &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	for _, t := range got.Repository.Pull.Threads.Nodes {
		if len(t.Comments.Nodes) == 1 {
			first := int64(t.Comments.Nodes[0].ID)
			out.Resolved[first], out.Outdated[first] = t.Resolved, t.Outdated
		}
	}
	for _, r := range got.Repository.Pull.Reviews.Nodes {
		if r.Edited != nil {
			out.Edited[int64(r.ID)] = *r.Edited
		}
	}
	return out, nil
}

type nodes[T any] struct {
	Nodes []T `json:"nodes"`
}

// bigInt is GraphQL's BigInt: a number in quotes, or one.
type bigInt int64

// UnmarshalJSON implements json.Unmarshaler.
func (b *bigInt) UnmarshalJSON(body []byte) error {
	return json.Unmarshal([]byte(strings.Trim(string(body), `"`)), (*int64)(b))
}

// ask puts a question to GraphQL, which answers 200 also where it refuses.
func (c *Client) ask(ctx context.Context, repo Repo, op, question string, variables map[string]any, into any) error {
	if err := repo.check(); err != nil {
		return err
	}
	var said struct {
		Data   json.RawMessage `json:"data"`
		Errors []struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	err := c.call(ctx, repo.ID, op, func(api *gh.Client) error {
		req, err := api.NewRequest(http.MethodPost, c.app.bases.GraphQL, map[string]any{"query": question, "variables": variables})
		if err != nil {
			return err
		}
		_, err = api.Do(ctx, req, &said)
		return err
	})
	if err != nil {
		return err
	}
	if len(said.Errors) > 0 {
		e := &Error{Op: op, Kind: ErrInvalid, Status: http.StatusOK, Message: c.app.redactor.String(said.Errors[0].Message)}
		switch said.Errors[0].Type {
		case "NOT_FOUND":
			e.Kind = ErrNotFound
		case "FORBIDDEN":
			e.Kind = ErrDenied
		case "RATE_LIMITED", "":
			e.Kind = ErrUnavailable
		}
		return e
	}
	if err := json.Unmarshal(said.Data, into); err != nil {
		return &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer cannot be read")}
	}
	return nil
}
