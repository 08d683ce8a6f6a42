package policy

import (
	"strings"
	"testing"
	"time"

	"inspect/envs/spec"
)

const (
	acme   = "01234567-89ab-4cde-8f01-234567890abc"
	web    = "11234567-89ab-4cde-8f01-234567890abc"
	others = "21234567-89ab-4cde-8f01-234567890abc"
)

func pipelines(t *testing.T, more string) Floor {
	t.Helper()
	f, problems := ParseFloor([]byte("version: 1\nbuildkite:\n  pipelines:\n    - organization_id: " + strings.ToUpper(acme) + "\n      pipeline_id: " + web +
		"\n      slug: acme/web\n      repositories: [Octocat/Hello]\n      repository_ids: [42]\n" + more))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return f
}

func TestPipelineIsFoundByItsIDs(t *testing.T) {
	f := pipelines(t, "")
	for _, c := range []struct {
		name string
		id   PipelineID
		ok   bool
	}{
		{"both ids", PipelineID{acme, web}, true},
		{"another organisation's pipeline", PipelineID{others, web}, false},
		{"another pipeline of the organisation", PipelineID{acme, others}, false},
		{"slugs", PipelineID{"acme", "web"}, false},
		{"nothing", PipelineID{}, false},
	} {
		if _, ok := f.Pipeline(c.id); ok != c.ok {
			t.Errorf("%s: %v", c.name, ok)
		}
	}
	if _, ok := (Floor{}).Pipeline(PipelineID{acme, web}); ok || (Floor{}).HasPipelines() {
		t.Error("without a policy a pipeline may ask")
	}
}

func TestPipelineDecision(t *testing.T) {
	all := "      may: [prompt, issue, fix_build]\n"
	for _, c := range []struct {
		name, more, repo, act string
		id                    int64
		build                 BuildFacts
		reason                string
	}{
		{name: "as it is bound", reason: ActorAllowed, build: BuildFacts{Seen: true}},
		{name: "bound by number", id: 42, repo: "octocat/renamed", reason: ActorAllowed, build: BuildFacts{Seen: true}},
		{name: "another case", repo: "OCTOCAT/hello", reason: ActorAllowed, build: BuildFacts{Seen: true}},
		{name: "another repository", repo: "octocat/other", reason: PipelineRepository, build: BuildFacts{Seen: true}},
		{name: "a number that is not known", id: 0, repo: "octocat/renamed", reason: PipelineRepository, build: BuildFacts{Seen: true}},
		{name: "fix_build unless it says so", act: spec.PipelineFix, reason: PipelineAct, build: BuildFacts{Seen: true}},
		{name: "fix_build", act: spec.PipelineFix, more: all, reason: ActorAllowed, build: BuildFacts{Seen: true}},
		{name: "nothing", more: "      may: []\n", reason: PipelineAct, build: BuildFacts{Seen: true}},
		{name: "a fork", more: "      no_forks: true\n      own_branches: true\n", reason: PipelineFork, build: BuildFacts{Seen: true, Fork: true}},
		{name: "a fork that was not looked up", more: "      no_forks: true\n", reason: PipelineFork, build: BuildFacts{Fork: true}},
		{name: "not looked up", reason: PipelineUnseen},
		{name: "not looked up, no forks", more: "      no_forks: true\n", reason: ActorAllowed},
		{name: "one of our own branches", reason: PipelineOwnBranch, build: BuildFacts{Seen: true, OwnBranch: true}},
		{name: "one of our own branches, allowed", more: "      own_branches: true\n", reason: ActorAllowed, build: BuildFacts{Seen: true, OwnBranch: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.repo == "" {
				c.repo = "octocat/hello"
			}
			if c.act == "" {
				c.act = spec.PipelinePrompt
			}
			p, found := pipelines(t, c.more).Pipeline(PipelineID{acme, web})
			got := DecidePipeline(p, found, c.id, c.repo, c.act, c.build)
			if got.Reason != c.reason || got.Allow != (c.reason == ActorAllowed) {
				t.Errorf("%+v, want %s", got, c.reason)
			}
		})
	}
	if got := DecidePipeline(Pipeline{}, false, 42, "octocat/hello", spec.PipelinePrompt, BuildFacts{Seen: true}); got.Allow {
		t.Errorf("a pipeline that is not listed: %+v", got)
	}
}

