package spec

import "strings"

// tomlTables is what a guess needs to know of a TOML file: for each table the
// keys and their values as written, without comments. It is no parser: what it
// does not understand it leaves out.
type tomlTables map[string]map[string]string

func (t tomlTables) hasTable(name string) bool {
	if _, ok := t[name]; ok {
		return true
	}
	for k := range t {
		if strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}

// text is a string's text, or nothing.
func (t tomlTables) text(table, key string) string {
	if s := strs(t[table][key]); len(s) == 1 {
		return s[0]
	}
	return ""
}

const (
	maxTables = 2000
	maxKeys   = 20_000
	maxValue  = 64 << 10 // bytes
)

func parseTOML(text string) tomlTables {
	t := tomlTables{}
	table, keys := "", 0
	var key string
	var value strings.Builder
	brackets, quotes := 0, ""
	for line := range strings.Lines(text) {
		if quotes != "" { // in a text of several lines, which no guess needs
			if strings.Contains(line, quotes) {
				quotes = ""
			}
			continue
		}
		line, open := uncomment(line)
		if brackets > 0 {
			if value.Len()+len(line) < maxValue {
				value.WriteString(line)
			}
			if brackets += open; brackets <= 0 {
				t[table][key] = value.String()
			}
			continue
		}
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "[") {
			table = strings.Trim(trimmed, "[] \t")
			parts := strings.Split(table, ".")
			for i, p := range parts {
				parts[i] = strings.Trim(p, " \"'")
			}
			table = strings.Join(parts, ".")
			if t[table] == nil && len(t) < maxTables {
				t[table] = map[string]string{}
			}
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok || keys >= maxKeys {
			continue
		}
		if t[table] == nil {
			if len(t) >= maxTables {
				continue
			}
			t[table] = map[string]string{}
		}
		keys++
		key, v = strings.Trim(k, " \t\"'"), strings.TrimSpace(v)
		for _, q := range []string{`"""`, "'''"} {
			if rest, ok := strings.CutPrefix(v, q); ok && !strings.Contains(rest, q) {
				quotes = q
			}
		}
		value.Reset()
		value.WriteString(v)
		t[table][key] = v
		if quotes == "" {
			brackets = open
		}
	}
	return t
}

// uncomment is a line without its comment, and how many more square brackets
// it opens than it closes.
func uncomment(line string) (out string, open int) {
	var in byte
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case in != 0:
			if c == '\\' && in == '"' {
				i++
			} else if c == in {
				in = 0
			}
		case c == '"' || c == '\'':
			in = c
		case c == '#':
			return line[:i] + "\n", open
		case c == '[':
			open++
		case c == ']':
			open--
		}
	}
	return line, open
}

// strs are the texts in a value as written: of a string one, of a list all.
// Those in inline tables are left out.
func strs(value string) (out []string) {
	braces := 0
	for i := 0; i < len(value) && len(out) < 200; i++ {
		switch c := value[i]; c {
		case '{':
			braces++
		case '}':
			braces--
		case '"', '\'':
			end := strings.IndexByte(value[i+1:], c)
			if end < 0 {
				return out
			}
			if braces == 0 {
				out = append(out, value[i+1:i+1+end])
			}
			i += 1 + end
		}
	}
	return out
}
