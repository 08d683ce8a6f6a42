// Package harness is the contract between the runner and an agent program: how
// it is booted, given a prompt and further ones, asked to stop, and what it
// tells while it works. A sandbox, prompts and an environment come in; wire
// events and one Result go out. The adapters, one package for
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

// ErrOver is returned by Session.Prompt of an agent that has ended.
var ErrOver = errors.New("the agent has ended")

// Sandbox is what an adapter may do in a sandbox: run commands. *stream.Client
// is one.
type Sandbox interface {
	// Run runs one command and waits for its end, see stream.Client.Run.
	Run(ctx context.Context, e stream.Exec) (stream.Exit, error)
}

// Input is what an agent is booted with.
type Input struct {
	Dir  string   // working directory, inside the sandbox
	Home string   // home directory, inside the sandbox
	Env  []string // added to the sandbox's own environment

	// Model is what the agent is to ask for, as the gateway knows it; empty: the
	// agent has no model of ours. API is what it is to speak (wire.APIChat, …)
	// and Gateway where, "http://127.0.0.1:41711": no key is needed there, and
	// agents that insist on one are given a word that is none.
	Model, API, Gateway string
	// Proxy is the egress proxy, "http://127.0.0.1:41710"; empty: there is no way out.
	Proxy string

	// OutputBytes bounds the text that becomes events; the rest is read and
	// dropped. Zero means DefaultOutputBytes.
	OutputBytes int64
	// Redact takes secrets out of every event.
	Redact *redact.Redactor
}

// Prompt is what an agent is asked to do.
type Prompt struct {
	Text   string
	Author string // login of who asked, for events; empty: these are our own words
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
	// Boot starts what the agent needs before its first prompt and returns at
	// once; the repository may not be at its commit yet. events is called from
	// the adapter's goroutines, never twice at once and never after
	// Session.Wait has returned; it must not block for long.
	//
	// ctx is the agent's life: when it ends, everything that was started for
	// the agent is killed without further question. The end of the sandbox ends
	// the agent as well. The error is that of a start that could not be tried;
	// an agent that is missing or fails is told by Result.
	Boot(ctx context.Context, sb Sandbox, in Input, events func(Event)) (Session, error)
}

// Session is an agent at work. Its methods may be called at once from several
// goroutines.
type Session interface {
	// Ready is closed when the agent could take its first prompt, or has ended.
	Ready() <-chan struct{}
	// Prompt gives the agent a prompt: the first begins its work; a further one
	// reaches it while it works if it can take one then, else as its next turn,
	// in the order of the calls. It returns when the prompt was taken over. The
	// error is ErrOver if it will not be worked on.
	Prompt(ctx context.Context, p Prompt) error
	// Notify tells an agent at work something that asks for no turn of its own,
	// that its time is nearly over for example: as soon as it can be told
	// without losing what it is at. False: this agent cannot be told.
	Notify(ctx context.Context, text string) bool
	// Interrupt asks the agent to stop and returns at once. Prompts that wait
	// are dropped. Calling it again, or after the end, is harmless. An agent that
	// does not stop is the caller's to kill, by Boot's context or by ending the
	// sandbox. Interrupting before the first prompt ends it too.
	Interrupt()
	// Done is closed when the agent has ended: every prompt it was given, and at
	// least one, is worked on, or it failed.
	Done() <-chan struct{}
	// Wait waits until the agent has ended and all its events were handed on.
	Wait() Result
}

// Result is how an agent ended.
type Result struct {
	ExitCode int    // -1: ended by a signal, or never started
	Signal   string // "SIGKILL", …
	Duration time.Duration
	// Failed says in words why the agent ended without having done its work
	// although its program is in order: the model refused, gave nothing usable,
	// or could not be reached.
	Failed string
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
	return r.Err == nil && r.Missing == "" && r.Failed == "" && r.ExitCode == 0 && r.Signal == ""
}

// Clean makes text from a sandbox fit for an event: valid UTF-8, NUL bytes
// (which Postgres cannot hold in JSON) replaced by their picture ␀.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\u2400")
}
