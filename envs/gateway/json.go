package gateway

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of one JSON body. Real requests are far inside of them: Claude Code's
// first one is 50 KB with 3,000 values, 12 levels deep.
const (
	maxDepth  = 100
	maxValues = 500_000
	maxNumber = 64 // letters of one number
)

// A JSON value is nil, bool, number, string, []any or *object. Unlike with
// encoding/json the members of an object keep their order: it decides in which
// order a model fills a schema, and whether a provider's prompt cache is hit.
type (
	number string
	object struct{ members []member }
	member struct {
		name  string
		value any
	}
)

func (o *object) get(name string) any {
	for i := range o.members {
		if o.members[i].name == name {
			return o.members[i].value
		}
	}
	return nil
}

func (o *object) has(name string) bool {
	for i := range o.members {
		if o.members[i].name == name {
			return true
		}
	}
	return false
}

// set changes a member in its place or adds it at the end.
func (o *object) set(name string, value any) {
	for i := range o.members {
		if o.members[i].name == name {
			o.members[i].value = value
			return
		}
	}
	o.members = append(o.members, member{name, value})
}

func (o *object) del(name string) {
	for i := range o.members {
		if o.members[i].name == name {
			o.members = append(o.members[:i], o.members[i+1:]...)
			return
		}
	}
}

// decode reads one JSON object, strictly: valid UTF-8, each key once, nothing
// behind it. A lone half of a surrogate pair, which clients make when they cut
// text, becomes U+FFFD.
func decode(body string) (*object, error) {
	if !utf8.ValidString(body) {
		return nil, errors.New("the body is not valid UTF-8")
	}
	p := parser{s: body}
	p.space()
	if p.i >= len(p.s) {
		return nil, errors.New("the body is empty; expected a JSON object")
	}
	if p.s[p.i] != '{' {
		return nil, errors.New("the body is not a JSON object")
	}
	v, err := p.value(0)
	if err != nil {
		return nil, fmt.Errorf("the body is not JSON this gateway takes: %w (at byte %d)", err, p.i)
	}
	p.space()
	if p.i < len(p.s) {
		return nil, fmt.Errorf("something stands behind the JSON object, at byte %d", p.i)
	}
	return v.(*object), nil
}

type parser struct {
	s      string
	i      int
	values int
}

func (p *parser) space() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

