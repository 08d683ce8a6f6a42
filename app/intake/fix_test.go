package intake

import (
	"fmt"
	"strings"
	"testing"

	"inspect/app/github"
	"inspect/checks/buildkite/step"
	"inspect/fixtures/buildkited"
	"inspect/storage"
)

const fixSpec = goodSpec + "triggers: {labels: [inspect], on_buildkite_failure: true, buildkite_attempts: 2}\n"

const fixing = allActs + "      own_branches: true\n      attempts: 2\n"

// broken is a build that failed, with a log, a test report and an annotation.
func (p *piping) broken(b buildkited.Build) buildkited.Build {
	if b.State == "" {
		b.State = "failed"
	}
	b.Jobs = []buildkited.Job{
		{Name: "lint", State: "passed", Command: "make lint"},
		{Name: "test", State: "failed", ExitStatus: 2, Command: "make test", Log: strings.Repeat("noise\n", 5000) + "\x1b_bk;t=1700000000000\a\x1b[31m--- FAIL: TestSum\x1b[0m ghp_" + strings.Repeat("a1B2", 9) + "\n"},
	}
	b.Annotations = []buildkited.Annotation{{Context: "junit", Style: "error", Body: "<p>1 test failed</p>"}, {Context: "inspect", Style: "info", Body: "our own words"}}
	b = p.bk.AddBuild("web", b)
	p.bk.AddArtifact("web", b.Number, b.Jobs[1].ID, "reports/junit.xml", `<testsuite name="s"><testcase classname="pkg" name="TestSum"><failure message="got 3">want 2</failure></testcase><testcase name="TestOther"/></testsuite>`)
	return b
}

func TestFixBuild(t *testing.T) {
	p := newPiping(t, fixing, nil)
	// Its last job, the step that asks, still runs.
	b := p.broken(buildkited.Build{Branch: "main", Commit: head, State: "failing"})
	i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}})
	if i.Outcome != "started" {
		t.Fatalf("%s: %s", i.Outcome, i.Note)
	}
	s := p.session(t, i.SessionID.String)
	if s.BaseSha != head || s.BaseBranch != "main" || s.IssueNumber != 0 || s.PullNumber != 0 || s.Title != "Repair build 1 of acme/web" {
		t.Errorf("%+v", s)
	}
	for _, want := range []string{"find out why build 1 of this commit failed", "--- FAIL: TestSum", "pkg TestSum", "want 2", "1 test failed", "Exit status: 2", "make test"} {
		if !strings.Contains(s.Prompt, want) {
			t.Errorf("the agent is not told %q", want)
		}
	}
	for _, bad := range []string{"ghp_a1B2", "\x1b", "_bk;t=", "our own words", "make lint"} {
		if strings.Contains(s.Prompt, bad) {
			t.Errorf("the agent is told %q", bad)
		}
	}
	if n := strings.Count(s.Prompt, "noise"); n == 0 || n > 2000 {
		t.Errorf("%d lines of the log", n)
	}
	if c := string(s.Context.RawMessage); !strings.Contains(c, `"digest"`) || !strings.Contains(c, "build job") {
		t.Errorf("the evidence of it: %s", c)
	}
	for _, r := range p.bk.Requests("/log") {
		if r.Method == "GET" && r.Header.Get("Range") == "" {
			t.Error("a whole log is asked for")
		}
	}
	row, err := p.db.Q().PipelineSession(t.Context(), s.ID)
	if err != nil || row.Fixes != head || row.Branch != "main" {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestFixBuildAttempts(t *testing.T) {
	p := newPiping(t, fixing, nil)
	p.gh.files[".inspect.yml"] = fixSpec
	b := p.broken(buildkited.Build{Branch: "main", Commit: head})
	for n := range 4 {
		i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}})
		if ok := i.Outcome == "started"; ok != (n < 2) {
			t.Errorf("try %d: %s: %s", n+1, i.Outcome, i.Note)
		}
	}
	// Pushes of ours give a branch new commits, each with tries of its own; the
	// branch has not endlessly many.
	started := 2
	for n := range 2 * maxFixesOfBranch {
		sha := fmt.Sprintf("%040x", n+1)
		p.gh.branches["main"] = sha
		p.forgetWishes(t)
		if i := p.step(t, Stepped{Job: p.of(p.broken(buildkited.Build{Branch: "main", Commit: sha})), Ask: step.Ask{FixBuild: true}}); i.Outcome == "started" {
			started++
		}
	}
	if started != maxFixesOfBranch {
		t.Errorf("%d sessions for one branch, want %d", started, maxFixesOfBranch)
	}
}

