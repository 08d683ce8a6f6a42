// Package doctor asks GitHub for what package diagnosis judges: the App and its
// installations, the webhook, and one repository's rules and workflows. It
// changes nothing. What cannot be read is a finding, not an error.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"inspect/app/diagnosis"
	"inspect/app/github"
	"inspect/app/manifest"
	"inspect/envs/spec"
)

// App is what is asked about the App itself.
type App interface {
	Self(ctx context.Context) (github.Self, error)
	Installations(ctx context.Context) ([]github.InstallationInfo, error)
	HookConfig(ctx context.Context) (github.HookConfig, error)
	Deliveries(ctx context.Context) ([]github.Delivery, error)
	Skew() (time.Duration, bool)
}

// Rules is what is asked about the rules of a branch.
type Rules interface {
	BranchRules(ctx context.Context, repo github.Repo, branch string) ([]github.Rule, error)
	Bypass(ctx context.Context, repo github.Repo, ruleset int64) (string, error)
	BranchProtected(ctx context.Context, repo github.Repo, branch string) (bool, error)
}

// GitHub is what is asked about one repository.
type GitHub interface {
	Rules
	Files(ctx context.Context, repo github.Repo, folder, ref string) ([]string, error)
	File(ctx context.Context, repo github.Repo, path, ref string) ([]byte, error)
}

var (
	_ App    = (*github.App)(nil)
	_ GitHub = (*github.Client)(nil)
)

// ExamineApp looks at the App, its webhook, the clock, and each installation; it
// returns the installations that can be worked with.
func ExamineApp(ctx context.Context, a App, m manifest.Manifest, now time.Time) (findings []diagnosis.Finding, installed []github.InstallationInfo) {
	say := func(f diagnosis.Finding) { findings = append(findings, f) }
	self, err := a.Self(ctx)
	if skew, known := a.Skew(); known {
		say(diagnosis.Clock(skew))
	}
	if err != nil {
		say(diagnosis.Finding{
			Level: diagnosis.Fail, What: "App", Words: err.Error(),
			Do: "See that --github-api is this App's GitHub, and that --github-app-id and --github-key-file belong together.",
		})
		return findings, nil // nothing else will be answered
	}
	say(diagnosis.Finding{Level: diagnosis.OK, What: "App", Words: fmt.Sprintf("%s (%d) of %s, %s", self.Name, self.ID, self.Owner, self.URL)})
	say(diagnosis.App(m, self.Permissions, self.Events, self.URL))
	if hook, err := a.HookConfig(ctx); err != nil {
		say(diagnosis.Unread("webhook", err))
	} else {
		say(diagnosis.Webhook(diagnosis.Hook(hook)))
	}
	if list, err := a.Deliveries(ctx); err != nil {
		say(diagnosis.Unread("deliveries", err))
	} else {
		attempts := make([]diagnosis.Delivery, len(list))
		for i, d := range list {
			attempts[i] = diagnosis.Delivery{GUID: d.GUID, Event: d.Event, At: d.At, Status: d.Status, Words: d.Words}
		}
		say(diagnosis.Deliveries(attempts, now))
	}
	list, err := a.Installations(ctx)
	if err != nil {
		say(diagnosis.Unread("installations", err))
		return findings, nil
	}
	if len(list) == 0 {
		say(diagnosis.Finding{Level: diagnosis.Fail, What: "installations", Words: "the App is installed nowhere", Do: "Install it: " + self.URL + "/installations/new"})
	}
	for _, i := range list {
		say(diagnosis.Installation(m, i.Account, i.Suspended, i.Permissions, i.Events, i.URL))
	}
	return findings, slices.DeleteFunc(list, func(i github.InstallationInfo) bool { return i.Suspended })
}

// Repository is one to look at.
type Repository struct {
	Repo          github.Repo
	DefaultBranch string
	Required      bool                 // the floor says require_protection
	Snapshots     []diagnosis.Snapshot // of its current environment
	NoSnapshots   bool                 // it is not known which there are: say nothing
}

// workflows is GitHub's folder of them.
const workflows = ".github/workflows"

// maxWorkflows are read of one repository.
const maxWorkflows = 50

