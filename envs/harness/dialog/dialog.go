// Package dialog is the session with an agent program that is started once and
// speaks in lines of JSON on its standard input and output. A Program and a
// Speaker, which knows the program's protocol, come in; a harness.Session comes
// out. It sees to everything that does not depend on the protocol: the
// program's start and end, its prompts' order, bounds, and what its end means.
package dialog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"inspect/envs/harness"
	"inspect/envs/harness/tell"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

const (
	// prepareWait bounds Program.Prepare.
	prepareWait = time.Minute
	// startWait is how long a program may take to say its first word.
	startWait = 2 * time.Minute
	// closeWait is how long a program may take to end when its work is done. It
	// may write down its state meanwhile.
	closeWait = 30 * time.Second
	// failWait is the same for one that failed: it may be waiting to try again.
	failWait = 3 * time.Second
	// killAfter is when an interrupted program is killed if nobody does it sooner.
	killAfter = 15 * time.Second
	// maxLine bounds one line of the program's; longer ones are left out.
	maxLine = 1 << 20
	// maxUnread bounds what waits for the program to read it: all prompts fit, but
	// not answers without end to questions without end.
	maxUnread = 64 << 20
)

var (
	errInterrupted = errors.New("interrupted")
	errFinished    = errors.New("its work is done")
)

// Program is what is started, inside the sandbox.
type Program struct {
	Name string // how people call it: "Codex"
	Argv []string
	Env  []string
	Dir  string
	// Prepare is a shell script run before, with Args as $1, $2, … and Stdin.
	Prepare string
	Args    []string
	Stdin   string
	// Early starts the program at Boot and not at the first prompt. Then it is
	// the Speaker that says when the program is ready.
	Early bool
}

// Prompt is one that was given to the session.
type Prompt struct {
	N    int // from 1
	Text string

	author string
	done   bool
}

// Speaker knows a program's protocol. Its methods are called one at a time; they
// and nothing else may call the Talk they were made with. They must not wait.
type Speaker interface {
	// Begin is called when the program is started.
	Begin()
	// Hear is one line of the program's, a JSON object.
	Hear(line []byte)
	// Give hands on a prompt, in the order of their numbers, after Begin.
	Give(p *Prompt)
	// Notify hands on something that asks for no turn of its own. told is called
	// once, at any time, from within the Speaker, with whether it reached the agent.
	Notify(text string, told func(bool))
}

// Talk is what a Speaker may do.
type Talk struct{ s *session }

// Tell tells events.
func (t Talk) Tell() *tell.Teller { return t.s.tell }

// Clock is the session's.
func (t Talk) Clock() proc.Clock { return t.s.clock }

// Send writes v as one line to the program.
func (t Talk) Send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fail("it could not be told what to do: " + err.Error())
		return
	}
	if !t.s.feed.add(append(b, '\n')) {
		t.Fail("it does not read what it is told")
	}
}

// Ready says that the program could take a prompt.
func (t Talk) Ready() {
	select {
	case <-t.s.ready:
	default:
		close(t.s.ready)
	}
}

// Done says that a prompt was worked on. After the last one the program is ended.
func (t Talk) Done(p *Prompt) {
	if p.done || t.s.failed != "" {
		return
	}
	p.done = true
	t.s.open--
	t.s.tell.Prompt(wire.Prompted{Prompt: p.N, Author: p.author, Done: true})
	if t.s.open == 0 {
		t.s.finish(closeWait)
	}
}

// Fail ends the session: what was asked cannot be done, and words say why.
func (t Talk) Fail(words string) {
	if t.s.failed == "" && !t.s.closing && !t.s.stopped {
		t.s.failed = t.s.tell.Words(words)
		if t.s.failed == "" {
			t.s.failed = t.s.program.Name + " failed and did not say why"
		}
	}
	t.s.finish(failWait)
}

