package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"inspect/app/command"
	"inspect/app/comment"
	agent "inspect/app/context"
	"inspect/app/github"
	"inspect/app/oidc"
	"inspect/app/policy"
	"inspect/checks/buildkite"
	"inspect/checks/buildkite/step"
	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/storage"
)

// stepEvent is the delivery that a step of a pipeline makes. No event of GitHub's
// has a dot in its name.
const stepEvent = "inspect.step"

// kindStep is the kind of intents that pipelines have.
const kindStep = "pipeline"

// Stepped is what a step asks for, with what its token proved.
type Stepped struct {
	Job oidc.Job `json:"job"`
	Ask step.Ask `json:"ask"`
}

// ErrOnce says that a step cannot be told from others of its build.
var ErrOnce = errors.New("once: build needs a key for the step")

// Key tells wishes apart: of a job there is one, or of the step of a build where
// that is asked for. Numbers of builds are never used again within a pipeline.
func (s Stepped) Key() (string, error) {
	if s.Ask.Once != "build" {
		return "step:job:" + s.Job.JobID, nil
	}
	if s.Job.StepKey == "" {
		return "", ErrOnce
	}
	return storable(fmt.Sprintf("step:build:%s:%d:%s", s.Job.PipelineID, s.Job.BuildNumber, s.Job.StepKey), 500), nil
}

// Act is what of the policy's `may` the step asks for.
func (s Stepped) Act() string {
	switch {
	case s.Ask.FixBuild:
		return spec.PipelineFix
	case s.Ask.Issue > 0:
		return spec.PipelineIssue
	}
	return spec.PipelinePrompt
}

// Step stores what a step asks for, and has it worked on. fresh is false if it
// was stored before; then what was asked first counts. An error is ours.
func (in *Intake) Step(ctx context.Context, guid string, s Stepped) (fresh bool, first Stepped, err error) {
	body, err := json.Marshal(payload{Step: &s})
	if err != nil {
		return false, s, err
	}
	err = in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		n, err := tx.Q().StoreDelivery(ctx, storage.StoreDeliveryParams{Guid: guid, Event: stepEvent, Action: s.Act(), Payload: body, Status: "pending"})
		if fresh = n == 1; err != nil || !fresh {
			return err
		}
		return in.o.Sessions.InsertDelivery(ctx, tx, guid)
	})
	if err != nil {
		return false, s, fmt.Errorf("storing what a step asks for: %w", err)
	}
	if fresh {
		return true, s, nil
	}
	d, err := in.o.DB.Q().DeliveryByGUID(ctx, guid)
	if err != nil {
		return false, s, fmt.Errorf("reading what a step asked for: %w", err)
	}
	var p payload
	if err := json.Unmarshal(d.Payload, &p); err != nil || p.Step == nil {
		return false, s, fmt.Errorf("reading what a step asked for: delivery %s is not one", guid)
	}
	return false, *p.Step, nil
}

// piped is what a wish of a pipeline has besides.
type piped struct {
	id       policy.PipelineID
	pipeline policy.Pipeline
	found    bool
	act      string
	number   int // of the build
	job      string
	fixes    string           // the commit whose build is repaired; empty: none is
	branch   string           // that has it
	build    *buildkite.Build // nil: it was not read
	facts    policy.BuildFacts
}

// denial ends a wish of whoever may not ask, without a word.
type denial struct{ policy.ActorDecision }

func (d *denial) Error() string { return d.Reason + ": " + d.Words }

// step works on what a step asks for. What there is to say is read by the step.
func (in *Intake) step(ctx context.Context, guid string, received time.Time, p payload) (result, error) {
	if p.Step == nil {
		return ignore("the delivery is not of a step")
	}
	s := *p.Step
	key, err := s.Key()
	if err != nil {
		return ignore("%v", err)
	}
	pl := &piped{
		id: policy.PipelineID{Organization: s.Job.OrganizationID, Pipeline: s.Job.PipelineID}, act: s.Act(), number: s.Job.BuildNumber, job: s.Job.JobID,
	}
	pl.pipeline, pl.found = in.pipeline(pl.id)
	w := &wish{
		key: key, kind: kindStep, guid: guid, issue: issue{Number: s.Ask.Issue}, at: received, piped: pl,
		actor: policy.Actor{Login: pipelineLogin(pl.pipeline, s.Job.Organization+"/"+s.Job.Pipeline)}, need: policy.NeedWrite,
		command: command.Command{Name: command.Request, Text: strings.TrimSpace(s.Ask.Prompt)},
	}
	placed := in.place(ctx, w, s.Ask.Repository)
	return in.pipe(ctx, w, placed, func() error { return in.tryStep(ctx, w, s) })
}

