package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"inspect/app/policy"
	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// floorFile is the operator's policy file. It is read at each use, so that a
// change counts from the next decision on. A file that cannot be used any more
// leaves what it last said in force, and that is logged.
type floorFile struct {
	path string
	read func() ([]byte, error)
	log  *slog.Logger

	mu    sync.Mutex
	body  []byte
	floor policy.Floor
	said  string // the last complaint, so that it is made once
}

// openFloor reads the file for the first time. Without a path nothing is bound.
func openFloor(path string, log *slog.Logger) (*floorFile, error) {
	return openFloorBy(path, log, func() ([]byte, error) { return readBounded(path, spec.MaxFloorBytes) })
}

// openFloorBy is openFloor with somebody else who reads the file.
func openFloorBy(path string, log *slog.Logger, read func() ([]byte, error)) (*floorFile, error) {
	f := &floorFile{path: path, read: read, log: log}
	if path == "" {
		return f, nil
	}
	body, err := read()
	var floor policy.Floor
	if err == nil {
		floor, err = parseFloor(path, body)
	}
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	f.body, f.floor = body, floor
	return f, nil
}

// For is policy.Floor's, of the file as it is now.
func (f *floorFile) For(repositoryID int64, ownerName string) (policy.Bounds, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" {
		f.reread()
	}
	return f.floor.For(repositoryID, ownerName)
}

// bound is what binds a repository now, for scheduler.Options.
func (f *floorFile) bound(repositoryID int64, ownerName string, sp spec.Spec) (scheduler.Bound, error) {
	b, allowed := f.For(repositoryID, ownerName)
	if !allowed {
		return scheduler.Bound{Denied: "Whoever runs Inspect does not allow it for this repository any more."}, nil
	}
	out, _, err := policy.Effective(sp, b)
	var beyond *policy.BeyondError
	if errors.As(err, &beyond) {
		return scheduler.Bound{Denied: "Whoever runs Inspect has come to allow less than this needs: " + beyond.Error() + "."}, nil
	}
	tier, _ := b.Sandbox()
	return scheduler.Bound{Spec: out, Tier: tier, Pull: b.NamesImage(out.Image)}, err
}

// submodule says whether the policy, as it is now, lets submodules of a
// repository be read with a token from another.
func (f *floorFile) submodule(r, module storage.Repository) bool {
	b, allowed := f.For(r.ID, r.Owner+"/"+r.Name)
	return allowed && b.Submodule(module.Owner+"/"+module.Name)
}

func (f *floorFile) reread() {
	body, err := f.read()
	floor := f.floor
	if err == nil && !bytes.Equal(body, f.body) {
		floor, err = parseFloor(f.path, body)
	}
	if err != nil {
		if err.Error() != f.said {
			f.said = err.Error()
			f.log.Error("the policy file cannot be used; what it said before stays in force", "error", err)
		}
		return
	}
	if f.said = ""; !bytes.Equal(body, f.body) {
		f.body, f.floor = body, floor
		f.log.Info("the policy file has changed", "file", f.path)
	}
}

func readFloor(path string) ([]byte, policy.Floor, error) {
	body, err := readBounded(path, spec.MaxFloorBytes)
	if err != nil {
		return nil, policy.Floor{}, err
	}
	floor, err := parseFloor(path, body)
	return body, floor, err
}

func parseFloor(path string, body []byte) (policy.Floor, error) {
	floor, problems := policy.ParseFloor(body)
	if len(problems) == 0 {
		return floor, nil
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = path + ": " + p.String()
	}
	return floor, errors.New(strings.Join(lines, "\n"))
}

// readBounded reads a file, and one byte more than most of a longer one.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return body, nil
}

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "The operator's floor: what no repository can pass"}
	cmd.AddCommand(policyCheckCommand(), policyExplainCommand())
	return cmd
}

func policyCheckCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "check --policy FILE",
		Short: "Check a policy file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return usagef("--policy is missing: the file to check")
			}
			if _, _, err := readFloor(path); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path+" is valid")
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "policy", "", "policy file")
	return withEnvironment(cmd)
}

// explainFlags are the flags of `inspect policy explain`.
type explainFlags struct {
	policy, file string
	id           int64
}

func policyExplainCommand() *cobra.Command {
	var c explainFlags
	cmd := &cobra.Command{
		Use:   "explain OWNER/REPO",
		Short: "Print what counts for a repository, and where each value comes from",
		Long: `Prints each key of the effective policy of a repository: the stricter of its
` + spec.FileName + ` and the operator's policy file. What the repository asks for beyond
it is named below the table, and the exit status is 1: no session would start.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if owner, name, ok := strings.Cut(args[0], "/"); !ok || owner == "" || name == "" || strings.Contains(name, "/") {
				return usagef("expected OWNER/REPO, but found %q", args[0])
			}
			return explain(cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.policy, "policy", "", "policy file (default: none, nothing is bound)")
	f.StringVar(&c.file, "file", "", "the repository's file (default: "+spec.FileName+" here if there is one, else what counts without one)")
	f.Int64Var(&c.id, "repository-id", 0, "GitHub's number of the repository, for entries with an id")
	return withEnvironment(cmd)
}

func explain(out, notes io.Writer, repository string, c explainFlags) error {
	var floor policy.Floor
	if c.policy != "" {
		var err error
		if _, floor, err = readFloor(c.policy); err != nil {
			return err
		}
	}
	if c.id == 0 && floor.NeedsID() {
		fmt.Fprintln(notes, "The policy has entries with an id; without --repository-id none of them counts here.")
	}
	sp := spec.Default()
	name := c.file
	if name == "" {
		name = spec.FileName
	}
	body, err := readBounded(name, spec.MaxFileBytes)
	switch {
	case c.file == "" && errors.Is(err, fs.ErrNotExist):
		fmt.Fprintf(notes, "There is no %s here: this is what counts without one.\n", spec.FileName)
	case err != nil:
		return err
	default:
		var problems spec.Problems
		if sp, problems = spec.Parse(body); len(problems) > 0 {
			return problems
		}
	}
	bounds, allowed := floor.For(c.id, repository)
	if !allowed {
		return fmt.Errorf("%s may not use Inspect: no entry of repositories in %s names it", repository, c.policy)
	}
	_, values, err := policy.Effective(sp, bounds)
	values = append(values, floor.ExplainPipelines(c.id, repository, sp)...)
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tVALUE\tFROM")
	for _, v := range values {
		from := v.From
		if v.Instead != "" {
			from += ", instead of " + v.Instead
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", v.Key, redact.OneLine(v.Value, 400), from)
	}
	if flushErr := table.Flush(); flushErr != nil {
		return flushErr
	}
	var beyond *policy.BeyondError
	if errors.As(err, &beyond) {
		for _, w := range beyond.What {
			fmt.Fprintf(out, "\n%s: %q is beyond what %s allows: %s\n", w.Key, w.Asked, w.From, redact.OneLine(w.Most, 500))
		}
		return fmt.Errorf("no session would start for %s", repository)
	}
	return err
}
