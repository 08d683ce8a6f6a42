package main

import (
	"context"
	"fmt"
	"time"

	"inspect/app/publish"
	"inspect/envs/sandbox"
	"inspect/envs/sandbox/stream"
	"inspect/envs/wire"
)

// quarantine runs git over hostile data in sandboxes of this machine. It
// implements publish.Quarantine.
type quarantine struct {
	launcher *sandbox.Launcher
	uid, gid int
}

// quarantineLimits are of a quarantine's sandbox.
var quarantineLimits = wire.Limits{CPU: 1, MemoryBytes: 2 << 30, Pids: 64}

// quarantineEnd is how long the end of a quarantine's sandbox may take.
const quarantineEnd = 30 * time.Second

func (q quarantine) Run(ctx context.Context, c publish.GitCommand) (int, error) {
	ours, theirs, err := stream.Pair()
	if err != nil {
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	box, err := q.launcher.Start(ctx, sandbox.Spec{
		ID:  c.ID,
		UID: q.uid, GID: q.gid,
		Mounts: []sandbox.Mount{
			{Source: c.Dir, Target: publish.QuarantineDir, Writable: true},
			{Source: c.Mirror, Target: publish.MirrorDir},
		},
		Limits:  quarantineLimits,
		Control: theirs,
	})
	theirs.Close()
	if err != nil {
		ours.Close()
		return 0, fmt.Errorf("quarantine: %w", err)
	}
	code, runErr := runGit(ctx, stream.NewClient(ours), c)
	ended := make(chan struct{})
	go func() { box.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(quarantineEnd):
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), quarantineEnd)
		defer cancel()
		if err := box.Kill(kill); err != nil {
			return 0, fmt.Errorf("quarantine: end the sandbox: %w", err)
		}
		<-ended
	}
	if runErr != nil {
		return 0, fmt.Errorf("quarantine: %w", runErr)
	}
	return code, nil
}

// runGit runs the command in the sandbox and ends it.
func runGit(ctx context.Context, client *stream.Client, c publish.GitCommand) (int, error) {
	defer client.Close()
	exit, err := client.Run(ctx, stream.Exec{
		Argv: c.Argv, Env: c.Env, Dir: publish.QuarantineDir, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
		Rlimits: stream.Rlimits{
			CPUSeconds:   uint64(c.Limits.CPU / time.Second),
			AddressSpace: uint64(c.Limits.AddressSpace),
			FileSize:     uint64(c.Limits.FileSize),
		},
	})
	return exit.Code, err
}
