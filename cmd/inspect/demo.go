package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/cmd/inspect/demo"
	"inspect/envs/spec"
)

func demoCommand() *cobra.Command {
	o := demo.Options{Out: os.Stdout}
	var verbose bool
	var tier tierFlags
	var store storeFlags
	var engine, pool string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Play the whole story on this machine, with a GitHub of its own",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Binary, err = os.Executable(); err != nil {
				return err
			}
			switch {
			case o.Kill != "" && o.Kill != "serve" && o.Kill != "node" && o.Kill != "runner":
				return usagef("--kill: expected serve, node or runner, but found %q", o.Kill)
			case o.Limits != "" && o.Limits != "enforce" && o.Limits != "best-effort":
				return usagef("--limits: expected enforce or best-effort, but found %q", o.Limits)
			case o.Harness != "" && (o.Harness == spec.HarnessCommand || !slices.Contains(spec.Harnesses(), o.Harness)):
				return usagef("--harness: expected opencode, codex or claude, but found %q", o.Harness)
			case o.Model != "" && o.Harness == "":
				return usagef("--model needs --harness: the scripted agent uses no model")
			case engine != engineLocal && engine != engineNomad:
				return usagef("--engine: expected local or nomad, but found %q", engine)
			case !slices.Contains(demo.Modes(), o.Mode):
				return usagef("--agent-mode: expected one of %s, but found %q", strings.Join(demo.Modes(), ", "), o.Mode)
			}
			if err := tier.check(); err != nil {
				return err
			}
			if err := store.check(); err != nil {
				return err
			}
			if engine == engineNomad {
				if o.Nomad, err = demo.ClusterFrom(os.Getenv, pool); err != nil {
					return usageError{err}
				}
			}
			o.Sandbox, o.Store = tier.args(), store.args()
			o.Erase = func(ctx context.Context, data string) error {
				return store.erase(ctx, placesIn(data).node, ownerOf(data))
			}
			o.Err = io.Discard
			if verbose {
				o.Err = os.Stderr
			}
			if o.Limits == "" {
				o.Limits = "enforce"
				if os.Geteuid() != 0 {
					o.Limits = "best-effort"
				}
			}
			_, err = demo.Run(cmd.Context(), o)
			if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
				return fmt.Errorf("the demo was stopped")
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Keep, "keep", false, "leave it running, with lines to label and comment yourself")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object as the last line of standard output")
	f.BoolVarP(&verbose, "verbose", "v", false, "show what inspect serve logs")
	f.StringVar(&o.Kill, "kill", "", "kill -9 serve, node or runner while the harness works")
	f.StringVar(&o.Harness, "harness", "", "a real agent: opencode, codex or claude (default: a scripted one)")
	f.StringVar(&o.Model, "model", "", "openai/NAME or anthropic/NAME, with the key in the environment (default: a model without a mind)")
	f.StringSliceVar(&o.Programs, "program", nil, "NAME=PATH of an agent's native program; default: found on PATH")
	f.StringVar(&o.Mode, "agent-mode", "ok", "how the scripted agent behaves")
	f.DurationVar(&o.Delay, "agent-delay", time.Second, "how long the scripted agent thinks")
	f.StringVar(&o.Limits, "limits", "", "enforce or best-effort (default: enforce as root)")
	f.StringVar(&engine, "engine", engineLocal, "where the session runs: local, or nomad: in the cluster of the agent at NOMAD_ADDR, which runs on this machine, with NOMAD_TOKEN or NOMAD_TOKEN_FILE and NOMAD_NAMESPACE")
	f.StringVar(&pool, "nomad-pool", "default", "node pool of that agent")
	tier.flags(f)
	store.flags(f)
	return cmd
}
