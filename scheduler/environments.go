package scheduler

import (
	"context"
	"database/sql"
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
	return s.addWorkAfter(ctx, q, node, kind, key, w, 0)
}

// addWorkAfter is addWork for what is not to be begun yet.
func (s *Scheduler) addWorkAfter(ctx context.Context, q *storage.Queries, node, kind, key string, w wire.Work, after time.Duration) error {
	w.Kind = kind
	now := s.clock.Now()
	err := q.InsertWork(ctx, storage.InsertWorkParams{
		Node: node, Kind: kind, Key: key, Data: encode(w), CreatedAt: now, NotBefore: sql.NullTime{Time: now.Add(after), Valid: after > 0},
	})
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

// wireVerify is a verify command as the runner is told it.
func wireVerify(v spec.Verify) wire.Verify {
	out := wire.Verify{Name: v.Name, Run: v.Run, Report: v.Report, Coverage: v.Coverage, Secrets: v.Secrets}
	if s := v.Screenshot; s != nil {
		out.Screenshot = &wire.Screenshot{URL: s.URL, Width: s.Width, Height: s.Height, WaitFor: s.WaitFor, FullPage: s.FullPage}
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
	taken    Taken      // that snapshot
	fork     *wire.Fork // what the clone for work is made of in its place
	wait     string     // queue reason, if there is none yet
	roomOn   string     // the node whose room it waits for, if it lacks nothing else
	note     string     // for the session's record, with wait
	end      *change    // if there never will be one
}

// prepare finds out what a queued session could run on, and asks nodes for
// what is missing. It runs as it is bound now, where there is room.
func (s *Scheduler) prepare(ctx context.Context, q *storage.Queries, sess storage.Session, all []storage.Node, b Bound, left rooms) (readiness, error) {
	sp, err := sessionSpec(sess)
	if err != nil {
		return readiness{}, err
	}
	need := needOf(b.Spec.Limits)
	nodes, wait := suited(all, b.Tier)
	if wait == "" {
		nodes, wait = left.open(nodes)
	}
	if wait == "" {
		nodes, wait = left.fit(nodes, need)
	}
	if wait != "" {
		return readiness{wait: wait}, nil
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
	gone, err := missed(ctx, q, sess)
	if err != nil {
		return readiness{}, err
	}
	snaps = slices.DeleteFunc(snaps, func(sn storage.Snapshot) bool { return sn.State == snapshotReady && gone[sn.ID] })
	found, end, err := s.survey(ctx, q, sess, snaps, byName, unfit)
	if err != nil || end != nil {
		return readiness{end: end}, err
	}
	if len(found.ready) > 0 {
		for i := range found.ready {
			found.ready[i].room = left.memoryLeft(found.ready[i].node)
		}
		c := choose(found.ready, sp.Refresh, found.coming)
		if c.kind == chooseUse {
			roomy := slices.DeleteFunc(slices.Clone(found.ready), func(c candidate) bool { return !left.has(c.node, need) })
			if len(roomy) == 0 {
				return s.roomless(ctx, q, sess, nodes, found, c, left, need)
			}
			if d := choose(roomy, sp.Refresh, found.coming); d.kind == chooseUse {
				found.ready, c = roomy, d
			} else {
				return s.roomless(ctx, q, sess, nodes, found, c, left, need)
			}
		}
		// The other clone, for verification, is to be where the work's is.
		there, from, err := s.forkable(ctx, q, sess, byName)
		if err != nil {
			return readiness{}, err
		}
		near := slices.DeleteFunc(slices.Clone(found.ready), func(c candidate) bool { return c.node != there })
		if len(near) > 0 {
			if c := choose(near, sp.Refresh, found.coming); c.kind == chooseUse {
				r, err := s.taken(ctx, q, sess, sp, c)
				r.fork = &from
				return r, err
			}
		}
		switch {
		case c.kind == chooseUse:
			return s.taken(ctx, q, sess, sp, c)
		case found.fetching: // another node may have a better one
		case c.kind == chooseWait:
			return readiness{wait: "building the snapshot: the one there " + c.why}, nil
		case c.kind == chooseRefuse:
			return readiness{end: &change{
				to: Infrastructure, reason: ReasonSnapshotRefused,
				words: "The snapshot of the environment " + c.why + ", and refresh.when_stale is refuse. Have it prepared anew (`inspect env build`), or ask for less under refresh in " + spec.FileName + ".",
			}}, nil
		case found.ownFailed != nil:
			return readiness{end: unprepared(*found.ownFailed)}, nil
		default:
			return s.cold(ctx, q, sess, nodes, found.ready, c.why)
		}
	}
	switch {
	case found.fetching:
		return readiness{wait: "fetching the commits made since the snapshot"}, nil
	case found.coming.own || found.coming.next:
		return readiness{wait: "building the snapshot"}, nil
	case found.away != "":
		return readiness{wait: "waiting for node " + found.away + ", which has or builds the snapshot and is not connected"}, nil
	case found.failed != nil && !found.full:
		return readiness{end: unprepared(*found.failed)}, nil
	case len(nodes) == 0:
		return readiness{wait: "no node is connected"}, nil
	}
	if refuses := s.allRefuse(nodes); refuses != "" {
		return readiness{wait: refuses}, nil
	}
	// Nobody asked for a snapshot yet: there was no node then.
	env, err := q.LockEnvironment(ctx, sess.EnvironmentID)
	if err != nil {
		return readiness{}, fmt.Errorf("reading environment %s: %w", sess.EnvironmentID, err)
	}
	branch, commit := sess.BaseBranch, sess.BaseSha
	if sess.PullNumber > 0 { // what others get is never made of somebody's proposal
		if branch, err = defaultBranch(ctx, q, sess.RepositoryID); err != nil {
			return readiness{}, err
		}
		commit = sess.InstructionsSha
	}
	if err := s.refresh(ctx, q, env, nodes, branch, commit); err != nil {
		return readiness{}, err
	}
	return readiness{wait: "building the snapshot"}, nil
}

// roomless has a session wait for room on the node of a choice. Another node
// that has room is asked to prepare what is missing there.
func (s *Scheduler) roomless(ctx context.Context, q *storage.Queries, sess storage.Session, nodes []storage.Node, f found, c choice, left rooms, need share) (readiness, error) {
	r := readiness{wait: "no node has " + need.words() + " free now", roomOn: c.of.node}
	other := slices.DeleteFunc(slices.Clone(nodes), func(n storage.Node) bool {
		return !s.alive(n) || !left.has(n.Name, need) || slices.ContainsFunc(f.ready, func(c candidate) bool { return c.node == n.Name })
	})
	if len(other) == 0 || f.coming.next || f.coming.own {
		return r, nil
	}
	env, err := q.LockEnvironment(ctx, sess.EnvironmentID)
	if err != nil {
		return r, fmt.Errorf("reading environment %s: %w", sess.EnvironmentID, err)
	}
	repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
	if err != nil {
		return r, fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
	}
	return r, s.refresh(ctx, q, env, other, repo.DefaultBranch, c.of.commit)
}

// found is what there is of an environment for a session.
type found struct {
	ready     []candidate
	coming    coming
	fetching  bool              // some would be ready once the session's commit is at hand there
	nearly    []candidate       // those
	full      bool              // a node that has one takes nothing now
	away      string            // node that has or builds one and was not heard of lately
	failed    *storage.Snapshot // the newest, if it could not be prepared
	ownFailed *storage.Snapshot // one of the session's commit, tried since it was created
}

// survey looks at the snapshots of a session's environment, newest first, and
// asks for the session's commit where they are.
func (s *Scheduler) survey(ctx context.Context, q *storage.Queries, sess storage.Session, snaps []storage.Snapshot, nodes map[string]storage.Node, unfit map[string]bool) (found, *change, error) {
	var f found
	for i, sn := range snaps {
		own := sn.CommitSha == sess.BaseSha
		if unfit[sn.Node] || sn.Cold && !own {
			continue
		}
		n, known := nodes[sn.Node]
		away := !known || !s.alive(n)
		switch sn.State {
		case snapshotReady:
			if !sn.IsCurrent && !sn.Cold {
				continue
			}
			if away {
				f.away = sn.Node
				continue
			}
			if stateOf(n).Refuses != "" {
				f.full = true
				continue
			}
			have, drift, end, err := s.fetched(ctx, q, sess, sn)
			if err != nil || end != nil {
				return f, end, err
			}
			c := candidate{
				snapshot: sn.ID, node: sn.Node, commit: sn.CommitSha, exact: own, cold: sn.Cold, drift: drift,
				newest: max(0, s.clock.Now().Sub(sn.NewestAt.Time)),
			}
			if !have {
				f.fetching, f.nearly = true, append(f.nearly, c)
				continue
			}
			f.ready = append(f.ready, c)
		case snapshotBuilding:
			if away {
				f.away = sn.Node
				continue
			}
			f.coming.own = f.coming.own || own
			f.coming.next = f.coming.next || !sn.Cold
		case snapshotFailed:
			if i == 0 { // the newest; an older one was tried anew since
				f.failed = &snaps[i]
			}
			if own && f.ownFailed == nil && !sn.CreatedAt.Before(sess.CreatedAt) {
				f.ownFailed = &snaps[i]
			}
		}
	}
	return f, nil, nil
}

func unprepared(sn storage.Snapshot) *change {
	return &change{to: Failed, reason: ReasonSnapshotRefused, words: "The environment could not be prepared. " + sn.Error}
}

// allRefuse says why none of the connected nodes takes anything now; empty: some do.
func (s *Scheduler) allRefuse(nodes []storage.Node) string {
	words := ""
	for _, n := range nodes {
		if !s.alive(n) {
			continue
		}
		refuses := stateOf(n).Refuses
		if refuses == "" {
			return ""
		}
		words = fmt.Sprintf("waiting for node %s, which takes nothing now: %s", n.Name, clip(refuses, 300))
	}
	return words
}

// taken is a session that can be placed, and what is recorded of it.
func (s *Scheduler) taken(ctx context.Context, q *storage.Queries, sess storage.Session, sp spec.Spec, c choice) (readiness, error) {
	sn, err := q.GetSnapshot(ctx, c.of.snapshot)
	if err != nil {
		return readiness{}, fmt.Errorf("reading snapshot %s: %w", c.of.snapshot, err)
	}
	return readiness{node: sn.Node, snapshot: sn.ID, taken: Taken{
		Snapshot: sn.ID, Node: sn.Node, Commit: sn.CommitSha, Base: sess.BaseSha, Age: max(0, s.clock.Now().Sub(sn.PublishedAt.Time)),
		Newest: c.of.newest, Drift: c.of.drift, Stale: c.stale, Cold: sn.Cold, Image: sp.Image, Why: c.why,
	}}, nil
}

// cold has a snapshot of a session's own commit prepared from nothing. It
// becomes the current one only if it is of the default branch and goes on from
// what is there.
func (s *Scheduler) cold(ctx context.Context, q *storage.Queries, sess storage.Session, all []storage.Node, ready []candidate, why string) (readiness, error) {
	env, err := q.LockEnvironment(ctx, sess.EnvironmentID)
	if err != nil {
		return readiness{}, fmt.Errorf("reading environment %s: %w", sess.EnvironmentID, err)
	}
	repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
	if err != nil {
		return readiness{}, fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
	}
	sp, nodes, err := s.refreshable(ctx, q, env, all)
	if err != nil || len(nodes) == 0 {
		return readiness{wait: "waiting for a node that can prepare a snapshot of the session's commit"}, err
	}
	node, own := s.preferred(nodes).Name, sess.PullNumber > 0 || sess.BaseBranch != repo.DefaultBranch || slices.ContainsFunc(ready, unrelated)
	if err := s.begin(ctx, q, env, sp, node, wanted{branch: sess.BaseBranch, ref: sess.BaseRef, commit: sess.BaseSha}, "", own); err != nil {
		return readiness{}, err
	}
	return readiness{
		wait: "building a snapshot of the session's own commit",
		note: "The snapshot there " + why + ": one of the session's own commit is prepared from nothing.",
	}, nil
}

// Fetches are repeated this often, after growing waits, before a session ends for it.
const maxFetches = 5

// fetched tells whether the session's base commit is in the mirror of the
// snapshot's node, and how far it is from the snapshot's, or asks for it.
func (s *Scheduler) fetched(ctx context.Context, q *storage.Queries, sess storage.Session, sn storage.Snapshot) (bool, *wire.Drift, *change, error) {
	if sn.CommitSha == sess.BaseSha {
		return true, &wire.Drift{}, nil, nil
	}
	key := fmt.Sprintf("fetch:%s:%d:%s:%s", sn.Node, sess.RepositoryID, sess.BaseSha, sn.CommitSha)
	w, err := q.GetWorkByKey(ctx, key)
	switch {
	case storage.IsMissing(err):
		repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
		if err != nil {
			return false, nil, nil, fmt.Errorf("reading repository %d: %w", sess.RepositoryID, err)
		}
		return false, nil, nil, s.addWork(ctx, q, sn.Node, wire.WorkFetch, key, wire.Work{Fetch: &wire.FetchWork{
			Remote: s.remote(repo, sess.BaseBranch, sess.BaseRef),
			Commit: sess.BaseSha, Since: sn.CommitSha,
		}})
	case err != nil:
		return false, nil, nil, fmt.Errorf("looking for the base commit's fetch: %w", err)
	case w.State == workDone:
		var drift *wire.Drift
		if w.Drift.Valid {
			err = json.Unmarshal(w.Drift.RawMessage, &drift)
		}
		return true, drift, nil, err
	case w.State == workFailed && w.DoneAt.Valid && w.DoneAt.Time.After(sess.CreatedAt):
		return false, nil, &change{to: Infrastructure, reason: ReasonSync,
			words: "The base commit could not be fetched. " + w.Words}, nil
	case w.State == workFailed: // another session's failure, long ago
		return false, nil, nil, q.RepeatWork(ctx, key)
	}
	return false, nil, nil, nil
}

// remote is where a node fetches a repository's commits from. A branch whose
// name is somebody else's choice is not asked for where a ref of the forge's holds the commit.
func (s *Scheduler) remote(repo storage.Repository, branch, ref string) wire.Remote {
	if ref != "" {
		branch = repo.DefaultBranch
	}
	return wire.Remote{RepositoryID: repo.ID, URL: s.o.CloneURL(repo), Branch: branch, Ref: ref}
}

func defaultBranch(ctx context.Context, q *storage.Queries, repository int64) (string, error) {
	repo, err := q.GetRepositoryRow(ctx, repository)
	if err != nil {
		return "", fmt.Errorf("reading repository %d: %w", repository, err)
	}
	return repo.DefaultBranch, nil
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
