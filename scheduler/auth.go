package scheduler

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/storage"
)

// runnerSecret is the one-time secret of an attempt.
func (s *Scheduler) runnerSecret(session string, generation int32) string {
	mac := hmac.New(sha256.New, s.secret)
	fmt.Fprintf(mac, "secret\n%s\n%d", session, generation)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// oneTimeSecret is the secret that opens an attempt; empty where runners prove
// themselves by the identity that their engine vouches for.
func (s *Scheduler) oneTimeSecret(session string, generation int32) string {
	if s.identifier() != nil {
		return ""
	}
	return s.runnerSecret(session, generation)
}

func (s *Scheduler) secretHash(session string, generation int32) []byte {
	if secret := s.oneTimeSecret(session, generation); secret != "" {
		return hashOf(secret)
	}
	return nil
}

// identifier is the engine as one that vouches for its runners, or nil.
func (s *Scheduler) identifier() Identifier {
	id, _ := s.o.Engine.(Identifier)
	return id
}

const (
	// tokenSlack is how long tokens and grants may outlive their attempt's deadline.
	tokenSlack = 5 * time.Minute
	// tokenLife is how long a token is good for; heartbeats renew it.
	tokenLife = 15 * time.Minute
	// maxJWT bounds a token of an identity, in bytes. One of Nomad's has about 1000.
	maxJWT = 8 << 10
)

var errStale = &wire.Error{Code: codeStale, Message: "this attempt has been given up; nothing it says counts"}

// Exchange trades a proof of identity for a bearer token: the attempt's one-time
// secret, or what its engine vouches for. Until its token is used for the first
// time the secret may be exchanged again, because the answer can get lost; an
// identity may at any time, by the same allocation.
func (s *Scheduler) Exchange(ctx context.Context, r wire.TokenRequest) (wire.TokenReply, error) {
	if !validID(r.Session) || !validGeneration(r.Generation) || (r.Secret == "") == (r.JWT == "") {
		return wire.TokenReply{}, refuse(codeUnauthorized, "this is not the proof of an attempt")
	}
	if r.JWT != "" {
		return s.exchangeIdentity(ctx, r)
	}
	return s.exchangeSecret(ctx, r)
}

func (s *Scheduler) exchangeSecret(ctx context.Context, r wire.TokenRequest) (reply wire.TokenReply, err error) {
	if len(r.Secret) > 256 {
		return reply, refuse(codeUnauthorized, "the secret is not this attempt's")
	}
	err = s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		sess, a, err := lockBoth(ctx, tx.Q(), r)
		if err != nil {
			return missingAs(err, refuse(codeUnauthorized, "the secret is not this attempt's"))
		}
		if len(a.SecretHash) == 0 && subtle.ConstantTimeCompare(hashOf(s.runnerSecret(r.Session, a.Generation)), hashOf(r.Secret)) == 1 && gone(sess, a) {
			return errStale
		}
		if len(a.SecretHash) == 0 || subtle.ConstantTimeCompare(a.SecretHash, hashOf(r.Secret)) != 1 {
			return refuse(codeUnauthorized, "the secret is not this attempt's, or was used before")
		}
		if gone(sess, a) {
			return errStale
		}
		reply, err = s.issue(ctx, tx.Q(), a, nil, sql.NullTime{})
		return err
	})
	return reply, s.unavailable(ctx, err)
}

// exchangeIdentity gives a token to a runner that its engine vouches for. The
// first allocation that proves itself is the attempt's, no other counts.
func (s *Scheduler) exchangeIdentity(ctx context.Context, r wire.TokenRequest) (reply wire.TokenReply, err error) {
	no := refuse(codeUnauthorized, "the identity is not this attempt's")
	engine := s.identifier()
	if engine == nil || len(r.JWT) > maxJWT {
		return reply, no
	}
	log := s.log.With("session", r.Session, "generation", r.Generation)
	id, err := engine.Identify(ctx, r.JWT)
	switch {
	case errors.Is(err, ErrIdentityUnknown):
		log.Warn("a runner's identity cannot be checked now", "error", err)
		return reply, refuse(codeUnavailable, "the identity cannot be checked now; try again")
	case ctx.Err() != nil:
		return reply, s.unavailable(ctx, err)
	case err != nil:
		log.Warn("refused the identity of a runner", "error", err)
		return reply, no
	case id.Session != r.Session || id.Generation != r.Generation || id.Allocation == "":
		log.Warn("refused the identity of a runner: it is another attempt's", "of", id.Session, "of_generation", id.Generation, "allocation", id.Allocation)
		return reply, no
	}
	err = s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		sess, a, err := lockBoth(ctx, tx.Q(), r)
		switch {
		case err != nil:
			return missingAs(err, no)
		case gone(sess, a):
			return errStale
		case a.Engine != s.o.Engine.Name():
			log.Warn("refused the identity of a runner: its attempt is another engine's", "engine", a.Engine)
			return no
		case !a.EngineRef.Valid: // its start is just being written down
			return refuse(codeUnavailable, "this attempt is just being started; try again")
		case a.Allocation != "" && a.Allocation != id.Allocation:
			log.Warn("refused the identity of a runner: its attempt is another allocation's", "allocation", id.Allocation, "first", a.Allocation)
			return no
		}
		if a.Allocation == "" {
			if err := tx.Q().SetAttemptAllocation(ctx, storage.SetAttemptAllocationParams{
				SessionID: a.SessionID, Generation: a.Generation, Allocation: id.Allocation,
			}); err != nil {
				return err
			}
		}
		if id.Node != "" && id.Node != a.Node {
			if a, err = s.bindNode(ctx, tx, sess, a, id.Node); err != nil {
				return err
			}
		}
		reply, err = s.issue(ctx, tx.Q(), a, a.TokenHash, a.TokenExpires)
		return err
	})
	return reply, s.unavailable(ctx, err)
}

