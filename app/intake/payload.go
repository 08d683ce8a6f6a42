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
	Ref                 string        `json:"ref"`     // of a push: refs/heads/…
	Deleted             bool          `json:"deleted"` // a push that deleted Ref
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
	ID          int64    `json:"id"`
	Number      int      `json:"number"`
	Title       string   `json:"title"`
	Body        string   `json:"body"`
	User        *account `json:"user"`
	State       string   `json:"state"`
	Locked      bool     `json:"locked"`
	Comments    int      `json:"comments"`
	UpdatedAt   string   `json:"updated_at"`
	PullRequest *struct {
		URL string `json:"url"`
	} `json:"pull_request"`
	Labels []label `json:"labels"`
}

// pulled is a pull request that an event is about.
type pulled struct {
	Number    int    `json:"number"`
	UpdatedAt string `json:"updated_at"`
}

type label struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

type posted struct {
	ID        int64    `json:"id"`
	Body      string   `json:"body"`
	User      *account `json:"user"`
	CreatedAt string   `json:"created_at"`
	App       *struct {
		ID int64 `json:"id"`
	} `json:"performed_via_github_app"`
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
	return policy.Actor{
		ID: p.Sender.ID, Login: p.Sender.Login,
		// A name that ends so cannot be a person's, whatever the type says.
		Bot: p.Sender.Type == "Bot" || strings.HasSuffix(p.Sender.Login, "[bot]"),
	}
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
}
