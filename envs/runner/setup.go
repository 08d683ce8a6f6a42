package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// setupTail is what is shown of a step that failed, in bytes.
const setupTail = 1 << 10

// setupError is a step of setup that failed, in words for people.
type setupError struct{ words string }

func (e *setupError) Error() string { return e.words }

// errSetup is the error of a verification that did not get past setup.
type errSetup struct {
	error
	outcome wire.Outcome
}

// setupReachesMore says whether setup may reach what the agent may not.
func (a *attempt) setupReachesMore() bool {
	return slices.ContainsFunc(a.spec.SetupEgress, func(host string) bool { return !slices.Contains(a.spec.Egress, host) })
}

// setupAgain runs the steps of setup that the drift made necessary, in b or, if
// they may reach more than what comes after them, in a sandbox of their own
// while b is closed. It returns the sandbox to go on with, or to close.
func (a *attempt) setupAgain(ctx, live context.Context, b *box) (*box, error) {
	if len(a.rerun) == 0 {
		return b, nil
	}
	own := a.setupReachesMore()
	if own {
		b.close()
		next, err := a.openFor(ctx, b.purpose, a.spec.SetupEgress)
		if err != nil {
			return b, err
		}
		b = next
		b.withoutModel()
		a.serveWays(live, b)
	}
	if err := b.runSetup(ctx, a.rerun); err != nil {
		return b, err
	}
	// Tracked files are as committed, whatever the steps made of them.
	if err := b.checkout(ctx, a.spec.BaseSHA); err != nil || !own {
		return b, err
	}
	b.close()
	next, err := a.open(ctx, b.purpose)
	if err != nil {
		return b, err
	}
	a.serveWays(live, next)
	return next, nil
}

// runSetup runs steps one after the other. One that fails is a *setupError.
func (b *box) runSetup(ctx context.Context, steps []wire.Step) error {
	for i, s := range steps {
		if err := b.setupStep(ctx, fmt.Sprintf("%d of %d", i+1, len(steps)), strconv.Itoa(i)+"-setup", s); err != nil {
			return err
		}
	}
	return nil
}

// setupStep runs one step, apart if it has secrets; place is its name then.
func (b *box) setupStep(ctx context.Context, which, place string, s wire.Step) error {
	a := b.a
	what := "setup step " + which
	at := services.Apart{Sandbox: b.sb, Close: func() {}}
	if len(s.Secrets) > 0 {
		var err error
		if at, err = b.apart(ctx, place, what, s.Secrets); err != nil {
			return err
		}
	}
	defer at.Close()
	argv := []string{"sh", "-c", s.Run}
	if len(a.spec.Services) > 0 {
		argv = services.Shell(s.Run)
	}
	tail := &proc.Tail{N: tailBytes}
	begun := a.clock.Now()
	most, cancel := ctx, context.CancelFunc(func() {})
	if b.purpose == wire.PurposeWork { // the agent's time, of which none would be left
		most, cancel = proc.WithTimeout(ctx, a.clock, max(a.spec.WorkDeadline.Sub(begun), 0))
	}
	defer cancel()
	exit, err := at.Run(most, stream.Exec{Argv: argv, Env: at.Env, Dir: a.places().workspace, Stdout: tail, Stderr: tail})
	ev := wire.Command{
		Step: "setup", Line: a.events.text(s.Run, 1<<10), ExitCode: exit.Code, Signal: exit.Signal,
		Duration: a.clock.Now().Sub(begun), Output: a.events.text(string(tail.Bytes()), tailBytes),
	}
	if err != nil || exit.Signal != "" {
		ev.ExitCode = -1
	}
	if err != nil {
		ev.Error = a.events.text(err.Error(), maxWords)
	}
	a.events.add(wire.EventCommand, ev)
	var cannot *stream.StartError
	how := ""
	switch {
	case errors.As(err, &cannot):
		how = "could not be started: " + cannot.Words
	case err != nil && most.Err() != nil && ctx.Err() == nil:
		how = "was not done before the agent's time was over"
	case err != nil:
		return err
	case exit.Signal != "":
		how = "was ended by " + exit.Signal
	case exit.Code != 0:
		how = fmt.Sprintf("failed with exit status %d", exit.Code)
	default:
		return nil
	}
	last := strings.TrimSpace(redact.Tail(a.events.text(string(tail.Bytes()), tailBytes), setupTail))
	return &setupError{strings.TrimSpace(fmt.Sprintf("%s, %s, which ran again because of changed dependencies, %s\n%s", what, a.events.text(s.Run, maxLineShown), how, last))}
}

// setupTrouble is the outcome of setup that could not be run again: what the
// repository wants there is for its people to mend.
func (a *attempt) setupTrouble(ctx context.Context, b *box, when string, err error) wire.Outcome {
	_, limit := limitOf(b.close(), a.spec.Limits)
	var bad *setupError
	if ctx.Err() != nil || !errors.As(err, &bad) && (!isGone(err) || limit == "") {
		return a.trouble(ctx, wire.ReasonSetup, err)
	}
	words := limit
	if bad != nil {
		words = sentence(bad)
		if limit != "" {
			words = limit + " " + words
		}
	}
	return wire.Outcome{Kind: wire.OutcomeFailed, Reason: wire.ReasonSetup, Words: "Setup failed " + when + ": " + words}
}
