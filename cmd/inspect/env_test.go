package main

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// An argument that is there but empty is a script's mistake, and none at all means
// more.
func TestEnvArgumentsThatWillNotDo(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"status", ""}, "OWNER/REPO is empty"},
		{[]string{"prune", ""}, "OWNER/REPO is empty"},
		{[]string{"prune", "--session", ""}, "--session is empty"},
		{[]string{"bench", "--store", "zfs"}, "--store zfs needs --zfs-root"},
		{[]string{"bench", "--store", "zfs", "--zfs-root", "tank/bench"}, "--store zfs needs"},
	} {
		cmd := envCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(c.args)
		cmd.SetOut(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
