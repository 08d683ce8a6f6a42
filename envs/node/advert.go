package node

import (
	"context"
	"maps"
	"time"

	"inspect/envs/snapshot"
)

// Advert is what a node has for sessions, for whoever places them. It is a hint:
// what counts is whether the node can restore the snapshot.
type Advert struct {
	Node      string            // as the control plane knows it
	Snapshots map[string]string // environment -> commit of its newest snapshot here
	FreeBytes int64             // of the store
}

// like says whether b tells nothing new after a: the same snapshots, and about
// the same space.
func (a Advert) like(b Advert) bool {
	moved := a.FreeBytes - b.FreeBytes
	return maps.Equal(a.Snapshots, b.Snapshots) && max(moved, -moved) <= a.FreeBytes/16
}

// advertOf leaves out what a refresh still works on: it is not proved yet.
func (n *Node) advertOf(l snapshot.Listing, sp snapshot.Space) Advert {
	a := Advert{Node: n.o.Name, Snapshots: map[string]string{}, FreeBytes: sp.Free}
	newest := map[string]int{}
	for _, s := range l.Snapshots {
		if env := s.Meta.Environment; s.Meta.Generation > newest[env] {
			_ = n.unlessRefreshing(string(s.ID), func() error {
				newest[env], a.Snapshots[env] = s.Meta.Generation, s.Meta.Commit
				return nil
			})
		}
	}
	return a
}

// offer passes on what the store has; one that nobody has taken yet is
// replaced. An agent that does not answer holds up nothing.
func (n *Node) offer(a Advert) {
	if n.o.Advertise == nil {
		return
	}
	select {
	case <-n.adverts:
	default:
	}
	n.adverts <- a // only we send
}

// advertLoop tells adverts until ctx ends. What could not be told is told with
// the next look at the store.
func (n *Node) advertLoop(ctx context.Context) {
	var told Advert
	var at time.Time // of the last that was told; zero: the last was not
	known := true
	for {
		var a Advert
		select {
		case a = <-n.adverts:
		case <-ctx.Done():
			return
		}
		if !at.IsZero() && told.like(a) && n.clock.Now().Sub(at) < n.o.AdvertiseEvery {
			continue
		}
		err := n.o.Advertise(ctx, a)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil && !known:
			n.log.Info("the engine's agent takes what this node has again")
		case err != nil && known:
			n.log.Warn("what this node has could not be told to the engine's agent; going on, sessions may be placed elsewhere", "error", err)
		}
		known, told, at = err == nil, a, n.clock.Now()
		if err != nil {
			at = time.Time{}
		}
	}
}

// withdrawTimeout is what the agent gets to hear that the daemon ends.
const withdrawTimeout = 5 * time.Second

// withdraw has nothing placed here any more, until the next daemon.
func (n *Node) withdraw(ctx context.Context) {
	if n.o.Advertise == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	if err := n.o.Advertise(ctx, Advert{}); err != nil {
		n.log.Warn("the engine's agent could not be told that this daemon ends; sessions that are placed here wait", "error", err)
	}
}
