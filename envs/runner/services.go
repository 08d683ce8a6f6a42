package runner

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox/dialer"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// stopServices bounds a clean stop of all services together.
const stopServices = 30 * time.Second

// declared are the environment's services while they run; nil: there are none.
type declared struct {
	a     *attempt
	set   *services.Set
	where string // as in wire.ServiceLog
}

// startServices starts the declared services and waits until all are ready.
func (b *box) startServices(ctx context.Context, where string) (*declared, error) {
	a := b.a
	if len(a.spec.Services) == 0 {
		return nil, nil
	}
	list := slices.Clone(a.spec.Services)
	for i, s := range list {
		if len(s.Secrets) > 0 {
			// A stop line would run beside the secret what the agent may have made
			// of a script. The clone is not needed again: SIGTERM will do.
			list[i].Stop = ""
		}
	}
	set, err := services.Start(ctx, b.sb, list, services.Options{
		Event:  func(s wire.ServiceState) { a.events.add(wire.EventService, s) },
		Redact: a.red, Clock: a.clock, Timeout: a.opt.pace.service, Dir: a.places().workspace,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) { return dialer.Dial(ctx, b.sb, addr) },
		Apart: func(ctx context.Context, s wire.Service) (services.Apart, error) {
			return b.apart(ctx, s.Name, "service "+s.Name, s.Secrets)
		},
	})
	if err != nil {
		return nil, err
	}
	return &declared{a: a, set: set, where: where}, nil
}

// stop ends the services in the order opposite to their start. What does not
// stop in time, or before the session is to stop, ends with the sandbox: the
// work that is still to be taken counts more.
func (d *declared) stop(phase context.Context) {
	if d == nil {
		return
	}
	ctx, cancel := proc.WithTimeout(phase, d.a.clock, stopServices)
	defer cancel()
	for _, words := range d.set.Failed() {
		d.a.events.note("%s", words)
	}
	defer d.keepLogs()
	stopped := make(chan error, 1)
	go func() { stopped <- d.set.Stop(ctx) }() // at the latest with the sandbox
	select {
	case err := <-stopped:
		if err != nil && phase.Err() == nil {
			d.a.log.Info("services did not stop by themselves", "error", err)
		}
	case <-ctx.Done():
		d.a.log.Info("there was no time to stop the services", "why", context.Cause(ctx))
	}
}

// keepLogs keeps what the services said. Trouble with that is not the session's.
func (d *declared) keepLogs() {
	for _, l := range d.set.Logs() {
		w, err := d.a.spool.create(int64(len(l.Text)), d.a.red)
		if err != nil {
			d.a.log.Warn("the log of a service could not be kept", "service", l.Service, "error", err)
			return
		}
		_, _ = w.Write([]byte(l.Text)) // finish tells
		kept, err := w.finish()
		if err != nil {
			d.a.log.Warn("the log of a service could not be kept", "service", l.Service, "error", err)
			return
		}
		d.a.up.artifact(kept)
		d.a.mu.Lock()
		if len(d.a.logs) < wire.MaxServiceLogs {
			d.a.logs = append(d.a.logs, wire.ServiceLog{Where: d.where, Service: l.Service, SHA256: kept.sha256})
		}
		d.a.mu.Unlock()
	}
}

// serviceTrouble is the outcome of a service that did not become ready: the
// repository declared it, so it is for its people to mend.
func (a *attempt) serviceTrouble(ctx context.Context, when string, err error) wire.Outcome {
	var service *services.Error
	if ctx.Err() != nil || !errors.As(err, &service) {
		return a.trouble(ctx, wire.ReasonService, err)
	}
	return wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonService, Words: "A declared service did not become ready " + when + ": " + sentence(err)}
}
