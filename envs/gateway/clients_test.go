package gateway

import (
	"strings"
	"testing"
)

// What agents really send, as seen with OpenCode 1.18.33, Codex 0.171.0 and
// Claude Code 2.1.332 on a server of ours: the fields and their shapes, with
// texts of our own. All of it is taken; what must reach the provider does.
func TestRealClients(t *testing.T) {
	for _, c := range []struct {
		name, api, body string
		keeps           []string
	}{
		{"OpenCode, @ai-sdk/openai-compatible", "chat", `{
			"model":"anthropic/claude-sonnet","max_tokens":32000,
			"messages":[
				{"role":"system","content":"You are an agent.","cache_control":{"type":"ephemeral"}},
				{"role":"user","content":"run a command"},
				{"role":"assistant","content":"","tool_calls":[{"id":"call_2","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"},"cache_control":{"type":"ephemeral"}}]},
				{"role":"tool","tool_call_id":"call_2","content":"a.txt\n","cache_control":{"type":"ephemeral"}}],
			"tools":[{"type":"function","function":{"name":"bash","description":"runs","parameters":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"command":{"type":"string"}},"required":["command"],"additionalProperties":false}}}],
			"tool_choice":"auto","stream":true,"stream_options":{"include_usage":true}}`,
			[]string{`"cache_control":{"type":"ephemeral"}`, `"arguments":"{\"command\":\"ls\"}"`, `"required":["command"]`, `"tool_choice":"auto"`}},
		{"OpenCode, a model that thinks", "chat", `{
			"model":"anthropic/claude-sonnet","max_tokens":32000,"reasoning_effort":"high",
			"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"reasoning_content":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm","format":"x","index":0}],
				"tool_calls":[{"id":"a","type":"function","index":0,"function":{"name":"b","arguments":"{}"},"extra_content":{"google":{"thought_signature":"c2ln"}}}]},
				{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"x"}]}]}`,
			[]string{`"reasoning_content":"hm"`, `"thought_signature":"c2ln"`, `"content":null`}},
		{"OpenCode, @ai-sdk/anthropic", "messages", `{
			"model":"anthropic/claude-sonnet","max_tokens":32000,
			"system":[{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}}],
			"messages":[{"role":"user","content":[{"type":"text","text":"run a command"}]},
				{"role":"assistant","content":[{"type":"tool_use","id":"toolu_2","name":"bash","input":{"command":"ls"},"cache_control":{"type":"ephemeral"}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_2","content":"a.txt\n","cache_control":{"type":"ephemeral"}}]}],
			"tools":[{"name":"bash","description":"runs","input_schema":{"type":"object"},"eager_input_streaming":true}],
			"tool_choice":{"type":"auto"},"stream":true}`,
			[]string{`"eager_input_streaming":true`, `"input":{"command":"ls"}`}},
		{"OpenCode, @ai-sdk/openai", "responses", `{
			"model":"anthropic/claude-sonnet",
			"input":[{"role":"system","content":"You are an agent."},{"role":"user","content":[{"type":"input_text","text":"hi"}]}],
			"max_output_tokens":32000,"store":false,"prompt_cache_key":"ses_1",
			"tools":[{"type":"function","name":"bash","description":"runs","parameters":{"type":"object"},"strict":false}],"tool_choice":"auto","stream":true}`,
			[]string{`"prompt_cache_key":"ses_1"`, `"store":false`}},
		{"Codex", "responses", `{
			"model":"anthropic/claude-sonnet","stream":true,
			"input":[
				{"type":"message","id":"msg_1","role":"developer","content":[{"type":"input_text","text":"You are an agent."}]},
				{"type":"message","id":"msg_2","role":"user","content":[{"type":"input_text","text":"say hi"}]},
				{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"content":null,"encrypted_content":"gAAAA"},
				{"type":"function_call","status":"completed","id":"fc_1","name":"exec_command","arguments":"{\"cmd\":\"ls\"}","call_id":"call_1"},
				{"type":"function_call_output","id":"fco_1","call_id":"call_1","output":"a.txt"},
				{"type":"function_call_output","id":"fco_2","call_id":"call_2","output":[{"type":"input_image","image_url":"data:image/png;base64,AAAA","detail":"high"}]}],
			"tools":[
				{"type":"function","name":"exec_command","description":"runs","strict":false,"parameters":{"type":"object"}},
				{"type":"namespace","name":"multi_agent_v1","description":"others","tools":[{"type":"function","name":"spawn_agent","description":"x","strict":false,"parameters":{}}]}],
			"tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"summary":"auto"},"store":false,"include":["reasoning.encrypted_content"],
			"prompt_cache_key":"k","client_metadata":{"session_id":"x","x-codex-turn-metadata":"{}"}}`,
			[]string{`"encrypted_content":"gAAAA"`, `"spawn_agent"`, `"include":["reasoning.encrypted_content"]`, `"max_output_tokens":64000`}},
		{"Codex, with a model it knows", "responses", `{
			"model":"anthropic/claude-sonnet","stream":true,
			"input":[
				{"type":"additional_tools","id":"at_1","role":"developer","tools":[
					{"type":"namespace","name":"functions","description":"","tools":[
						{"type":"custom","name":"exec","description":"runs","format":{"type":"grammar","syntax":"lark","definition":"start: /x/"}},
						{"type":"function","name":"wait","description":"waits","strict":false,"parameters":{}}]}]},
				{"type":"message","id":"msg_1","role":"user","content":[{"type":"input_text","text":"say hi"}]},
				{"type":"custom_tool_call","status":"completed","id":"ctc_1","call_id":"call_1","name":"exec","namespace":"functions","input":"tools.exec()"},
				{"type":"custom_tool_call_output","id":"cto_1","call_id":"call_1","output":[{"type":"input_text","text":"a.txt"}]}],
			"tool_choice":"auto","parallel_tool_calls":false,"reasoning":{"effort":"low","context":"all_turns"},"store":false,
			"include":["reasoning.encrypted_content"],"prompt_cache_key":"k","text":{"verbosity":"low"},"client_metadata":{}}`,
			[]string{`"additional_tools"`, `"syntax":"lark"`, `"context":"all_turns"`}},
		{"Claude Code", "messages", `{
			"model":"anthropic/claude-sonnet",
			"messages":[
				{"role":"user","content":[{"type":"text","text":"say hi"}]},
				{"role":"system","content":[{"type":"text","text":"# Environment","cache_control":{"type":"ephemeral"}}],"output_config":{"effort":"medium"}},
				{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"c2ln"},{"type":"tool_use","id":"toolu_1","name":"ToolSearch","input":{"query":"select:WebFetch"}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"tool_reference","tool_name":"WebFetch"}]}]},
				{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_reference","name":"WebFetch"}},{"type":"tool_removal","tool":{"type":"tool_reference","name":"Edit"}}]},
				{"role":"user","content":[{"tool_use_id":"toolu_2","type":"tool_result","content":"x","is_error":false,"cache_control":{"type":"ephemeral"}}]}],
			"system":[{"type":"text","text":"You are an agent.","cache_control":{"type":"ephemeral"}}],
			"tools":[{"name":"Bash","description":"runs","input_schema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}},{"name":"WebFetch","description":"fetches","input_schema":{},"defer_loading":true}],
			"metadata":{"user_id":"{\"device_id\":\"x\"}"},"max_tokens":32000,"thinking":{"type":"adaptive","display":"updates"},
			"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"output_config":{"effort":"high"},"stream":true}`,
			[]string{`"signature":"c2ln"`, `"clear_thinking_20251015","keep":"all"`, `"tool_addition"`, `"defer_loading":true`, `"output_config":{"effort":"medium"}`}},
		{"Claude Code, an older model", "messages", `{"model":"anthropic/claude-sonnet","max_tokens":32000,"messages":[{"role":"user","content":"hi"}],
			"thinking":{"budget_tokens":31999,"type":"enabled"},"tools":[],"temperature":1,"stream":true}`,
			[]string{`"budget_tokens":31999`}},
	} {
		call, bad := newRules().check(endpointOf(c.api), c.body, testCaller, of(c.api))
		if bad != nil {
			t.Errorf("%s: %s", c.name, bad.message)
			continue
		}
		got := string(encode(nil, call.body))
		for _, want := range c.keeps {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s is missing from %s", c.name, want, got)
			}
		}
		if strings.Contains(got, "device_id") || strings.Contains(got, "client_metadata") {
			t.Errorf("%s: telemetry is in %s", c.name, got)
		}
	}
}
