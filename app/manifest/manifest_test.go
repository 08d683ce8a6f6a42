package manifest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"inspect"
)

func ours(t *testing.T) Manifest {
	t.Helper()
	m, err := Parse(inspect.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTheFormIsTheFile(t *testing.T) {
	m := ours(t)
	if _, err := m.Form(); err == nil {
		t.Error("there is a form without a webhook address")
	}
	m.Hook.URL, m.RedirectURL = "https://inspect.example.com/webhooks/github", "http://127.0.0.1:1/x"
	form, err := m.Form()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(form), &got); err != nil {
		t.Fatal(err)
	}
	// GitHub's keys, and no others.
	want := []string{"default_events", "default_permissions", "description", "hook_attributes", "name", "public", "redirect_url", "url"}
	if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
		t.Errorf("the form has %q", keys)
	}
	if got["public"] != false {
		t.Error("the App would be public")
	}
	if p := got["default_permissions"].(map[string]any); len(p) != len(m.Permissions) || p["contents"] != "write" || p["metadata"] != "read" {
		t.Errorf("permissions %v", p)
	}
	for _, never := range []string{"workflows", "administration", "secrets", "members"} {
		if m.Permissions[never] != "" {
			t.Errorf("the App asks for %s", never)
		}
	}
	for _, bad := range []string{"", "inspect.example.com", "javascript:alert(1)", "https://u:p@x/", "https://x/#y"} {
		m.Hook.URL = bad
		if _, err := m.Form(); err == nil {
			t.Errorf("the webhook address %q is taken", bad)
		}
	}
}

func TestWhatIsNoManifest(t *testing.T) {
	for _, body := range []string{
		"", "[]", "name: x\n", "name: x\nwebhook: y\n",
		"name: x\ndefault_permissions: {checks: write}\ndefault_events: []\n",
		"name: x\ndefault_permissions: {checks: all}\ndefault_events: [push]\n",
		"name: x\ndefault_permissions: {checks: none}\ndefault_events: [push]\n",
		"name: x\ndefault_permissions: {checks: write}\ndefault_events: [push]\n---\nname: y\n",
	} {
		if m, err := Parse([]byte(body)); err == nil {
			t.Errorf("%q is read as %+v", body, m)
		}
	}
}

func TestDifferences(t *testing.T) {
	m := Manifest{Permissions: map[string]string{"contents": "write", "actions": "read"}, Events: []string{"issues", "push"}}
	all := func(change ...string) map[string]string {
		out := map[string]string{"contents": "write", "actions": "read", "metadata": "read"}
		for i := 0; i < len(change); i += 2 {
			out[change[i]] = change[i+1]
		}
		return out
	}
	events := []string{"push", "issues"}
	for name, c := range map[string]struct {
		permissions map[string]string
		events      []string
		want        string // in Words; empty: no difference
	}{
		"the same":                 {all(), events, ""},
		"free events":              {all(), append(Free(), events...), ""},
		"too little":               {all("contents", "read"), events, "missing: contents: write"},
		"nothing":                  {nil, nil, "missing: actions: read, contents: write; events that do not come: issues, push"},
		"more than asked":          {all("actions", "write"), events, "nobody asked for: actions: write"},
		"what was not asked":       {all("administration", "read"), events, "nobody asked for: administration: read"},
		"a level nobody knows":     {all("workflows", "root"), events, "nobody asked for: workflows: root"},
		"metadata is not free":     {all("metadata", "write"), events, "nobody asked for: metadata: write"},
		"an event that is missing": {all(), []string{"push"}, "do not come: issues"},
		"an event too many":        {all(), []string{"push", "issues", "star"}, "events that nobody asked for: star"},
	} {
		d := m.Compare(c.permissions, c.events)
		if d.None() != (c.want == "") || !strings.Contains(d.Words(), c.want) || d.None() != (d.Words() == "") {
			t.Errorf("%s: %+v, in words %q", name, d, d.Words())
		}
	}
}