// ExamineRepository looks at a repository's rules, workflows and snapshots. It
// sends about three requests, and one for each workflow.
func ExamineRepository(ctx context.Context, gh GitHub, r Repository) []diagnosis.Finding {
	var findings []diagnosis.Finding
	say := func(f ...diagnosis.Finding) { findings = append(findings, f...) }
	if p, err := Protection(ctx, gh, r.Repo, r.DefaultBranch); err != nil {
		say(diagnosis.Unread("protection of the default branch", err))
	} else {
		say(p.DefaultBranch(r.DefaultBranch, r.Required))
	}
	prefix := spec.Default().Publish.Prefix
	body, err := gh.File(ctx, r.Repo, spec.FileName, r.DefaultBranch)
	switch {
	case errors.Is(err, github.ErrNotFound):
		say(diagnosis.Finding{Level: diagnosis.OK, What: spec.FileName, Words: "there is none: what is needed is guessed from the files"})
	case err != nil:
		say(diagnosis.Unread(spec.FileName, err))
	default:
		if sp, problems := spec.Parse(body); len(problems) > 0 {
			say(diagnosis.Finding{Level: diagnosis.Fail, What: spec.FileName, Words: problems.Error(), Do: "Mend it on the default branch: no session starts with it."})
		} else {
			say(diagnosis.Finding{Level: diagnosis.OK, What: spec.FileName, Words: "it is valid"})
			prefix = sp.Publish.Prefix
		}
	}
	say(examineWorkflows(ctx, gh, r, prefix)...)
	if !r.NoSnapshots {
		say(diagnosis.Snapshots(r.Snapshots)...)
	}
	return findings
}

func examineWorkflows(ctx context.Context, gh GitHub, r Repository, prefix string) []diagnosis.Finding {
	names, err := gh.Files(ctx, r.Repo, workflows, r.DefaultBranch)
	if errors.Is(err, github.ErrNotFound) {
		return []diagnosis.Finding{{Level: diagnosis.OK, What: "workflows", Words: "there are none"}}
	}
	if err != nil {
		return []diagnosis.Finding{diagnosis.Unread("workflows", err)}
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".yml") && !strings.HasSuffix(n, ".yaml") })
	var out []diagnosis.Finding
	if len(names) > maxWorkflows {
		out = append(out, diagnosis.Finding{
			Level: diagnosis.Warn, What: "workflows", Words: fmt.Sprintf("there are %d, and only the first %d were read", len(names), maxWorkflows), Do: "Look at the others yourself.",
		})
		names = names[:maxWorkflows]
	}
	for _, n := range names {
		body, err := gh.File(ctx, r.Repo, path.Join(workflows, n), r.DefaultBranch)
		if err != nil {
			out = append(out, diagnosis.Unread("workflow "+n, err))
			continue
		}
		out = append(out, diagnosis.Workflow(n, body, prefix)...)
	}
	if len(out) == 0 {
		out = append(out, diagnosis.Finding{Level: diagnosis.OK, What: "workflows", Words: fmt.Sprintf("of %d none is started by our branches or pull requests", len(names))})
	}
	return out
}

// Protection asks what keeps the App from a branch.
func Protection(ctx context.Context, gh Rules, repo github.Repo, branch string) (diagnosis.Protection, error) {
	rules, err := gh.BranchRules(ctx, repo, branch)
	if err != nil {
		return diagnosis.Protection{}, err
	}
	bypass := map[int64]string{}
	var judged []diagnosis.Rule
	for _, r := range rules {
		if !diagnosis.Stands(r.Type) {
			continue
		}
		if _, known := bypass[r.RulesetID]; !known {
			if bypass[r.RulesetID], err = gh.Bypass(ctx, repo, r.RulesetID); err != nil && !errors.Is(err, github.ErrNotFound) && !errors.Is(err, github.ErrDenied) {
				return diagnosis.Protection{}, err
			}
		}
		var wants struct {
			Reviews int `json:"required_approving_review_count"`
		}
		// What cannot be read wants no review.
		_ = json.Unmarshal(r.Parameters, &wants)
		judged = append(judged, diagnosis.Rule{Type: r.Type, Reviews: wants.Reviews, Ruleset: r.RulesetID, From: r.Source, Bypass: bypass[r.RulesetID]})
	}
	p := diagnosis.Protect(judged, false)
	if p.Safe() {
		return p, nil
	}
	classic, err := gh.BranchProtected(ctx, repo, branch)
	if err != nil {
		return diagnosis.Protection{}, err
	}
	return diagnosis.Protect(judged, classic), nil
}
