// Package command is the harness adapter for any program: it is started in the
// repository with the prompt on its standard input and in a file, and what it
// prints becomes Output events. A further prompt waits until it has ended well;
// then it is started again with the conversation so far.
package command

import (
	"context"
	"errors"
	"fmt"
	"path"
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
	// writeWait bounds the writing of a file in the sandbox.
	writeWait = 30 * time.Second
	// killAfter is when an interrupted program is killed if nobody does it sooner.
	killAfter = 15 * time.Second
	// answerBytes is what the conversation keeps of a run's output.
	answerBytes = 4 << 10
)

// Harness starts Argv. The zero Clock is the system's.
type Harness struct {
	Argv  []string // the program and its arguments, looked up inside the sandbox
	Clock proc.Clock
}

var _ harness.Harness = Harness{}

var errInterrupted = errors.New("interrupted")

// Boot does nothing yet: the first prompt starts the program. It is written to
// <home>/.inspect/prompt.md, which INSPECT_PROMPT_FILE names. What the agent is
// to know meanwhile is appended to the file that INSPECT_NOTICE_FILE names.
func (h Harness) Boot(ctx context.Context, sb harness.Sandbox, in harness.Input, events func(harness.Event)) (harness.Session, error) {
	if len(h.Argv) == 0 || h.Argv[0] == "" {
		return nil, errors.New("the harness has no command")
	}
	clock := h.Clock
	if clock == nil {
		clock = proc.System()
	}
	run, cancel := context.WithCancelCause(ctx)
	s := &session{
		argv: h.Argv, sb: sb, in: in, clock: clock, cancel: cancel,
		file:   path.Join(in.Home, ".inspect", "prompt.md"),
		notice: path.Join(in.Home, ".inspect", "notice.md"),
		tell: tell.New(tell.Options{
			Clock: clock, Redact: in.Redact, Limit: in.OutputBytes, Dir: in.Dir, Events: events,
		}),
		ready: make(chan struct{}), first: make(chan struct{}), done: make(chan struct{}),
	}
	close(s.ready)
	go s.live(run)
	return s, nil
}

// prompt is one of the session, and what became of it.
type prompt struct {
	harness.Prompt
	n      int
	done   bool
	answer string // the end of what the program printed
}

type session struct {
	argv         []string
	sb           harness.Sandbox
	in           harness.Input
	clock        proc.Clock
	tell         *tell.Teller
	cancel       context.CancelCauseFunc
	file, notice string

	ready, first, done chan struct{}
	result             harness.Result // set before done is closed

	mu      sync.Mutex
	prompts []*prompt
	working bool // the program runs
	closing bool // no further prompt is taken
}

// live is the session's whole life.
func (s *session) live(run context.Context) {
	defer close(s.done)
	select {
	case <-s.first:
	case <-run.Done():
	}
	begun := s.clock.Now()
	r := harness.Result{ExitCode: -1}
	for n := 0; ; n++ {
		p := s.next(n, r.OK())
		if p == nil {
			break
		}
		r = s.work(run, p)
		s.over(p, r)
		if !r.OK() {
			break
		}
	}
	if len(s.prompts) == 0 {
		r.Failed = "the agent was stopped before it was asked anything"
		if cause := context.Cause(run); !errors.Is(cause, errInterrupted) {
			r.Failed, r.Err = "", cause
		}
	}
	s.cancel(context.Canceled)
	s.drop()
	s.tell.Close()
	s.result = r
	s.result.Duration = s.clock.Now().Sub(begun)
	s.result.Tail, s.result.Truncated = s.tell.Tail(), s.tell.Truncated()
}

// next is the prompt at index n; nil ends the session.
func (s *session) next(n int, ok bool) *prompt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n >= len(s.prompts) || n > 0 && (!ok || s.closing) {
		s.closing = true
		return nil
	}
	s.working = true
	return s.prompts[n]
}

// work runs the program for one prompt.
func (s *session) work(run context.Context, p *prompt) harness.Result {
	text := s.conversation(p)
	if err := s.write(run, `cat >"$1"`, s.file, text); err != nil {
		var failed *writeError
		if errors.As(err, &failed) {
			return harness.Result{ExitCode: -1, Failed: s.tell.Words("the prompt could not be handed to the agent: " + err.Error())}
		}
		return resultOf(stream.Exit{Code: -1}, err)
	}
	env := append([]string(nil), s.in.Env...)
	env = append(env, "INSPECT_PROMPT_FILE="+s.file, "INSPECT_NOTICE_FILE="+s.notice)
	if s.in.Model != "" {
		env = append(env, "INSPECT_MODEL="+s.in.Model)
	}
	if s.in.Gateway != "" {
		env = append(env, "INSPECT_GATEWAY="+s.in.Gateway)
	}
	answer := &answer{tail: &proc.Tail{N: answerBytes}}
	exit, err := s.sb.Run(run, stream.Exec{
		Argv: s.argv, Env: env, Dir: s.in.Dir,
		Stdin:  strings.NewReader(text),
		Stdout: answer.of(s.tell.Stream("stdout")), Stderr: answer.of(s.tell.Stream("stderr")),
		// Interrupt asks with SIGTERM; whoever asked kills if that is not
		// enough, so the grace here only has to be the longer one.
		Grace: killAfter,
	})
	s.tell.EndStreams()
	p.answer = answer.text()
	return resultOf(exit, err)
}

