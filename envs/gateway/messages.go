package gateway

import (
	"regexp"
	"slices"
	"strings"
)

// messagesFields is what is known of POST /v1/messages.
func messagesFields() fields {
	cited := orNull(list(obj(fields{
		"type": text, "cited_text": text, "document_index": scalar, "document_title": text, "title": text, "source": text,
		"start_char_index": scalar, "end_char_index": scalar, "start_page_number": scalar, "end_page_number": scalar,
		"start_block_index": scalar, "end_block_index": scalar, "search_result_index": scalar,
	})))
	words := obj(fields{"type": text, "text": text, "cache_control": cacheControl, "citations": cited})

	media := func(kinds ...string) rule { return oneOf("is not taken", kinds...) }
	noURL := refused(elsewhere)
	noFile := refused(stored)
	image := obj(fields{"type": text, "cache_control": cacheControl, "source": byType("a source", "", map[string]rule{
		"base64": func(f *found, v any) (any, *fault) {
			if s, ok := v.(*object).get("data").(string); ok {
				f.images++
				f.imageBytes += len(s)
			}
			return obj(fields{"type": text, "media_type": media(imageTypes...), "data": inline})(f, v)
		},
		"url":  noURL,
		"file": noFile,
	})})
	document := obj(fields{"type": text, "cache_control": cacheControl, "title": text, "context": text,
		"citations": orNull(obj(fields{"enabled": flag})),
		"source": byType("a source", "", map[string]rule{
			"base64": obj(fields{"type": text, "media_type": media("application/pdf"), "data": inline}),
			"text":   obj(fields{"type": text, "media_type": media("text/plain"), "data": text}),
			"content": obj(fields{"type": text, "content": textOr(list(byType("a content block", "", map[string]rule{
				"text": words, "image": image,
			})))}),
			"url":  noURL,
			"file": noFile,
		})})
	search := obj(fields{"type": text, "cache_control": cacheControl, "source": text, "title": text,
		"content":   list(byType("a content block", "", map[string]rule{"text": words})),
		"citations": orNull(obj(fields{"enabled": flag})),
	})
	// The client's answer to its own search for tools.
	reference := obj(fields{"type": text, "tool_name": text, "name": text, "cache_control": cacheControl})

	tool := messagesTool()
	changed := byType("a tool", "", map[string]rule{
		"tool_reference":  reference,
		"tool_definition": obj(fields{"type": text, "definition": tool}),
	})

	blocks := map[string]rule{
		"text":          words,
		"image":         image,
		"document":      document,
		"search_result": search,
		"thinking":      obj(fields{"type": text, "thinking": text, "signature": text, "cache_control": cacheControl}),
		"redacted_thinking": obj(fields{
			"type": text, "data": text, "cache_control": cacheControl}),
		"tool_use": obj(fields{"type": text, "id": text, "name": text, "input": free, "cache_control": cacheControl,
			"caller": drop,
		}),
		"tool_result": obj(fields{"type": text, "tool_use_id": text, "is_error": flag, "cache_control": cacheControl,
			"content": textOr(orNull(list(byType("a content block", "", map[string]rule{
				"text": words, "image": image, "document": document, "search_result": search, "tool_reference": reference,
				"container_upload": refused(stored),
			})))),
		}),
		"tool_addition": obj(fields{"type": text, "tool": changed, "cache_control": cacheControl}),
		"tool_removal":  obj(fields{"type": text, "tool": changed, "cache_control": cacheControl}),

		"container_upload": refused(stored),
		"compaction":       refused("let the agent shorten its own conversation"),
	}
	for _, kind := range []string{
		"server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
		"bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
		"mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "advisor_tool_result",
	} {
		blocks[kind] = refused(serverSide)
	}

	output := orNull(obj(fields{
		"effort": scalar,
		"format": orNull(obj(fields{"type": oneOf("is no known format", "json_schema"), "schema": schema, "name": text, "strict": flag})),
	}))

	return fields{
		"model": text,
		"messages": list(obj(fields{
			"role":          oneOf("is no known role", "user", "assistant", "system"),
			"content":       textOr(list(byType("a content block", "", blocks))),
			"output_config": output,
		})),
		"system": textOr(orNull(list(byType("a content block", "", map[string]rule{"text": words})))),
		"tools":  orNull(list(tool)),
		"tool_choice": orNull(obj(fields{
			"type": text, "name": text, "disable_parallel_tool_use": flag,
		})),
		"max_tokens":     tokens,
		"stream":         flag,
		"stop_sequences": orNull(list(text)),
		"temperature":    scalar,
		"top_k":          scalar,
		"top_p":          scalar,
		"thinking":       orNull(obj(fields{"type": text, "budget_tokens": tokens, "display": scalar})),
		"output_config":  output,
		"output_format":  orNull(obj(fields{"type": oneOf("is no known format", "json_schema"), "schema": schema})),
		"cache_control":  cacheControl,
		"context_management": orNull(obj(fields{
			"edits": list(contextEdit),
		})),

		"metadata":     drop,
		"service_tier": drop,

		"mcp_servers":   no(serverSide),
		"container":     no(serverSide),
		"fallbacks":     no("another model would answer, at another price"),
		"speed":         no("it changes the price"),
		"inference_geo": no("it changes the price"),
	}
}

