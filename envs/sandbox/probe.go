package sandbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Probe is what this machine can do.
type Probe struct {
	Tier   string // "bubblewrap 0.8.0"
	Limits string // see Launcher.Limits
}

const probeTimeout = 30 * time.Second

// Probe runs `true` in a sandbox with everything a session's has. An error
// says what is missing and how to get it.
func (l *Launcher) Probe(ctx context.Context) (Probe, error) {
	ctx, cancel := proc.WithTimeout(ctx, proc.System(), probeTimeout)
	defer cancel()
	version, err := l.tier.version(ctx)
	if err != nil {
		return Probe{}, err
	}
	ours, theirs, err := stream.Pair()
	if err != nil {
		return Probe{}, err
	}
	spec := Spec{
		ID: "probe-" + strings.ToLower(rand.Text()), Control: theirs, UID: l.opt.UID, GID: l.opt.GID,
		Limits: wire.Limits{CPU: 1, MemoryBytes: 256 << 20, Pids: 64, DiskBytes: 64 << 20},
	}
	if l.root && spec.UID == 0 {
		spec.UID, spec.GID = 65534, 65534
	}
	box, err := l.Start(ctx, spec)
	if err != nil {
		ours.Close()
		return Probe{}, fmt.Errorf("sandboxes do not work on this machine: %w", err)
	}
	client := stream.NewClient(ours)
	exit, err := client.Run(ctx, stream.Exec{Argv: []string{"true"}})
	_ = client.Close()
	if kerr := box.Kill(ctx); err == nil {
		err = kerr
	}
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("`true` ended with status %d", exit.Code)
	}
	if err != nil {
		return Probe{}, fmt.Errorf("sandboxes do not work on this machine: %w", err)
	}
	return Probe{Tier: version, Limits: l.Limits()}, nil
}
