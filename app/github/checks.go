package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// CheckRun is a check run as we send it. Texts are redacted and cut at GitHub's
// limits in bytes.
type CheckRun struct {
	Name       string
	HeadSHA    string // only when it is created
	ExternalID string // session and attempt: FindCheckRun looks for it
	DetailsURL string
	Status     string // "queued", "in_progress" or "completed"
	Conclusion string // with "completed" only
	Started    time.Time
	Completed  time.Time
	Title      string
	Summary    string
	Text       string
	// Annotations are appended to those that are there already, fifty with each
	// request. Leave them out when an update is repeated.
	Annotations []Annotation
	Actions     []Action // at most three; shown once it is completed
}

// Action is a button of a check run.
type Action struct {
	Label       string `json:"label"`       // GitHub: at most 20 characters
	Description string `json:"description"` // 40
	Identifier  string `json:"identifier"`  // 20
}

// Annotation is a remark on lines of a file.
type Annotation struct {
	Path      string `json:"path"` // relative to the repository
	StartLine int    `json:"start_line"`
	EndLine   int    `json:"end_line"`
	Level     string `json:"annotation_level"` // "notice", "warning" or "failure"
	Title     string `json:"title,omitempty"`
	Message   string `json:"message"`
}

// apiCheckRun is what goes over the wire. Not the library's types: they leave
// out an empty list of actions, so that buttons could never be taken away.
type apiCheckRun struct {
	Name        string          `json:"name,omitempty"`
	HeadSHA     string          `json:"head_sha,omitempty"`
	ExternalID  string          `json:"external_id,omitempty"`
	DetailsURL  string          `json:"details_url,omitempty"`
	Status      string          `json:"status,omitempty"`
	Conclusion  string          `json:"conclusion,omitempty"`
	StartedAt   string          `json:"started_at,omitempty"`
	CompletedAt string          `json:"completed_at,omitempty"`
	Output      *apiCheckOutput `json:"output,omitempty"`
	Actions     []Action        `json:"actions"`
}

type apiCheckOutput struct {
	Title       string       `json:"title"`
	Summary     string       `json:"summary"` // GitHub wants it with every output, also in updates
	Text        string       `json:"text,omitempty"`
	Annotations []Annotation `json:"annotations,omitempty"`
}

func (r CheckRun) wire() apiCheckRun {
	stamp := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	w := apiCheckRun{
		Name: r.Name, HeadSHA: r.HeadSHA, ExternalID: r.ExternalID, DetailsURL: r.DetailsURL,
		Status: r.Status, Conclusion: r.Conclusion,
		StartedAt: stamp(r.Started), CompletedAt: stamp(r.Completed),
		Actions: append([]Action{}, r.Actions...),
	}
	if r.Title != "" || r.Summary != "" || r.Text != "" || len(r.Annotations) > 0 {
		w.Output = &apiCheckOutput{Title: r.Title, Summary: r.Summary, Text: r.Text}
		if w.Output.Summary == "" {
			w.Output.Summary = r.Title
		}
	}
	return w
}

func (r CheckRun) check(create bool) error {
	switch {
	case r.Name == "":
		return fmt.Errorf("%w: a check run without a name", ErrInvalid)
	case create && !forms["sha"].MatchString(r.HeadSHA):
		return fmt.Errorf("%w: a check run on %q, which is no commit", ErrInvalid, r.HeadSHA)
	case (r.Status == "completed") != (r.Conclusion != ""):
		return fmt.Errorf("%w: a check run with status %q and conclusion %q", ErrInvalid, r.Status, r.Conclusion)
	}
	return nil
}

// CreateCheckRun creates a check run on run.HeadSHA and returns its id. If the
// run was created and only further annotations failed, the id comes with the
// error.
func (c *Client) CreateCheckRun(ctx context.Context, repo Repo, run CheckRun) (int64, error) {
	if err := run.check(true); err != nil {
		return 0, err
	}
	op := fmt.Sprintf("create the check run %q on %s@%.12s", run.Name, repo, run.HeadSHA)
	first, rest := run.batch()
	var id int64
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		got, err := sendCheckRun(ctx, api, http.MethodPost, fmt.Sprintf("repos/%s/%s/check-runs", r.Owner, r.Name), first)
		id = got
		return err
	})
	if id, err = created(id, op, err); err != nil {
		return 0, err
	}
	return id, c.appendAnnotations(ctx, repo, id, run, rest)
}

