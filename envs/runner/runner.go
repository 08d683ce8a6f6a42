// Package runner supervises one attempt at a session, as the trusted process
// beside the sandbox: it proves who it is, learns what to do, has a clone
// restored, runs the agent in a sandbox over it, takes the work out, has it
// verified in a second clone and reports. A session, a generation and a one-time
// secret come in; events, artifacts, bundles and exactly one outcome go out.
//
// It runs no git and opens no file that an agent wrote: everything that touches
// a clone runs in a sandbox, and what comes out of one is bounded bytes. It has
// no credential but its own token, which lives in its memory. It waits for
// nothing without a bound, survives the absence of the control plane and of the
// node daemon, and ends quietly when a newer attempt has taken its place.
//
// The order of phases is in this file; each has its own file: sync, work, take,
// verify. control is the way to the control plane, with events, upload,
// heartbeat and directives on top of it; box is a sandbox; outcome decides.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"inspect/checks/redact"
	"inspect/envs/egress"
	"inspect/envs/proc"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// attempt is one attempt and everything that belongs to it.
type attempt struct {
	opt     Options
	clock   proc.Clock
	log     *slog.Logger
	red     *redact.Redactor
	control *control
	node    Node
	spool   *spool
	events  *eventLog
	up      *uploader
	orders  *orders
	spec    wire.Spec
	money   *money
	opened  opened
	meter   *egress.Meter // of all the attempt's proxies

	turnsOver  bool        // no further turn is kept; for the one goroutine that takes turns
	rerun      []wire.Step // of setup, because of the drift
	instructed string      // sha256 of the first prompt; set before the agent gets it

	storeTrouble atomic.Pointer[string] // what was wrong with the node's store, the first that was told

	mu       sync.Mutex
	phaseNow string
	logs     []wire.ServiceLog
}

// Run runs the attempt to its end. The error is nil when the outcome was
// accepted, whatever it says, and when the attempt was replaced by a newer one;
// it is the context's cause when ctx ended first, which ends the sandboxes and
// reports nothing.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	live, end := context.WithCancelCause(ctx)
	defer end(context.Canceled)
	log := o.Log.With("session", o.Session, "generation", o.Generation)
	red := redact.New(o.Secret)
	a := &attempt{opt: o, clock: o.Clock, log: log, red: red, node: o.Node, orders: newOrders(), money: newMoney()}
	if a.node == nil {
		a.node = daemon{socket: o.NodeSocket}
	}
	a.control = newControl(&a.opt, red, end)
	defer a.control.close()

	err := a.run(live)
	if errors.Is(err, ErrStale) || errors.Is(context.Cause(live), ErrStale) {
		log.Info("replaced by a newer attempt, ending")
		return nil
	}
	if err != nil && live.Err() != nil {
		return context.Cause(live)
	}
	return err
}

// run is the attempt from the secret to the outcome.
func (a *attempt) run(live context.Context) (err error) {
	if a.spool, err = openSpool(a.opt.Spool); err != nil {
		return err
	}
	defer func() {
		if rerr := a.spool.remove(); rerr != nil {
			a.log.Warn("the spool directory could not be removed", "error", rerr)
		}
	}()
	spec, err := a.introduce(live)
	if err != nil {
		return err
	}
	if a.spec, err = a.accept(spec); err != nil {
		return err
	}
	a.meter = egress.NewMeter(a.spec.Limits.EgressBytes)
	if a.events, err = openEventLog(a.spool, a.control, a.red, a.clock, a.log); err != nil {
		return err
	}
	defer a.events.close()
	a.up = newUploader(a.control, a.events)

	// Everything that goes on beside the phases ends with them.
	beside, stopBeside := context.WithCancel(live)
	var group errgroup.Group
	for _, f := range []func(context.Context) error{a.beat, a.listen, a.events.send, a.up.send} {
		group.Go(func() error { return f(beside) })
	}
	defer func() {
		stopBeside()
		_ = group.Wait() // none of them returns an error
		a.discard(live)
	}()

	outcome := a.phases(live)
	if live.Err() != nil {
		return context.Cause(live)
	}
	if trouble := a.storeTrouble.Load(); trouble != nil { // every sandbox has ended
		outcome = withoutStore(outcome, *trouble)
	}
	return a.report(live, outcome)
}

