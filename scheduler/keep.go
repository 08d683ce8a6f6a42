package scheduler

import (
	"context"
	"crypto/ed25519"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

// The clone of a session that failed can be kept for people to look at. Its
// attempt counts as referenced until then, so that no node collects it.

// keepScene says how long the clones of a session's attempt are kept that
// enters a state: by keep_failed once it has failed, and as long as it takes
// where that is not known yet.
func (s *Scheduler) keepScene(ctx context.Context, q *storage.Queries, row storage.Session, to State, deadline time.Time) error {
	if row.Generation == 0 || OnMachine(to) {
		return nil
	}
	sp, err := sessionSpec(row)
	if err != nil || sp.KeepFailed == 0 {
		return err
	}
	var until sql.NullTime
	switch to {
	case Failed, TimedOut, OverBudget, Infrastructure:
		until = sql.NullTime{Time: s.clock.Now().Add(sp.KeepFailed), Valid: true}
	case Publishing, NeedsApproval:
		until = sql.NullTime{Time: deadline.Add(s.times.Check), Valid: true}
	}
	if err := q.SetAttemptKeep(ctx, storage.SetAttemptKeepParams{SessionID: row.ID, Generation: row.Generation, KeepUntil: until}); err != nil {
		return fmt.Errorf("keeping the clones of session %s: %w", row.ID, err)
	}
	return nil
}

// ReleaseScene lets the clones of a session that has ended go before their
// time, and says whether there were any. It needs no running scheduler.
func ReleaseScene(ctx context.Context, q *storage.Queries, session string) (bool, error) {
	n, err := q.ReleaseScene(ctx, session)
	if err != nil {
		return false, fmt.Errorf("letting the clones of session %s go: %w", session, err)
	}
	return n > 0, nil
}

// SceneGrant lets peer, an account of the node's machine, start a sandbox over
// the clone that is kept of an attempt. It reaches nothing: no way leads out.
func SceneGrant(key ed25519.PrivateKey, sess storage.Session, a storage.Attempt, peer int) (string, error) {
	sp, err := sessionSpec(sess)
	if err != nil {
		return "", err
	}
	var fork *wire.Fork // what the clone was made of
	if a.Fork.Valid {
		if err := json.Unmarshal(a.Fork.RawMessage, &fork); err != nil {
			return "", fmt.Errorf("reading what the clone of session %s was made of: %w", sess.ID, err)
		}
	}
	return wire.SignGrant(key, wire.Grant{
		Fork: fork, Verbs: []string{wire.VerbSandbox}, Node: a.Node, Session: sess.ID, Generation: int(a.Generation), Purpose: wire.PurposeWork,
		Environment: sess.EnvironmentID, Snapshot: a.SnapshotID, RepositoryID: sess.RepositoryID, Image: sp.Image,
		Limits: wireLimits(sp.Limits), PeerUID: peer, Expires: a.KeepUntil.Time,
	})
}
