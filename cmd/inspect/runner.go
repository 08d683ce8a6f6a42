package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/runner"
)

// orphanGrace is what a runner gets to end after its control plane has.
const orphanGrace = 5 * time.Second

func runnerCommand() *cobra.Command {
	var o runner.Options
	var parent int
	cmd := &cobra.Command{
		Use:   "runner",
		Short: "Supervise one attempt of a session (started by the engine)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := proc.KeepToItself(); err != nil {
				return err
			}
			if err := dropEngine(); err != nil {
				return err
			}
			if o.IdentityFile == "" {
				secret, err := runner.ReadSecret(os.Stdin)
				if err != nil {
					return err
				}
				o.Secret = secret
			}
			o.Log = newLog("text", redact.New(o.Secret)).With("session", o.Session, "generation", o.Generation)
			ctx, done := withParent(cmd.Context(), parent)
			defer done()
			context.AfterFunc(ctx, func() {
				// The control plane has ended for good, and with it the node daemon,
				// which took the sandboxes along: there is nobody to wait for.
				if errors.Is(context.Cause(ctx), errOrphaned) {
					time.AfterFunc(orphanGrace, func() { os.Exit(exitFailed) })
				}
			})
			return runner.Run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.ControlURL, "control", "", "address of the control plane's machine listener")
	f.StringVar(&o.Session, "session", "", "id of the session")
	f.IntVar(&o.Generation, "generation", 0, "number of the attempt")
	f.StringVar(&o.IdentityFile, "identity-file", "", "file of the token that the cluster of this machine signs and renews, which proves who this is; without it a one-time secret is read from standard input")
	f.StringVar(&o.NodeSocket, "node-socket", "", "socket of the node daemon")
	f.StringVar(&o.Spool, "spool", "", "directory for what waits to be sent")
	f.IntVar(&parent, "parent", 0, "end when the process with this id, which started this one, has ended")
	return cmd
}

// dropEngine takes out of the environment what Nomad gives to what it runs:
// nothing that this process starts is to know of its cluster.
func dropEngine() error {
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "NOMAD_") {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			return fmt.Errorf("take %s out of the environment: %w", name, err)
		}
	}
	return nil
}