// introduce proves who we are and asks what there is to do. Nobody is served by
// a runner that waits for ever: the engine's deadline is not known to it yet.
func (a *attempt) introduce(live context.Context) (wire.Spec, error) {
	ctx, cancel := proc.WithTimeout(live, a.clock, a.opt.pace.overtime)
	defer cancel()
	if err := a.control.identify(ctx); err != nil {
		return wire.Spec{}, err
	}
	return a.control.spec(ctx)
}

// accept checks the spec, which decides everything, and fills in what it may
// leave out.
func (a *attempt) accept(s wire.Spec) (wire.Spec, error) {
	switch {
	case s.Session != a.opt.Session || s.Generation != a.opt.Generation:
		return s, fmt.Errorf("the control plane gave the spec of session %q, attempt %d", s.Session, s.Generation)
	case !isSHA(s.BaseSHA):
		return s, fmt.Errorf("the spec's base commit %q is not a commit id", s.BaseSHA)
	case s.WorkGrant == "" || s.VerifyGrant == "":
		return s, errors.New("the spec holds no grants for the node daemon")
	}
	now := a.clock.Now()
	if s.WorkDeadline.IsZero() {
		s.WorkDeadline = now.Add(max(s.Limits.Timeout, time.Minute))
	}
	if s.EndDeadline.IsZero() {
		s.EndDeadline = s.WorkDeadline.Add(30 * time.Minute)
	}
	return s, nil
}

// phases goes through the phases and returns what came of them. When live has
// ended the outcome is of no interest to anybody.
func (a *attempt) phases(live context.Context) wire.Outcome {
	ctx, done := a.phase(live)
	defer done()
	var times wire.Times
	end := func(o wire.Outcome) wire.Outcome {
		o.Times, o.Instructions = times, a.instructed
		return o
	}

	if _, _, err := a.adapter(); err != nil {
		return wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonHarnessMissing, Words: sentence(err)}
	}

	a.enter("restoring")
	begun := a.clock.Now()
	restored, err := a.restore(ctx, wire.PurposeWork)
	times.Restore = restored.Duration
	if err != nil {
		return end(a.trouble(ctx, "restore", err))
	}
	work, err := a.open(ctx, wire.PurposeWork)
	if err != nil {
		return end(a.trouble(ctx, "sandbox", err))
	}
	defer func() { work.close() }() // whichever it is then
	a.serveWays(live, work)

	// What the agent writes beside ours must not be in the way of this.
	if err := a.timed(&times.Sync, func() error { return work.prepare(ctx) }); err != nil {
		return end(a.trouble(ctx, wire.ReasonSync, err))
	}

	// The agent's own start takes longer than ours: it goes on beside it.
	ag, err := a.boot(live, work)
	if err != nil {
		return end(a.trouble(ctx, "harness", err))
	}
	defer func() { ag.end() }()
	err = a.timed(&times.Sync, func() error {
		if a.spec.Fork != nil {
			if err := work.goOn(ctx); err != nil {
				return err
			}
		} else if err := work.sync(ctx); err != nil {
			return err
		}
		return work.drift(ctx, cmp.Or(restored.Commit, a.spec.SnapshotCommit))
	})
	if err != nil {
		return end(a.trouble(ctx, wire.ReasonSync, err))
	}
	if len(a.rerun) > 0 && a.spec.Fork == nil {
		if a.setupReachesMore() {
			ag.end() // with its sandbox; it begins anew after setup
		}
		before := work
		if work, err = a.setupAgain(ctx, live, work); err != nil {
			return end(a.setupTrouble(ctx, work, "on the way to the session's commit", err))
		}
		if work != before {
			<-ag.Done()
			anew, err := a.boot(live, work)
			if err != nil {
				return end(a.trouble(ctx, "harness", err))
			}
			ag = anew
		}
	}
	var base baseline
	var prompt string
	err = a.timed(&times.Sync, func() error {
		if base, err = work.baseline(ctx); err != nil || a.spec.Fork != nil {
			return err
		}
		return work.resume(ctx)
	})
	if err == nil {
		prompt, err = a.instruct(ctx, work)
	}
	if err != nil {
		return end(a.trouble(ctx, wire.ReasonSync, err))
	}
	running, err := work.startServices(ctx, "session")
	if err != nil {
		return end(a.serviceTrouble(ctx, "before the agent came", err))
	}
	if err := a.awaitReady(ctx, ag); err != nil {
		return end(a.trouble(ctx, "harness", err))
	}
	times.Ready = a.clock.Now().Sub(begun)

	a.enter("working")
	e := ending{label: a.label(), limits: a.spec.Limits, workedBy: a.workTime(a.clock.Now())}
	_ = a.timed(&times.Work, func() error {
		e.result, e.why = a.work(live, work, ag, prompt)
		return nil
	})
	e.money = a.money.words()
	running.stop(ctx)
	e.end = work.close()
	if live.Err() != nil {
		return wire.Outcome{}
	}
	e.stop, _ = a.orders.stopped()
	a.givePrompts(live, nil)

	_ = a.timed(&times.Bundle, func() error {
		tctx, cancel := proc.WithTimeout(live, a.clock, a.takeTime())
		defer cancel()
		e.taken = a.take(tctx, base, e.end.DiskFull)
		return nil
	})
	o := a.keep(live, decide(e), e.taken)
	if o.Kind != "" || live.Err() != nil {
		return end(o)
	}

	a.enter("verifying")
	v, err := a.verify(ctx, e.taken, &times)
	a.givePrompts(live, nil)
	var service *services.Error
	var setup errSetup
	switch {
	case errors.As(err, &setup):
		o = setup.outcome
	case errors.As(err, &service):
		o = a.serviceTrouble(ctx, "with the change applied", err)
	case err != nil:
		o = a.trouble(ctx, "verify", err)
	default:
		o = a.afterVerify(ctx, v)
	}
	return end(a.keep(live, o, e.taken))
}

