package publish

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"inspect/app/authority"
	"inspect/app/doctor"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/app/terms"
	"inspect/checks/evidence"
	"inspect/checks/leaks"
	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// GitHub is what publishing asks of one installation; *github.Client has it.
type GitHub interface {
	authority.GitHub
	doctor.Rules
	terms.GitHub
	Ref(ctx context.Context, repo github.Repo, ref string) (string, error)
	PullRequest(ctx context.Context, repo github.Repo, number int) (github.PullRequest, error)
	Protected(ctx context.Context, repo github.Repo, branch string) (bool, error)
	FindPullRequest(ctx context.Context, repo github.Repo, headBranch string) (github.PullRequest, bool, error)
	CreatePullRequest(ctx context.Context, repo github.Repo, n github.NewPullRequest) (github.PullRequest, error)
	PushToken(ctx context.Context, repositoryID int64) (wire.GitToken, error)
	RevokeToken(ctx context.Context, token wire.GitToken)
	SignedCommit(ctx context.Context, repo github.Repo, token wire.GitToken, n github.NewCommit) (github.MadeCommit, error)
	PutBranch(ctx context.Context, repo github.Repo, token wire.GitToken, branch, from, sha string) error
	RequestReviewers(ctx context.Context, repo github.Repo, number int, people, teams []string) error
	Reviewers(ctx context.Context, repo github.Repo, number int) (people, teams []string, err error)
}

// Blobs is what publishing needs of the store of evidence; *storage.Blobs has it.
type Blobs interface {
	Put(ctx context.Context, session string, r io.Reader, limit int64) (sum string, n int64, err error)
	Get(ctx context.Context, session, sum string) (io.ReadCloser, error)
	Size(ctx context.Context, session, sum string) (int64, error)
}

// Options of a Publisher.
type Options struct {
	DB    *storage.DB
	Blobs Blobs
	// GitHub gives the client of an installation.
	GitHub func(installation int64) GitHub
	// Authority says whether a session's requester may still write.
	Authority authority.Judge
	// CloneURL is where a repository is pushed to, without credentials.
	CloneURL func(github.Repo) string
	// Bot is the account commits are made by; unused where there is no forge.
	Bot func(context.Context) (github.Bot, error)
	// NoForge: results go to bare repositories of this machine, whose clone
	// addresses are file:// ones. There are no tokens and no pull requests, and
	// commits name no account.
	NoForge bool
	// Quarantine runs git over hostile data.
	Quarantine Quarantine
	// Mirrors is the directory of the bare mirrors, <repository id>.git each.
	Mirrors string
	// Fetch asks for a commit to be brought into a repository's mirror. It may
	// return before that is done; ref holds it if no branch does. nil: a missing
	// base is only reported.
	Fetch func(ctx context.Context, repositoryID int64, branch, ref, commit string) error
	// WorkDir holds quarantines and repositories while they are worked on. It is
	// emptied of older ones, and made if it is not there. The sandbox's account must
	// be able to pass through it and its parents (mode 0711, or 0710 and its group).
	WorkDir string
	// Floor says what binds a repository, or false if it may not use Inspect. It
	// is asked at each push, so that what was tightened since the session began
	// counts. nil: no operator's policy.
	Floor func(repositoryID int64, ownerName string) (policy.Bounds, bool)
	// SessionURL is the address of a session's page; nil: none is written.
	SessionURL func(session string) string
	// PricesAsOf is the date of the table that model calls are priced by.
	PricesAsOf string
	// Record adds a push to the session's record; what it refuses is not pushed.
	// nil: pushes are not recorded.
	Record func(ctx context.Context, session string, w github.Write) error
	// PushEnv is added to the environment of git push: proxies, CA files.
	PushEnv  []string
	Redactor *redact.Redactor // nil: patterns only
	Clock    proc.Clock       // nil: the machine's
	Log      *slog.Logger     // nil: slog.Default()
}