func TestPipelineBounds(t *testing.T) {
	for _, c := range []struct {
		more, asks   string
		want, create bool
	}{
		{"", spec.BuildsFollow, false, false},
		{"      builds: follow\n", spec.BuildsFollow, true, false},
		{"      builds: follow\n", spec.BuildsCreate, true, false},
		{"      builds: create\n", spec.BuildsCreate, true, true},
		{"      builds: create\n", spec.BuildsFollow, true, false},
		{"      builds: create\n", "", false, false},
	} {
		got := pipelines(t, c.more).Builds(42, "octocat/hello", spec.BuildkiteChecks{Builds: c.asks})
		if (len(got) == 1) != c.want || c.want && (got[0].Create != c.create || got[0].Timeout != time.Hour) {
			t.Errorf("%q, %q: %+v", c.more, c.asks, got)
		}
	}
	if got := pipelines(t, "      builds: create\n").Builds(7, "octocat/other", spec.BuildkiteChecks{Builds: "follow"}); len(got) > 0 {
		t.Errorf("of a repository it is not bound to: %+v", got)
	}
	p, _ := pipelines(t, "      attempts: 3\n").Pipeline(PipelineID{acme, web})
	for asked, want := range map[int]int{0: 1, 1: 1, 2: 2, 5: 3} {
		if got := p.FixAttempts(spec.Triggers{BuildkiteAttempts: asked}); got != want {
			t.Errorf("%d attempts asked for: %d", asked, got)
		}
	}
}

func TestPipelineExplained(t *testing.T) {
	f := pipelines(t, "      attempts: 2\n      builds: follow\n")
	sp := spec.Default()
	sp.Triggers.BuildkiteAttempts, sp.Checks.Buildkite.Builds = 4, spec.BuildsCreate
	got := map[string]Value{}
	for _, v := range f.ExplainPipelines(0, "octocat/hello", sp) {
		got[v.Key] = v
	}
	from := "floor: buildkite.pipelines[0]"
	for _, want := range []Value{
		{Key: "buildkite.pipeline", Value: "acme/web (" + web + " of " + acme + ")", From: from},
		{Key: "buildkite.may", Value: "prompt, issue", From: from},
		{Key: "buildkite.attempts", Value: "2", From: from, Instead: "4"},
		{Key: "buildkite.builds", Value: "follow", From: from, Instead: "create"},
		{Key: "triggers.on_buildkite_failure", Value: "false", From: "default"},
	} {
		if got[want.Key] != want {
			t.Errorf("%+v, want %+v", got[want.Key], want)
		}
	}
	if len(f.ExplainPipelines(0, "octocat/other", sp)) > 0 {
		t.Error("of a repository that no pipeline is bound to")
	}
}

func TestPipelineProblems(t *testing.T) {
	entry := func(lines string) string { return "version: 1\nbuildkite:\n  pipelines:\n" + lines }
	good := "    - {organization_id: " + acme + ", pipeline_id: " + web + ", slug: acme/web, repositories: [octocat/hello]}\n"
	if _, ps := ParseFloor([]byte(entry(good))); len(ps) > 0 {
		t.Fatal(ps)
	}
	for name, body := range map[string]string{
		"a slug for an id":      entry(strings.Replace(good, web, "web", 1)),
		"no organization":       entry(strings.Replace(good, "organization_id: "+acme+", ", "", 1)),
		"no repositories":       entry(strings.Replace(good, ", repositories: [octocat/hello]", "", 1)),
		"an empty list":         entry(strings.Replace(good, "[octocat/hello]", "[]", 1)),
		"a pattern":             entry(strings.Replace(good, "octocat/hello", "octocat/*", 1)),
		"listed twice":          entry(good + strings.Replace(good, "acme/web", "acme/other", 1)),
		"an act that is none":   entry(strings.Replace(good, "slug:", "may: [merge], slug:", 1)),
		"too many attempts":     entry(strings.Replace(good, "slug:", "attempts: 6, slug:", 1)),
		"a key that is unknown": entry(strings.Replace(good, "slug:", "branches: [main], slug:", 1)),
	} {
		if _, ps := ParseFloor([]byte(body)); len(ps) == 0 {
			t.Errorf("%s is accepted", name)
		}
	}
}
