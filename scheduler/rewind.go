package scheduler

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// A session can go on from the end of one of its earlier turns, or a second one
// can from the same point. Where the clone of that turn's attempt is still on a
// node whose store can make another of what it was then, that is done; else the
// turn's bundle is applied to a new clone, which works everywhere.

// forkHold is how long the clone of a turn is held for the one that is to be
// made of it.
const forkHold = time.Hour

// Words for a person about what cannot be gone on from.
type pointError string

func (e pointError) Error() string { return string(e) }

func cannot(format string, args ...any) error { return pointError(fmt.Sprintf(format, args...)) }

// IsPointError tells whether an error of Rewind or Fork is words for the person
// who asked.
func IsPointError(err error) bool {
	var p pointError
	return errors.As(err, &p)
}

// Point is the end of a turn of a session.
type Point struct {
	Session    string
	Generation int    // attempt; 0: the newest that has the turn
	Turn       int    // counted from 1 in each attempt; 0: the last
	By         Person // an account of the forge; zero: somebody on this machine
}

// find looks a point up: its work must be there. The clone is held if there is one.
func (p Point) find(ctx context.Context, q *storage.Queries, now time.Time) (wire.Fork, storage.Bundle, error) {
	var b storage.Bundle
	err := sql.ErrNoRows
	if countable(p.Generation) && countable(p.Turn) {
		b, err = q.BundleOfTurn(ctx, storage.BundleOfTurnParams{SessionID: p.Session, Generation: int32(p.Generation), Turn: int32(p.Turn)})
	}
	if storage.IsMissing(err) {
		return wire.Fork{}, b, p.missing(ctx, q)
	}
	if err != nil {
		return wire.Fork{}, b, fmt.Errorf("looking for turn %d of session %s: %w", p.Turn, p.Session, err)
	}
	if err := q.HoldAttempt(ctx, storage.HoldAttemptParams{SessionID: p.Session, Generation: b.Generation, Until: now.Add(forkHold)}); err != nil {
		return wire.Fork{}, b, fmt.Errorf("holding the clone of session %s: %w", p.Session, err)
	}
	return wire.Fork{Session: p.Session, Generation: int(b.Generation), Turn: int(b.Turn)}, b, nil
}

// countable tells whether a number of a person can be that of a turn or an
// attempt, which the database keeps in 32 bits: a larger one would come to mean
// another turn. 0 leaves it open.
func countable(n int) bool { return n >= 0 && n <= math.MaxInt32 }

// missing says what there is in place of a point that there is not.
func (p Point) missing(ctx context.Context, q *storage.Queries) error {
	in := p.Generation
	if !countable(in) {
		in = 0
	}
	last, err := q.BundleOfTurn(ctx, storage.BundleOfTurnParams{SessionID: p.Session, Generation: int32(in)})
	if storage.IsMissing(err) && in > 0 {
		in = 0
		last, err = q.BundleOfTurn(ctx, storage.BundleOfTurnParams{SessionID: p.Session})
	}
	switch {
	case storage.IsMissing(err):
		return cannot("nothing is kept of the turns of session %s: it ended before the first of them was over", p.Session)
	case err != nil:
		return fmt.Errorf("looking for the turns of session %s: %w", p.Session, err)
	case in != p.Generation:
		return cannot("nothing is kept of an attempt %d of session %s: the last that is kept is turn %d of attempt %d", p.Generation, p.Session, last.Turn, last.Generation)
	}
	return cannot("session %s has no turn %d: the last that is kept is turn %d of attempt %d", p.Session, p.Turn, last.Turn, last.Generation)
}

// Rewind puts a session that has ended back into the queue, to go on from the
// end of one of its turns as a new attempt. It needs no running scheduler; one
// that runs sees it at its next sweep. Errors that a person can do something
// about are told by IsPointError.
func Rewind(ctx context.Context, tx *storage.Tx, p Point, who string, now time.Time) (storage.Session, error) {
	return reopen(ctx, tx, p, who, false, now)
}

// Retry is Rewind to the last turn, and to the beginning where nothing is kept
// of any.
func Retry(ctx context.Context, tx *storage.Tx, p Point, who string, now time.Time) (storage.Session, error) {
	p.Generation, p.Turn = 0, 0
	return reopen(ctx, tx, p, who, true, now)
}

