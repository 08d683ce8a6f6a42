package github

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	gh "github.com/google/go-github/v60/github"
)

// Permission is what an account may do in a repository.
type Permission struct {
	Level  string // GitHub's word: "admin", "write", "read" or "none"
	Role   string // the finer role if GitHub says it: "maintain", "triage", a custom one
	Write  bool
	Read   bool
	UserID int64 // of the account; 0 if there is no permission
}

// Permission asks what login may do now. Nobody found is Level "none" and no
// error; with any error everything is denied.
func (c *Client) Permission(ctx context.Context, repo Repo, login string) (Permission, error) {
	none := Permission{Level: "none"}
	if !forms["login"].MatchString(login) {
		return none, fmt.Errorf("%w: ask about an account called %q", ErrInvalid, login)
	}
	var got *gh.RepositoryPermissionLevel
	err := c.in(ctx, repo, "ask for the permission of "+login+" in "+repo.String(), func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.Repositories.GetPermissionLevel(ctx, r.Owner, r.Name, login)
		return err
	})
	var e *Error
	if errors.As(err, &e) && e.Kind == ErrNotFound {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	u := got.GetUser()
	if u == nil {
		u = &gh.User{}
	}
	if !strings.EqualFold(u.GetLogin(), login) {
		return none, fmt.Errorf("GitHub answered about %q when asked for the permission of %s", u.GetLogin(), login)
	}
	p := Permission{Level: got.GetPermission(), Role: u.GetRoleName(), UserID: u.GetID()}
	if u.Permissions != nil { // the getter makes a map where there is none
		m := u.Permissions
		// The map is exact; the single word folds maintain into write and triage into read.
		p.Write = m["push"] || m["maintain"] || m["admin"]
		p.Read = p.Write || m["pull"] || m["triage"]
	} else {
		p.Write = p.Level == "admin" || p.Level == "write"
		p.Read = p.Write || p.Level == "read"
	}
	if !p.Read {
		return none, nil
	}
	return p, nil
}

// BranchHead is the commit a branch points at.
func (c *Client) BranchHead(ctx context.Context, repo Repo, branch string) (string, error) {
	return c.Ref(ctx, repo, "heads/"+branch)
}

// Ref is the commit a ref points at; ref is without "refs/", as in "heads/main".
func (c *Client) Ref(ctx context.Context, repo Repo, ref string) (string, error) {
	var got *gh.Reference
	err := c.in(ctx, repo, "read "+ref+" of "+repo.String(), func(api *gh.Client, r Repo) (err error) {
		got, _, err = api.Git.GetRef(ctx, r.Owner, r.Name, ref)
		return err
	})
	if err != nil {
		return "", err
	}
	sha := got.GetObject().GetSHA()
	if got.GetRef() != "refs/"+ref || !forms["sha"].MatchString(sha) {
		return "", &Error{Op: "read " + ref + " of " + repo.String(), Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	return sha, nil
}

// MaxFile is the largest file File returns: GitHub gives the content of a file
// up to 1 MiB with its description.
const MaxFile = 1 << 20

// File reads one file at a commit. A folder or a submodule is ErrNotFound.
func (c *Client) File(ctx context.Context, repo Repo, path, ref string) ([]byte, error) {
	op := "read " + path + " of " + repo.String()
	var file *gh.RepositoryContent
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) (err error) {
		file, _, _, err = api.Repositories.GetContents(ctx, r.Owner, r.Name, path, &gh.RepositoryContentGetOptions{Ref: ref})
		return err
	})
	if err != nil {
		return nil, err
	}
	if file == nil || file.GetType() != "file" {
		return nil, &Error{Op: op, Kind: ErrNotFound, Cause: errors.New("it is no file")}
	}
	if file.GetSize() > MaxFile || file.GetEncoding() == "none" {
		return nil, &Error{Op: op, Kind: ErrTooLarge, Cause: fmt.Errorf("it has %d bytes, at most %d are read", file.GetSize(), MaxFile)}
	}
	content, err := file.GetContent()
	if err != nil {
		return nil, &Error{Op: op, Kind: ErrUnavailable, Cause: err}
	}
	return []byte(content), nil
}

// RootFiles lists the names of the files (not folders) at the root of a commit.
// GitHub lists at most a thousand entries.
func (c *Client) RootFiles(ctx context.Context, repo Repo, ref string) ([]string, error) {
	return c.Files(ctx, repo, "", ref)
}

