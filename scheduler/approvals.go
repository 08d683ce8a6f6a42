package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// What only a person may allow is asked for and answered here, in one way: a
// result that policy holds back, a further host, a higher budget. Who may answer
// is decided by whoever calls; that a requester does not allow what he asked for
// himself is seen to here, where nobody can become one in between.

// Kinds of approvals.
const (
	ApprovePublish = "publish"
	ApproveEgress  = "egress"
	ApproveBudget  = "budget"
)

// States of approvals.
const (
	approvalPending  = "pending"
	ApprovalApproved = "approved"
	ApprovalRejected = "rejected"
	approvalExpired  = "expired"
	approvalVoid     = "void"
)

// How an approval was answered.
const (
	ByCommand = "command"
	ByButton  = "button"
	ByPage    = "page"
)

// Asked is what an approval is about: one of its fields.
type Asked struct {
	Items  []AskedItem `json:"items,omitempty"`  // what holds a result back
	More   int         `json:"more,omitempty"`   // further items, which are not kept
	Host   string      `json:"host,omitempty"`   // an entry of egress
	Budget int64       `json:"budget,omitempty"` // in billionths of a US dollar
}

// AskedItem is one thing that holds a result back, in words.
type AskedItem struct {
	Reason string `json:"reason"`
	What   string `json:"what"`
}

// Basis is what an approval is bound to beside what it is about. A part that
// does not matter for its kind is empty.
type Basis struct {
	Bundle string // SHA-256 of the work
	Policy string // digest of the effective policy
	Base   string // commit the work started from
	Remote string // commit the work would be put on
}