// Publisher publishes results and keeps their evidence. It is safe for
// concurrent use; one session is worked on by one caller at a time.
type Publisher struct {
	db         *storage.DB
	blobs      Blobs
	github     func(int64) GitHub
	authority  authority.Judge
	cloneURL   func(github.Repo) string
	bot        func(context.Context) (github.Bot, error)
	noForge    bool
	quarantine Quarantine
	mirrors    string
	fetch      func(context.Context, int64, string, string, string) error
	workDir    string
	floor      func(int64, string) (policy.Bounds, bool)
	sessionURL func(string) string
	pricesAsOf string
	record     func(context.Context, string, github.Write) error
	pushEnv    []string
	redactor   *redact.Redactor
	leaks      *leaks.Finder
	clock      proc.Clock
	log        *slog.Logger
	steps      *Steps
	turns      Turns
	unpacking  chan struct{} // one place: who has it holds pictures in memory
}

// workPrefix names the directories of WorkDir that are ours.
const workPrefix = "publish-"

// New checks the options and clears what an earlier process left in WorkDir.
func New(o Options) (*Publisher, error) {
	if o.DB == nil || o.Blobs == nil || o.GitHub == nil || o.CloneURL == nil || o.Bot == nil && !o.NoForge || o.Quarantine == nil || o.Mirrors == "" || o.WorkDir == "" {
		return nil, errors.New("publish: an option that is needed is missing")
	}
	p := &Publisher{
		db: o.DB, blobs: o.Blobs, github: o.GitHub, authority: o.Authority, cloneURL: o.CloneURL, bot: o.Bot, noForge: o.NoForge, quarantine: o.Quarantine,
		mirrors: o.Mirrors, fetch: o.Fetch, workDir: o.WorkDir, floor: o.Floor, sessionURL: o.SessionURL, pricesAsOf: o.PricesAsOf, record: o.Record, pushEnv: o.PushEnv,
		redactor: orEmpty(o.Redactor), clock: o.Clock, log: o.Log, unpacking: make(chan struct{}, 1),
	}
	if p.clock == nil {
		p.clock = proc.System()
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	if p.floor == nil {
		p.floor = policy.Floor{}.For
	}
	if p.sessionURL == nil {
		p.sessionURL = func(string) string { return "" }
	}
	if p.record == nil {
		p.record = func(context.Context, string, github.Write) error { return nil }
	}
	p.steps = &Steps{DB: o.DB, Clock: p.clock}
	var err error
	if p.leaks, err = leaks.New(p.redactor); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.workDir, 0o711); err != nil {
		return nil, fmt.Errorf("make the directory to publish from: %w", err)
	}
	old, err := os.ReadDir(p.workDir)
	if err != nil {
		return nil, fmt.Errorf("look into the directory to publish from: %w", err)
	}
	for _, e := range old {
		if strings.HasPrefix(e.Name(), workPrefix) {
			p.remove(filepath.Join(p.workDir, e.Name()))
		}
	}
	return p, nil
}

// job is one session being published, with what is known of it.
type job struct {
	session storage.Session
	spec    spec.Spec
	outcome wire.Outcome
	place   storage.PublishPlaceRow
	repo    github.Repo
	github  GitHub
	// redactor also knows what a finding of this session held.
	redactor *redact.Redactor
	bounds   policy.Bounds // of the floor, as it is now
	publish  spec.Publish  // the stricter of the pinned one and the repository's, as it is now
	allowed  bool          // to use Inspect, by the floor

	dir     string // of this try, in WorkDir
	mirror  string
	cell    *cell
	trusted *trusted
	im      Imported
	shown   evidence.Judgement // what verification showed
	verdict policy.Verdict
	signed  bool // the commit is one that GitHub made
	// searched: all that the bundle holds was searched for secrets. Of one that was
	// refused, that is too large or that holds commits in between, not all was.
	searched bool
}

// Publish judges the session's bundle, pushes it and, if there is a forge,
// finds or creates the draft pull request. It is idempotent: whatever an
// earlier try did is found again.
func (p *Publisher) Publish(ctx context.Context, s storage.Session) (scheduler.Published, error) {
	release, err := p.turns.Take(ctx, s.ID)
	if err != nil {
		return scheduler.Published{}, err
	}
	defer release()
	receipt, err := p.publish(ctx, s.ID)
	if err != nil {
		return settle(err)
	}
	return scheduler.Published{Receipt: &receipt}, nil
}

