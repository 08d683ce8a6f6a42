package gateway

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A rule looks at one value and returns what is sent on in its place, dropped
// for nothing. It may change the value itself. Rules are put together to tables
// that say everything this gateway knows of an API.
type rule func(f *found, v any) (any, *fault)

// found is what the rules notice on their way.
type found struct {
	images     int  // inline images
	imageBytes int  // their base64 letters
	hour       bool // a cache entry is to live an hour
	allowHour  bool // which has a price; else that wish is taken out
}

// fault is why a request is not sent on, and where in it.
type fault struct {
	at  string // "messages[3].content[0].source"
	why string
}

func (f *fault) String() string {
	if f.at == "" {
		return f.why
	}
	return f.at + ": " + f.why
}

// in says that the fault lies under name.
func (f *fault) in(name string) *fault {
	switch {
	case f.at == "", strings.HasPrefix(f.at, "["):
		f.at = name + f.at
	default:
		f.at = name + "." + f.at
	}
	return f
}

type nothing struct{}

// dropped is what a rule returns for a value that is left out.
var dropped any = nothing{}

func wrong(format string, args ...any) *fault { return &fault{why: fmt.Sprintf(format, args...)} }

// fields is what may stand in an object.
type fields map[string]rule

// with returns both.
func (a fields) with(b fields) fields {
	out := make(fields, len(a)+len(b))
	for k, v := range a {
		out[k] = v
	}
	for k, v := range b {
		out[k] = v
	}
	return out
}

// obj is an object of these fields only.
func obj(known fields) rule {
	return func(f *found, v any) (any, *fault) {
		o, ok := v.(*object)
		if !ok {
			return nil, expected("an object", v)
		}
		return o, known.check(f, o)
	}
}

func (known fields) check(f *found, o *object) *fault {
	keep := o.members[:0]
	for _, m := range o.members {
		r, ok := known[m.name]
		if !ok {
			return wrong("is not a field this gateway knows, so it is not sent on; leave it out").in(short(m.name))
		}
		out, bad := r(f, m.value)
		if bad != nil {
			return bad.in(m.name)
		}
		if out != dropped {
			keep = append(keep, member{m.name, out})
		}
	}
	o.members = keep
	return nil
}

// list is a list of what item says; what item drops is left out.
func list(item rule) rule {
	return func(f *found, v any) (any, *fault) {
		l, ok := v.([]any)
		if !ok {
			return nil, expected("a list", v)
		}
		keep := l[:0]
		for i, x := range l {
			out, bad := item(f, x)
			if bad != nil {
				return nil, bad.in("[" + strconv.Itoa(i) + "]")
			}
			if out != dropped {
				keep = append(keep, out)
			}
		}
		return keep, nil
	}
}

// textOr is a string, or what r says.
func textOr(r rule) rule {
	return func(f *found, v any) (any, *fault) {
		if _, ok := v.(string); ok {
			return v, nil
		}
		return r(f, v)
	}
}

// orNull is null, or what r says.
func orNull(r rule) rule {
	return func(f *found, v any) (any, *fault) {
		if v == nil {
			return nil, nil
		}
		return r(f, v)
	}
}

// byType is an object whose "type" chooses the rule; missing is the type of one
// that names none. what is the word for it in a message.
func byType(what, missing string, kinds map[string]rule) rule {
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
		r, ok := kinds[kind]
		if !ok {
			if kind == "" {
				return nil, wrong("expected a type of %s", what).in("type")
			}
			return nil, wrong("%s of type %q is not one this gateway knows, so it is not sent on", what, short(kind))
		}
		return r(f, v)
	}
}

// text is a string or null.
func text(_ *found, v any) (any, *fault) {
	switch v.(type) {
	case string, nil:
		return v, nil
	}
	return nil, expected("a string", v)
}

// scalar is anything but a list or an object.
func scalar(_ *found, v any) (any, *fault) {
	switch v.(type) {
	case []any, *object:
		return nil, expected("a plain value", v)
	}
	return v, nil
}

// flag is a boolean or null.
func flag(_ *found, v any) (any, *fault) {
	switch v.(type) {
	case bool, nil:
		return v, nil
	}
	return nil, expected("true or false", v)
}

// tokens is a number of tokens. Notations that two readers might take for two
// numbers, 1e3 or 7.0, are not taken.
func tokens(_ *found, v any) (any, *fault) {
	if v == nil {
		return dropped, nil
	}
	if n, ok := count(v); !ok || n < 1 {
		return nil, expected("a whole number above zero", v)
	}
	return v, nil
}

// count is the number v is, if it is written in plain digits.
func count(v any) (int64, bool) {
	n, ok := v.(number)
	if !ok || len(n) > 12 || strings.ContainsAny(string(n), ".eE-") {
		return 0, false
	}
	i, err := strconv.ParseInt(string(n), 10, 64)
	return i, err == nil
}

// free is anything: text for the model, or its own output.
func free(_ *found, v any) (any, *fault) { return v, nil }

