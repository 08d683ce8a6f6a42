package intake

import (
	"strings"
	"time"

	"inspect/app/policy"
	"inspect/checks/redact"
)

// payload is what we read of a delivery. GitHub leaves out or nulls anything
// at times, so everything may be missing.
type payload struct {
	Action              string        `json:"action"`
	Installation        *installation `json:"installation"`
	Repository          *repository   `json:"repository"`
	Repositories        []repository  `json:"repositories"`
	RepositoriesAdded   []repository  `json:"repositories_added"`
	RepositoriesRemoved []repository  `json:"repositories_removed"`
	Sender              *account      `json:"sender"`
	Issue               *issue        `json:"issue"`
	Label               *label        `json:"label"`
	Comment             *posted       `json:"comment"`
	PullRequest         *pulled       `json:"pull_request"`
	Review              *posted       `json:"review"`
	CheckRun            *checkRun     `json:"check_run"`
	CheckSuite          *checkSuite   `json:"check_suite"`
	RequestedAction     *struct {
		Identifier string `json:"identifier"`
	} `json:"requested_action"`
	MergeGroup *mergeGroup `json:"merge_group"`
	Pressed    *Pressed    `json:"pressed"` // of pageEvent
	Step       *Stepped    `json:"step"`    // of stepEvent
	Changes    *changes    `json:"changes"`
	Before     string      `json:"before"`  // of a push, or of a pull request's head
	After      string      `json:"after"`   // the same
	Forced     bool        `json:"forced"`  // a push that is no fast-forward
	Ref        string      `json:"ref"`     // of a push: refs/heads/…
	Deleted    bool        `json:"deleted"` // a push that deleted Ref
	Commits    []landing   `json:"commits"` // of a push
}

type installation struct {
	ID      int64    `json:"id"`
	Account *account `json:"account"`
}

