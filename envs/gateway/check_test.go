package gateway

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"inspect/envs/wire"
)

const testModel = "anthropic/claude-sonnet"

var testCaller = wire.ModelCaller{Session: "s-1", Generation: 1, Model: testModel}

// of is the model of the tests, at a provider that speaks api.
func of(api string) Model {
	m := Model{ID: testModel, Name: "provider-name", MaxOutput: 64_000, Priced: true,
		Price: Price{Input: 3000, CacheRead: 300, CacheWrite: 3750, CacheWrite1h: 6000, Output: 15000}}
	m.api = apiOpenAI
	if api == wire.APIMessages {
		m.api = apiAnthropic
	}
	return m
}

func endpointOf(api string) endpoint {
	for _, ep := range endpoints {
		if ep.api == api {
			return ep
		}
	}
	panic(api)
}

// body puts members before a call's least.
func body(api, members string) string {
	least := `"messages":[{"role":"user","content":"hi"}]`
	if api == wire.APIResponses {
		least = `"input":"hi"`
	}
	if api == wire.APIMessages {
		least += `,"max_tokens":100`
	}
	key, _, _ := strings.Cut(strings.TrimPrefix(members, `"`), `"`)
	parts := []string{`"model":"` + testModel + `"`}
	for _, p := range strings.Split(least, `,"max`) { // the default gives way to the test's own
		if strings.HasPrefix(p, `_tokens`) {
			p = `"max` + p
		}
		if !strings.HasPrefix(p, `"`+key+`"`) {
			parts = append(parts, p)
		}
	}
	if members != "" {
		parts = append(parts, members)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ api, members, want string }{
		// Chat completions.
		{"chat", `"web_search_options":{}`, "web_search_options: is refused"},
		{"chat", `"tools":[{"type":"web_search"}]`, `tools[0]: the tool "web_search" is refused`},
		{"chat", `"tools":[{"type":"function","function":{"name":"a"}},{"type":"mcp","server_url":"https://x.example"}]`, `tools[1]: the tool "mcp"`},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x.example/a.png"}}]}]`, "messages[0].content[0].image_url.url: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"DATA:image/png;base64,AA=="}}]}]`, "url: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":" data:image/png;base64,AA=="}}]}]`, "url: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/svg+xml;base64,AA=="}}]}]`, "expected image/png"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png,https://x.example"}}]}]`, "url: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,https://x.example"}}]}]`, "url: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":"https://x.example/a.png"}]}]`, "expected an object"},
		{"chat", `"messages":[{"role":"tool","tool_call_id":"a","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}]`, "url: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"https://x.example"}}]}]`, `of type "video_url"`},
		{"chat", `"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}}]}]`, "file_id: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"https://x.example/a.pdf"}}]}]`, "file_data: is refused"},
		{"chat", `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"https://x.example","format":"wav"}}]}]`, "expected base64"},
		{"chat", `"messages":[{"role":"assistant","audio":{"id":"audio_1"}}]`, "audio: is refused"},
		{"chat", `"messages":[{"role":"user","content":"x","image":"https://x.example"}]`, "image: is not a field"},
		{"chat", `"store":true`, "store: is refused"},
		{"chat", `"modalities":["text","audio"]`, "modalities[1]: is refused"},
		{"chat", `"audio":{"voice":"a","format":"wav"}`, "audio: is refused"},
		{"chat", `"n":2`, "n: is refused"},
		{"chat", `"n":1.0`, "n: is refused"},
		{"chat", `"prediction":{"type":"content","content":"x"}`, "prediction: is refused"},
		{"chat", `"functions":[]`, "functions: is refused"},
		{"chat", `"plugins":[{"id":"web"}]`, "plugins: is not a field"},
		{"chat", `"enable_search":true`, "enable_search: is not a field"},
		{"chat", `"search_parameters":{"mode":"on"}`, "search_parameters: is not a field"},
		{"chat", `"models":["a","b"]`, "models: is not a field"},
		{"chat", `"Tools":[]`, "Tools: is not a field"},
		{"chat", `"max_tokens":1e9`, "max_tokens: expected a whole number"},
		{"chat", `"max_tokens":-1`, "max_tokens: expected a whole number"},
		{"chat", `"max_tokens":"7"`, "max_tokens: expected a whole number"},
		{"chat", `"stream":"true"`, "stream: expected true or false"},
		{"chat", `"stream":1`, "stream: expected true or false"},
		{"chat", `"tools":[{"type":"function","function":{"name":"a","parameters":{"properties":{"a":{"$ref":"https://x.example/s.json"}}}}}]`, "$ref: is refused"},
		{"chat", `"tool_choice":{"type":"web_search"}`, `of type "web_search"`},
		{"chat", `"messages":"hi"`, "messages: expected a list"},
		{"chat", `"tools":[{"type":["function"]}]`, "type: expected a string"},

		// Responses.
		{"responses", `"background":true`, "background: is refused"},
		{"responses", `"previous_response_id":"resp_1"`, "previous_response_id: is refused"},
		{"responses", `"conversation":"conv_1"`, "conversation: is refused"},
		{"responses", `"prompt":{"id":"pmpt_1"}`, "prompt: is refused"},
		{"responses", `"store":true`, "store: is refused"},
		{"responses", `"store":1`, "store: is refused"},
		{"responses", `"context_management":[{"type":"compaction"}]`, "context_management: is refused"},
		{"responses", `"input":[{"type":"item_reference","id":"msg_1"}]`, "input[0]: is refused"},
		{"responses", `"input":[{"id":"msg_1"}]`, "input[0]: is refused"},
		{"responses", `"input":[{"type":null,"id":"msg_1"}]`, "input[0]: is refused"},
		{"responses", `"input":[{"type":"message","id":"msg_1","role":"user"}]`, "input[0]: is refused"},
		{"responses", `"input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x.example/a.png"}]}]`, "image_url: is refused"},
		{"responses", `"input":[{"role":"user","content":[{"type":"input_image","file_id":"file-1"}]}]`, "file_id: is refused"},
		{"responses", `"input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x.example/a.pdf"}]}]`, "file_url: is refused"},
		{"responses", `"input":[{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}]`, "file_id: is refused"},
		{"responses", `"input":[{"type":"function_call_output","call_id":"a","output":[{"type":"input_image","image_url":"http://10.0.0.1/"}]}]`, "input[0].output[0].image_url: is refused"},
		{"responses", `"input":[{"type":"custom_tool_call_output","call_id":"a","output":[{"type":"input_file","file_url":"http://10.0.0.1/"}]}]`, "file_url: is refused"},
		{"responses", `"input":[{"type":"mcp_call","id":"a","server_label":"x"}]`, "input[0]: is refused"},
		{"responses", `"input":[{"type":"web_search_call","id":"a"}]`, "input[0]: is refused"},
		{"responses", `"input":[{"type":"computer_call_output","call_id":"a","output":{"type":"computer_screenshot","image_url":"https://x.example"}}]`, "is refused"},
		{"responses", `"input":[{"type":"compaction_trigger"}]`, "is refused"},
		{"responses", `"input":[{"type":"shell_call"}]`, `of type "shell_call"`},
		{"responses", `"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"n","tools":[{"type":"web_search"}]}]}]`, `input[0].tools[0].tools[0]: the tool "web_search"`},
		{"responses", `"input":[{"type":"tool_search_output","execution":"client","tools":[{"type":"mcp"}]}]`, `the tool "mcp"`},
		{"responses", `"input":[{"type":"tool_search_output","execution":"server","tools":[]}]`, "is refused"},
		{"responses", `"tools":[{"type":"web_search"}]`, `the tool "web_search" is refused`},
		{"responses", `"tools":[{"type":"web_search_preview_2025_03_11"}]`, "is refused"},
		{"responses", `"tools":[{"type":"file_search","vector_store_ids":["a"]}]`, "is refused"},
		{"responses", `"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]`, "is refused"},
		{"responses", `"tools":[{"type":"mcp","server_label":"x","server_url":"https://x.example"}]`, "is refused"},
		{"responses", `"tools":[{"type":"computer_use_preview"}]`, "is refused"},
		{"responses", `"tools":[{"type":"image_generation"}]`, "is refused"},
		{"responses", `"tools":[{"type":"shell"}]`, "is refused"},
		{"responses", `"tools":[{"type":"shell","environment":{"type":"container_auto"}}]`, "is refused"},
		{"responses", `"tools":[{"type":"tool_search"}]`, "is refused"},
		{"responses", `"tools":[{"type":"tool_search","execution":"server"}]`, "is refused"},
		{"responses", `"tools":[{"name":"a"}]`, `the tool "" is refused`},
		{"responses", `"tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace","name":"m","tools":[{"type":"mcp"}]}]}]`, `tools[0].tools[0].tools[0]: the tool "mcp"`},
		{"responses", `"tools":[{"type":"function","name":"a","parameters":{},"server_url":"https://x.example"}]`, "server_url: is not a field"},
		{"responses", `"tool_choice":{"type":"mcp","server_label":"x"}`, "tool_choice"},
		{"responses", `"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"file_search"}]}`, "tool_choice.tools[0]"},
		{"responses", `"include":["reasoning.encrypted_content","web_search_call.action.sources"]`, "include[1]: is refused"},
		{"responses", `"include":["message.input_image.image_url"]`, "include[0]: is refused"},
		{"responses", `"text":{"format":{"type":"json_schema","name":"a","schema":{"$ref":"//x.example"}}}`, "$ref: is refused"},
		{"responses", `"instructions":[{"type":"item_reference","id":"a"}]`, "instructions: expected a string"},

		// Messages.
		{"messages", `"mcp_servers":[{"type":"url","url":"https://x.example","name":"x"}]`, "mcp_servers: is refused"},
		{"messages", `"container":"c_1"`, "container: is refused"},
		{"messages", `"container":{"skills":[{"skill_id":"pptx"}]}`, "container: is refused"},
		{"messages", `"tools":[{"type":"web_search_20250305","name":"web_search"}]`, `the tool "web_search_20250305" is refused`},
		{"messages", `"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}]`, "is refused"},
		{"messages", `"tools":[{"type":"code_execution_20250825","name":"code_execution"}]`, "is refused"},
		{"messages", `"tools":[{"type":"bash_code_execution_20250825","name":"x"}]`, "is refused"},
		{"messages", `"tools":[{"type":"mcp_toolset","mcp_server_name":"x"}]`, "is refused"},
		{"messages", `"tools":[{"type":"tool_search_tool_regex_20251119","name":"x"}]`, "is refused"},
		{"messages", `"tools":[{"type":"advisor_20260301","name":"advisor"}]`, "is refused"},
		{"messages", `"tools":[{"type":"computer_20250124","name":"computer"}]`, "is refused"},
		{"messages", `"tools":[{"type":"bash_20250124\n","name":"bash"}]`, "is refused"},
		{"messages", `"tools":[{"name":"a","input_schema":{},"allowed_callers":["code_execution_20250825"]}]`, "allowed_callers[0]: is refused"},
		{"messages", `"tools":[{"name":"a","input_schema":{"$ref":"https://x.example"}}]`, "$ref: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://x.example/a.png"}}]}]`, "messages[0].content[0].source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"image","source":{"type":"file","file_id":"file_1"}}]}]`, "source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA==","url":"https://x.example"}}]}]`, "url: is not a field"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"image","source":{"media_type":"image/png","data":"AA=="}}]}]`, "expected a type"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://x.example/a.pdf"}}]}]`, "source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]`, "source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]}}]}]`, "content[0].source.content[0].source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]}]}]`, "content[0].content[0].source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"document","source":{"type":"url","url":"https://x.example"}}]}]}]`, "source: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"container_upload","file_id":"f"}]}]`, "content[0]: is refused"},
		{"messages", `"messages":[{"role":"assistant","content":[{"type":"server_tool_use","id":"a","name":"web_fetch","input":{"url":"https://x.example"}}]}]`, "content[0]: is refused"},
		{"messages", `"messages":[{"role":"assistant","content":[{"type":"mcp_tool_use","id":"a","name":"x"}]}]`, "content[0]: is refused"},
		{"messages", `"messages":[{"role":"user","content":[{"type":"web_search_tool_result","tool_use_id":"a","content":[]}]}]`, "content[0]: is refused"},
		{"messages", `"messages":[{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"web_search_20250305","name":"x"}}}]}]`, `definition: the tool "web_search_20250305"`},
		{"messages", `"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"30d"}}]}]`, "ttl: expected 5m or 1h"},
		{"messages", `"context_management":{"edits":[{"type":"compact_20260112"}]}`, "edits[0].type: is refused"},
		{"messages", `"fallbacks":[{"model":"x"}]`, "fallbacks: is refused"},
		{"messages", `"speed":"fast"`, "speed: is refused"},
		{"messages", `"inference_geo":"us"`, "inference_geo: is refused"},
		{"messages", `"betas":["code-execution-2025-08-25"]`, "betas: is not a field"},
		{"messages", `"system":[{"type":"image","source":{"type":"url","url":"https://x.example"}}]`, `of type "image"`},
		{"messages", `"max_tokens":0`, "max_tokens: expected a whole number"},

		// All.
		{"chat", `"model2":1`, "model2: is not a field"},
		{"messages", `"model2":null`, "model2: is not a field"},
	} {
		api := c.api
		_, bad := newRules().check(endpointOf(api), body(api, c.members), testCaller, of(api))
		if bad == nil {
			t.Errorf("%s: %s is sent on", api, c.members)
			continue
		}
		if bad.status != 400 || !strings.Contains(bad.message, c.want) {
			t.Errorf("%s: %s: got %d %q, want something about %q", api, c.members, bad.status, bad.message, c.want)
		}
	}
}

