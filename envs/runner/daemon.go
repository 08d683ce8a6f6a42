package runner

import (
	"context"
	"net"

	"inspect/envs/node/dial"
	"inspect/envs/wire"
)

// daemon is the node daemon at a unix socket.
type daemon struct{ socket string }

var _ Node = daemon{}

func (d daemon) Restore(ctx context.Context, grant string) (wire.RestoreReply, error) {
	return dial.Restore(ctx, d.socket, grant)
}

func (d daemon) Sandbox(ctx context.Context, ask wire.SandboxRequest) (Sandbox, <-chan wire.SandboxEnd, map[string]net.Listener, error) {
	r, err := dial.Start(ctx, d.socket, ask)
	if err != nil {
		return nil, nil, nil, err // a nil client is no Sandbox
	}
	return r.Client, r.Ends, r.Sockets, nil
}

func (d daemon) Beside(ctx context.Context, grant, name string) (Sandbox, <-chan wire.SandboxEnd, error) {
	r, err := dial.Start(ctx, d.socket, wire.SandboxRequest{Grant: grant, Beside: name})
	if err != nil {
		return nil, nil, err // a nil client is no Sandbox
	}
	return r.Client, r.Ends, nil
}

func (d daemon) Discard(ctx context.Context, grant string) error {
	return dial.Discard(ctx, d.socket, grant)
}

func (d daemon) KeepTurn(ctx context.Context, grant string, turn int) error {
	return dial.KeepTurn(ctx, d.socket, grant, turn)
}