func (p *parser) peek() byte {
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

var errEnd = errors.New("it ends too early")

func (p *parser) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	if p.values++; p.values > maxValues {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	if p.i >= len(p.s) {
		return nil, errEnd
	}
	switch c := p.s[p.i]; {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return p.string()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	switch rest := p.s[p.i:]; {
	case strings.HasPrefix(rest, "true"):
		p.i += 4
		return true, nil
	case strings.HasPrefix(rest, "false"):
		p.i += 5
		return false, nil
	case strings.HasPrefix(rest, "null"):
		p.i += 4
		return nil, nil
	}
	return nil, errors.New("expected a value")
}

func (p *parser) object(depth int) (any, error) {
	p.i++
	o := &object{}
	var seen map[string]bool // only of large objects
	p.space()
	if p.peek() == '}' {
		p.i++
		return o, nil
	}
	for {
		p.space()
		if p.peek() != '"' {
			return nil, errors.New("expected a key")
		}
		name, err := p.string()
		if err != nil {
			return nil, err
		}
		twice := seen[name]
		if seen == nil {
			twice = o.has(name)
		}
		if twice {
			return nil, fmt.Errorf("the key %q stands twice in one object", short(name))
		}
		p.space()
		if p.peek() != ':' {
			return nil, errors.New("expected ':'")
		}
		p.i++
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		o.members = append(o.members, member{name, v})
		if seen != nil {
			seen[name] = true
		} else if len(o.members) == 32 {
			seen = make(map[string]bool, 64)
			for _, m := range o.members {
				seen[m.name] = true
			}
		}
		p.space()
		switch p.peek() {
		case ',':
			p.i++
		case '}':
			p.i++
			return o, nil
		default:
			return nil, errors.New("expected ',' or '}'")
		}
	}
}

func (p *parser) array(depth int) (any, error) {
	p.i++
	list := []any{}
	p.space()
	if p.peek() == ']' {
		p.i++
		return list, nil
	}
	for {
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		p.space()
		switch p.peek() {
		case ',':
			p.i++
		case ']':
			p.i++
			return list, nil
		default:
			return nil, errors.New("expected ',' or ']'")
		}
	}
}

func (p *parser) number() (any, error) {
	start := p.i
	digits := func() bool {
		from := p.i
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.i++
		}
		return p.i > from
	}
	if p.peek() == '-' {
		p.i++
	}
	switch c := p.peek(); {
	case c == '0':
		p.i++
	case c >= '1' && c <= '9':
		digits()
	default:
		return nil, errors.New("expected a digit")
	}
	if p.peek() == '.' {
		p.i++
		if !digits() {
			return nil, errors.New("expected a digit")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.i++
		if c := p.peek(); c == '+' || c == '-' {
			p.i++
		}
		if !digits() {
			return nil, errors.New("expected a digit")
		}
	}
	if p.i-start > maxNumber {
		return nil, fmt.Errorf("a number of more than %d letters", maxNumber)
	}
	return number(p.s[start:p.i]), nil
}

// string reads a string; one without escapes is a part of the body itself.
func (p *parser) string() (string, error) {
	p.i++
	start := p.i
	for ; p.i < len(p.s); p.i++ {
		switch c := p.s[p.i]; {
		case c == '"':
			p.i++
			return p.s[start : p.i-1], nil
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return "", errors.New("a control character in a string")
		}
	}
	return "", errEnd
}

func (p *parser) escaped(start int) (string, error) {
	var b strings.Builder
	b.Grow(p.length(start))
	b.WriteString(p.s[start:p.i])
	for p.i < len(p.s) {
		c := p.s[p.i]
		switch {
		case c == '"':
			p.i++
			return b.String(), nil
		case c < 0x20:
			return "", errors.New("a control character in a string")
		case c != '\\':
			from := p.i
			for p.i < len(p.s) && p.s[p.i] != '"' && p.s[p.i] != '\\' && p.s[p.i] >= 0x20 {
				p.i++
			}
			b.WriteString(p.s[from:p.i])
			continue
		}
		p.i++
		c = p.peek()
		p.i++
		switch c {
		case '"', '\\', '/':
			b.WriteByte(c)
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'u':
			r, ok := p.hex()
			if !ok {
				return "", errors.New(`expected four hexadecimal digits behind \u`)
			}
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if at := p.i; strings.HasPrefix(p.s[at:], `\u`) {
					p.i += 2
					if l, ok := p.hex(); ok && utf16.DecodeRune(r, l) != utf8.RuneError {
						low = l
					} else {
						p.i = at
					}
				}
				r = utf16.DecodeRune(r, low) // U+FFFD if that is no pair
			}
			b.WriteRune(r)
		default:
			return "", errors.New("an unknown escape in a string")
		}
	}
	return "", errEnd
}

// length is how long the string that begins at start is at most.
func (p *parser) length(start int) int {
	i := p.i
	for i < len(p.s) && p.s[i] != '"' {
		if p.s[i] == '\\' {
			i++
		}
		i++
	}
	return i - start
}

func (p *parser) hex() (rune, bool) {
	if p.i+4 > len(p.s) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(p.s[p.i : p.i+4]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	p.i += 4
	return r, true
}

// encode appends v as JSON.
func encode(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		if v {
			return append(b, "true"...)
		}
		return append(b, "false"...)
	case number:
		return append(b, v...)
	case string:
		return encodeString(b, v)
	case []any:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = encode(b, x)
		}
		return append(b, ']')
	case *object:
		b = append(b, '{')
		for i, m := range v.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(encodeString(b, m.name), ':')
			b = encode(b, m.value)
		}
		return append(b, '}')
	}
	panic(fmt.Sprintf("gateway: %T is no JSON value", v))
}

func encodeString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, s[from:]...), '"')
}

// short is a word of the client's, cut for a message.
func short(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
