// Command inspect is the program of Inspect: control plane, node daemon,
// runner, the init process inside a sandbox, and the tools around them. This
// package only wires: flags and configuration come in, rooms are put together,
// started and stopped. Nothing is decided here.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/cmd/inspect/demo"
	"inspect/envs/egress"
	"inspect/envs/image/pull"
	"inspect/envs/sandbox/inside"
	"inspect/envs/shot"
)

// Exit statuses.
const (
	exitFailed = 1 // what was asked for did not come about
	exitUsage  = 2 // flags or configuration
	exitSetup  = 3 // something is missing on this machine; the message is the line to run
)

func main() {
	// These run inside sandboxes or at their start, before anything else is set up.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sandbox-init":
			os.Exit(inside.Main(os.Args[2:]))
		case egress.Command:
			os.Exit(egress.Main(os.Args[2:]))
		case pull.Command:
			os.Exit(pull.Main(os.Args[2:]))
		case shot.Command:
			os.Exit(shot.Main(os.Args[2:], os.Stdout, os.Stderr))
		case demo.AgentCommand:
			os.Exit(demo.Agent(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx))
}

// complaint is an error as a terminal shows it: it may quote a repository, which
// has nothing to say to a terminal, and whatever a program said of a token.
func complaint(msg string) string { return "inspect: " + redact.Visible(redact.New().String(msg)) }

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "inspect",
		Short:         "Background coding agents on your own machines",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(serveCommand(), controlCommand(), nodeCommand(), runnerCommand(), envCommand(), sessionCommand(), policyCommand(), secretsCommand(), auditCommand(), evidenceCommand(), buildkiteCommand(), reportCommand(), tryCommand(), shotCommand(), nomadCommand(), doctorCommand(), appCommand(), demoCommand(), installCommand(), commandsCommand())
	strict(root)
	return root
}

// strict has what is no command, and arguments that are too many or too few, end
// with exitUsage: cobra shows the help for `inspect session lss`, and ends well.
func strict(cmd *cobra.Command) {
	if args := cmd.Args; args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			cmd.SuggestionsMinimumDistance = 2
			words := fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0])
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				words += "; did you mean " + strings.Join(like, " or ") + "?"
			}
			return usagef("%s; see %s --help", words, cmd.CommandPath())
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

func run(ctx context.Context) int {
	return status(rootCommand().ExecuteContext(ctx))
}

// status says what is wrong, if anything is, and is how the program ends.
func status(err error) int {
	if err == nil {
		return 0
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, complaint(msg))
	}
	var coded interface{ ExitCode() int }
	errors.As(err, &coded)
	if _, program := coded.(*exec.ExitError); coded == nil || program {
		return exitFailed // the status of a program we ran is not ours
	}
	return coded.ExitCode()
}

type usageError struct{ error }

func (usageError) ExitCode() int   { return exitUsage }
func (e usageError) Unwrap() error { return e.error }

// usagef is an error that ends the program with exitUsage.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

type setupError struct{ error }

func (setupError) ExitCode() int { return exitSetup }
