package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/cmd/inspect/install"
)

// What the installer writes is what the commands understand.
func TestInstalledConfiguration(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can install")
	}
	root := t.TempDir()
	program := filepath.Join(t.TempDir(), "inspect")
	for _, file := range []string{program, filepath.Join(root, "etc/passwd"), filepath.Join(root, "etc/group"), filepath.Join(root, "etc/shadow"), filepath.Join(root, "etc/gshadow")} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := install.Run(t.Context(), install.Options{Root: root, Data: "/var/lib/inspect", Binary: program, Accounts: systemAccounts(), Out: io.Discard}); err != nil {
		t.Fatal(err)
	}
	cmd := serveCommand()
	body, err := os.ReadFile(filepath.Join(root, "etc/inspect/inspect.env"))
	if err != nil {
		t.Fatal(err)
	}
	settings := 0
	for line := range strings.Lines(string(body)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "#"), "=")
		if !ok || strings.Contains(name, " ") {
			continue
		}
		settings++
		flag := cmd.Flags().Lookup(strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "INSPECT_")), "_", "-"))
		if flag == nil {
			t.Errorf("there is no flag for %s", name)
			continue
		}
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			t.Error(err)
		}
	}
	if settings < 6 {
		t.Errorf("there are only %d settings:\n%s", settings, body)
	}
}

// Each part has an account of its own, or serve does not start.
func TestAccountsMustDiffer(t *testing.T) {
	good := serveConfig{ControlUID: controlUID, SandboxUID: sandboxUID, EgressUID: egressUID, QuarantineUID: quarantineUID, MirrorUID: mirrorUID, RunnerUID: runnerUID, MaxSessions: 4}
	if err := good.checkAccounts(); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*serveConfig){
		"root":                 func(c *serveConfig) { c.ControlUID = 0 },
		"control and sandbox":  func(c *serveConfig) { c.SandboxUID = c.ControlUID },
		"runners over another": func(c *serveConfig) { c.RunnerUID = c.EgressUID - runnerUIDs + 1 },
		"negative":             func(c *serveConfig) { c.EgressUID = -1 },
		"too many sessions":    func(c *serveConfig) { c.MaxSessions = runnerUIDs + 1 },
	} {
		c := good
		edit(&c)
		if err := c.checkAccounts(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
