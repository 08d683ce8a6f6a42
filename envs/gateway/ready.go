package gateway

import (
	"net/http"
	"strings"

	"inspect/envs/wire"
)

// ready answers a prompt of wire.ReadyModel. False: it is another model's.
func ready(w http.ResponseWriter, ep endpoint, body string) bool {
	// Reading all of every body would cost time; a JSON string can spell the
	// slash in two ways, and no client writes letters as \u.
	if !strings.Contains(body, `"inspect/ready"`) && !strings.Contains(body, `"inspect\/ready"`) {
		return false
	}
	o, err := decode(body)
	if err != nil || o.get("model") != wire.ReadyModel || ep.api == "" {
		return false
	}
	kind, text := "application/json", readyWhole[ep.api]
	switch {
	case ep.count:
		text = `{"object":"response.input_tokens","input_tokens":0}`
	case o.get("stream") == true:
		kind, text = "text/event-stream", readyStream[ep.api]
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write([]byte(text))
	return true
}

const (
	readyChunk   = `data: {"id":"chatcmpl-ready","object":"chat.completion.chunk","created":0,"model":"inspect/ready",`
	readyMessage = `"id":"msg_ready","type":"message","role":"assistant","model":"inspect/ready"`
	readyItem    = `{"type":"message","id":"msg_ready","role":"assistant","status":"completed","content":[{"type":"output_text","text":"ok","annotations":[]}]}`
	readyOpen    = `{"type":"message","id":"msg_ready","role":"assistant","status":"in_progress","content":[]}`
	readyPart    = `{"type":"output_text","text":"ok","annotations":[]}`
	readyAbout   = `"id":"resp_ready","object":"response","created_at":0,"model":"inspect/ready","error":null,"incomplete_details":null`
	readyUsage   = `{"input_tokens":0,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":0}`
	readyDone    = `{` + readyAbout + `,"status":"completed","output":[` + readyItem + `],"usage":` + readyUsage + `}`
)

var readyWhole = map[string]string{
	wire.APIChat: `{"id":"chatcmpl-ready","object":"chat.completion","created":0,"model":"inspect/ready",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`,
	wire.APIResponses: readyDone,
	wire.APIMessages: `{` + readyMessage + `,"content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn","stop_sequence":null,` +
		`"usage":{"input_tokens":0,"output_tokens":0}}`,
}

var readyStream = map[string]string{
	wire.APIChat: readyChunk + `"choices":[{"index":0,"delta":{"role":"assistant","content":"ok"},"finish_reason":null}]}` + "\n\n" +
		readyChunk + `"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
		readyChunk + `"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}` + "\n\n" +
		"data: [DONE]\n\n",
	wire.APIResponses: named("response.created", `"sequence_number":0,"response":{`+readyAbout+`,"status":"in_progress","output":[],"usage":null}`) +
		named("response.output_item.added", `"sequence_number":1,"output_index":0,"item":`+readyOpen) +
		named("response.content_part.added", `"sequence_number":2,"item_id":"msg_ready","output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}`) +
		named("response.output_text.delta", `"sequence_number":3,"item_id":"msg_ready","output_index":0,"content_index":0,"delta":"ok","logprobs":[]`) +
		named("response.output_text.done", `"sequence_number":4,"item_id":"msg_ready","output_index":0,"content_index":0,"text":"ok","logprobs":[]`) +
		named("response.content_part.done", `"sequence_number":5,"item_id":"msg_ready","output_index":0,"content_index":0,"part":`+readyPart) +
		named("response.output_item.done", `"sequence_number":6,"output_index":0,"item":`+readyItem) +
		named("response.completed", `"sequence_number":7,"response":`+readyDone),
	wire.APIMessages: named("message_start", `"message":{`+readyMessage+`,"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}`) +
		named("content_block_start", `"index":0,"content_block":{"type":"text","text":""}`) +
		named("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"ok"}`) +
		named("content_block_stop", `"index":0`) +
		named("message_delta", `"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":0}`) +
		named("message_stop", ""),
}

// named is one event whose data repeats its name.
func named(name, rest string) string {
	if rest != "" {
		rest = "," + rest
	}
	return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + rest + "}\n\n"
}
