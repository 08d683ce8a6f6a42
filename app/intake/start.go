package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"inspect/app/comment"
	agent "inspect/app/context"
	"inspect/app/doctor"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/app/publish"
	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/scheduler/secrets"
	"inspect/storage"
)

// answer is an error that ends a wish with words for its author.
type answer struct{ words string }

func (a *answer) Error() string { return a.words }

// refusal is an error that ends a wish without a word.
type refusal struct{ why string }

func (r *refusal) Error() string { return r.why }

// start turns an allowed wish into a session.
func (in *Intake) start(ctx context.Context, w *wish) error {
	return in.said(ctx, w, in.tryStart(ctx, w))
}

// said ends a wish for which an error speaks, unless another try may help.
func (in *Intake) said(ctx context.Context, w *wish, err error) error {
	var words *answer
	var silent *refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &words):
		return in.end(ctx, w, outcomeReplied, words.words)
	case errors.As(err, &silent):
		return in.end(ctx, w, outcomeRefused, silent.why)
	case final(err):
		in.log.Warn("a session could not be started", "repository", w.repo.ID, "issue", w.issue.Number, "error", err)
		if markErr := in.mark(ctx, w, err); markErr != nil {
			return markErr
		}
		if errors.Is(err, github.ErrSuspended) || errors.Is(err, github.ErrGone) {
			return in.end(ctx, w, outcomeRefused, err.Error())
		}
		return in.end(ctx, w, outcomeReplied, comment.NotStarted(err.Error()))
	}
	return err
}

func (in *Intake) tryStart(ctx context.Context, w *wish) error {
	if stopped, err := in.stopped(ctx, w); err != nil {
		return err
	} else if stopped {
		return &refusal{"somebody said stop after it"}
	}
	if s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, w.issue.Number); err != nil {
		return err
	} else if found {
		return in.addTo(ctx, w, s)
	}
	switch {
	case w.issue.PullRequest != nil: // looked at below
	case w.issue.State == "closed":
		return &answer{comment.Closed("closed")}
	case w.issue.Locked:
		return &answer{comment.Closed("locked")}
	}
	if w.kind == kindLabel {
		if why, err := in.withdrawn(ctx, w); err != nil {
			return err
		} else if why != "" {
			return &refusal{why}
		}
	}
	bounds, allowed := in.floor(w.repo)
	if !allowed {
		// Once for each issue: asking again does not change it.
		if err := in.reply(ctx, w.asker(), "not-allowed", comment.NotAllowed()); err != nil {
			return err
		}
		return in.end(ctx, w, outcomeReplied, "")
	}
	last, _, err := in.lastSession(ctx, w)
	if err != nil {
		return err
	}
	at, err := in.aim(ctx, w, last)
	if err != nil {
		return err
	}
	if at != nil && at.Number != w.issue.Number {
		if s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, at.Number); err != nil {
			return err
		} else if found {
			return in.addTo(ctx, w, s)
		}
	}
	if w.kind == kindCommand {
		if err := in.react(ctx, w); err != nil {
			return err
		}
	}
	if done, err := in.goOn(ctx, w, last, at); err != nil || done {
		return err
	}
	env, err := in.environment(ctx, in.gh(w), w.repo, w.repository.DefaultBranch)
	if err != nil {
		return err
	}
	if w.kind == kindLabel {
		if !hasLabel(env.spec.Triggers.Labels, w.label) {
			return &refusal{fmt.Sprintf("the label %q is not among triggers.labels of %s", w.label, env.source)}
		}
		if err := in.reactOnLabel(ctx, w, env.spec); err != nil {
			return err
		}
	}
	base, baseSHA := env.branch, env.sha
	if b := w.command.Flags.Base; b != "" && b != env.branch {
		base = b
		baseSHA, err = in.gh(w).BranchHead(ctx, w.repo, b)
		if errors.Is(err, github.ErrNotFound) {
			return &answer{comment.NoBranch(b)}
		}
		if err != nil {
			return fmt.Errorf("reading branch %s: %w", b, err)
		}
	}
	if err := in.fit(ctx, w, &env, bounds, at != nil && at.fork); err != nil {
		return err
	}
	deliver, result := "", ""
	if at != nil {
		if base, baseSHA = at.HeadRef, at.HeadSHA; base == "" {
			base = fmt.Sprintf("pull/%d/head", at.Number)
		}
		if deliver, err = in.delivery(ctx, w, at, env.spec, env.branch); err != nil {
			return err
		}
		result = resultWords(deliver, base)
	}
	w.priority, err = bounds.Priority(w.command.Flags.Priority, w.labels())
	var beyond *policy.BeyondError
	if errors.As(err, &beyond) {
		return &answer{comment.BeyondFloor(beyond)}
	}
	if err := in.protected(ctx, w, bounds); err != nil {
		return err
	}
	built, err := in.brief(ctx, w, env, base, baseSHA, at, result)
	if err != nil {
		return err
	}
	return in.create(ctx, w, env, base, baseSHA, built, at, deliver)
}

