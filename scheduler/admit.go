package scheduler

import (
	"context"
	"fmt"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/storage"
)

// maxQueueLook bounds how many queued sessions one look at the queue considers.
const maxQueueLook = 500

// admit goes through the queue in order and places every session that can have
// a machine now; each of the others gets a queue reason in words. One
// transaction at a time does this in the whole installation, so that limits
// hold whoever calls.
func (s *Scheduler) admit(ctx context.Context) error {
	var ended []storage.Session
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		ended = nil // the transaction may be repeated
		q := tx.Q()
		if err := q.LockAdmission(ctx); err != nil {
			return err
		}
		queued, err := q.QueuedSessions(ctx, maxQueueLook)
		if err != nil || len(queued) == 0 {
			return err
		}
		if err := s.retireStale(ctx, q); err != nil {
			return err
		}
		nodes, err := q.Nodes(ctx)
		if err != nil {
			return err
		}
		use, err := s.inUse(ctx, q)
		if err != nil {
			return err
		}
		for _, sess := range queued {
			if err := s.consider(ctx, tx, sess, nodes, use); err != nil {
				return err
			}
		}
		ended = use.ended
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking at the queue: %w", err)
	}
	for _, sess := range ended {
		s.logEnd("a session has ended", sess)
	}
	return nil
}

// usage counts who holds machines, and who waits for one in front of whom.
type usage struct {
	total        int
	byRepository map[int64]int
	waiting      int
	ended        []storage.Session // not placed, but over
}

func (s *Scheduler) inUse(ctx context.Context, q *storage.Queries) (*usage, error) {
	rows, err := q.ActiveByRepository(ctx)
	if err != nil {
		return nil, err
	}
	u := &usage{byRepository: map[int64]int{}}
	for _, r := range rows {
		u.total += int(r.Active)
		u.byRepository[r.RepositoryID] = int(r.Active)
	}
	return u, nil
}

// consider decides about one queued session; use is kept up to date.
func (s *Scheduler) consider(ctx context.Context, tx *storage.Tx, sess storage.Session, nodes []storage.Node, use *usage) error {
	if !s.clock.Now().Before(sess.Deadline) {
		return nil // its own look ends it
	}
	q := tx.Q()
	b, err := s.boundSession(ctx, q, sess)
	if err != nil {
		return err
	}
	r := readiness{end: denied(b.Denied)}
	if b.Denied == "" {
		if r, err = s.prepare(ctx, q, sess, nodes, b.Tier); err != nil {
			return err
		}
	}
	if r.end != nil || r.wait == "" {
		row, err := q.LockSession(ctx, sess.ID)
		if err != nil {
			return err
		}
		if row.Version != sess.Version || row.StopAt.Valid {
			return nil
		}
		sess = row
	}
	if r.end != nil {
		after, err := s.applyLocked(ctx, tx, sess, *r.end)
		if err != nil {
			return err
		}
		use.ended = append(use.ended, after)
		return s.InsertReconcile(ctx, tx, sess.ID)
	}
	if r.wait == "" {
		r.wait = s.full(sess.RepositoryID, b.Spec.Limits.Concurrent, use)
	}
	if r.note != "" {
		if err := s.note(ctx, q, sess.ID, r.note); err != nil {
			return err
		}
	}
	if r.wait != "" {
		if sess.QueueReason != r.wait {
			return q.SetQueueReason(ctx, storage.SetQueueReasonParams{ID: sess.ID, QueueReason: clip(r.wait, 500)})
		}
		return nil
	}
	use.total++
	use.byRepository[sess.RepositoryID]++
	if err := tighten(ctx, q, &sess, b.Spec); err != nil {
		return err
	}
	if err := s.place(ctx, tx, sess, r); err != nil {
		return err
	}
	return s.InsertReconcile(ctx, tx, sess.ID)
}

// note writes words for people into a session's record.
func (s *Scheduler) note(ctx context.Context, q *storage.Queries, id, words string) error {
	row, err := q.LockSession(ctx, id)
	if err != nil {
		return err
	}
	e, err := ownEvent(row.Generation, wire.EventNote, s.clock.Now(), wire.Note{Words: clip(words, 500)})
	if err != nil {
		return err
	}
	return appendEvents(ctx, q, &row, e)
}

// full says which limit keeps a session of a repository waiting, or nothing.
func (s *Scheduler) full(repositoryID int64, perRepository int, use *usage) string {
	if l := s.o.Limits.PerRepository; l > 0 && (perRepository <= 0 || l < perRepository) {
		perRepository = l
	}
	mine := use.byRepository[repositoryID]
	if perRepository > 0 && mine >= perRepository {
		return fmt.Sprintf("waiting for another session of this repository to end (%d of %d run)", mine, perRepository)
	}
	if use.total >= s.o.Limits.Total {
		words := fmt.Sprintf("waiting for a free machine (%d of %d sessions run", use.total, s.o.Limits.Total)
		switch use.waiting++; use.waiting {
		case 1:
			words += "; this one is next)"
		default:
			words += fmt.Sprintf("; %d are ahead of this one)", use.waiting-1)
		}
		return words
	}
	return ""
}

// place writes a new attempt, with its deadline, before any engine is asked.
func (s *Scheduler) place(ctx context.Context, tx *storage.Tx, sess storage.Session, r readiness) error {
	now := s.clock.Now()
	timeout, verify := s.workTimes(sess)
	generation := sess.Generation + 1
	workDeadline := now.Add(s.times.Place + s.times.Restore + timeout)
	_, err := s.applyLocked(ctx, tx, sess, change{
		to: Placing,
		with: func(q *storage.Queries, row *storage.Session) error {
			if err := q.InsertAttempt(ctx, storage.InsertAttemptParams{
				SessionID: row.ID, Generation: generation, Engine: s.o.Engine.Name(), Node: r.node, SnapshotID: r.snapshot,
				SecretHash: hashOf(s.runnerSecret(row.ID, generation)), StartedAt: now,
				WorkDeadline: workDeadline, Deadline: workDeadline.Add(verify + 2*s.times.WorkMargin),
				Taken: pqtype.NullRawMessage{RawMessage: encode(r.taken), Valid: true},
				Fork:  pqtype.NullRawMessage{RawMessage: encode(r.fork), Valid: r.fork != nil},
			}); err != nil {
				return fmt.Errorf("beginning attempt %d of session %s: %w", generation, row.ID, err)
			}
			if err := q.SetSessionPlacement(ctx, storage.SetSessionPlacementParams{
				ID: row.ID, Generation: generation, SnapshotID: r.snapshot, Node: r.node,
			}); err != nil {
				return fmt.Errorf("placing session %s: %w", row.ID, err)
			}
			row.Generation = generation
			e, err := ownEvent(generation, EventAttempt, now, map[string]any{
				"generation": generation, "node": r.node, "snapshot": r.snapshot, "why": r.taken.Why,
			})
			if err != nil {
				return err
			}
			return appendEvents(ctx, q, row, e)
		},
	})
	return err
}
