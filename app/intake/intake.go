package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"inspect/app/approve"
	"inspect/app/authority"
	"inspect/app/doctor"
	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/buildkite"
	"inspect/checks/redact"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// GitHub is what the intake asks of one installation.
type GitHub interface {
	authority.GitHub
	Repository(ctx context.Context, id int64) (github.RepoInfo, error)
	BranchHead(ctx context.Context, repo github.Repo, branch string) (string, error)
	File(ctx context.Context, repo github.Repo, path, ref string) ([]byte, error)
	RootFiles(ctx context.Context, repo github.Repo, ref string) ([]string, error)
	PullRequest(ctx context.Context, repo github.Repo, number int) (github.PullRequest, error)
	CommitTime(ctx context.Context, repo github.Repo, sha string) (time.Time, error)
	Protected(ctx context.Context, repo github.Repo, branch string) (bool, error)
	Reviews(ctx context.Context, repo github.Repo, pull int) ([]github.Review, error)
	ReviewComments(ctx context.Context, repo github.Repo, pull int) ([]github.ReviewComment, error)
	Threads(ctx context.Context, repo github.Repo, pull int) (github.Threads, error)
	FailedChecks(ctx context.Context, repo github.Repo, sha string) ([]github.FailedCheck, error)
	JobLog(ctx context.Context, repo github.Repo, job int64, n int) (string, error)
	ReactReviewComment(ctx context.Context, repo github.Repo, comment int64, content string) error
	ReactIssue(ctx context.Context, repo github.Repo, issue int, content string) error
	ReactComment(ctx context.Context, repo github.Repo, comment int64, content string) error
	Comments(ctx context.Context, repo github.Repo, issue int) ([]github.Comment, error)
	CreateComment(ctx context.Context, repo github.Repo, issue int, body string) (int64, error)
	FindComment(ctx context.Context, repo github.Repo, issue int, marker string) (id int64, found bool, err error)
	Issue(ctx context.Context, repo github.Repo, number int) (github.Issue, error)
	doctor.GitHub
}

// Builds is what the intake asks of Buildkite; *buildkite.Client has it. Names of
// organizations and pipelines are slugs.
type Builds interface {
	Build(ctx context.Context, org, pipeline string, number int) (buildkite.Build, error)
	LogTail(ctx context.Context, org, pipeline string, number int, job string, most int) (buildkite.Log, error)
	Annotations(ctx context.Context, org, pipeline string, number int) ([]buildkite.Annotation, error)
	Artifacts(ctx context.Context, org, pipeline string, number int, job string) ([]buildkite.Artifact, error)
	Artifact(ctx context.Context, org, pipeline string, number int, a buildkite.Artifact, most int64) ([]byte, error)
}

// Sessions is what the intake asks of the scheduler.
type Sessions interface {
	EnsureEnvironment(ctx context.Context, tx *storage.Tx, repositoryID int64, sp spec.Spec, branch, commit string) (string, error)
	Prepare(ctx context.Context, tx *storage.Tx, h scheduler.Head) error
	Pushed(ctx context.Context, tx *storage.Tx, repositoryID int64) error
	Create(ctx context.Context, tx *storage.Tx, n scheduler.NewSession) (storage.Session, error)
	InsertReconcile(ctx context.Context, tx *storage.Tx, session string) error
	InsertDelivery(ctx context.Context, tx *storage.Tx, guid string) error
	Stop(ctx context.Context, session, who, words string) error
	approve.Sessions
	Supersede(ctx context.Context, session, reason, words string) error
	Ask(ctx context.Context, tx *storage.Tx, session string, p scheduler.Prompt) (bool, error)
	Note(ctx context.Context, session, words string) error
}

var (
	_ GitHub   = (*github.Client)(nil)
	_ Builds   = (*buildkite.Client)(nil)
	_ Sessions = (*scheduler.Scheduler)(nil)
)

// Options of an Intake.
type Options struct {
	DB       *storage.DB
	Sessions Sessions
	// GitHub returns the client of an installation.
	GitHub func(installation int64) GitHub
	// AppID is ours: what was done through it is our own echo.
	AppID int64
	// AllowedApps are the numbers of Apps whose bots may ask for work; by default
	// none.
	AllowedApps []int64
	// Labels an operator lets start sessions; the repository's own
	// triggers.labels must name the label too. Empty means "inspect".
	Labels []string
	// Harness works where a repository's file names none.
	Harness spec.Harness
	// Models says whether a kind of harness can work with a model, and which
	// one that is; "" asks for the default. The error is for people. nil: there
	// are no models.
	Models func(kind, model string) (string, error)
	// Floor says what binds a repository, or false if it may not use Inspect. It
	// is asked each time. nil: no operator's policy.
	Floor func(repositoryID int64, ownerName string) (policy.Bounds, bool)
	// Pipelines says what the operator's policy has of a pipeline of Buildkite, and
	// PipelineByID the same by its own id, for what a webhook tells that Buildkite
	// signed. nil: no pipeline may ask for anything.
	Pipelines    func(policy.PipelineID) (policy.Pipeline, bool)
	PipelineByID func(pipeline string) (policy.Pipeline, bool)
	// Builds asks Buildkite. nil: there is no access token, so nothing is known of
	// builds but what a token says.
	Builds Builds
	// CloneURL is a repository's address, to find the one that a pipeline builds.
	CloneURL func(github.Repo) string
	// Prepare is how many repositories of one installation event get their
	// environments prepared before anybody asks; 0 means none.
	Prepare int
	// Redactor takes secrets out of what people wrote. nil: patterns only.
	Redactor *redact.Redactor
	// Snapshots tells a doctor which there are. nil: it says nothing of them.
	Snapshots Snapshots
	// Reviews keeps the check run about independent reviews. nil: there is none.
	Reviews Reviews
	// Fates follows pull requests. nil: nobody does.
	Fates Fates
	// SessionURL is the address of a session's page.
	SessionURL func(session string) string
	Log        *slog.Logger
}

