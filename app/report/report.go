package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"inspect/app/github"
	"inspect/app/publish"
	"inspect/app/tally"
	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

// GitHub is what reporting asks of one installation; *github.Client has it.
type GitHub interface {
	CreateComment(ctx context.Context, repo github.Repo, issue int, body string) (int64, error)
	EditComment(ctx context.Context, repo github.Repo, id int64, body string) error
	FindComment(ctx context.Context, repo github.Repo, issue int, marker string) (id int64, found bool, err error)
	CreateCheckRun(ctx context.Context, repo github.Repo, run github.CheckRun) (int64, error)
	UpdateCheckRun(ctx context.Context, repo github.Repo, id int64, run github.CheckRun) error
	FindCheckRun(ctx context.Context, repo github.Repo, sha, externalID string) (id int64, found bool, err error)
	CountAnnotations(ctx context.Context, repo github.Repo, sha, externalID string) (int, error)
	Annotate(ctx context.Context, repo github.Repo, id int64, run github.CheckRun) error
}

// Evidence keeps and reads the evidence of a session; *publish.Publisher has it.
type Evidence interface {
	Keep(ctx context.Context, s storage.Session) (publish.Kept, error)
	Kept(ctx context.Context, session, digest string) (publish.Kept, error)
	Provenance(ctx context.Context, s storage.Session) (publish.Provenance, error)
}

// Options of a Reporter.
type Options struct {
	DB       *storage.DB
	GitHub   func(installation int64) GitHub
	Evidence Evidence
	// SessionURL is the address of a session's page; nil: none is written.
	SessionURL func(session string) string
	// RepositoryURL is where people see a repository; nil: the check run is not linked.
	RepositoryURL func(github.Repo) string
	// Redactor takes secrets out before text is escaped: afterwards the funnel
	// would not see them. nil: patterns only.
	Redactor *redact.Redactor
	Clock    proc.Clock   // nil: the machine's
	Log      *slog.Logger // nil: slog.Default()
}

// Reporter writes comments and check runs. It is safe for concurrent use; one
// session is worked on by one caller at a time.
type Reporter struct {
	db         *storage.DB
	github     func(int64) GitHub
	evidence   Evidence
	sessionURL func(string) string
	repository func(github.Repo) string
	redactor   *redact.Redactor
	clock      proc.Clock
	log        *slog.Logger
	steps      *publish.Steps
	turns      publish.Turns
}

// New checks the options.
func New(o Options) (*Reporter, error) {
	if o.DB == nil || o.GitHub == nil || o.Evidence == nil {
		return nil, errors.New("report: an option that is needed is missing")
	}
	r := &Reporter{
		db: o.DB, github: o.GitHub, evidence: o.Evidence, sessionURL: o.SessionURL, repository: o.RepositoryURL, redactor: o.Redactor, clock: o.Clock, log: o.Log,
	}
	if r.sessionURL == nil {
		r.sessionURL = func(string) string { return "" }
	}
	if r.redactor == nil {
		r.redactor = redact.New()
	}
	if r.clock == nil {
		r.clock = proc.System()
	}
	if r.log == nil {
		r.log = slog.Default()
	}
	r.steps = &publish.Steps{DB: o.DB, Clock: r.clock}
	return r, nil
}

// story is all that is known of a session when it is reported.
type story struct {
	session    storage.Session
	spec       spec.Spec
	outcome    wire.Outcome
	receipt    *scheduler.Receipt
	ended      bool
	kept       *publish.Kept // of an end only, nil if there is no evidence
	provenance publish.Provenance
	last       string         // what the agent or verification did last, while it goes on
	model      evidence.Model // what the model calls came to so far
	signs      bool           // its commit is made by GitHub, as far as is known
	waiting    int            // sessions in the queue, while this one is
	pending    []storage.Approval
	allowed    []storage.Approval
	builds     builds
	repo       github.Repo
	github     GitHub

	installation int64
}