// sentOn is what becomes of a body.
func sentOn(t *testing.T, api, members string, m Model) (*call, string) {
	t.Helper()
	c, bad := newRules().check(endpointOf(api), body(api, members), testCaller, m)
	if bad != nil {
		t.Fatalf("%s: %s: %s", api, members, bad.message)
	}
	return c, string(encode(nil, c.body))
}

func TestSentOn(t *testing.T) {
	const image = `data:image/png;base64,iVBORw0KGgo=`
	for _, c := range []struct{ api, members, has, hasNot string }{
		// The model's name, the bound, and what is put in.
		{"chat", ``, `"model":"provider-name"`, testModel},
		{"chat", ``, `"max_completion_tokens":64000`, `"max_tokens"`},
		{"chat", `"max_tokens":7`, `"max_completion_tokens":7`, `"max_tokens"`},
		{"chat", `"max_tokens":9,"max_completion_tokens":8`, `"max_completion_tokens":8`, `"max_tokens"`},
		{"chat", `"max_tokens":999999`, `"max_completion_tokens":64000`, `999999`},
		{"chat", `"max_tokens":null`, `"max_completion_tokens":64000`, `null`},
		{"chat", `"stream":true`, `"stream_options":{"include_usage":true}`, ``},
		{"chat", `"stream":true,"stream_options":{"include_usage":false}`, `"stream_options":{"include_usage":true}`, `false`},
		{"chat", `"stream":false,"stream_options":{"include_usage":true}`, `"stream":false`, `stream_options`},
		{"responses", ``, `"max_output_tokens":64000`, ``},
		{"responses", ``, `"store":false`, ``},
		{"responses", `"store":null`, `"store":false`, `null`},
		{"messages", `"max_tokens":70000`, `"max_tokens":64000`, `70000`},
		// Dropped without a word.
		{"chat", `"metadata":{"a":"b"},"user":"octocat","service_tier":"flex","prompt_cache_retention":"24h","safety_identifier":"x"`, `"messages"`, `octocat`},
		{"chat", `"service_tier":"priority"`, `"messages"`, `service_tier`},
		{"chat", `"n":1`, `"messages"`, `"n"`},
		{"chat", `"store":false`, `"store":false`, ``},
		{"responses", `"metadata":{"a":"b"},"client_metadata":{"x":"y"},"service_tier":"priority","user":"octocat"`, `"input"`, `metadata`},
		{"responses", `"previous_response_id":null,"conversation":null,"prompt":null,"background":false`, `"input"`, `null`},
		{"responses", `"input":[{"type":"reasoning","id":"rs_1","summary":[]},{"role":"user","content":"x"}]`, `"content":"x"`, `rs_1`},
		{"responses", `"input":[{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA","content":null}]`, `"id":"rs_1"`, ``},
		{"responses", `"input":[{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]}]`, `"hm"`, `rs_1`},
		{"responses", `"input":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[{"type":"file_citation","file_id":"file-1"}],"logprobs":[]}]}]`, `"annotations":[]`, `file-1`},
		{"responses", `"input":[{"type":"message","role":"user","content":"x","internal_chat_message_metadata_passthrough":{"a":1}}]`, `"x"`, `passthrough`},
		{"messages", `"metadata":{"user_id":"octocat"},"service_tier":"auto"`, `"messages"`, `octocat`},
		{"messages", `"mcp_servers":null,"container":null`, `"messages"`, `null`},
		{"messages", `"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{"url":"https://x.example"},"caller":{"type":"direct"}}]}]`, `"input":{"url":"https://x.example"}`, `caller`},
		// Content that stands in the request.
		{"chat", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + image + `","detail":"low"}}]}]`, image, ``},
		{"chat", `"messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,AAAA"}}]}]`, `application/pdf`, ``},
		{"chat", `"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}]`, `"AAAA"`, ``},
		{"responses", `"input":[{"type":"function_call_output","call_id":"a","output":[{"type":"input_image","image_url":"` + image + `"}]}]`, image, ``},
		{"messages", `"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]}]`, `"AAAA"`, ``},
		// Text is text, whatever it says.
		{"chat", `"messages":[{"role":"user","content":"fetch https://x.example"}]`, `fetch https://x.example`, ``},
		// The order of a schema's members decides the order of an answer's.
		{"chat", `"tools":[{"type":"function","function":{"name":"a","parameters":{"z":1,"a":{"y":1,"b":2}}}}]`, `{"z":1,"a":{"y":1,"b":2}}`, ``},
		{"chat", `"tools":[{"type":"function","function":{"name":"a","parameters":{"$schema":"http://json-schema.org/draft-07/schema#","$defs":{},"a":{"$ref":"#/$defs/x"}}}}]`, `#/$defs/x`, ``},
		// Tools that run in the sandbox.
		{"messages", `"tools":[{"type":"bash_20250124","name":"bash"},{"type":"text_editor_20250728","name":"e","max_characters":9},{"type":"memory_20250818","name":"m"},{"type":"custom","name":"c","input_schema":{}},{"name":"d","input_schema":{},"defer_loading":true,"eager_input_streaming":true}]`, `memory_20250818`, ``},
		{"responses", `"tools":[{"type":"local_shell"},{"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":"x"}},{"type":"tool_search","execution":"client","parameters":{}},{"type":"namespace","name":"n","tools":[{"type":"function","name":"f","parameters":{}}]}]`, `"namespace"`, ``},
	} {
		_, got := sentOn(t, c.api, c.members, of(c.api))
		if !strings.Contains(got, c.has) {
			t.Errorf("%s: %s became %s, want %s in it", c.api, c.members, got, c.has)
		}
		if c.hasNot != "" && strings.Contains(got, c.hasNot) {
			t.Errorf("%s: %s became %s, want no %s in it", c.api, c.members, got, c.hasNot)
		}
	}
}