// Digest identifies what is asked of a session and under which circumstances.
func (b Basis) Digest(session, kind string, asked any) string {
	body := encode(struct {
		Format  int // raise when the meaning of an approval changes
		Session string
		Kind    string
		Asked   any
		Basis   Basis
	}{1, session, kind, asked, b})
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Ask is what a result needs to be allowed before it is pushed.
type Ask struct {
	Asked  Asked
	Basis  Basis
	Digest string
	Words  string
	Void   string // why an answer that was given before does not count; empty: there was none
}

// Errors of asking and answering. A person is told of each in other words.
var (
	ErrNotPending = errors.New("nothing waits for this answer")
	ErrRequester  = errors.New("a requester of the session cannot allow it")
	ErrExpired    = errors.New("nobody answered in time")
	ErrWorkOver   = errors.New("the work of the session is over")
	ErrAsked      = errors.New("something else of this kind waits for an answer")
)

// Approvals are what waits for an answer in a session.
func Approvals(ctx context.Context, q *storage.Queries, session string) ([]storage.Approval, error) {
	all, err := q.PendingApprovals(ctx, session)
	if err != nil {
		return nil, fmt.Errorf("reading what session %s waits for: %w", session, err)
	}
	return all, nil
}

// AllowedTo are the approvals of a session that were given and hold.
func AllowedTo(ctx context.Context, q *storage.Queries, session string) ([]storage.Approval, error) {
	all, err := q.ApprovedApprovals(ctx, session)
	if err != nil {
		return nil, fmt.Errorf("reading what was allowed to session %s: %w", session, err)
	}
	return all, nil
}

// ReadAsked is what an approval is about.
func ReadAsked(a storage.Approval) (out Asked, err error) {
	if err = json.Unmarshal(a.Asked, &out); err != nil {
		err = fmt.Errorf("reading approval %d: %w", a.ID, err)
	}
	return out, err
}

// askTx writes an approval that waits for an answer.
func (s *Scheduler) askTx(ctx context.Context, q *storage.Queries, row *storage.Session, p storage.InsertApprovalParams) (storage.Approval, error) {
	now := s.clock.Now()
	p.SessionID, p.RequestedAt, p.ExpiresAt = row.ID, now, now.Add(s.times.Approval)
	p.Words, p.AskedLogin = clip(p.Words, maxWords), clip(p.AskedLogin, 100)
	a, err := q.InsertApproval(ctx, p)
	if err != nil {
		return a, fmt.Errorf("asking for an approval of session %s: %w", row.ID, err)
	}
	return a, s.tellApproval(ctx, q, row, a, a.Words)
}

// tellApproval puts what became of an approval into the session's chain.
func (s *Scheduler) tellApproval(ctx context.Context, q *storage.Queries, row *storage.Session, a storage.Approval, words string) error {
	data := map[string]any{"approval": a.ID, "kind": a.Kind, "state": a.State, "digest": a.Digest}
	if words != "" {
		data["words"] = words
	}
	if a.State == approvalPending {
		if a.AskedBy != 0 {
			data["who"], data["who_id"] = a.AskedLogin, a.AskedBy
		}
		data["asked"], data["bundle"], data["policy"], data["base"], data["remote"] = a.Asked, a.Bundle, a.Policy, a.BaseSha, a.RemoteHead
	} else if a.AnsweredAt.Valid && a.State != approvalVoid {
		data["who"], data["who_id"], data["how"] = a.AnsweredLogin, a.AnsweredBy, a.AnsweredHow
	}
	e, err := ownEvent(row.Generation, EventApproval, s.clock.Now(), data)
	if err != nil {
		return err
	}
	return appendEvents(ctx, q, row, e)
}

// askToPublish is the part of the change to needs_approval that writes down what
// is asked. Whatever was allowed before does not count any more.
func (s *Scheduler) askToPublish(ctx context.Context, q *storage.Queries, row *storage.Session, ask Ask) error {
	given, err := q.ApprovedApprovals(ctx, row.ID)
	if err != nil {
		return fmt.Errorf("reading what was allowed to session %s: %w", row.ID, err)
	}
	for _, a := range given {
		if a.Kind != ApprovePublish {
			continue
		}
		if err := s.closeApproval(ctx, q, row, a, approvalVoid, ask.Void); err != nil {
			return err
		}
	}
	_, err = s.askTx(ctx, q, row, storage.InsertApprovalParams{
		Kind: ApprovePublish, Asked: encode(ask.Asked), Words: ask.Words, Digest: ask.Digest,
		Bundle: ask.Basis.Bundle, Policy: ask.Basis.Policy, BaseSha: ask.Basis.Base, RemoteHead: ask.Basis.Remote,
	})
	return err
}

func (s *Scheduler) closeApproval(ctx context.Context, q *storage.Queries, row *storage.Session, a storage.Approval, state, words string) error {
	a, err := q.CloseApproval(ctx, storage.CloseApprovalParams{ID: a.ID, State: state})
	if err != nil {
		return fmt.Errorf("closing approval %d of session %s: %w", a.ID, row.ID, err)
	}
	return s.tellApproval(ctx, q, row, a, words)
}

// closePending closes all that waits for an answer in a session.
func (s *Scheduler) closePending(ctx context.Context, q *storage.Queries, row *storage.Session, state, words string) error {
	pending, err := Approvals(ctx, q, row.ID)
	if err != nil {
		return err
	}
	for _, a := range pending {
		if err := s.closeApproval(ctx, q, row, a, state, words); err != nil {
			return err
		}
	}
	return nil
}

// Request asks, in a person's name, for a host or a budget beyond what a session
// has, which goes on meanwhile. Asking again for the same finds what is asked.
// The error is ErrWorkOver, or ErrAsked with the other request.
func (s *Scheduler) Request(ctx context.Context, session, kind string, asked Asked, words string, by Person) (out storage.Approval, err error) {
	err = s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		row, err := q.LockSession(ctx, session)
		if err != nil {
			return fmt.Errorf("reading session %s: %w", session, err)
		}
		if row.State != Queued && !OnMachine(row.State) {
			return ErrWorkOver
		}
		digest := Basis{Base: row.BaseSha}.Digest(session, kind, asked)
		pending, err := Approvals(ctx, q, session)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(pending, func(a storage.Approval) bool { return a.Kind == kind }); i >= 0 {
			if out = pending[i]; out.Digest != digest {
				return ErrAsked
			}
			return nil
		}
		out, err = s.askTx(ctx, q, &row, storage.InsertApprovalParams{
			Kind: kind, Asked: encode(asked), Words: words, Digest: digest, BaseSha: row.BaseSha, AskedBy: by.ID, AskedLogin: by.Login,
		})
		if err != nil {
			return err
		}
		return s.InsertReconcile(ctx, tx, session)
	})
	return out, err
}