// pipelineLogin is what a pipeline is called where people have a login.
func pipelineLogin(p policy.Pipeline, slug string) string {
	if p.Slug != "" {
		slug = p.Slug // the operator's word for it, not the token's
	}
	return redact.Cut("Buildkite "+redact.OneLine(slug, 90), 100)
}

// pipe brings a wish of a pipeline to its outcome. An error of placed is one
// that try would have.
func (in *Intake) pipe(ctx context.Context, w *wish, placed error, try func() error) (result, error) {
	mine, err := in.claim(ctx, w)
	if err != nil {
		return result{}, err
	}
	if mine {
		stop := false
		if placed == nil {
			stop, err = in.breakLoop(ctx, w)
		}
		if err == nil && !stop {
			if err = placed; err == nil {
				err = try()
			}
			var no *denial
			if errors.As(err, &no) {
				in.log.Warn("a pipeline may not ask for this", "pipeline", w.actor.Login, "pipeline_id", w.piped.id.Pipeline, "build", w.piped.number, "repository", w.repo.String(), "act", w.piped.act, "reason", no.Reason, "why", no.Words)
				err = in.end(ctx, w, outcomeDenied, no.Error())
			} else {
				err = in.said(ctx, w, err)
			}
		}
		if err != nil {
			return result{}, err
		}
	}
	i, err := in.o.DB.Q().IntentByKey(ctx, w.key)
	if err != nil {
		return result{}, fmt.Errorf("reading an intent: %w", err)
	}
	return result{done, i.Outcome + " " + i.Note}, nil
}

// pipeline is what the operator's policy has of one now.
func (in *Intake) pipeline(id policy.PipelineID) (policy.Pipeline, bool) {
	if in.o.Pipelines == nil {
		return policy.Pipeline{}, false
	}
	return in.o.Pipelines(id)
}

// place finds the repository that is asked for: by its name, or the one that the
// pipeline is bound to. What it is not bound to it learns nothing about.
func (in *Intake) place(ctx context.Context, w *wish, name string) error {
	if !w.piped.found {
		return &denial{policy.DecidePipeline(policy.Pipeline{}, false, 0, "", w.piped.act, policy.BuildFacts{})}
	}
	unbound := &denial{policy.ActorDecision{Reason: policy.PipelineRepository, Words: "the pipeline is not bound to a repository of that name where the App is installed"}}
	bound := w.piped.pipeline.Repositories
	var row storage.Repository
	var err error
	switch {
	case name != "":
		row, err = in.named(ctx, name)
	case len(bound) != 1:
		return &answer{fmt.Sprintf("The pipeline is bound to %d repositories: name the one that is meant.", len(bound))}
	default:
		row, err = in.boundRow(ctx, bound[0])
	}
	if storage.IsMissing(err) {
		return unbound
	}
	if err != nil {
		return fmt.Errorf("looking for the repository that a pipeline asks for: %w", err)
	}
	if !w.piped.pipeline.Bound(row.ID, row.Owner+"/"+row.Name) {
		return unbound
	}
	in.at(w, row)
	return nil
}

// at says where a wish is to be done.
func (in *Intake) at(w *wish, row storage.Repository) {
	w.installation = &installation{ID: row.InstallationID}
	w.repo = github.Repo{ID: row.ID, Owner: row.Owner, Name: row.Name}
	w.repository = &repository{ID: row.ID, Name: row.Name, DefaultBranch: row.DefaultBranch}
}

// tryStep starts what a step asks for, or is an error that says why not.
func (in *Intake) tryStep(ctx context.Context, w *wish, s Stepped) error {
	if err := in.pipelineMay(ctx, w, s.Job.BuildID, s.Job.Branch, s.Job.Commit); err != nil {
		return err
	}
	flags, err := stepFlags(s.Ask)
	if err != nil {
		return &answer{err.Error()}
	}
	w.command.Flags = flags
	if s.Ask.FixBuild {
		return in.fix(ctx, w, fixAsked{base: s.Ask.Base})
	}
	env, bounds, err := in.open(ctx, w)
	if err != nil {
		return err
	}
	if w.issue.Number > 0 {
		if err := in.readIssue(ctx, w); err != nil {
			return err
		}
	} else {
		w.issue.Title = firstLine(w.command.Text)
	}
	base, baseSHA, err := in.base(ctx, w, env, s.Ask.Base)
	if err != nil {
		return err
	}
	if err := in.fit(ctx, w, &env, bounds, false); err != nil {
		return err
	}
	f := in.facts(w, env, base, baseSHA)
	if w.issue.Number > 0 && w.issue.Comments > 0 {
		if err := in.comments(ctx, w, &f, in.truster(ctx, w)); err != nil {
			return err
		}
	}
	return in.create(ctx, w, env, base, baseSHA, agent.Build(f), nil, "")
}

