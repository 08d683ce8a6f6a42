package codex

import (
	"strconv"
	"strings"

	"inspect/envs/harness"
)

// config is Codex's config.toml.
func config(in harness.Input) string {
	// A string of TOML between double quotes is written as one of JSON or Go is,
	// for all that can be in an address, a model's name or a path.
	q := strconv.Quote
	return strings.NewReplacer(
		"MODEL", q(in.Model), "BASE_URL", q(strings.TrimSuffix(in.Gateway, "/")+"/v1"), "DIR", q(in.Dir),
	).Replace(`model = MODEL
model_provider = "inspect"

# It runs inside a sandbox of ours; its own would let no command through.
sandbox_mode = "danger-full-access"
approval_policy = "never"

# Nothing is asked of anybody but the gateway.
check_for_update_on_startup = false
cli_auth_credentials_store = "file"
web_search = "disabled"

# The repository's instructions are in the prompt already.
project_doc_max_bytes = 0
# A login shell would begin with the system's PATH instead of the sandbox's.
allow_login_shell = false

[model_providers.inspect]
name = "inspect"
base_url = BASE_URL
wire_api = "responses"
supports_websockets = false
# The pauses double from 0.2 s: with these it tries for about two minutes.
stream_max_retries = 9

# Otherwise the repository's own .codex would be read: with full access Codex
# takes it for trusted, starts its MCP servers and follows its choice of model.
[projects.DIR]
trust_level = "untrusted"

[shell_environment_policy]
inherit = "all"
ignore_default_excludes = true

[agents]
enabled = false

[skills]
include_instructions = false

[skills.bundled]
enabled = false

[analytics]
enabled = false

[feedback]
enabled = false

[history]
persistence = "none"

[features]
apps = false
browser_use = false
computer_use = false
enable_request_compression = false
goals = false
hooks = false
image_generation = false
# A prompt given meanwhile waits for the model's answer to end instead of
# throwing it away: it would be paid for all the same.
instant_interrupt = false
plugins = false
remote_plugin = false
shell_snapshot = false
skill_mcp_dependency_install = false
tool_suggest = false
`)
}

// vendor are the hosts of Codex's maker, with all beneath them.
var vendor = []string{"openai.com", "chatgpt.com", "oaistatic.com", "oaiusercontent.com"}

// Noise tells whether Codex itself may want to reach a host: for its vendor's
// services, whatever the agent is doing. It also asks two of GitHub's hosts
// when plugins are on, which they are not here; a request to those is the agent's.
func Noise(host string, _ int) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for _, v := range vendor {
		if host == v || strings.HasSuffix(host, "."+v) {
			return true
		}
	}
	return false
}