// drop leaves the value out, whatever it is.
func drop(*found, any) (any, *fault) { return dropped, nil }

// no refuses the value, if there is one.
func no(why string) rule {
	return func(_ *found, v any) (any, *fault) {
		if v == nil {
			return dropped, nil
		}
		return nil, wrong("is refused: %s", why)
	}
}

// refused refuses whatever it is.
func refused(why string) rule {
	return func(*found, any) (any, *fault) { return nil, wrong("is refused: %s", why) }
}

// onlyFalse lets false pass and refuses everything else.
func onlyFalse(why string) rule {
	return func(f *found, v any) (any, *fault) {
		if v == false {
			return v, nil
		}
		return no(why)(f, v)
	}
}

// oneOf is one of these strings, or null.
func oneOf(why string, words ...string) rule {
	return func(_ *found, v any) (any, *fault) {
		if v == nil {
			return v, nil
		}
		if s, ok := v.(string); ok && slices.Contains(words, s) {
			return v, nil
		}
		return nil, wrong("%s; expected %s", why, strings.Join(words, " or "))
	}
}

const elsewhere = "the provider would fetch it for the agent, past the egress list of this session; send the content itself"

var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// imageURL is a data: address of an image.
func imageURL(f *found, v any) (any, *fault) {
	s, ok := v.(string)
	if !ok {
		return nil, expected("a data: address", v)
	}
	kind, data, ok := dataURL(s)
	if !ok {
		return nil, wrong("is refused: only data: addresses are, in base64; anything else %s", elsewhere)
	}
	if !slices.Contains(imageTypes, kind) {
		return nil, wrong("expected %s, but found %q", strings.Join(imageTypes, ", "), short(kind))
	}
	f.images++
	f.imageBytes += len(data)
	return v, nil
}

// fileURL is a data: address of any kind.
func fileURL(_ *found, v any) (any, *fault) {
	if s, ok := v.(string); ok {
		if _, _, ok := dataURL(s); ok {
			return v, nil
		}
	}
	return nil, wrong("is refused: only data: addresses are taken, in base64; anything else %s", elsewhere)
}

func dataURL(s string) (kind, data string, ok bool) {
	s, ok = strings.CutPrefix(s, "data:")
	if !ok {
		return "", "", false
	}
	kind, data, ok = strings.Cut(s, ";base64,")
	if !ok || len(kind) > 100 || strings.ContainsAny(kind, " \t\r\n,;:\"") || !isBase64(data) {
		return "", "", false
	}
	return kind, data, true
}

// inline is base64 that stands in the request.
func inline(_ *found, v any) (any, *fault) {
	if s, ok := v.(string); ok && isBase64(s) {
		return v, nil
	}
	return nil, expected("base64", v)
}

func isBase64(s string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '+', c == '/', c == '-', c == '_', c == '=', c == '\n', c == '\r':
		default:
			return false
		}
	}
	return true
}

// schema is a JSON schema: anything, but what it refers to must be in it.
func schema(_ *found, v any) (any, *fault) {
	if bad := refersInside(v); bad != nil {
		return nil, bad
	}
	return v, nil
}

func refersInside(v any) *fault {
	switch v := v.(type) {
	case []any:
		for i, x := range v {
			if bad := refersInside(x); bad != nil {
				return bad.in("[" + strconv.Itoa(i) + "]")
			}
		}
	case *object:
		for _, m := range v.members {
			switch m.name {
			case "$ref", "$dynamicRef", "$recursiveRef":
				if s, ok := m.value.(string); ok && !strings.HasPrefix(s, "#") {
					return wrong("is refused: a schema may refer only to itself (#…), not to another place").in(m.name)
				}
			}
			if bad := refersInside(m.value); bad != nil {
				return bad.in(short(m.name))
			}
		}
	}
	return nil
}

// cacheControl is how Anthropic's models, behind any API, are told what to cache.
func cacheControl(f *found, v any) (any, *fault) {
	if v == nil {
		return dropped, nil
	}
	return obj(fields{
		"type": oneOf("is no known kind of cache", "ephemeral"),
		"ttl": func(f *found, v any) (any, *fault) {
			switch v {
			case nil, "5m":
				return v, nil
			case "1h":
				if !f.allowHour {
					return dropped, nil // five minutes: what there is a price for
				}
				f.hour = true
				return v, nil
			}
			return nil, expected("5m or 1h", v)
		},
	})(f, v)
}

// expected is a fault of form: what should stand there and what does.
func expected(what string, v any) *fault {
	switch v := v.(type) {
	case nil:
		return wrong("expected %s, but found null", what)
	case bool:
		return wrong("expected %s, but found %v", what, v)
	case number:
		return wrong("expected %s, but found %s", what, v)
	case string:
		return wrong("expected %s, but found %q", what, short(v))
	case []any:
		return wrong("expected %s, but found a list", what)
	}
	return wrong("expected %s, but found an object", what)
}