// pipelineMay denies what the policy does not let the pipeline ask for, in that
// order: without a look at the build, and with one.
func (in *Intake) pipelineMay(ctx context.Context, w *wish, buildID, branch, commit string) error {
	pl := w.piped
	if d := in.authority.DecidePipeline(pl.id, w.repo, pl.act, policy.BuildFacts{Seen: true}); !d.Allow {
		return &denial{d}
	}
	if _, allowed := in.floor(w.repo); !allowed {
		return &answer{comment.NotAllowed()}
	}
	if in.o.Builds != nil {
		if err := in.seeBuild(ctx, w, buildID); err != nil {
			return err
		}
		branch, commit = pl.build.Branch, pl.build.Commit
		pl.facts = policy.BuildFacts{Seen: true, Fork: pl.build.Fork()}
	} else {
		// Where the pipeline puts a fork's owner before its branches a colon tells:
		// no branch of a repository has one.
		pl.facts = policy.BuildFacts{Fork: strings.Contains(branch, ":")}
	}
	own, err := in.o.DB.Q().OwnBranch(ctx, storage.OwnBranchParams{Branch: storable(branch, 1000), Sha: storable(commit, 100)})
	if err != nil {
		return fmt.Errorf("looking whether branch %.200s is ours: %w", branch, err)
	}
	pl.facts.OwnBranch = own
	if d := in.authority.DecidePipeline(pl.id, w.repo, pl.act, pl.facts); !d.Allow {
		return &denial{d}
	}
	return nil
}

// seeBuild reads the build that asks, and is sure that it is of the pipeline: its
// address is made of names, which can change hands.
func (in *Intake) seeBuild(ctx context.Context, w *wish, id string) error {
	org, slug, _ := strings.Cut(w.piped.pipeline.Slug, "/")
	b, err := in.o.Builds.Build(ctx, org, slug, w.piped.number)
	if err != nil {
		return buildError(err)
	}
	if !strings.EqualFold(b.Pipeline.ID, w.piped.id.Pipeline) || id != "" && !strings.EqualFold(b.ID, id) {
		return &denial{policy.ActorDecision{Reason: policy.PipelineUnseen, Words: "the address " + w.piped.pipeline.Slug + " of the policy leads to another pipeline or build than the one that asks"}}
	}
	w.piped.build = &b
	return nil
}

// buildError is final where Buildkite will say the same again; else it is tried
// again, not before Buildkite wants to be asked.
func buildError(err error) error {
	var e *buildkite.Error
	if errors.As(err, &e) {
		switch {
		case errors.Is(err, buildkite.ErrNotFound), errors.Is(err, buildkite.ErrForbidden):
			return &denial{policy.ActorDecision{Reason: policy.PipelineUnseen, Words: "the build cannot be read: " + err.Error()}}
		case e.RetryAfter > 0:
			return &retry{time.Now().Add(e.RetryAfter), err}
		}
	}
	return err
}

// open reads what a session of a pipeline needs of the repository.
func (in *Intake) open(ctx context.Context, w *wish) (environment, policy.Bounds, error) {
	bounds, allowed := in.floor(w.repo)
	if !allowed {
		return environment{}, bounds, &answer{comment.NotAllowed()}
	}
	info, err := in.gh(w).Repository(ctx, w.repo.ID)
	if err != nil {
		return environment{}, bounds, fmt.Errorf("reading the repository: %w", err)
	}
	if info.Archived {
		return environment{}, bounds, &refusal{"the repository is archived"}
	}
	if info.Repo.Owner != "" { // it may have been renamed
		if w.repo = info.Repo; !w.piped.pipeline.Bound(w.repo.ID, w.repo.Owner+"/"+w.repo.Name) {
			return environment{}, bounds, &denial{policy.ActorDecision{Reason: policy.PipelineRepository, Words: "the repository has another name by now, to which the pipeline is not bound"}}
		}
	}
	w.repository.DefaultBranch = info.DefaultBranch
	env, err := in.environment(ctx, in.gh(w), w.repo, info.DefaultBranch)
	return env, bounds, err
}

// base is the commit that a session begins at.
func (in *Intake) base(ctx context.Context, w *wish, env environment, branch string) (string, string, error) {
	if branch == "" || branch == env.branch {
		return env.branch, env.sha, nil
	}
	sha, err := in.gh(w).BranchHead(ctx, w.repo, branch)
	if errors.Is(err, github.ErrNotFound) {
		return "", "", &answer{comment.NoBranch(branch)}
	}
	if err != nil {
		return "", "", fmt.Errorf("reading branch %s: %w", branch, err)
	}
	return branch, sha, nil
}

