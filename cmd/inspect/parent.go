package main

import (
	"context"
	"errors"
	"os"
	"time"

	"inspect/envs/proc"
)

// errOrphaned is the cause of the context of a process whose parent ended.
var errOrphaned = errors.New("the process that started this one has ended")

// parentLook is how often a process that must not outlive its parent looks.
const parentLook = 250 * time.Millisecond

// withParent ends the context when the process that started this one has ended,
// however it ended. 0: it may live on. The parent's id never says the wrong
// thing: once it is dead this process has another.
func withParent(ctx context.Context, parent int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for parent > 0 {
			if os.Getppid() != parent {
				cancel(errOrphaned)
				return
			}
			if proc.Sleep(ctx, proc.System(), parentLook) != nil {
				return
			}
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		<-done
	}
}
