package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/storage"
)

// When a snapshot is made, and from what. On one node an environment has at
// most one refresh going on and one wanted after it.

// afreshEvery is how many snapshots are made from one another at most: every
// eighth generation is made afresh, and so is what would follow seven that
// were made from one another beyond it.
const afreshEvery = 8

// retryBroken is the wait before a commit that could not be prepared is tried
// again by itself, doubled each time up to retryBrokenMost.
const (
	retryBroken     = 30 * time.Minute
	retryBrokenMost = 6 * time.Hour
)

// wanted is a refresh of an environment that somebody wants.
type wanted struct {
	branch, commit string
	ref            string        // that holds the commit, if no branch does
	afresh         bool          // made from nothing, and even if nothing has changed
	asked          bool          // by a person or a session: a commit that failed is tried again at once
	after          time.Duration // from now, before it is begun
}

// refresh asks a node to prepare an environment that no node has. With no node
// that suits, and where the operator allows it no more, it does nothing. The
// caller holds the environment's row.
func (s *Scheduler) refresh(ctx context.Context, q *storage.Queries, env storage.Environment, nodes []storage.Node, branch, commit string) error {
	sp, nodes, err := s.refreshable(ctx, q, env, nodes)
	if err != nil || len(nodes) == 0 {
		return err
	}
	return s.want(ctx, q, env, sp, s.preferred(nodes).Name, wanted{branch: branch, commit: commit, asked: true})
}

// refreshSpread lies between the beginnings of the refresh of one environment on
// two nodes.
const refreshSpread = 20 * time.Second