// contextEdit lets the provider leave out old thinking and tool results. Its
// own compaction is another call of the model, whose tokens are told apart from
// the rest.
func contextEdit(f *found, v any) (any, *fault) {
	o, ok := v.(*object)
	if !ok {
		return nil, expected("an object", v)
	}
	kind, _ := o.get("type").(string)
	if !strings.HasPrefix(kind, "clear_thinking_") && !strings.HasPrefix(kind, "clear_tool_uses_") {
		return nil, wrong("is refused: expected clear_thinking_… or clear_tool_uses_…, but found %q", short(kind)).in("type")
	}
	amount := textOr(orNull(obj(fields{"type": text, "value": scalar})))
	return obj(fields{
		"type": text, "keep": amount, "trigger": amount, "clear_at_least": amount,
		"exclude_tools": orNull(list(text)), "clear_tool_inputs": textOr(orNull(orFlag(list(text)))),
	})(f, v)
}

func orFlag(r rule) rule {
	return func(f *found, v any) (any, *fault) {
		if _, ok := v.(bool); ok {
			return v, nil
		}
		return r(f, v)
	}
}

// clientTools are Anthropic's own tools that the client runs.
var clientTools = regexp.MustCompile(`^(bash|text_editor|memory)_[0-9]{8}$`)

func messagesTool() rule {
	common := fields{"type": text, "name": text, "cache_control": cacheControl, "strict": flag,
		"defer_loading": flag, "eager_input_streaming": flag, "input_examples": orNull(list(free)),
		"allowed_callers": orNull(list(oneOf("is refused: the provider would run code that calls the tool", "direct"))),
	}
	custom := obj(common.with(fields{"description": text, "input_schema": schema}))
	client := obj(common.with(fields{"max_characters": scalar}))
	return toolsOf("custom", map[string]rule{"custom": custom}, func(kind string) rule {
		if clientTools.MatchString(kind) {
			return client
		}
		return nil
	})
}

// toolsOf is one tool: of a kind in the table, or one that more knows. missing
// is the kind of one that names none.
func toolsOf(missing string, kinds map[string]rule, more func(kind string) rule) rule {
	return func(f *found, v any) (any, *fault) {
		o, ok := v.(*object)
		if !ok {
			return nil, expected("an object", v)
		}
		kind := missing
		switch t := o.get("type").(type) {
		case string:
			kind = t
		case nil:
		default:
			return nil, expected("a string", t).in("type")
		}
		r := kinds[kind]
		if r == nil && more != nil {
			r = more(kind)
		}
		if r == nil {
			return nil, wrong("the tool %q is refused: %s. Tools that run in the sandbox are served", short(kind), serverSide)
		}
		return r(f, v)
	}
}

// Betas of Anthropic's API that change neither what the provider does on its
// own nor what a token costs. Others are taken out of the header.
var betas = []string{
	"claude-code-20250219",
	"context-management-2025-06-27",
	"effort-2025-11-24",
	"extended-cache-ttl-2025-04-11",
	"fine-grained-tool-streaming-2025-05-14",
	"interleaved-thinking-2025-05-14",
	"mid-conversation-system-2026-04-07",
	"mid-conversation-tool-changes-2026-07-01",
	"output-128k-2025-02-19",
	"pdfs-2024-09-25",
	"per-turn-control-2026-07-01",
	"prompt-caching-2024-07-31",
	"redact-thinking-2026-02-12",
	"structured-outputs-2025-11-13",
	"structured-outputs-2025-12-15",
	"thinking-display-updates-2026-08-18",
	"thinking-token-count-2026-05-13",
	"token-counting-2024-11-01",
	"token-efficient-tools-2025-02-19",
	// Tools a client finds by itself (defer_loading, tool_reference). What else
	// it stands for needs tools that are refused.
	"advanced-tool-use-2025-11-20",
}

// harmlessBetas is what of an anthropic-beta header is sent on.
func harmlessBetas(values []string) string {
	var keep []string
	for _, v := range values {
		for _, b := range strings.Split(v, ",") {
			if b = strings.TrimSpace(b); slices.Contains(betas, b) && !slices.Contains(keep, b) {
				keep = append(keep, b)
			}
		}
	}
	return strings.Join(keep, ",")
}
