package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
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
	res, err := proc.Run(ctx, proc.Command{Argv: []string{l.bwrap, "--version"}})
	if err != nil {
		return Probe{}, fmt.Errorf("ask bubblewrap for its version: %w", err)
	}
	version, err := parseVersion(res.Stdout)
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
	return Probe{Tier: "bubblewrap " + version, Limits: l.Limits()}, nil
}

// parseVersion reads "bubblewrap 0.8.0" and refuses what is older than that.
func parseVersion(out []byte) (string, error) {
	f := bytes.Fields(out)
	var major, minor int
	if len(f) != 2 || string(f[0]) != "bubblewrap" {
		return "", errors.New("bubblewrap does not say its version")
	}
	if _, err := fmt.Sscanf(string(f[1]), "%d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("bubblewrap's version %q cannot be read", f[1])
	}
	if major == 0 && minor < 8 {
		return "", fmt.Errorf("%w: bubblewrap %s is too old, 0.8.0 or newer is needed", ErrIsolation, f[1])
	}
	return string(f[1]), nil
}
