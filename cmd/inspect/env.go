package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"inspect/app/command"
	"inspect/envs/spec"
)

func envCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "env", Short: "Environments: what a repository's " + spec.FileName + " describes"}
	cmd.AddCommand(&cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a " + spec.FileName + " (standard input with -)",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := spec.FileName
			if len(args) == 1 {
				name = args[0]
			}
			var from io.Reader = os.Stdin
			if name != "-" {
				f, err := os.Open(name)
				if err != nil {
					return err
				}
				defer f.Close()
				from = f
			}
			body, err := io.ReadAll(io.LimitReader(from, spec.MaxFileBytes+1))
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			s, problems := spec.Parse(body)
			if len(problems) > 0 {
				return problems
			}
			if len(s.Verify) == 0 {
				return fmt.Errorf("%s: verify: expected at least one command; without one nothing can prove a change, and no session is started", name)
			}
			fmt.Fprintln(cmd.OutOrStdout(), name+" is valid")
			return nil
		},
	}, &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of " + spec.FileName + " for editors",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(spec.JSONSchema())
			return err
		},
	}, egressCommand(), imageCommand(), buildCommand(), statusCommand(), lsCommand(), pruneCommand(), shellCommand(), benchCommand())
	return cmd
}

func commandsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "commands",
		Short: "Print the table of /inspect commands",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), command.Table())
			return err
		},
	}
}