// reactOnLabel shows that a label was seen, unless the commit will take GitHub three
// writes in place of one push: the comment that comes a moment later says it too,
// and a session is to keep within its seven.
func (in *Intake) reactOnLabel(ctx context.Context, w *wish, sp spec.Spec) error {
	signs, err := publish.Signs(ctx, in.o.DB.Q(), w.repo.ID, sp)
	if err != nil || signs {
		return err
	}
	return in.react(ctx, w)
}

// protected is an answer where the operator requires rules that keep the App from
// the default branch and there are none. It is asked each time: rules change.
func (in *Intake) protected(ctx context.Context, w *wish, bounds policy.Bounds) error {
	if required, _ := bounds.RequireProtection(); !required {
		return nil
	}
	branch := w.repository.DefaultBranch
	p, err := doctor.Protection(ctx, in.gh(w), w.repo, branch)
	if err != nil {
		return fmt.Errorf("reading the rules for %s: %w", branch, err)
	}
	if !p.Safe() {
		return &answer{comment.Unprotected(branch, p)}
	}
	return nil
}

// create makes the session and ends the wish in one transaction, unless
// another wish was faster on the same issue.
func (in *Intake) create(ctx context.Context, w *wish, env environment, base, baseSHA string, built agent.Built, at *target, deliver string) error {
	seen, err := json.Marshal(built.Items)
	if err != nil {
		return fmt.Errorf("listing what the agent is told: %w", err)
	}
	pull, title := scheduler.Pull{}, w.issue.Title
	if at != nil {
		pull = scheduler.Pull{Number: at.Number, HeadRepoID: at.HeadRepoID, Deliver: deliver}
	}
	request := w.command.Text
	if w.kind == kindLabel {
		request = "label " + w.label
	}
	err = in.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		if err := in.saw(ctx, q, w, env.branch); err != nil {
			return err
		}
		i, err := q.IntentByKey(ctx, w.key)
		if err != nil || i.Outcome != outcomePending {
			return err
		}
		for _, number := range []int{w.issue.Number, pull.Number} {
			if _, found, err := in.openSession(ctx, q, w.repo.ID, number); err != nil {
				return err
			} else if found && number > 0 {
				return errBusy
			}
		}
		id, err := in.ensure(ctx, tx, w.repo.ID, env)
		if err != nil {
			return err
		}
		if err := in.mayTry(ctx, q, w, env.spec); err != nil {
			return err
		}
		s, err := in.o.Sessions.Create(ctx, tx, scheduler.NewSession{
			InstallationID: w.installation.ID, RepositoryID: w.repo.ID, IssueNumber: w.issue.Number, IntentKey: w.key,
			RequesterID: w.actor.ID, RequesterLogin: w.actor.Login,
			Title: redact.OneLine(title, agent.MaxTitle), Request: request, Prompt: built.Prompt, ContextDigest: built.Digest,
			BaseBranch: base, BaseSHA: baseSHA, InstructionsSHA: env.sha, EnvironmentID: id, Spec: env.spec, SpecSource: env.source, Priority: w.priority,
			Pull: pull, Locked: w.issue.Locked, Context: seen,
		})
		if err != nil {
			return err
		}
		if err := in.recordPipeline(ctx, tx, w, s.ID); err != nil {
			return err
		}
		return finishIntent(ctx, q, w, outcomeStarted, "", s.ID)
	})
	if w.kind == kindStep && errors.Is(err, errBusy) {
		return in.busy(ctx, w, w.issue.Number)
	}
	for _, number := range []int{w.issue.Number, pull.Number} {
		if !errors.Is(err, errBusy) || number == 0 {
			continue
		}
		// Another wish was faster: this one is for its session.
		if s, found, err := in.openSession(ctx, in.o.DB.Q(), w.repo.ID, number); err != nil {
			return err
		} else if found {
			return in.addTo(ctx, w, s)
		}
	}
	if err != nil {
		return fmt.Errorf("creating a session: %w", err)
	}
	return nil
}

// ensure has an environment at hand. One that names a secret which is not set
// is an answer.
func (in *Intake) ensure(ctx context.Context, tx *storage.Tx, repositoryID int64, env environment) (string, error) {
	id, err := in.o.Sessions.EnsureEnvironment(ctx, tx, repositoryID, env.spec, env.branch, env.sha)
	var p *secrets.Problem
	if errors.As(err, &p) {
		return "", &answer{comment.NoSecret(p.Words)}
	}
	return id, err
}

// saw refreshes what is known of the installation and the repository.
func (in *Intake) saw(ctx context.Context, q *storage.Queries, w *wish, branch string) error {
	owner := w.installation.Account.login()
	if owner == "" {
		owner = w.repo.Owner
	}
	if err := q.SawInstallation(ctx, storage.SawInstallationParams{ID: w.installation.ID, Account: storable(owner, 100)}); err != nil {
		return err
	}
	return q.SawRepository(ctx, storage.SawRepositoryParams{
		ID: w.repo.ID, InstallationID: w.installation.ID, Owner: storable(w.repo.Owner, 100), Name: storable(w.repo.Name, 200), DefaultBranch: storable(branch, 300),
	})
}

