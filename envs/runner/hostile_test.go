package runner

import (
	"os"
	"strings"
	"testing"

	"inspect/envs/wire"
)

func TestOutputIsBounded(t *testing.T) {
	w := newWorld(t)
	w.spec.Limits.OutputBytes = 100_000
	w.spec.Harness.Command = []string{"sh", "-c", "yes | head -c 5000000; echo good >state.txt"}
	w.spec.Verify[0].Run = "yes | head -c 5000000; echo the end >&2"
	o := w.outcome()
	if o.Kind != wire.OutcomeVerified || !o.Results[0].Truncated {
		t.Fatalf("outcome %+v", o)
	}
	if got := len(w.control.artifacts[o.Results[0].Stdout]); got != 100_000 {
		t.Errorf("the artifact has %d bytes", got)
	}
	if got := len(w.control.texts(wire.EventOutput)); got > 110_000 {
		t.Errorf("the events hold %d bytes of output", got)
	}
}

func TestNoisyOutputIsHarmlessData(t *testing.T) {
	w := newWorld(t, "--mode", "noisy")
	w.spec.Verify[0].Run = `printf 'nul \000 esc \033[31m bad \377\n'; echo 'Authorization: Bearer abcdEFGHabcdEFGH'`
	o := w.outcome()
	out := w.control.texts(wire.EventOutput)
	for _, bad := range []string{"ghs_A1b2C3d4", "abcdEFGHabcd", "\x00"} {
		if strings.Contains(out, bad) {
			t.Errorf("the events hold %q", bad)
		}
	}
	for _, want := range []string{"nul \u2400 and bell", "\x1b[31mred", "[redacted]"} {
		if !strings.Contains(out, want) {
			t.Errorf("the events lack %q", want)
		}
	}
	if got := string(w.control.artifacts[o.Results[0].Stdout]); got != "nul \x00 esc \x1b[31m bad \xff\nAuthorization: Bearer [redacted]\n" {
		t.Errorf("artifact %q", got)
	}
}

// Neither the one-time secret nor the token comes into a sandbox by any way.
func TestNoCredentialInTheSandbox(t *testing.T) {
	w := newWorld(t)
	w.spec.Harness.Command = []string{"sh", "-c", `
{ env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; find / -xdev -type f -newermt '-10 minutes' -exec cat {} + ; cat "$HOME"/.inspect/*; cat "$HOME/.gitconfig"; } 2>/dev/null | head -c 4000000 >seen.bin
echo good >state.txt`}
	o := w.outcome()
	seen := w.file(w.unbundle(o.Bundle), "seen.bin")
	if !strings.Contains(seen, "INSPECT_SESSION=abcdefghij") || !strings.Contains(seen, "make the state good") {
		t.Fatal("the agent has not seen even its own environment and prompt")
	}
	for _, secret := range []string{testSecret, "bearer-token-number", "WorkGrant", w.opt.Spool} {
		if strings.Contains(seen, secret) {
			t.Errorf("the sandbox holds %q", secret)
		}
	}
}

// Nothing an agent does to its home, its files or its repository stops the work
// from being taken.
func TestHostileClone(t *testing.T) {
	for name, script := range map[string]string{
		"home is closed":         `chmod 000 "$HOME"; chmod 000 /workspace`,
		"our directory is taken": `rm -rf "$HOME/.inspect"; ln -s /workspace "$HOME/.inspect"`,
		"our directory is file":  `rm -rf "$HOME/.inspect"; echo x >"$HOME/.inspect"`,
		"hooks and filters": `mkdir -p .git/hooks; for h in pre-commit post-index-change reference-transaction post-checkout; do printf '#!/bin/sh\necho ran >>/workspace/hooked; exit 1\n' >.git/hooks/$h; chmod +x .git/hooks/$h; done
git config core.fsmonitor 'sh -c "echo ran >>/workspace/hooked"'; git config filter.x.clean 'echo ran >>/workspace/hooked'; echo '* filter=x' >.git/info/attributes`,
		"config that misleads":  `git config core.worktree /tmp; git config core.bare true; git config core.excludesFile /dev/zero; git config core.quotePath true`,
		"index is a pipe":       `rm -f .git/index; mkfifo .git/index`,
		"exclude is a pipe":     `rm -f .git/info/exclude; mkfifo .git/info/exclude`,
		"objects are read-only": `chmod -R a-w .git/objects`,
		"replaced objects":      `git replace HEAD "$(git commit-tree HEAD^{tree} -m x)"`,
		"odd names":             `printf x >"$(printf 'a\nb')"; printf x >-n; mkdir -p ' '; printf x >' /:'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.spec.Harness.Command = []string{"sh", "-c", "echo good >state.txt\n" + script}
			o := w.outcome()
			if o.Kind != wire.OutcomeVerified {
				t.Fatalf("outcome %+v", o)
			}
			dir := w.unbundle(o.Bundle)
			if got := w.file(dir, "state.txt"); got != "good\n" {
				t.Errorf("state.txt is %q", got)
			}
			if _, err := os.Stat(dir + "/hooked"); err == nil {
				t.Error("a hook or filter of the agent's ran while its work was taken")
			}
		})
	}
}
