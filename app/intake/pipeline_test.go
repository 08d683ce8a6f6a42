package intake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"inspect/app/github"
	"inspect/app/oidc"
	"inspect/app/policy"
	"inspect/checks/buildkite"
	"inspect/checks/buildkite/step"
	"inspect/envs/proc"
	"inspect/fixtures/buildkited"
	"inspect/scheduler"
	"inspect/storage"
)

// piping is a world with a Buildkite, whose pipeline "web" is bound to the
// repository.
type piping struct {
	*world
	bk    *buildkited.Server
	web   buildkited.Pipeline
	floor policy.Floor
}

const allActs = "      may: [prompt, issue, fix_build]\n"

func newPiping(t *testing.T, more string, change func(*Options)) *piping {
	t.Helper()
	p := &piping{}
	var err error
	if p.bk, err = buildkited.New(buildkited.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := p.bk.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.bk.Close() })
	p.web = p.bk.AddPipeline("web", "git@github.example:octocat/r22.git")
	p.policy(t, p.bk.OrganizationID(), p.web.ID, "acme/web", more)
	client, err := buildkite.New(buildkite.Options{
		URL: p.bk.URL(), Token: func(context.Context) (string, error) { return p.bk.APIToken(), nil },
		Retry: proc.Policy{Attempts: 1, Total: 10 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	p.world = setup(t, func(o *Options) {
		o.Pipelines = func(id policy.PipelineID) (policy.Pipeline, bool) { return p.floor.Pipeline(id) }
		o.PipelineByID = func(id string) (policy.Pipeline, bool) { return p.floor.PipelineByID(id) }
		o.Builds = client
		o.CloneURL = func(r github.Repo) string { return "https://github.example/" + r.String() + ".git" }
		if change != nil {
			change(o)
		}
	})
	p.settle(t)
	return p
}

func (p *piping) policy(t *testing.T, organization, pipeline, slug, more string) {
	t.Helper()
	var problems policy.Problems
	p.floor, problems = policy.ParseFloor([]byte("version: 1\nbuildkite:\n  pipelines:\n    - organization_id: " + organization + "\n      pipeline_id: " + pipeline +
		"\n      slug: " + slug + "\n      repositories:\n        - octocat/r22\n" + more))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
}

// settle makes the repository known, as an installation does.
func (p *piping) settle(t *testing.T) {
	t.Helper()
	q := p.db.Q()
	if err := q.SawInstallation(t.Context(), storage.SawInstallationParams{ID: 5, Account: "octocat"}); err != nil {
		t.Fatal(err)
	}
	for id, name := range map[int64]string{repositoryID: "r22", 23: "r23"} {
		if err := q.SawRepository(t.Context(), storage.SawRepositoryParams{ID: id, InstallationID: 5, Owner: "octocat", Name: name, DefaultBranch: "main"}); err != nil {
			t.Fatal(err)
		}
	}
}

// of is what the token of a job of a build proves.
func (p *piping) of(b buildkited.Build) oidc.Job {
	return oidc.Job{
		OrganizationID: p.bk.OrganizationID(), PipelineID: p.web.ID, JobID: buildkited.NewID(), BuildID: b.ID, BuildNumber: b.Number, StepKey: "fix",
		Organization: "acme", Pipeline: "web", Branch: b.Branch, Commit: b.Commit, Source: "webhook",
	}
}

// step asks and has it worked on; the intent is what came of it.
func (p *piping) step(t *testing.T, s Stepped) storage.Intent {
	t.Helper()
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.in.Step(t.Context(), "step-"+key, s); err != nil {
		t.Fatal(err)
	}
	if err := p.in.Deliver(t.Context(), "step-"+key); err != nil {
		t.Fatal(err)
	}
	i, err := p.db.Q().IntentByKey(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (p *piping) session(t *testing.T, id string) storage.Session {
	t.Helper()
	s, err := p.db.Q().GetSession(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *piping) count(t *testing.T, table string) (n int) {
	t.Helper()
	if err := p.db.SQL().QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (p *piping) running(branch, commit string) buildkited.Build {
	return p.bk.AddBuild("web", buildkited.Build{State: "running", Branch: branch, Commit: commit})
}

func TestStepStartsOneSession(t *testing.T) {
	p := newPiping(t, "", nil)
	s := Stepped{Job: p.of(p.running("main", head)), Ask: step.Ask{Prompt: "Bump the version\nto 2", Timeout: "10m", Budget: "1.50"}}
	i := p.step(t, s)
	if i.Outcome != "started" {
		t.Fatalf("%s: %s", i.Outcome, i.Note)
	}
	got := p.session(t, i.SessionID.String)
	if got.RequesterID != 0 || got.RequesterLogin != "Buildkite acme/web" || got.IssueNumber != 0 || got.Title != "Bump the version" || got.BaseSha != head || got.Locked ||
		!strings.Contains(got.Prompt, "The Buildkite pipeline acme/web") || !strings.Contains(got.Prompt, "Bump the version\nto 2") || got.Budget != 1_500_000_000 || string(got.Context.RawMessage) != "[]" {
		t.Errorf("%+v", got)
	}
	row, err := p.db.Q().PipelineSession(t.Context(), got.ID)
	if err != nil || row.PipelineID != p.web.ID || row.Act != "prompt" || row.BuildNumber != 1 || row.Fixes != "" {
		t.Errorf("%+v, %v", row, err)
	}
	people, err := scheduler.Requesters(t.Context(), p.db.Q(), got.ID)
	if err != nil || len(people) > 0 {
		t.Errorf("people who asked: %v, %v", people, err)
	}
	// The same job again, in another process and after a crash: one session.
	for range 3 {
		if fresh, first, err := p.in.Step(t.Context(), "step-step:job:"+s.Job.JobID, s); err != nil || fresh || first.Ask != s.Ask {
			t.Errorf("%v, %+v, %v", fresh, first, err)
		}
		if again := p.step(t, s); again.SessionID != i.SessionID {
			t.Errorf("again: %+v", again)
		}
	}
	// Another job is another wish; a step that asks once for each build is not.
	if i := p.step(t, Stepped{Job: p.of(p.bk.Build("web", 1)), Ask: s.Ask}); i.Outcome != "started" {
		t.Errorf("another job: %+v", i)
	}
	once := Stepped{Job: p.of(p.bk.Build("web", 1)), Ask: step.Ask{Prompt: "x", Once: "build"}}
	first := p.step(t, once)
	once.Job.JobID = buildkited.NewID()
	if again := p.step(t, once); first.Outcome != "started" || again.SessionID != first.SessionID {
		t.Errorf("once for each build: %+v, %+v", first, again)
	}
	if n := p.count(t, "sessions"); n != 3 {
		t.Errorf("%d sessions", n)
	}
	if len(p.gh.replies()) > 0 || p.gh.count("React") > 0 || p.gh.count("Permission") > 0 {
		t.Errorf("GitHub was told or asked of a person: %v", p.gh.calls)
	}
}

func TestStepDenied(t *testing.T) {
	for _, c := range []struct {
		name   string
		more   string
		build  buildkited.Build
		ask    step.Ask
		change func(p *piping, j *oidc.Job)
		floor  [3]string // organization, pipeline, slug instead
		client bool      // without an access token
		reason string
	}{
		{name: "another organisation's pipeline with the same slug", change: func(_ *piping, j *oidc.Job) { j.OrganizationID, j.PipelineID = buildkited.NewID(), buildkited.NewID() }, reason: "pipeline_unknown"},
		{name: "another organisation's id", change: func(_ *piping, j *oidc.Job) { j.OrganizationID = buildkited.NewID() }, reason: "pipeline_unknown"},
		{name: "a repository it is not bound to", ask: step.Ask{Prompt: "x", Repository: "octocat/r23"}, reason: "pipeline_repository"},
		{name: "a repository that is not there", ask: step.Ask{Prompt: "x", Repository: "octocat/secret"}, reason: "pipeline_repository"},
		{name: "fix_build that is not allowed", ask: step.Ask{FixBuild: true}, reason: "pipeline_act"},
		{name: "a third-party fork", build: buildkited.Build{PullRequest: &buildkited.PullRequest{Number: 9, Base: "main", Repository: "https://github.example/hubot/r22.git"}}, more: "      no_forks: true\n", reason: "pipeline_fork"},
		{name: "a fork whose branch is called as ours", build: buildkited.Build{Branch: "main", PullRequest: &buildkited.PullRequest{Number: 9, Base: "main", Repository: "git://github.example/hubot/r22"}}, reason: "pipeline_fork"},
		{name: "one of our own branches", build: buildkited.Build{Branch: "inspect/3-x-abcdefgh23"}, reason: "pipeline_own_branch"},
		{name: "what we pushed under another name", build: buildkited.Build{Branch: "copy", Commit: otherHead}, reason: "pipeline_own_branch"},
		{name: "a slug that leads to another pipeline", floor: [3]string{"", "", "acme/other"}, change: func(_ *piping, j *oidc.Job) { j.BuildID = "" }, reason: "pipeline_unseen"},
		{name: "another build's id", change: func(_ *piping, j *oidc.Job) { j.BuildID = buildkited.NewID() }, reason: "pipeline_unseen"},
		{name: "a build that is not there", change: func(_ *piping, j *oidc.Job) { j.BuildNumber = 99 }, reason: "pipeline_unseen"},
		{name: "no access token and no word that there are no forks", client: true, reason: "pipeline_unseen"},
		{name: "no access token and a fork's prefix", client: true, more: "      no_forks: true\n", build: buildkited.Build{Branch: "hubot:main"}, reason: "pipeline_fork"},
		{name: "no access token and one of our own branches", client: true, more: "      no_forks: true\n", build: buildkited.Build{Branch: "inspect/3-x-abcdefgh23"}, reason: "pipeline_own_branch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPiping(t, c.more, func(o *Options) {
				if c.client {
					o.Builds = nil
				}
			})
			p.bk.AddPipeline("other", "git@github.example:octocat/r22.git")
			p.bk.AddBuild("other", buildkited.Build{State: "running", Branch: "main", Commit: head})
			if c.floor[2] != "" {
				p.policy(t, p.bk.OrganizationID(), p.web.ID, c.floor[2], c.more)
			}
			p.ours(t, "inspect/3-x-abcdefgh23", otherHead, 0)
			c.build.State = "running"
			if c.build.Branch == "" {
				c.build.Branch = "main"
			}
			if c.build.Commit == "" {
				c.build.Commit = head
			}
			job := p.of(p.bk.AddBuild("web", c.build))
			if c.change != nil {
				c.change(p, &job)
			}
			if c.ask == (step.Ask{}) {
				c.ask.Prompt = "x"
			}
			i := p.step(t, Stepped{Job: job, Ask: c.ask})
			if i.Outcome != "denied" || !strings.HasPrefix(i.Note, c.reason+": ") {
				t.Errorf("%s: %s", i.Outcome, i.Note)
			}
			if n := p.count(t, "pipeline_sessions"); n > 0 {
				t.Errorf("%d sessions", n)
			}
			if !strings.Contains(p.log.String(), c.reason) {
				t.Error("the log does not say why")
			}
		})
	}
}

// ours records a branch that a session pushed, with its pull request.
func (p *piping) ours(t *testing.T, branch, sha string, pull int32) {
	t.Helper()
	q := p.db.Q()
	o := labeled()
	o["installation"] = object{"id": 5}
	at(o, "repository")["name"], at(o, "repository")["full_name"] = "r22", "octocat/r22"
	p.world.deliver("issues", body(o))
	i, err := q.IntentByKey(t.Context(), labelIntent())
	if err != nil || !i.SessionID.Valid {
		t.Fatalf("%+v, %v", i, err)
	}
	if _, err := p.db.SQL().Exec("UPDATE sessions SET state = 'delivered', finished_at = now(), reported_at = now(), branch = $2, head_sha = $3, pull_request = $4 WHERE id = $1", i.SessionID.String, branch, sha, pull); err != nil {
		t.Fatal(err)
	}
	if _, err := q.ClaimBranch(t.Context(), storage.ClaimBranchParams{RepositoryID: repositoryID, Name: branch, SessionID: i.SessionID.String, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.BranchPushed(t.Context(), storage.BranchPushedParams{RepositoryID: repositoryID, Name: branch, SessionID: i.SessionID.String, Sha: sha}); err != nil {
		t.Fatal(err)
	}
}

func TestStepOnOwnBranchWhereThePolicySaysSo(t *testing.T) {
	p := newPiping(t, "      own_branches: true\n", nil)
	p.ours(t, "inspect/3-x-abcdefgh23", otherHead, 0)
	if i := p.step(t, Stepped{Job: p.of(p.running("inspect/3-x-abcdefgh23", otherHead)), Ask: step.Ask{Prompt: "x"}}); i.Outcome != "started" {
		t.Errorf("%s: %s", i.Outcome, i.Note)
	}
}

// Whose branch it is does not depend on which repository is asked for, and a
// session's commit on somebody's branch is a session's, too.
func TestStepOnOwnBranchOfAnotherRepository(t *testing.T) {
	p := newPiping(t, "", nil)
	p.policy(t, p.bk.OrganizationID(), p.web.ID, "acme/web", "        - octocat/r23\n")
	p.ours(t, "inspect/3-x-abcdefgh23", otherHead, 0)
	for _, commit := range []string{otherHead, head} {
		if i := p.step(t, Stepped{Job: p.of(p.running("inspect/3-x-abcdefgh23", commit)), Ask: step.Ask{Prompt: "x", Repository: "octocat/r23"}}); !strings.HasPrefix(i.Note, "pipeline_own_branch: ") {
			t.Errorf("%s: %s", i.Outcome, i.Note)
		}
	}
	if _, err := p.db.SQL().Exec("DELETE FROM branches"); err != nil { // as where the result went onto a person's branch
		t.Fatal(err)
	}
	if i := p.step(t, Stepped{Job: p.of(p.running("feature", otherHead)), Ask: step.Ask{Prompt: "x", Repository: "octocat/r22"}}); !strings.HasPrefix(i.Note, "pipeline_own_branch: ") {
		t.Errorf("%s: %s", i.Outcome, i.Note)
	}
}

// Without an access token nothing is known of the build but what its token says.
func TestStepWithoutAccessToken(t *testing.T) {
	p := newPiping(t, "      no_forks: true\n"+allActs, func(o *Options) { o.Builds = nil })
	b := p.running("main", head)
	if i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{Prompt: "x"}}); i.Outcome != "started" {
		t.Errorf("%s: %s", i.Outcome, i.Note)
	}
	if i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}}); i.Outcome != "replied" || !strings.Contains(i.Note, "access token") {
		t.Errorf("%s: %s", i.Outcome, i.Note)
	}
	if len(p.bk.Requests("")) > 0 {
		t.Error("Buildkite was asked")
	}
}

