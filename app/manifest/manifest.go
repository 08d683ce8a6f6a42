// Package manifest reads app.yml, which says what the GitHub App is: name,
// permissions, events. Out come the form GitHub makes an App of, and how what an
// App or an installation was given differs from it. It is pure.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Manifest is app.yml. The names are GitHub's.
type Manifest struct {
	Name        string            `yaml:"name" json:"name"`
	Description string            `yaml:"description" json:"description"`
	URL         string            `yaml:"url" json:"url"`
	Public      bool              `yaml:"public" json:"public"`
	Hook        Hook              `yaml:"hook_attributes" json:"hook_attributes"`
	RedirectURL string            `yaml:"-" json:"redirect_url,omitempty"`
	Callbacks   []string          `yaml:"-" json:"callback_urls,omitempty"` // where people who sign in come back to
	Permissions map[string]string `yaml:"default_permissions" json:"default_permissions"`
	Events      []string          `yaml:"default_events" json:"default_events"`
}

// Hook says where deliveries go.
type Hook struct {
	URL    string `yaml:"url" json:"url"`
	Active bool   `yaml:"active" json:"active"`
}

// Parse reads app.yml. A key that is not known is an error: it would be lost.
func Parse(body []byte) (Manifest, error) {
	var m Manifest
	d := yaml.NewDecoder(bytes.NewReader(body))
	d.KnownFields(true)
	if err := d.Decode(&m); err != nil {
		return m, fmt.Errorf("app.yml: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return m, errors.New("app.yml: more than one document")
	}
	for name, level := range m.Permissions {
		if level != "read" && level != "write" {
			return m, fmt.Errorf("app.yml: permission %s: expected read or write, but found %q", name, level)
		}
	}
	if m.Name == "" || len(m.Permissions) == 0 || len(m.Events) == 0 {
		return m, errors.New("app.yml: it needs a name, default_permissions and default_events")
	}
	return m, nil
}

// Form is the value of the field "manifest" that GitHub is sent.
func (m Manifest) Form() (string, error) {
	addresses := map[string]string{"home page": m.URL, "webhook address": m.Hook.URL}
	for _, c := range m.Callbacks {
		addresses["callback address"] = c
	}
	for what, address := range addresses {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
			return "", fmt.Errorf("the App's %s %q is not an address like https://inspect.example.com", what, address)
		}
	}
	b, err := json.Marshal(m)
	return string(b), err
}

// Free are events that every App gets and cannot ask for.
func Free() []string {
	return []string{"github_app_authorization", "installation", "installation_repositories", "installation_target", "ping", "security_advisory"}
}

// Difference is how what was granted differs from the manifest.
type Difference struct {
	Missing []string // permissions, as "checks: write"
	Wider   []string // permissions nobody asked for, as "administration: write"
	Silent  []string // events that do not come
	Further []string // events nobody asked for
}

// None says that there is no difference.
func (d Difference) None() bool {
	return len(d.Missing)+len(d.Wider)+len(d.Silent)+len(d.Further) == 0
}

// Words says what the difference is; empty if there is none.
func (d Difference) Words() string {
	var out []string
	for _, part := range []struct {
		what string
		list []string
	}{
		{"permissions that are missing", d.Missing}, {"permissions that nobody asked for", d.Wider},
		{"events that do not come", d.Silent}, {"events that nobody asked for", d.Further},
	} {
		if len(part.list) > 0 {
			out = append(out, part.what+": "+strings.Join(part.list, ", "))
		}
	}
	return strings.Join(out, "; ")
}

// Compare says how what GitHub granted differs. "metadata: read" comes with
// whatever is asked for, and so does every event of Free.
func (m Manifest) Compare(permissions map[string]string, events []string) Difference {
	var d Difference
	for _, name := range slices.Sorted(maps.Keys(m.Permissions)) {
		if level := m.Permissions[name]; rank(permissions[name]) < rank(level) {
			d.Missing = append(d.Missing, name+": "+level)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(permissions)) {
		level := permissions[name]
		asked := m.Permissions[name]
		if rank(level) > rank(asked) && (name != "metadata" || level != "read") {
			d.Wider = append(d.Wider, name+": "+level)
		}
	}
	for _, e := range m.Events {
		if !slices.Contains(events, e) {
			d.Silent = append(d.Silent, e)
		}
	}
	for _, e := range slices.Sorted(slices.Values(events)) {
		if !slices.Contains(m.Events, e) && !slices.Contains(Free(), e) {
			d.Further = append(d.Further, e)
		}
	}
	return d
}

// rank orders levels. One that is not known counts as more than any.
func rank(level string) int {
	switch level {
	case "", "none":
		return 0
	case "read":
		return 1
	case "write":
		return 2
	}
	return 3
}