// UpdateCheckRun replaces what a check run says. HeadSHA and Started are left
// as they are.
func (c *Client) UpdateCheckRun(ctx context.Context, repo Repo, id int64, run CheckRun) error {
	if err := run.check(false); err != nil {
		return err
	}
	run.HeadSHA, run.Started = "", time.Time{}
	first, rest := run.batch()
	if err := c.patchCheckRun(ctx, repo, id, first); err != nil {
		return err
	}
	return c.appendAnnotations(ctx, repo, id, run, rest)
}

// batch is the request with the first fifty annotations, and the others.
func (r CheckRun) batch() (apiCheckRun, []Annotation) {
	w := r.wire()
	n := min(len(r.Annotations), perBatch)
	if n > 0 {
		w.Output.Annotations = r.Annotations[:n]
	}
	return w, r.Annotations[n:]
}

// Annotate appends the annotations of run, at most fifty, to those of the check
// run that was created like it.
func (c *Client) Annotate(ctx context.Context, repo Repo, id int64, run CheckRun) error {
	if len(run.Annotations) > perBatch {
		return fmt.Errorf("%w: %d annotations at once", ErrInvalid, len(run.Annotations))
	}
	return c.appendAnnotations(ctx, repo, id, run, run.Annotations)
}

func (c *Client) appendAnnotations(ctx context.Context, repo Repo, id int64, run CheckRun, rest []Annotation) error {
	for len(rest) > 0 {
		n := min(len(rest), perBatch)
		next := run.wire()
		next = apiCheckRun{Name: next.Name, Output: next.Output, Actions: next.Actions}
		next.Output.Annotations = rest[:n]
		if err := c.patchCheckRun(ctx, repo, id, next); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func (c *Client) patchCheckRun(ctx context.Context, repo Repo, id int64, run apiCheckRun) error {
	return c.in(ctx, repo, fmt.Sprintf("update check run %d in %s", id, repo), func(api *gh.Client, r Repo) error {
		_, err := sendCheckRun(ctx, api, http.MethodPatch, fmt.Sprintf("repos/%s/%s/check-runs/%d", r.Owner, r.Name, id), run)
		return err
	})
}

func sendCheckRun(ctx context.Context, api *gh.Client, method, u string, run apiCheckRun) (int64, error) {
	req, err := api.NewRequest(method, u, run)
	if err != nil {
		return 0, err
	}
	var got struct {
		ID int64 `json:"id"`
	}
	_, err = api.Do(ctx, req, &got)
	return got.ID, err
}

// FindCheckRun looks on a commit for the check run of this App with an external id.
func (c *Client) FindCheckRun(ctx context.Context, repo Repo, sha, externalID string) (id int64, found bool, err error) {
	run, err := c.findCheckRun(ctx, repo, sha, externalID)
	return run.GetID(), run != nil, err
}

// CountAnnotations says how many annotations such a check run has; 0 also if
// there is none.
func (c *Client) CountAnnotations(ctx context.Context, repo Repo, sha, externalID string) (int, error) {
	run, err := c.findCheckRun(ctx, repo, sha, externalID)
	return run.GetOutput().GetAnnotationsCount(), err
}

func (c *Client) findCheckRun(ctx context.Context, repo Repo, sha, externalID string) (found *gh.CheckRun, err error) {
	err = c.in(ctx, repo, fmt.Sprintf("look for our check run on %s@%.12s", repo, sha), func(api *gh.Client, r Repo) error {
		all := "all" // "latest" hides the run of another session with the same name
		_, err := pages(10, func(o gh.ListOptions) (*gh.Response, error) {
			got, resp, err := api.Checks.ListCheckRunsForRef(ctx, r.Owner, r.Name, sha,
				&gh.ListCheckRunsOptions{Filter: &all, AppID: &c.app.id, ListOptions: o})
			if err != nil {
				return nil, err
			}
			for _, run := range got.CheckRuns {
				if found == nil && run.GetExternalID() == externalID && run.GetApp().GetID() == c.app.id {
					found = run
				}
			}
			return resp, nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// created checks that a creation came back with an id: without one it is not
// known what happened.
func created(id int64, op string, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	if id <= 0 {
		return 0, &Error{Op: op, Kind: ErrAmbiguous, Cause: errors.New("GitHub's answer holds no id")}
	}
	return id, nil
}

// isKind says whether GitHub's answer to the request itself was of that kind.
func isKind(err, kind error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}