// errBusy says that a session works on the issue.
var errBusy = errors.New("a session is at work on this issue")

func (in *Intake) openSession(ctx context.Context, q *storage.Queries, repository int64, number int) (storage.Session, bool, error) {
	if number == 0 {
		return storage.Session{}, false, nil // nobody's issue: many sessions have it
	}
	s, err := q.OpenSessionOfIssue(ctx, storage.OpenSessionOfIssueParams{RepositoryID: repository, IssueNumber: int32(number)})
	if storage.IsMissing(err) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("looking for a session: %w", err)
	}
	return s, true, nil
}

func (in *Intake) lastSession(ctx context.Context, w *wish) (storage.Session, bool, error) {
	if w.issue.Number == 0 {
		return storage.Session{}, false, nil
	}
	s, err := in.o.DB.Q().LastSessionOfIssue(ctx, storage.LastSessionOfIssueParams{RepositoryID: w.repo.ID, IssueNumber: int32(w.issue.Number)})
	if storage.IsMissing(err) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("looking for a session: %w", err)
	}
	return s, true, nil
}

// floor is what binds a repository now, or false if it may not use Inspect.
func (in *Intake) floor(repo github.Repo) (policy.Bounds, bool) {
	return in.o.Floor(repo.ID, repo.Owner+"/"+repo.Name)
}

// bound applies the floor. What passes it is an answer.
func (in *Intake) bound(sp spec.Spec, b policy.Bounds, repo github.Repo) (spec.Spec, error) {
	sp, values, err := policy.Effective(sp, b)
	var beyond *policy.BeyondError
	if errors.As(err, &beyond) {
		return sp, &answer{comment.BeyondFloor(beyond)}
	}
	for _, v := range values {
		if v.Instead != "" {
			in.log.Info("the floor lowered a limit", "repository", repo.ID, "key", v.Key, "value", v.Value, "instead", v.Instead, "by", v.From)
		}
	}
	return sp, err
}

// environment is what a repository says about itself at a commit of its
// default branch.
type environment struct {
	branch, sha string
	spec        spec.Spec
	source      string
}

// environment reads .inspect.yml from the default branch, or guesses. A file
// that cannot be used is an answer.
func (in *Intake) environment(ctx context.Context, client GitHub, repo github.Repo, branch string) (environment, error) {
	env, err := in.head(ctx, client, repo, branch)
	if err != nil {
		return env, err
	}
	return in.describe(ctx, client, repo, env)
}

// head is the head of the default branch; without its name GitHub is asked.
// None is an answer.
func (in *Intake) head(ctx context.Context, client GitHub, repo github.Repo, branch string) (environment, error) {
	env := environment{branch: branch}
	if env.branch == "" {
		info, err := client.Repository(ctx, repo.ID)
		if err != nil {
			return env, fmt.Errorf("reading the repository: %w", err)
		}
		env.branch = info.DefaultBranch
	}
	var err error
	env.sha, err = client.BranchHead(ctx, repo, env.branch)
	if errors.Is(err, github.ErrNotFound) {
		return env, &answer{comment.EmptyRepository(env.branch)}
	}
	if err != nil {
		return env, fmt.Errorf("reading branch %s: %w", env.branch, err)
	}
	return env, nil
}

// describe reads what is at a head.
func (in *Intake) describe(ctx context.Context, client GitHub, repo github.Repo, env environment) (environment, error) {
	body, err := client.File(ctx, repo, spec.FileName, env.sha)
	switch {
	case errors.Is(err, github.ErrNotFound):
		return in.detect(ctx, client, repo, env)
	case errors.Is(err, github.ErrTooLarge):
		return env, &answer{comment.BrokenSpec(env.branch, env.sha, []spec.Problem{{Want: fmt.Sprintf("expected at most %d bytes", spec.MaxFileBytes)}})}
	case err != nil:
		return env, fmt.Errorf("reading %s: %w", spec.FileName, err)
	}
	sp, problems := spec.Parse(body)
	if len(problems) > 0 {
		return env, &answer{comment.BrokenSpec(env.branch, env.sha, problems)}
	}
	if len(sp.Verify) == 0 {
		return env, &answer{comment.NothingToVerify(env.branch, env.sha)}
	}
	if sp.Publish.Prefix == env.branch {
		// git has no branch below the name of a branch.
		return env, &answer{comment.BrokenSpec(env.branch, env.sha, []spec.Problem{{Key: "publish.prefix", Want: "expected a name that is not the default branch's"}})}
	}
	env.spec, env.source = sp, spec.FileName
	return env, nil
}

func (in *Intake) detect(ctx context.Context, client GitHub, repo github.Repo, env environment) (environment, error) {
	files, err := client.RootFiles(ctx, repo, env.sha)
	if err != nil {
		return env, fmt.Errorf("reading the names of the files in the root: %w", err)
	}
	sp, source, ok := spec.Detect(files)
	if !ok {
		return env, &answer{comment.NothingDetected(env.branch, env.sha)}
	}
	env.spec, env.source = sp, source
	return env, nil
}