// Answer is a person's answer to an approval.
type Answer struct {
	Session  string
	Approval int64
	Approve  bool
	By       Person // has the permission to answer
	How      string // ByCommand, ByButton or ByPage
	FourEyes bool   // a requester may not allow it
}

// Answer takes an answer. A result that is allowed is judged once more before it
// is pushed; one that is rejected ends its session. The error is ErrNotPending,
// ErrExpired or ErrRequester if the answer does not count.
func (s *Scheduler) Answer(ctx context.Context, n Answer) error {
	defer s.wakes.wake("session:" + n.Session)
	var after storage.Session
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		q, now := tx.Q(), s.clock.Now()
		row, err := q.LockSession(ctx, n.Session)
		if err != nil {
			return missingAs(err, ErrNotPending)
		}
		pending, err := Approvals(ctx, q, n.Session)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(pending, func(a storage.Approval) bool { return a.ID == n.Approval })
		if i < 0 {
			return ErrNotPending
		}
		a := pending[i]
		if !now.Before(a.ExpiresAt) {
			return ErrExpired
		}
		if n.Approve && n.FourEyes {
			people, err := Requesters(ctx, q, n.Session)
			if err != nil {
				return err
			}
			if a.AskedBy == n.By.ID || slices.ContainsFunc(people, func(p storage.SessionPerson) bool { return p.UserID == n.By.ID }) {
				return ErrRequester
			}
		}
		state := ApprovalRejected
		if n.Approve {
			state = ApprovalApproved
		}
		if a, err = q.AnswerApproval(ctx, storage.AnswerApprovalParams{
			ID: a.ID, State: state, ByID: n.By.ID, Login: clip(n.By.Login, 100), How: n.How, Now: now,
		}); err != nil {
			return fmt.Errorf("answering approval %d of session %s: %w", n.Approval, n.Session, err)
		}
		if err := s.tellApproval(ctx, q, &row, a, ""); err != nil {
			return err
		}
		if after, err = s.answered(ctx, tx, row, a, n); err != nil {
			return err
		}
		if err := q.WakeSession(ctx, storage.WakeSessionParams{ID: n.Session, At: now}); err != nil {
			return fmt.Errorf("waking session %s: %w", n.Session, err)
		}
		return s.InsertReconcile(ctx, tx, n.Session)
	})
	if err == nil {
		s.logEnd("a session has ended", after)
	}
	return err
}

// answered does what follows from an answer.
func (s *Scheduler) answered(ctx context.Context, tx *storage.Tx, row storage.Session, a storage.Approval, n Answer) (storage.Session, error) {
	switch {
	case a.Kind == ApprovePublish && n.Approve:
		return s.applyLocked(ctx, tx, row, change{to: Publishing, words: "Allowed by " + n.By.Login + "."})
	case a.Kind == ApprovePublish:
		return s.applyLocked(ctx, tx, row, change{to: Stopped, reason: ReasonRejected,
			words: "Rejected by " + n.By.Login + ". Nothing was pushed; the work is kept in the evidence."})
	case n.Approve:
		return row, s.widen(ctx, tx.Q(), row, a)
	}
	return row, nil
}

