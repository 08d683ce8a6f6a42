// Package harnesstest is what the tests of the adapters share: a real sandbox
// with a way to a scripted model and one to a proxy that refuses everything, a
// stand-in for a sandbox on this machine, and a collector of events. It is
// imported by tests only.
package harnesstest

import (
	"context"
	"errors"
	"strings"
	"sync"

	"inspect/envs/harness"
	"inspect/envs/wire"
)

// Events collects what an adapter tells.
type Events struct {
	mu      sync.Mutex
	all     []harness.Event
	changed chan struct{} // closed and replaced at each event
}

// NewEvents returns an empty collector.
func NewEvents() *Events { return &Events{changed: make(chan struct{})} }

// Add is the callback for Boot.
func (c *Events) Add(e harness.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, e)
	close(c.changed)
	c.changed = make(chan struct{})
}

// All are the events so far.
func (c *Events) All() []harness.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]harness.Event(nil), c.all...)
}

// Await waits until an event fits.
func (c *Events) Await(ctx context.Context, fits func(harness.Event) bool) error {
	seen := 0
	for {
		c.mu.Lock()
		all, changed := c.all, c.changed
		c.mu.Unlock()
		for ; seen < len(all); seen++ {
			if fits(all[seen]) {
				return nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(errors.New("the event did not come"), context.Cause(ctx))
		}
	}
}

func of[T any](c *Events) (out []T) {
	for _, e := range c.All() {
		if d, ok := e.Data.(T); ok {
			out = append(out, d)
		}
	}
	return out
}

// Tools are the tool calls so far.
func (c *Events) Tools() []wire.Tool { return of[wire.Tool](c) }

// Prompts are the words about prompts so far.
func (c *Events) Prompts() []wire.Prompted { return of[wire.Prompted](c) }

// Messages are what the agent said so far, a line each.
func (c *Events) Messages() string {
	var b strings.Builder
	for _, m := range of[wire.Message](c) {
		b.WriteString(m.Text + "\n")
	}
	return b.String()
}

// Notes are the notes so far, a line each.
func (c *Events) Notes() string {
	var b strings.Builder
	for _, n := range of[wire.Note](c) {
		b.WriteString(n.Words + "\n")
	}
	return b.String()
}

// Output is what came on a stream so far.
func (c *Events) Output(stream string) string {
	var b strings.Builder
	for _, o := range of[wire.Output](c) {
		if o.Stream == stream {
			b.WriteString(o.Text)
		}
	}
	return b.String()
}