func (p *Publisher) publish(ctx context.Context, session string) (scheduler.Receipt, error) {
	var none scheduler.Receipt
	j, err := p.job(ctx, session)
	if err != nil {
		return none, err
	}
	if err := j.open(); err != nil {
		return none, err
	}
	live, err := p.stillThere(ctx, j)
	if err != nil {
		return none, err
	}
	if err := p.judgeVerification(ctx, j); err != nil {
		return none, err
	}
	if err := p.readAnew(ctx, j); err != nil {
		return none, err
	}
	defer func() { p.remove(j.dir) }()
	if err := p.begin(ctx, j); err != nil {
		return none, err
	}
	branch, err := p.judgeChange(ctx, j)
	var asks *question
	if errors.As(err, &asks) { // whoever is asked can see what it is about
		if _, err := p.keep(ctx, j); err != nil {
			return none, err
		}
	}
	if err != nil {
		return none, err
	}
	if j.session.Deliver == scheduler.DeliverPatch {
		return none, patchOnly()
	}
	made, err := p.makeCommit(ctx, j)
	if err != nil {
		return none, err
	}
	before, err := p.signedBefore(ctx, j, made.tree)
	if err != nil {
		return none, err
	}
	sign := before != "" && j.session.HeadSha == before
	if j.session.HeadSha != made.head && !sign {
		if sign, err = p.mayPush(ctx, j, branch, made.message); err != nil {
			return none, err
		}
	}
	kept, err := p.keep(ctx, j)
	if err != nil {
		return none, err
	}
	title := subject(j.redactor, j.session)
	body := func(head string) string {
		return pullBody(j.redactor, j.session, kept.Manifest, j.verdict.Risks, receiptHead{head, j.signed}, kept.Digest, p.sessionURL(session))
	}
	if err := p.judgeTexts(branch, made.message.text, title, body(made.head)); err != nil {
		return none, err
	}
	head, err := p.bring(ctx, j, branch, made, sign)
	if err != nil {
		return none, err
	}
	receipt := scheduler.Receipt{
		Branch: branch, HeadSHA: head, Tree: made.tree,
		Evidence: kept.Digest, EventsHead: kept.Manifest.Events.Head, EventsCount: kept.Manifest.Events.Count,
		Withheld: j.verdict.Withheld, Signed: j.signed,
	}
	switch {
	case p.noForge:
		return receipt, nil
	case j.onHead(): // it is there already
		receipt.PullRequest, receipt.URL = live.Number, live.URL
		return receipt, nil
	}
	template, err := p.template(ctx, j)
	if err != nil {
		p.log.Warn("the repository's pull request template could not be read", "session", session, "error", err)
	}
	pr, err := p.pullRequest(ctx, j, github.NewPullRequest{
		Title: title, Body: withTemplate(j.redactor, body(head), template), Head: branch, Base: j.session.BaseBranch, Draft: true,
	})
	if err != nil {
		return none, err
	}
	receipt.PullRequest, receipt.URL = pr.Number, pr.URL
	asked, err := p.askReviewers(ctx, j, pr.Number)
	if err != nil {
		return none, err
	}
	receipt.Reviewers, receipt.Unasked = asked.Asked, asked.Unasked
	return receipt, nil
}

// job reads the session as it is now.
func (p *Publisher) job(ctx context.Context, session string) (*job, error) {
	s, err := p.db.Q().PublishSession(ctx, session)
	if err != nil {
		return nil, fmt.Errorf("look up session %s: %w", session, err)
	}
	j := &job{session: s, redactor: p.redactor, mirror: filepath.Join(p.mirrors, strconv.FormatInt(s.RepositoryID, 10)+".git")}
	if err := json.Unmarshal(s.Spec, &j.spec); err != nil {
		return nil, fmt.Errorf("read the pinned configuration of session %s: %w", session, err)
	}
	if s.Outcome.Valid {
		if err := json.Unmarshal(s.Outcome.RawMessage, &j.outcome); err != nil {
			return nil, fmt.Errorf("read the outcome of session %s: %w", session, err)
		}
	}
	if j.place, err = p.db.Q().PublishPlace(ctx, s.RepositoryID); err != nil {
		return nil, fmt.Errorf("look up the repository of session %s: %w", session, err)
	}
	j.repo = github.Repo{ID: j.place.ID, Owner: j.place.Owner, Name: j.place.Name}
	j.github = p.github(j.place.InstallationID)
	j.publish = j.spec.Publish
	j.bounds, j.allowed = p.floor(j.repo.ID, j.repo.Owner+"/"+j.repo.Name)
	return j, nil
}