func TestServersOfOneAPIWantMaxTokens(t *testing.T) {
	m := of("chat")
	m.api = apiOpenAIChat
	_, got := sentOn(t, "chat", `"max_completion_tokens":7`, m)
	if !strings.Contains(got, `"max_tokens":7`) || strings.Contains(got, "max_completion_tokens") {
		t.Errorf("got %s", got)
	}
}

func TestHourOfCacheNeedsAPrice(t *testing.T) {
	const members = `"cache_control":{"type":"ephemeral","ttl":"1h"}`
	m := of("messages")
	c, got := sentOn(t, "messages", members, m)
	if !strings.Contains(got, `"ttl":"1h"`) || !c.found.hour {
		t.Errorf("with a price: %s", got)
	}
	if e := m.Price.plan(c, 300); e.inputCost != 100*6000 {
		t.Errorf("the hour is not in the plan: %+v", e)
	}
	m.Price.CacheWrite1h = 0
	c, got = sentOn(t, "messages", members, m)
	if strings.Contains(got, "ttl") || c.found.hour {
		t.Errorf("without a price: %s", got)
	}
}

func TestThinkingFitsTheBound(t *testing.T) {
	for _, c := range []struct {
		most int64
		want string
	}{
		{64_000, `"budget_tokens":31999`},
		{32_000, `"budget_tokens":31999`},
		{31_999, `"budget_tokens":15999`},
		{2048, `"budget_tokens":1024`},
		{2047, `"thinking":{"type":"disabled"}`},
	} {
		call, _ := sentOn(t, "messages", `"max_tokens":64000,"thinking":{"type":"enabled","budget_tokens":31999}`, of("messages"))
		call.limit(c.most)
		if got := string(encode(nil, call.body)); !strings.Contains(got, c.want) || !strings.Contains(got, fmt.Sprintf(`"max_tokens":%d`, c.most)) {
			t.Errorf("at most %d: got %s, want %s", c.most, got, c.want)
		}
	}
}

