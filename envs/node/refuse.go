package node

import (
	"context"
	"errors"
	"fmt"
	"math"

	"inspect/envs/snapshot"
	"inspect/envs/wire"
)

// refuse is a refusal that goes to the caller as it is.
func refuse(code, words string) *wire.Error { return &wire.Error{Code: code, Message: words} }

func badRequest(words string) *wire.Error { return refuse("bad_request", words) }

// asError is what a caller is told of an error. What is only ours is
// "unavailable": asking again may succeed.
func asError(err error) *wire.Error {
	var e *wire.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, wire.ErrGrant):
		return refuse("unauthorized", err.Error())
	case errors.Is(err, snapshot.ErrName):
		return refuse("bad_request", err.Error())
	case errors.Is(err, snapshot.ErrNotFound):
		return refuse("not_found", err.Error())
	case errors.Is(err, snapshot.ErrNoSpace):
		return refuse("no_space", err.Error())
	case errors.Is(err, snapshot.ErrUnsupported):
		return refuse("unsupported", err.Error())
	case errors.Is(err, snapshot.ErrExists), errors.Is(err, snapshot.ErrForeign):
		return refuse("busy", err.Error())
	case errors.Is(err, context.Canceled):
		return refuse("unavailable", "the node daemon is stopping")
	}
	return refuse("unavailable", err.Error())
}

// admission says no when the store is nearly full, while there is still room
// for the sandboxes that run.
func (n *Node) admission(ctx context.Context) error {
	sp, err := n.o.Store.Space(ctx)
	if err != nil {
		return err
	}
	if words := n.refuses(sp); words != "" {
		return refuse("no_space", words)
	}
	return nil
}

// refuses says why nothing is restored or refreshed with that much space;
// empty: it is.
func (n *Node) refuses(sp snapshot.Space) string {
	used := sp.Total - sp.Free
	switch {
	case n.o.MinFree > 0 && sp.Free < n.o.MinFree:
		return fmt.Sprintf("node %s has %s free, less than its floor of %s: free some disk or lower the floor",
			n.o.Name, mebibytes(sp.Free), mebibytes(n.o.MinFree))
	case sp.Room <= 0:
		return fmt.Sprintf("node %s is %d %% full, nothing is restored from %d %% on: free some disk or raise the bound; %s of %s are used",
			n.o.Name, percent(used, sp.Total), percent(used+sp.Room, sp.Total), mebibytes(used), mebibytes(sp.Total))
	}
	return ""
}

// room is how much more may be kept with that much space before refuses says no.
func (n *Node) room(sp snapshot.Space) int64 {
	return max(1, min(sp.Room, sp.Free-max(n.o.MinFree, 0)))
}

func percent(part, of int64) int { return int(math.Round(100 * float64(part) / float64(max(of, 1)))) }

func mebibytes(b int64) string {
	if b >= 10<<30 {
		return fmt.Sprintf("%d GiB", b>>30)
	}
	return fmt.Sprintf("%d MiB", b>>20)
}
