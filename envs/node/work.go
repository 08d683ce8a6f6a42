package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// maxWork is how many work items are in hand at the same time; most of them
// wait for a refresh to end.
const maxWork = 16

// maxWords bounds what a WorkResult says.
const maxWords = 8 << 10

// workLoop asks for work and does it until ctx ends.
func (n *Node) workLoop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	// What a former daemon had in hand is given away anew once the control plane
	// knows of this one.
	select {
	case <-n.announced:
	case <-ctx.Done():
		return
	}
	hands := make(chan struct{}, maxWork)
	for {
		select {
		case hands <- struct{}{}:
		case <-ctx.Done():
			return
		}
		w, err := n.nextWork(ctx)
		if err != nil {
			return // the context's
		}
		n.mu.Lock()
		again := n.working[w.ID]
		n.working[w.ID] = true
		n.mu.Unlock()
		if again {
			// Its lease ran out while it is being done here: go on with that.
			<-hands
			continue
		}
		wg.Go(func() {
			defer func() { <-hands }()
			defer func() {
				n.mu.Lock()
				delete(n.working, w.ID)
				n.mu.Unlock()
			}()
			n.do(ctx, w)
		})
	}
}

// nextWork polls until there is work. The error is the context's.
func (n *Node) nextWork(ctx context.Context) (w wire.Work, err error) {
	for {
		asked := n.clock.Now()
		err = proc.Retry(ctx, n.clock, away, func(ctx context.Context) error {
			w, err = n.control.work(ctx)
			if errors.Is(err, errNone) {
				return proc.Permanent(err)
			}
			if err != nil && ctx.Err() == nil {
				n.log.Debug("no work could be asked for", "error", err)
			}
			return err
		})
		if ctx.Err() != nil {
			return w, context.Cause(ctx)
		}
		if err == nil {
			return w, nil
		}
		// The other side holds the poll; if it does not, do not spin.
		if n.clock.Now().Sub(asked) < time.Second {
			if err := proc.Sleep(ctx, n.clock, time.Second); err != nil {
				return w, err
			}
		}
	}
}

// do does one item and reports its end. Nothing is reported when ctx ends: the
// lease runs out and the item is handed out again.
func (n *Node) do(ctx context.Context, w wire.Work) {
	log := n.log.With("work", w.ID, "kind", w.Kind)
	begun := n.clock.Now()
	if w.Refresh != nil {
		// Held until the offer was taken: a snapshot nobody knows of yet is
		// needed by nobody, and would be collected.
		unlock, err := n.names.Lock(ctx, w.Refresh.Snapshot)
		if err != nil {
			return // the context's
		}
		defer unlock()
	}
	offer, drift, err := n.perform(ctx, w)
	if ctx.Err() != nil {
		return
	}
	if err == nil && offer != nil {
		err = n.insist(ctx, "offer a snapshot", func(ctx context.Context) error { return n.control.offer(ctx, *offer) })
		var refused *wire.Error
		if errors.As(err, &refused) {
			// Nobody will ask for it. If it cannot be removed now it is collected.
			log.Warn("the control plane does not want the snapshot", "snapshot", offer.Snapshot, "error", err)
			if derr := n.o.Store.Discard(ctx, snapshot.SnapshotID(offer.Snapshot)); derr != nil {
				log.Warn("the refused snapshot stays for now", "error", derr)
			}
		} else if err == nil {
			n.mu.Lock()
			n.offered[snapshot.SnapshotID(offer.Snapshot)] = n.clock.Now()
			n.mu.Unlock()
			log.Info("snapshot offered", "snapshot", offer.Snapshot, "commit", offer.Commit, "duration", n.clock.Now().Sub(begun))
		}
		return
	}
	result := wire.WorkResult{OK: err == nil, Drift: drift}
	if err != nil {
		result.Words = redact.Tail(n.redactor.String(err.Error()), maxWords)
		log.Warn("work failed", "error", result.Words)
	} else {
		log.Info("work done", "duration", n.clock.Now().Sub(begun))
	}
	if err := n.insist(ctx, "report work", func(ctx context.Context) error { return n.control.workDone(ctx, w.ID, result) }); err != nil && ctx.Err() == nil {
		log.Warn("the control plane does not want the report", "error", err)
	}
}

// perform does one item. What comes of it is an offer or, of a fetch, perhaps a
// drift.
func (n *Node) perform(ctx context.Context, w wire.Work) (*wire.SnapshotOffer, *wire.Drift, error) {
	switch {
	case w.Kind == wire.WorkRefresh && w.Refresh != nil:
		select {
		case n.slots <- struct{}{}:
			defer func() { <-n.slots }()
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		offer, err := n.refresh(ctx, w.ID, *w.Refresh)
		return offer, nil, err
	case w.Kind == wire.WorkFetch && w.Fetch != nil:
		if err := n.mirrors.Fetch(ctx, w.Fetch.Remote, w.Fetch.Commit); err != nil {
			return nil, nil, err
		}
		if _, err := n.fetchModules(ctx, w.Fetch.Remote, w.Fetch.Commit); err != nil {
			return nil, nil, err
		}
		return nil, n.driftSince(ctx, *w.Fetch), nil
	case w.Kind == wire.WorkDiscard && w.Discard != nil:
		return nil, nil, n.discardSession(ctx, *w.Discard)
	}
	return nil, nil, fmt.Errorf("this node does not know work of kind %q", redact.Cut(w.Kind, 40))
}

// driftSince says how far a commit that was fetched is from a snapshot's. If it
// cannot be told the fetch is no worse for it.
func (n *Node) driftSince(ctx context.Context, f wire.FetchWork) *wire.Drift {
	if f.Since == "" {
		return nil
	}
	d, err := n.mirrors.Drift(ctx, f.Remote.RepositoryID, f.Since, f.Commit)
	if err != nil {
		n.log.Warn("the drift since a snapshot's commit could not be counted", "repository", f.Remote.RepositoryID, "since", redact.Cut(f.Since, 64), "commit", f.Commit, "error", err)
		return nil
	}
	return &d
}

// discardSession removes every clone of one attempt, which counts no more.
func (n *Node) discardSession(ctx context.Context, ref wire.SessionRef) error {
	if err := known(n.fences.raise(ref.Session, ref.Generation+1)); err != nil {
		return err
	}
	l, err := n.o.Store.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range l.Clones {
		if c.ID.Session == ref.Session && c.ID.Generation == ref.Generation && c.ID.Purpose != snapshot.PurposeProof {
			errs = append(errs, n.discard(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}