// open refuses what the database or the floor already knows to be closed.
func (j *job) open() error {
	switch {
	case j.place.RemovedAt.Valid || j.place.DeletedAt.Valid:
		return refuse(ReasonGone, "The App was removed from the repository; the work is kept, but cannot be pushed.")
	case j.place.SuspendedAt.Valid:
		return refuse(ReasonGone, "The App's installation is suspended; the work is kept, but cannot be pushed.")
	case !j.allowed:
		return &refusal{scheduler.Stopped, ReasonNotAllowed, "Whoever runs Inspect does not allow it for this repository any more; the work is kept, but is not pushed."}
	}
	return nil
}

// begin makes the directories of this try. They are the caller's to remove,
// also after an error.
func (p *Publisher) begin(ctx context.Context, j *job) error {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return fmt.Errorf("make a directory to publish from: %w", err)
	}
	j.dir = filepath.Join(p.workDir, workPrefix+hex.EncodeToString(b[:]))
	for _, d := range []string{"", "q"} {
		full := filepath.Join(j.dir, d)
		if err := os.Mkdir(full, 0o711); err != nil {
			return fmt.Errorf("make a directory to publish from: %w", err)
		}
		if err := os.Chmod(full, 0o711); err != nil { // past the umask
			return fmt.Errorf("make a directory to publish from: %w", err)
		}
	}
	cell, err := newCell(p.quarantine, "quarantine-"+j.session.ID+"-"+hex.EncodeToString(b[:4]), filepath.Join(j.dir, "q"), j.mirror)
	if errors.Is(err, fs.ErrNotExist) {
		return p.baseMissing(ctx, j)
	}
	j.cell = cell
	return err
}

// baseMissing asks for the base commit and is the error that says so.
func (p *Publisher) baseMissing(ctx context.Context, j *job) error {
	if p.fetch == nil {
		return errBaseMissing
	}
	if err := p.fetch(ctx, j.session.RepositoryID, j.session.BaseBranch, j.session.BaseRef, j.session.BaseSha); err != nil {
		return fmt.Errorf("%w, and it could not be asked for: %w", errBaseMissing, err)
	}
	return fmt.Errorf("%w; it was asked for", errBaseMissing)
}

// remove deletes a directory of ours. What cannot be deleted is told, and tried
// again when the program starts.
func (p *Publisher) remove(dir string) {
	if dir == "" {
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		p.log.Warn("a directory of publishing could not be removed", "dir", dir, "error", err)
	}
}

// load imports the bundle with the given digest into the job's cell.
func (p *Publisher) load(ctx context.Context, j *job, sum string, rules policy.Rules) error {
	r, err := p.blobs.Get(ctx, j.session.ID, sum)
	if errors.Is(err, storage.ErrBlobMissing) || errors.Is(err, storage.ErrBlobName) {
		return refuse(scheduler.ReasonNoBundle, "The result was announced, but its bundle was never uploaded.")
	}
	if err != nil {
		return err
	}
	defer r.Close()
	j.im, err = j.cell.importBundle(ctx, r, j.session.BaseSha, rules.MaxBytes)
	if errors.Is(err, errBaseMissing) {
		return p.baseMissing(ctx, j)
	}
	return err
}

