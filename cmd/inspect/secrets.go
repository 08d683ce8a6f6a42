package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"inspect/checks/redact"
	"inspect/scheduler/secrets"
	"inspect/storage"
	"inspect/storage/seal"
)

const (
	secretsKeyFile = "secrets.key"         // in the private directory
	secretsKeyVar  = "INSPECT_SECRETS_KEY" // keys themselves
	secretsKeyHelp = "file with the keys that environments' secrets are sealed with, the newest first (default: the keys in " + secretsKeyVar + ", else a file made in the data directory)"
)

// keyText returns the keys that environments' secrets are sealed with, as text.
// A file is read at each use, so that a rotation needs no restart.
type keyText func() (string, error)

// keys are those it returns now.
func (t keyText) keys() (*seal.Keys, error) {
	text, err := t()
	if err != nil {
		return nil, err
	}
	keys, err := seal.ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("the keys of secrets: %w", err)
	}
	return keys, nil
}

// secretKeys returns where the keys of environments' secrets come from. The
// file in the private directory is made by create if it is not there.
func secretKeys(file, private string, create func() ([]byte, error)) (keyText, error) {
	text, given := os.LookupEnv(secretsKeyVar)
	_ = os.Unsetenv(secretsKeyVar) // not for what we start
	where, from := secretsKeyVar, keyText(func() (string, error) { return text, nil })
	switch {
	case given && file != "":
		return nil, fmt.Errorf("--secrets-key-file and %s: expected one of them, but found both", secretsKeyVar)
	case !given && file == "":
		file = filepath.Join(private, secretsKeyFile)
		if create != nil {
			if _, err := secretFile(private, secretsKeyFile, create); err != nil {
				return nil, err
			}
		}
	}
	if !given {
		where, from = file, func() (string, error) { return readSecret(file, "the keys of secrets") }
	}
	if _, err := from.keys(); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return from, nil
}

// newVault is the store of environments' secrets.
func newVault(db *storage.DB, keys keyText, redactor *redact.Redactor, log *slog.Logger) *secrets.Store {
	return secrets.New(secrets.Options{DB: db, Keys: keys.keys, Redactor: redactor, Log: log})
}

// secrets says what the policy, as it is now, does not let a repository have.
func (f *floorFile) secrets(r storage.Repository, names []string) error {
	name := r.Owner + "/" + r.Name
	bounds, allowed := f.For(r.ID, name)
	if !allowed {
		return fmt.Errorf("%s may not use Inspect any more", name)
	}
	return bounds.Secrets(names)
}

// vaultFlags are the flags of `inspect secrets`.
type vaultFlags struct {
	dataFlags
	keyFile string

	repository, owner string
	all               bool
	file              string
}

func secretsCommand() *cobra.Command {
	var c vaultFlags
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Secrets that environments name: set, list, remove, rotate",
		Long: `Secrets that a repository's .inspect.yml names. They are kept sealed in the database of
a running ` + "`inspect serve`" + `; run this as the account that serves, or as root, with the
same --data, --postgres-url and --secrets-key-file. A change counts at once.`,
	}
	cmd.AddCommand(c.setCommand(), c.listCommand(), c.removeCommand(), c.rotateCommand())
	// Only these: whose secret it is must be said each time.
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.InheritedFlags()) }
	f := cmd.PersistentFlags()
	c.flags(f)
	f.StringVar(&c.keyFile, "secrets-key-file", "", secretsKeyHelp)
	return cmd
}

func (c *vaultFlags) scopeFlags(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringVar(&c.repository, "repository", "", "OWNER/REPO that has it")
	f.StringVar(&c.owner, "owner", "", "account, all of whose repositories have it")
	f.BoolVar(&c.all, "all", false, "all repositories have it")
	return cmd
}

func (c *vaultFlags) setCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME --repository OWNER/REPO | --owner OWNER | --all",
		Short: "Give a secret the value on standard input",
		Long: `Gives a secret the value on standard input or in a file. A line break at the end of a
value of one line is not part of it; a value of several lines is taken as it is. Of
several secrets of one name a repository has the narrowest: its own, its owner's, all's.

Snapshots that may hold another value are retired and prepared anew; sessions that run
go on with what they have.`,
		Example: "  inspect secrets set NPM_TOKEN --repository octocat/hello < token",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd.Context(), func(ctx context.Context, vault *secrets.Store) error {
				at, err := c.scope(ctx, vault)
				if err != nil {
					return err
				}
				value, err := readValue(cmd.InOrStdin(), c.file)
				if err != nil {
					return err
				}
				done, err := vault.Set(ctx, at, args[0], value, operator())
				if err != nil {
					return err
				}
				if done.Same {
					fmt.Fprintf(cmd.OutOrStdout(), "%s of %s had this value already. Nothing has changed.\n", args[0], at)
					return nil
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s of %s is set, version %d.\n", args[0], at, done.Version)
				return tellRetired(cmd.OutOrStdout(), done)
			})
		},
	}
	cmd.Flags().StringVar(&c.file, "from-file", "", "file with the value, instead of standard input")
	return c.scopeFlags(cmd)
}