// Continue is Rewind to the last turn, with one more thing to do.
func Continue(ctx context.Context, tx *storage.Tx, session string, prompt Prompt, now time.Time) (storage.Session, error) {
	row, err := Rewind(ctx, tx, Point{Session: session, By: prompt.By}, prompt.By.Login, now)
	if err != nil {
		return row, err
	}
	return row, addPrompt(ctx, tx.Q(), &row, prompt, now)
}

func reopen(ctx context.Context, tx *storage.Tx, p Point, who string, anew bool, now time.Time) (storage.Session, error) {
	q := tx.Q()
	row, err := q.LockSession(ctx, p.Session)
	if err != nil {
		return row, missingAs(err, cannot("there is no session %q", p.Session))
	}
	if !Allowed(row.State, Queued, Rewound) {
		if row.State == Delivered {
			return row, cannot("session %s has delivered its result, which stays: fork it instead", row.ID)
		}
		return row, cannot("session %s has not ended: it is %s; stop it first, or fork it", row.ID, row.State)
	}
	if row.Budget > 0 && row.Spent >= row.Budget {
		return row, cannot("session %s has used its budget of %s up: fork it instead", row.ID, spec.Money(row.Budget))
	}
	if gone, err := q.EventsRemoved(ctx, row.ID); err != nil {
		return row, fmt.Errorf("reading the record of session %s: %w", row.ID, err)
	} else if gone {
		return row, cannot("the record of session %s was removed because it is old: fork it instead", row.ID)
	}
	if row.IssueNumber > 0 {
		other, err := q.OpenSessionOfIssue(ctx, storage.OpenSessionOfIssueParams{RepositoryID: row.RepositoryID, IssueNumber: row.IssueNumber})
		if err == nil {
			return row, cannot("session %s is at work on the same issue: wait for its end, or stop it", other.ID)
		} else if !storage.IsMissing(err) {
			return row, fmt.Errorf("looking for sessions of the same issue: %w", err)
		}
	}
	words, at := "", pqtype.NullRawMessage{}
	switch from, b, err := p.find(ctx, q, now); {
	case err == nil:
		words = fmt.Sprintf("Goes on from turn %d of attempt %d, as %s asked.", b.Turn, b.Generation, clip(who, 100))
		at = pqtype.NullRawMessage{RawMessage: encode(from), Valid: true}
	case anew && IsPointError(err):
		words = fmt.Sprintf("Begins anew, as %s asked: nothing is kept of what was done.", clip(who, 100))
		if first, ok, ferr := startFrom(row); ferr != nil {
			return row, ferr
		} else if ok && first.Session != row.ID {
			// A fork begins where the other session was, and its clone is held again.
			if err := q.HoldAttempt(ctx, storage.HoldAttemptParams{SessionID: first.Session, Generation: int32(first.Generation), Until: now.Add(forkHold)}); err != nil {
				return row, fmt.Errorf("holding the clone of session %s: %w", first.Session, err)
			}
			at = row.StartFrom
		}
	default:
		return row, err
	}
	if err := addPerson(ctx, q, row.ID, p.By, RolePrompted, now); err != nil {
		return row, err
	}
	e, err := ownEvent(row.Generation, EventState, now, map[string]any{"from": row.State, "to": Queued, "reason": "rewound", "words": words})
	if err != nil {
		return row, err
	}
	if err := appendEvents(ctx, q, &row, e); err != nil {
		return row, err
	}
	after, err := q.ReopenSession(ctx, storage.ReopenSessionParams{
		ID: row.ID, Version: row.Version, Now: now, Deadline: now.Add(Times{}.withDefaults().Queue),
		StartFrom: at,
	})
	if err != nil {
		return row, fmt.Errorf("putting session %s back into the queue: %w", row.ID, missingAs(err, errMoved))
	}
	return after, nil
}

