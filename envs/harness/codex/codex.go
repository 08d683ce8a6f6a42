// Package codex is the harness adapter for OpenAI's Codex: one `codex
// app-server` inside the sandbox, spoken to in JSON lines. Prompts come in and
// become turns of one thread, or, while a turn runs, words put into it; its
// items go out as events.
//
// Codex finds its model at the gateway, with the responses API. Its home is a
// fresh directory beneath the agent's: no configuration of the repository, of
// its setup or of an earlier attempt is read, and nothing is asked of anybody
// but the gateway (see config.go).
package codex

import (
	"context"
	"errors"
	"fmt"
	"path"

	"inspect/envs/harness"
	"inspect/envs/harness/dialog"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// Harness starts the program "codex", which is looked up inside the sandbox.
// The zero Clock is the system's.
type Harness struct {
	Clock proc.Clock
}

var _ harness.Harness = Harness{}

// name is how people call it.
const name = "Codex"

// Boot writes the configuration and starts the program. It is ready when it
// has answered.
func (h Harness) Boot(ctx context.Context, sb harness.Sandbox, in harness.Input, events func(harness.Event)) (harness.Session, error) {
	if in.Model == "" || in.Gateway == "" {
		return nil, errors.New("codex needs a model: name one with harness.model")
	}
	if in.API != "" && in.API != wire.APIResponses {
		return nil, fmt.Errorf("codex speaks the %s API and not %s", wire.APIResponses, in.API)
	}
	home := path.Join(in.Home, ".inspect", "codex")
	return dialog.Boot(ctx, sb, in, h.Clock, events, dialog.Program{
		Name: name, Argv: []string{"codex", "app-server"},
		Env: []string{"CODEX_HOME=" + home},
		Dir: in.Home, // the repository may not be there yet
		// A fresh directory: what is there may have been put there by setup.
		Prepare: `umask 077; rm -rf -- "$1" && mkdir -p -- "$1" && cat >"$1/config.toml"`,
		Args:    []string{home}, Stdin: config(in),
		Early: true,
	}, func(t dialog.Talk) dialog.Speaker {
		return &speaker{Talk: t, in: in, calls: map[int]func(reply){}}
	}), nil
}
