package node

import (
	"context"
	"errors"
	"fmt"

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
	if n.o.MinFree < 0 {
		return nil
	}
	sp, err := n.o.Store.Space(ctx)
	if err != nil {
		return err
	}
	if sp.Free < n.o.MinFree {
		return refuse("no_space", fmt.Sprintf("node %s has %s free, less than its floor of %s: free some disk or lower the floor",
			n.o.Name, mebibytes(sp.Free), mebibytes(n.o.MinFree)))
	}
	return nil
}

func mebibytes(b int64) string {
	if b >= 10<<30 {
		return fmt.Sprintf("%d GiB", b>>30)
	}
	return fmt.Sprintf("%d MiB", b>>20)
}
