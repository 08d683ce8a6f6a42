package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/spec"
)

// maxAsks is how many requests are made to find out who can be asked: GitHub
// asks nobody if there is one among them who cannot be.
const maxAsks = 16

// reviewers are the code owners of a change, and what came of asking them.
type reviewers struct {
	Asked   []string `json:"asked,omitempty"`   // logins, and teams as org/slug
	Unasked []string `json:"unasked,omitempty"` // the same, each with GitHub's words
	asks    int
}

// askReviewers asks the owners of what changed, by the CODEOWNERS of the base, to
// review the pull request. GitHub itself asks them only when somebody says that
// a draft is ready; but nobody is there to say so before they have looked at it.
// Whoever cannot be asked is told of, and fails nothing.
func (p *Publisher) askReviewers(ctx context.Context, j *job, number int) (reviewers, error) {
	var out reviewers
	s := j.session
	if j.spec.Publish.Reviewers == spec.ReviewersNone {
		return out, nil
	}
	owners, err := p.owners(ctx, j)
	if err != nil {
		p.log.Warn("the code owners of a change could not be read", "session", s.ID, "error", err)
		return out, nil
	}
	if len(owners) == 0 {
		return out, nil
	}
	step, err := p.steps.Begin(ctx, s.ID, 0, "reviewers")
	switch {
	case err != nil:
		return out, err
	case step.Done:
		if err := json.Unmarshal(step.Result, &out); err != nil {
			return out, fmt.Errorf("read who was asked to review for session %s: %w", s.ID, err)
		}
		return out, nil
	}
	if n := len(owners) - github.MaxReviewers; n > 0 {
		out.Unasked = append(out.Unasked, fmt.Sprintf("%d more: at most %d are asked", n, github.MaxReviewers))
		owners = owners[:github.MaxReviewers]
	}
	owners = slices.DeleteFunc(owners, func(o string) bool {
		org, _, team := strings.Cut(o, "/")
		if team && !strings.EqualFold(org, j.repo.Owner) {
			out.Unasked = append(out.Unasked, o+": it is a team of another organization")
			return true
		}
		return false
	})
	if step.Repeated {
		if owners, err = p.notAskedYet(ctx, j, number, owners, &out); err == nil {
			err = p.ask(github.ForSession(ctx, s.ID, step.Key()), j, number, owners, &out)
		}
		if err != nil && ctx.Err() == nil { // a second time: it is not worth the session
			out.Unasked = append(out.Unasked, "others: "+said(err))
			err = nil
		}
	} else {
		err = p.ask(github.ForSession(ctx, s.ID, step.Key()), j, number, owners, &out)
	}
	if err != nil {
		return out, fmt.Errorf("ask for a review of pull request %d: %w", number, err)
	}
	return out, step.End(ctx, out)
}

// owners of what changes on the branch: people by login, teams as org/slug.
func (p *Publisher) owners(ctx context.Context, j *job) ([]string, error) {
	m := mirror(j.mirror)
	files, err := m.files(ctx, j.session.BaseSha, policy.OwnerFiles()...)
	if err != nil {
		return nil, err
	}
	for _, name := range policy.OwnerFiles() {
		i := slices.IndexFunc(files, func(f mirrorFile) bool { return f.path == name })
		if i < 0 {
			continue
		}
		if files[i].size > policy.MaxOwners {
			return nil, nil
		}
		text, err := m.git(ctx, "", nil, policy.MaxOwners, "cat-file", "blob", files[i].id)
		if err != nil {
			return nil, err
		}
		var paths []string
		for _, e := range j.im.Change.Entries {
			if !slices.Contains(j.verdict.Withheld, e.Path) {
				paths = append(paths, e.Path)
			}
		}
		people, teams := policy.Owners(text, paths)
		return append(people, teams...), nil
	}
	return nil, nil
}

// notAskedYet leaves out whom an earlier try has asked.
func (p *Publisher) notAskedYet(ctx context.Context, j *job, number int, owners []string, out *reviewers) ([]string, error) {
	people, teams, err := j.github.Reviewers(ctx, j.repo, number)
	if err != nil {
		return owners, err
	}
	return slices.DeleteFunc(owners, func(o string) bool {
		_, team, is := strings.Cut(o, "/")
		same := func(name string) bool { return strings.EqualFold(name, o) || is && strings.EqualFold(name, team) }
		asked := !is && slices.ContainsFunc(people, same) || is && slices.ContainsFunc(teams, same)
		if asked {
			out.Asked = append(out.Asked, o)
		}
		return asked
	}), nil
}

// ask asks all of them at once and, if GitHub refuses, people and teams apart,
// and then each half.
func (p *Publisher) ask(ctx context.Context, j *job, number int, owners []string, out *reviewers) error {
	if len(owners) == 0 {
		return nil
	}
	var people, teams []string
	for _, o := range owners {
		if _, team, is := strings.Cut(o, "/"); is {
			teams = append(teams, team)
		} else {
			people = append(people, o)
		}
	}
	if out.asks++; out.asks > maxAsks {
		for _, o := range owners {
			out.Unasked = append(out.Unasked, o+": too many others could not be asked")
		}
		return nil
	}
	err := j.github.RequestReviewers(ctx, j.repo, number, people, teams)
	var limited *github.RateLimited
	switch {
	case err == nil:
		out.Asked = append(out.Asked, owners...)
		return nil
	case errors.As(err, &limited), errors.Is(err, github.ErrAmbiguous), errors.Is(err, github.ErrUnavailable), ctx.Err() != nil:
		return err
	case len(owners) == 1:
		why := said(err)
		if len(teams) > 0 && errors.Is(err, github.ErrDenied) {
			why = "teams are asked where the App may read the organization's members"
		}
		out.Unasked = append(out.Unasked, owners[0]+": "+redact.OneLine(p.redactor.String(why), 200))
		return nil
	}
	half := len(people)
	if half == 0 || len(teams) == 0 {
		half = len(owners) / 2
	}
	if err := p.ask(ctx, j, number, owners[:half], out); err != nil {
		return err
	}
	return p.ask(ctx, j, number, owners[half:], out)
}
