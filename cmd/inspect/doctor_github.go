package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"inspect"
	"inspect/app/diagnosis"
	"inspect/app/doctor"
	"inspect/app/github"
	"inspect/app/manifest"
	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/storage"
)

// gitHubFlags are those of serve that say which GitHub App it is.
type gitHubFlags struct {
	appID                       int64
	key, secret, previousSecret string
	api, git, policy            string
	repositories                []string
}

func (g *gitHubFlags) flags(f *pflag.FlagSet) {
	f.Int64Var(&g.appID, "github-app-id", 0, "as of inspect serve, like the following")
	f.StringVar(&g.key, "github-key-file", "", "file with the App's private key (PEM)")
	f.StringVar(&g.secret, "webhook-secret-file", "", "file with the webhook secret")
	f.StringVar(&g.previousSecret, "webhook-secret-previous-file", "", "file with the secret before a rotation")
	f.StringVar(&g.api, "github-api", "https://api.github.com", "base address of the REST API")
	f.StringVar(&g.git, "github-git", "", "base address of repositories (default: follows from --github-api)")
	f.StringVar(&g.policy, "policy", "", "file with what no repository can pass")
	f.StringSliceVar(&g.repositories, "repository", nil, "OWNER/NAME of a repository to look at (default: all that the App is installed on)")
}

// examineGitHub looks at the files, the App and its repositories.
func examineGitHub(ctx context.Context, g gitHubFlags, d dataFlags, now time.Time) ([]diagnosis.Finding, error) {
	if g.appID <= 0 || g.key == "" || g.secret == "" {
		return nil, usagef("--github-app-id, --github-key-file and --webhook-secret-file are needed, as for inspect serve; without an App: inspect app create")
	}
	m, err := manifest.Parse(inspect.Manifest)
	if err != nil {
		return nil, err
	}
	var floor policy.Floor
	if g.policy != "" {
		if _, floor, err = readFloor(g.policy); err != nil {
			return nil, usageError{err}
		}
	}
	findings, key := examineFiles(g)
	if key == "" {
		return findings, nil
	}
	redactor := redact.New(key)
	app, err := github.New(github.Options{AppID: g.appID, Key: []byte(key), APIBase: g.api, GitBase: g.git, Redactor: redactor, Log: newLog("text", redactor)})
	if err != nil {
		return nil, usageError{err}
	}
	defer app.Close(ctx)
	told, installed := doctor.ExamineApp(ctx, app, m, now)
	findings = append(findings, told...)
	snapshots, unread := snapshotsByRepository(ctx, d, now)
	if unread != nil {
		findings = append(findings, diagnosis.Unread("database, for the age of snapshots", unread))
	}
	seen := map[string]bool{}
	for i, at := range installed {
		c := app.Installation(at.ID)
		if form, err := c.TokenForm(ctx); err != nil {
			findings = append(findings, diagnosis.Unread("tokens of "+at.Account, err))
			continue
		} else if i == 0 {
			sample := "ghs_1_" + strings.Repeat("eyJ", 20) + ".a-b_c." + strings.Repeat("x", 40)
			findings = append(findings, diagnosis.Token(form, !strings.Contains(redact.New().String(sample), "xxx") && strings.HasPrefix(form, "ghs_")))
		}
		list, err := c.Repositories(ctx)
		if err != nil {
			findings = append(findings, diagnosis.Unread("repositories of "+at.Account, err))
			continue
		}
		for _, r := range list {
			name := r.Repo.String()
			bounds, allowed := floor.For(r.Repo.ID, name)
			if r.Archived || !allowed || len(g.repositories) > 0 && !slices.ContainsFunc(g.repositories, func(s string) bool { return strings.EqualFold(s, name) }) {
				continue
			}
			seen[strings.ToLower(name)] = true
			required, _ := bounds.RequireProtection()
			for _, f := range doctor.ExamineRepository(ctx, c, doctor.Repository{
				Repo: r.Repo, DefaultBranch: r.DefaultBranch, Required: required, Snapshots: snapshots[r.Repo.ID], NoSnapshots: unread != nil,
			}) {
				f.What = name + ": " + f.What
				findings = append(findings, f)
			}
		}
	}
	for _, name := range g.repositories {
		if !seen[strings.ToLower(name)] {
			findings = append(findings, diagnosis.Finding{
				Level: diagnosis.Fail, What: name, Words: "the App cannot see it, or it is archived, or the policy does not allow it",
				Do: "Install the App on it, and see --policy.",
			})
		}
	}
	return findings, nil
}

// examineFiles looks at the files with secrets, and reads the key: "" if there is none.
func examineFiles(g gitHubFlags) (findings []diagnosis.Finding, key string) {
	for _, f := range []struct{ path, what string }{{g.key, "private key"}, {g.secret, "webhook secret"}, {g.previousSecret, "previous webhook secret"}} {
		if f.path == "" {
			continue
		}
		body, err := readSecret(f.path, "the "+f.what)
		if err != nil {
			findings = append(findings, diagnosis.Finding{Level: diagnosis.Fail, What: f.what, Words: err.Error(), Do: "`inspect serve` does not start with it."})
			continue
		}
		if f.path == g.key {
			key = body
		}
		mode := "0600"
		if info, err := os.Stat(f.path); err == nil {
			mode = fmt.Sprintf("%04o", info.Mode().Perm())
		}
		findings = append(findings, diagnosis.Finding{Level: diagnosis.OK, What: f.what, Words: "in " + f.path + ", mode " + mode})
	}
	return findings, key
}

// snapshotsByRepository are the current ones of each repository's newest environment.
func snapshotsByRepository(ctx context.Context, d dataFlags, now time.Time) (map[int64][]diagnosis.Snapshot, error) {
	db, err := openDatabase(ctx, d)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return currentSnapshots(ctx, db.Q(), now)
}

func currentSnapshots(ctx context.Context, q *storage.Queries, now time.Time) (map[int64][]diagnosis.Snapshot, error) {
	environments, err := q.StatusEnvironments(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the environments: %w", err)
	}
	places, err := readPlaces(ctx, q, now)
	if err != nil {
		return nil, err
	}
	out := map[int64][]diagnosis.Snapshot{}
	for _, e := range environments {
		if !e.IsHead {
			continue
		}
		var sp spec.Spec
		if err := json.Unmarshal(e.Spec, &sp); err != nil {
			return nil, fmt.Errorf("read environment %s: %w", e.ID, err)
		}
		for _, p := range places[e.ID] {
			if p.Current == nil {
				continue
			}
			age := p.Current.AgeMS
			if p.Current.NewestMS > 0 {
				age = p.Current.NewestMS
			}
			out[e.RepositoryID] = append(out[e.RepositoryID], diagnosis.Snapshot{
				Environment: e.ID, Node: p.Node, Commit: p.Current.Commit, Age: time.Duration(age) * time.Millisecond, MaxAge: sp.Refresh.MaxAge,
			})
		}
		slices.SortFunc(out[e.RepositoryID], func(a, b diagnosis.Snapshot) int { return strings.Compare(a.Node, b.Node) })
	}
	return out, nil
}