// Files lists the names of the files (not folders) in a folder of a commit; ""
// is the root. GitHub lists at most a thousand entries.
func (c *Client) Files(ctx context.Context, repo Repo, folder, ref string) ([]string, error) {
	var dir []*gh.RepositoryContent
	err := c.in(ctx, repo, strings.TrimSpace("list the files of "+repo.String()+" "+folder), func(api *gh.Client, r Repo) (err error) {
		_, dir, _, err = api.Repositories.GetContents(ctx, r.Owner, r.Name, folder, &gh.RepositoryContentGetOptions{Ref: ref})
		return err
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range dir {
		if d.GetType() == "file" {
			names = append(names, d.GetName())
		}
	}
	return names, nil
}

// Rule is one rule of a ruleset that applies to a branch.
type Rule struct {
	Type       string          `json:"type"` // "required_signatures", "pull_request", …
	Parameters json.RawMessage `json:"parameters"`
	Source     string          `json:"ruleset_source"`
	RulesetID  int64           `json:"ruleset_id"`
}

// BranchRules lists the rules that apply to a branch, which need not exist yet.
func (c *Client) BranchRules(ctx context.Context, repo Repo, branch string) ([]Rule, error) {
	var rules []Rule
	err := c.in(ctx, repo, "read the rules for "+branch+" of "+repo.String(), func(api *gh.Client, r Repo) error {
		rules = nil
		more, err := pages(5, func(o gh.ListOptions) (*gh.Response, error) {
			// Not the library's method: it leaves the branch unescaped and fails
			// at every kind of rule it does not know.
			u := fmt.Sprintf("repos/%s/%s/rules/branches/%s?per_page=%d&page=%d", r.Owner, r.Name, escapeRef(branch), o.PerPage, o.Page)
			req, err := api.NewRequest("GET", u, nil)
			if err != nil {
				return nil, err
			}
			var page []Rule
			resp, err := api.Do(ctx, req, &page)
			rules = append(rules, page...)
			return resp, err
		})
		if more {
			return fmt.Errorf("%w: more than 500 rules", ErrTooLarge)
		}
		return err
	})
	return rules, err
}

// Bypass says what a ruleset lets the App pass over: "never", "always", "exempt",
// "pull_requests_only", or "" where GitHub does not say it.
func (c *Client) Bypass(ctx context.Context, repo Repo, ruleset int64) (string, error) {
	var got struct {
		ID     int64  `json:"id"`
		Bypass string `json:"current_user_can_bypass"`
	}
	op := fmt.Sprintf("read ruleset %d of %s", ruleset, repo)
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		_, err := fetch(ctx, api, fmt.Sprintf("repos/%s/%s/rulesets/%d", r.Owner, r.Name, ruleset), &got)
		return err
	})
	if err == nil && got.ID != ruleset {
		return "", &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	return got.Bypass, err
}

// BranchProtected says whether branch protection, the one that is older than
// rulesets, is on for a branch. What it wants only administrators may read.
func (c *Client) BranchProtected(ctx context.Context, repo Repo, branch string) (bool, error) {
	var got struct {
		Name       string `json:"name"`
		Protected  bool   `json:"protected"`
		Protection struct {
			Enabled bool `json:"enabled"`
		} `json:"protection"`
	}
	op := "read branch " + branch + " of " + repo.String()
	err := c.in(ctx, repo, op, func(api *gh.Client, r Repo) error {
		_, err := fetch(ctx, api, fmt.Sprintf("repos/%s/%s/branches/%s", r.Owner, r.Name, url.PathEscape(branch)), &got)
		return err
	})
	if err == nil && got.Name != branch {
		return false, &Error{Op: op, Kind: ErrUnavailable, Cause: errors.New("GitHub's answer is about something else")}
	}
	return got.Protected && got.Protection.Enabled, err
}

// escapeRef escapes each segment of a ref once; GitHub wants the slashes.
func escapeRef(ref string) string {
	parts := strings.Split(ref, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// RepoInfo is a repository and what is known of it.
type RepoInfo struct {
	Repo          Repo
	DefaultBranch string
	Private       bool
	Archived      bool
}

func repoInfo(r *gh.Repository) RepoInfo {
	return RepoInfo{
		Repo:          Repo{ID: r.GetID(), Owner: r.GetOwner().GetLogin(), Name: r.GetName()},
		DefaultBranch: r.GetDefaultBranch(),
		Private:       r.GetPrivate(),
		Archived:      r.GetArchived(),
	}
}

// Repository looks a repository up by its id, whatever it is called now.
func (c *Client) Repository(ctx context.Context, id int64) (RepoInfo, error) {
	if id <= 0 {
		return RepoInfo{}, fmt.Errorf("%w: look up repository %d", ErrForbidden, id)
	}
	var got *gh.Repository
	err := c.call(ctx, id, fmt.Sprintf("look up repository %d", id), func(api *gh.Client) (err error) {
		got, _, err = api.Repositories.GetByID(ctx, id)
		return err
	})
	if err != nil {
		return RepoInfo{}, err
	}
	if got.GetID() != id {
		return RepoInfo{}, fmt.Errorf("GitHub answered about repository %d when asked for %d", got.GetID(), id)
	}
	return repoInfo(got), nil
}

// Repositories lists what the installation can see, at most ten thousand.
func (c *Client) Repositories(ctx context.Context) ([]RepoInfo, error) {
	var out []RepoInfo
	err := c.call(ctx, 0, fmt.Sprintf("list the repositories of installation %d", c.installation), func(api *gh.Client) error {
		_, err := pages(100, func(o gh.ListOptions) (*gh.Response, error) {
			list, resp, err := api.Apps.ListRepos(ctx, &o)
			if err != nil {
				return nil, err
			}
			for _, r := range list.Repositories {
				out = append(out, repoInfo(r))
			}
			return resp, nil
		})
		return err
	})
	return out, err
}
