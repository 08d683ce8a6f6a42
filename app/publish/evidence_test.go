package publish

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

func TestKeepFailedWork(t *testing.T) {
	w := newWorld(t)
	secret := "ghs_" + strings.Repeat("a1B2", 9)
	tip := w.changed(func(g gitDir) { g.write("half.txt", "done so far\n"+secret+"\n") })
	s := w.session(tip, func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
		s.State = scheduler.Failed
		o.Kind, o.Reason, o.Results = wire.OutcomeFailed, wire.ReasonHarnessExit, nil
	})
	kept, err := w.p.Keep(context.Background(), s)
	w.ok(err)
	if kept.Manifest.Change.Added != 2 || kept.Manifest.Tip != tip || kept.Manifest.Verdict.Kind != evidence.Nothing {
		t.Errorf("%+v", kept.Manifest)
	}
	if patch := w.file(s.ID, FilePatch); !strings.Contains(patch, "+done so far") || strings.Contains(patch, secret) {
		t.Errorf("the patch is %s", patch)
	}
	if _, err := w.db.Q().EvidenceFile(context.Background(), storage.EvidenceFileParams{SessionID: s.ID, Name: FileBundle}); err == nil {
		t.Error("the bundle, which has the secret, is listed")
	}
	again, err := w.p.Keep(context.Background(), s)
	if err != nil || again.Digest != kept.Digest {
		t.Errorf("%s, then %s, %v", kept.Digest, again.Digest, err)
	}

	// The attempt was lost: the last bundle uploaded is what there is.
	lost := w.session(w.fixed(), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) { s.State = scheduler.Infrastructure })
	w.exec(`UPDATE sessions SET outcome = NULL WHERE id = $1`, lost.ID)
	_, err = w.p.Keep(context.Background(), lost)
	w.ok(err)
	w.file(lost.ID, FileBundle)
	if patch := w.file(lost.ID, FilePatch); !strings.Contains(patch, "a + b") {
		t.Errorf("the patch is %s", patch)
	}

	// A bundle that is refused is kept as it is.
	bad := w.sessionOf(tip, []byte("gitdir: /x\n"), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) { s.State = scheduler.Failed })
	_, err = w.p.Keep(context.Background(), bad)
	w.ok(err)
	if got := w.file(bad.ID, FileUnsearched); got != "gitdir: /x\n" {
		t.Errorf("%q", got)
	}
	if kept.Manifest.Model.Name != "" || kept.Manifest.Instructions != "" || len(kept.Manifest.Egress.Refused) > 0 || len(kept.Manifest.Environment.Services) > 0 {
		t.Errorf("a session without a model, services and ways out has %+v", kept.Manifest)
	}
	// And a session without any work has a manifest.
	none := w.session(tip, func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) { s.State = scheduler.TimedOut })
	w.exec(`UPDATE sessions SET outcome = NULL WHERE id = $1`, none.ID)
	w.exec(`DELETE FROM bundles WHERE session_id = $1`, none.ID)
	kept, err = w.p.Keep(context.Background(), none)
	if err != nil || len(kept.Manifest.Files) != 1 || kept.Manifest.Files[0].Name != FileTranscript {
		t.Errorf("%+v %v", kept, err)
	}
	if p := w.pushes(); len(p) != 0 {
		t.Errorf("pushed: %+v", p)
	}
}

