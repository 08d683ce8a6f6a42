// Package opencode is the harness adapter for OpenCode: one `opencode serve`
// inside the sandbox, spoken to over HTTP through commands that connect to its
// loopback. Prompts come in and become messages of one conversation, which a
// working agent takes up with its next step; its tool calls and what it says go
// out as events.
//
// OpenCode's start is seconds of CPU. So it is started at once, in a home of its
// own, and primed with a prompt that the gateway answers itself, while the
// repository is still on its way. It reads nothing of the repository's own
// configuration, and asks nobody but the gateway (see launch.sh and guard.js).
//
// What cannot be prevented: an AGENTS.md or CONTEXT.md beneath the repository's
// top directory is shown to the model beside a file that is read there, as part
// of that tool's output; a file .git/opencode is written; and whatever runs in
// the sandbox has the same user as OpenCode and could speak to its server.
package opencode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"inspect/envs/harness"
	"inspect/envs/harness/tell"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Harness starts the program "opencode", which is looked up inside the sandbox.
// The zero Clock is the system's.
type Harness struct {
	Clock proc.Clock
}

var _ harness.Harness = Harness{}

// errUnresponsive is why a server is ended that does not answer.
var errUnresponsive = errors.New("it does not answer")

// Boot starts and primes the server.
func (h Harness) Boot(ctx context.Context, sb harness.Sandbox, in harness.Input, events func(harness.Event)) (harness.Session, error) {
	if in.Model == "" || in.Gateway == "" {
		return nil, errors.New("opencode needs a model: name one with harness.model")
	}
	if in.API == "" {
		in.API = wire.APIChat
	}
	if packages[in.API] == "" {
		return nil, fmt.Errorf("opencode does not speak the %q API", in.API)
	}
	clock := h.Clock
	if clock == nil {
		clock = proc.System()
	}
	going, interrupt := context.WithCancelCause(ctx)
	s := &session{
		clock: clock, interrupt: interrupt,
		tell: tell.New(tell.Options{
			Clock: clock, Redact: in.Redact, Limit: in.OutputBytes, Dir: in.Dir, Events: events,
		}),
		ready: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	w := &worker{
		session: s, events: make(chan *event, 64), quiet: map[string]bool{},
		start: &starter{sb: sb, in: in, clock: clock, password: rand.Text()},
	}
	go s.live(ctx, going, w)
	return s, nil
}

// prompt is one that was given to the session, or a notice.
type prompt struct {
	n            int
	text, author string
	notice       bool
	reached      chan bool // of a notice; buffered
	id           string    // of its message
	done         bool
}

type session struct {
	clock     proc.Clock
	tell      *tell.Teller
	interrupt context.CancelCauseFunc
	ready     chan struct{}
	done      chan struct{}
	wake      chan struct{}  // something waits
	result    harness.Result // set before done is closed

	mu      sync.Mutex
	prompts []*prompt // all
	waiting []*prompt // not posted; notices too
	open    int       // of prompts, not done
	closed  bool      // no further one is taken
}

// live is the session's whole life.
func (s *session) live(life, going context.Context, w *worker) {
	defer close(s.done)
	defer s.interrupt(errStopped)
	begun := s.clock.Now()
	err := w.work(life, going)

	s.mu.Lock()
	s.closed = true
	s.dropWaiting()
	r := s.resultOf(w, err)
	s.mu.Unlock()
	s.markReady()
	r.Duration = s.clock.Now().Sub(begun)
	s.tell.Close()
	r.Tail, r.Truncated = s.tell.Tail(), s.tell.Truncated()
	s.result = r
}

// resultOf says what the end means. s.mu is held.
func (s *session) resultOf(w *worker, err error) harness.Result {
	r := harness.Result{}
	why := ""
	var missing *missingError
	var boot *bootError
	var fail *failure
	switch {
	case err == nil:
	case errors.As(err, &missing):
		r.ExitCode, r.Missing = -1, s.tell.Words(missing.words)
		why = "OpenCode could not be started: " + r.Missing
	case errors.As(err, &boot):
		r.ExitCode, r.Failed = -1, s.tell.Words(boot.Error())
	case errors.As(err, &fail):
		r.Failed = s.tell.Words(fail.words)
	case errors.Is(err, errInterrupted) && !errors.Is(err, stream.ErrEnded) && !errors.Is(err, stream.ErrUnresponsive):
		r.Failed = "OpenCode was stopped before it was done"
	default:
		r.ExitCode, r.Err = -1, err
		why = "OpenCode ended before it was done"
	}
	if why == "" {
		why = r.Failed
	}
	for _, p := range s.prompts {
		if !p.done {
			s.tell.Prompt(wire.Prompted{Prompt: p.n, Author: p.author, Done: true, Failed: why})
		}
	}
	return r
}

// dropWaiting answers notices that nobody will hand on. s.mu is held.
func (s *session) dropWaiting() {
	for _, p := range s.waiting {
		if p.notice {
			p.reached <- false
		}
	}
	s.waiting = nil
}

func (s *session) markReady() {
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// next takes what waits longest.
func (s *session) next() *prompt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil
	}
	p := s.waiting[0]
	s.waiting = s.waiting[1:]
	return p
}

// markDone tells that a prompt was worked on.
func (s *session) markDone(p *prompt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.done {
		return
	}
	p.done = true
	s.open--
	s.tell.Prompt(wire.Prompted{Prompt: p.n, Author: p.author, Done: true})
}

// closeIfDone takes no further prompt if all are done.
func (s *session) closeIfDone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open > 0 {
		return false
	}
	s.closed = true
	return true
}

func (s *session) Ready() <-chan struct{} { return s.ready }
func (s *session) Done() <-chan struct{}  { return s.done }

func (s *session) Prompt(_ context.Context, p harness.Prompt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return harness.ErrOver
	}
	given := &prompt{n: len(s.prompts) + 1, text: p.Text, author: p.Author}
	s.prompts = append(s.prompts, given)
	s.open++
	told := wire.Prompted{Prompt: given.n, Author: p.Author}
	if given.n > 1 {
		told.Text = p.Text // the first is known: it is the session's
	}
	s.tell.Prompt(told)
	s.add(given)
	return nil
}

// add has something handed on. s.mu is held.
func (s *session) add(p *prompt) {
	s.waiting = append(s.waiting, p)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) Notify(ctx context.Context, text string) bool {
	n := &prompt{text: text, notice: true, reached: make(chan bool, 1)}
	s.mu.Lock()
	select {
	case <-s.ready:
	default:
		s.mu.Unlock()
		return false
	}
	if s.closed || s.open == 0 {
		s.mu.Unlock()
		return false
	}
	s.add(n)
	s.mu.Unlock()
	select {
	case reached := <-n.reached:
		return reached
	case <-s.done:
		return false
	case <-ctx.Done():
		return false
	}
}

func (s *session) Interrupt() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.interrupt(errInterrupted)
}

func (s *session) Wait() harness.Result {
	<-s.done
	return s.result
}
