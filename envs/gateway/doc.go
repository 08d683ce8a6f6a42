// Package gateway stands between an agent in its sandbox and a model provider.
// Requests of three APIs (chat completions, responses, messages) come in at the
// Door on the runner's side and go, with the runner's identity, to the Handler
// in the control plane; what the Handler has checked and written anew goes to
// the provider with the operator's key, and the provider's answer comes back as
// it streams. Money is set aside in a Ledger before a call and settled after
// it, from the provider's own numbers.
//
// Nothing an agent sends reaches a provider as it was sent. A body is parsed
// strictly (no duplicate keys, valid UTF-8, bounded depth), held against the
// list of what is known of its API, and encoded anew; a key that is not on the
// list is refused by name. So is what a provider would fetch, run or store on
// the agent's behalf, for that would pass the session's egress list by:
//
//	all        tools that do not run in the sandbox (web search and fetch, code
//	           execution, file search, remote MCP, computer use, image
//	           generation), images and files by address or id, JSON schemas that
//	           refer elsewhere, more than one answer per call
//	chat       web_search_options, store, prediction, audio output, earlier audio
//	responses  background, previous_response_id, conversation, prompt,
//	           item_reference, store: true, include of anything but reasoning
//	           and log probabilities
//	messages   mcp_servers, container, container_upload, past server tools,
//	           compaction by the provider, fallbacks, fast mode, inference_geo
//
// These are taken out without a word, because clients send them and nothing
// would be gained by refusing:
//
//	all        service_tier, user, safety_identifier, the client's headers but for those below
//	chat       metadata, prompt_cache_retention, stream_options but for ours
//	responses  metadata, client_metadata, prompt_cache_retention, annotations and
//	           log probabilities of earlier answers, the id of reasoning that is
//	           not sent along with its content
//	messages   metadata, a cache ttl of 1h unless that has a price
//
// And these are put in: the provider's own name of the model, the most output
// tokens the money set aside can pay, store: false (responses), the wish for
// usage at the end of a stream (chat).
//
// Of the client's headers a provider sees anthropic-version, the harmless ones
// of anthropic-beta, and x-openai-internal-codex-responses-lite. Of a
// provider's headers the agent sees the content type, request ids, when to come
// back and rate limits.
//
// What decides is pure: json, rules, chat, responses, messages, check, price,
// meter, events. What does is handler, upstream and door.
package gateway
