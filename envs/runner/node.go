package runner

import (
	"context"
	"net"

	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Node is what the runner needs of the daemon that owns the clones and starts
// the sandboxes. Every method is given a grant of the control plane, waits while
// the daemon is away, up to the context's end, and may be repeated. Errors that
// the daemon itself gave are *wire.Error.
type Node interface {
	// Restore makes the grant's clone, or finds it made.
	Restore(ctx context.Context, grant string) (wire.RestoreReply, error)
	// Sandbox starts a sandbox over the grant's clone. The channel gives one
	// value when the sandbox has ended, or is closed without one if nobody
	// could tell. The listeners are those of the grant's sockets, by name; they
	// are the caller's to serve and to close.
	Sandbox(ctx context.Context, ask wire.SandboxRequest) (Sandbox, <-chan wire.SandboxEnd, map[string]net.Listener, error)
	// Beside starts a compartment of that name beside the grant's running
	// sandbox, see wire.SandboxRequest. The channel is as Sandbox's.
	Beside(ctx context.Context, grant, name string) (Sandbox, <-chan wire.SandboxEnd, error)
	// KeepTurn keeps the state of the grant's clone as that after a turn.
	KeepTurn(ctx context.Context, grant string, turn int) error
	// Discard removes the grant's clone. Not found is success.
	Discard(ctx context.Context, grant string) error
}

// Sandbox is a running sandbox. Close ends it with everything in it;
// *stream.Client is one.
type Sandbox interface {
	Run(ctx context.Context, e stream.Exec) (stream.Exit, error)
	Close() error
}