// over tells that a prompt was worked on.
func (s *session) over(p *prompt, r harness.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.working = false
	p.done = true
	told := wire.Prompted{Prompt: p.n, Author: p.Author, Done: true}
	if !r.OK() {
		s.closing = true
		told.Failed = why(r)
	}
	s.tell.Prompt(told)
}

// drop tells of the prompts nobody will work on.
func (s *session) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for _, p := range s.prompts {
		if !p.done {
			s.tell.Prompt(wire.Prompted{
				Prompt: p.n, Author: p.Author, Done: true, Failed: "the agent ended before it came to this",
			})
		}
	}
}

// why says in words how a run ended that did not end well.
func why(r harness.Result) string {
	switch {
	case r.Failed != "":
		return r.Failed
	case r.Missing != "":
		return "the agent could not be started: " + r.Missing
	case r.Err != nil:
		return "the agent was cut off"
	case r.Signal != "":
		return "the agent was ended by " + r.Signal
	}
	return fmt.Sprintf("the agent ended with status %d", r.ExitCode)
}

func resultOf(exit stream.Exit, err error) harness.Result {
	r := harness.Result{ExitCode: exit.Code, Signal: exit.Signal}
	var start *stream.StartError
	switch {
	case err == nil:
	case errors.As(err, &start):
		r.ExitCode, r.Missing = -1, harness.Clean(start.Words)
	case errors.Is(err, errInterrupted) && !errors.Is(err, stream.ErrEnded) && !errors.Is(err, stream.ErrUnresponsive):
		// It ended because it was asked to; how is in exit.
	default:
		r.ExitCode, r.Err = -1, err
	}
	if r.Signal != "" {
		r.ExitCode = -1
	}
	return r
}

// writeError is a file that could not be written.
type writeError struct{ file, words string }

func (e *writeError) Error() string {
	return e.file + " could not be written in the sandbox: " + e.words
}

// write runs a shell script that takes a file's text, after making its folder:
// nobody outside opens files in a clone that an agent may have written to.
func (s *session) write(ctx context.Context, script, file, text string) error {
	ctx, cancel := proc.WithTimeout(ctx, s.clock, writeWait)
	defer cancel()
	tail := &proc.Tail{N: 1 << 10}
	exit, err := s.sb.Run(ctx, stream.Exec{
		Argv:   []string{"sh", "-c", `mkdir -p -- "${1%/*}" && ` + script, "sh", file},
		Stdin:  strings.NewReader(text),
		Stderr: tail,
	})
	if err != nil {
		return err
	}
	if exit.Code != 0 || exit.Signal != "" {
		return &writeError{file, harness.Clean(strings.TrimSpace(string(tail.Bytes())))}
	}
	return nil
}

func (s *session) Ready() <-chan struct{} { return s.ready }
func (s *session) Done() <-chan struct{}  { return s.done }

// Prompt queues a prompt. Each is worked on by a run of its own.
func (s *session) Prompt(_ context.Context, given harness.Prompt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return harness.ErrOver
	}
	p := &prompt{Prompt: given, n: len(s.prompts) + 1}
	s.prompts = append(s.prompts, p)
	told := wire.Prompted{Prompt: p.n, Author: p.Author}
	if p.n == 1 {
		close(s.first)
	} else {
		told.Text = p.Text // the first is known: it is the session's
	}
	s.tell.Prompt(told)
	return nil
}

// Notify appends to the notice file of a program that runs. Whether it looks
// there is its own affair.
func (s *session) Notify(ctx context.Context, text string) bool {
	s.mu.Lock()
	working := s.working && !s.closing
	s.mu.Unlock()
	return working && s.write(ctx, `cat >>"$1"`, s.notice, strings.TrimRight(text, "\n")+"\n") == nil
}

func (s *session) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.cancel(errInterrupted)
}

func (s *session) Wait() harness.Result {
	<-s.done
	return s.result
}
