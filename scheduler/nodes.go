package scheduler

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/wire"
	"inspect/scheduler/audit"
	"inspect/storage"
)

// The node daemons' side of the machine API. Errors are *wire.Error. A node is
// ours, but what it says is bounded all the same.

var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// RegisterNode makes a node known by the SHA-256 of its bearer token.
func (s *Scheduler) RegisterNode(ctx context.Context, name string, tokenHash []byte) error {
	return registerNode(ctx, s.db.Q(), name, tokenHash)
}

func registerNode(ctx context.Context, q *storage.Queries, name string, tokenHash []byte) error {
	if !nodeName.MatchString(name) || len(tokenHash) != 32 {
		return fmt.Errorf("a node needs a name of at most 63 lower-case letters, digits, '-' and '.', and the SHA-256 of its token; the name was %.80q", name)
	}
	if err := q.UpsertNode(ctx, storage.UpsertNodeParams{Name: name, TokenHash: tokenHash}); err != nil {
		return fmt.Errorf("registering node %s: %w", name, err)
	}
	return nil
}

// ErrNodeThere is the error of a name that another node has.
var ErrNodeThere = errors.New("there is a node of that name")

// AddNode makes a further node known by the SHA-256 of its bearer token. Of one
// that is there the token is replaced, if that is wanted; else it is ErrNodeThere.
func AddNode(ctx context.Context, tx *storage.Tx, name string, tokenHash []byte, replace bool) error {
	if _, err := tx.Q().GetNode(ctx, name); err == nil && !replace {
		return fmt.Errorf("node %s: %w", name, ErrNodeThere)
	} else if err != nil && !storage.IsMissing(err) {
		return fmt.Errorf("looking for node %s: %w", name, err)
	}
	return registerNode(ctx, tx.Q(), name, tokenHash)
}

// AuthenticateNode says which node a bearer token belongs to.
func (s *Scheduler) AuthenticateNode(ctx context.Context, bearer string) (string, error) {
	bad := refuse(codeUnauthorized, "the token is not a node's")
	if bearer == "" || len(bearer) > 1024 {
		return "", bad
	}
	// Looking a hash up tells an attacker nothing about any token by its timing.
	name, err := s.db.Q().NodeByToken(ctx, hashOf(bearer))
	return name, s.unavailable(ctx, missingAs(err, bad))
}

// NodeSilence is after how long without a word a node counts as away.
const NodeSilence = 45 * time.Second

// lostAfter is how long a published snapshot may be missing from a node's
// list: the list may have been made before it was published.
const lostAfter = time.Minute

// NodeState takes what a node advertises. It keeps the node's work leased.
func (s *Scheduler) NodeState(ctx context.Context, node string, st wire.NodeState) error {
	st.Node = node
	data, err := audit.Canonical(encode(st))
	if err != nil || len(data) > 1<<20 {
		return refuse(codeBadRequest, "the state of the node cannot be stored")
	}
	now := s.clock.Now()
	before, err := s.db.Q().GetNode(ctx, node)
	if err != nil {
		return s.unavailable(ctx, missingAs(err, refuse(codeNotFound, "node %s is not registered", node)))
	}
	if err := s.db.Q().SetNodeState(ctx, storage.SetNodeStateParams{Name: node, State: data, Now: now}); err != nil {
		return s.unavailable(ctx, err)
	}
	var former wire.NodeState
	if json.Unmarshal(before.State, &former) == nil && former.Instance != st.Instance {
		// A new daemon: nothing of what the former was given is in hand.
		if err := s.db.Q().ReleaseWork(ctx, node); err != nil {
			return s.unavailable(ctx, err)
		}
	}
	if err := s.renewLeases(ctx, node, st, now); err != nil {
		return s.unavailable(ctx, err)
	}
	if st.Snapshots != nil {
		lost, err := s.db.Q().RetireLostSnapshots(ctx, storage.RetireLostSnapshotsParams{
			Node: node, Before: now.Add(-lostAfter), Has: encode(st.Snapshots),
		})
		if err != nil {
			return s.unavailable(ctx, err)
		}
		if len(lost) > 0 {
			s.log.Warn("a node lost snapshots; they are prepared anew when needed", "node", node, "snapshots", lost)
		}
	}
	if !s.alive(before) {
		// Sessions may have waited for this node.
		s.readmit(ctx)
	}
	return nil
}

