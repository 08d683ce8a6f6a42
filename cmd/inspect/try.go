package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"inspect/cmd/inspect/try"
	"inspect/envs/gateway"
	"inspect/envs/spec"
)

// tryFlags are the flags of `inspect try` that are not Options as they stand.
type tryFlags struct {
	budget   string
	timeout  time.Duration
	models   string
	programs []string
	prompt   string
	tier     tierFlags
}

func tryCommand() *cobra.Command {
	var o try.Options
	var c tryFlags
	cmd := &cobra.Command{
		Use:   "try --repo PATH --prompt TEXT",
		Short: "Have an agent work on a clone of your own, without GitHub",
		Long: `Copies the history of HEAD, prepares an environment in a sandbox, has an agent
work in it, verifies the result in a second, clean copy and leaves it as a new
branch inspect/… in your repository, with the evidence as files elsewhere. Your
working tree, index, HEAD, configuration and all other branches stay as they
are; uncommitted changes are not part of it.

Progress goes to standard error, the result to standard output.
Exit status: 0 delivered; 1 it ended in another way (nothing changed,
verification failed, out of time or budget); 2 flags, files or the repository
need to be put right; 3 something is missing on this machine; 130 interrupted.
Ctrl-C ends the session with its work kept; a second one ends it at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runTry(cmd, o, c) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Repo, "repo", ".", "directory in a git repository: a worktree, below one, or a bare repository")
	f.StringVar(&c.prompt, "prompt", "", "what the agent shall do; - reads standard input")
	f.StringVar(&o.Tasks, "task", "", "run a file of frozen tasks instead: a YAML list of {name, repository, commit, prompt, verify, …}")
	f.StringVar(&o.Harness, "harness", "", "agent: opencode, codex, claude or command (default: the repository's "+spec.FileName+", else opencode)")
	f.StringVar(&o.Command, "command", "", "shell line of the agent of kind command; it gets the prompt on standard input")
	f.StringVar(&o.Model, "model", "", "model of the agent, as the file of --models names it")
	f.StringVar(&c.models, "models", "", "file with model providers, models and prices (default: --model openai/NAME or anthropic/NAME with the key in OPENAI_API_KEY or ANTHROPIC_API_KEY)")
	f.StringArrayVar(&o.Setup, "setup", nil, "shell line that prepares the environment; replaces the repository's, may be repeated")
	f.StringArrayVar(&o.Verify, "verify", nil, "LINE or NAME=LINE that verifies the result; replaces the repository's, may be repeated")
	f.StringSliceVar(&o.Egress, "egress", nil, "host, host:port or ecosystem (npm, go, pypi, …) that can be reached, in addition")
	f.StringVar(&c.budget, "budget", "", "most to be spent on model calls, in US dollars: 2.50")
	f.DurationVar(&c.timeout, "timeout", 0, "most time for the agent's work: 30m (default: the repository's)")
	f.StringVar(&o.Data, "data", "", "directory to work in and to keep: the next try at the same commit begins sooner (default: a temporary one)")
	f.StringVar(&o.Out, "out", "", "empty directory for the evidence (default: below ~/.local/state/inspect/try)")
	f.StringSliceVar(&o.Expose, "expose", nil, "further directories of this machine that sandboxes may read, at the same path; their bin is on PATH")
	f.StringSliceVar(&c.programs, "program", nil, "NAME=PATH of an agent's native program (default: found on PATH)")
	f.StringVar(&o.Limits, "limits", "", "enforce or best-effort (default: enforce as root)")
	c.tier.flags(f)
	f.BoolVar(&o.JSON, "json", false, "print one JSON object on standard output")
	f.BoolVar(&o.Keep, "keep", false, "keep the temporary directory")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "show what the agent prints, and every connection")
	return cmd
}

// runTry completes the options and runs the try.
func runTry(cmd *cobra.Command, o try.Options, c tryFlags) error {
	if err := c.complete(cmd, &o); err != nil {
		return err
	}
	p, err := newPrograms(c.programs, sandboxAccount())
	if err != nil {
		return err
	}
	models, err := c.loadModels(o)
	if err != nil {
		return usageError{err}
	}
	if m, ok := models.Model(o.Model); ok && !m.Priced && o.Budget > 0 {
		return usagef("--budget: %s has no price, so a budget cannot be kept; give one in a file with --models", o.Model)
	}
	o.ChooseModel = func(kind, model string) (string, error) {
		if model == "" && models.Default == "" {
			return "", errors.New("name one with --model, and where it is with --models FILE (or openai/NAME or anthropic/NAME with the key in OPENAI_API_KEY or ANTHROPIC_API_KEY)")
		}
		return offered(models)(kind, model)
	}
	o.Provide, o.Open = p.provide, houses(models, c.tier, storeFlags{})
	o.Stdout, o.Progress = os.Stdout, os.Stderr
	o.Colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && terminal(os.Stderr)
	again, done := interrupts()
	defer done()
	o.Again = again
	// A terminal that goes away is an interrupt.
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	return try.Run(ctx, o)
}

// sandboxAccount is the account of sandboxes.
func sandboxAccount() int {
	if os.Geteuid() != 0 {
		return os.Getuid()
	}
	return sandboxUID
}

// complete reads flags that are not options as they stand.
func (c *tryFlags) complete(cmd *cobra.Command, o *try.Options) error {
	set := cmd.Flags().Changed
	switch {
	case o.Tasks != "" && (set("repo") || set("prompt")):
		return usagef("--task has the repositories and prompts in its file: give it without --repo and --prompt")
	case o.Limits != "" && o.Limits != "enforce" && o.Limits != "best-effort":
		return usagef("--limits: expected enforce or best-effort, but found %q", o.Limits)
	case set("timeout") && c.timeout < time.Second:
		return usagef("--timeout: expected a duration like 30m, but found %s", c.timeout)
	}
	if o.Limits == "" {
		o.Limits = "enforce"
		if os.Geteuid() != 0 {
			o.Limits = "best-effort"
		}
	}
	if err := c.tier.check(); err != nil {
		return err
	}
	o.Timeout = c.timeout
	if c.budget != "" {
		var err error
		if o.Budget, err = spec.ParseMoney(c.budget); err != nil || o.Budget == 0 {
			return usagef("--budget: expected an amount in US dollars like 2.50, but found %q", c.budget)
		}
	}
	for i, e := range o.Expose {
		abs, err := filepath.Abs(e)
		if err == nil {
			_, err = os.Stat(abs)
		}
		if err != nil {
			return usagef("--expose %s: %w", e, err)
		}
		if p := (programs{uid: sandboxAccount()}); !p.reachable(abs) {
			return usagef("--expose %s: the account of sandboxes cannot pass to it; open it and the directories above it to others (chmod o+x), or copy it elsewhere", e)
		}
		o.Expose[i] = abs
	}
	if o.Prompt = c.prompt; o.Prompt == "-" {
		body, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
		if err != nil {
			return fmt.Errorf("read the prompt: %w", err)
		}
		o.Prompt = string(body)
	}
	return nil
}

// loadModels reads the file of models. Without one a provider whose key or
// address is in the environment serves a model of its name.
func (c tryFlags) loadModels(o try.Options) (gateway.Config, error) {
	if c.models != "" || o.Model == "" {
		return loadModels(c.models)
	}
	return gateway.FromEnvironment(o.Model, os.Getenv)
}

// interrupts is closed by the second interrupt. The third ends the program at
// once: what it started ends with it, a temporary directory is removed by the
// next try.
func interrupts() (again <-chan struct{}, done func()) {
	signals, second, stop := make(chan os.Signal, 8), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for n := 1; ; n++ {
			select {
			case <-signals:
			case <-stop:
				return
			}
			switch n {
			case 2:
				close(second)
			case 3:
				os.Exit(try.ExitInterrupted)
			}
		}
	}()
	return second, func() {
		signal.Stop(signals)
		close(stop)
	}
}

// terminal says whether a file is one.
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