func TestCounting(t *testing.T) {
	rules := newRules()
	for _, c := range []struct{ path, members, hasNot string }{
		{"/v1/messages/count_tokens", `"stream":true,"temperature":1`, "max_tokens"},
		{"/v1/responses/input_tokens", `"stream":true,"store":false,"max_output_tokens":9`, "store"},
	} {
		ep, bad := route("POST", c.path, "")
		if bad != nil || !ep.count {
			t.Fatal(c.path, bad)
		}
		call, bad := rules.check(ep, body(ep.api, c.members), testCaller, of(ep.api))
		if bad != nil {
			t.Fatal(bad.message)
		}
		got := string(encode(nil, call.body))
		if strings.Contains(got, c.hasNot) || strings.Contains(got, "stream") || !strings.Contains(got, "provider-name") {
			t.Errorf("%s: got %s", c.path, got)
		}
		if _, bad := rules.check(ep, body(ep.api, `"tools":[{"type":"mcp"}]`), testCaller, of(ep.api)); bad == nil {
			t.Errorf("%s takes a remote tool", c.path)
		}
	}
}

func TestOtherModel(t *testing.T) {
	for _, in := range []string{`{"model":"openai/gpt","messages":[]}`, `{"messages":[]}`, `{"model":null,"messages":[]}`} {
		_, bad := newRules().check(endpointOf("chat"), in, testCaller, of("chat"))
		if bad == nil || bad.status != 404 || !strings.Contains(bad.message, testModel) {
			t.Errorf("%s: got %+v", in, bad)
		}
	}
}

