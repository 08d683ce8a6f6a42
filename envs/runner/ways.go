package runner

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"

	"inspect/envs/egress"
	"inspect/envs/gateway"
	"inspect/envs/spec"
	"inspect/envs/wire"
)

// money is what the model gateway told of the session's budget.
type money struct {
	mu            sync.Mutex
	budget, spent int64
	over          bool
	changed       chan struct{} // closed and replaced on every change
}

func newMoney() *money { return &money{changed: make(chan struct{})} }

func (m *money) told(budget, spent int64, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if budget == m.budget && spent == m.spent && (!over || m.over) {
		return
	}
	m.budget, m.spent, m.over = budget, spent, m.over || over
	close(m.changed)
	m.changed = make(chan struct{})
}

// raise takes a higher budget. That the old one was used up has had its effect.
func (m *money) raise(budget int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget = max(m.budget, budget); !m.over {
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// look tells whether most of the budget, or all of it, is used up.
func (m *money) look() (nearly, over bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.budget > 0 && m.spent >= m.budget/5*4, m.over, m.changed
}

// words are what is spent of the budget, in brackets, if it is known.
func (m *money) words() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%s of %s are spent)", spec.Money(m.spent), spec.Money(m.budget))
}

// opened are the hosts that were allowed while the attempt runs, and the proxies
// that must know of them. Both only grow; a proxy that has ended takes no harm.
type opened struct {
	mu      sync.Mutex
	hosts   []string
	proxies []*egress.Proxy
}

// allowHost opens a further host for all that runs now and later.
func (a *attempt) allowHost(host string) {
	a.opened.mu.Lock()
	defer a.opened.mu.Unlock()
	for _, p := range a.opened.proxies {
		if err := p.Allow(host); err != nil {
			a.events.note("The host %s cannot be allowed: %v.", host, err)
			return
		}
	}
	a.opened.hosts = append(a.opened.hosts, host)
	if len(a.opened.proxies) == 0 {
		a.events.note("The host %s is allowed, but this attempt was started without a way to the network; the next one has it.", host)
		return
	}
	a.events.note("The host %s is allowed from now on.", host)
}

// serveWays serves what the sandbox's ways out lead to, until it is closed.
func (a *attempt) serveWays(live context.Context, b *box) {
	ctx, cancel := context.WithCancel(live)
	b.shut = cancel
	if l := b.ways[wire.SocketModel]; l != nil {
		door := gateway.NewDoor(gateway.DoorOptions{
			Control: a.opt.ControlURL, Header: a.control.sign, Transport: a.opt.HTTP,
			Clock: a.clock, Log: a.log, OnBudget: a.money.told,
		})
		b.serving.Go(func() {
			if err := door.Serve(ctx, l); err != nil && ctx.Err() == nil {
				a.log.Error("the way to the model is closed", "error", err)
			}
		})
	}
	if l := b.ways[wire.SocketEgress]; l != nil && b.proxy != nil {
		b.serving.Go(func() {
			if err := b.proxy.Serve(ctx, l); err != nil && ctx.Err() == nil {
				a.log.Error("the egress proxy ended", "error", err)
			}
		})
	}
}

// newProxy makes the egress proxy of one sandbox that may reach certain hosts;
// nil: there are none. The secrets it adds are asked for anew, and are nowhere
// but in its memory.
func (a *attempt) newProxy(ctx context.Context, allow []string) (*egress.Proxy, error) {
	if len(allow) == 0 {
		return nil, nil
	}
	var inject []egress.Credential
	if len(a.spec.Inject) > 0 {
		values, err := a.control.secrets(ctx, egress.SecretNames(a.spec.Inject))
		if err != nil {
			return nil, secretRefused(err)
		}
		if inject, err = egress.Credentials(a.spec.Inject, values); err != nil {
			return nil, errSecret{err}
		}
	}
	p, err := a.proxyWith(allow, inject)
	if err != nil && len(inject) > 0 {
		err = errSecret{err}
	}
	return p, err
}

func (a *attempt) proxyWith(allow []string, inject []egress.Credential) (*egress.Proxy, error) {
	_, noise, err := a.adapter()
	if err != nil {
		return nil, err
	}
	opt := egress.Options{Allow: allow, Internal: a.spec.Internal, Inject: inject, Noise: noise, Meter: a.meter, Log: a.log, Decide: func(e wire.Egress) {
		e.Noise = e.Noise && ownDoing(a.spec.Harness.Kind, e.Command)
		e.Command = a.events.text(e.Command, 1<<10)
		a.events.add(wire.EventEgress, e)
	}}
	if a.opt.egress != nil {
		a.opt.egress(&opt)
	}
	p, err := egress.New(opt)
	if err != nil {
		return nil, err
	}
	a.opened.mu.Lock()
	defer a.opened.mu.Unlock()
	for _, host := range a.opened.hosts {
		if err := p.Allow(host); err != nil {
			return nil, err
		}
	}
	a.opened.proxies = append(a.opened.proxies, p)
	return p, nil
}

// ownDoing says whether it was the agent program itself that asked, and not
// something it was told to run.
func ownDoing(kind, command string) bool {
	program, _, _ := strings.Cut(command, " ")
	return program == "" || path.Base(program) == kind
}
