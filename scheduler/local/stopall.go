package local

import (
	"context"
	"os"
	"sync"
)

// StopAll ends every runner of this installation, those that an earlier
// process started included. Their sessions are not over: the scheduler finds
// them gone and goes on from their last bundle. It is for the product's end on
// this machine, after which nothing of it may be left.
func (e *Engine) StopAll(ctx context.Context) {
	entries, err := os.ReadDir(e.o.Dir)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	for _, entry := range entries {
		r, ok := e.stored(entry.Name())
		if !ok {
			continue
		}
		wg.Go(func() {
			if err := e.end(ctx, r); err != nil {
				e.o.Log.Error("a runner did not end", "pid", r.PID, "error", err)
			}
		})
	}
	wg.Wait()
}