// Report brings the session's comment and, at its end, its check run up to
// date. It may be called at any time and as often as one likes.
func (r *Reporter) Report(ctx context.Context, s storage.Session) error {
	release, err := r.turns.Take(ctx, s.ID)
	if err != nil {
		return err
	}
	defer release()
	st, open, err := r.read(ctx, s.ID)
	if err != nil || !open {
		return err
	}
	var keepErr error
	if st.ended {
		// The evidence may fail without keeping people from being told.
		if keepErr = r.keep(ctx, st); keepErr != nil {
			keepErr = fmt.Errorf("keep the evidence of session %s: %w", s.ID, keepErr)
		}
	}
	checkErr := errors.Join(r.headCheck(ctx, st), r.askingRun(ctx, st, askedOn(st.session)), r.answeredRuns(ctx, st), r.checkRun(ctx, st))
	commentErr := r.comment(ctx, st)
	if errors.Is(checkErr, github.ErrSuspended) || errors.Is(commentErr, github.ErrSuspended) { // told again when it is lifted
		if err := r.db.Q().SuspendInstallation(ctx, st.installation); err != nil {
			return fmt.Errorf("record that installation %d is suspended: %w", st.installation, err)
		}
	}
	return publish.Again(errors.Join(keepErr, quiet(checkErr), quiet(commentErr)))
}

// quiet takes away the errors of a GitHub that does not want to hear from us
// any more: there is nothing to repeat.
func quiet(err error) error {
	if errors.Is(err, github.ErrGone) || errors.Is(err, github.ErrSuspended) {
		return nil
	}
	return err
}

// read gathers the story. open is false where nothing may be written any more.
func (r *Reporter) read(ctx context.Context, session string) (st *story, open bool, err error) {
	s, err := r.db.Q().PublishSession(ctx, session)
	if err != nil {
		return nil, false, fmt.Errorf("look up session %s: %w", session, err)
	}
	place, err := r.db.Q().PublishPlace(ctx, s.RepositoryID)
	if err != nil {
		return nil, false, fmt.Errorf("look up the repository of session %s: %w", session, err)
	}
	st = &story{session: s, ended: scheduler.Terminal(s.State)}
	if err := json.Unmarshal(s.Spec, &st.spec); err != nil {
		return nil, false, fmt.Errorf("read the pinned configuration of session %s: %w", session, err)
	}
	if s.Outcome.Valid {
		if err := json.Unmarshal(s.Outcome.RawMessage, &st.outcome); err != nil {
			return nil, false, fmt.Errorf("read the outcome of session %s: %w", session, err)
		}
	}
	if s.Receipt.Valid {
		st.receipt = &scheduler.Receipt{}
		if err := json.Unmarshal(s.Receipt.RawMessage, st.receipt); err != nil {
			return nil, false, fmt.Errorf("read the receipt of session %s: %w", session, err)
		}
	}
	if st.provenance, err = r.evidence.Provenance(ctx, s); err != nil {
		return nil, false, err
	}
	if st.model, err = tally.Model(ctx, r.db.Q(), s, st.spec); err != nil {
		return nil, false, err
	}
	if s.State == scheduler.Queued {
		n, err := r.db.Q().QueueLength(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("count the queue: %w", err)
		}
		st.waiting = int(n)
	}
	if s.State == scheduler.Working || s.State == scheduler.Verifying {
		if st.last, err = tally.LastAction(ctx, r.db.Q(), s); err != nil {
			return nil, false, err
		}
	}
	if st.ended {
		st.allowed, err = scheduler.AllowedTo(ctx, r.db.Q(), session)
	} else {
		st.pending, err = scheduler.Approvals(ctx, r.db.Q(), session)
	}
	if err != nil {
		return nil, false, err
	}
	if st.builds, err = r.readBuilds(ctx, s, st.spec); err != nil {
		return nil, false, err
	}
	st.repo = github.Repo{ID: place.ID, Owner: place.Owner, Name: place.Name}
	st.github, st.installation = r.github(place.InstallationID), place.InstallationID
	open = !place.RemovedAt.Valid && !place.SuspendedAt.Valid && !place.DeletedAt.Valid
	return st, open, nil
}

// keep sees to it that the evidence of an ended session is there.
func (r *Reporter) keep(ctx context.Context, st *story) error {
	if st.session.Generation == 0 {
		return nil // it never ran
	}
	var kept publish.Kept
	var err error
	if st.session.State == scheduler.Delivered && st.receipt != nil {
		kept, err = r.evidence.Kept(ctx, st.session.ID, st.receipt.Evidence)
	} else {
		kept, err = r.evidence.Keep(ctx, st.session)
	}
	if err != nil {
		return err
	}
	st.kept = &kept
	return nil
}
