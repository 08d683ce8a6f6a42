package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// errStopped is why a phase was left early: the control plane asked for it.
var errStopped = errors.New("the session was stopped")

// errDeadline is why a phase was left early: the attempt's time is over.
var errDeadline = errors.New("the attempt's time is over")

// orders are what the control plane has asked for so far.
type orders struct {
	mu      sync.Mutex
	stop    *wire.StopDirective // the first one
	stopBy  time.Time           // when the engine will kill us
	finish  bool
	prompts []wire.PromptDirective // not yet given to the agent
	changed chan struct{}          // closed and replaced on every change
}

func newOrders() *orders { return &orders{changed: make(chan struct{})} }

func (o *orders) change(fn func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fn()
	close(o.changed)
	o.changed = make(chan struct{})
}

// stopped returns the stop directive, nil if there is none.
func (o *orders) stopped() (*wire.StopDirective, time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stop, o.stopBy
}

// takePrompts returns the prompts that nobody has seen yet.
func (o *orders) takePrompts() []wire.PromptDirective {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.prompts
	o.prompts = nil
	return p
}

func (o *orders) watch() (stop, finish bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stop != nil, o.finish, o.changed
}

// listen asks for directives until ctx ends.
func (a *attempt) listen(ctx context.Context) error {
	var after int64
	prompts := 0
	for {
		got, err := a.control.directives(ctx, after)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			// Everything that a repetition cures has been repeated already.
			a.log.Error("directives cannot be received", "error", err)
			if proc.Sleep(ctx, a.clock, a.opt.pace.poll) != nil {
				return nil
			}
			continue
		}
		fresh := false
		for _, d := range got {
			if d.ID <= after {
				continue
			}
			after, fresh = d.ID, true
			a.obey(d, &prompts)
		}
		if !fresh {
			// Nothing, or old ones again; if that came at once, do not spin.
			if proc.Sleep(ctx, a.clock, 200*time.Millisecond) != nil {
				return nil
			}
		}
	}
}

func (a *attempt) obey(d wire.Directive, prompts *int) {
	switch {
	case d.Kind == wire.DirectiveStop:
		stop := wire.StopDirective{Reason: "stopped"}
		if d.Stop != nil {
			stop = *d.Stop
		}
		a.log.Info("asked to stop", "reason", stop.Reason, "grace", stop.Grace)
		a.orders.change(func() {
			if a.orders.stop == nil {
				a.orders.stop, a.orders.stopBy = &stop, a.clock.Now().Add(stop.Grace)
			}
		})
	case d.Kind == wire.DirectiveFinish:
		a.log.Info("asked to finish")
		a.orders.change(func() { a.orders.finish = true })
	case d.Kind == wire.DirectivePrompt && d.Prompt != nil:
		if *prompts++; *prompts > wire.MaxPrompts {
			a.events.note("A further prompt was not given to the agent: a session takes at most %d.", wire.MaxPrompts)
			return
		}
		a.orders.change(func() { a.orders.prompts = append(a.orders.prompts, *d.Prompt) })
	case d.Kind == wire.DirectiveAllowHost && d.AllowHost != nil:
		a.allowHost(d.AllowHost.Host)
	case d.Kind == wire.DirectiveBudget && d.Budget != nil:
		a.money.raise(d.Budget.Budget)
		a.events.note("The budget was raised to %s.", spec.Money(d.Budget.Budget))
	default:
		a.events.note("The control plane asked for %q, which this runner does not know; nothing was done.", d.Kind)
	}
}

// givePrompts hands waiting prompts to the agent, nil for one that does not run.
func (a *attempt) givePrompts(ctx context.Context, s harness.Session) {
	for _, p := range a.orders.takePrompts() {
		err := error(harness.ErrOver)
		if s != nil {
			err = s.Prompt(ctx, harness.Prompt{Text: p.Text, Author: p.Author})
		}
		if err == nil {
			a.events.note("A prompt of %s was given to the agent.", p.Author)
			continue
		}
		a.events.note("A prompt of %s was not given to the agent: %v.", p.Author, err)
	}
}

// phase returns a context for work that ends early when the control plane
// says stop or when the attempt's time is over, less what reporting needs. Its
// cause is errStopped or errDeadline then.
func (a *attempt) phase(live context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(live)
	done := make(chan struct{})
	by := a.clock.After(a.spec.EndDeadline.Add(-a.opt.pace.report).Sub(a.clock.Now()))
	go func() {
		defer close(done)
		for {
			stop, _, changed := a.orders.watch()
			if stop {
				cancel(errStopped)
				return
			}
			select {
			case <-changed:
			case <-by:
				cancel(fmt.Errorf("%w", errDeadline))
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		<-done
	}
}
