package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/pflag"

	"inspect/envs/wire"
)

// tierFlags say what sandboxes are made of.
type tierFlags struct{ Tier, Runsc string }

func (t *tierFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&t.Tier, "sandbox", wire.TierBubblewrap, "what sandboxes are made of: bubblewrap, or gvisor, which has a kernel of its own between them and this machine's")
	f.StringVar(&t.Runsc, "runsc", "", "gVisor's program runsc (default: beside this one, then on PATH, then in /usr/local/bin)")
}

// check completes the flags. The sandboxes' package says what is missing.
func (t *tierFlags) check() error {
	if t.Tier != wire.TierBubblewrap && t.Tier != wire.TierGVisor {
		return usagef("--sandbox: expected bubblewrap or gvisor, but found %q", t.Tier)
	}
	if t.Tier == wire.TierBubblewrap {
		return nil
	}
	if t.Runsc == "" {
		t.Runsc = findRunsc()
	}
	path, err := filepath.Abs(t.Runsc)
	if err != nil {
		return usagef("--runsc: %w", err)
	}
	t.Runsc = path
	return nil
}

// args are the flags for another of this program's commands.
func (t tierFlags) args() []string {
	if t.Tier != wire.TierGVisor {
		return nil
	}
	return []string{"--sandbox", t.Tier, "--runsc", t.Runsc}
}

func findRunsc() string {
	const name, usual = "runsc", "/usr/local/bin/runsc"
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), name); executable(p) {
			return p
		}
	}
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	return usual
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}
