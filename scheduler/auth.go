package scheduler

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

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

// tokenSlack is how long a token outlives its attempt's deadline.
const tokenSlack = 5 * time.Minute

var errStale = &wire.Error{Code: codeStale, Message: "this attempt has been given up; nothing it says counts"}

// Exchange trades an attempt's one-time secret for a bearer token. Until the
// token is used for the first time the exchange may be repeated, because its
// answer can get lost.
func (s *Scheduler) Exchange(ctx context.Context, r wire.TokenRequest) (wire.TokenReply, error) {
	var reply wire.TokenReply
	if r.Secret == "" || len(r.Secret) > 256 || !validID(r.Session) || !validGeneration(r.Generation) {
		return reply, refuse(codeUnauthorized, "the secret is not this attempt's")
	}
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		sess, err := tx.Q().LockSession(ctx, r.Session)
		if err != nil {
			return missingAs(err, refuse(codeUnauthorized, "the secret is not this attempt's"))
		}
		a, err := tx.Q().LockAttempt(ctx, storage.LockAttemptParams{SessionID: r.Session, Generation: int32(r.Generation)})
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
		reply, err = s.issue(ctx, tx.Q(), a, nil)
		return err
	})
	return reply, s.unavailable(ctx, err)
}

// issue gives an attempt a new token. prev, if given, stays good beside it.
func (s *Scheduler) issue(ctx context.Context, q *storage.Queries, a storage.Attempt, prev []byte) (wire.TokenReply, error) {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	token := fmt.Sprintf("%s.%d.%s", a.SessionID, a.Generation, base64.RawURLEncoding.EncodeToString(raw[:]))
	expires := a.Deadline.Add(tokenSlack)
	err := q.SetAttemptToken(ctx, storage.SetAttemptTokenParams{
		SessionID: a.SessionID, Generation: a.Generation, TokenHash: hashOf(token), TokenExpires: expires, Now: s.clock.Now(),
		PrevTokenHash: prev, PrevTokenExpires: sql.NullTime{Time: expires, Valid: prev != nil},
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
	current := subtle.ConstantTimeCompare(hash, a.TokenHash) == 1 && now.Before(a.TokenExpires.Time)
	previous := subtle.ConstantTimeCompare(hash, a.PrevTokenHash) == 1 && now.Before(a.PrevTokenExpires.Time)
	if !current && !previous {
		return Runner{}, bad
	}
	sess, err := s.db.Q().GetSession(ctx, a.SessionID)
	if err != nil {
		return Runner{}, s.unavailable(ctx, err)
	}
	if gone(sess, a) {
		return Runner{}, errStale
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