// Refs is everything the control plane still needs on a node.
func (s *Scheduler) Refs(ctx context.Context, node string) (wire.Refs, error) {
	refs := wire.Refs{Sessions: []wire.SessionRef{}, Snapshots: []string{}}
	attempts, err := s.db.Q().NodeAttempts(ctx, node)
	if err != nil {
		return refs, s.unavailable(ctx, err)
	}
	for _, a := range attempts {
		refs.Sessions = append(refs.Sessions, wire.SessionRef{Session: a.SessionID, Generation: int(a.Generation)})
	}
	over, err := s.db.Q().NodeOver(ctx, storage.NodeOverParams{Node: node, Since: s.clock.Now().Add(-tokenSlack)}) // as long as grants
	if err != nil {
		return refs, s.unavailable(ctx, err)
	}
	for _, a := range over {
		refs.Over = append(refs.Over, wire.SessionRef{Session: a.SessionID, Generation: int(a.Generation)})
	}
	ids, err := s.db.Q().NodeSnapshots(ctx, node)
	if err != nil {
		return refs, s.unavailable(ctx, err)
	}
	refs.Snapshots = append(refs.Snapshots, ids...)
	repositories, err := s.db.Q().NodeRepositories(ctx, storage.NodeRepositoriesParams{Node: node, Since: s.clock.Now().Add(-usedWithin)})
	if err != nil {
		return refs, s.unavailable(ctx, err)
	}
	refs.Repositories = append([]int64{}, repositories...)
	return refs, nil
}

// NextWork answers a long poll with the next thing a node shall do, leased to
// it, or nil if there is nothing.
func (s *Scheduler) NextWork(ctx context.Context, node string) (*wire.Work, error) {
	var work *wire.Work
	err := s.poll(ctx, "node:"+node, func(ctx context.Context) (bool, error) {
		now := s.clock.Now()
		row, err := s.takeWork(ctx, node, now)
		if storage.IsMissing(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if row.Kind == wire.WorkRefresh && row.Attempts > 1 && now.Sub(row.CreatedAt) > 2*s.times.Refresh {
			return false, s.endWork(ctx, node, row.ID, wire.WorkResult{
				Words: fmt.Sprintf("Node %s began to prepare it %d times and did not say what came of it.", node, row.Attempts-1)})
		}
		w := new(wire.Work)
		if err := json.Unmarshal(row.Data, w); err != nil {
			return false, fmt.Errorf("reading work %d: %w", row.ID, err)
		}
		w.ID, w.Kind = row.ID, row.Kind
		if w.Refresh != nil {
			words, err := s.bindRefresh(ctx, w.Refresh)
			if err != nil {
				return false, err
			}
			if words != "" {
				s.wakes.wake("node:" + node) // there may be other work
				return false, s.endWork(ctx, node, row.ID, wire.WorkResult{Words: words})
			}
		}
		work = w
		return true, nil
	})
	return work, s.unavailable(ctx, err)
}

// refreshesPerNode is how many snapshots one node prepares at once.
const refreshesPerNode = 2

// takeWork leases the next thing to a node. Refreshes are handed out only as
// long as there are not too many, and not to a node that takes nothing new.
func (s *Scheduler) takeWork(ctx context.Context, node string, now time.Time) (row storage.NodeWork, err error) {
	p := storage.TakeWorkParams{Node: node, Now: now, LeaseUntil: now.Add(s.times.Lease)}
	row, err = s.db.Q().TakeWork(ctx, p)
	if !storage.IsMissing(err) || s.shut(node) {
		return row, err
	}
	p.Refresh = true
	err = s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		if err := q.LockRefreshes(ctx); err != nil {
			return err
		}
		on, err := q.RefreshesGoingOn(ctx, storage.RefreshesGoingOnParams{Node: node, Now: now})
		if err != nil {
			return err
		}
		if on.Draining || int(on.Everywhere) >= s.o.MaxRefreshes || on.Here >= refreshesPerNode {
			return sql.ErrNoRows
		}
		row, err = q.TakeWork(ctx, p)
		return err
	})
	return row, err
}

// bindRefresh has what binds a repository now count for a preparation that was
// asked for earlier. The words say why it may not be done any more.
func (s *Scheduler) bindRefresh(ctx context.Context, w *wire.RefreshWork) (words string, err error) {
	env, err := s.db.Q().GetEnvironment(ctx, w.Environment)
	if err != nil {
		return "", fmt.Errorf("reading environment %s: %w", w.Environment, err)
	}
	b, err := s.boundEnvironment(ctx, s.db.Q(), env)
	if err != nil || b.Denied != "" {
		return b.Denied, err
	}
	w.Limits = wireLimits(b.Spec.Limits)
	return "", nil
}

// WorkDone ends a work item. A refresh that succeeded is ended by Offer.
func (s *Scheduler) WorkDone(ctx context.Context, node string, id int64, r wire.WorkResult) error {
	return s.unavailable(ctx, s.endWork(ctx, node, id, r))
}

// maxFailureWords is kept of what failed at a node, from its end.
const maxFailureWords = 3000