func TestStepAnswers(t *testing.T) {
	p := newPiping(t, allActs, nil)
	p.gh.issues = map[int]github.Issue{
		3: {Labelled: github.Labelled{ID: 30, Number: 3, Title: "Broken", Body: "It is.", Author: "monalisa", AuthorID: monalisa}, State: "open"},
		4: {Labelled: github.Labelled{ID: 40, Number: 4}, State: "closed"},
		9: {Labelled: github.Labelled{ID: 90, Number: 9, Pull: true}, State: "open"},
	}
	b := p.running("main", head)
	for _, c := range []struct {
		name string
		ask  step.Ask
		want string // part of the note; empty: started
	}{
		{"an issue", step.Ask{Issue: 3}, ""},
		{"an issue that is worked on", step.Ask{Issue: 3}, "at work"},
		{"an issue that is closed", step.Ask{Issue: 4}, "closed"},
		{"a pull request", step.Ask{Issue: 9}, "pull request"},
		{"no issue", step.Ask{Issue: 8}, "no issue 8"},
		{"a branch that is not there", step.Ask{Prompt: "x", Base: "gone"}, "no branch"},
		{"another branch", step.Ask{Prompt: "x", Base: "release/1"}, ""},
		{"a harness that is none", step.Ask{Prompt: "x", Harness: "copilot"}, "harness"},
		{"a budget that is none", step.Ask{Prompt: "x", Budget: "much"}, "budget"},
		{"words in a timeout", step.Ask{Prompt: "x", Timeout: "5m --base x"}, "cannot be read"},
		{"a build that has not failed", step.Ask{FixBuild: true}, "has not failed"},
	} {
		i := p.step(t, Stepped{Job: p.of(b), Ask: c.ask})
		switch {
		case c.want == "" && i.Outcome != "started", c.want != "" && i.SessionID.Valid && c.want != "at work":
			t.Errorf("%s: %s: %s", c.name, i.Outcome, i.Note)
		case !strings.Contains(i.Note, c.want):
			t.Errorf("%s: %q", c.name, i.Note)
		}
	}
	if len(p.gh.replies()) > 0 {
		t.Errorf("GitHub was told: %v", p.gh.replies())
	}
}

