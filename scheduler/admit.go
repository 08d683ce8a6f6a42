package scheduler

import (
	"context"
	"fmt"
	"strings"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

const (
	// maxQueueLook bounds how many queued sessions one look at the queue considers.
	maxQueueLook = 500
	// lookAhead is how many of those that wait for a slot have their environments
	// looked after, so that they can start at once when it is their turn.
	lookAhead = 16
)

// admit goes through the queue in order and places every session that can have
// a machine now; each of the others gets a queue reason in words. One
// transaction at a time does this in the whole installation, so that limits
// hold whoever calls.
func (s *Scheduler) admit(ctx context.Context) error {
	list, away := s.askRoom(ctx)
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
		use.away = away
		if s.placer() != nil {
			if use.rooms, err = roomLeft(ctx, q, list); err != nil {
				return err
			}
		}
		for _, sess := range queued {
			if err := s.consider(ctx, tx, sess, nodes, use); err != nil {
				return err
			}
		}
		ended = use.ended
		if err := q.SetQueuePositions(ctx, encode(use.waiting)); err != nil {
			return fmt.Errorf("numbering the queue: %w", err)
		}
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

// readmit looks at the queue because somebody in it may be placed now.
func (s *Scheduler) readmit(ctx context.Context) {
	if err := s.admit(ctx); err != nil {
		s.log.Warn("the queue is looked at later than wanted", "error", err)
	}
}

// usage counts who holds machines, and who waits for one.
type usage struct {
	total          int
	byRepository   map[int64]int
	byOwner        map[string]int // in lower case
	byInstallation map[int64]int
	rooms          rooms             // what the nodes have left; nil: the engine has only its own machine
	away           string            // why that is not known
	ahead          int               // of those that wait for a slot, whose environments were looked after
	waiting        []string          // ids, in order
	ended          []storage.Session // not placed, but over
}

func (u *usage) add(repository int64, owner string, installation int64, n int) {
	u.total += n
	u.byRepository[repository] += n
	u.byOwner[strings.ToLower(owner)] += n
	u.byInstallation[installation] += n
}

func (s *Scheduler) inUse(ctx context.Context, q *storage.Queries) (*usage, error) {
	rows, err := q.ActiveByRepository(ctx)
	if err != nil {
		return nil, err
	}
	u := &usage{byRepository: map[int64]int{}, byOwner: map[string]int{}, byInstallation: map[int64]int{}, waiting: []string{}}
	for _, r := range rows {
		u.add(r.RepositoryID, r.Owner, r.InstallationID, int(r.Active))
	}
	return u, nil
}

// consider decides about one queued session; use is kept up to date.
func (s *Scheduler) consider(ctx context.Context, tx *storage.Tx, sess storage.Session, nodes []storage.Node, use *usage) error {
	if !s.clock.Now().Before(sess.Deadline) {
		return nil // its own look ends it
	}
	q := tx.Q()
	full := ""
	if use.total >= s.o.Limits.Total {
		full = "the one slot is taken"
		if s.o.Limits.Total > 1 {
			full = fmt.Sprintf("all %d slots are taken", s.o.Limits.Total)
		}
		if use.ahead++; use.ahead > lookAhead {
			return s.wait(ctx, q, sess, full, use)
		}
	}
	if use.away != "" {
		return s.wait(ctx, q, sess, use.away, use)
	}
	repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
	}
	b, err := s.boundSession(ctx, q, sess)
	if err != nil {
		return err
	}
	if b.Denied == "" {
		b.Denied = s.modelMissing(b.Spec.Harness)
	}
	r := readiness{end: denied(b.Denied)}
	if b.Denied == "" {
		if r, err = s.prepare(ctx, q, sess, nodes, b, use.rooms); err != nil {
			return err
		}
	}
	if r.end == nil && (r.wait == "" || r.roomOn != "") {
		if full == "" {
			full, err = s.limited(ctx, q, sess, repo, b.Spec.Limits, use)
			if err != nil {
				return err
			}
		}
		switch {
		case full != "":
			r.wait = full
		case r.roomOn != "": // those behind it do not get the room that it waits for
			use.rooms.take(r.roomOn, needOf(b.Spec.Limits))
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
	if r.note != "" {
		if err := s.note(ctx, q, sess.ID, r.note); err != nil {
			return err
		}
	}
	if r.wait != "" {
		return s.wait(ctx, q, sess, r.wait, use)
	}
	use.add(repo.ID, repo.Owner, sess.InstallationID, 1)
	use.rooms.take(r.node, needOf(b.Spec.Limits))
	if err := tighten(ctx, q, &sess, b.Spec); err != nil {
		return err
	}
	if err := s.place(ctx, tx, sess, r); err != nil {
		return err
	}
	return s.InsertReconcile(ctx, tx, sess.ID)
}

// wait has a session keep its place in the queue for a reason in words.
func (s *Scheduler) wait(ctx context.Context, q *storage.Queries, sess storage.Session, reason string, use *usage) error {
	use.waiting = append(use.waiting, sess.ID)
	if reason = clip(reason, 500); sess.QueueReason == reason {
		return nil
	}
	return q.SetQueueReason(ctx, storage.SetQueueReasonParams{
		ID: sess.ID, Version: sess.Version, QueueReason: reason, SameKind: sameKind(sess.QueueReason, reason), Now: s.clock.Now(),
	})
}

// Note writes words for people into a session's record.
func (s *Scheduler) Note(ctx context.Context, session, words string) error {
	return s.db.InLockTx(ctx, func(tx *storage.Tx) error { return s.note(ctx, tx.Q(), session, words) })
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

// limited says which limit keeps a session waiting, or nothing.
func (s *Scheduler) limited(ctx context.Context, q *storage.Queries, sess storage.Session, repo storage.Repository, l spec.Limits, use *usage) (string, error) {
	name := repo.Owner + "/" + repo.Name
	own := l.Concurrent
	if most := s.o.Limits.PerRepository; most > 0 && (own <= 0 || most < own) {
		own = most
	}
	for _, limit := range []struct {
		most, active int
		of           string
	}{
		{own, use.byRepository[repo.ID], name},
		{s.o.Limits.PerOwner, use.byOwner[strings.ToLower(repo.Owner)], repo.Owner},
		{s.o.Limits.PerInstallation, use.byInstallation[sess.InstallationID], fmt.Sprintf("installation %d", sess.InstallationID)},
	} {
		if limit.most > 0 && limit.active >= limit.most {
			return fmt.Sprintf("limit %d of %s reached", limit.most, limit.of), nil
		}
	}
	if sess.Deliver != DeliverPull || sess.PullRequest != 0 { // it opens none
		return "", nil
	}
	for _, limit := range []struct {
		most      int
		requester int64 // 0: anybody
		of        string
	}{
		{l.OpenPullRequests, 0, name},
		{l.OpenPullRequestsEach, sess.RequesterID, name + " that " + sess.RequesterLogin + " asked for"},
	} {
		if limit.most == 0 {
			continue
		}
		open, err := q.OpenPullRequests(ctx, storage.OpenPullRequestsParams{RepositoryID: repo.ID, RequesterID: limit.requester})
		switch {
		case err != nil:
			return "", fmt.Errorf("counting the open pull requests of repository %d: %w", repo.ID, err)
		case int(open) < limit.most:
		case open == 1:
			return "1 pull request of " + limit.of + " awaits review", nil
		default:
			return fmt.Sprintf("%d pull requests of %s await review", open, limit.of), nil
		}
	}
	return "", nil
}

// place writes a new attempt, with its deadline, before any engine is asked.
func (s *Scheduler) place(ctx context.Context, tx *storage.Tx, sess storage.Session, r readiness) error {
	now := s.clock.Now()
	timeout, verify := s.workTimes(sess)
	generation := sess.Generation + 1
	workDeadline, deadline := s.attemptTimes(now, timeout, verify)
	_, err := s.applyLocked(ctx, tx, sess, change{
		to: Placing,
		with: func(q *storage.Queries, row *storage.Session) error {
			if err := q.InsertAttempt(ctx, storage.InsertAttemptParams{
				SessionID: row.ID, Generation: generation, Engine: s.o.Engine.Name(), Node: r.node, SnapshotID: r.snapshot,
				SecretHash: s.secretHash(row.ID, generation), StartedAt: now,
				WorkDeadline: workDeadline, Deadline: deadline,
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
			if err := handOverAll(ctx, q, row.ID, generation, now); err != nil {
				return err
			}
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
