package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"inspect/envs/wire"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// Who gets the value of a secret. It is asked for when it is about to be used;
// it is in no spec, event, job or row but its own.

// maxSecretNames bounds one request.
const maxSecretNames = 200

var errNoSecrets = &secrets.Problem{Words: "the environment names secrets, and none are kept here"}

// Secrets gives a runner values of secrets that its session's environment
// names for services, verification or the proxy, while the session is at work.
func (s *Scheduler) Secrets(ctx context.Context, r Runner, names []string) (wire.SecretsReply, error) {
	var reply wire.SecretsReply
	err := s.current(ctx, r, func(tx *storage.Tx, sess storage.Session, a storage.Attempt) error {
		if !OnMachine(sess.State) || a.Outcome.Valid {
			return errStale
		}
		named, err := sessionSecrets(sess)
		if err != nil {
			return err
		}
		got, err := s.give(ctx, tx.Q(), sess.RepositoryID, names, named)
		if err != nil {
			return err
		}
		reply.Values = got.Text
		return s.recordGiven(ctx, tx.Q(), &sess, a, got.Version)
	})
	if err != nil {
		return wire.SecretsReply{}, err
	}
	s.log.Info("a session was given secrets", "session", r.Session, "generation", r.Generation, "names", names)
	return reply, nil
}

// recordGiven records which versions of secrets an attempt is given. What it
// was given before is not recorded again: it may ask as often as it likes.
func (s *Scheduler) recordGiven(ctx context.Context, q *storage.Queries, sess *storage.Session, a storage.Attempt, versions map[string]int64) error {
	before, err := q.SecretsGiven(ctx, storage.SecretsGivenParams{SessionID: sess.ID, Generation: a.Generation})
	if err != nil {
		return fmt.Errorf("reading which secrets were given out: %w", err)
	}
	fresh := maps.Clone(versions)
	for _, raw := range before {
		var had struct{ Versions map[string]int64 }
		if err := json.Unmarshal(raw, &had); err != nil {
			return fmt.Errorf("reading which secrets were given out: %w", err)
		}
		maps.DeleteFunc(fresh, func(name string, version int64) bool { return had.Versions[name] == version })
	}
	if len(fresh) == 0 {
		return nil
	}
	e, err := ownEvent(a.Generation, EventSecrets, s.clock.Now(), map[string]any{"to": "runner", "node": a.Node, "versions": fresh})
	if err != nil {
		return err
	}
	return appendEvents(ctx, q, sess, e)
}

// sessionSecrets are the names of the secrets a session may have at work. A
// session on the head of a fork will have none.
func sessionSecrets(sess storage.Session) ([]string, error) {
	sp, err := sessionSpec(sess)
	return sp.WorkSecretNames(), err
}

// NodeSecrets gives a node values of secrets that the environment names whose
// snapshot it prepares, while the work is leased to it. The snapshot records
// which versions they were.
func (s *Scheduler) NodeSecrets(ctx context.Context, node string, id int64, names []string) (wire.SecretsReply, error) {
	var reply wire.SecretsReply
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		if err := q.ShareSecrets(ctx); err != nil {
			return err
		}
		w, err := q.LockWork(ctx, id)
		if err != nil {
			return missingAs(err, refuse(codeNotFound, "there is no work %d", id))
		}
		if w.Node != node || w.State != workTaken || !w.LeaseUntil.Valid || w.LeaseUntil.Time.Before(s.clock.Now()) {
			return refuse(codeNotFound, "work %d is not in this node's hands", id)
		}
		var work wire.Work
		if err := json.Unmarshal(w.Data, &work); err != nil || work.Refresh == nil {
			return refuse(codeBadRequest, "work %d prepares no snapshot", id)
		}
		sn, err := q.LockSnapshot(ctx, work.Refresh.Snapshot)
		if err != nil {
			return err
		}
		if sn.State != snapshotBuilding {
			return refuse(codeNotFound, "snapshot %s is not wanted any more", sn.ID)
		}
		got, err := s.give(ctx, q, work.Refresh.Remote.RepositoryID, names, refreshSecrets(work.Refresh))
		if err != nil {
			return err
		}
		reply.Values = got.Text
		return q.AddSnapshotSecrets(ctx, storage.AddSnapshotSecretsParams{ID: sn.ID, Versions: got.Versions()})
	})
	if err != nil {
		return wire.SecretsReply{}, s.unavailable(ctx, err)
	}
	s.log.Info("a node was given secrets", "node", node, "work", id, "names", names)
	return reply, nil
}

