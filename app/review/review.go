// Package review keeps the check run "inspect / independent review" on pull
// requests: it asks for action until somebody who had no hand in what a session
// was asked for has approved the present head. In comes the number of a pull
// request that something happened to, in whatever order; what counts is read
// from GitHub each time. Out goes one completed run for each change of the
// answer, written down before it is made and found again by its external id. It
// decides nothing itself, and it never reviews or merges.
package review

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/measure"
	"inspect/app/policy"
	"inspect/app/publish"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// Name of the check run. Rulesets name it: it never changes.
const Name = "inspect / independent review"

// GitHub is what is asked of one installation; *github.Client has it.
type GitHub interface {
	PullRequest(ctx context.Context, repo github.Repo, number int) (github.PullRequest, error)
	Reviews(ctx context.Context, repo github.Repo, number int) ([]github.Review, error)
	Moves(ctx context.Context, repo github.Repo, branch string) ([]github.Moved, error)
	BranchRules(ctx context.Context, repo github.Repo, branch string) ([]github.Rule, error)
	CreateCheckRun(ctx context.Context, repo github.Repo, run github.CheckRun) (int64, error)
	UpdateCheckRun(ctx context.Context, repo github.Repo, id int64, run github.CheckRun) error
	FindCheckRun(ctx context.Context, repo github.Repo, sha, externalID string) (id int64, found bool, err error)
}

var _ GitHub = (*github.Client)(nil)

// Options of a Desk.
type Options struct {
	DB     *storage.DB
	GitHub func(installation int64) GitHub
	// Decide says what an actor may do now.
	Decide func(ctx context.Context, installation int64, repo github.Repo, actor policy.Actor, need policy.Need) (policy.ActorDecision, error)
	// Floor says what binds a repository, or false if it may not use Inspect.
	Floor func(repositoryID int64, ownerName string) (policy.Bounds, bool)
	// Fates knows what happened to a pull request.
	Fates *fate.Desk
	// SessionURL is the address of a session's page; nil: none is linked.
	SessionURL func(session string) string
	Clock      proc.Clock   // nil: the machine's
	Log        *slog.Logger // nil: silent
}

// Desk keeps the check runs. It may be used by several at once.
type Desk struct {
	o     Options
	turns publish.Turns
}

