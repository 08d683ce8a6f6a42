package gateway

import (
	"fmt"
	"strconv"

	"inspect/envs/wire"
)

// refusal is an answer of the gateway's own, in place of a provider's.
type refusal struct {
	status  int
	code    string // of a wire.Error
	message string // for a person, or the agent
}

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

// statuses are those of a wire.Error's codes.
var statuses = map[string]int{
	"unauthorized": 401, "stale_generation": 409, wire.CodeOverBudget: 402, "too_large": 413,
	"not_found": 404, "bad_request": 400, "forbidden": 403, "version": 426, "unavailable": 503,
}

// refusalOf says what a *wire.Error says.
func refusalOf(e *wire.Error) *refusal {
	status, ok := statuses[e.Code]
	if !ok {
		status = 503
	}
	return &refusal{status, e.Code, e.Message}
}

// body is the refusal in the words of an API, so that its clients can read it.
func (r *refusal) body(api string) []byte {
	o := &object{}
	if api == wire.APIMessages {
		kinds := map[int]string{
			400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
			404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
		}
		kind := kinds[r.status]
		switch {
		case kind == "" && r.status < 500:
			kind = "invalid_request_error"
		case kind == "":
			kind = "api_error"
		}
		inner := &object{members: []member{{"type", kind}, {"message", r.message}}}
		o.members = []member{{"type", "error"}, {"error", inner}}
	} else {
		kinds := map[int]string{401: "authentication_error", 402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}
		kind := kinds[r.status]
		switch {
		case kind == "" && r.status < 500:
			kind = "invalid_request_error"
		case kind == "":
			kind = "server_error"
		}
		inner := &object{members: []member{{"message", r.message}, {"type", kind}, {"param", nil}, {"code", r.code}}}
		o.members = []member{{"error", inner}}
	}
	return encode(nil, o)
}

func numberOf(n int64) number { return number(strconv.FormatInt(n, 10)) }
