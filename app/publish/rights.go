package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"inspect/app/diagnosis"
	"inspect/app/doctor"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/scheduler"
	"inspect/storage"
)

// gitHubCommitter is the address of the committer of what GitHub commits.
const gitHubCommitter = "noreply@github.com"

// mayPush asks again, at the last moment, whether the requester may write here
// and whether rules of the repository would let the push pass; and whether they
// want it signed.
func (p *Publisher) mayPush(ctx context.Context, j *job, branch string, m message) (sign bool, err error) {
	if p.noForge {
		return false, nil
	}
	if err := p.requesterMay(ctx, j); err != nil {
		return false, err
	}
	if err := p.defaultBranchSafe(ctx, j); err != nil {
		return false, err
	}
	rules, err := j.github.BranchRules(ctx, j.repo, branch)
	switch {
	case errors.Is(err, github.ErrDenied), errors.Is(err, github.ErrNotFound):
		// Plans without rulesets answer like this; the push itself decides.
		rules = nil
	case err != nil:
		return false, fmt.Errorf("read the rules for %s: %w", branch, err)
	}
	o := offer{branch: branch, message: m.text, email: m.by.Email, committer: m.by.Email}
	if sign = wantsSigned(j.spec.Publish.Signed, rules); sign {
		o.signed, o.committer = true, gitHubCommitter
	}
	if why := refusedBy(rules, o); why != "" {
		return false, refuse(ReasonRules, "The repository's rules stand in the way: %s. Leave %s/** out of the rule or let the App bypass it.", why, strings.SplitN(branch, "/", 2)[0])
	}
	return sign, nil
}

// requesterMay refuses where whoever asked may not any more: a person by what
// GitHub says, a pipeline by the operator's policy.
func (p *Publisher) requesterMay(ctx context.Context, j *job) error {
	s := j.session
	if s.RequesterID == 0 {
		row, err := p.db.Q().PipelineSession(ctx, s.ID)
		if err == nil {
			id := policy.PipelineID{Organization: row.OrganizationID, Pipeline: row.PipelineID}
			// What its build was has been looked at when it asked.
			if may := p.authority.DecidePipeline(id, j.repo, row.Act, policy.BuildFacts{Seen: true}); !may.Allow {
				return &refusal{scheduler.Stopped, ReasonDenied, "The Buildkite pipeline that asked for this may not any more: " + may.Words + "."}
			}
			return nil
		}
		if !storage.IsMissing(err) {
			return fmt.Errorf("read which pipeline asked for session %s: %w", s.ID, err)
		}
	}
	may, err := p.authority.Decide(ctx, j.github, j.repo, policy.ActorOf(s.RequesterID, s.RequesterLogin), policy.NeedWrite)
	if err != nil {
		return err
	}
	if !may.Allow {
		return &refusal{scheduler.Stopped, ReasonDenied, fmt.Sprintf("%s, who asked for this, may not write to the repository any more.", s.RequesterLogin)}
	}
	return nil
}

// defaultBranchSafe refuses where the operator requires rules that keep the App
// from the default branch and there are none any more.
func (p *Publisher) defaultBranchSafe(ctx context.Context, j *job) error {
	if required, _ := j.bounds.RequireProtection(); !required {
		return nil
	}
	branch := j.place.DefaultBranch
	safe, err := doctor.Protection(ctx, j.github, j.repo, branch)
	if err != nil {
		return fmt.Errorf("read the rules for %s: %w", branch, err)
	}
	if safe.Safe() {
		return nil
	}
	return refuse(ReasonUnprotected, "%s Whoever runs Inspect requires that it does not (require_protection), so nothing is pushed; the work is kept. %s",
		sentence(safe.Words(branch)), diagnosis.ToProtect)
}