func TestRoute(t *testing.T) {
	for _, c := range []struct {
		method, path, query string
		status              int // 0: served
	}{
		{"POST", "/v1/chat/completions", "", 0},
		{"POST", "/v1/messages", "beta=true", 0},
		{"POST", "/v1/messages/count_tokens", "beta=true", 0},
		{"POST", "/v1/responses", "", 0},
		{"POST", "/v1/responses/input_tokens", "", 0},
		{"GET", "/v1/models", "", 0},
		{"GET", "/v1/models", "client_version=0.171.0", 0},
		{"GET", "/v1/models/anthropic/claude-sonnet", "", 0},
		{"GET", "/v1/models/anthropic%2Fclaude-sonnet", "", 0},
		{"GET", "/v1/models/..%2F..%2Frunner%2Fv1%2Fspec", "", 404},
		{"GET", "/v1/models/../../runner/v1/spec", "", 404},
		{"GET", "/v1/models/", "", 404},
		{"GET", "/v1/models/%zz", "", 404},
		{"DELETE", "/v1/models/a", "", 405},
		{"POST", "/v1/messages", "beta=true&x=1", 400},
		{"POST", "/v1/responses", "include=x", 400},
		{"GET", "/v1/responses", "", 405},
		{"GET", "/v1/chat/completions", "", 405},
		{"GET", "/v1/responses/resp_1", "", 403},
		{"POST", "/v1/responses/compact", "", 403},
		{"GET", "/v1/chat/completions/x", "", 403},
		{"POST", "/v1/messages/batches", "", 403},
		{"POST", "/v1/files", "", 403},
		{"GET", "/v1/files/file-1/content", "", 403},
		{"POST", "/v1/batches", "", 403},
		{"POST", "/v1/vector_stores", "", 403},
		{"POST", "/v1/images/generations", "", 403},
		{"POST", "/v1/embeddings", "", 404},
		{"POST", "/v1/completions", "", 404},
		{"POST", "/v1/chat/completions/", "", 403},
		{"POST", "/v1//chat/completions", "", 404},
		{"POST", "/V1/messages", "", 404},
		{"POST", "/v1/messages%2Fbatches", "", 404},
		{"POST", "/runner/v1/token", "", 404},
		{"GET", "/", "", 404},
		{"CONNECT", "", "", 404},
	} {
		ep, bad := route(c.method, c.path, c.query)
		got := 0
		if bad != nil {
			got = bad.status
		}
		if got != c.status {
			t.Errorf("%s %s?%s: got %d, want %d (%+v)", c.method, c.path, c.query, got, c.status, ep)
		}
	}
}