// forgetWishes is the passing of ten minutes for whoever counts wishes.
func (p *piping) forgetWishes(t *testing.T) {
	t.Helper()
	if _, err := p.db.SQL().Exec("UPDATE intents SET created_at = created_at - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
}

func TestFixBuildRefused(t *testing.T) {
	p := newPiping(t, fixing, nil)
	for _, c := range []struct {
		name  string
		build buildkited.Build
		ask   step.Ask
		want  string
	}{
		{"a branch that has moved on", buildkited.Build{Branch: "main", Commit: otherHead}, step.Ask{FixBuild: true}, "by now"},
		{"a branch that is gone", buildkited.Build{Branch: "gone", Commit: otherHead}, step.Ask{FixBuild: true}, "not what its branch has"},
		{"another branch than the build's", buildkited.Build{Branch: "main", Commit: head}, step.Ask{FixBuild: true, Base: "release/1"}, "of the branch main"},
		{"another repository's", buildkited.Build{Branch: "main", Commit: head}, step.Ask{FixBuild: true}, "does not build this repository"},
		{"a build that a person canceled", buildkited.Build{Branch: "main", Commit: head, State: "canceled"}, step.Ask{FixBuild: true}, "has not failed"},
		{"a pull request that has moved on", buildkited.Build{Branch: "feature/sum", Commit: head, PullRequest: &buildkited.PullRequest{Number: 9, Base: "main", Repository: "git@github.example:octocat/r22.git"}}, step.Ask{FixBuild: true}, "not what its branch has"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := p.broken(c.build)
			if c.name == "another repository's" {
				before := p.in.o.CloneURL
				p.in.o.CloneURL = func(r github.Repo) string { return "https://elsewhere.example/" + r.String() }
				defer func() { p.in.o.CloneURL = before }()
			}
			if i := p.step(t, Stepped{Job: p.of(b), Ask: c.ask}); i.SessionID.Valid || !strings.Contains(i.Note, c.want) {
				t.Errorf("%s: %s", i.Outcome, i.Note)
			}
		})
	}
}

// A pull request's build is repaired on its head, and asking twice leads to the
// session that is at work there.
func TestFixBuildOfPullRequest(t *testing.T) {
	p := newPiping(t, fixing, nil)
	b := p.broken(buildkited.Build{Branch: "feature/sum", Commit: otherHead, PullRequest: &buildkited.PullRequest{Number: 9, Base: "main", Repository: "git@github.example:octocat/r22.git"}})
	i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}})
	if i.Outcome != "started" {
		t.Fatalf("%s: %s", i.Outcome, i.Note)
	}
	s := p.session(t, i.SessionID.String)
	if s.PullNumber != 9 || s.IssueNumber != 9 || s.BaseSha != otherHead || s.Deliver != "pull" {
		t.Errorf("%+v", s)
	}
	if again := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}}); again.Outcome != "duplicate" || again.SessionID.String != s.ID {
		t.Errorf("%+v", again)
	}
}

