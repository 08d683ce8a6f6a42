// Package claude is the harness adapter for Anthropic's Claude Code: one
// `claude -p` inside the sandbox that reads prompts and writes what it does as
// JSON lines. A prompt given while it works reaches it with the next result of
// a tool; its messages and tool calls go out as events.
//
// Claude Code finds its model at the gateway, with the messages API. Its
// settings are in a fresh directory beneath the agent's home: none of the
// repository's settings, hooks, MCP servers and instructions are loaded, and
// nothing is asked of anybody but the gateway.
package claude

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"inspect/envs/harness"
	"inspect/envs/harness/dialog"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// Harness starts the program "claude", which is looked up inside the sandbox.
// The zero Clock is the system's.
type Harness struct {
	Clock proc.Clock
}

var _ harness.Harness = Harness{}

// name is how people call it.
const name = "Claude Code"

// keyless stands where a key is insisted on: the gateway has the real one.
const keyless = "the-gateway-has-the-key"

// denied are tools that reach outside, wait for somebody, leave the repository
// or make the program outlive its work. Names it does not know do no harm.
var denied = []string{
	"WebFetch", "WebSearch",
	"AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "SendMessage", "ListAgents", "PushNotification", "ReportFindings",
	"EnterWorktree", "ExitWorktree", "RemoteTrigger",
	"Monitor", "ScheduleWakeup", "CronCreate", "CronDelete", "CronList", "Workflow", "ToolSearch",
}

// Boot returns a session that is ready at once: the program is started with
// the first prompt, since it looks at the repository as it starts.
func (h Harness) Boot(ctx context.Context, sb harness.Sandbox, in harness.Input, events func(harness.Event)) (harness.Session, error) {
	if in.Model == "" || in.Gateway == "" {
		return nil, errors.New("claude needs a model: name one with harness.model")
	}
	if in.API != "" && in.API != wire.APIMessages {
		return nil, fmt.Errorf("claude speaks the %s API and not %s", wire.APIMessages, in.API)
	}
	home := path.Join(in.Home, ".inspect", "claude")
	return dialog.Boot(ctx, sb, in, h.Clock, events, dialog.Program{
		Name: name, Dir: in.Dir,
		Argv: []string{
			"claude", "--print", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json",
			"--replay-user-messages", // tells when a prompt reaches the model
			"--dangerously-skip-permissions",
			"--disallowedTools", strings.Join(denied, ","),
			"--setting-sources", "user", // which are those below home: none
			"--settings", `{"attribution":{"commit":"","pr":""},"includeCoAuthoredBy":false}`,
			"--strict-mcp-config", "--disable-slash-commands", "--no-chrome", "--no-session-persistence",
		},
		Env:     environment(in, home),
		Prepare: `umask 077; rm -rf -- "$1" && mkdir -p -- "$1"`,
		Args:    []string{home},
	}, func(t dialog.Talk) dialog.Speaker {
		return &speaker{Talk: t, calls: map[string]call{}}
	}), nil
}

func environment(in harness.Input, home string) []string {
	env := []string{
		"ANTHROPIC_BASE_URL=" + strings.TrimSuffix(in.Gateway, "/"),
		"ANTHROPIC_AUTH_TOKEN=" + keyless,
		"CLAUDE_CONFIG_DIR=" + home,
		"DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DISABLE_BUG_COMMAND=1",
		"DISABLE_INSTALLATION_CHECKS=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"CLAUDE_CODE_ATTRIBUTION_HEADER=0",
		// What runs in the background would be cut off by the end of the turn.
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
		// A build may take longer than the two minutes it would get.
		"BASH_DEFAULT_TIMEOUT_MS=600000", "BASH_MAX_TIMEOUT_MS=3600000",
	}
	// Whatever it would ask another model for is asked of the session's.
	for _, v := range []string{
		"ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
		"ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_FABLE_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
	} {
		env = append(env, v+"="+in.Model)
	}
	return env
}

// vendor are the hosts of Claude Code's maker, with all beneath them.
var vendor = []string{"anthropic.com", "claude.ai", "claude.com"}

// Noise tells whether Claude Code itself may want to reach a host: for its
// vendor's services and telemetry, whatever the agent is doing.
func Noise(host string, _ int) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for _, v := range vendor {
		if host == v || strings.HasSuffix(host, "."+v) {
			return true
		}
	}
	return host == "http-intake.logs.us5.datadoghq.com"
}
