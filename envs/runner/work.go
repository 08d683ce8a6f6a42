package runner

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/command"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// cut is why the agent was ended before it ended by itself.
type cut int

const (
	cutNot      cut = iota
	cutStop         // a stop directive
	cutFinish       // a finish directive: what there is is the result
	cutDeadline     // Spec.WorkDeadline
)

// adapter is the harness the spec names.
func (a *attempt) adapter() (harness.Harness, error) {
	switch h := a.spec.Harness; h.Kind {
	case "command":
		return command.Harness{Argv: h.Command, Clock: a.clock}, nil
	default:
		return nil, fmt.Errorf("harness %q is not supported yet", h.Kind)
	}
}

// label is how the agent is called to people.
func (a *attempt) label() string {
	if l := a.spec.Harness.Label; l != "" {
		return l
	}
	return a.spec.Harness.Kind
}

// work runs the agent until it ends, is told to, or its time is over. In the
// meantime its committed work is uploaded about once a minute. It returns when
// the agent is gone; if it would not go, the sandbox is closed.
func (a *attempt) work(live context.Context, b *box) (harness.Result, cut, error) {
	ctx, cancel := context.WithCancel(live)
	defer cancel()
	h, err := a.adapter()
	if err != nil {
		return harness.Result{}, cutNot, err
	}
	begun := a.clock.Now()
	s, err := h.Start(ctx, b.sb, a.input(), func(e harness.Event) { a.events.add(e.Kind, e.Data) })
	if err != nil {
		return harness.Result{}, cutNot, err
	}

	turns := a.clock.NewTicker(a.opt.pace.turn)
	defer turns.Stop()
	var (
		why      cut
		kill     <-chan time.Time
		deadline = a.clock.After(a.workTime(begun))
		turn     chan string // the tip of a turn that is being taken
		lastTip  string
	)
	interrupt := func(c cut) {
		if why != cutNot {
			if c == cutStop {
				why = c
			}
			return
		}
		why = c
		s.Interrupt()
		kill = a.clock.After(a.patience())
	}
	for over := false; !over; {
		stop, finish, changed := a.orders.watch()
		a.givePrompts(ctx, s)
		switch {
		case stop && why != cutStop:
			interrupt(cutStop)
		case finish:
			interrupt(cutFinish)
		}
		select {
		case <-s.Done():
			over = true
		case <-changed:
		case <-deadline:
			interrupt(cutDeadline)
		case <-kill:
			kill = nil
			a.log.Info("the agent does not stop, ending its sandbox")
			b.close()
		case <-turns.C():
			if turn == nil && why == cutNot {
				turn = make(chan string, 1)
				go func() { turn <- a.takeTurn(ctx, b, lastTip) }()
			}
		case lastTip = <-turn:
			turn = nil
		case <-ctx.Done():
			b.close()
			<-s.Done()
			over = true
		}
	}
	cancel()
	if turn != nil {
		<-turn
	}
	res := s.Wait()
	if res.Err == nil && live.Err() == nil {
		b.unlock(live)
	}
	a.events.add(wire.EventCommand, wire.Command{
		Step: "harness", Line: a.events.text(strings.Join(a.spec.Harness.Command, " "), 1<<10),
		ExitCode: res.ExitCode, Signal: res.Signal, Duration: res.Duration,
		Output: a.events.text(res.Tail, tailBytes), Error: a.events.text(harnessTrouble(res), maxWords),
	})
	return res, why, nil
}

// unlock gives the clone's two directories back to their owner, should the
// agent have closed them: the next sandbox could not start over them.
func (b *box) unlock(ctx context.Context) {
	p := b.a.places()
	_, err := b.run(ctx, call{argv: []string{"chmod", "u+rwx", p.workspace, p.home}, dir: "/", wait: 5 * time.Second})
	if err != nil && !isGone(err) {
		b.a.log.Warn("the clone's directories could not be opened", "error", err)
	}
}

func harnessTrouble(r harness.Result) string {
	switch {
	case r.Missing != "":
		return r.Missing
	case r.Err != nil:
		return r.Err.Error()
	}
	return ""
}

// patience is how long an interrupted agent may take to end. Of a stop's grace
// the larger part is for taking and uploading its work.
func (a *attempt) patience() time.Duration {
	p := a.opt.pace.interrupt
	if stop, by := a.orders.stopped(); stop != nil {
		p = min(p, by.Sub(a.clock.Now())/4)
	}
	return max(p, 0)
}

// takeTurn uploads the committed work of an agent at work and returns its tip.
// Trouble is not told: the next turn or the end tries again.
func (a *attempt) takeTurn(ctx context.Context, b *box, last string) string {
	ctx, cancel := proc.WithTimeout(ctx, a.clock, a.opt.pace.git)
	defer cancel()
	tip, bun, err := b.turn(ctx, last)
	if err != nil || bun.path == "" {
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the work so far could not be taken", "error", err)
		}
		return last
	}
	a.up.bundle(bun, tip, false)
	return tip
}

// input is what the agent is started with.
func (a *attempt) input() harness.Input {
	s, p := a.spec, a.places()
	env := append(a.identity(),
		"INSPECT_SESSION="+s.Session,
		"INSPECT_GENERATION="+strconv.Itoa(s.Generation),
		"INSPECT_REPOSITORY="+s.Repository,
		"INSPECT_BASE_BRANCH="+s.BaseBranch,
		"INSPECT_BASE_SHA="+s.BaseSHA,
		"GIT_CONFIG_GLOBAL="+p.scratch()+"/gitconfig-agent",
		"GIT_TERMINAL_PROMPT=0",
	)
	return harness.Input{
		Prompt: s.Prompt, Dir: p.workspace, Home: p.home, Env: env, Model: s.Harness.Model,
		OutputBytes: s.Limits.OutputBytes, Redact: a.red,
	}
}

// workTime is how long the agent may work from now on: what the repository
// allows, and never beyond the attempt's own deadline.
func (a *attempt) workTime(now time.Time) time.Duration {
	left := a.spec.WorkDeadline.Sub(now)
	if most := a.spec.Limits.Timeout; most > 0 {
		left = min(left, most)
	}
	return left
}