type account struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`
	Type  string `json:"type"`
}

type repository struct {
	ID            int64    `json:"id"`
	Name          string   `json:"name"`
	FullName      string   `json:"full_name"`
	Owner         *account `json:"owner"`
	DefaultBranch string   `json:"default_branch"`
	Archived      bool     `json:"archived"`
}

type issue struct {
	ID          int64     `json:"id"`
	Number      int       `json:"number"`
	Title       string    `json:"title"`
	Body        string    `json:"body"`
	User        *account  `json:"user"`
	State       string    `json:"state"`
	Locked      bool      `json:"locked"`
	Comments    int       `json:"comments"`
	UpdatedAt   string    `json:"updated_at"`
	PullRequest *pullLink `json:"pull_request"` // it is a pull request
	Labels      []label   `json:"labels"`
}

type pullLink struct {
	URL string `json:"url"`
}

// pulled is a pull request that an event is about.
type pulled struct {
	ID        int64     `json:"id"`
	Number    int       `json:"number"`
	Title     string    `json:"title"`
	Body      string    `json:"body"`
	User      *account  `json:"user"`
	State     string    `json:"state"`
	Locked    bool      `json:"locked"`
	Draft     bool      `json:"draft"`
	Merged    bool      `json:"merged"`
	MergedAt  string    `json:"merged_at"`
	ClosedAt  string    `json:"closed_at"`
	CreatedAt string    `json:"created_at"`
	MergeSHA  string    `json:"merge_commit_sha"`
	UpdatedAt string    `json:"updated_at"`
	Head      *pullSide `json:"head"`
	Base      *pullSide `json:"base"`
	Labels    []label   `json:"labels"`
}

// issue is a pull request as the events of its conversation show it.
func (p *pulled) issue() issue {
	return issue{
		ID: p.ID, Number: p.Number, Title: p.Title, Body: p.Body, User: p.User, State: p.State, Locked: p.Locked,
		UpdatedAt: p.UpdatedAt, PullRequest: &pullLink{}, Labels: p.Labels,
	}
}

// head of a pull request as an event shows it; empty: not shown.
func (p *pulled) head() string {
	if p.Head == nil {
		return ""
	}
	return p.Head.SHA
}

// pullSide is the head or the base of a pull request. A fork that was deleted
// has no repository.
type pullSide struct {
	Ref  string      `json:"ref"`
	SHA  string      `json:"sha"`
	Repo *repository `json:"repo"`
}

// checkRun of ours that somebody asks something of.
type checkRun struct {
	ID         int64       `json:"id"`
	Name       string      `json:"name"`
	HeadSHA    string      `json:"head_sha"`
	ExternalID string      `json:"external_id"`
	App        *app        `json:"app"`
	CheckSuite *checkSuite `json:"check_suite"`
}

type checkSuite struct {
	ID      int64  `json:"id"`
	HeadSHA string `json:"head_sha"`
	App     *app   `json:"app"`
}

type app struct {
	ID int64 `json:"id"`
}

type mergeGroup struct {
	HeadSHA string `json:"head_sha"`
	HeadRef string `json:"head_ref"`
	BaseSHA string `json:"base_sha"`
	BaseRef string `json:"base_ref"`
}

// changes say what an edit replaced.
type changes struct {
	Base *struct {
		Ref struct {
			From string `json:"from"`
		} `json:"ref"`
	} `json:"base"`
}

// landing is a commit of a push, at most 2,048 of which GitHub tells.
type landing struct {
	ID        string   `json:"id"`
	Message   string   `json:"message"`
	Timestamp string   `json:"timestamp"`
	Added     []string `json:"added"`
	Modified  []string `json:"modified"`
	Removed   []string `json:"removed"`
}

type label struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

// posted is a comment, a comment of a review, or a review.
type posted struct {
	ID          int64    `json:"id"`
	Body        string   `json:"body"`
	User        *account `json:"user"`
	CreatedAt   string   `json:"created_at"`
	SubmittedAt string   `json:"submitted_at"` // of a review
	State       string   `json:"state"`        // of a review
	CommitID    string   `json:"commit_id"`    // what a review is of
	App         *app     `json:"performed_via_github_app"`
}

// text of something that may be missing.
func (p *posted) text() string {
	if p == nil {
		return ""
	}
	return p.Body
}

// app through which something was written, 0 if none is named.
func (p *posted) app() int64 {
	if p == nil || p.App == nil {
		return 0
	}
	return p.App.ID
}

// login of an account that may be missing.
func (a *account) login() string {
	if a == nil {
		return ""
	}
	return a.Login
}

// actor of an event: its sender.
func (p payload) actor() policy.Actor {
	if p.Sender == nil {
		return policy.Actor{}
	}
	a := policy.ActorOf(p.Sender.ID, p.Sender.Login)
	a.Bot = a.Bot || p.Sender.Type == "Bot"
	return a
}

// names of a repository; installation events have only the full name.
func (r *repository) names() (owner, name string) {
	owner, name, _ = strings.Cut(r.FullName, "/")
	if o := r.Owner.login(); o != "" {
		owner = o
	}
	if r.Name != "" {
		name = r.Name
	}
	return owner, name
}

// moment reads GitHub's form of time; zero if it is none.
func moment(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// redact takes secrets out of what people wrote, before anything is made of it.
func (p *payload) redact(r *redact.Redactor) {
	if p.Issue != nil {
		p.Issue.Title, p.Issue.Body = r.String(p.Issue.Title), r.String(p.Issue.Body)
	}
	if p.Comment != nil {
		p.Comment.Body = r.String(p.Comment.Body)
	}
	if p.Pressed != nil {
		p.Pressed.Text = r.String(p.Pressed.Text)
	}
	if p.Step != nil {
		p.Step.Ask.Prompt = r.String(p.Step.Ask.Prompt)
	}
	if p.Review != nil {
		p.Review.Body = r.String(p.Review.Body)
	}
	if p.PullRequest != nil {
		p.PullRequest.Title, p.PullRequest.Body = r.String(p.PullRequest.Title), r.String(p.PullRequest.Body)
	}
}
