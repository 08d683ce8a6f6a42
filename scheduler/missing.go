package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"inspect/storage"
)

// maxMissing bounds how often a session is placed where its snapshot turns out
// to be missing, anew each time it is rewound.
const maxMissing = 5

// missing takes the outcome of an attempt that found no snapshot where it ran.
// That is no failure of the session: what is missing is prepared there, and the
// session goes back into the queue, for that node or another.
func (s *Scheduler) missing(ctx context.Context, sess storage.Session, a storage.Attempt, words string) error {
	before, err := s.db.Q().MissingAttempts(ctx, storage.MissingAttemptsParams{SessionID: sess.ID, Rewound: sess.Rewound})
	if err != nil {
		return fmt.Errorf("counting the attempts of session %s without a snapshot: %w", sess.ID, err)
	}
	if len(before) >= maxMissing {
		return s.giveUp(ctx, sess, change{
			to: Infrastructure, reason: ReasonSnapshotMissing, endWords: words,
			words: fmt.Sprintf("The snapshot was missing on the node %d times; the last time: %s.", len(before), words),
		})
	}
	return s.giveUp(ctx, sess, change{
		to: Queued, move: NewAttempt, endWords: words, waitsOn: true,
		queueReason: fmt.Sprintf("node %s did not have the snapshot", orWords(a.Node, "of the attempt")),
		with: func(q *storage.Queries, row *storage.Session) error {
			return s.prepareMissing(ctx, q, *row, a)
		},
	})
}

// prepareMissing has a snapshot prepared on the node that lacks it. Only the
// node itself is believed that it lost one.
func (s *Scheduler) prepareMissing(ctx context.Context, q *storage.Queries, sess storage.Session, a storage.Attempt) error {
	node, err := q.GetNode(ctx, a.Node)
	if storage.IsMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading node %s: %w", a.Node, err)
	}
	env, err := q.LockEnvironment(ctx, sess.EnvironmentID)
	if err != nil {
		return fmt.Errorf("reading environment %s: %w", sess.EnvironmentID, err)
	}
	sn, err := q.LockSnapshot(ctx, a.SnapshotID)
	if err != nil {
		return fmt.Errorf("reading snapshot %s: %w", a.SnapshotID, err)
	}
	here, has := sn.Node == node.Name, stateOf(node).Snapshots
	lost := here && has != nil && !slices.Contains(has, sn.ID)
	if lost && sn.State == snapshotReady {
		s.log.Warn("a node lost a snapshot; it is prepared anew", "node", node.Name, "snapshot", sn.ID)
		if err := q.RetireSnapshot(ctx, sn.ID); err != nil {
			return fmt.Errorf("retiring snapshot %s: %w", sn.ID, err)
		}
	}
	if sn.Cold { // the queue asks for one again
		return nil
	}
	repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
	}
	sp, nodes, err := s.refreshable(ctx, q, env, []storage.Node{node})
	if err != nil || len(nodes) == 0 {
		return err
	}
	return s.want(ctx, q, env, sp, node.Name, wanted{branch: repo.DefaultBranch, commit: sn.CommitSha, asked: true, afresh: here && !lost})
}

// missed are the snapshots that a session found missing on their own nodes.
func missed(ctx context.Context, q *storage.Queries, sess storage.Session) (map[string]bool, error) {
	if sess.Generation == sess.Rewound {
		return nil, nil
	}
	rows, err := q.MissingAttempts(ctx, storage.MissingAttemptsParams{SessionID: sess.ID, Rewound: sess.Rewound})
	if err != nil {
		return nil, fmt.Errorf("looking for snapshots that session %s found missing: %w", sess.ID, err)
	}
	out := map[string]bool{}
	for _, r := range rows {
		if r.Lost {
			out[r.SnapshotID] = true
		}
	}
	return out, nil
}

// tried is how many attempts of a session count.
func (s *Scheduler) tried(ctx context.Context, sess storage.Session) (int, error) {
	rows, err := s.db.Q().MissingAttempts(ctx, storage.MissingAttemptsParams{SessionID: sess.ID, Rewound: sess.Rewound})
	if err != nil {
		return 0, fmt.Errorf("counting the attempts of session %s: %w", sess.ID, err)
	}
	return int(sess.Generation-sess.Rewound) - len(rows), nil
}

// outcomeWords are an infrastructure outcome's, to go on after a colon.
func outcomeWords(v verdict) string {
	words := strings.TrimRight(v.words, ". ")
	if v.reason != "" {
		words += " (" + v.reason + ")"
	}
	return words
}
