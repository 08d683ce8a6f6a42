package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"inspect/cmd/inspect/install"
)

func installCommand() *cobra.Command {
	o := install.Options{Accounts: systemAccounts()}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Put Inspect onto this machine: accounts, directories, a systemd unit",
		Long: `Makes the system accounts, the data directory, /etc/inspect with sample files,
/usr/local/bin/inspect and inspect-init, runsc if it was built (make setup), and the
systemd unit inspect.service. It starts nothing. Run again it brings program and
unit up to date; what you have edited stays.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = cmd.OutOrStdout()
			o.Binary, _ = os.Executable() // Run says if it cannot be read
			o.Init = findInit(o.Binary)   // reads all of it: no other command, above all no runner, is to wait for that
			err := install.Run(cmd.Context(), o)
			if errors.Is(err, install.ErrForeign) {
				return setupError{err}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Root, "root", "", "install into this file tree instead, for a package or an image")
	f.StringVar(&o.Data, "data", "/var/lib/inspect", "directory of everything Inspect keeps")
	f.BoolVar(&o.DryRun, "dry-run", false, "only say what would be done")
	return cmd
}

// systemAccounts are the accounts of a split installation. Those of runners
// have one name for the first of them: a number is enough for the others.
func systemAccounts() []install.Account {
	return []install.Account{
		{Name: "inspect", UID: controlUID, For: "control plane", Setting: "INSPECT_CONTROL_UID"},
		{Name: "inspect-sandbox", UID: sandboxUID, For: "sandboxes", Setting: "INSPECT_SANDBOX_UID"},
		{Name: "inspect-quarantine", UID: quarantineUID, For: "git on hostile bundles", Setting: "INSPECT_QUARANTINE_UID"},
		{Name: "inspect-mirror", UID: mirrorUID, For: "git in the mirrors of repositories", Setting: "INSPECT_MIRROR_UID"},
		{Name: "inspect-egress", UID: egressUID, For: "proxies of setup", Setting: "INSPECT_EGRESS_UID"},
		{Name: "inspect-runner", UID: runnerUID, For: "first of the runners", Setting: "INSPECT_RUNNER_UID"},
		{Name: "inspect-postgres", For: "private database", Setting: "INSPECT_POSTGRES_USER"},
	}
}