// bindNode makes the node that an engine chose for an attempt the attempt's,
// with the best snapshot there. If there is none the attempt keeps the one it
// was placed for: the node will say that it is missing.
func (s *Scheduler) bindNode(ctx context.Context, tx *storage.Tx, sess storage.Session, a storage.Attempt, node string) (storage.Attempt, error) {
	q := tx.Q()
	n, err := q.GetNode(ctx, node)
	if storage.IsMissing(err) {
		s.log.Warn("refused a runner: its machine is no node of ours", "session", sess.ID, "generation", a.Generation, "node", node)
		return a, refuse(codeUnauthorized, "this runner is on %q, which is not registered as a node here: register it, or take its name from what it advertises", clip(node, 100))
	}
	if err != nil {
		return a, err
	}
	words := "The attempt runs on node " + node + ", which the engine chose."
	a.Node, a.Fork = node, pqtype.NullRawMessage{} // what it was to be forked from is elsewhere
	c, err := s.bestOn(ctx, q, sess, n)
	if err != nil {
		return a, err
	}
	if c.kind == chooseUse {
		sp, err := sessionSpec(sess)
		if err != nil {
			return a, err
		}
		r, err := s.taken(ctx, q, sess, sp, c)
		if err != nil {
			return a, err
		}
		a.SnapshotID, a.Taken = r.snapshot, pqtype.NullRawMessage{RawMessage: encode(r.taken), Valid: true}
		words += " Its snapshot there was taken because " + c.why + "."
	}
	if err := q.SetAttemptNode(ctx, storage.SetAttemptNodeParams{
		SessionID: a.SessionID, Generation: a.Generation, Node: a.Node, SnapshotID: a.SnapshotID, Taken: a.Taken,
	}); err != nil {
		return a, err
	}
	if err := q.SetSessionPlacement(ctx, storage.SetSessionPlacementParams{
		ID: sess.ID, Generation: sess.Generation, SnapshotID: a.SnapshotID, Node: a.Node,
	}); err != nil {
		return a, err
	}
	return a, s.note(ctx, q, sess.ID, words)
}

// bestOn is the best snapshot for a session on one node, if its kind is
// chooseUse. The session's commit is asked for there if it is not at hand.
func (s *Scheduler) bestOn(ctx context.Context, q *storage.Queries, sess storage.Session, n storage.Node) (choice, error) {
	sp, err := sessionSpec(sess)
	if err != nil {
		return choice{}, err
	}
	snaps, err := q.EnvironmentSnapshots(ctx, sess.EnvironmentID)
	if err != nil {
		return choice{}, fmt.Errorf("looking for snapshots of %s: %w", sess.EnvironmentID, err)
	}
	snaps = slices.DeleteFunc(snaps, func(sn storage.Snapshot) bool { return sn.Node != n.Name })
	f, _, err := s.survey(ctx, q, sess, snaps, map[string]storage.Node{n.Name: n}, nil)
	if err != nil {
		return choice{}, err
	}
	ready := append(f.ready, f.nearly...)
	if len(ready) == 0 {
		return choice{kind: chooseWait}, nil
	}
	return choose(ready, sp.Refresh, f.coming), nil
}

func lockBoth(ctx context.Context, q *storage.Queries, r wire.TokenRequest) (sess storage.Session, a storage.Attempt, err error) {
	if sess, err = q.LockSession(ctx, r.Session); err != nil {
		return sess, a, err
	}
	a, err = q.LockAttempt(ctx, storage.LockAttemptParams{SessionID: r.Session, Generation: int32(r.Generation)})
	return sess, a, err
}

