package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"inspect/envs/gateway"
	"inspect/envs/sandbox/stream"
)

// What is handed to the control plane arrives whole, and the policy file is
// given as it is at each question, whoever may read it.
func TestHandingOver(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yml")
	write := func(body string) {
		if err := os.WriteFile(policy, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: 1\ndefaults: {limits: {budget_usd: 50}}\n")
	ours, theirs, err := stream.Pair()
	if err != nil {
		t.Fatal(err)
	}
	s := supervised{
		config: serveConfig{Data: "/var/lib/inspect", PolicyFile: policy, ControlUID: 64000,
			Nomad: nomadFlags{clusterFlags: clusterFlags{TokenFile: filepath.Join(filepath.Dir(policy), "nomad.token")}}},
		given: given{
			Key: "canary key", Webhooks: []string{"canary one", "canary two"}, GrantSeed: []byte("seed"), NodeToken: "n", PeopleToken: "p",
			Models: gateway.Files{Path: "m.yml", Body: []byte("b"), Keys: map[string][]byte{"k": []byte("canary")}}, Database: "postgres://x",
		},
		log: slog.New(slog.DiscardHandler),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.hand(ours)
	}()
	b, err := newBoss(theirs)
	if err != nil {
		t.Fatal(err)
	}
	var h handed
	if err := b.read(&h); err != nil {
		t.Fatal(err)
	}
	if h.Config.Data != s.config.Data || h.Config.ControlUID != 64000 || h.Given.Key != s.given.Key || len(h.Given.Webhooks) != 2 ||
		string(h.Given.Models.Keys["k"]) != "canary" || h.Given.Database != s.given.Database {
		t.Errorf("handed over: %+v", h)
	}
	floor, err := openFloorBy(policy, s.log, b.policy)
	if err != nil {
		t.Fatal(err)
	}
	if _, allowed := floor.For(1, "octocat/hello"); !allowed {
		t.Error("nothing is bound, and the repository is refused")
	}
	write("version: 1\nrepositories: [{match: \"monalisa/*\"}]\n")
	if _, allowed := floor.For(1, "octocat/hello"); allowed {
		t.Error("the policy was tightened, and what it said before counts")
	}
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	if _, err := b.policy(); err == nil || !strings.Contains(err.Error(), "policy.yml") {
		t.Errorf("a policy that is gone: %v", err)
	}
	if _, allowed := floor.For(1, "octocat/hello"); allowed {
		t.Error("the policy is gone, and what it said before does not count")
	}
	token := filepath.Join(filepath.Dir(policy), "nomad.token")
	writeToken := func(text string) {
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"one", "another"} { // replaced while it runs
		writeToken(want + "\n")
		if got, err := b.nomadToken(); err != nil || got != want {
			t.Errorf("Nomad's token: %q, %v; want %q", got, err, want)
		}
	}
	if err := os.Chmod(token, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := b.nomadToken(); err == nil {
		t.Errorf("a token that all can read: %q", got)
	}
	b.c.Close()
	<-done // a control plane that ends is not waited for
}

// The control plane's process is never root.
func TestControlPlaneIsNotRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user is not root")
	}
	if err := runControl(t.Context()); err == nil || !strings.Contains(err.Error(), "started by inspect serve") {
		t.Errorf("%v", err)
	}
}