func (s *Scheduler) endWork(ctx context.Context, node string, id int64, r wire.WorkResult) error {
	if err := s.learn(ctx); err != nil {
		return err
	}
	words := clipTail(s.o.Redactor.String(r.Words), maxFailureWords)
	return s.withWork(ctx, node, id, func(tx *storage.Tx, w storage.NodeWork) error {
		q, now := tx.Q(), s.clock.Now()
		if w.State == workDone || w.State == workFailed {
			return nil // said before
		}
		if w.Kind == wire.WorkRefresh && r.OK {
			return refuse(codeBadRequest, "a refresh that succeeded is told by offering its snapshot")
		}
		if w.Kind == wire.WorkFetch && !r.OK && w.Attempts < maxFetches {
			return q.PostponeWork(ctx, storage.PostponeWorkParams{ID: id, Words: words, Until: now.Add(postponement(w.Attempts))})
		}
		state := workDone
		if !r.OK {
			state = workFailed
		}
		if err := q.EndWork(ctx, storage.EndWorkParams{ID: id, State: state, Words: words, Now: now}); err != nil {
			return err
		}
		if d := r.Drift; d != nil && w.Kind == wire.WorkFetch && r.OK {
			if d.Commits < 0 || d.Commits > wire.MaxDrift || d.Behind < 0 || d.Behind > wire.MaxDrift {
				return refuse(codeBadRequest, "the drift is malformed")
			}
			if err := q.SetWorkDrift(ctx, storage.SetWorkDriftParams{ID: id, Drift: pqtype.NullRawMessage{RawMessage: encode(d), Valid: true}}); err != nil {
				return err
			}
		}
		if w.Kind == wire.WorkRefresh {
			return s.refreshFailed(ctx, tx, w, words)
		}
		return nil
	})
}

// withWork runs fn with a node's locked work item, and has the queue looked at
// afterwards, because sessions may have waited for it.
func (s *Scheduler) withWork(ctx context.Context, node string, id int64, fn func(tx *storage.Tx, w storage.NodeWork) error) error {
	var repository int64
	err := s.db.InLockTx(ctx, func(tx *storage.Tx) error {
		w, err := tx.Q().LockWork(ctx, id)
		if err != nil {
			return missingAs(err, refuse(codeNotFound, "there is no work %d", id))
		}
		if w.Node != node {
			return refuse(codeNotFound, "work %d is not this node's", id)
		}
		repository = repositoryOf(w)
		return fn(tx, w)
	})
	if err != nil {
		return err
	}
	if repository != 0 && !s.inHand(ctx, repository) {
		s.o.Effects.GitTokenDone(ctx, repository)
	}
	s.readmit(ctx)
	return nil
}

// Offer publishes a verified snapshot in one transaction, see publish.
func (s *Scheduler) Offer(ctx context.Context, node string, o wire.SnapshotOffer) error {
	if len(o.Phases) > wire.MaxPhases || o.Bytes < 0 || len(o.Store) > 40 {
		return refuse(codeBadRequest, "the offer is malformed")
	}
	phases, err := audit.Canonical(encode(o.Phases))
	if err != nil {
		return refuse(codeBadRequest, "the offer cannot be stored")
	}
	return s.unavailable(ctx, s.withWork(ctx, node, o.Work, func(tx *storage.Tx, w storage.NodeWork) error {
		var work wire.Work
		if err := json.Unmarshal(w.Data, &work); err != nil || work.Refresh == nil || work.Refresh.Snapshot != o.Snapshot {
			return refuse(codeBadRequest, "work %d is not the preparation of snapshot %.80q", w.ID, o.Snapshot)
		}
		q, now := tx.Q(), s.clock.Now()
		// The environment's row serialises publications.
		env, err := q.LockEnvironment(ctx, work.Refresh.Environment)
		if err != nil {
			return err
		}
		sn, err := q.LockSnapshot(ctx, o.Snapshot)
		if err != nil {
			return missingAs(err, refuse(codeNotFound, "there is no snapshot %.80q", o.Snapshot))
		}
		switch {
		case sn.State == snapshotRetired && w.State != workDone && w.State != workFailed: // for a secret that has changed meanwhile
			return q.EndWork(ctx, storage.EndWorkParams{ID: w.ID, State: workFailed, Words: sn.Error, Now: now})
		case sn.State == snapshotReady, sn.State == snapshotRetired:
			return nil // said before
		case w.State == workPending:
			// Its lease is over, or another daemon is to have it: that one finds the
			// snapshot there and offers it.
			return refuse(codeUnavailable, "work %d is not in this node's hands", w.ID)
		case sn.State != snapshotBuilding:
			return refuse(codeNotFound, "snapshot %s is not wanted any more", sn.ID)
		case sn.CommitSha != o.Commit, sn.ConfigDigest != o.ConfigDigest, int(sn.Generation) != o.Generation, sn.EnvironmentID != o.Environment:
			return refuse(codeBadRequest, "the offer is of another commit, configuration or generation than was asked for")
		case o.From != "" && o.From != work.Refresh.From:
			return refuse(codeBadRequest, "the snapshot was made from another than was asked for")
		}
		if err := s.publish(ctx, q, sn, o, phases); err != nil {
			return err
		}
		if err := q.EndWork(ctx, storage.EndWorkParams{ID: w.ID, State: workDone, Now: now}); err != nil || sn.Cold {
			return err
		}
		if err := q.SetRefreshed(ctx, storage.SetRefreshedParams{EnvironmentID: env.ID, Node: node}); err != nil {
			return err
		}
		return s.refreshNext(ctx, q, env, node)
	}))
}