// New checks the options.
func New(o Options) (*Desk, error) {
	if o.DB == nil || o.GitHub == nil || o.Decide == nil || o.Floor == nil || o.Fates == nil {
		return nil, errors.New("reviews need a database, GitHub, the authority, the operator's policy and who follows pull requests")
	}
	if o.SessionURL == nil {
		o.SessionURL = func(string) string { return "" }
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Desk{o: o}, nil
}

// Look brings the check run of a pull request up to date. It may be called at
// any time and as often as anybody likes.
func (d *Desk) Look(ctx context.Context, installation int64, repo github.Repo, pull int) error {
	release, err := d.turns.Take(ctx, fmt.Sprintf("%d/%d", repo.ID, pull))
	if err != nil {
		return err
	}
	defer release()
	gh := d.o.GitHub(installation)
	known, err := d.sessions(ctx, repo, github.PullRequest{Number: pull})
	if err != nil {
		return err
	}
	if len(known) > 0 {
		if wanted, err := d.wanted(ctx, repo, known); err != nil || !wanted {
			return err
		}
	}
	pr, err := gh.PullRequest(ctx, repo, pull)
	switch {
	case errors.Is(err, github.ErrNotFound), errors.Is(err, github.ErrGone):
		return nil
	case err != nil:
		return fmt.Errorf("read pull request %d: %w", pull, err)
	}
	if pr.State != "open" {
		return nil
	}
	sessions, err := d.sessions(ctx, repo, pr)
	if err != nil {
		return err
	}
	wanted, err := d.wanted(ctx, repo, sessions)
	if err != nil {
		return err
	}
	if !wanted {
		return d.nobodys(ctx, gh, repo, pr, len(sessions) > 0)
	}
	facts, err := d.facts(ctx, installation, gh, repo, pr, sessions)
	if err != nil {
		return err
	}
	c := check{repo: repo, pull: pull, head: pr.HeadSHA, url: d.o.SessionURL(sessions[0].ID), conclusion: render.ActionRequired, title: "Waits for an independent review"}
	ok, words := policy.IndependentReview(facts)
	if c.words = words; ok {
		c.conclusion, c.title = render.Success, "Independently reviewed"
	}
	return d.say(ctx, gh, c)
}

// sessions are those that had a hand in a pull request.
func (d *Desk) sessions(ctx context.Context, repo github.Repo, pr github.PullRequest) ([]storage.Session, error) {
	all, err := d.o.DB.Q().SessionsOfPull(ctx, storage.SessionsOfPullParams{
		RepositoryID: repo.ID, PullRequest: int32(pr.Number), HeadRef: pr.HeadRef, HeadSha: pr.HeadSHA,
	})
	if err != nil {
		return nil, fmt.Errorf("look for the sessions of pull request %d: %w", pr.Number, err)
	}
	return all, nil
}

// wanted says whether one of the sessions, or the operator or the repository now,
// wants four eyes. The repository's configuration is the one that was found when
// its default branch was last looked at, which each push has happen.
func (d *Desk) wanted(ctx context.Context, repo github.Repo, sessions []storage.Session) (bool, error) {
	if len(sessions) == 0 {
		return false, nil
	}
	if b, _ := d.o.Floor(repo.ID, repo.Owner+"/"+repo.Name); b.FourEyes() {
		return true, nil
	}
	specs := make([]json.RawMessage, 0, len(sessions)+1)
	for _, s := range sessions {
		specs = append(specs, s.Spec)
	}
	now, err := d.o.DB.Q().PresentSpec(ctx, repo.ID)
	switch {
	case err == nil:
		specs = append(specs, now)
	case !storage.IsMissing(err):
		return false, fmt.Errorf("read the present configuration of %s: %w", repo, err)
	}
	return slices.ContainsFunc(specs, func(body json.RawMessage) bool {
		var sp spec.Spec
		err := json.Unmarshal(body, &sp)
		return err != nil || sp.Publish.FourEyes // what cannot be read is not made weaker
	}), nil
}

// facts are what the decision is made of, as it is now.
func (d *Desk) facts(ctx context.Context, installation int64, gh GitHub, repo github.Repo, pr github.PullRequest, sessions []storage.Session) (policy.Reviewed, error) {
	out := policy.Reviewed{Head: pr.HeadSHA}
	var err error
	if out.Pushers, out.Unknown, err = d.pushers(ctx, gh, repo, pr, sessions); err != nil {
		return out, err
	}
	for _, s := range sessions {
		people, err := scheduler.Requesters(ctx, d.o.DB.Q(), s.ID)
		if err != nil {
			return out, err
		}
		session := []policy.Requester{}
		for _, p := range people {
			session = append(session, policy.Requester{ID: p.UserID, Login: p.Login, Started: p.Role == string(scheduler.RoleStarted)})
		}
		out.Sessions = append(out.Sessions, session)
	}
	row, err := d.o.DB.Q().PullRow(ctx, storage.PullRowParams{RepositoryID: repo.ID, Number: int32(pr.Number)})
	if err != nil && !storage.IsMissing(err) {
		return out, fmt.Errorf("read what is known of pull request %d: %w", pr.Number, err)
	}
	out.Since = row.BaseSince.Time
	reviews, err := gh.Reviews(ctx, repo, pr.Number)
	if err != nil {
		return out, fmt.Errorf("read the reviews of pull request %d: %w", pr.Number, err)
	}
	may := map[int64]bool{}
	for _, r := range reviews {
		if _, asked := may[r.UserID]; !asked {
			decision, err := d.o.Decide(ctx, installation, repo, policy.Actor{ID: r.UserID, Login: r.Login, Bot: r.Bot}, policy.NeedWrite)
			if err != nil {
				return out, fmt.Errorf("ask what %s may do: %w", r.Login, err)
			}
			may[r.UserID] = decision.Allow
		}
		out.Reviews = append(out.Reviews, policy.Review{
			User: r.UserID, Login: r.Login, Bot: r.Bot, State: r.State, Commit: r.CommitID, Submitted: r.Created, Write: may[r.UserID],
		})
	}
	return out, nil
}

// pushers are the people who pushed on top of what sessions did. Where not each
// push was told of, GitHub is asked who made it, and what it says is kept; what
// it does not say either is unknown.
func (d *Desk) pushers(ctx context.Context, gh GitHub, repo github.Repo, pr github.PullRequest, sessions []storage.Session) (people []int64, unknown bool, err error) {
	own, err := d.own(ctx, repo, pr, sessions)
	if err != nil {
		return nil, false, err
	}
	for asked := false; ; asked = true {
		events, err := fate.Events(ctx, d.o.DB.Q(), repo.ID, pr.Number)
		if err != nil {
			return nil, false, err
		}
		var pushes []policy.Pushed
		for _, e := range events {
			if e.Kind == measure.Push {
				pushes = append(pushes, policy.Pushed{Before: e.Before, After: e.SHA, User: e.Actor, Bot: e.Bot})
			}
		}
		people, complete := policy.Pushers(pr.HeadSHA, own, pushes)
		if complete || asked {
			return people, !complete, nil
		}
		moves, err := gh.Moves(ctx, repo, pr.HeadRef)
		switch {
		case errors.Is(err, github.ErrNotFound), errors.Is(err, github.ErrDenied), errors.Is(err, github.ErrInvalid): // it does not tell us
			return people, true, nil
		case err != nil:
			return nil, false, fmt.Errorf("ask who pushed to %s: %w", pr.HeadRef, err)
		}
		var more []measure.Event
		for _, m := range moves {
			more = append(more, fate.Pushed(m.Before, m.After, m.Actor.ID, m.Actor.Login, m.Actor.Bot, m.At))
		}
		if err := d.o.Fates.Saw(ctx, repo, fate.Pull{Number: pr.Number, HeadRef: pr.HeadRef, HeadSHA: pr.HeadSHA}, more...); err != nil {
			return nil, false, err
		}
	}
}

// own are the commits that sessions pushed onto the head of a pull request, each
// with what it stands on, if that is not theirs and matters too: on a branch of
// ours everything does.
func (d *Desk) own(ctx context.Context, repo github.Repo, pr github.PullRequest, sessions []storage.Session) (map[string]string, error) {
	row, err := d.o.DB.Q().BranchByName(ctx, storage.BranchByNameParams{RepositoryID: repo.ID, Name: pr.HeadRef})
	if err != nil && !storage.IsMissing(err) {
		return nil, fmt.Errorf("look for the branch %s: %w", pr.HeadRef, err)
	}
	ours := err == nil
	own := map[string]string{}
	if ours {
		own[row.LastSha], own[row.PushingSha] = "", ""
	}
	for _, s := range sessions {
		if own[s.HeadSha] = ""; ours && s.Deliver == scheduler.DeliverHead {
			own[s.HeadSha] = s.BaseSha
		}
	}
	delete(own, "")
	return own, nil
}

// nobodys answers for a pull request that needs no second person, where the
// rules of its base would have it wait for one.
func (d *Desk) nobodys(ctx context.Context, gh GitHub, repo github.Repo, pr github.PullRequest, ours bool) error {
	required, err := d.required(ctx, gh, repo, pr.BaseRef)
	if err != nil || !required {
		return err
	}
	words := "No session of Inspect had a hand in this pull request."
	if ours {
		words = "Neither the repository nor whoever runs Inspect asks for four eyes (`publish.four_eyes`)."
	}
	return d.say(ctx, gh, check{repo: repo, pull: pr.Number, head: pr.HeadSHA, conclusion: render.Success, title: "Not needed", words: words})
}

// required says whether a ruleset wants our check on a branch.
func (d *Desk) required(ctx context.Context, gh GitHub, repo github.Repo, branch string) (bool, error) {
	rules, err := gh.BranchRules(ctx, repo, branch)
	switch {
	case errors.Is(err, github.ErrDenied), errors.Is(err, github.ErrNotFound): // plans without rulesets
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the rules for %s: %w", branch, err)
	}
	for _, r := range rules {
		var p struct {
			Checks []struct {
				Context string `json:"context"`
			} `json:"required_status_checks"`
		}
		if r.Type != "required_status_checks" || json.Unmarshal(r.Parameters, &p) != nil {
			continue
		}
		for _, c := range p.Checks {
			if c.Context == Name {
				return true, nil
			}
		}
	}
	return false, nil
}

var groupMember = regexp.MustCompile(`/pr-([1-9][0-9]{0,8})-[0-9a-f]{40,64}$`)

// MergeGroup answers for a group of a merge queue: whatever is in it had its
// review before it could come in, and the queue waits for the check once more.
func (d *Desk) MergeGroup(ctx context.Context, installation int64, repo github.Repo, headSHA, headRef, baseRef string) error {
	gh, branch := d.o.GitHub(installation), strings.TrimPrefix(baseRef, "refs/heads/")
	wanted, err := d.required(ctx, gh, repo, branch)
	if err != nil {
		return err
	}
	words := "Each pull request of the group had its review before it came into the queue."
	if m := groupMember.FindStringSubmatch(headRef); m != nil {
		number, _ := strconv.Atoi(m[1])
		words = fmt.Sprintf("Pull request %d had its review before it came into the queue.", number)
		if !wanted { // branch protection of the old kind may want it, which rules do not show
			sessions, err := d.sessions(ctx, repo, github.PullRequest{Number: number})
			if err != nil {
				return err
			}
			if wanted, err = d.wanted(ctx, repo, sessions); err != nil {
				return err
			}
		}
	}
	if !wanted {
		return nil
	}
	release, err := d.turns.Take(ctx, fmt.Sprintf("%d/0/%s", repo.ID, headSHA))
	if err != nil {
		return err
	}
	defer release()
	return d.say(ctx, gh, check{repo: repo, head: headSHA, conclusion: render.Success, title: reviewedBefore, words: words})
}

// GroupAgain says for a merge group what was said of it before, in another run.
func (d *Desk) GroupAgain(ctx context.Context, installation int64, repo github.Repo, headSHA string) error {
	release, err := d.turns.Take(ctx, fmt.Sprintf("%d/0/%s", repo.ID, headSHA))
	if err != nil {
		return err
	}
	defer release()
	last, err := d.o.DB.Q().LastReview(ctx, storage.LastReviewParams{RepositoryID: repo.ID, HeadSha: headSHA})
	if err != nil {
		return fmt.Errorf("read about the review of %.12s: %w", headSHA, err)
	}
	return d.say(ctx, d.o.GitHub(installation), check{repo: repo, head: headSHA, conclusion: render.Success, title: reviewedBefore, words: last.Words})
}

const reviewedBefore = "Reviewed before"

// check is a run as it should be.
type check struct {
	repo              github.Repo
	pull              int // 0: a merge group
	head, url         string
	conclusion, title string
	words             string // plain text
}

func (c check) run(number int32) github.CheckRun {
	return github.CheckRun{
		Name: Name, HeadSHA: c.head, ExternalID: fmt.Sprintf("review/%d/%d", c.pull, number), DetailsURL: c.url,
		Status: "completed", Conclusion: c.conclusion, Title: c.title, Summary: redact.Neutralise(c.words),
	}
}

// say makes the newest run of a head say what c says. A completed run keeps its
// conclusion: another conclusion is another run, of which GitHub shows the
// newest of the name.
func (d *Desk) say(ctx context.Context, gh GitHub, c check) error {
	q := d.o.DB.Q()
	last, err := q.LastReview(ctx, storage.LastReviewParams{RepositoryID: c.repo.ID, PullRequest: int32(c.pull), HeadSha: c.head})
	fresh := storage.IsMissing(err)
	if err != nil && !fresh {
		return fmt.Errorf("read about the review of %.12s: %w", c.head, err)
	}
	if !fresh && last.CheckRunID == 0 {
		// An earlier try may have made it.
		was := check{c.repo, c.pull, c.head, c.url, last.Conclusion, c.title, last.Words}
		id, found, err := gh.FindCheckRun(ctx, c.repo, c.head, was.run(last.Number).ExternalID)
		if err != nil {
			return fmt.Errorf("look for the review's check run: %w", err)
		}
		if !found && last.Conclusion == c.conclusion {
			return d.create(ctx, gh, c, last.Number)
		}
		if found {
			if err := d.made(ctx, c, last.Number, id, last.Words); err != nil {
				return err
			}
			last.CheckRunID = id
		}
	}
	switch {
	case !fresh && last.Conclusion == c.conclusion && last.Words == c.words:
		return nil
	case !fresh && last.Conclusion == c.conclusion:
		ctx := github.ForSession(ctx, "", fmt.Sprintf("review/%d/%d/%s/%d", c.repo.ID, c.pull, c.head, last.Number))
		if err := gh.UpdateCheckRun(ctx, c.repo, last.CheckRunID, c.run(last.Number)); err != nil {
			return fmt.Errorf("update the review's check run: %w", err)
		}
		return d.made(ctx, c, last.Number, last.CheckRunID, c.words)
	}
	number := last.Number + 1
	if _, err := q.InsertReview(ctx, storage.InsertReviewParams{
		RepositoryID: c.repo.ID, PullRequest: int32(c.pull), HeadSha: c.head, Number: number, Conclusion: c.conclusion, Words: c.words, CreatedAt: d.o.Clock.Now(),
	}); err != nil {
		return fmt.Errorf("record the review of %.12s: %w", c.head, err)
	}
	return d.create(ctx, gh, c, number)
}

func (d *Desk) create(ctx context.Context, gh GitHub, c check, number int32) error {
	run := c.run(number)
	ctx = github.ForSession(ctx, "", fmt.Sprintf("review/%d/%d/%s/%d", c.repo.ID, c.pull, c.head, number))
	id, err := gh.CreateCheckRun(ctx, c.repo, run)
	if errors.Is(err, github.ErrAmbiguous) {
		found := false
		if id, found, err = gh.FindCheckRun(ctx, c.repo, c.head, run.ExternalID); err == nil && !found {
			err = errors.New("GitHub's answer was lost and there is no check run yet")
		}
	}
	if err != nil {
		return fmt.Errorf("create the review's check run: %w", err)
	}
	d.o.Log.Info("an independent review was told", "repository", c.repo.ID, "pull", c.pull, "head", c.head, "conclusion", c.conclusion)
	return d.made(ctx, c, number, id, c.words)
}

func (d *Desk) made(ctx context.Context, c check, number int32, id int64, words string) error {
	err := d.o.DB.Q().SetReview(ctx, storage.SetReviewParams{
		RepositoryID: c.repo.ID, PullRequest: int32(c.pull), HeadSha: c.head, Number: number, CheckRunID: id, Words: words,
	})
	if err != nil {
		return fmt.Errorf("record the review's check run: %w", err)
	}
	return nil
}