// judgeChange imports the result and asks policy about it. It returns the
// branch the result goes to.
func (p *Publisher) judgeChange(ctx context.Context, j *job) (string, error) {
	rules := p.rules(j)
	if err := p.load(ctx, j, j.outcome.Bundle, rules); err != nil {
		return "", err
	}
	if j.im.Tip != j.outcome.Tip || j.im.Tree != j.outcome.Tree {
		return "", refuse(ReasonNotVerified, "The bundle holds %.10s, but what was verified is %.10s.", j.im.Tip, j.outcome.Tip)
	}
	s := j.session
	branch := s.Branch
	switch {
	case j.onHead():
		branch = s.BaseBranch
	case branch == "":
		branch = policy.BranchName(rules.Prefix, int(s.IssueNumber), j.redactor.String(s.Title), s.ID)
	}
	change := j.im.Change
	if change.Branch = branch; s.Deliver != scheduler.DeliverPull {
		change.Branch = "" // what may be pushed to is judged when it is
	}
	for _, d := range j.shown.Verdict.Doubts {
		change.Doubts = append(change.Doubts, policy.Item(d))
	}
	j.judge(change, rules)
	if r := j.verdict.Refusal; r != nil {
		state := scheduler.Failed
		if r.Reason == policy.ReasonNoChange {
			state = scheduler.NoChange
		}
		return "", &refusal{state, r.Reason, j.redactor.String(r.Words)}
	}
	return branch, p.allowed(ctx, j, branch, rules)
}

// judge asks policy about a change, and has what holds secrets taken out of all
// that is kept and told of it.
func (j *job) judge(c policy.Change, rules policy.Rules) {
	j.verdict = policy.Judge(c, rules)
	j.searched = j.im.Commits <= 1 && c.PatchBytes <= rules.MaxBytes
	if len(j.verdict.Secret) > 0 {
		j.redactor = j.redactor.With(j.verdict.Secret...)
	}
}

// judgeTexts looks once more at what would be written beside the files, as it
// would be written.
func (p *Publisher) judgeTexts(branch, message, title, body string) error {
	for _, t := range []struct{ what, text string }{
		{"the branch's name", branch}, {"the commit's message", message}, {"the pull request's title", title}, {"the pull request's text", body},
	} {
		if found := p.leaks.Find("", t.text); len(found) > 0 {
			return refuse(policy.ReasonSecretFound, "What would be published beside the files seems to hold a secret, which is not shown: %s line %d (%s).", t.what, found[0].Line, found[0].Rule)
		}
	}
	return nil
}

// message is a commit message and who it is by.
type message struct {
	text string
	by   Identity
}

// commit is the one commit that is pushed. Where GitHub has to sign it, another
// one of the same tree and message takes the place of head.
type commit struct {
	head, tree string
	message    message
}

// makeCommit makes the commit to push in a fresh trusted repository.
func (p *Publisher) makeCommit(ctx context.Context, j *job) (c commit, err error) {
	by, err := p.author(ctx)
	if err != nil {
		return c, err
	}
	s := j.session
	var signer Identity
	if j.spec.Publish.SignOff {
		signer = by
	}
	c.message = message{text: commitMessage(j.redactor, s, j.im.Messages, p.sessionURL(s.ID), signer), by: by}
	if j.trusted, err = newTrusted(j.dir, j.mirror); err != nil {
		return c, err
	}
	j.trusted.local = p.noForge
	if err = j.trusted.adopt(j.cell.dir, j.im.Pack); err != nil {
		return c, err
	}
	if c.tree, err = j.trusted.tree(ctx, j.im, j.verdict.Withheld); err != nil {
		return c, err
	}
	c.head, err = j.trusted.commit(ctx, c.tree, s.BaseSha, c.message.text, by, s.CreatedAt)
	return c, err
}

// author is who the commit is made by.
func (p *Publisher) author(ctx context.Context) (Identity, error) {
	if p.noForge {
		return Identity{Name: "Inspect", Email: "inspect@localhost"}, nil
	}
	bot, err := p.bot(ctx)
	if err != nil {
		// Whatever GitHub says here, it is not about this session's repository.
		return Identity{}, fmt.Errorf("ask who the App is: %v", err)
	}
	return identity(bot.Login, fmt.Sprintf("%d+%s@users.noreply.github.com", bot.ID, bot.Login)), nil
}
