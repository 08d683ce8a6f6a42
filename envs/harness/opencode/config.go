package opencode

import (
	_ "embed"
	"encoding/json"
	"strings"

	"inspect/envs/harness"
	"inspect/envs/wire"
)

var (
	//go:embed launch.sh
	launchScript string
	//go:embed shell.sh
	shellScript string
	//go:embed guard.js
	guardScript string
)

// provider is the only one there is: the gateway.
const provider = "inspect"

// packages speak the APIs of the gateway; all of them are compiled in.
var packages = map[string]string{
	wire.APIChat:      "@ai-sdk/openai-compatible",
	wire.APIResponses: "@ai-sdk/openai",
	wire.APIMessages:  "@ai-sdk/anthropic",
}

// What is assumed of a model. A conversation that comes near the window is
// summed up; one that a smaller window refuses is as well, a call later.
const (
	contextTokens = 200_000
	outputTokens  = 32_000
)

// Milliseconds. The runner's door holds a call for five minutes while the
// control plane is away; a stream that says nothing for that long is dead.
const (
	headerTimeout = 15 * 60 * 1000
	chunkTimeout  = 5 * 60 * 1000
)

type object map[string]any

// config is OpenCode's opencode.json. Its home is ours alone.
func config(in harness.Input, home string) string {
	model := object{
		"name": in.Model, "tool_call": true,
		"limit": object{"context": contextTokens, "output": outputTokens},
	}
	b, err := json.Marshal(object{
		"model": provider + "/" + in.Model, "small_model": provider + "/" + in.Model,
		"enabled_providers": []string{provider},
		"provider": object{provider: object{
			"npm": packages[in.API], "name": "Inspect",
			"options": object{
				"baseURL": strings.TrimSuffix(in.Gateway, "/") + "/v1", "apiKey": "none-is-needed-here",
				"headerTimeout": headerTimeout, "chunkTimeout": chunkTimeout,
			},
			"models": object{in.Model: model, wire.ReadyModel: object{"name": "ready"}},
		}},
		"shell": home + "/bin/bash",
		// The last that fits decides, and what is not allowed waits for somebody
		// to ask. Nobody is here to answer a question.
		"permission": ordered{
			{"*", "allow"}, {"webfetch", "deny"}, {"websearch", "deny"}, {"question", "deny"}, {"skill", "deny"},
		},
		"share": "disabled", "autoupdate": false, "snapshot": false, "lsp": false, "formatter": false,
	})
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// ordered is an object whose fields stay in order.
type ordered []struct{ name, value string }

func (o ordered) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	for i, f := range o {
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	return []byte("{" + b.String() + "}"), nil
}

// vendor are hosts that only OpenCode itself would ask: its maker's.
var vendor = []string{"opencode.ai", "opncd.ai", "models.dev"}

// Noise tells whether OpenCode itself may want to reach a host, whatever the
// agent is doing. What it would fetch from others, its plugin package from the
// npm registry and ripgrep from GitHub, it does not here (see launch.sh): a
// request to those is the agent's.
func Noise(host string, _ int) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	for _, v := range vendor {
		if host == v || strings.HasSuffix(host, "."+v) {
			return true
		}
	}
	return false
}
