package runner

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"inspect/envs/harness"
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
	cutBudget       // the model gateway refused for lack of money
)

// work gives the agent its prompt and waits until it ends, is told to, or its
// time or money is over. In the meantime its committed work is uploaded at the
// end of each turn and about once a minute. It returns when the agent is gone;
// if it would not go, the sandbox is closed.
func (a *attempt) work(live context.Context, b *box, s *agent, prompt string) (harness.Result, cut) {
	ctx, cancel := context.WithCancel(live)
	defer cancel()
	begun := a.clock.Now()
	if err := s.Prompt(ctx, harness.Prompt{Text: prompt}); err != nil {
		a.log.Info("the agent did not take its prompt", "error", err) // how it ended says why
	}

	turns := a.clock.NewTicker(a.opt.pace.turn)
	defer turns.Stop()
	time80 := a.clock.After(a.workTime(begun) / 5 * 4)
	var (
		why      cut
		kill     <-chan time.Time
		deadline = a.clock.After(a.workTime(begun))
		turn     chan string // the tip of a turn that is being taken
		again    bool        // a turn ended while another was taken
		answered bool        // it ended with a prompt
		lastTip  string
		warned   bool // of the budget
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
	take := func() {
		if turn != nil {
			again = true
			return
		}
		if why == cutNot {
			done := answered
			again, answered, turn = false, false, make(chan string, 1)
			go func() { turn <- a.takeTurn(ctx, b, lastTip, done) }()
		}
	}
	for over := false; !over; {
		stop, finish, changed := a.orders.watch()
		nearly, spent, paid := a.money.look()
		a.givePrompts(ctx, s)
		switch {
		case stop && why != cutStop:
			interrupt(cutStop)
		case finish:
			interrupt(cutFinish)
		case spent && why == cutNot:
			interrupt(cutBudget)
		case nearly && !warned && why == cutNot:
			warned = true
			a.warn(ctx, s, harness.WrapUpBudget)
		}
		select {
		case <-s.Done():
			over = true
		case <-changed:
		case <-paid:
		case <-time80:
			if why == cutNot {
				a.warn(ctx, s, harness.WrapUpTime)
			}
		case <-deadline:
			interrupt(cutDeadline)
		case <-kill:
			kill = nil
			a.log.Info("the agent does not stop, ending its sandbox")
			b.close()
		case <-s.turns:
			answered = true
			take()
		case <-turns.C():
			take()
		case lastTip = <-turn:
			if turn = nil; again {
				take()
			}
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
	if _, spent, _ := a.money.look(); spent && why == cutNot && !res.OK() {
		why = cutBudget // it ended for it before we had asked
	}
	if res.Err == nil && live.Err() == nil {
		b.unlock(live)
	}
	line := strings.Join(a.spec.Harness.Command, " ")
	if line == "" {
		line = a.spec.Harness.Kind
	}
	a.events.add(wire.EventCommand, wire.Command{
		Step: "harness", Line: a.events.text(line, 1<<10),
		ExitCode: res.ExitCode, Signal: res.Signal, Duration: a.clock.Now().Sub(begun), // without its start, which went on beside ours
		Output: a.events.text(res.Tail, tailBytes), Error: a.events.text(harnessTrouble(res), maxWords),
	})
	return res, why
}

// warn tells an agent at work that its means are nearly used up.
func (a *attempt) warn(ctx context.Context, s harness.Session, words string) {
	go func() { // an agent may take its time to listen
		if s.Notify(ctx, words) {
			a.events.note("The agent was told: %s", words)
		} else if ctx.Err() == nil {
			a.events.note("The agent could not be told that its means are nearly used up.")
		}
	}()
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
	case r.Failed != "":
		return r.Failed
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
// Without any since the last time it is a turn if a prompt was answered. Trouble
// is not told: the next turn or the end tries again.
func (a *attempt) takeTurn(ctx context.Context, b *box, last string, answered bool) string {
	ctx, cancel := proc.WithTimeout(ctx, a.clock, a.opt.pace.git)
	defer cancel()
	tip, bun, err := b.turn(ctx, last)
	if err != nil || bun.path == "" {
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the work so far could not be taken", "error", err)
		}
		if err == nil && answered && ctx.Err() == nil {
			a.keepTurn(ctx, a.up.unchanged(cmp.Or(last, a.spec.BaseSHA)))
		}
		return last
	}
	a.keepTurn(ctx, a.up.bundle(bun, tip, false))
	return tip
}

// keepTurn has the node keep the clone as it is after a turn, if it can. The
// work goes on meanwhile, and whatever comes of it.
func (a *attempt) keepTurn(ctx context.Context, turn int) {
	if a.turnsOver {
		return
	}
	ctx, cancel := proc.WithTimeout(ctx, a.clock, a.opt.pace.keepTurn)
	defer cancel()
	err := a.node.KeepTurn(ctx, a.spec.WorkGrant, turn)
	var refused *wire.Error
	switch {
	case err == nil || ctx.Err() != nil && context.Cause(ctx) == context.Canceled:
	case errors.As(err, &refused) && (refused.Code == "unsupported" || refused.Code == "unauthorized"):
		a.turnsOver = true // by this store or for this session
	case errors.As(err, &refused) && refused.Code == "too_large":
		a.turnsOver = true
		a.events.note("Turn %d and later ones cannot be returned to: %v.", turn, err)
	default:
		a.events.note("The state after turn %d was not kept, so it cannot be returned to: %v.", turn, err)
	}
}
