package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"inspect/checks/buildkite/plugin"
	"inspect/envs/proc"
	"inspect/fixtures/buildkited"
	"inspect/fixtures/githubd"
)

// stepAudience is whom tokens are for; where the door stands is known later.
const stepAudience = "https://inspect.example"

// pipelines is a stage with a Buildkite beside it, whose agent is the genuine one.
type pipelines struct {
	*stage
	bk    *buildkited.Server
	door  string // address of the listener for hooks
	agent string
	repo  string // that jobs check out
}

// openPipelines starts all of it. The pipeline "web" is bound to octocat/shop, and
// octocat/other is a repository that it is not bound to.
func openPipelines(t *testing.T) *pipelines {
	t.Helper()
	agent, err := filepath.Abs("../../../.tools/buildkite/buildkite-agent")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(agent); err != nil {
		t.Fatalf("%v: run .ci/setup tests", err)
	}
	bk, err := buildkited.New(buildkited.Options{Organization: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if err := bk.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bk.Close() })
	p := &pipelines{bk: bk, agent: agent}
	bk.AddPipeline("stranger", "")
	web := bk.AddPipeline("web", "")
	p.stage = openStageWith(t, map[string]map[string]string{"shop": small(), "other": small()}, func(st *story) {
		policy := fmt.Sprintf("version: 1\nbuildkite:\n  pipelines:\n    - organization_id: %s\n      pipeline_id: %s\n      slug: acme/web\n      repositories: [%s/shop]\n      may: [prompt, issue, fix_build]\n      attempts: 5\n",
			bk.OrganizationID(), web.ID, octocat)
		flags := []string{"--buildkite-api", bk.URL(), "--buildkite-issuer", bk.URL(), "--buildkite-keys", bk.JWKS(), "--buildkite-audience", stepAudience}
		for _, f := range []struct {
			flag, body string
			mode       os.FileMode
		}{{"--policy", policy, 0o644}, {"--buildkite-token-file", bk.APIToken(), 0o600}} {
			path := filepath.Join(st.dir, strings.TrimPrefix(f.flag, "--"))
			if err := os.WriteFile(path, []byte(f.body), f.mode); err != nil {
				t.Fatal(err)
			}
			flags = append(flags, f.flag, path)
		}
		st.o.Store = flags
	})
	at := slices.Index(p.serve.argv, "--listen-hooks")
	p.door = "http://" + p.serve.argv[at+1]
	bk.SetRepository("web", p.github.URL()+"/"+octocat+"/shop.git")

	p.repo = filepath.Join(t.TempDir(), "repo")
	if err := plugin.Write(filepath.Join(p.repo, ".buildkite/plugins/inspect")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"-c", "user.name=Octocat", "-c", "user.email=octocat@example.com", "commit", "-qm", "The plugin"}} {
		if _, err := proc.Run(t.Context(), proc.Command{Argv: append([]string{"git"}, args...), Dir: p.repo}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// red is a build whose tests failed and whose step asks for a fix.
func (p *pipelines) red(pipeline, commit, log string) buildkited.Build {
	p.t.Helper()
	return p.bk.AddBuild(pipeline, buildkited.Build{Commit: commit, Branch: "main", State: "failing", Jobs: []buildkited.Job{
		{Name: "Test", StepKey: "test", State: "failed", ExitStatus: 1, Log: log},
		{Name: "Fix the build", StepKey: "inspect", State: "running"},
	}})
}

// step runs the job of b that asks, by the genuine agent.
func (p *pipelines) step(ctx context.Context, b buildkited.Build, config map[string]any) (string, int) {
	p.t.Helper()
	for k, v := range map[string]any{"server": p.door, "audience": stepAudience} {
		config[k] = v
	}
	log, status, err := p.bk.Run(ctx, buildkited.Bootstrap{
		Agent: p.agent, Dir: p.t.TempDir(), Inspect: "exec '" + binary + "'", Repo: p.repo, Build: b, Job: b.Jobs[1].ID,
		Plugins: []map[string]any{{"./.buildkite/plugins/inspect": config}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return log, status
}

// A red build leads to a draft pull request, by the plugin in a job of Buildkite's
// own agent; the build's annotation and the check run show it. Run twice it is one
// session. What a pipeline may not ask for is refused, and nothing begins.
func TestPipelineStep(t *testing.T) {
	p := openPipelines(t)
	const repo = octocat + "/shop"
	ctx := patienceOf(t, 6*time.Minute)
	if _, err := p.pages.awaitSnapshot(ctx); err != nil {
		t.Fatal(err)
	}
	head, err := p.github.PushCommit(repo, octocat, "main", "Prices rise", map[string]githubd.File{"notes.txt": {Body: "11 now\n"}})
	if err != nil {
		t.Fatal(err)
	}
	b := p.red("web", head, "\x1b_bk;t=1699000000000\a$ sh test.sh\r\n\x1b[31mprice is 11\x1b[0m\r\n")
	log, status := p.step(ctx, b, map[string]any{"fix-build": true, "if-failed": "test", "wait": true, "evidence": true})
	if status != 0 {
		t.Fatalf("status %d\n%s", status, log)
	}
	pulls := pullsOf(t, p.github, "shop")
	if len(pulls) != 1 || !pulls[0].Draft {
		t.Fatalf("pull requests %+v\n%s", pulls, log)
	}
	runs, err := p.github.CheckRuns(repo)
	if err != nil || len(runs) != 1 || runs[0].Conclusion != "success" || runs[0].HeadSHA != pulls[0].HeadSHA {
		t.Errorf("check runs %+v, %v", runs, err)
	}
	got := p.bk.Build("web", b.Number)
	session := got.MetaData["inspect:session"]
	if len(got.Annotations) != 1 || got.Annotations[0].Style != "success" || got.Annotations[0].Context != "inspect-"+session ||
		!strings.Contains(got.Annotations[0].Body, fmt.Sprintf("/%s/pull/%d)", repo, pulls[0].Number)) || !strings.Contains(got.Annotations[0].Body, "own commands pass") {
		t.Errorf("annotations %+v", got.Annotations)
	}
	if a := got.Jobs[1].Artifacts; len(a) != 1 || len(p.bk.File(a[0].ID)) < 1000 {
		t.Errorf("artifacts %+v", a)
	}
	if n := len(p.bk.Requests("/jobs/" + b.Jobs[0].ID + "/log")); n < 2 {
		t.Errorf("the failed job's log was asked for %d times", n)
	}

	// The same job again: the same session, and nothing new on GitHub.
	log, status = p.step(ctx, b, map[string]any{"fix-build": true, "wait": true})
	if status != 0 || !strings.Contains(log, "session "+session+" is there already") {
		t.Errorf("again: status %d\n%s", status, log)
	}
	if n := len(pullsOf(t, p.github, "shop")); n != 1 {
		t.Errorf("again: %d pull requests", n)
	}

	// What is refused: a repository that the pipeline is not bound to, a pipeline
	// that the policy does not name, a fork's build.
	fork := p.bk.AddBuild("web", buildkited.Build{Commit: head, Branch: "main", State: "failing", PullRequest: &buildkited.PullRequest{Number: 1, Base: "main", Repository: "https://github.com/hubot/shop.git"},
		Jobs: []buildkited.Job{{StepKey: "test", State: "failed"}, {StepKey: "inspect", State: "running"}}})
	for name, c := range map[string]struct {
		build  buildkited.Build
		config map[string]any
		why    string
	}{
		"not bound": {p.red("web", head, ""), map[string]any{"prompt": "x", "repository": octocat + "/other", "wait": true, "soft-fail": true}, "pipeline_repository"},
		"stranger":  {p.red("stranger", head, ""), map[string]any{"prompt": "x", "repository": repo, "wait": true, "soft-fail": true}, "pipeline_unknown"},
		"fork":      {fork, map[string]any{"fix-build": true, "wait": true, "soft-fail": true}, "pipeline_fork"},
	} {
		log, status := p.step(ctx, c.build, c.config)
		if status != 4 || strings.Contains(log, c.why) {
			t.Errorf("%s: status %d\n%s", name, status, log)
		}
		said, err := os.ReadFile(filepath.Join(p.dir, "serve.log"))
		if err != nil || !strings.Contains(string(said), c.why) {
			t.Errorf("%s: the log of serve does not say %s: %v", name, c.why, err)
		}
	}
	var all []listed
	if err := p.pages.get(ctx, "/sessions.json", &all); err != nil || len(all) != 1 {
		t.Errorf("%d sessions: %v", len(all), err)
	}
	onlyAllowed(t, p.github)
}