// NodeGitToken mints a read-only token for one repository, if the node has
// work on it in hand, or for a submodule of that. It is empty for a submodule
// that may be read only as everybody may.
func (s *Scheduler) NodeGitToken(ctx context.Context, node string, r wire.GitTokenRequest) (wire.GitToken, error) {
	rows, err := s.db.Q().OpenWork(ctx, node)
	if err != nil {
		return wire.GitToken{}, s.unavailable(ctx, err)
	}
	for _, row := range rows {
		if row.State == workTaken && r.RepositoryID != 0 && repositoryOf(row) == r.RepositoryID {
			read := r.RepositoryID
			if r.URL != "" {
				if read, err = s.submodule(ctx, r.RepositoryID, r.URL); err != nil || read == 0 {
					return wire.GitToken{}, s.unavailable(ctx, err)
				}
			}
			token, err := s.o.Effects.GitToken(ctx, read, r.RepositoryID)
			return token, s.unavailable(ctx, err)
		}
	}
	return wire.GitToken{}, refuse(codeNotFound, "node %s has no work on repository %d", node, r.RepositoryID)
}

var moduleAddress = regexp.MustCompile(`/([A-Za-z0-9._-]{1,100})/([A-Za-z0-9._-]{1,100}?)(\.git)?$`)

// submodule is the repository at an address that a hostile .gitmodules of
// another names, if it may be read for that; 0 if not.
func (s *Scheduler) submodule(ctx context.Context, of int64, address string) (int64, error) {
	m := moduleAddress.FindStringSubmatch(address)
	if m == nil || s.o.SubmoduleAllowed == nil {
		return 0, nil
	}
	parent, err := s.db.Q().GetRepositoryRow(ctx, of)
	if err != nil || parent.RemovedAt.Valid {
		return 0, err
	}
	ids, err := s.db.Q().RepositoriesNamed(ctx, storage.RepositoriesNamedParams{Owner: m[1], Name: m[2]})
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		repo, err := s.db.Q().GetRepositoryRow(ctx, id)
		if err != nil {
			return 0, err
		}
		same := strings.EqualFold(strings.TrimSuffix(s.o.CloneURL(repo), ".git"), strings.TrimSuffix(address, ".git"))
		if same && repo.InstallationID == parent.InstallationID && s.o.SubmoduleAllowed(parent, repo) {
			return id, nil
		}
	}
	return 0, nil
}

// repositoryOf is the repository that work fetches from, 0 if it fetches nothing.
func repositoryOf(row storage.NodeWork) int64 {
	var w wire.Work
	_ = json.Unmarshal(row.Data, &w) // our own; what cannot be read fetches nothing
	switch {
	case w.Refresh != nil:
		return w.Refresh.Remote.RepositoryID
	case w.Fetch != nil:
		return w.Fetch.Remote.RepositoryID
	}
	return 0
}

// inHand says whether some node works on a repository.
func (s *Scheduler) inHand(ctx context.Context, repository int64) bool {
	nodes, err := s.db.Q().Nodes(ctx)
	for _, n := range nodes {
		rows, oerr := s.db.Q().OpenWork(ctx, n.Name)
		err = errors.Join(err, oerr)
		for _, row := range rows {
			if row.State == workTaken && repositoryOf(row) == repository {
				return true
			}
		}
	}
	return err != nil // unknown: its token expires
}

// renewLeases keeps the work that a node says it has in hand leased to it.
func (s *Scheduler) renewLeases(ctx context.Context, node string, st wire.NodeState, now time.Time) error {
	until := now.Add(s.times.Lease)
	if len(st.Work) > 1000 {
		return refuse(codeBadRequest, "a node has at most 1000 work items in hand")
	}
	for _, id := range st.Work {
		if err := s.db.Q().RenewLease(ctx, storage.RenewLeaseParams{Node: node, ID: id, LeaseUntil: until}); err != nil {
			return err
		}
	}
	return nil
}