// refreshAll has an environment refreshed wherever it is, or on one node if it
// is nowhere. The caller holds the environment's row.
func (s *Scheduler) refreshAll(ctx context.Context, q *storage.Queries, env storage.Environment, w wanted) error {
	all, err := q.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("reading the nodes: %w", err)
	}
	sp, nodes, err := s.refreshable(ctx, q, env, all)
	if err != nil || len(nodes) == 0 {
		return err
	}
	snaps, err := q.EnvironmentSnapshots(ctx, env.ID)
	if err != nil {
		return fmt.Errorf("looking for snapshots of %s: %w", env.ID, err)
	}
	has := map[string]bool{}
	for _, sn := range snaps {
		if usable(sn) {
			has[sn.Node] = true
		}
	}
	if len(has) == 0 { // a node that is not connected yet does it when it is
		return s.want(ctx, q, env, sp, s.preferred(nodes).Name, w)
	}
	var at int
	for _, n := range nodes {
		if has[n.Name] && s.alive(n) {
			// One after the other, so that their disks and what they fetch from is not
			// asked by all at once.
			w.after = time.Duration(at) * min(refreshSpread, sp.Refresh.Every/time.Duration(2*len(nodes)))
			at++
			if err := s.want(ctx, q, env, sp, n.Name, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// refreshable are what an environment is prepared from now and the nodes that
// can do it: none, where the operator allows it no more.
func (s *Scheduler) refreshable(ctx context.Context, q *storage.Queries, env storage.Environment, all []storage.Node) (spec.Spec, []storage.Node, error) {
	b, err := s.boundEnvironment(ctx, q, env)
	if err != nil || b.Denied != "" {
		return b.Spec, nil, err
	}
	sp := b.Spec
	sp.Verify = nil // is no part of it
	nodes, _ := suited(all, b.Tier)
	return sp, slices.DeleteFunc(nodes, func(n storage.Node) bool { return stateOf(n).Refuses != "" || n.Draining || s.shut(n.Name) }), nil
}

// want has an environment refreshed to a commit on a node, now or after the
// refresh that goes on. What is there already, being made, or known to fail is
// not asked for.
func (s *Scheduler) want(ctx context.Context, q *storage.Queries, env storage.Environment, sp spec.Spec, node string, w wanted) error {
	at, err := q.LockEnvironmentNode(ctx, storage.LockEnvironmentNodeParams{EnvironmentID: env.ID, Node: node})
	if err != nil {
		return fmt.Errorf("reading how %s is refreshed on %s: %w", env.ID, node, err)
	}
	building, err := q.BuildingSnapshot(ctx, storage.BuildingSnapshotParams{EnvironmentID: env.ID, Node: node})
	switch {
	case err == nil && building.CommitSha == w.commit && !w.afresh:
		return s.wantNext(ctx, q, at, wanted{})
	case err == nil:
		if done, err := s.redirect(ctx, q, building, w); err != nil || done {
			return err
		}
		return s.wantNext(ctx, q, at, w)
	case !storage.IsMissing(err):
		return fmt.Errorf("looking for a refresh of %s: %w", env.ID, err)
	}
	now := s.clock.Now()
	current, err := q.CurrentSnapshot(ctx, storage.CurrentSnapshotParams{EnvironmentID: env.ID, Node: node})
	if err != nil && !storage.IsMissing(err) {
		return fmt.Errorf("looking for the snapshot of %s: %w", env.ID, err)
	}
	if current.State != snapshotReady {
		current = storage.Snapshot{}
	}
	if current.CommitSha == w.commit && !w.afresh {
		if err := q.SetSnapshotNewest(ctx, storage.SetSnapshotNewestParams{ID: current.ID, Now: now}); err != nil {
			return err
		}
		return q.SetRefreshed(ctx, storage.SetRefreshedParams{EnvironmentID: env.ID, Node: node})
	}
	if !w.asked && at.FailedCommit == w.commit && at.RetryAt.Valid && now.Before(at.RetryAt.Time) {
		return nil
	}
	from := current.ID
	if w.afresh || at.Afresh || current.Depth >= afreshEvery {
		from = ""
	}
	return s.begin(ctx, q, env, sp, node, w, from, false)
}

// wantNext notes what is refreshed to after the refresh that goes on; a zero
// wanted is nothing.
func (s *Scheduler) wantNext(ctx context.Context, q *storage.Queries, at storage.EnvironmentNode, w wanted) error {
	if at.WantedAfresh && w.commit != "" {
		w.afresh = true
	}
	return q.SetWanted(ctx, storage.SetWantedParams{
		EnvironmentID: at.EnvironmentID, Node: at.Node, WantedBranch: w.branch, WantedCommit: w.commit, WantedAfresh: w.afresh,
	})
}

// redirect has a refresh that no node has seen yet go to another commit.
func (s *Scheduler) redirect(ctx context.Context, q *storage.Queries, building storage.Snapshot, w wanted) (bool, error) {
	row, err := q.LockUntakenWork(ctx, refreshKey(building.ID))
	if storage.IsMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the work on snapshot %s: %w", building.ID, err)
	}
	var work wire.Work
	if err := json.Unmarshal(row.Data, &work); err != nil || work.Refresh == nil {
		return false, fmt.Errorf("reading work %d: it is no refresh", row.ID)
	}
	work.Refresh.Remote.Branch, work.Refresh.Commit = w.branch, w.commit
	if w.afresh {
		work.Refresh.From = ""
	}
	if err := q.SetWorkData(ctx, storage.SetWorkDataParams{ID: row.ID, Data: encode(work)}); err != nil {
		return false, err
	}
	return true, q.SetSnapshotCommit(ctx, storage.SetSnapshotCommitParams{ID: building.ID, CommitSha: w.commit})
}

func refreshKey(snapshot string) string { return "refresh:" + snapshot }

// begin asks a node to prepare the next generation of an environment. A cold
// one is for sessions of its commit alone.
func (s *Scheduler) begin(ctx context.Context, q *storage.Queries, env storage.Environment, sp spec.Spec, node string, w wanted, from string, cold bool) error {
	repo, err := q.GetRepositoryRow(ctx, env.RepositoryID)
	if err != nil {
		return fmt.Errorf("reading repository %d: %w", env.RepositoryID, err)
	}
	last, err := q.LastSnapshotGeneration(ctx, storage.LastSnapshotGenerationParams{EnvironmentID: env.ID, Node: node})
	if err != nil {
		return fmt.Errorf("counting the snapshots of %s: %w", env.ID, err)
	}
	if (last+1)%afreshEvery == 0 {
		from = ""
	}
	snap := storage.InsertSnapshotParams{
		ID: "snap-" + newID(), EnvironmentID: env.ID, Node: node, Generation: last + 1, CommitSha: w.commit,
		ConfigDigest: env.ConfigDigest, CreatedAt: s.clock.Now(), FromID: from, Cold: cold,
	}
	if err := q.InsertSnapshot(ctx, snap); err != nil {
		return fmt.Errorf("beginning a snapshot of %s: %w", env.ID, err)
	}
	fetched := false
	if sp.Image != "" {
		b, err := s.boundEnvironment(ctx, q, env)
		if err != nil {
			return err
		}
		fetched = b.Pull && b.Denied == ""
	}
	work := wire.RefreshWork{
		Snapshot: snap.ID, From: from, Environment: env.ID, Generation: int(snap.Generation),
		Remote: s.remote(repo, w.branch, w.ref),
		Commit: w.commit, ConfigDigest: env.ConfigDigest, Image: sp.Image, Pull: fetched, Setup: wireSteps(sp.Setup),
		Services: wireServices(sp.Services), Load: wireSteps(sp.Data.Load), Egress: sp.Egress, Internal: s.o.EgressInternal, Inject: wireInject(sp.Inject),
		Limits: wireLimits(sp.Limits), Timeout: s.times.Refresh,
	}
	return s.addWorkAfter(ctx, q, node, wire.WorkRefresh, refreshKey(snap.ID), wire.Work{Refresh: &work}, w.after)
}

// refreshFailed takes the failure of a refresh: what was current stays so.
func (s *Scheduler) refreshFailed(ctx context.Context, tx *storage.Tx, w storage.NodeWork, words string) error {
	var work wire.Work
	if err := json.Unmarshal(w.Data, &work); err != nil || work.Refresh == nil {
		return fmt.Errorf("reading work %d: %w", w.ID, errNoWork)
	}
	q, r := tx.Q(), work.Refresh
	s.log.Warn("a snapshot could not be prepared", "snapshot", r.Snapshot, "environment", r.Environment, "words", words)
	env, err := q.LockEnvironment(ctx, r.Environment)
	if err != nil {
		return err
	}
	sn, err := q.LockSnapshot(ctx, r.Snapshot)
	if err != nil {
		return err
	}
	if err := q.FailSnapshot(ctx, storage.FailSnapshotParams{ID: sn.ID, Error: words}); err != nil {
		return err
	}
	if sn.Cold || sn.State != snapshotBuilding {
		return nil
	}
	at, err := q.LockEnvironmentNode(ctx, storage.LockEnvironmentNodeParams{EnvironmentID: env.ID, Node: sn.Node})
	if err != nil {
		return err
	}
	now := s.clock.Now()
	wait := min(retryBroken<<min(at.Failures, 10), retryBrokenMost)
	if err := q.SetRefreshFailed(ctx, storage.SetRefreshFailedParams{
		EnvironmentID: env.ID, Node: sn.Node, Now: now, FailedCommit: sn.CommitSha, Error: words, RetryAt: now.Add(wait),
	}); err != nil {
		return err
	}
	return s.refreshNext(ctx, q, env, sn.Node)
}

// refreshNext begins what is wanted after a refresh that is over.
func (s *Scheduler) refreshNext(ctx context.Context, q *storage.Queries, env storage.Environment, node string) error {
	at, err := q.LockEnvironmentNode(ctx, storage.LockEnvironmentNodeParams{EnvironmentID: env.ID, Node: node})
	if err != nil || at.WantedCommit == "" {
		return err
	}
	if err := s.wantNext(ctx, q, storage.EnvironmentNode{EnvironmentID: env.ID, Node: node}, wanted{}); err != nil {
		return err
	}
	all, err := q.Nodes(ctx)
	if err != nil {
		return err
	}
	sp, nodes, err := s.refreshable(ctx, q, env, all)
	if err != nil || !slices.ContainsFunc(nodes, func(n storage.Node) bool { return n.Name == node }) {
		return err // the next look asks again
	}
	return s.want(ctx, q, env, sp, node, wanted{branch: at.WantedBranch, commit: at.WantedCommit, afresh: at.WantedAfresh})
}

// publish makes a verified snapshot the current one of its environment on its
// node, and retires the one before. The caller holds the environment's row and
// the snapshot's. One that was overtaken meanwhile is retired.
func (s *Scheduler) publish(ctx context.Context, q *storage.Queries, sn storage.Snapshot, o wire.SnapshotOffer, phases json.RawMessage) error {
	if !sn.Cold {
		before, err := q.CurrentSnapshot(ctx, storage.CurrentSnapshotParams{EnvironmentID: sn.EnvironmentID, Node: sn.Node})
		switch {
		case storage.IsMissing(err):
		case err != nil:
			return err
		case before.Generation > sn.Generation:
			return q.RetireSnapshot(ctx, sn.ID)
		default:
			if err := q.RetireSnapshot(ctx, before.ID); err != nil {
				return err
			}
		}
	}
	if _, tried := o.Phases["clone"]; tried && sn.FromID != "" && o.From == "" {
		// The node had to begin afresh after trying. Trying again each time would
		// double the work.
		if err := q.SetAfresh(ctx, storage.SetAfreshParams{EnvironmentID: sn.EnvironmentID, Node: sn.Node}); err != nil {
			return err
		}
	}
	return q.PublishSnapshot(ctx, storage.PublishSnapshotParams{
		ID: sn.ID, Store: text(o.Store), Bytes: o.Bytes, Now: s.clock.Now(), FromID: o.From,
		Phases: pqtype.NullRawMessage{RawMessage: phases, Valid: true},
	})
}

// sweepCold retires the snapshots made for sessions that have ended.
func (s *Scheduler) sweepCold(ctx context.Context) error {
	if _, err := s.db.Q().RetireColdSnapshots(ctx); err != nil {
		return fmt.Errorf("retiring snapshots that no session waits for: %w", err)
	}
	return nil
}
