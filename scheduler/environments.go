package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// EnsureEnvironment stores the environment that a spec describes and returns
// its id. If no node has a ready snapshot of it and none is being made, a node
// is asked to prepare one at the given commit of the branch. A spec that names
// a secret which is not set is a *secrets.Problem.
func (s *Scheduler) EnsureEnvironment(ctx context.Context, tx *storage.Tx, repositoryID int64, sp spec.Spec, branch, commit string) (string, error) {
	if err := s.haveSecrets(ctx, tx.Q(), repositoryID, sp.SecretNames()); err != nil {
		return "", err
	}
	if err := tx.Q().ScheduleLook(ctx, storage.ScheduleLookParams{ID: repositoryID, At: s.clock.Now().Add(s.every(&sp))}); err != nil {
		return "", fmt.Errorf("having repository %d looked at: %w", repositoryID, err)
	}
	digest := sp.EnvironmentDigest()
	env, err := tx.Q().UpsertEnvironment(ctx, storage.UpsertEnvironmentParams{
		ID: environmentID(repositoryID, digest), RepositoryID: repositoryID, ConfigDigest: digest, Spec: encode(sp), CreatedAt: s.clock.Now(),
	})
	if err != nil {
		return "", fmt.Errorf("storing an environment: %w", err)
	}
	snaps, err := tx.Q().EnvironmentSnapshots(ctx, env.ID)
	if err != nil {
		return "", fmt.Errorf("looking for snapshots of %s: %w", env.ID, err)
	}
	if slices.ContainsFunc(snaps, usable) {
		return env.ID, nil
	}
	nodes, err := tx.Q().Nodes(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the nodes: %w", err)
	}
	// Without a node the queue asks for the snapshot as soon as there is one.
	return env.ID, s.refresh(ctx, tx.Q(), env, nodes, branch, commit)
}

// States of a snapshot's row.
const (
	snapshotBuilding = "building"
	snapshotReady    = "ready"
	snapshotRetired  = "retired"
	snapshotFailed   = "failed"
)

// usable tells whether a snapshot for all sessions is ready or being made.
func usable(sn storage.Snapshot) bool {
	return !sn.Cold && (sn.State == snapshotReady || sn.State == snapshotBuilding)
}

// environmentSpec is the spec an environment was made for.
func environmentSpec(env storage.Environment) (spec.Spec, error) {
	sp := spec.Spec{Refresh: spec.Default().Refresh} // specs stored before there was one lack it
	if err := json.Unmarshal(env.Spec, &sp); err != nil {
		return sp, fmt.Errorf("the stored configuration of %s cannot be read: %w", env.ID, err)
	}
	return sp, nil
}

func (s *Scheduler) addWork(ctx context.Context, q *storage.Queries, node, kind, key string, w wire.Work) error {
	w.Kind = kind
	err := q.InsertWork(ctx, storage.InsertWorkParams{Node: node, Kind: kind, Key: key, Data: encode(w), CreatedAt: s.clock.Now()})
	if err != nil {
		return fmt.Errorf("giving node %s its work: %w", node, err)
	}
	s.wakes.wake("node:" + node)
	return nil
}

// preferred is the node to ask: the one heard of last.
func (s *Scheduler) preferred(nodes []storage.Node) storage.Node {
	best := nodes[0]
	for _, n := range nodes[1:] {
		if n.SeenAt.Valid && (!best.SeenAt.Valid || n.SeenAt.Time.After(best.SeenAt.Time)) {
			best = n
		}
	}
	return best
}

// stateOf is what a node said last; one that said nothing yet has a zero state.
func stateOf(n storage.Node) (st wire.NodeState) {
	_ = json.Unmarshal(n.State, &st)
	return st
}

// alive tells whether a node was heard of lately.
func (s *Scheduler) alive(n storage.Node) bool {
	return n.SeenAt.Valid && s.clock.Now().Sub(n.SeenAt.Time) <= s.times.NodeSilence
}

// wireLimits are a spec's limits as nodes and runners get them.
func wireLimits(l spec.Limits) wire.Limits {
	return wire.Limits{
		CPU: l.CPU, MemoryBytes: l.MemoryBytes, Pids: l.Pids, DiskBytes: l.DiskBytes, EgressBytes: l.EgressBytes,
		Timeout: l.Timeout, OutputBytes: outputBytes,
	}
}

func wireSteps(steps []spec.Step) (out []wire.Step) {
	for _, s := range steps {
		out = append(out, wire.Step(s))
	}
	return out
}

func wireInject(list []spec.Injection) (out []wire.Injection) {
	for _, i := range list {
		out = append(out, wire.Injection(i))
	}
	return out
}

func wireServices(list []spec.Service) (out []wire.Service) {
	for _, v := range list {
		out = append(out, wire.Service(v))
	}
	return out
}

// outputBytes is what is kept of one command's output.
const outputBytes = 8 << 20

// readiness is what the queue finds for one session: a node with a snapshot
// that has the base commit at hand, or why there is none.
type readiness struct {
	node     string
	snapshot string
	wait     string  // queue reason, if there is none yet
	end      *change // if there never will be one
}