// readIssue takes an issue as it is now: the step names it by number only.
func (in *Intake) readIssue(ctx context.Context, w *wish) error {
	got, err := in.gh(w).Issue(ctx, w.repo, w.issue.Number)
	switch {
	case errors.Is(err, github.ErrNotFound), errors.Is(err, github.ErrGone), errors.Is(err, github.ErrMoved):
		return &answer{fmt.Sprintf("There is no issue %d.", w.issue.Number)}
	case err != nil:
		return fmt.Errorf("reading issue %d: %w", w.issue.Number, err)
	case got.Pull:
		return &answer{fmt.Sprintf("%d is a pull request: a step can ask about issues, and for its own build to be repaired.", w.issue.Number)}
	case got.State != "open":
		return &answer{comment.Closed("closed")}
	}
	r := in.o.Redactor
	w.issue = issue{
		ID: got.ID, Number: got.Number, Title: r.String(got.Title), Body: r.String(got.Body), User: &account{ID: got.AuthorID, Login: got.Author},
		State: got.State, Locked: got.Locked, Comments: got.Comments,
	}
	return nil
}

// facts are what the agent is told, but for what people and builds say.
func (in *Intake) facts(w *wish, env environment, base, baseSHA string) agent.Facts {
	return agent.Facts{
		Repository: w.repo.Owner + "/" + w.repo.Name, Issue: w.issue.Number, Title: w.issue.Title, Body: w.issue.Body, Author: w.issue.User.login(),
		Request: in.o.Redactor.String(w.command.Text), Requester: w.actor.Login, Pipeline: w.piped.pipeline.Slug,
		BaseBranch: base, BaseSHA: baseSHA, Place: agent.PlaceOf(env.spec),
	}
}

// fit makes what a repository asks for what this session gets: what the wish
// says, and then the floor.
func (in *Intake) fit(ctx context.Context, w *wish, env *environment, bounds policy.Bounds, fork bool) error {
	if t := w.command.Flags.Timeout; t > 0 {
		env.spec.Limits.Timeout = min(env.spec.Limits.Timeout, t)
	}
	if cents := w.command.Flags.Budget; cents > 0 {
		env.spec.Limits.Budget = min(env.spec.Limits.Budget, spec.Money(cents)*spec.Dollar/100)
	}
	var words string
	switch env.spec.Harness, words = chooseHarness(w.command.Flags, env.spec.Harness, in.o.Harness, in.o.Models); {
	case words != "":
		return &answer{words}
	case env.spec.Harness.Kind == "":
		return &answer{comment.NoHarness()}
	}
	if fork {
		env.spec = env.spec.WithoutSecrets()
	}
	var err error
	if env.spec, err = in.bound(env.spec, bounds, w.repo); err != nil {
		return err
	}
	if w.kind == kindStep {
		return in.protected(ctx, w, bounds)
	}
	return nil
}

// stepFlags reads what a step says as a command's flags are read. The error is
// for whoever wrote the step.
func stepFlags(a step.Ask) (command.Flags, error) {
	var words []string
	for flag, value := range map[string]string{"--harness": a.Harness, "--model": a.Model, "--budget": a.Budget, "--timeout": a.Timeout} {
		if value == "" {
			continue
		}
		if strings.ContainsAny(value, " \t\r\n'\"\\") {
			return command.Flags{}, fmt.Errorf("%s: %q cannot be read", flag, redact.OneLine(value, 100))
		}
		words = append(words, flag, value)
	}
	if len(words) == 0 {
		return command.Flags{}, nil
	}
	switch one := command.Parse("/inspect " + strings.Join(words, " ") + " x")[0].(type) {
	case command.Command:
		return one.Flags, nil
	case command.Reply:
		return command.Flags{}, errors.New(one.Words)
	}
	return command.Flags{}, errors.New("harness, model, budget or timeout cannot be read")
}

// firstLine is the title of a session that has no issue.
func firstLine(text string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return redact.OneLine(first, 100)
}

// recordPipeline notes whose session it is, in the transaction that makes it.
func (in *Intake) recordPipeline(ctx context.Context, tx *storage.Tx, w *wish, session string) error {
	p := w.piped
	if p == nil {
		return nil
	}
	return tx.Q().InsertPipelineSession(ctx, storage.InsertPipelineSessionParams{
		SessionID: session, RepositoryID: w.repo.ID, OrganizationID: p.id.Organization, PipelineID: p.id.Pipeline, Slug: storable(p.pipeline.Slug, 600),
		Act: p.act, BuildNumber: int32(p.number), JobID: p.job, Fixes: p.fixes, Branch: storable(p.branch, 1000), CreatedAt: time.Now(),
	})
}
