package gateway

// chatFields is what is known of POST /v1/chat/completions.
func chatFields() fields {
	content := textOr(orNull(list(byType("a content part", "", map[string]rule{
		"text":    obj(fields{"type": text, "text": text, "cache_control": cacheControl}),
		"refusal": obj(fields{"type": text, "refusal": text}),
		"image_url": obj(fields{"type": text, "cache_control": cacheControl,
			"image_url": obj(fields{"url": imageURL, "detail": text}),
		}),
		"file": obj(fields{"type": text, "cache_control": cacheControl,
			"file": obj(fields{"filename": text, "file_data": fileURL, "file_id": no(stored)}),
		}),
		"input_audio": obj(fields{"type": text,
			"input_audio": obj(fields{"data": inline, "format": text}),
		}),
	}))))

	function := obj(fields{"name": text, "arguments": text})
	calls := orNull(list(byType("a tool call", "function", map[string]rule{
		"function": obj(fields{"id": text, "type": text, "index": scalar, "function": function, "cache_control": cacheControl,
			// Thought signatures of Gemini's models, their own text given back.
			"extra_content": obj(fields{"google": obj(fields{"thought_signature": text})}),
		}),
		"custom": obj(fields{"id": text, "type": text, "index": scalar, "custom": obj(fields{"name": text, "input": text})}),
	})))

	message := obj(fields{
		"role":         oneOf("is no known role", "system", "developer", "user", "assistant", "tool"),
		"content":      content,
		"name":         text,
		"refusal":      text,
		"tool_calls":   calls,
		"tool_call_id": text,
		// What reasoning models of several makers want to have back.
		"reasoning":         text,
		"reasoning_content": text,
		"reasoning_details": orNull(list(obj(fields{
			"type": text, "text": text, "summary": text, "data": text, "signature": text,
			"id": scalar, "format": scalar, "index": scalar,
		}))),
		"cache_control": cacheControl,
		"annotations":   drop,
		"audio":         no("it names an answer the provider has stored"),
	})

	name := obj(fields{"name": text})
	named := map[string]rule{
		"function": obj(fields{"type": text, "function": name}),
		"custom":   obj(fields{"type": text, "custom": name}),
	}
	choice := map[string]rule{
		"allowed_tools": obj(fields{"type": text, "allowed_tools": obj(fields{
			"mode": text, "tools": list(byType("a tool", "", named)),
		})}),
	}
	for k, v := range named {
		choice[k] = v
	}

	return fields{
		"model":    text,
		"messages": list(message),
		"tools": orNull(list(toolsOf("function", map[string]rule{
			"function": obj(fields{"type": text, "cache_control": cacheControl, "function": obj(fields{
				"name": text, "description": text, "strict": flag, "parameters": schema,
			})}),
			"custom": obj(fields{"type": text, "custom": obj(fields{
				"name": text, "description": text, "format": orNull(byType("a format", "", map[string]rule{
					"text":    obj(fields{"type": text}),
					"grammar": obj(fields{"type": text, "grammar": obj(fields{"syntax": text, "definition": text})}),
				})),
			})}),
		}, nil))),
		"tool_choice":         textOr(orNull(byType("a choice", "", choice))),
		"parallel_tool_calls": flag,

		"max_tokens":            tokens,
		"max_completion_tokens": tokens,
		"n": func(f *found, v any) (any, *fault) {
			if v == nil || v == number("1") {
				return dropped, nil
			}
			return nil, wrong("is refused: one answer per call, so that its cost is known; call again for another")
		},
		"stream":         flag,
		"stream_options": orNull(obj(fields{"include_usage": flag, "include_obfuscation": flag})),

		"response_format": orNull(byType("a format", "", map[string]rule{
			"text":        obj(fields{"type": text}),
			"json_object": obj(fields{"type": text}),
			"json_schema": obj(fields{"type": text, "json_schema": obj(fields{
				"name": text, "description": text, "strict": flag, "schema": schema,
			})}),
		})),
		"stop":              textOr(orNull(list(scalar))),
		"temperature":       scalar,
		"top_p":             scalar,
		"frequency_penalty": scalar,
		"presence_penalty":  scalar,
		"seed":              scalar,
		"logprobs":          flag,
		"top_logprobs":      scalar,
		"logit_bias": orNull(func(f *found, v any) (any, *fault) {
			o, ok := v.(*object)
			if !ok {
				return nil, expected("an object", v)
			}
			for _, m := range o.members {
				if _, bad := scalar(f, m.value); bad != nil {
					return nil, bad.in(short(m.name))
				}
			}
			return v, nil
		}),
		"reasoning_effort": scalar,
		"verbosity":        scalar,
		"modalities": orNull(list(func(_ *found, v any) (any, *fault) {
			if v == "text" {
				return v, nil
			}
			return nil, wrong("is refused: answers are text only")
		})),
		"prompt_cache_key": text,
		// Of servers of open models.
		"top_k": scalar, "min_p": scalar, "repetition_penalty": scalar, "enable_thinking": flag,

		"store":                  onlyFalse(stored),
		"metadata":               drop,
		"user":                   drop,
		"safety_identifier":      drop,
		"service_tier":           drop,
		"prompt_cache_retention": drop,

		"web_search_options": no(serverSide),
		"audio":              no("answers are text only"),
		"prediction":         no("what of it is not used costs as output and is not bounded by max_tokens"),
		"functions":          no("use tools"),
		"function_call":      no("use tool_choice"),
	}
}
