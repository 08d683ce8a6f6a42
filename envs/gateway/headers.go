package gateway

import (
	"net/http"
	"regexp"
	"strings"

	"inspect/envs/wire"
)

// Headers between the handler and the door, beside those of package wire. The
// door takes away everything that begins like these.
const (
	ownHeaders   = "Inspect-"
	headerAnswer = "Inspect-Answer" // who speaks: fromGateway or fromProvider
	fromGateway  = "gateway"
	fromProvider = "provider"
)

const (
	headerVersion = "Anthropic-Version"
	headerBeta    = "Anthropic-Beta"
	// Codex says with it that its tools stand among the items of the input.
	headerLite = "X-Openai-Internal-Codex-Responses-Lite"
	// The version Anthropic's API has had since 2023.
	anthropicVersion = "2023-06-01"
)

var dated = regexp.MustCompile(`^20[0-9]{2}-[0-9]{2}-[0-9]{2}$`)

// carried is what of a client's headers goes on, in its checked form.
func carried(from http.Header, api string) http.Header {
	h := http.Header{}
	switch api {
	case wire.APIMessages:
		h.Set(headerVersion, anthropicVersion)
		if v := from.Get(headerVersion); dated.MatchString(v) {
			h.Set(headerVersion, v)
		}
		if b := harmlessBetas(from.Values(headerBeta)); b != "" {
			h.Set(headerBeta, b)
		}
	case wire.APIResponses:
		if from.Get(headerLite) == "true" {
			h.Set(headerLite, "true")
		}
	}
	return h
}

// requestHeaders are those of a call to a provider.
func requestHeaders(from http.Header, c *call, p provider) http.Header {
	h := carried(from, c.ep.api)
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json")
	if c.stream {
		h.Set("Accept", "text/event-stream")
	}
	h.Set("User-Agent", "inspect")
	switch {
	case p.key == "":
	case p.api == apiAnthropic:
		h.Set("X-Api-Key", p.key)
	default:
		h.Set("Authorization", "Bearer "+p.key)
	}
	return h
}

// answerHeaders copies what an agent may see of a provider's headers.
func answerHeaders(to, from http.Header) {
	for name, values := range from {
		switch name {
		case "Retry-After", "Retry-After-Ms", "X-Should-Retry", "Request-Id", "X-Request-Id":
		default:
			if !strings.HasPrefix(name, "Anthropic-Ratelimit-") && !strings.HasPrefix(name, "X-Ratelimit-") {
				continue
			}
		}
		to[name] = values
	}
}

// refuseHeaders says what of a request's headers cannot be served.
func refuseHeaders(r *http.Request) *refusal {
	switch {
	case r.Header.Get("Upgrade") != "":
		return refuse(400, "bad_request", "this gateway speaks HTTP only, no web sockets; set supports_websockets=false or the like")
	case r.Method == http.MethodPost && r.Header.Get("Content-Encoding") != "":
		return refuse(400, "bad_request", "a body with Content-Encoding is not taken; send it as it is")
	case r.Method == http.MethodPost && !isJSON(r.Header.Get("Content-Type")):
		return refuse(400, "bad_request", "expected Content-Type: application/json")
	}
	return nil
}

func isJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(kind), "application/json")
}

func isEvents(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}