// issue gives an attempt a new token. The one of the hash keep, if given, stays
// good beside it until its own expiry.
func (s *Scheduler) issue(ctx context.Context, q *storage.Queries, a storage.Attempt, keep []byte, keepUntil sql.NullTime) (wire.TokenReply, error) {
	now := s.clock.Now()
	expires := earlier(now.Add(tokenLife), a.Deadline.Add(tokenSlack))
	if !now.Before(expires) {
		return wire.TokenReply{}, errStale // its time is over; it is ended any moment
	}
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	token := fmt.Sprintf("%s.%d.%s", a.SessionID, a.Generation, base64.RawURLEncoding.EncodeToString(raw[:]))
	err := q.SetAttemptToken(ctx, storage.SetAttemptTokenParams{
		SessionID: a.SessionID, Generation: a.Generation, TokenHash: hashOf(token), TokenExpires: expires, Now: now,
		PrevTokenHash: keep, PrevTokenExpires: keepUntil,
	})
	return wire.TokenReply{Token: token, Expires: expires}, err
}

// gone tells whether nothing an attempt says counts any more. After its
// outcome was taken it may still send the rest of its events.
func gone(sess storage.Session, a storage.Attempt) bool {
	return a.Generation != sess.Generation || a.EndedAt.Valid && !a.Outcome.Valid
}

// Authenticate says which attempt a bearer token belongs to.
func (s *Scheduler) Authenticate(ctx context.Context, bearer string) (Runner, error) {
	return s.authenticate(ctx, bearer, false)
}

// AuthenticateBeat is Authenticate for heartbeats alone. A control plane that
// was away for longer than a token lives finds runners whose tokens nobody could
// renew. One that has an identity shows that again; a one-time secret is used
// up, so of its attempt the last token that was given out, or the one before if
// the last never arrived, may still be renewed, and nothing else, while the
// attempt is the current one and in its time. A token that was replaced earlier
// is good for nothing, however it was come by.
func (s *Scheduler) AuthenticateBeat(ctx context.Context, bearer string) (Runner, error) {
	return s.authenticate(ctx, bearer, true)
}

func (s *Scheduler) authenticate(ctx context.Context, bearer string, beat bool) (Runner, error) {
	bad := refuse(codeUnauthorized, "the token is not a runner's, or has expired")
	parts := strings.Split(bearer, ".")
	if len(bearer) > 256 || len(parts) != 3 || !validID(parts[0]) {
		return Runner{}, bad
	}
	generation, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil || !validGeneration(int(generation)) {
		return Runner{}, bad
	}
	a, err := s.db.Q().GetAttempt(ctx, storage.GetAttemptParams{SessionID: parts[0], Generation: int32(generation)})
	if err != nil {
		return Runner{}, s.unavailable(ctx, missingAs(err, bad))
	}
	hash, now := hashOf(bearer), s.clock.Now()
	var expires time.Time
	switch {
	case subtle.ConstantTimeCompare(hash, a.TokenHash) == 1:
		expires = a.TokenExpires.Time
	case subtle.ConstantTimeCompare(hash, a.PrevTokenHash) == 1:
		expires = a.PrevTokenExpires.Time
	default:
		return Runner{}, bad
	}
	if beat && s.identifier() == nil {
		expires = a.Deadline.Add(tokenSlack)
	}
	sess, err := s.db.Q().GetSession(ctx, a.SessionID)
	if err != nil {
		return Runner{}, s.unavailable(ctx, err)
	}
	if gone(sess, a) { // said also with an expired token, so that its runner ends
		return Runner{}, errStale
	}
	if !now.Before(expires) {
		return Runner{}, bad
	}
	if len(a.SecretHash) > 0 { // the token has arrived, so the secret is used up
		if err := s.db.Q().ClearAttemptSecret(ctx, storage.ClearAttemptSecretParams{SessionID: a.SessionID, Generation: a.Generation}); err != nil {
			return Runner{}, s.unavailable(ctx, err)
		}
	}
	return Runner{Session: a.SessionID, Generation: int(generation), bearer: bearer}, nil
}

// current runs fn with the locked rows of a runner's attempt, or refuses if the
// attempt is not the session's current one any more.
func (s *Scheduler) current(ctx context.Context, r Runner, fn func(tx *storage.Tx, sess storage.Session, a storage.Attempt) error) error {
	return s.unavailable(ctx, s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		sess, err := tx.Q().LockSession(ctx, r.Session)
		if err != nil {
			return missingAs(err, errStale)
		}
		a, err := tx.Q().LockAttempt(ctx, storage.LockAttemptParams{SessionID: r.Session, Generation: int32(r.Generation)})
		if err != nil {
			return missingAs(err, errStale)
		}
		if gone(sess, a) {
			return errStale
		}
		return fn(tx, sess, a)
	}))
}

// peek is current without locks, for calls that only read.
func (s *Scheduler) peek(ctx context.Context, r Runner) (storage.Session, storage.Attempt, error) {
	sess, err := s.db.Q().GetSession(ctx, r.Session)
	if err != nil {
		return sess, storage.Attempt{}, s.unavailable(ctx, missingAs(err, errStale))
	}
	a, err := s.db.Q().GetAttempt(ctx, storage.GetAttemptParams{SessionID: r.Session, Generation: int32(r.Generation)})
	if err != nil {
		return sess, a, s.unavailable(ctx, missingAs(err, errStale))
	}
	if gone(sess, a) {
		return sess, a, errStale
	}
	return sess, a, nil
}
