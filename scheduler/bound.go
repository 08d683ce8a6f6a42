package scheduler

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"inspect/envs/spec"
	"inspect/storage"
)

// bound is what binds a repository now.
func (s *Scheduler) bound(ctx context.Context, q *storage.Queries, repositoryID int64, sp spec.Spec) (Bound, error) {
	if s.o.Bound == nil {
		return Bound{Spec: sp}, nil
	}
	repo, err := q.GetRepositoryRow(ctx, repositoryID)
	if err != nil {
		return Bound{}, fmt.Errorf("reading repository %d: %w", repositoryID, err)
	}
	b, err := s.o.Bound(repo.ID, repo.Owner+"/"+repo.Name, sp)
	if err != nil {
		return Bound{}, fmt.Errorf("asking what binds repository %d: %w", repositoryID, err)
	}
	return b, nil
}

// boundSession is what binds a session now.
func (s *Scheduler) boundSession(ctx context.Context, q *storage.Queries, sess storage.Session) (Bound, error) {
	sp, err := sessionSpec(sess)
	if err != nil {
		return Bound{}, err
	}
	return s.bound(ctx, q, sess.RepositoryID, sp)
}

// boundEnvironment is what binds the preparation of an environment now. The
// agent has no part in it: whichever its first session had is not judged.
func (s *Scheduler) boundEnvironment(ctx context.Context, q *storage.Queries, env storage.Environment) (Bound, error) {
	sp, err := environmentSpec(env)
	if err != nil {
		return Bound{}, err
	}
	sp.Harness = spec.Harness{}
	return s.bound(ctx, q, env.RepositoryID, sp)
}

// tighten has the stricter spec count for a session from now on.
func tighten(ctx context.Context, q *storage.Queries, sess *storage.Session, sp spec.Spec) error {
	was, err := sessionSpec(*sess)
	if err != nil {
		return err
	}
	body := encode(sp)
	if bytes.Equal(encode(was), body) {
		return nil
	}
	sess.Spec, sess.Budget = body, min(sess.Budget, int64(sp.Limits.Budget))
	if err := q.SetSessionSpec(ctx, storage.SetSessionSpecParams{ID: sess.ID, Spec: body, Budget: int64(sp.Limits.Budget)}); err != nil {
		return fmt.Errorf("tightening session %s: %w", sess.ID, err)
	}
	return nil
}

// denied is the end of a session that may not run any more.
func denied(words string) *change { return &change{to: Stopped, reason: ReasonDenied, words: words} }

// modelMissing says in words why no agent could work with the model it is to have:
// a fork can name any, and models can be taken away while a session waits. Every
// attempt would fail as the machinery's fault.
func (s *Scheduler) modelMissing(h spec.Harness) string {
	if h.Model == "" || s.o.ModelAPI == nil {
		return ""
	}
	if _, err := s.o.ModelAPI(h.Model, h.Kind); err != nil {
		return "The agent has no model to work with: " + err.Error() + "."
	}
	return ""
}

// suited are the nodes whose sandboxes are at least of a tier, and why the
// others are not.
func suited(nodes []storage.Node, least string) (out []storage.Node, wait string) {
	var have []string
	for _, n := range nodes {
		tier, _, _ := strings.Cut(stateOf(n).Tier, " ") // a node that said nothing yet has none
		if rank(tier) < rank(least) {
			have = append(have, fmt.Sprintf("%s has %s", n.Name, orWords(tier, "none yet")))
		} else {
			out = append(out, n)
		}
	}
	if len(out) == 0 && len(have) > 0 {
		wait = fmt.Sprintf("waiting for a node with sandboxes of the tier %s, which the operator asks for (%s)", least, strings.Join(have, ", "))
	}
	return out, wait
}

func rank(tier string) int {
	for i, t := range spec.Tiers() {
		if t == tier {
			return i + 1
		}
	}
	return 0
}
