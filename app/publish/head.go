package publish

import (
	"context"
	"errors"
	"fmt"

	"inspect/app/comment"
	"inspect/app/github"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// onHead: the result goes onto the head branch of the pull request that was
// worked on.
func (j *job) onHead() bool { return j.session.Deliver == scheduler.DeliverHead }

// patchOnly ends a session whose result is a patch, because what it worked on
// is somebody else's to push to.
func patchOnly() error {
	return &refusal{scheduler.NoChange, scheduler.ReasonPatch,
		"The result passed verification. This pull request comes from a fork, which Inspect never pushes to: the result is kept as a patch in the evidence, for `git apply`."}
}

// stillThere reads the pull request that a session works on once more: a result
// for a head that is not the head any more is not pushed. What an earlier try
// may have pushed is told apart by the push itself.
func (p *Publisher) stillThere(ctx context.Context, j *job) (github.PullRequest, error) {
	s := j.session
	if s.PullNumber == 0 || p.noForge {
		return github.PullRequest{}, nil
	}
	live, err := j.github.PullRequest(ctx, j.repo, int(s.PullNumber))
	if err != nil {
		if errors.Is(err, github.ErrNotFound) {
			return live, &refusal{scheduler.Stopped, scheduler.ReasonPullClosed, "GitHub does not show the pull request any more; the work is kept, but is not pushed."}
		}
		return live, fmt.Errorf("read pull request %d: %w", s.PullNumber, err)
	}
	begun, err := p.db.Q().PublishBegun(ctx, s.ID)
	if err != nil {
		return live, fmt.Errorf("look for what session %s pushed: %w", s.ID, err)
	}
	switch {
	case live.State != "open":
		return live, &refusal{scheduler.Stopped, scheduler.ReasonPullClosed, "The pull request was closed or merged before the result was there; the work is kept, but is not pushed."}
	case live.HeadRepoID == s.HeadRepoID && live.HeadRef != s.BaseBranch && live.HeadRepoID == s.RepositoryID:
		return live, &refusal{scheduler.Stopped, scheduler.ReasonSuperseded, comment.HeadRenamed(s.BaseBranch, live.HeadRef)}
	case !begun && live.HeadSHA != s.BaseSha:
		return live, superseded(s, live.HeadSHA)
	}
	return live, nil
}

func superseded(s storage.Session, now string) error {
	return &refusal{scheduler.Stopped, scheduler.ReasonSuperseded, fmt.Sprintf(
		"Somebody pushed: the head is now %.12s, and this session worked on %.12s. Nothing of it is pushed; the work is kept in the evidence. Ask again to have the new head worked on.", now, s.BaseSha)}
}

// deliverHead brings head onto the branch of the pull request that was worked
// on, as its fast-forward: its one parent is the commit that the branch must be
// at. The branch is one of ours, or somebody's where both the repository and the
// operator let us push there; it is then not recorded as ours.
func (p *Publisher) deliverHead(ctx context.Context, j *job, branch, head string) error {
	q, s := p.db.Q(), j.session
	if branch == j.place.DefaultBranch || s.HeadRepoID != s.RepositoryID || s.PullNumber == 0 {
		return refuse(ReasonRules, "Inspect never pushes to the default branch or into another repository (%s).", branch)
	}
	n, err := q.TakeBranch(ctx, storage.TakeBranchParams{RepositoryID: s.RepositoryID, Name: branch, SessionID: s.ID, LastSha: s.BaseSha})
	if err != nil {
		return fmt.Errorf("look up the branch %s: %w", branch, err)
	}
	ours := n == 1
	if !ours { // unless this session has pushed to it already
		row, err := q.BranchByName(ctx, storage.BranchByNameParams{RepositoryID: s.RepositoryID, Name: branch})
		if err != nil && !storage.IsMissing(err) {
			return fmt.Errorf("look up the branch %s: %w", branch, err)
		}
		ours = err == nil && row.SessionID == s.ID && row.LastSha == head
	}
	if !ours {
		if err := p.mayPushHead(ctx, j, branch); err != nil {
			return err
		}
	}
	step, err := p.steps.Begin(ctx, s.ID, s.Generation, "push")
	if err != nil {
		return err
	}
	if step.Repeated {
		switch remote, err := p.remoteHead(ctx, j, branch); {
		case err != nil:
			return err
		case remote == head:
			return p.pushedHead(ctx, j, step, branch, head, ours)
		case remote != s.BaseSha:
			return superseded(s, remote)
		}
	}
	err = p.pushAndRead(ctx, j, step, branch, head, s.BaseSha, ours)
	var r *refusal
	if errors.As(err, &r) && r.Reason == ReasonBranchMoved {
		if remote, rerr := p.remoteHead(ctx, j, branch); rerr == nil {
			return superseded(s, remote)
		}
	}
	return err
}

// mayPushHead asks once more whether results may go onto somebody's branch.
func (p *Publisher) mayPushHead(ctx context.Context, j *job, branch string) error {
	if j.publish.Push != spec.PushHead || !j.bounds.PushHead() {
		return refuse(ReasonRules, "The branch %s is not one that Inspect made or left as it pushed it, and publish.push does not let it push there; the work is kept in the evidence.", branch)
	}
	protected, err := j.github.Protected(ctx, j.repo, branch)
	if err != nil {
		return fmt.Errorf("ask about the branch %s: %w", branch, err)
	}
	if protected {
		return refuse(ReasonRules, "The branch %s is protected; Inspect never pushes to a protected branch.", branch)
	}
	return nil
}
