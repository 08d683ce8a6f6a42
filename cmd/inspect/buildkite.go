package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/buildkite/ask"
	"inspect/checks/buildkite/plugin"
)

func buildkiteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "buildkite",
		Short: "For pipelines of Buildkite: ask for work from a step, print an example, write the plugin",
	}
	cmd.AddCommand(buildkiteStepCommand(), buildkitePipelineCommand(), buildkitePluginCommand(), buildkiteIDsCommand())
	return cmd
}

// stepError ends the program with the status of a step.
type stepError struct {
	error
	code ask.Code
}

func (e stepError) ExitCode() int { return int(e.code) }
func (e stepError) Unwrap() error { return e.error }

func buildkiteStepCommand() *cobra.Command {
	var o ask.Options
	var fromPlugin bool
	var most time.Duration
	cmd := &cobra.Command{
		Use:   "step --server URL (--prompt TEXT | --issue N | --fix-build)",
		Short: "Ask for a session from a step of a pipeline, and follow it",
		Long: `Ask the control plane for a session, from a step of a pipeline: the job's OIDC
token proves which pipeline asks. The same job asking again gets the same session.
The build is annotated, and its meta-data inspect:session is the session's id.

Exit statuses: 0 delivered, or asked for without --wait; 1 the session failed;
2 flags or configuration; 3 buildkite-agent is not here; 4 refused; 5 the control
plane does not answer; 10 nothing to deliver, over budget, our machinery failed,
or what was delivered is no success (yet); 11 stopped; 12 the session's time was
up; 13 waits for a person and 14 still works after --wait-timeout; 130 this step
was cancelled, the session goes on.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if fromPlugin {
				parsed, err := ask.ParseConfig(os.Getenv("BUILDKITE_PLUGIN_CONFIGURATION"))
				if err != nil {
					return usageError{err}
				}
				o = parsed
			} else {
				o.Most = most
			}
			if o.Wish.Prompt == "-" && !fromPlugin {
				body, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 1<<20))
				if err != nil {
					return fmt.Errorf("read the prompt from standard input: %w", err)
				}
				o.Wish.Prompt = strings.TrimSpace(string(body))
			}
			o.Job = os.Getenv("BUILDKITE_JOB_ID")
			if o.Job == "" {
				return stepError{errors.New("this is no job of Buildkite: BUILDKITE_JOB_ID is not set"), ask.Missing}
			}
			o.Agent = ask.Agent{Env: os.Environ()}
			o.Secrets = ask.Secrets(os.Environ())
			o.Out = cmd.OutOrStdout()
			code, err := ask.Run(cmd.Context(), o)
			if code == ask.OK {
				return err
			}
			if err == nil {
				err = errors.New("")
			}
			return stepError{err, code}
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Server, "server", os.Getenv("INSPECT_SERVER"), "address of the control plane (default: INSPECT_SERVER)")
	f.StringVar(&o.Audience, "audience", "", "whom the job's token is for (default: the server's address)")
	f.StringVar(&o.Wish.Prompt, "prompt", "", "the request, in words; - reads it from standard input")
	f.IntVar(&o.Wish.Issue, "issue", 0, "number of an issue whose text is the request")
	f.BoolVar(&o.Wish.FixBuild, "fix-build", false, "the failures of this build are the request")
	f.StringSliceVar(&o.IfFailed, "if-failed", nil, "keys of steps: if none of them failed, ask for nothing")
	f.StringVar(&o.Wish.Repository, "repository", "", "OWNER/NAME (default: the one that the pipeline is bound to)")
	f.StringVar(&o.Wish.Base, "base", "", "branch to work from (default: the default branch; with --fix-build the build's)")
	f.StringVar(&o.Wish.Harness, "harness", "", "the agent (default: the repository's)")
	f.StringVar(&o.Wish.Model, "model", "", "PROVIDER/NAME (default: the repository's)")
	f.StringVar(&o.Wish.Budget, "budget", "", "at most so many US dollars")
	f.StringVar(&o.Wish.Timeout, "timeout", "", "at most so long, such as 45m")
	f.StringVar(&o.Wish.Once, "once", "job", "one session for each job, or for each build however often its jobs are retried")
	f.BoolVar(&o.Wait, "wait", false, "wait for the session's end, and end with a status by it")
	f.DurationVar(&most, "wait-timeout", 2*time.Hour, "wait at most so long")
	f.BoolVar(&o.SoftFail, "soft-fail", false, "status 0 also if the session ended without delivering")
	f.BoolVar(&o.Evidence, "evidence", false, "keep the session's evidence as an artifact; with --wait")
	f.BoolVar(&fromPlugin, "plugin", false, "read all of this from BUILDKITE_PLUGIN_CONFIGURATION instead")
	return cmd
}

func buildkitePipelineCommand() *cobra.Command {
	var server string
	cmd := &cobra.Command{
		Use:   "pipeline [" + strings.Join(plugin.Examples(), "|") + "]",
		Short: "Print an example pipeline",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := plugin.Examples()[0]
			if len(args) > 0 {
				name = args[0]
			}
			at, err := ask.Server(server)
			if err != nil {
				return usageError{err}
			}
			body, err := plugin.Example(name, at)
			if err != nil {
				return usageError{err}
			}
			_, err = io.WriteString(cmd.OutOrStdout(), body)
			return err
		},
	}
	cmd.Flags().StringVar(&server, "server", "https://inspect.example", "address of the control plane")
	return cmd
}

func buildkiteIDsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ids",
		Short: "In a step of a pipeline: print what the operator's policy knows the pipeline by",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ids, err := ask.Agent{Env: os.Environ()}.IDs(cmd.Context())
			if errors.Is(err, ask.ErrNoAgent) {
				return setupError{err}
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "buildkite:\n  pipelines:\n    - organization_id: %q\n      pipeline_id: %q\n      slug: %q\n      repositories: [] # OWNER/NAME\n",
				ids.OrganizationID, ids.PipelineID, ids.OrganizationSlug+"/"+ids.PipelineSlug)
			return nil
		},
	}
}

func buildkitePluginCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plugin DIR",
		Short: "Write the plugin into a repository, such as .buildkite/plugins/inspect",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := plugin.Write(args[0]); err != nil {
				return fmt.Errorf("write the plugin: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The plugin is in %s: commit it, and name it in a pipeline (inspect buildkite pipeline).\n", args[0])
			return nil
		},
	}
}