// Intake works on deliveries. It has no goroutines of its own; its methods may
// be called from several at once.
type Intake struct {
	o         Options
	authority authority.Judge
	now       func() time.Time
	log       *slog.Logger
}

// New checks the options.
func New(o Options) (*Intake, error) {
	if o.DB == nil || o.Sessions == nil || o.GitHub == nil {
		return nil, errors.New("the intake needs a database, a scheduler and GitHub")
	}
	if len(o.Labels) == 0 {
		o.Labels = spec.Default().Triggers.Labels
	}
	if o.SessionURL == nil {
		o.SessionURL = func(string) string { return "" }
	}
	if o.Floor == nil {
		o.Floor = policy.Floor{}.For
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Intake{o: o, authority: authority.Judge{OwnAppID: o.AppID, AllowedApps: o.AllowedApps, Pipelines: o.Pipelines}, now: time.Now, log: o.Log}, nil
}

// Statuses a delivery ends with.
const (
	done        = "done"
	ignored     = "ignored"
	undecodable = "undecodable"
)

// result is how a delivery ended, with words for the record.
type result struct{ status, note string }

func ignore(format string, args ...any) (result, error) {
	return result{ignored, fmt.Sprintf(format, args...)}, nil
}

// Events that have a handler, for the webhook.
func Events() []string {
	return []string{
		"check_run", "check_suite", "installation", "installation_repositories", "issue_comment", "issues", "merge_group", "ping", "pull_request", "pull_request_review",
		"pull_request_review_comment", "push", "repository",
	}
}

// Deliver works on a stored delivery. A nil error means that it is finished
// and must not be worked on again. An error that wraps scheduler.ErrPermanent
// cannot be helped by trying again; any other can, not before the time that a
// scheduler.RetryAt in it names.
func (in *Intake) Deliver(ctx context.Context, guid string) error {
	d, err := in.o.DB.Q().DeliveryByGUID(ctx, guid)
	if storage.IsMissing(err) {
		return fmt.Errorf("there is no delivery %s: %w", guid, scheduler.ErrPermanent)
	}
	if err != nil {
		return fmt.Errorf("reading delivery %s: %w", guid, err)
	}
	if d.Status != "pending" {
		return nil
	}
	if d.Event == BuildEvent {
		r, err := in.built(ctx, d)
		if err != nil {
			return later(fmt.Errorf("delivery %s (%s): %w", guid, d.Action, err))
		}
		return in.finish(ctx, guid, r)
	}
	var p payload
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		in.log.Warn("a delivery cannot be read", "guid", guid, "event", d.Event, "error", err)
		return in.finish(ctx, guid, result{undecodable, "the payload cannot be read: " + unreadable(err)})
	}
	p.redact(in.o.Redactor)
	r, err := in.handle(ctx, d, p)
	if err != nil {
		return later(fmt.Errorf("delivery %s (%s): %w", guid, d.Event, err))
	}
	return in.finish(ctx, guid, r)
}

func (in *Intake) handle(ctx context.Context, d storage.Delivery, p payload) (result, error) {
	// Here and nowhere else: what we wrote is read by nobody, whatever event tells of it.
	if in.o.AppID != 0 && (p.Comment.app() == in.o.AppID || p.Review.app() == in.o.AppID) {
		return ignore("our own words")
	}
	switch d.Event {
	case "ping":
		return in.ping(p)
	case "installation":
		return in.installation(ctx, p)
	case "installation_repositories":
		return in.installationRepositories(ctx, p)
	case "push":
		return in.push(ctx, p)
	case "pull_request":
		return in.pullRequest(ctx, d.Guid, p)
	case "pull_request_review":
		return in.pullRequestReview(ctx, d.Guid, p)
	case "pull_request_review_comment":
		return in.pullRequestReviewComment(ctx, d.Guid, p)
	case "repository":
		return in.repositoryEvent(ctx, p)
	case "merge_group":
		return in.mergeGroup(ctx, p)
	case "issues":
		return in.issues(ctx, d.Guid, p)
	case "issue_comment":
		return in.issueComment(ctx, d.Guid, p)
	case "check_suite":
		return in.checkSuite(ctx, d.Guid, d.ReceivedAt, p)
	case pageEvent:
		return in.page(ctx, d.Guid, d.ReceivedAt, p)
	case stepEvent:
		return in.step(ctx, d.Guid, d.ReceivedAt, p)
	case "check_run":
		return in.checkRun(ctx, d.Guid, d.ReceivedAt, p)
	}
	return result{"unknown", "no handler for this event"}, nil
}

func (in *Intake) finish(ctx context.Context, guid string, r result) error {
	err := in.o.DB.Q().FinishDelivery(ctx, storage.FinishDeliveryParams{Guid: guid, Status: r.status, Note: storable(r.note, 1000)})
	if err != nil {
		return fmt.Errorf("finishing delivery %s: %w", guid, err)
	}
	return nil
}

// storable is s as a text column takes it, at most n bytes.
func storable(s string, n int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// unreadable says in words why JSON could not be decoded.
func unreadable(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Sprintf("%q is a %s", kind.Field, kind.Value)
	}
	return err.Error()
}