// told delivers what Buildkite tells of a build, and says what came of it.
func (p *piping) told(t *testing.T, event string, number int) storage.Delivery {
	t.Helper()
	p.next++
	guid := fmt.Sprintf("buildkite-%d", p.next)
	if _, err := p.db.Q().StoreDelivery(t.Context(), storage.StoreDeliveryParams{
		Guid: guid, Event: BuildEvent, Action: event, Payload: p.bk.Payload(event, "web", number, ""), Status: "pending",
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.in.Deliver(t.Context(), guid); err != nil {
		t.Fatal(err)
	}
	return p.delivery(guid)
}

func TestWebhookStartsARepair(t *testing.T) {
	const ours = "inspect/3-x-abcdefgh23"
	pull := func(n int) *buildkited.PullRequest {
		return &buildkited.PullRequest{Number: n, Base: "main", Repository: "git@github.example:octocat/r22.git"}
	}
	labelledNine := map[int]github.Issue{9: {Labelled: github.Labelled{Number: 9, Pull: true, Labels: []github.Label{{Name: "Inspect"}}}, State: "open"}}
	for _, c := range []struct {
		name   string
		build  buildkited.Build
		event  string // empty: build.finished
		spec   string // empty: fixSpec
		more   string // empty: fixing
		change func(p *piping, number int)
		want   int // sessions
		note   string
	}{
		{name: "our branch", build: buildkited.Build{Branch: ours, Commit: otherHead}, want: 1},
		{name: "a labelled pull request", build: buildkited.Build{Branch: "feature/sum", Commit: otherHead, PullRequest: pull(9)}, change: func(p *piping, _ int) { p.gh.issues = labelledNine }, want: 1},
		{name: "a pull request without the label", build: buildkited.Build{Branch: "feature/sum", Commit: otherHead, PullRequest: pull(9)}, change: func(p *piping, _ int) {
			p.gh.issues = map[int]github.Issue{9: {Labelled: github.Labelled{Number: 9, Pull: true, Labels: []github.Label{{Name: "bug"}}}, State: "open"}}
		}, note: "no label"},
		{name: "a branch of anybody's", build: buildkited.Build{Branch: "main", Commit: head}, note: "nobody asked"},
		{name: "a fork with the label", build: buildkited.Build{Branch: "feature/sum", Commit: otherHead, PullRequest: &buildkited.PullRequest{Number: 9, Base: "main", Repository: "git://github.example/hubot/r22.git"}}, change: func(p *piping, _ int) { p.gh.issues = labelledNine }, note: "pipeline_fork"},
		{name: "a fork whose build does not say so", build: buildkited.Build{Branch: "feature/sum", Commit: otherHead, PullRequest: pull(9)}, change: func(p *piping, _ int) {
			p.gh.issues = labelledNine
			pr := p.gh.pulls[9]
			pr.HeadRepoID = 99
			p.gh.pulls[9] = pr
		}, note: "fork"},
		{name: "where the repository does not want it", build: buildkited.Build{Branch: ours, Commit: otherHead}, spec: goodSpec, note: "does not say triggers.on_buildkite_failure"},
		{name: "where the operator does not let builds be repaired", build: buildkited.Build{Branch: ours, Commit: otherHead}, more: "      own_branches: true\n", note: "may not have its builds repaired"},
		{name: "where the operator does not let our branches start sessions", build: buildkited.Build{Branch: ours, Commit: otherHead}, more: allActs, note: "pipeline_own_branch"},
		{name: "a blocked build.finished", build: buildkited.Build{Branch: ours, Commit: otherHead}, change: func(p *piping, n int) {
			p.bk.Change("web", n, func(b *buildkited.Build) { b.State, b.Blocked = "blocked", true })
		}, note: "blocked"},
		{name: "a passed build that is blocked", build: buildkited.Build{Branch: ours, Commit: otherHead}, change: func(p *piping, n int) {
			p.bk.Change("web", n, func(b *buildkited.Build) { b.State, b.Blocked = "passed", true })
		}, note: "blocked"},
		{name: "a canceled build", build: buildkited.Build{Branch: ours, Commit: otherHead}, change: func(p *piping, n int) { p.bk.Finish("web", n, "canceled") }, note: "canceled"},
		{name: "an event newer than its name", build: buildkited.Build{Branch: ours, Commit: otherHead}, event: "build.running", note: "look at the build"},
		{name: "an older commit of ours", build: buildkited.Build{Branch: ours, Commit: head}, note: "nobody asked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.more == "" {
				c.more = fixing
			}
			if c.spec == "" {
				c.spec = fixSpec
			}
			if c.event == "" {
				c.event = "build.finished"
			}
			p := newPiping(t, c.more, nil)
			p.ours(t, ours, otherHead, 12)
			p.gh.files[".inspect.yml"] = c.spec
			p.gh.branches[ours] = otherHead
			p.gh.pulls[12] = github.PullRequest{Number: 12, State: "open", HeadRef: ours, HeadSHA: otherHead, BaseRef: "main", HeadRepoID: repositoryID}
			b := p.broken(c.build)
			if c.change != nil {
				c.change(p, b.Number)
			}
			d := p.told(t, c.event, b.Number)
			p.told(t, c.event, b.Number) // and once more
			if n := p.count(t, "pipeline_sessions"); n != c.want {
				t.Errorf("%d sessions: %s %s", n, d.Status, d.Note)
			}
			if !strings.Contains(d.Note, c.note) {
				t.Errorf("%q, want %q", d.Note, c.note)
			}
		})
	}
}

