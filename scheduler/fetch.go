package scheduler

import (
	"context"
	"fmt"

	"inspect/envs/wire"
)

// Fetch has a node bring a commit of a repository into its mirror, and returns
// before that is done. ref holds the commit if no branch does; empty: branch does. Asking again while the node is at it is no more work. The
// control plane has it done by its own node, for a result that was made elsewhere.
func (s *Scheduler) Fetch(ctx context.Context, node string, repositoryID int64, branch, ref, commit string) error {
	q := s.db.Q()
	repo, err := q.GetRepositoryRow(ctx, repositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", repositoryID, err)
	}
	key := fmt.Sprintf("fetch:%s:%d:%s", node, repositoryID, commit)
	// One that was done before, to a mirror that is not there any more, or in
	// vain, is done again.
	if err := q.RepeatWork(ctx, key); err != nil {
		return fmt.Errorf("asking node %s for commit %.10s of repository %d: %w", node, commit, repositoryID, err)
	}
	return s.addWork(ctx, q, node, wire.WorkFetch, key, wire.Work{Fetch: &wire.FetchWork{
		Remote: s.remote(repo, branch, ref), Commit: commit,
	}})
}
