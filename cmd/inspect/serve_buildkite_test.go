package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/app/policy"
)

const (
	bkOrganization = "01234567-89ab-4cde-8f01-234567890abc"
	bkPipeline     = "11234567-89ab-4cde-8f01-234567890abc"
	bkPolicy       = "version: 1\nbuildkite:\n  pipelines:\n    - {organization_id: " + bkOrganization + ", pipeline_id: " + bkPipeline + ", slug: acme/web, repositories: [octocat/hello], attempts: 2}\n"
)

// What may be asked for by pipelines is explained beside the rest, and counts as
// the file is now.
func TestPipelinesOfThePolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yml")
	write := func(body string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(bkPolicy)
	var out bytes.Buffer
	if err := explain(&out, io.Discard, "octocat/hello", explainFlags{policy: path}); err != nil {
		t.Fatal(err)
	}
	table := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"buildkite.pipeline acme/web (" + bkPipeline + " of " + bkOrganization + ") floor: buildkite.pipelines[0]",
		"buildkite.may prompt, issue floor: buildkite.pipelines[0]", "buildkite.own_branches false floor", "triggers.on_buildkite_failure false default",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	f, err := openFloor(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	id := policy.PipelineID{Organization: bkOrganization, Pipeline: bkPipeline}
	if p, ok := f.pipeline(id); !ok || p.Attempts != 2 {
		t.Errorf("%+v, %v", p, ok)
	}
	write("version: 1\n")
	if p, ok := f.pipeline(id); ok {
		t.Errorf("what was taken away still counts: %+v", p)
	}
	if p, ok := f.pipelineByID(bkPipeline); ok {
		t.Errorf("%+v", p)
	}
	write("version: 1\nbuildkite: {pipelines: [web]}\n")
	if err := policyCheckCommand().RunE(policyCheckCommand(), nil); err == nil {
		t.Error("no file is checked")
	}
	if _, _, err := readFloor(path); err == nil || !strings.Contains(err.Error(), "buildkite.pipelines[0]") {
		t.Errorf("a slug for a pipeline: %v", err)
	}
}

func TestBuildkiteFlags(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{"token": "bkua_1\n", "new": "new\n", "old": "old\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	b := buildkiteFlags{TokenFile: at("token"), SecretFile: at("new"), OldSecretFile: at("old"), Proves: provesSignature}
	if err := b.check(); err != nil {
		t.Fatal(err)
	}
	g, err := b.read()
	if err != nil || g.Token != "bkua_1" || strings.Join(g.Webhooks, " ") != "new old" || len(g.secrets()) != 3 {
		t.Errorf("%+v, %v", g, err)
	}
	for name, bad := range map[string]buildkiteFlags{
		"a proof that is none": {Proves: "password"}, "only the old secret": {Proves: provesToken, OldSecretFile: at("old")},
	} {
		if err := bad.check(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if _, err := (&buildkiteFlags{SecretFile: at("empty")}).read(); err == nil {
		t.Error("an empty secret is taken: anybody could send webhooks")
	}
	if c, err := (&buildkiteFlags{}).client(buildkiteGiven{}); c != nil || err != nil {
		t.Errorf("without a token: %v, %v", c, err)
	}
	if _, err := (&buildkiteFlags{API: "http://api.buildkite.example/"}).client(buildkiteGiven{Token: "x"}); err == nil {
		t.Error("the token goes in clear")
	}
}

func TestHooksAreApart(t *testing.T) {
	says := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
	}
	h := hooks(says("github"), says("buildkite"))
	for path, want := range map[string]string{
		"/webhooks/github": "github", "/": "github", "/buildkite/webhook": "buildkite", "/buildkite/v1/sessions": "buildkite", "/buildkit": "github", "/buildkite": "github",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "POST", path, nil))
		if w.Body.String() != want {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}
