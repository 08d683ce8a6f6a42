package spec

import (
	"testing"
	"time"
)

func TestBuildkiteKeys(t *testing.T) {
	got, problems := Parse([]byte("version: 1\nchecks: {buildkite: {builds: create, required: true, timeout: 45m}}\ntriggers: {on_buildkite_failure: true, buildkite_attempts: 3}\n"))
	if problems != nil {
		t.Fatal(problems)
	}
	if want := (BuildkiteChecks{Builds: BuildsCreate, Required: true, Timeout: 45 * time.Minute}); got.Checks.Buildkite != want {
		t.Errorf("%+v", got.Checks)
	}
	if !got.Triggers.OnBuildkiteFailure || got.Triggers.BuildkiteAttempts != 3 {
		t.Errorf("%+v", got.Triggers)
	}
	for _, text := range []string{
		"checks: {buildkite: {required: true}}", "checks: {buildkite: {builds: always}}", "checks: {buildkite: {builds: follow, timeout: 10s}}",
		"checks: {buildkite: {builds: follow, timeout: 48h}}", "checks: {buildkite: {builds: follow, pipeline: web}}",
		"triggers: {buildkite_attempts: 0}", "triggers: {buildkite_attempts: 6}", "triggers: {on_buildkite_failure: always}",
	} {
		if _, problems := Parse([]byte("version: 1\n" + text + "\n")); len(problems) == 0 {
			t.Errorf("%q is taken", text)
		}
	}
	// A snapshot does not depend on any of it.
	plain, _ := Parse([]byte("version: 1\n"))
	if plain.EnvironmentDigest() != got.EnvironmentDigest() {
		t.Error("another environment")
	}
}
