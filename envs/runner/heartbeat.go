package runner

import (
	"context"
)

// beat sends heartbeats until ctx ends. One that is not answered is not made
// up for: the next follows soon, and the control plane counts on the last.
func (a *attempt) beat(ctx context.Context) error {
	tick := a.clock.NewTicker(a.opt.pace.heartbeat)
	defer tick.Stop()
	failed := false
	for {
		err := a.control.beat(ctx, a.currentPhase())
		if ctx.Err() != nil {
			return nil
		}
		if (err != nil) != failed {
			failed = err != nil
			if failed {
				a.log.Warn("the control plane does not hear our heartbeat", "error", err)
			} else {
				a.log.Info("the control plane hears our heartbeat again")
			}
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return nil
		}
	}
}
