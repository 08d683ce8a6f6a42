package policy

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// The functions here compare the parts of a file that decide what tests run. What
// cannot be read is not the same.

// sameMembers compares members of a JSON object.
func sameMembers(keys ...string) func(string, Texts) bool {
	return func(_ string, t Texts) bool {
		var was, is map[string]any
		if json.Unmarshal([]byte(t.Old), &was) != nil || json.Unmarshal([]byte(t.New), &is) != nil {
			return false
		}
		return !slices.ContainsFunc(keys, func(k string) bool { return !reflect.DeepEqual(was[k], is[k]) })
	}
}

// sameTables compares values of a TOML file by their dotted names.
func sameTables(names ...string) func(string, Texts) bool {
	return func(_ string, t Texts) bool {
		var was, is map[string]any
		if toml.Unmarshal([]byte(t.Old), &was) != nil || toml.Unmarshal([]byte(t.New), &is) != nil {
			return false
		}
		at := func(v any, name string) any {
			for key := range strings.SplitSeq(name, ".") {
				table, ok := v.(map[string]any)
				if !ok {
					return nil
				}
				v = table[key]
			}
			return v
		}
		return !slices.ContainsFunc(names, func(n string) bool { return !reflect.DeepEqual(at(was, n), at(is, n)) })
	}
}

// sameSections compares sections of an INI file whose names begin so: readers do
// not agree on where a name ends.
func sameSections(names ...string) func(string, Texts) bool {
	return func(_ string, t Texts) bool {
		sections := func(text string) string {
			var b strings.Builder
			in := false
			for line := range strings.Lines(text) {
				line = strings.TrimRight(line, " \t\r\n")
				if name, ok := header(line); ok {
					wanted := slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(name, n) })
					// Only one that no reader takes for the rest of a value ends a section.
					if in = in || wanted; !wanted && line == "["+line[1:len(line)-1]+"]" {
						in = false
					}
				}
				if in && line != "" {
					b.WriteString(line + "\n")
				}
			}
			return b.String()
		}
		return sections(t.Old) == sections(t.New)
	}
}

// header is the name in a line that some reader may take for a section's beginning.
func header(line string) (string, bool) {
	line = strings.ToLower(strings.TrimSpace(line))
	end := strings.LastIndexByte(line, ']')
	if !strings.HasPrefix(line, "[") || end < 0 {
		return "", false
	}
	return strings.TrimSpace(line[1:end]), true
}

// maxPOMDepth bounds how deep the elements of a pom.xml are nested.
const maxPOMDepth = 50

// samePOM compares what Maven builds and runs: plugins, profiles, modules, the
// parent but for its version, and properties that speak of tests. Libraries and
// their versions are left out.
func samePOM(_ string, t Texts) bool {
	was, err1 := decidingPOM(t.Old)
	is, err2 := decidingPOM(t.New)
	return err1 == nil && err2 == nil && was == is
}

var ofTests = regexp.MustCompile(`(?i)test|skip|surefire|failsafe|argline|groups|junit`)

var errPOM = errors.New("not a pom.xml that can be compared")

func decidingPOM(text string) (string, error) {
	var b strings.Builder
	var at []string
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		tok, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return "", err
		}
		switch tok := tok.(type) {
		case xml.Directive:
			return "", errPOM
		case xml.StartElement:
			if at = append(at, tok.Name.Local); len(at) > maxPOMDepth {
				return "", errPOM
			}
			if decides(at) {
				fmt.Fprintf(&b, "<%s %q>", strings.Join(at, "/"), tok.Attr)
			}
		case xml.EndElement:
			if len(at) == 0 || at[len(at)-1] != tok.Name.Local {
				return "", errPOM
			}
			at = at[:len(at)-1]
		case xml.CharData:
			if s := strings.TrimSpace(string(tok)); s != "" && decides(at) {
				fmt.Fprintf(&b, "%q", s)
			}
		}
	}
}

// decides says so of an element by its way from the root.
func decides(at []string) bool {
	if len(at) < 2 {
		return false
	}
	switch at[1] {
	case "build", "profiles", "modules", "packaging":
		return true
	case "parent":
		return at[len(at)-1] != "version"
	case "properties":
		return len(at) > 2 && ofTests.MatchString(at[2])
	}
	return false
}
