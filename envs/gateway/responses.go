package gateway

// responsesFields is what is known of POST /v1/responses.
func responsesFields() fields {
	tool := responsesTool()

	image := obj(fields{"type": text, "image_url": imageURL, "detail": text, "file_id": no(stored)})
	file := obj(fields{"type": text, "filename": text, "file_data": fileURL, "detail": text, "file_id": no(stored), "file_url": no(elsewhere)})
	plain := obj(fields{"type": text, "text": text})
	parts := textOr(list(byType("a content part", "", map[string]rule{
		"input_text": plain,
		"text":       plain,
		"output_text": obj(fields{"type": text, "text": text, "logprobs": drop,
			"annotations": func(*found, any) (any, *fault) { return []any{}, nil },
		}),
		"refusal":     obj(fields{"type": text, "refusal": text}),
		"input_image": image,
		"input_file":  file,
		"input_audio": obj(fields{"type": text, "input_audio": obj(fields{"data": inline, "format": text})}),
		// Of messages between the agents of one Codex session.
		"encrypted_content": obj(fields{"type": text, "encrypted_content": text}),
	})))
	// A tool's output is text or parts.
	output := parts

	common := fields{"type": text, "id": text, "status": text,
		"internal_chat_message_metadata_passthrough": drop,
	}
	call := common.with(fields{"call_id": text, "name": text, "namespace": text})
	item := func(f fields) rule { return obj(common.with(f)) }

	reasoning := func(f *found, v any) (any, *fault) {
		out, bad := item(fields{
			"summary":           list(byType("a summary", "", map[string]rule{"summary_text": plain})),
			"content":           orNull(list(byType("a content part", "", map[string]rule{"reasoning_text": plain, "text": plain}))),
			"encrypted_content": text,
		})(f, v)
		if bad != nil {
			return nil, bad
		}
		// Without its content an item of reasoning is the name of one that the
		// provider has stored. Ours are not stored, so there is nothing to name.
		o := out.(*object)
		if s, _ := o.get("encrypted_content").(string); s != "" {
			return o, nil
		}
		if l, _ := o.get("content").([]any); len(l) == 0 {
			return dropped, nil
		}
		o.del("id")
		return o, nil
	}

	message := item(fields{
		"role":    oneOf("is no known role", "user", "assistant", "system", "developer"),
		"content": parts,
		"phase":   text,
	})
	input := textOr(list(byType("an item", "message", map[string]rule{
		"message": func(f *found, v any) (any, *fault) {
			// An id alone is the name of an item the provider has stored.
			if o := v.(*object); o.get("content") == nil || o.get("role") == nil {
				return nil, wrong("is refused: expected an item with role and content; an id alone is %s", stored)
			}
			return message(f, v)
		},
		"reasoning":               reasoning,
		"function_call":           obj(call.with(fields{"arguments": text, "encrypted_function_args": text})),
		"function_call_output":    item(fields{"call_id": text, "output": output}),
		"custom_tool_call":        obj(call.with(fields{"input": text})),
		"custom_tool_call_output": item(fields{"call_id": text, "name": text, "output": output}),
		"local_shell_call": item(fields{"call_id": text, "action": obj(fields{
			"type": oneOf("is no known action", "exec"), "command": list(text), "timeout_ms": scalar, "user": text, "working_directory": text,
			"env": orNull(free),
		})}),
		"local_shell_call_output": item(fields{"call_id": text, "output": text}),
		// The client searches, and tells the model of more of its tools.
		"tool_search_call": item(fields{"call_id": text, "arguments": free,
			"execution": oneOf("is refused: the provider would search", "client")}),
		"tool_search_output": item(fields{"call_id": text, "tools": list(tool),
			"execution": oneOf("is refused: the provider would search", "client")}),
		"additional_tools": item(fields{"role": text, "tools": list(tool)}),
		"agent_message":    item(fields{"author": text, "recipient": text, "content": parts}),

		"item_reference":        refused(stored),
		"web_search_call":       refused(serverSide),
		"file_search_call":      refused(serverSide),
		"code_interpreter_call": refused(serverSide),
		"image_generation_call": refused(serverSide),
		"computer_call":         refused(serverSide),
		"computer_call_output":  refused(serverSide),
		"mcp_call":              refused(serverSide),
		"mcp_list_tools":        refused(serverSide),
		"mcp_approval_request":  refused(serverSide),
		"mcp_approval_response": refused(serverSide),
		"compaction":            refused("let the agent shorten its own conversation"),
		"compaction_trigger":    refused("let the agent shorten its own conversation"),
	})))

	named := byType("a tool", "", map[string]rule{
		"function":    obj(fields{"type": text, "name": text, "namespace": text}),
		"custom":      obj(fields{"type": text, "name": text, "namespace": text}),
		"local_shell": obj(fields{"type": text}),
	})
	choice := func(f *found, v any) (any, *fault) {
		if o, ok := v.(*object); ok && o.get("type") == "allowed_tools" {
			return obj(fields{"type": text, "mode": text, "tools": list(named)})(f, v)
		}
		return named(f, v)
	}

	return fields{
		"model":               text,
		"instructions":        text,
		"input":               input,
		"tools":               orNull(list(tool)),
		"tool_choice":         textOr(orNull(choice)),
		"parallel_tool_calls": flag,
		"reasoning": orNull(obj(fields{
			"effort": scalar, "summary": scalar, "generate_summary": scalar, "context": scalar,
		})),
		"text": orNull(obj(fields{
			"verbosity": scalar,
			"format": orNull(byType("a format", "", map[string]rule{
				"text":        obj(fields{"type": text}),
				"json_object": obj(fields{"type": text}),
				"json_schema": obj(fields{"type": text, "name": text, "description": text, "strict": flag, "schema": schema}),
			})),
		})),
		"include": orNull(list(oneOf("is refused: only what the model itself says can be included",
			"reasoning.encrypted_content", "message.output_text.logprobs"))),
		"max_output_tokens": tokens,
		"max_tool_calls":    scalar,
		"stream":            flag,
		"stream_options":    orNull(obj(fields{"include_obfuscation": flag})),
		"temperature":       scalar,
		"top_p":             scalar,
		"top_logprobs":      scalar,
		"truncation":        scalar,
		"prompt_cache_key":  text,

		"store":                  onlyFalse(stored),
		"metadata":               drop,
		"client_metadata":        drop,
		"user":                   drop,
		"safety_identifier":      drop,
		"service_tier":           drop,
		"prompt_cache_retention": drop,

		"background":           onlyFalse("an answer nobody waits for could not be stopped with the session"),
		"previous_response_id": no(stored),
		"conversation":         no(stored),
		"prompt":               no("it names a template the provider has stored"),
		"context_management":   no("let the agent shorten its own conversation"),
		"moderation":           no("it is not a part of what this gateway serves"),
	}
}