// What Buildkite does not answer now is asked again, not before it wants to be
// asked; nothing is started on a guess.
func TestStepWhileBuildkiteIsAway(t *testing.T) {
	p := newPiping(t, "", nil)
	s := Stepped{Job: p.of(p.running("main", head)), Ask: step.Ask{Prompt: "x"}}
	key, _ := s.Key()
	if _, _, err := p.in.Step(t.Context(), "g", s); err != nil {
		t.Fatal(err)
	}
	for _, f := range []buildkited.Fault{{Kind: buildkited.FaultStatus, Status: 429, Reset: 30}, {Kind: buildkited.FaultStatus, Status: 503}, {Kind: buildkited.FaultCut, Count: -1}, {Kind: buildkited.FaultTruncated, Count: -1}} {
		p.bk.AddFault(f)
		err := p.in.Deliver(t.Context(), "g")
		if err == nil || errors.Is(err, scheduler.ErrPermanent) {
			t.Errorf("%s: %v", f.Kind, err)
		}
		if i, err := p.db.Q().IntentByKey(t.Context(), key); err != nil || i.Outcome != "pending" {
			t.Errorf("%s: %+v, %v", f.Kind, i, err)
		}
		p.bk.ClearFaults()
	}
	if err := p.in.Deliver(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	if i, err := p.db.Q().IntentByKey(t.Context(), key); err != nil || i.Outcome != "started" {
		t.Errorf("%+v, %v", i, err)
	}
}

// One pipeline cannot flood a repository.
func TestStepsAreBounded(t *testing.T) {
	p := newPiping(t, "", nil)
	b := p.running("main", head)
	started := 0
	for n := range maxWishes + 5 {
		if i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{Prompt: fmt.Sprint(n)}}); i.Outcome == "started" {
			started++
		}
	}
	if started != maxWishes {
		t.Errorf("%d sessions started within a moment, want %d", started, maxWishes)
	}
}

// Forks make as many builds as they like: what they ask for is refused, and keeps
// nobody else from asking. Nor does another pipeline.
func TestRefusedStepsKeepNobodyFromAsking(t *testing.T) {
	p := newPiping(t, "", nil)
	fork := p.bk.AddBuild("web", buildkited.Build{State: "running", Branch: "main", Commit: head, PullRequest: &buildkited.PullRequest{Number: 9, Base: "main", Repository: "git://github.example/hubot/r22"}})
	for range maxWishes + 2 {
		p.step(t, Stepped{Job: p.of(fork), Ask: step.Ask{Prompt: "x"}})
	}
	b := p.running("main", head)
	if i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{Prompt: "x"}}); i.Outcome != "started" {
		t.Errorf("%s: %s", i.Outcome, i.Note)
	}
	if _, err := p.db.SQL().Exec("UPDATE intents SET outcome = 'replied', actor_login = 'Buildkite acme/api' WHERE outcome = 'denied'"); err != nil {
		t.Fatal(err)
	}
	if i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{Prompt: "x"}}); i.Outcome != "started" {
		t.Errorf("%s: %s", i.Outcome, i.Note)
	}
}