// widen gives a session what was allowed, from now on: its next attempts find it
// in the pinned spec, one that runs is told.
func (s *Scheduler) widen(ctx context.Context, q *storage.Queries, row storage.Session, a storage.Approval) error {
	sp, err := sessionSpec(row)
	if err != nil {
		return err
	}
	asked, err := ReadAsked(a)
	if err != nil {
		return err
	}
	role, kind := RoleAllowed, wire.DirectiveAllowHost
	var data any = wire.AllowHostDirective{Host: asked.Host}
	if a.Kind == ApproveEgress {
		if !slices.Contains(sp.Allowed, asked.Host) {
			sp.Allowed = append(slices.Clone(sp.Allowed), asked.Host)
		}
	} else {
		row.Budget = max(row.Budget, asked.Budget)
		sp.Limits.Budget = max(sp.Limits.Budget, spec.Money(row.Budget))
		role, kind, data = RoleRaised, wire.DirectiveBudget, wire.BudgetDirective{Budget: row.Budget}
	}
	if err := q.WidenSession(ctx, storage.WidenSessionParams{ID: row.ID, Spec: encode(sp), Budget: row.Budget}); err != nil {
		return fmt.Errorf("widening session %s: %w", row.ID, err)
	}
	if err := addPerson(ctx, q, row.ID, Person{ID: a.AskedBy, Login: a.AskedLogin}, role, s.clock.Now()); err != nil {
		return err
	}
	if !OnMachine(row.State) {
		return nil
	}
	if _, err := q.InsertDirective(ctx, storage.InsertDirectiveParams{
		SessionID: row.ID, Generation: row.Generation, Kind: kind,
		Data: pqtype.NullRawMessage{RawMessage: encode(data), Valid: true}, CreatedAt: s.clock.Now(),
	}); err != nil {
		return fmt.Errorf("telling the runner of session %s: %w", row.ID, err)
	}
	return nil
}

// sweepApprovals closes requests that nobody answered in time. A session that
// waits for an answer is ended by its own deadline.
func (s *Scheduler) sweepApprovals(ctx context.Context) error {
	due, err := s.db.Q().DueApprovals(ctx, storage.DueApprovalsParams{Now: s.clock.Now(), AtMost: sweepBatch})
	if err != nil {
		return fmt.Errorf("looking for requests that nobody answered: %w", err)
	}
	var errs []error
	for _, a := range due {
		errs = append(errs, s.db.InLockTx(ctx, func(tx *storage.Tx) error {
			row, err := tx.Q().LockSession(ctx, a.SessionID)
			if err != nil {
				return fmt.Errorf("reading session %s: %w", a.SessionID, err)
			}
			now, err := Approvals(ctx, tx.Q(), a.SessionID)
			if err != nil || !slices.ContainsFunc(now, func(o storage.Approval) bool { return o.ID == a.ID }) {
				return err
			}
			if err := s.closeApproval(ctx, tx.Q(), &row, a, approvalExpired, "Nobody answered in time."); err != nil {
				return err
			}
			return s.InsertReconcile(ctx, tx, a.SessionID)
		}))
	}
	return errors.Join(errs...)
}

// leastDigest is how much of a digest must be named, in hexadecimal digits.
const leastDigest = 7

// PickApproval finds the one of pending that a digest, or the first digits of
// one, names; without one the only one there is. several: there are more.
func PickApproval(pending []storage.Approval, digest string) (a storage.Approval, found, several bool) {
	digest = strings.TrimPrefix(strings.ToLower(digest), "sha256:")
	var fit []storage.Approval
	for _, p := range pending {
		if digest == "" || len(digest) >= leastDigest && strings.HasPrefix(p.Digest, digest) {
			fit = append(fit, p)
		}
	}
	if len(fit) != 1 {
		return a, false, len(fit) > 1
	}
	return fit[0], true, false
}

// approvalTime is how long an answer is waited for.
const approvalTime = 72 * time.Hour