// Final tells whether asking the model again would meet the same refusal: the
// status is one of the client's faults and not of the moment's.
func Final(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

type session struct {
	sb      harness.Sandbox
	clock   proc.Clock
	program Program
	tell    *tell.Teller
	feed    *feed

	cancel context.CancelCauseFunc
	first  chan struct{} // closed at the first prompt
	ready  chan struct{}
	over   chan struct{} // closed when the program has ended
	done   chan struct{}
	wg     sync.WaitGroup // timers
	result harness.Result // set before done is closed

	mu       sync.Mutex
	speaker  Speaker
	begun    bool
	heard    bool
	prompts  []*Prompt
	open     int    // of prompts, not done
	closing  bool   // no further prompt is taken
	stopped  bool   // by Interrupt
	failed   string // by Fail
	nonsense bool   // people were told of it
}

// Boot returns the session, see harness.Harness. in's Env is put before
// program's.
func Boot(ctx context.Context, sb harness.Sandbox, in harness.Input, clock proc.Clock, events func(harness.Event), program Program, speaker func(Talk) Speaker) harness.Session {
	if clock == nil {
		clock = proc.System()
	}
	run, cancel := context.WithCancelCause(ctx)
	s := &session{
		sb: sb, clock: clock, program: program, cancel: cancel, feed: newFeed(maxUnread),
		tell: tell.New(tell.Options{
			Clock: clock, Redact: in.Redact, Limit: in.OutputBytes, Dir: in.Dir, Events: events,
		}),
		first: make(chan struct{}), ready: make(chan struct{}), over: make(chan struct{}), done: make(chan struct{}),
	}
	s.speaker = speaker(Talk{s})
	if !program.Early {
		close(s.ready)
	}
	s.program.Env = append(Environment(in), program.Env...)
	go s.live(run)
	return s
}

// Environment is in.Env and the way to the proxy, which nothing on the
// loopback is asked through.
func Environment(in harness.Input) []string {
	env := append([]string(nil), in.Env...)
	const local = "127.0.0.1,localhost,::1"
	env = append(env, "NO_PROXY="+local, "no_proxy="+local)
	if in.Proxy != "" {
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
			env = append(env, name+"="+in.Proxy)
		}
	}
	return env
}

// live is the session's whole life.
func (s *session) live(run context.Context) {
	defer close(s.done)
	begun := s.clock.Now()
	exit, err := s.play(run)
	close(s.over)
	s.wg.Wait()
	s.feed.end()
	s.cancel(errFinished)

	s.mu.Lock()
	s.closing = true
	Talk{s}.Ready()
	s.result = s.resultOf(exit, err)
	s.mu.Unlock()
	s.result.Duration = s.clock.Now().Sub(begun)
	s.tell.Close()
	s.result.Tail, s.result.Truncated = s.tell.Tail(), s.tell.Truncated()
}

// play starts the program and waits for its end.
func (s *session) play(run context.Context) (stream.Exit, error) {
	if !s.program.Early {
		select {
		case <-s.first:
		case <-run.Done():
			return stream.Exit{Code: -1}, context.Cause(run)
		}
	}
	if err := s.prepare(run); err != nil {
		return stream.Exit{Code: -1}, err
	}
	s.begin()
	out := &lines{line: s.hear, long: s.long}
	defer func() {
		// Never at once with the line that is heard: Run has returned.
		out.end()
	}()
	return s.sb.Run(run, stream.Exec{
		Argv: s.program.Argv, Env: s.program.Env, Dir: s.program.Dir,
		Stdin: s.feed, Stdout: out, Stderr: s.tell.Stream("stderr"),
		// An interrupt asks with SIGTERM; whoever asked kills if that is not
		// enough, so the grace here only has to be the longer one.
		Grace: killAfter,
	})
}

// prepare runs the program's script, which writes its configuration: nobody
// outside opens files in a clone that an agent may have written to.
func (s *session) prepare(run context.Context) error {
	if s.program.Prepare == "" {
		return nil
	}
	ctx, cancel := proc.WithTimeout(run, s.clock, prepareWait)
	defer cancel()
	said := &proc.Tail{N: 1 << 10}
	exit, err := s.sb.Run(ctx, stream.Exec{
		Argv:  append([]string{"sh", "-c", s.program.Prepare, "sh"}, s.program.Args...),
		Stdin: strings.NewReader(s.program.Stdin), Stdout: said, Stderr: said,
	})
	switch {
	case err != nil:
		return err
	case exit.Code != 0 || exit.Signal != "":
		return &prepareError{strings.TrimSpace(string(said.Bytes()))}
	}
	return nil
}

// prepareError is a script that failed.
type prepareError struct{ words string }

func (e *prepareError) Error() string { return "its configuration could not be written: " + e.words }

// begin hands over what waits. The program may not run yet; it reads later.
func (s *session) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
	s.speaker.Begin()
	for _, p := range s.prompts {
		s.speaker.Give(p)
	}
	s.after(startWait, func() {
		if !s.heard && !s.closing {
			Talk{s}.Fail(fmt.Sprintf("%s did not say a word within %s", s.program.Name, startWait))
			s.cancel(errFinished)
		}
	})
}