// Fork makes a second session that goes on from the end of a turn of another
// one, which it leaves as it is. What the harness leaves open is the other's. It needs no running scheduler. Errors are as
// those of Rewind.
func Fork(ctx context.Context, tx *storage.Tx, p Point, h spec.Harness, who string, now time.Time) (storage.Session, error) {
	q := tx.Q()
	src, err := q.LockSession(ctx, p.Session)
	if err != nil {
		return src, missingAs(err, cannot("there is no session %q", p.Session))
	}
	from, b, err := p.find(ctx, q, now)
	if err != nil {
		return src, err
	}
	sp, err := sessionSpec(src)
	if err != nil {
		return src, err
	}
	if sp.Harness, err = otherHarness(src.ID, sp.Harness, h); err != nil {
		return src, err
	}
	id, by := newID(), Person{src.RequesterID, src.RequesterLogin}
	if p.By.ID > 0 {
		by = p.By
	}
	row, err := insertSession(ctx, q, id, NewSession{
		InstallationID: src.InstallationID, RepositoryID: src.RepositoryID, IssueNumber: int(src.IssueNumber),
		IntentKey:   fmt.Sprintf("fork:%s:%d:%d:%s", from.Session, from.Generation, from.Turn, id),
		RequesterID: by.ID, RequesterLogin: by.Login, Title: src.Title,
		Request: src.Request, Prompt: src.Prompt, ContextDigest: src.ContextDigest,
		BaseBranch: src.BaseBranch, BaseSHA: src.BaseSha, InstructionsSHA: src.InstructionsSha, EnvironmentID: src.EnvironmentID,
		Spec: sp, SpecSource: src.SpecSource, Priority: int(src.Priority), Locked: src.Locked, Context: src.Context.RawMessage,
		Pull: Pull{Number: int(src.PullNumber), HeadRepoID: src.HeadRepoID, Deliver: src.Deliver},
	}, now, now.Add(Times{}.withDefaults().Queue))
	if err != nil {
		return src, err
	}
	if by.ID == 0 { // nobody's, or a pipeline's like the other
		if err := q.CopyPipelineSession(ctx, storage.CopyPipelineSessionParams{SessionID: row.ID, FromSession: src.ID, Now: now}); err != nil {
			return src, fmt.Errorf("giving session %s the pipeline of the other: %w", row.ID, err)
		}
	}
	if err := q.CopyPrompts(ctx, storage.CopyPromptsParams{SessionID: row.ID, FromSession: src.ID}); err != nil {
		return src, fmt.Errorf("giving session %s what was asked of the other: %w", row.ID, err)
	}
	// Generation 0 is what there was before the first attempt.
	if err := q.UpsertBundle(ctx, storage.UpsertBundleParams{
		SessionID: row.ID, Turn: b.Turn, Sha256: b.Sha256, Bytes: b.Bytes, Tip: b.Tip, CreatedAt: now,
	}); err != nil {
		return src, fmt.Errorf("giving session %s its work: %w", row.ID, err)
	}
	if err := q.SetStartFrom(ctx, storage.SetStartFromParams{ID: row.ID, StartFrom: pqtype.NullRawMessage{RawMessage: encode(from), Valid: true}}); err != nil {
		return src, fmt.Errorf("forking session %s: %w", src.ID, err)
	}
	e, err := ownEvent(0, wire.EventNote, now, wire.Note{
		Words: fmt.Sprintf("Forked from turn %d of attempt %d of session %s, as %s asked.", b.Turn, b.Generation, src.ID, clip(who, 100)),
	})
	if err != nil {
		return src, err
	}
	return row, appendEvents(ctx, q, &row, e)
}

// otherHarness is what a fork works with: h, and of the first session what h
// leaves open.
func otherHarness(session string, was, h spec.Harness) (spec.Harness, error) {
	if h.Model == "" {
		h.Model = was.Model
	}
	if h.Kind == "" || h.Kind == was.Kind && h.Command == "" {
		was.Model = h.Model
		return was, nil
	}
	switch {
	case h.Kind == spec.HarnessCommand && h.Command == "":
		return h, cannot("session %s names no command that could be its harness", session)
	case h.Kind != spec.HarnessCommand && h.Model == "":
		return h, cannot("session %s has no model that %s could work with: name one", session, h.Kind)
	}
	return h, nil
}

// startFrom is the turn a session goes on from; false: it began anew.
func startFrom(sess storage.Session) (from wire.Fork, ok bool, err error) {
	if !sess.StartFrom.Valid {
		return from, false, nil
	}
	if err := json.Unmarshal(sess.StartFrom.RawMessage, &from); err != nil {
		return from, false, fmt.Errorf("reading what session %s goes on from: %w", sess.ID, err)
	}
	return from, true, nil
}

