package scheduler

import (
	"context"
	"crypto/ed25519"

	"inspect/scheduler/audit"
	"inspect/storage"
)

func publicKey(w *world) ed25519.PublicKey { return w.key.Public().(ed25519.PublicKey) }

var ErrChain = audit.ErrBroken

// VerifyEvents checks a session's chain, and that its first count events ended
// in head if count is not 0.
func VerifyEvents(ctx context.Context, q *storage.Queries, session, head string, count int64) error {
	var anchors []audit.Anchor
	if count != 0 {
		anchors = []audit.Anchor{{Session: session, Count: count, Head: head, From: "the test"}}
	}
	_, _, err := CheckChain(ctx, q, session, anchors)
	return err
}
