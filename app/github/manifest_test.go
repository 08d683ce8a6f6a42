package github

import (
	"maps"
	"slices"
	"testing"

	"inspect"
	"inspect/app/manifest"
)

// What tokens may ever be asked for is what the App asks for, and no purpose
// wants more than that.
func TestTokensStayWithinTheManifest(t *testing.T) {
	m, err := manifest.Parse(inspect.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	// Nobody has to give it: it is asked for only to have teams review, and where
	// it was not given people are asked alone.
	m.Permissions["members"] = "read"
	asked, possible := slices.Sorted(maps.Keys(m.Permissions)), slices.Sorted(maps.Keys(tokenBody["permissions"].of))
	if !slices.Equal(asked, possible) {
		t.Errorf("app.yml has %q, tokens can have %q", asked, possible)
	}
	purposes := map[purpose]bool{forNames: true, forReading: true, forPushing: true, forTeams: true}
	for _, r := range slices.Concat(perRepository, perApp) {
		purposes[r.purpose] = true
	}
	delete(purposes, "")
	for p := range purposes {
		for name, level := range p.permissions() {
			if wider(m.Permissions[name], level) {
				t.Errorf("a token for %s wants %s: %s, app.yml has %q", p, name, level, m.Permissions[name])
			}
		}
	}
}
