package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"inspect"
	"inspect/app/intake"
	"inspect/app/manifest"
)

// The events that have a handler come, and the page for operators says what each
// permission and event is for.
func TestTheManifestHasWhatIsHandledAndIsExplained(t *testing.T) {
	m, err := manifest.Parse(inspect.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range intake.Events() {
		if !slices.Contains(m.Events, e) && !slices.Contains(manifest.Free(), e) {
			t.Errorf("%s is handled and not in app.yml", e)
		}
	}
	page, err := os.ReadFile("../../docs/github.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, level := range m.Permissions {
		if !strings.Contains(string(page), "\n| "+name+": "+level+" |") {
			t.Errorf("docs/github.md does not say what %s: %s is for", name, level)
		}
	}
	for _, e := range m.Events {
		if !strings.Contains(string(page), "\n| "+e+" |") {
			t.Errorf("docs/github.md does not say what %s is for", e)
		}
	}
}