// A webhook that was lost is made up for by whoever follows the build, and one
// that comes late starts nothing more.
func TestBuildThatNoWebhookToldOf(t *testing.T) {
	const ours = "inspect/3-x-abcdefgh23"
	p := newPiping(t, fixing, nil)
	p.ours(t, ours, otherHead, 12)
	p.gh.files[".inspect.yml"] = fixSpec
	p.gh.branches[ours] = otherHead
	p.gh.pulls[12] = github.PullRequest{Number: 12, State: "open", HeadRef: ours, HeadSHA: otherHead, BaseRef: "main", HeadRepoID: repositoryID}
	b := p.broken(buildkited.Build{Branch: ours, Commit: otherHead})
	p.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultStatus, Status: 503, Skip: 1})
	if err := p.in.BuildFailed(t.Context(), p.web.ID, b.Number); err == nil {
		t.Error("what could not be read is no error")
	}
	for range 2 {
		if err := p.in.BuildFailed(t.Context(), p.web.ID, b.Number); err != nil {
			t.Fatal(err)
		}
	}
	p.told(t, "build.finished", b.Number)
	if n := p.count(t, "pipeline_sessions"); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if err := p.in.BuildFailed(t.Context(), buildkited.NewID(), 1); err != nil {
		t.Error(err)
	}
}

// What the webhook said is not believed: the build is what the API says it is.
func TestWebhookIsReadAnew(t *testing.T) {
	p := newPiping(t, fixing, nil)
	p.ours(t, "inspect/3-x-abcdefgh23", otherHead, 0)
	p.gh.files[".inspect.yml"] = fixSpec
	b := p.broken(buildkited.Build{Branch: "inspect/3-x-abcdefgh23", Commit: otherHead})
	old := p.bk.Payload("build.finished", "web", b.Number, "")
	p.bk.Finish("web", b.Number, "passed")
	if _, err := p.db.Q().StoreDelivery(t.Context(), storage.StoreDeliveryParams{Guid: "x", Event: BuildEvent, Action: "build.finished", Payload: old, Status: "pending"}); err != nil {
		t.Fatal(err)
	}
	p.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultStatus, Status: 429, Reset: 20, Path: "/v2/*/*/*/*/*/*"})
	if err := p.in.Deliver(t.Context(), "x"); err == nil {
		t.Error("an answer of 429 is final")
	}
	if err := p.in.Deliver(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if d := p.delivery("x"); !strings.Contains(d.Note, "passed") || p.count(t, "pipeline_sessions") > 0 {
		t.Errorf("%+v", d)
	}
}

// Half a log, a report that is none and a job list that Buildkite does not give
// are no reason to start nothing; what is missing is said.
func TestFixBuildWithHalfOfIt(t *testing.T) {
	p := newPiping(t, fixing, nil)
	b := p.broken(buildkited.Build{Branch: "main", Commit: head})
	p.bk.AddArtifact("web", b.Number, b.Jobs[1].ID, "reports/bad.xml", `<!DOCTYPE x [<!ENTITY a "b">]><testsuite/>`)
	p.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultShort, Method: "GET", Path: "/v2/organizations/acme/pipelines/web/builds/*/jobs/*/log"})
	p.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultStatus, Status: 403, Path: "/v2/organizations/acme/pipelines/web/builds/*/annotations"})
	i := p.step(t, Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}})
	if i.Outcome != "started" {
		t.Fatalf("%s: %s", i.Outcome, i.Note)
	}
	prompt := p.session(t, i.SessionID.String).Prompt
	for _, want := range []string{"its annotations", "one of them could not be read", "pkg TestSum"} {
		if !strings.Contains(prompt, want) {
			t.Errorf("%q is not said", want)
		}
	}
}

// An artifact store that does not answer is waited for a while, then the repair
// begins without its reports.
func TestFixBuildWithoutItsReports(t *testing.T) {
	p := newPiping(t, fixing, nil)
	b := p.broken(buildkited.Build{Branch: "main", Commit: head})
	p.bk.AddFault(buildkited.Fault{Kind: buildkited.FaultStatus, Status: 503, Count: -1, Path: "/v2/organizations/acme/pipelines/web/builds/*/jobs/*/artifacts/*/download"})
	s := Stepped{Job: p.of(b), Ask: step.Ask{FixBuild: true}}
	if _, _, err := p.in.Step(t.Context(), "g", s); err != nil {
		t.Fatal(err)
	}
	if err := p.in.Deliver(t.Context(), "g"); err == nil {
		t.Fatal("it is not waited for")
	}
	if _, err := p.db.SQL().Exec("UPDATE intents SET created_at = created_at - interval '3 minutes'"); err != nil {
		t.Fatal(err)
	}
	if err := p.in.Deliver(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	key, _ := s.Key()
	i, err := p.db.Q().IntentByKey(t.Context(), key)
	if err != nil || i.Outcome != "started" || !strings.Contains(p.session(t, i.SessionID.String).Prompt, "one of them could not be read") {
		t.Errorf("%+v, %v", i, err)
	}
}
