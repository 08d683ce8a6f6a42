package spec

import (
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// tomlTables are the tables of a TOML file by their dotted names, "" for what
// stands in none. A table is also a value of the one it lies in.
type tomlTables map[string]map[string]any

// parseTOML reads a file that a guess looks into. One that is no TOML has
// nothing in it.
func parseTOML(text string) tomlTables {
	var root map[string]any
	if toml.Unmarshal([]byte(text), &root) != nil {
		return tomlTables{}
	}
	t := tomlTables{}
	t.add("", root)
	return t
}

func (t tomlTables) add(name string, table map[string]any) {
	t[name] = table
	for key, v := range table {
		if inner, ok := v.(map[string]any); ok {
			t.add(strings.TrimPrefix(name+"."+key, "."), inner)
		}
	}
}

func (t tomlTables) hasTable(name string) bool { return t[name] != nil }

// text is a string's text, or nothing.
func (t tomlTables) text(table, key string) string {
	s, _ := t[table][key].(string)
	return s
}

// texts are the strings of a list, or the one that stands in its place.
func (t tomlTables) texts(table, key string) (out []string) {
	switch v := t[table][key].(type) {
	case string:
		return []string{v}
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out
}