// refreshSecrets are the names that a snapshot's preparation needs. Those that
// only the proxy adds are recorded as the others are: a registry may say back
// what it was sent, and what it lets setup fetch changes with them.
func refreshSecrets(r *wire.RefreshWork) (names []string) {
	for _, steps := range [][]wire.Step{r.Setup, r.Load} {
		for _, step := range steps {
			names = append(names, step.Secrets...)
		}
	}
	for _, v := range r.Services {
		names = append(names, v.Secrets...)
	}
	for _, i := range r.Inject {
		names = append(names, i.Secret)
	}
	return names
}

// give returns the values of names, all of which must be among those named and
// within what the operator allows now.
func (s *Scheduler) give(ctx context.Context, q *storage.Queries, repository int64, names, named []string) (secrets.Values, error) {
	if len(names) > maxSecretNames {
		return secrets.Values{}, refuse(codeBadRequest, "at most %d names in one request", maxSecretNames)
	}
	for _, name := range names {
		if !slices.Contains(named, name) {
			return secrets.Values{}, refuse(codeForbidden, "the environment does not name the secret %.80q here", name)
		}
	}
	repo, err := q.GetRepositoryRow(ctx, repository)
	if err != nil {
		return secrets.Values{}, fmt.Errorf("reading repository %d: %w", repository, err)
	}
	if s.o.SecretsAllowed != nil {
		if err := s.o.SecretsAllowed(repo, names); err != nil {
			return secrets.Values{}, refuse(codeForbidden, "%v", err)
		}
	}
	got, err := s.values(ctx, q, repo, names)
	var p *secrets.Problem
	if errors.As(err, &p) {
		return got, refuse(codeNotFound, "%v", p)
	}
	return got, err
}

// values are those a repository has now.
func (s *Scheduler) values(ctx context.Context, q *storage.Queries, repo storage.Repository, names []string) (secrets.Values, error) {
	if s.o.Secrets == nil && len(names) > 0 {
		return secrets.Values{}, errNoSecrets
	}
	return s.o.Secrets.Values(ctx, q, repo, names)
}

// haveSecrets returns a *secrets.Problem if a repository's environment could
// not have what it names.
func (s *Scheduler) haveSecrets(ctx context.Context, q *storage.Queries, repository int64, names []string) error {
	if len(names) == 0 {
		return nil
	}
	repo, err := q.GetRepositoryRow(ctx, repository)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", repository, err)
	}
	_, err = s.values(ctx, q, repo, names)
	return err
}

// retireStale retires the snapshots that may hold a secret which is not the
// repository's any more, for example since it has another owner.
func (s *Scheduler) retireStale(ctx context.Context, q *storage.Queries) error {
	if err := q.ShareSecrets(ctx); err != nil {
		return err
	}
	ids, err := q.RetireStaleSnapshots(ctx)
	if len(ids) > 0 {
		s.log.Info("snapshots were retired, since secrets they were prepared with are not their repository's any more", "snapshots", ids)
	}
	return err
}

// sweepRenewals asks for new snapshots in place of those that were retired for
// a changed secret.
func (s *Scheduler) sweepRenewals(ctx context.Context) error {
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		due, err := q.TakeRenewals(ctx)
		if err != nil || len(due) == 0 {
			return err
		}
		nodes, err := q.Nodes(ctx)
		if err != nil {
			return err
		}
		for _, d := range due {
			if err := s.renew(ctx, q, d, nodes); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("renewing snapshots: %w", err)
	}
	return nil
}

func (s *Scheduler) renew(ctx context.Context, q *storage.Queries, d storage.TakeRenewalsRow, nodes []storage.Node) error {
	env, err := q.LockEnvironment(ctx, d.EnvironmentID)
	if err != nil {
		return fmt.Errorf("reading environment %s: %w", d.EnvironmentID, err)
	}
	snaps, err := q.EnvironmentSnapshots(ctx, env.ID)
	if err != nil {
		return fmt.Errorf("looking for snapshots of %s: %w", env.ID, err)
	}
	if slices.ContainsFunc(snaps, usable) {
		return nil
	}
	sp, err := environmentSpec(env)
	if err != nil {
		return err
	}
	var p *secrets.Problem
	if err := s.haveSecrets(ctx, q, env.RepositoryID, sp.SecretNames()); errors.As(err, &p) {
		return nil // the next session is told
	} else if err != nil {
		return err
	}
	return s.refresh(ctx, q, env, nodes, d.DefaultBranch, d.CommitSha)
}

// learn makes the redactor know every secret before something is kept or told.
func (s *Scheduler) learn(ctx context.Context) error {
	if s.o.Secrets == nil {
		return nil
	}
	return s.o.Secrets.Learn(ctx)
}
