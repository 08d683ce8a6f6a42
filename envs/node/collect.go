package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"inspect/envs/proc"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// collectLoop finishes what was begun to be removed, and then again and again
// removes what nobody needs.
func (n *Node) collectLoop(ctx context.Context) {
	for ctx.Err() == nil {
		// What lies in the store's trash was decided before: no one is asked.
		if err := n.o.Store.Sweep(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("not everything that was discarded could be removed yet", "error", err)
		}
		if err := n.collect(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("collecting what nobody needs is not complete", "error", err)
		}
		if proc.Sleep(ctx, n.clock, n.o.CollectEvery) != nil {
			return
		}
	}
}

// collect joins what is here with what the control plane still needs. While it
// cannot be asked nothing is removed. One thing that cannot be removed holds up
// no other.
func (n *Node) collect(ctx context.Context) error {
	// Listed before asking: what is made in between is in no list.
	sockets, err := n.madeWays()
	if err != nil {
		return err
	}
	l, err := n.o.Store.List(ctx)
	if err != nil {
		return err
	}
	sandboxes, err := n.o.Launcher.List()
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	// These are this machine's own: nobody need be asked.
	if err := n.sweepWays(sockets, sandboxes); err != nil {
		n.log.Warn("sockets of ended sandboxes stay for now", "error", err)
	}
	refs, err := n.control.refs(ctx)
	if err != nil {
		return fmt.Errorf("nothing is collected: %w", err)
	}
	if err := errors.Join(n.fences.learn(refs), n.fences.forget(n.clock.Now())); err != nil {
		n.log.Warn("which attempts count cannot be kept", "error", err)
	}
	wanted := map[wire.SessionRef]bool{}
	for _, r := range refs.Sessions {
		wanted[r] = true
	}
	keep := map[snapshot.SnapshotID]bool{}
	for _, s := range refs.Snapshots {
		keep[snapshot.SnapshotID(s)] = true
	}
	var errs []error
	fail := func(what fmt.Stringer, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("collect %s: %w", what, err))
		}
	}
	for _, c := range l.Clones {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case c.ID.Purpose == snapshot.PurposeProof:
			fail(c.ID, n.unlessRefreshing(c.ID.Session, func() error { return n.discard(ctx, c.ID) }))
		case !wanted[wire.SessionRef{Session: c.ID.Session, Generation: c.ID.Generation}] && n.old(c.Created):
			n.log.Info("collecting a clone nobody needs", "clone", c.ID.String(), "age", n.clock.Now().Sub(c.Created))
			fail(c.ID, n.discard(ctx, c.ID))
		}
	}
	for _, b := range l.Bases {
		fail(b.ID, n.unlessRefreshing(string(b.ID), func() error { return n.discardBase(ctx, b.ID) }))
	}
	for _, s := range l.Snapshots {
		if keep[s.ID] || !n.old(s.Created) {
			continue
		}
		fail(s.ID, n.unlessRefreshing(string(s.ID), func() error {
			if !n.longOffered(s.ID) {
				return nil
			}
			err := n.o.Store.Discard(ctx, s.ID)
			if errors.Is(err, snapshot.ErrBusy) {
				return nil // a restore runs from it; next time
			}
			if err == nil {
				n.log.Info("collected a snapshot nobody needs", "snapshot", string(s.ID))
			}
			return err
		}))
	}
	errs = append(errs, n.collectImages(ctx, l), n.collectModules(ctx), n.collectFormerImages(ctx, sandboxes))
	if refs.Repositories != nil {
		errs = append(errs, n.mirrors.collect(func(id int64) bool { return slices.Contains(refs.Repositories, id) }, n.log))
	}
	for _, id := range sandboxes {
		clone, base, mine := ours(id)
		switch {
		case !mine:
		case base != "":
			fail(base, n.unlessRefreshing(string(base), func() error { return n.o.Launcher.Reap(ctx, id) }))
		default:
			fail(clone, n.reapOrphan(ctx, clone))
		}
	}
	return errors.Join(errs...)
}

// keepUnused is how long something stays that nothing on the node needs but that
// it is a person's work, or takes long, to bring again.
const keepUnused = 30 * 24 * time.Hour

func (n *Node) old(created time.Time) bool {
	return n.clock.Now().Sub(created) >= n.o.Grace
}

// longOffered is false for a snapshot that was offered just now: the answer to
// refs may be older than the offer.
func (n *Node) longOffered(id snapshot.SnapshotID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.offered[id]
	if ok && !n.old(at) {
		return false
	}
	delete(n.offered, id)
	return true
}

// unlessRefreshing runs fn unless a refresh works on the snapshot of that name.
func (n *Node) unlessRefreshing(name string, fn func() error) error {
	unlock, ok := n.names.Try(name)
	if !ok {
		return nil
	}
	defer unlock()
	return fn()
}

// reapOrphan ends a sandbox whose clone is gone.
func (n *Node) reapOrphan(ctx context.Context, id snapshot.CloneID) error {
	unlock, ok := n.ids.Try(id.String())
	if !ok {
		return nil // being started or discarded
	}
	defer unlock()
	if _, err := n.o.Store.Clone(ctx, id); !errors.Is(err, snapshot.ErrNotFound) {
		return err
	}
	n.log.Warn("ending a sandbox whose clone is gone", "sandbox", id.String())
	return n.end(ctx, id.String())
}
