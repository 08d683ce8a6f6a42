package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// Probe is what this machine can do.
type Probe struct {
	Tier   string // "bubblewrap 0.8.0"
	Limits string // see Launcher.Limits
}

// Probe runs a few commands in a sandbox with everything a session's has. An
// error says what is missing and how to get it. (gVisor of Debian 12 answers to
// stat and ls that their argument is invalid.)
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
	for _, argv := range [][]string{{"true"}, {"stat", "/"}, {"ls", "-l", "/"}} {
		said := proc.Tail{N: 1 << 10}
		exit, rerr := client.Run(ctx, stream.Exec{Argv: argv, Stderr: &said})
		if rerr == nil && exit.Code != 0 {
			rerr = fmt.Errorf("%w: in %s, `%s` ends with status %d: %s", ErrIsolation, version, strings.Join(argv, " "), exit.Code, bytes.TrimSpace(said.Bytes()))
		}
		if err = rerr; err != nil {
			break
		}
	}
	_ = client.Close()
	if kerr := box.Kill(ctx); err == nil {
		err = kerr
	}
	if err != nil {
		return Probe{}, fmt.Errorf("sandboxes do not work on this machine: %w", err)
	}
	return Probe{Tier: version, Limits: l.Limits()}, nil
}
