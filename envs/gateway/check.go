package gateway

import (
	"net/url"
	"regexp"
	"strings"

	"inspect/envs/wire"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 32 << 20

// Why things are refused, as the end of a sentence.
const (
	stored     = "the name of something the provider has stored, which is shared beyond this session"
	serverSide = "the provider would run it for the agent, past the egress list of this session"
)

// endpoint is one call the gateway serves.
type endpoint struct {
	method string
	path   string // below the provider's and the gateway's address alike
	api    string // wire.APIChat, …; empty: the list of models
	count  bool   // counts tokens, costs nothing
	model  string // of one model's description: its id
}

var endpoints = []endpoint{
	{method: "POST", path: "/v1/chat/completions", api: wire.APIChat},
	{method: "POST", path: "/v1/responses", api: wire.APIResponses},
	{method: "POST", path: "/v1/responses/input_tokens", api: wire.APIResponses, count: true},
	{method: "POST", path: "/v1/messages", api: wire.APIMessages},
	{method: "POST", path: "/v1/messages/count_tokens", api: wire.APIMessages, count: true},
	{method: "GET", path: "/v1/models"},
}

// modelID is what an id of a model may look like.
var modelID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)*$`)

const maxModelID = 128

// known places of providers' APIs, by what stands behind /v1/, and why they are
// not served.
var closed = map[string]string{
	"files": stored, "uploads": stored, "batches": stored, "vector_stores": stored, "conversations": stored, "containers": stored,
	"assistants": stored, "threads": stored, "skills": stored, "fine_tuning": stored, "evals": stored,
	"images": "answers are text only", "audio": "answers are text only", "videos": "answers are text only", "realtime": "answers are text only",
}

// route finds the endpoint of a request. path is as it was sent, escapes
// included. On a refusal the endpoint still says which API the caller speaks.
func route(method, path, query string) (endpoint, *refusal) {
	if id, ok := strings.CutPrefix(path, "/v1/models/"); ok {
		ep := endpoint{method: "GET", path: "/v1/models"}
		id, err := url.PathUnescape(id)
		if err != nil || len(id) > maxModelID || !modelID.MatchString(id) {
			return ep, refuse(404, "not_found", "there is no such model")
		}
		ep.model = id
		return ep, allowed(ep, method, query)
	}
	for _, ep := range endpoints {
		if ep.path == path {
			return ep, allowed(ep, method, query)
		}
	}
	ep := endpoint{method: method}
	if strings.HasPrefix(path, "/v1/messages/") {
		ep.api = wire.APIMessages
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	why := closed[first]
	if strings.HasPrefix(path, "/v1/messages/batches") || strings.HasPrefix(path, "/v1/responses/") || strings.HasPrefix(path, "/v1/chat/completions/") {
		why = stored
	}
	if why != "" {
		return ep, refuse(403, "forbidden", "%s %s is refused: %s", short(method), short(path), why)
	}
	return ep, refuse(404, "not_found", "%s %s is not served here; this gateway serves %s", short(method), short(path), served())
}

func allowed(ep endpoint, method, query string) *refusal {
	if method != ep.method {
		why := "expected " + ep.method
		if method == "GET" || method == "DELETE" {
			why += "; stored answers are not kept"
		}
		return refuse(405, "bad_request", "%s %s is refused: %s", short(method), ep.path, why)
	}
	// The list of models is short whatever is asked, and the answer is our own.
	// Claude Code says beta=true; nothing else has a meaning for a call.
	if query != "" && query != "beta=true" && ep.api != "" {
		return refuse(400, "bad_request", "the query %q is not one this gateway knows", short(query))
	}
	return nil
}

func served() string {
	var all []string
	for _, ep := range endpoints {
		all = append(all, ep.method+" "+ep.path)
	}
	return strings.Join(all, ", ")
}

// rules are the tables of the APIs.
type rules map[string]fields

func newRules() rules {
	return rules{
		wire.APIChat:      chatFields(),
		wire.APIResponses: responsesFields(),
		wire.APIMessages:  messagesFields(),
	}
}

// call is a checked request, ready to be sent.
type call struct {
	ep     endpoint
	model  string // as the client named it
	body   *object
	stream bool
	// asked: the client itself wants the usage at the end of a chat stream.
	asked bool
	found found
	most  int64  // output tokens the body now asks for at most
	bound string // the field that says so
}

// check holds a body against what is known of the endpoint's API. What it
// returns holds nothing that is not on the lists.
func (r rules) check(ep endpoint, raw string, caller wire.ModelCaller, m Model) (*call, *refusal) {
	body, err := decode(raw)
	if err != nil {
		return nil, refuse(400, "bad_request", "%s", err)
	}
	c := &call{ep: ep, body: body}
	c.found.allowHour = !m.Priced || m.Price.CacheWrite1h > 0
	if bad := r[ep.api].check(&c.found, body); bad != nil {
		return nil, refuse(400, "bad_request", "%s", bad)
	}
	c.model, _ = body.get("model").(string)
	if c.model != caller.Model {
		return nil, refuse(404, "not_found", "the model %q is not the one of this session; use %q", short(c.model), caller.Model)
	}
	body.set("model", m.Name)
	c.stream = body.get("stream") == true
	if ep.count {
		for _, name := range notCounted[ep.api] {
			body.del(name)
		}
		c.stream = false
		return c, nil
	}
	c.complete(m)
	return c, nil
}

// notCounted are fields of a call that the count of its tokens does not take.
var notCounted = map[string][]string{
	wire.APIMessages:  {"max_tokens", "stream", "stop_sequences", "temperature", "top_k", "top_p"},
	wire.APIResponses: {"max_output_tokens", "max_tool_calls", "stream", "stream_options", "store", "include", "temperature", "top_p", "top_logprobs", "prompt_cache_key"},
}

// complete puts in what the client left to the provider and we do not.
func (c *call) complete(m Model) {
	most := m.MaxOutput
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		if n, ok := count(c.body.get(name)); ok {
			most = min(most, n)
		}
	}
	switch c.ep.api {
	case wire.APIChat:
		// OpenAI's newer models take only max_completion_tokens, others' servers
		// often only max_tokens.
		c.bound = "max_tokens"
		if m.api == apiOpenAI {
			c.body.del("max_tokens")
			c.bound = "max_completion_tokens"
		} else {
			c.body.del("max_completion_tokens")
		}
		if o, ok := c.body.get("stream_options").(*object); ok {
			c.asked = o.get("include_usage") == true
		}
		c.body.del("stream_options")
		if c.stream {
			c.body.set("stream_options", &object{members: []member{{"include_usage", true}}})
		}
	case wire.APIResponses:
		c.bound = "max_output_tokens"
		c.body.set("store", false) // left out, it means true
	case wire.APIMessages:
		c.bound = "max_tokens"
	}
	c.limit(most)
}

// limit sets the most output tokens.
func (c *call) limit(most int64) {
	c.most = most
	c.body.set(c.bound, numberOf(most))
	thinking, _ := c.body.get("thinking").(*object)
	if thinking == nil {
		return
	}
	// Anthropic: a thinking budget is at least 1,024 tokens and below max_tokens.
	const least = 1024
	if budget, ok := count(thinking.get("budget_tokens")); ok && budget >= most {
		if half := most / 2; half >= least {
			thinking.set("budget_tokens", numberOf(half))
		} else {
			c.body.set("thinking", &object{members: []member{{"type", "disabled"}}})
		}
	}
}