// prepare finds out what a queued session could run on, and asks nodes for
// what is missing. Its sandboxes must be at least of a tier; "" is any.
func (s *Scheduler) prepare(ctx context.Context, q *storage.Queries, sess storage.Session, all []storage.Node, least string) (readiness, error) {
	sp, err := sessionSpec(sess)
	if err != nil {
		return readiness{}, err
	}
	nodes, weak := suited(all, least, sp)
	if weak != "" {
		return readiness{wait: weak}, nil
	}
	unfit := map[string]bool{}
	for _, n := range all {
		unfit[n.Name] = !slices.ContainsFunc(nodes, func(o storage.Node) bool { return o.Name == n.Name })
	}
	byName := map[string]storage.Node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	var p *secrets.Problem
	if err := s.haveSecrets(ctx, q, sess.RepositoryID, sp.SecretNames()); errors.As(err, &p) {
		return readiness{wait: p.Error()}, nil
	} else if err != nil {
		return readiness{}, err
	}
	snaps, err := q.EnvironmentSnapshots(ctx, sess.EnvironmentID)
	if err != nil {
		return readiness{}, fmt.Errorf("looking for snapshots of %s: %w", sess.EnvironmentID, err)
	}
	var away string
	var fetching, building bool
	var failed *storage.Snapshot
	for i, sn := range snaps {
		if unfit[sn.Node] {
			continue
		}
		switch sn.State {
		case snapshotReady:
			if !sn.IsCurrent {
				continue
			}
			if n, known := byName[sn.Node]; !known || !s.alive(n) {
				away = sn.Node
				continue
			}
			have, end, err := s.fetched(ctx, q, sess, sn)
			if err != nil || end != nil {
				return readiness{end: end}, err
			}
			if have {
				return readiness{node: sn.Node, snapshot: sn.ID}, nil
			}
			fetching = true
		case snapshotBuilding:
			if n, known := byName[sn.Node]; !known || !s.alive(n) {
				away = sn.Node
				continue
			}
			building = true
		case snapshotFailed:
			if i == 0 { // the newest; an older one was tried anew since
				failed = &snaps[i]
			}
		}
	}
	switch {
	case fetching:
		return readiness{wait: "fetching the commits made since the snapshot"}, nil
	case building:
		return readiness{wait: "building the snapshot"}, nil
	case away != "":
		return readiness{wait: "waiting for node " + away + ", which has or builds the snapshot and is not connected"}, nil
	case failed != nil:
		return readiness{end: &change{
			to: Failed, reason: ReasonSnapshotRefused,
			words: "The environment could not be prepared. " + failed.Error,
		}}, nil
	}
	if len(nodes) == 0 {
		return readiness{wait: "no node is connected"}, nil
	}
	// Nobody asked for a snapshot yet: there was no node then.
	env, err := q.LockEnvironment(ctx, sess.EnvironmentID)
	if err != nil {
		return readiness{}, fmt.Errorf("reading environment %s: %w", sess.EnvironmentID, err)
	}
	if err := s.refresh(ctx, q, env, nodes, sess.BaseBranch, sess.BaseSha); err != nil {
		return readiness{}, err
	}
	return readiness{wait: "building the snapshot"}, nil
}

// Fetches are repeated this often, after growing waits, before a session ends for it.
const maxFetches = 5

// fetched tells whether the session's base commit is in the mirror of the
// snapshot's node, and asks for it if not.
func (s *Scheduler) fetched(ctx context.Context, q *storage.Queries, sess storage.Session, sn storage.Snapshot) (bool, *change, error) {
	if sn.CommitSha == sess.BaseSha {
		return true, nil, nil
	}
	key := fmt.Sprintf("fetch:%s:%d:%s", sn.Node, sess.RepositoryID, sess.BaseSha)
	w, err := q.GetWorkByKey(ctx, key)
	switch {
	case storage.IsMissing(err):
		repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
		if err != nil {
			return false, nil, fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
		}
		return false, nil, s.addWork(ctx, q, sn.Node, wire.WorkFetch, key, wire.Work{Fetch: &wire.FetchWork{
			Remote: wire.Remote{RepositoryID: repo.ID, URL: s.o.CloneURL(repo), Branch: sess.BaseBranch},
			Commit: sess.BaseSha,
		}})
	case err != nil:
		return false, nil, fmt.Errorf("looking for the base commit's fetch: %w", err)
	case w.State == workDone:
		return true, nil, nil
	case w.State == workFailed && w.DoneAt.Valid && w.DoneAt.Time.After(sess.CreatedAt):
		return false, &change{to: Infrastructure, reason: ReasonSync,
			words: "The base commit could not be fetched. " + w.Words}, nil
	case w.State == workFailed: // another session's failure, long ago
		return false, nil, q.RepeatWork(ctx, key)
	}
	return false, nil, nil
}

// States of node work.
const (
	workPending = "pending"
	workTaken   = "taken"
	workDone    = "done"
	workFailed  = "failed"
)

var errNoWork = errors.New("there is no such work")

// postponement is the wait before a failed fetch is handed out again.
func postponement(attempts int32) time.Duration { return backoff(int(attempts), time.Minute) }