// takeTime is how long taking the work may take.
func (a *attempt) takeTime() time.Duration {
	now := a.clock.Now()
	d := a.spec.EndDeadline.Add(-a.opt.pace.report).Sub(now)
	if stop, by := a.orders.stopped(); stop != nil {
		d = by.Add(-2 * time.Second).Sub(now)
	}
	return min(max(d, 5*time.Second), 5*time.Minute)
}

// keep has the work uploaded, once, and puts where it is into the outcome. If
// it could not be taken, what was uploaded last while the agent worked counts.
func (a *attempt) keep(live context.Context, o wire.Outcome, t taken) wire.Outcome {
	if t.bundle.path != "" {
		o.Bundle, o.Tip = t.bundle.sha256, t.tip
	}
	if t.patch.path != "" {
		o.Patch = t.patch.sha256
	}
	if turn := a.up.result(t, a.spec.BaseSHA); turn > 0 {
		a.keepTurn(live, turn)
	}
	return o
}

// report brings everything to the control plane, the outcome last. It waits
// for a control plane that is away even beyond the attempt's time: what is not
// wanted any more is refused there.
func (a *attempt) report(live context.Context, o wire.Outcome) error {
	ctx, cancel := proc.WithTimeout(live, a.clock, a.spec.EndDeadline.Add(a.opt.pace.overtime).Sub(a.clock.Now()))
	defer cancel()
	if err := a.up.drain(ctx); err != nil {
		return fmt.Errorf("the work could not be uploaded: %w", err)
	}
	o = a.settle(o)
	// The outcome is what counts: events that take too long stay unsent.
	events, stop := proc.WithTimeout(ctx, a.clock, a.opt.pace.overtime/2)
	err := a.events.drain(events)
	stop()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the events could not be sent: %w", err)
	}
	if err != nil {
		a.log.Warn("not all events could be sent", "error", err)
	}
	if err := a.control.outcome(ctx, o); err != nil {
		return fmt.Errorf("the outcome (%s) could not be reported: %w", o.Kind, err)
	}
	a.log.Info("reported", "outcome", o.Kind, "reason", o.Reason)
	return nil
}

