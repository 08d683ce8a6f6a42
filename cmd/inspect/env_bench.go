package main

import (
	"os"

	"github.com/spf13/cobra"

	"inspect/cmd/inspect/try"
	"inspect/envs/gateway"
	"inspect/envs/spec"
)

func benchCommand() *cobra.Command {
	var o try.BenchOptions
	var c tryFlags
	var store storeFlags
	cmd := &cobra.Command{
		Use:   "bench [--repo PATH]",
		Short: "Measure how soon an environment is ready, with nothing there and from its snapshot",
		Long: `Measures, phase by phase, how soon the environment of a repository of your own is
ready for an agent: with nothing there (clone, setup, services, load), and from its
snapshot (restore, drift, services). Each run has a mirror, a snapshot and a session
of its own; medians are shown, in milliseconds. Like inspect try it needs no GitHub
and leaves the repository as it is. With --store zfs the snapshot is one of that pool; what
was made there is removed again, also what a killed run with the same --data has left.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Runs < 1 || o.Runs > 100 {
				return usagef("--runs: expected a number from 1 to 100, but found %d", o.Runs)
			}
			if o.Behind < 0 {
				return usagef("--behind: expected a number of commits, but found %d", o.Behind)
			}
			if err := store.check(); err != nil {
				return err
			}
			if store.Kind == storeZFS && o.Data == "" {
				return usagef("--store zfs needs --data DIRECTORY: what a killed run leaves in the pool is known by what is in it")
			}
			if err := c.complete(cmd, &o.Options); err != nil {
				return err
			}
			p, err := newPrograms(nil, sandboxAccount())
			if err != nil {
				return err
			}
			o.Provide, o.Open = p.provide, houses(gateway.Config{}, c.tier, store)
			o.Stdout, o.Progress = os.Stdout, os.Stderr
			again, done := interrupts()
			defer done()
			o.Again = again
			m, err := try.Bench(cmd.Context(), o)
			if err != nil {
				return err
			}
			if o.JSON {
				return printJSON(cmd.OutOrStdout(), m)
			}
			return m.Write(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Repo, "repo", ".", "directory in a git repository, whose HEAD is measured")
	f.IntVar(&o.Runs, "runs", 5, "how often each path is taken")
	f.IntVar(&o.Behind, "behind", 0, "commits between the snapshot and HEAD")
	f.StringArrayVar(&o.Setup, "setup", nil, "shell line that prepares the environment; replaces the repository's, may be repeated")
	f.StringSliceVar(&o.Egress, "egress", nil, "host, host:port or ecosystem (npm, go, pypi, …) that setup can reach, in addition to what "+spec.FileName+" says")
	f.StringVar(&o.Data, "data", "", "directory to work in (default: a temporary one)")
	f.StringSliceVar(&o.Expose, "expose", nil, "further directories of this machine that sandboxes may read")
	f.StringVar(&o.Limits, "limits", "", "enforce or best-effort (default: enforce as root)")
	c.tier.flags(f)
	store.flags(f)
	f.BoolVar(&o.JSON, "json", false, "print JSON")
	return cmd
}