// responsesTool is what is known of a tool, namespaces of them included.
func responsesTool() rule {
	kinds := map[string]rule{
		"function": obj(fields{"type": text, "name": text, "description": text, "strict": flag, "parameters": schema, "defer_loading": flag}),
		"custom": obj(fields{"type": text, "name": text, "description": text, "defer_loading": flag,
			"format": orNull(byType("a format", "", map[string]rule{
				"text":    obj(fields{"type": text}),
				"grammar": obj(fields{"type": text, "syntax": text, "definition": text}),
			})),
		}),
		"local_shell": obj(fields{"type": text}),
		"tool_search": obj(fields{"type": text, "description": text, "parameters": schema,
			"execution": oneOf("is refused: the provider would search", "client")}),
	}
	// Without the word the provider runs it.
	search := kinds["tool_search"]
	kinds["tool_search"] = func(f *found, v any) (any, *fault) {
		if v.(*object).get("execution") != "client" {
			return nil, wrong("tool_search is refused unless its execution is client: %s", serverSide)
		}
		return search(f, v)
	}
	tool := toolsOf("", kinds, nil)
	kinds["namespace"] = obj(fields{"type": text, "name": text, "description": text,
		"tools": list(func(f *found, v any) (any, *fault) { return tool(f, v) }),
	})
	return tool
}
