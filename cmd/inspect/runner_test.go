package main

import (
	"os"
	"strings"
	"testing"
)

func TestRunnerDropsWhatTheEngineGaveIt(t *testing.T) {
	for _, name := range []string{"NOMAD_TOKEN", "NOMAD_TOKEN_inspect", "NOMAD_SECRETS_DIR", "NOMAD_EMPTY"} {
		t.Setenv(name, strings.TrimSuffix(name, "NOMAD_EMPTY"))
	}
	t.Setenv("NOMADIC", "stays")
	if err := dropEngine(); err != nil {
		t.Fatal(err)
	}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "NOMAD_") {
			t.Errorf("%s is left", e)
		}
	}
	if os.Getenv("NOMADIC") != "stays" {
		t.Error("something else was taken")
	}
}