func TestBetas(t *testing.T) {
	got := harmlessBetas([]string{
		"claude-code-20250219, context-1m-2025-08-07,interleaved-thinking-2025-05-14", "files-api-2025-04-14", "fast-mode-2026-02-01,claude-code-20250219",
	})
	if want := "claude-code-20250219,interleaved-thinking-2025-05-14"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What is sent on, read by another reader than the one that checked it, holds
// nothing that is refused.
func FuzzSentOn(f *testing.F) {
	for _, api := range []string{"chat", "responses", "messages"} {
		for _, members := range []string{
			`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]`,
			`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]}]}]`,
			`"input":[{"type":"function_call_output","call_id":"a","output":[{"type":"input_image","image_url":"https://x.example"}]}]`,
			`"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]}]`,
			`"tools":[{"type":"web_search"}],"store":true,"n":2`,
			`"mcp_servers":[],"container":"x","previous_response_id":"x"`,
		} {
			f.Add(api, body(api, members))
		}
	}
	rules := newRules()
	f.Fuzz(func(t *testing.T, api, in string) {
		if api != wire.APIChat && api != wire.APIResponses && api != wire.APIMessages {
			return
		}
		c, bad := rules.check(endpointOf(api), in, testCaller, of(api))
		if bad != nil {
			return
		}
		out := encode(nil, c.body)
		var v map[string]any
		if err := json.Unmarshal(out, &v); err != nil {
			t.Fatalf("another reader does not take %s: %v", out, err)
		}
		if why := harmful(api, "", v); why != "" {
			t.Fatalf("%s became %s, in which %s", in, out, why)
		}
		if v["model"] != "provider-name" {
			t.Fatalf("the model of %s is %v", out, v["model"])
		}
		bound := map[string]string{"chat": "max_completion_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[api]
		if n, ok := v[bound].(float64); !ok || n < 1 || n > 64000 {
			t.Fatalf("%s has no bound", out)
		}
		if api == "responses" && v["store"] != false {
			t.Fatalf("%s would be stored", out)
		}
	})
}

var (
	harmfulKeys = regexp.MustCompile(`(?i)^(file_id|file_url|server_url|server_label|connector_id|mcp_servers|container|skills|previous_response_id|conversation|prompt|background|web_search_options|vector_store_ids|plugins|prediction|fallbacks|speed|inference_geo|service_tier|audio|n)$`)
	harmfulKind = regexp.MustCompile(`(?i)(web_search|web_fetch|file_search|code_interpreter|code_execution|computer|mcp|image_generation|item_reference|server_tool|container|advisor|compact|^shell|^url$)`)
	// What the model is told or has said may hold anything.
	freeKeys = map[string]bool{"parameters": true, "input_schema": true, "schema": true, "arguments": true, "input_examples": true, "env": true, "logit_bias": true}
)

// harmful is written apart from the rules: it says what must not be there,
// where they say what may.
func harmful(api, at string, v any) string {
	switch v := v.(type) {
	case map[string]any:
		kind, _ := v["type"].(string)
		if at != "tool_choice" && harmfulKind.MatchString(kind) {
			return at + " is of type " + kind
		}
		for k, x := range v {
			if freeKeys[k] || k == "input" && (kind == "tool_use" || kind == "custom_tool_call") {
				continue
			}
			if harmfulKeys.MatchString(k) {
				return at + "." + k + " is there"
			}
			if s, ok := x.(string); ok && (strings.EqualFold(k, "url") || strings.EqualFold(k, "image_url") || strings.EqualFold(k, "file_data")) && !strings.HasPrefix(s, "data:") {
				return at + "." + k + " is the address " + s
			}
			if k == "store" && x != false && x != nil {
				return "store is set"
			}
			if why := harmful(api, k, x); why != "" {
				return why
			}
		}
		if api == "responses" && at == "input" && v["id"] != nil && len(v) == 1 {
			return "an item is a reference"
		}
	case []any:
		for _, x := range v {
			if why := harmful(api, at, x); why != "" {
				return why
			}
		}
	}
	return ""
}

// The check of the fuzz test can fail.
func TestHarmfulIsSeen(t *testing.T) {
	for _, s := range []string{
		`{"tools":[{"type":"web_search_20250305"}]}`, `{"input":[{"id":"x"}]}`, `{"messages":[{"content":[{"image_url":{"url":"http://x"}}]}]}`,
		`{"messages":[{"content":[{"source":{"type":"url"}}]}]}`, `{"store":true}`, `{"container":"x"}`, `{"input":[{"type":"item_reference"}]}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatal(err)
		}
		if harmful("responses", "", v) == "" {
			t.Errorf("%s passes", s)
		}
	}
}