// What a session used and tried is in its evidence, however it ended.
func TestKeepWhatWasUsed(t *testing.T) {
	w := newWorld(t)
	w.opts.PricesAsOf = "2026-11-01"
	w.publisher()
	const prompt = "# What is to be done\n\nMake Add add.\n"
	secret := "ghs_" + strings.Repeat("a1B2", 9)
	s := w.session(w.fixed(), func(s *storage.Session, sp *spec.Spec, o *wire.Outcome) {
		s.State = scheduler.OverBudget
		sp.Harness = spec.Harness{Kind: spec.HarnessOpenCode, Model: "anthropic/claude-sonnet"}
		sp.Egress = []string{"go", "*.internal.example:443"}
		sp.Setup = spec.Steps("go mod download", "go build ./...")
		sp.Services = []spec.Service{{Name: "postgres", Command: "postgres"}, {Name: "redis", Command: "redis-server"}}
		sp.Data.Provenance = "synthetic"
		o.Kind, o.Reason, o.Results = wire.OutcomeOverBudget, scheduler.ReasonBudget, nil
		o.Instructions = w.put(s.ID, []byte(prompt))
		o.Times = wire.Times{Ready: 3 * time.Second, Work: time.Minute}
	})
	w.exec(`UPDATE sessions SET budget = 5000000000 WHERE id = $1`, s.ID)
	for _, c := range []struct {
		state           string
		cost, in, cache int64
	}{{"reported", 100_000_000, 1000, 500}, {"reported", 23_400_000, 10, 0}, {"unreported", 20_000_000, 0, 0}, {"unreported", 0, 0, 0}} {
		w.exec(`INSERT INTO model_calls (session_id, generation, model, priced, reserved, input, state, cost, input_tokens, cache_read_tokens, output_tokens, started_at)
			VALUES ($1, 1, 'anthropic/claude-sonnet', true, 50000000, 20000000, $2, $3, $4, $5, $6, now())`, s.ID, c.state, c.cost, c.in, c.cache, min(c.in, 7))
	}
	var seq int
	event := func(kind string, data any) {
		seq++
		body, err := json.Marshal(data)
		w.ok(err)
		w.exec(`INSERT INTO events (session_id, seq, generation, number, kind, data, at, hash) VALUES ($1, $2, 1, $2, $3, $4, now(), '')`, s.ID, seq, kind, string(body))
	}
	zero, one := 0, 1
	event(wire.EventTool, wire.Tool{Name: "bash", Command: "go test ./...", ExitCode: &one, Failed: true})
	event(wire.EventTool, wire.Tool{Name: "bash", Command: "go build ./...", ExitCode: &zero})
	event(wire.EventTool, wire.Tool{Name: "edit", Files: []string{"calc/add.go", "calc/add_test.go"}})
	event(wire.EventTool, wire.Tool{Name: "edit", Files: []string{"calc/add.go"}})
	for range 3 {
		event(wire.EventEgress, wire.Egress{Host: "registry.example", Port: 443, Command: "npm ci --token " + secret, Reason: evidence.NotListed})
	}
	event(wire.EventEgress, wire.Egress{Host: "models.example", Port: 443, Command: "opencode serve", Noise: true})
	event(wire.EventEgress, wire.Egress{Reason: "5000 decisions were told; more are made and not told"})
	event(wire.EventEgress, wire.Egress{Host: "proxy.golang.org", Port: 443, Allowed: true})

	kept, err := w.p.Keep(context.Background(), s)
	w.ok(err)
	m := kept.Manifest
	if want := (evidence.Model{
		Name: "anthropic/claude-sonnet", Calls: 2, InputTokens: 1510, OutputTokens: 14, Cost: 123_400_000, Unreported: 1, UnreportedCost: 20_000_000, Failed: 1,
		Priced: true, Budget: 5_000_000_000, PricesAsOf: "2026-11-01",
	}); m.Model != want {
		t.Errorf("model %+v", m.Model)
	}
	if want := (evidence.Agent{ToolCalls: 4, Commands: 2, FailedCommands: 1, FilesTouched: 2}); m.Agent != want {
		t.Errorf("agent %+v", m.Agent)
	}
	if d := cmp.Diff(evidence.Egress{
		Declared: []string{"go", "*.internal.example:443"}, Allowed: 1,
		Refused: []evidence.Refused{
			{Host: "registry.example", Port: 443, Command: "npm ci --token [redacted]", Reason: evidence.NotListed, Count: 3},
			{Host: "models.example", Port: 443, Command: "opencode serve", Count: 1, Noise: true},
		},
	}, m.Egress); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(evidence.Environment{Services: []string{"postgres", "redis"}, Data: "synthetic", Setup: 2}, m.Environment); d != "" {
		t.Error(d)
	}
	if m.Times.Ready != 3*time.Second || m.Instructions == "" || w.file(s.ID, FileInstructions) != prompt {
		t.Errorf("times %+v, instructions %q", m.Times, m.Instructions)
	}
	named := false
	for _, f := range m.Files {
		named = named || f.Name == FileInstructions && f.SHA256 == m.Instructions
	}
	if !named {
		t.Errorf("the manifest's files are %+v", m.Files)
	}
	back, err := w.p.Kept(context.Background(), s.ID, kept.Digest)
	w.ok(err)
	if back.Manifest.Version != evidence.ManifestVersion || back.Manifest.Model != m.Model {
		t.Errorf("read back: %+v", back.Manifest)
	}
}

// What services said is among the files, under its place and name.
func TestServiceLogsAreListed(t *testing.T) {
	w := newWorld(t)
	s := w.session(w.fixed(), func(s *storage.Session, _ *spec.Spec, o *wire.Outcome) {
		o.ServiceLogs = []wire.ServiceLog{{Where: "verify", Service: "../d b", SHA256: w.put(s.ID, []byte("up\n"))}, {Where: "base", Service: "gone", SHA256: strings.Repeat("9", 64)}}
	})
	w.deliver(s)
	if got := w.file(s.ID, "service-verify-d-b.log"); got != "up\n" {
		t.Errorf("%q", got)
	}
}