// after calls f once, d from now, with s.mu held, unless the program has ended.
func (s *session) after(d time.Duration, f func()) {
	timer := s.clock.After(d)
	s.wg.Go(func() {
		select {
		case <-timer:
			s.mu.Lock()
			defer s.mu.Unlock()
			f()
		case <-s.over:
		}
	})
}

// finish asks the program to end, by the end of its input, and sees to it after
// a while. s.mu is held.
func (s *session) finish(after time.Duration) {
	if s.closing {
		return
	}
	s.closing = true
	s.feed.end()
	s.after(after, func() { s.cancel(errFinished) })
}

func (s *session) hear(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(line) == 0 {
		return
	}
	if line[0] != '{' || !json.Valid(line) {
		if !s.nonsense {
			s.nonsense = true
			s.tell.Note(s.program.Name + " printed something that is not of its protocol; it is shown as output.")
		}
		_, _ = s.tell.Stream("stdout").Write(append(line, '\n'))
		return
	}
	s.heard = true
	s.speaker.Hear(line)
}

func (s *session) long(int) {
	s.tell.Note(fmt.Sprintf("%s printed a line of more than %d MiB; it was left out.", s.program.Name, maxLine>>20))
}

// resultOf says what the program's end means. s.mu is held.
func (s *session) resultOf(exit stream.Exit, err error) harness.Result {
	r := harness.Result{ExitCode: exit.Code, Signal: exit.Signal}
	var start *stream.StartError
	var prepared *prepareError
	finished := s.failed == "" && s.open == 0 && len(s.prompts) > 0
	switch {
	case errors.As(err, &start):
		r.ExitCode, r.Signal, r.Missing = -1, "", harness.Clean(start.Words)
	case errors.As(err, &prepared):
		r.ExitCode, r.Failed = -1, s.tell.Words(s.program.Name+" could not be started: "+prepared.Error())
	case errors.Is(err, stream.ErrEnded), errors.Is(err, stream.ErrUnresponsive):
		r.ExitCode, r.Err = -1, err
	case errors.Is(err, errInterrupted):
		if r.Failed = s.failed; r.Failed == "" && !finished {
			r.Failed = s.program.Name + " was stopped before it was done"
		}
	case err == nil, errors.Is(err, errFinished):
		r.Failed = s.failed
		switch {
		case finished, r.Failed != "" && err != nil:
			// Its work is told; how it ends after that says nothing.
			r.ExitCode, r.Signal = 0, ""
		case r.Failed == "" && exit.Code == 0 && exit.Signal == "":
			r.Failed = s.program.Name + " ended without having worked on what it was asked"
		}
	default:
		r.ExitCode, r.Err = -1, err
	}
	if r.Signal != "" {
		r.ExitCode = -1
	}
	s.tellUndone(r)
	return r
}

// tellUndone tells of prompts that nobody will work on any more.
func (s *session) tellUndone(r harness.Result) {
	why := r.Failed
	switch {
	case why != "":
	case r.Missing != "":
		why = s.program.Name + " could not be started: " + r.Missing
	case s.stopped:
		why = s.program.Name + " was stopped before it was done"
	default:
		why = s.program.Name + " ended before it was done"
	}
	for _, p := range s.prompts {
		if !p.done {
			s.tell.Prompt(wire.Prompted{Prompt: p.N, Author: p.author, Done: true, Failed: why})
		}
	}
}

func (s *session) Ready() <-chan struct{} { return s.ready }
func (s *session) Done() <-chan struct{}  { return s.done }

func (s *session) Prompt(_ context.Context, p harness.Prompt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.stopped {
		return harness.ErrOver
	}
	given := &Prompt{N: len(s.prompts) + 1, Text: p.Text, author: p.Author}
	s.prompts = append(s.prompts, given)
	s.open++
	told := wire.Prompted{Prompt: given.N, Author: p.Author}
	if given.N == 1 {
		close(s.first)
	} else {
		told.Text = p.Text // the first is known: it is the session's
	}
	s.tell.Prompt(told)
	if s.begun {
		s.speaker.Give(given)
	}
	return nil
}

func (s *session) Notify(ctx context.Context, text string) bool {
	answer := make(chan bool, 1)
	s.mu.Lock()
	if !s.begun || s.open == 0 || s.closing || s.stopped {
		s.mu.Unlock()
		return false
	}
	s.speaker.Notify(text, func(reached bool) {
		select {
		case answer <- reached:
		default:
		}
	})
	s.mu.Unlock()
	select {
	case reached := <-answer:
		return reached
	case <-s.done:
		return false
	case <-ctx.Done():
		return false
	}
}

func (s *session) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.cancel(errInterrupted)
}

func (s *session) Wait() harness.Result {
	<-s.done
	return s.result
}