// forkable is the node on which an attempt of a session could have the very
// clone that it is to go on from; empty: none. Only the first attempt tries.
func (s *Scheduler) forkable(ctx context.Context, q *storage.Queries, sess storage.Session, nodes map[string]storage.Node) (string, wire.Fork, error) {
	from, ok, err := startFrom(sess)
	if err != nil || !ok || sess.Generation != sess.Rewound {
		return "", from, err
	}
	a, err := q.GetAttempt(ctx, storage.GetAttemptParams{SessionID: from.Session, Generation: int32(from.Generation)})
	if err != nil {
		if storage.IsMissing(err) {
			err = nil
		}
		return "", from, err
	}
	n, ok := nodes[a.Node]
	st := stateOf(n)
	has := slices.ContainsFunc(st.Clones, func(c wire.Clone) bool {
		return c.Session == from.Session && c.Generation == from.Generation && c.Purpose == wire.PurposeWork
	})
	if !ok || !has || a.ReapedAt.Valid || !s.alive(n) || !st.Forks {
		return "", from, nil
	}
	return a.Node, from, nil
}

// unchangedTurn notes that a turn of an attempt is over in which nothing was
// committed: whoever returns to it finds the work of the turn before, or what the
// attempt began with.
func unchangedTurn(ctx context.Context, q *storage.Queries, sess storage.Session, a storage.Attempt, turn wire.Turn, now time.Time) error {
	b, err := q.BundleBeforeTurn(ctx, storage.BundleBeforeTurnParams{SessionID: a.SessionID, Generation: a.Generation, Turn: int32(turn.Turn)})
	if storage.IsMissing(err) {
		b, err = lastWork(ctx, q, sess, a.Generation)
	}
	switch {
	case storage.IsMissing(err):
		b = storage.Bundle{Tip: turn.Tip}
	case err != nil:
		return fmt.Errorf("looking for the work before turn %d of session %s: %w", turn.Turn, sess.ID, err)
	}
	if err := q.InsertUnchangedTurn(ctx, storage.InsertUnchangedTurnParams{
		SessionID: a.SessionID, Generation: a.Generation, Turn: int32(turn.Turn), Sha256: b.Sha256, Bytes: b.Bytes, Tip: b.Tip, CreatedAt: now,
	}); err != nil {
		return fmt.Errorf("noting turn %d of session %s: %w", turn.Turn, sess.ID, err)
	}
	return nil
}

// lastWork is the bundle that an attempt of a session goes on from.
func lastWork(ctx context.Context, q *storage.Queries, sess storage.Session, generation int32) (storage.Bundle, error) {
	b, err := q.LastBundleBefore(ctx, storage.LastBundleBeforeParams{SessionID: sess.ID, Generation: generation, Rewound: sess.Rewound})
	if !storage.IsMissing(err) {
		return b, err
	}
	from, ok, ferr := startFrom(sess)
	if ferr != nil || !ok {
		return b, errors.Join(ferr, err)
	}
	if from.Session != sess.ID {
		from.Generation = 0
	}
	return q.GetBundleAt(ctx, storage.GetBundleAtParams{SessionID: sess.ID, Generation: int32(from.Generation), Turn: int32(from.Turn)})
}

// adopt copies the work that a fork begins with from the session it is a fork of:
// from then on it is the fork's own, like all that it uploads.
func (s *Scheduler) adopt(ctx context.Context, sess storage.Session, b storage.Bundle) error {
	if b.Generation != 0 || b.Sha256 == "" {
		return nil
	}
	if _, err := s.o.Blobs.Size(ctx, sess.ID, b.Sha256); !errors.Is(err, storage.ErrBlobMissing) {
		return err
	}
	from, _, err := startFrom(sess)
	if err != nil {
		return err
	}
	work, err := s.o.Blobs.Get(ctx, from.Session, b.Sha256)
	if err != nil {
		return fmt.Errorf("reading the work that session %s is a fork of: %w", sess.ID, err)
	}
	defer work.Close()
	if _, err := s.o.Blobs.PutNamed(ctx, sess.ID, b.Sha256, work, wire.MaxBundleBytes); err != nil {
		return fmt.Errorf("copying the work that session %s is a fork of: %w", sess.ID, err)
	}
	return nil
}
