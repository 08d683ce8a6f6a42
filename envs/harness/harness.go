// Package harness is the contract between the runner and an agent program: how
// it is started with a prompt, how it is given another one, how it is asked to
// stop and what it tells while it works. A sandbox, a prompt and an environment
// come in; wire events and one Result go out. The adapters, one package for
// each kind of agent, lie beneath; they run everything inside the sandbox.
package harness

import (
	"context"
	"errors"
	"strings"
	"time"

	"inspect/checks/redact"
	"inspect/envs/sandbox/stream"
)

// ErrNoFollowUp is returned by Session.Prompt of an agent that takes no further
// prompt while it works.
var ErrNoFollowUp = errors.New("this agent takes no further prompts")

// ErrOver is returned by Session.Prompt of an agent that has ended.
var ErrOver = errors.New("the agent has ended")

// Sandbox is what an adapter may do in a sandbox: run commands. *stream.Client
// is one.
type Sandbox interface {
	// Run runs one command and waits for its end, see stream.Client.Run.
	Run(ctx context.Context, e stream.Exec) (stream.Exit, error)
}

// Input is what an agent is started with.
type Input struct {
	Prompt string
	Dir    string   // working directory, inside the sandbox
	Home   string   // home directory, inside the sandbox
	Env    []string // added to the sandbox's own environment
	Model  string   // empty: the agent's default

	// OutputBytes bounds the text that becomes events; the rest is read and
	// dropped. Zero means DefaultOutputBytes.
	OutputBytes int64
	// Redact takes secrets out of every event.
	Redact *redact.Redactor
}

// DefaultOutputBytes is what is kept of an agent's output when nobody said.
const DefaultOutputBytes = 4 << 20

// Event is something the agent did: Kind is a wire.Event kind and Data its
// type there. Texts are redacted, valid UTF-8 and free of NUL bytes; everything
// else in them, terminal escapes too, is as the agent wrote it.
type Event struct {
	Kind string
	Data any
}

// Harness is one kind of agent program.
type Harness interface {
	// Start starts the agent with in.Prompt and returns as soon as it runs.
	// events is called from the adapter's goroutines, never twice at once and
	// never after Session.Wait has returned; it must not block for long.
	//
	// ctx is the agent's life: when it ends, the agent and its process group
	// are killed without further question. The end of the sandbox ends the
	// agent as well. The error is that of a start that could not be tried; an
	// agent that is missing or fails is told by Result.
	Start(ctx context.Context, sb Sandbox, in Input, events func(Event)) (Session, error)
}

// Session is an agent at work. Its methods may be called at once from several
// goroutines.
type Session interface {
	// Prompt gives the agent a further prompt of an authorised person. The
	// error is ErrNoFollowUp or ErrOver if it will not be read.
	Prompt(ctx context.Context, text, author string) error
	// Interrupt asks the agent to stop and returns at once. Calling it again,
	// or after the end, is harmless. An agent that does not stop is the
	// caller's to kill, by Start's context or by ending the sandbox.
	Interrupt()
	// Done is closed when the agent has ended.
	Done() <-chan struct{}
	// Wait waits until the agent has ended and all its events were handed on.
	Wait() Result
}

// Result is how an agent ended.
type Result struct {
	ExitCode int    // -1: ended by a signal, or never started
	Signal   string // "SIGKILL", …
	Duration time.Duration
	// Missing says why the program could not be started, e.g. because it does
	// not exist in the sandbox.
	Missing string
	// Err is set when the agent's end is not its own doing: stream.ErrEnded if
	// the sandbox went away under it, stream.ErrUnresponsive if it could not
	// be killed, or the cause of Start's context.
	Err error
	// Tail is the end of the agent's output, as in events.
	Tail string
	// Truncated: the output was longer than Input.OutputBytes.
	Truncated bool
}

// OK reports whether the agent ended by itself with status 0.
func (r Result) OK() bool {
	return r.Err == nil && r.Missing == "" && r.ExitCode == 0 && r.Signal == ""
}

// Clean makes text from a sandbox fit for an event: valid UTF-8, NUL bytes
// (which Postgres cannot hold in JSON) replaced by their picture ␀.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\u2400")
}
