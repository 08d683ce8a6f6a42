// Package command is the harness adapter for any program: it is started in the
// repository with the prompt on its standard input and in a file, and what it
// prints becomes Output events. It takes no further prompts while it works.
package command

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"inspect/envs/harness"
	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
)

// promptWait bounds the writing of the prompt's file.
const promptWait = 30 * time.Second

// Harness starts Argv. The zero Clock is the system's.
type Harness struct {
	Argv  []string // the program and its arguments, looked up inside the sandbox
	Clock proc.Clock
}

var _ harness.Harness = Harness{}

// Start writes the prompt to <home>/.inspect/prompt.md, which the environment
// variable INSPECT_PROMPT_FILE names, and starts the program.
func (h Harness) Start(ctx context.Context, sb harness.Sandbox, in harness.Input, events func(harness.Event)) (harness.Session, error) {
	if len(h.Argv) == 0 || h.Argv[0] == "" {
		return nil, errors.New("the harness has no command")
	}
	clock := h.Clock
	if clock == nil {
		clock = proc.System()
	}
	file := path.Join(in.Home, ".inspect", "prompt.md")
	if err := writePrompt(ctx, clock, sb, file, in.Prompt); err != nil {
		return nil, fmt.Errorf("hand the prompt to the agent: %w", err)
	}
	limit := in.OutputBytes
	if limit <= 0 {
		limit = harness.DefaultOutputBytes
	}
	env := append([]string(nil), in.Env...)
	env = append(env, "INSPECT_PROMPT_FILE="+file)
	if in.Model != "" {
		env = append(env, "INSPECT_MODEL="+in.Model)
	}

	run, interrupt := context.WithCancelCause(ctx)
	s := &session{interrupt: interrupt, done: make(chan struct{})}
	out := newOutput(clock, in.Redact, limit, events)
	go func() {
		defer close(s.done)
		defer interrupt(context.Canceled)
		begun := clock.Now()
		exit, err := sb.Run(run, stream.Exec{
			Argv: h.Argv, Env: env, Dir: in.Dir,
			Stdin:  strings.NewReader(in.Prompt),
			Stdout: out.stream("stdout"), Stderr: out.stream("stderr"),
			// Interrupt asks with SIGTERM; whoever asked kills if that is not
			// enough, so the grace here only has to be the longer one.
			Grace: killAfter,
		})
		out.close()
		s.result = resultOf(exit, err)
		s.result.Duration = clock.Now().Sub(begun)
		s.result.Tail, s.result.Truncated = out.tail(), out.truncated()
	}()
	return s, nil
}

// killAfter is when an interrupted program is killed if nobody does it sooner.
const killAfter = 15 * time.Second

var errInterrupted = errors.New("interrupted")

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

// writePrompt writes through a command, because nobody outside opens files in
// a clone that an agent may have written to.
func writePrompt(ctx context.Context, clock proc.Clock, sb harness.Sandbox, file, prompt string) error {
	ctx, cancel := proc.WithTimeout(ctx, clock, promptWait)
	defer cancel()
	tail := &proc.Tail{N: 1 << 10}
	exit, err := sb.Run(ctx, stream.Exec{
		Argv:   []string{"sh", "-c", `mkdir -p -- "${1%/*}" && cat >"$1"`, "sh", file},
		Stdin:  strings.NewReader(prompt),
		Stderr: tail,
	})
	if err != nil {
		return err
	}
	if exit.Code != 0 || exit.Signal != "" {
		return fmt.Errorf("%s could not be written in the sandbox: %s", file, harness.Clean(strings.TrimSpace(string(tail.Bytes()))))
	}
	return nil
}

type session struct {
	interrupt context.CancelCauseFunc
	done      chan struct{}
	result    harness.Result // set before done is closed
}

func (s *session) Prompt(context.Context, string, string) error {
	select {
	case <-s.done:
		return harness.ErrOver
	default:
		return harness.ErrNoFollowUp
	}
}

func (s *session) Interrupt()            { s.interrupt(errInterrupted) }
func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Wait() harness.Result {
	<-s.done
	return s.result
}
