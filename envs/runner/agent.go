package runner

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/claude"
	"inspect/envs/harness/codex"
	"inspect/envs/harness/command"
	"inspect/envs/harness/opencode"
	"inspect/envs/sandbox"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// agent is the harness at work and what we know of it meanwhile.
type agent struct {
	harness.Session
	end   context.CancelFunc // of everything that was started for it
	turns chan struct{}      // told, without waiting, when a prompt is done

	mu    sync.Mutex
	calls int64 // tool calls seen
}

// adapter is the harness the spec names, and which hosts it contacts of its own.
func (a *attempt) adapter() (harness.Harness, func(host string, port int) bool, error) {
	none := func(string, int) bool { return false }
	switch h := a.spec.Harness; h.Kind {
	case spec.HarnessOpenCode:
		return opencode.Harness{Clock: a.clock}, opencode.Noise, nil
	case spec.HarnessCodex:
		return codex.Harness{Clock: a.clock}, codex.Noise, nil
	case spec.HarnessClaude:
		return claude.Harness{Clock: a.clock}, claude.Noise, nil
	case spec.HarnessCommand:
		return command.Harness{Argv: h.Command, Clock: a.clock}, none, nil
	default:
		return nil, none, fmt.Errorf("harness %q is not known to this runner; update it", h.Kind)
	}
}

// label is how the agent is called to people.
func (a *attempt) label() string {
	if l := a.spec.Harness.Label; l != "" {
		return l
	}
	return a.spec.Harness.Kind
}

// boot starts the agent beside the preparations. It lives until its sandbox is
// closed, live ends, or agent.end is called.
func (a *attempt) boot(live context.Context, b *box) (*agent, error) {
	h, _, err := a.adapter()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(live)
	ag := &agent{end: cancel, turns: make(chan struct{}, 1)}
	ag.Session, err = h.Boot(ctx, b.sb, a.input(b), func(e harness.Event) {
		a.events.said(e.Kind, e.Data)
		switch d := e.Data.(type) {
		case wire.Tool:
			ag.mu.Lock()
			ag.calls++
			ag.mu.Unlock()
		case wire.Prompted:
			if a.up.prompted(d); d.Done {
				select {
				case ag.turns <- struct{}{}:
				default:
				}
			}
		}
	})
	if err != nil {
		cancel()
		return nil, err
	}
	return ag, nil
}

// awaitReady waits until the agent could take a prompt, or has ended.
func (a *attempt) awaitReady(ctx context.Context, ag *agent) error {
	select {
	case <-ag.Ready():
		return nil
	case <-ag.Done():
		return nil // how is in its result
	case <-a.clock.After(a.opt.pace.boot):
		return fmt.Errorf("the agent (%s) was not ready within %s", a.label(), a.opt.pace.boot)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// input is what the agent is booted with.
func (a *attempt) input(b *box) harness.Input {
	s, p := a.spec, a.places()
	in := harness.Input{
		Dir: p.workspace, Home: p.home, Model: s.Harness.Model, API: s.Harness.API,
		OutputBytes: s.Limits.OutputBytes, Redact: a.red,
		Env: append(a.identity(),
			"INSPECT_SESSION="+s.Session,
			"INSPECT_GENERATION="+strconv.Itoa(s.Generation),
			"INSPECT_REPOSITORY="+s.Repository,
			"INSPECT_BASE_BRANCH="+s.BaseBranch,
			"INSPECT_BASE_SHA="+s.BaseSHA,
			"GIT_CONFIG_GLOBAL="+p.scratch()+"/gitconfig-agent",
			"GIT_TERMINAL_PROMPT=0",
		),
	}
	if b.ways[wire.SocketModel] != nil {
		in.Gateway = loopback(sandbox.ModelPort)
	}
	if b.ways[wire.SocketEgress] != nil {
		in.Proxy = loopback(sandbox.EgressPort)
	}
	return in
}

func loopback(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// workTime is how long the agent may work from now on: what the repository
// allows, and never beyond the attempt's own deadline.
func (a *attempt) workTime(now time.Time) time.Duration {
	left := a.spec.WorkDeadline.Sub(now)
	if most := a.spec.Limits.Timeout; most > 0 {
		left = min(left, most)
	}
	return left
}