func (c *vaultFlags) removeCommand() *cobra.Command {
	return c.scopeFlags(&cobra.Command{
		Use:   "remove NAME --repository OWNER/REPO | --owner OWNER | --all",
		Short: "Take a secret away",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd.Context(), func(ctx context.Context, vault *secrets.Store) error {
				at, err := c.scope(ctx, vault)
				if err != nil {
					return err
				}
				done, err := vault.Remove(ctx, at, args[0])
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s of %s is removed.\n", args[0], at)
				return tellRetired(cmd.OutOrStdout(), done)
			})
		},
	})
}

func tellRetired(out io.Writer, c secrets.Change) error {
	if len(c.Retired) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "Snapshots retired, since they may hold another value: %d. Sessions that run go on.\n", len(c.Retired))
	return err
}

func (c *vaultFlags) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the secrets there are, without their values",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(cmd.Context(), func(ctx context.Context, vault *secrets.Store) error {
				list, err := vault.List(ctx)
				if err != nil {
					return err
				}
				table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
				fmt.Fprintln(table, "NAME\tOF\tVERSION\tSET\tBY")
				for _, e := range list {
					fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", e.Name, e.At, e.Version, e.When.UTC().Format(time.RFC3339), e.By)
				}
				return table.Flush()
			})
		},
	}
}

func (c *vaultFlags) rotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate",
		Short: "Seal every secret with the newest key",
		Long: `Seals every secret anew with the first key of the key file, all or none. Before it, put
a new key (openssl rand -hex 32) on a line above the others; after it, the others can
be taken out. Neither needs a restart.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(cmd.Context(), func(ctx context.Context, vault *secrets.Store) error {
				n, key, err := vault.Rotate(ctx)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "Sealed with key %s: %d secrets. No other key is needed any more.\n", key, n)
				return err
			})
		},
	}
}

// scope is the one that was named.
func (c *vaultFlags) scope(ctx context.Context, vault *secrets.Store) (secrets.Scope, error) {
	switch {
	case c.repository != "" && c.owner == "" && !c.all:
		return vault.Repository(ctx, c.repository)
	case c.owner != "" && c.repository == "" && !c.all:
		return vault.Owner(ctx, c.owner)
	case c.all && c.repository == "" && c.owner == "":
		return secrets.All, nil
	}
	return secrets.Scope{}, usagef("whose secret is it? Give one of --repository OWNER/REPO, --owner OWNER and --all")
}

// with opens the store of the running `inspect serve`.
func (c *vaultFlags) with(ctx context.Context, do func(context.Context, *secrets.Store) error) error {
	db, err := openDatabase(ctx, c.dataFlags)
	if err != nil {
		return err
	}
	defer db.Close()
	data, err := filepath.Abs(c.data)
	if err != nil {
		return usagef("--data: %w", err)
	}
	keys, err := secretKeys(c.keyFile, filepath.Join(data, "private"), nil)
	if errors.Is(err, fs.ErrNotExist) && c.keyFile == "" {
		return fmt.Errorf("there is no key yet: `inspect serve --data %s` makes one when it starts (%w)", data, err)
	}
	if err != nil {
		return usageError{err}
	}
	return do(ctx, newVault(db, keys, nil, nil))
}

// readValue reads a value from a file or, without one, from in.
func readValue(in io.Reader, file string) ([]byte, error) {
	what := "standard input"
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, what = f, file
	} else if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return nil, usagef("the value is read from standard input, which a terminal would show: give it with < FILE, through a pipe or with --from-file")
		}
	}
	// Two bytes more, for a line break that is not part of it.
	value, err := io.ReadAll(io.LimitReader(in, secrets.MaxValueBytes+3))
	if err != nil {
		return nil, fmt.Errorf("read the value from %s: %w", what, err)
	}
	if i := bytes.IndexByte(value, '\n'); i >= 0 && i == len(value)-1 {
		value = bytes.TrimSuffix(value[:i], []byte("\r"))
	}
	return value, nil
}

// operator is who changes secrets here.
func operator() string {
	if name := os.Getenv("SUDO_USER"); name != "" && os.Geteuid() == 0 {
		return name
	}
	u, err := user.Current()
	if err != nil {
		return fmt.Sprintf("uid %d", os.Getuid())
	}
	return u.Username
}

// newSecretsKey is the content of a key file.
func newSecretsKey() ([]byte, error) { return []byte(seal.NewKey() + "\n"), nil }