// settle corrects the outcome by what the control plane did not take, and
// makes its words fit to be shown.
func (a *attempt) settle(o wire.Outcome) wire.Outcome {
	if err := a.up.refusal(o.Bundle); o.Bundle != "" && err != nil {
		o.Bundle, o.Tip = "", ""
		if o.Kind == wire.OutcomeVerified {
			var we *wire.Error
			o.Kind, o.Reason, o.Words = wire.OutcomeInfrastructure, "upload", fmt.Sprintf("The result was not taken by the control plane: %v.", err)
			if errors.As(err, &we) && we.Code == "too_large" {
				o.Kind, o.Reason = wire.OutcomeFailed, wire.ReasonBundleTooLarge
			}
		}
	}
	if o.Bundle == "" {
		o.Bundle, o.Tip = a.up.lastBundle()
		if o.Kind == wire.OutcomeNoChange {
			o.Bundle, o.Tip = "", ""
		}
	}
	if a.up.refusal(o.Patch) != nil {
		o.Patch = ""
	}
	if a.up.refusal(o.Instructions) != nil {
		o.Instructions = ""
	}
	a.settleResults(o.Results)
	for _, c := range []*wire.Column{o.Base, o.BaseTests} {
		if c != nil {
			a.settleResults(c.Results)
		}
	}
	if a.mu.Lock(); a.spec.Compare {
		for _, l := range a.logs {
			if a.up.refusal(l.SHA256) == nil {
				o.ServiceLogs = append(o.ServiceLogs, l)
			}
		}
	}
	a.mu.Unlock()
	o.Words = a.events.text(o.Words, maxWords)
	return o
}

// settleResults takes out the files that were not taken.
func (a *attempt) settleResults(results []wire.VerifyResult) {
	for i := range results {
		r := &results[i]
		for _, sum := range []*string{&r.Stdout, &r.Stderr} {
			if a.up.refusal(*sum) != nil {
				*sum = ""
			}
		}
		for _, files := range [][]wire.ReportFile{r.Reports, r.CoverageFiles} {
			for k := range files {
				if a.up.refusal(files[k].SHA256) != nil {
					files[k].SHA256 = ""
				}
			}
		}
		a.settleResults(r.Again)
	}
}

// discard removes both clones, whatever became of the attempt.
func (a *attempt) discard(live context.Context) {
	ctx, cancel := proc.WithTimeout(context.WithoutCancel(live), a.clock, a.opt.pace.discard)
	defer cancel()
	for _, purpose := range []string{wire.PurposeWork, wire.PurposeVerify} {
		err := a.node.Discard(ctx, a.grant(purpose))
		var refused *wire.Error
		if errors.As(err, &refused) && refused.Code == "unauthorized" {
			a.log.Info("the clone is left to the control plane", "purpose", purpose)
		} else if err != nil {
			// The node daemon collects what nobody needs any more.
			a.log.Warn("a clone could not be discarded", "purpose", purpose, "error", err)
		}
	}
}

func (a *attempt) enter(phase string) {
	a.mu.Lock()
	a.phaseNow = phase
	a.mu.Unlock()
	a.events.add(wire.EventPhase, wire.Phase{Phase: phase})
	a.log.Info("phase", "phase", phase)
}

func (a *attempt) currentPhase() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.phaseNow
}

func (a *attempt) grant(purpose string) string {
	if purpose == wire.PurposeVerify {
		return a.spec.VerifyGrant
	}
	return a.spec.WorkGrant
}

func (a *attempt) places() places { return a.opt.places }

// timed adds what f takes to d.
func (a *attempt) timed(d *time.Duration, f func() error) error {
	begun := a.clock.Now()
	defer func() { *d += a.clock.Now().Sub(begun) }()
	return f()
}
