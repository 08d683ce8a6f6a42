// Package recovery finds what no event told of. GitHub sends each event once and
// never again by itself; one that met a closed door, or was too large to be
// sent, is lost unless somebody asks. On start and every ten minutes failed
// deliveries are asked for again, installations and their repositories are
// compared with what is known, open issues that carry a trigger label and have
// no session are found, the fate of our own pull requests and of those that
// sessions work on is read, and sessions end whose repository is out of reach. What is
// wrong with one installation keeps no other from being looked at.
package recovery

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"inspect/app/fate"
	"inspect/app/github"
	"inspect/app/intake"
	"inspect/app/measure"
	"inspect/envs/proc"
	"inspect/storage"
)

// Every is the time between two looks.
const Every = 10 * time.Minute

// How far back GitHub can be asked for deliveries.
const (
	KeptByGitHub     = 3 * 24 * time.Hour // github.com
	KeptByEnterprise = 7 * 24 * time.Hour // GitHub Enterprise Server
)

// Bounds of one look, so that none uses an installation's rate up. What is left
// has its turn at the next.
const (
	maxRedeliveries = 100
	maxRepositories = 50 // of an installation
	maxPulls        = 50 // of an installation
)

// App is what is asked as the App itself; *github.App has it.
type App interface {
	FailedDeliveries(ctx context.Context, since time.Time) ([]github.FailedDelivery, error)
	Redeliver(ctx context.Context, id int64) error
	Installations(ctx context.Context) ([]github.InstallationInfo, error)
}

// GitHub is what is asked of one installation; *github.Client has it.
type GitHub interface {
	Repositories(ctx context.Context) ([]github.RepoInfo, error)
	OpenLabelled(ctx context.Context, repo github.Repo, label string, since time.Time) ([]github.Labelled, error)
	LastLabelling(ctx context.Context, repo github.Repo, issue int, label string) (github.Labelling, bool, error)
	PullRequest(ctx context.Context, repo github.Repo, number int) (github.PullRequest, error)
}

var (
	_ App    = (*github.App)(nil)
	_ GitHub = (*github.Client)(nil)
)

// Options of a Recovery.
type Options struct {
	DB     *storage.DB
	App    App
	GitHub func(installation int64) GitHub
	// Missed works on a labelling as if its delivery had come.
	Missed func(ctx context.Context, m intake.Missed) error
	// Pull is told of each of our pull requests that is open; nil: nobody asks.
	Pull func(ctx context.Context, installation int64, repo github.Repo, number int) error
	// Working is told of each pull request that a session is at work on; nil:
	// nobody asks.
	Working func(ctx context.Context, installation int64, repo github.Repo, number int) error
	// Unreachable ends a session whose repository the App does not reach any more.
	Unreachable func(ctx context.Context, session string) error
	// Fates follows our pull requests.
	Fates *fate.Desk
	// Labels that may start sessions.
	Labels []string
	// Kept is how long GitHub can be asked for deliveries; zero: KeptByGitHub.
	Kept  time.Duration
	Clock proc.Clock   // nil: the machine's
	Log   *slog.Logger // nil: slog.Default()
}

// Recovery looks for what was lost.
type Recovery struct {
	o Options
}

// New checks the options.
func New(o Options) (*Recovery, error) {
	if o.DB == nil || o.App == nil || o.GitHub == nil || o.Missed == nil || o.Unreachable == nil || o.Fates == nil {
		return nil, errors.New("recovery: an option that is needed is missing")
	}
	if o.Kept == 0 {
		o.Kept = KeptByGitHub
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Recovery{o}, nil
}

// Run looks at once and then every ten minutes, until ctx ends.
func (r *Recovery) Run(ctx context.Context) error {
	for {
		if err := r.Look(ctx); err != nil && ctx.Err() == nil {
			r.o.Log.Warn("not everything that may have been missed could be looked for; the next try is in ten minutes", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.o.Clock.After(Every):
		}
	}
}

// Look looks once. Its errors are those of all parts; each was tried.
func (r *Recovery) Look(ctx context.Context) error {
	err := r.deliveries(ctx)
	installed, listErr := r.installations(ctx)
	err, seen := errors.Join(err, listErr), listErr == nil
	for _, i := range installed {
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		known, one := r.installation(ctx, i)
		if seen = seen && known; one != nil {
			err = errors.Join(err, fmt.Errorf("installation %d of %s: %w", i.ID, i.Account, one))
		}
	}
	if !seen { // where a repository is now
		return err
	}
	return errors.Join(err, r.unreachable(ctx))
}

// wayAway is how long a repository may be on its way from one owner to another.
const wayAway = 5 * time.Minute

// unreachable ends the sessions of repositories that no installation has.
func (r *Recovery) unreachable(ctx context.Context) error {
	lost, err := r.o.DB.Q().SessionsWithoutPlace(ctx, r.o.Clock.Now().Add(-wayAway))
	if err != nil {
		return fmt.Errorf("looking for sessions whose repository is gone: %w", err)
	}
	for _, id := range lost {
		err = errors.Join(err, r.o.Unreachable(ctx, id))
	}
	return err
}

// deliveriesMark names the watermark: everything delivered before it arrived.
const deliveriesMark = "deliveries"

// lag is how much younger than its delivery an entry in GitHub's list may be.
const lag = time.Minute

// deliveries asks again for what did not reach us.
func (r *Recovery) deliveries(ctx context.Context) error {
	q, now := r.o.DB.Q(), r.o.Clock.Now()
	since, err := q.Watermark(ctx, deliveriesMark)
	if err != nil && !storage.IsMissing(err) {
		return fmt.Errorf("reading the watermark: %w", err)
	}
	if kept := now.Add(-r.o.Kept); since.Before(kept) {
		since = kept
	}
	failed, err := r.o.App.FailedDeliveries(ctx, since)
	if err != nil {
		return err
	}
	asked := 0
	mark := now.Add(-lag)
	for i := len(failed) - 1; i >= 0; i-- { // the oldest first: GitHub forgets them first
		d := failed[i]
		known, err := q.DeliveryKnown(ctx, d.GUID)
		if err != nil {
			return fmt.Errorf("looking for a delivery: %w", err)
		}
		if known {
			continue // it was stored, and the answer was lost
		}
		if asked++; asked > maxRedeliveries {
			break
		}
		// It counts as delivered when it is stored, not when it was asked for.
		if d.At.Before(mark) {
			mark = d.At
		}
		if err := r.o.App.Redeliver(ctx, d.ID); errors.Is(err, github.ErrNotFound) || errors.Is(err, github.ErrInvalid) {
			r.o.Log.Warn("a webhook delivery that did not arrive cannot be asked for again", "guid", d.GUID, "event", d.Event, "at", d.At, "error", err)
		} else if err != nil {
			return err
		} else {
			r.o.Log.Info("a webhook delivery that did not arrive was asked for again", "guid", d.GUID, "event", d.Event, "at", d.At)
		}
	}
	if err := q.SetWatermark(ctx, storage.SetWatermarkParams{Name: deliveriesMark, At: mark}); err != nil {
		return fmt.Errorf("writing the watermark: %w", err)
	}
	return nil
}

// installations compares where the App is installed with what is known, and
// returns those that can be worked with.
func (r *Recovery) installations(ctx context.Context) ([]github.InstallationInfo, error) {
	all, err := r.o.App.Installations(ctx)
	if err != nil {
		return nil, err
	}
	q := r.o.DB.Q()
	known, err := q.KnownInstallations(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the installations: %w", err)
	}
	gone := map[int64]bool{}
	for _, id := range known {
		gone[id] = true
	}
	var open []github.InstallationInfo
	for _, i := range all {
		delete(gone, i.ID)
		if err := q.SawInstallation(ctx, storage.SawInstallationParams{ID: i.ID, Account: i.Account}); err != nil {
			return nil, fmt.Errorf("storing installation %d: %w", i.ID, err)
		}
		if i.Suspended {
			err = q.SuspendInstallation(ctx, i.ID)
		} else {
			open = append(open, i)
			err = q.UnsuspendInstallation(ctx, i.ID)
		}
		if err != nil {
			return nil, fmt.Errorf("storing installation %d: %w", i.ID, err)
		}
	}
	for id := range gone {
		err := r.o.DB.InTx(ctx, func(tx *storage.Tx) error {
			return errors.Join(tx.Q().DeleteInstallation(ctx, id), tx.Q().RemoveRepositoriesOf(ctx, id))
		})
		if err != nil {
			return nil, fmt.Errorf("removing installation %d: %w", id, err)
		}
	}
	return open, nil
}

// installation looks at one of them. known: its repositories were seen.
func (r *Recovery) installation(ctx context.Context, i github.InstallationInfo) (known bool, err error) {
	client := r.o.GitHub(i.ID)
	infos, err := client.Repositories(ctx)
	if errors.Is(err, github.ErrSuspended) {
		return true, r.o.DB.Q().SuspendInstallation(ctx, i.ID)
	}
	if err != nil {
		return false, err
	}
	archived, err := r.repositories(ctx, i.ID, infos)
	if err != nil {
		return false, err
	}
	return true, errors.Join(r.issues(ctx, i.ID, client, archived), r.pulls(ctx, i.ID, client), r.working(ctx, i.ID), r.o.Fates.Look(ctx, i.ID))
}

// working has the pull requests looked at that sessions work on: what moved or
// closed them may not have been told.
func (r *Recovery) working(ctx context.Context, installation int64) error {
	if r.o.Working == nil {
		return nil
	}
	rows, err := r.o.DB.Q().PullsWorkedOn(ctx, storage.PullsWorkedOnParams{InstallationID: installation, Most: maxPulls})
	if err != nil {
		return fmt.Errorf("reading the pull requests that are worked on: %w", err)
	}
	var all error
	for _, row := range rows {
		err := r.o.Working(ctx, installation, github.Repo{ID: row.RepositoryID, Owner: row.Owner, Name: row.Name}, int(row.PullNumber))
		all = errors.Join(all, err)
		var limited *github.RateLimited
		if errors.As(err, &limited) || ctx.Err() != nil {
			break // the others would not fare better
		}
	}
	return all
}

// repositories stores what was added, renamed or removed meanwhile, and tells
// which are archived.
func (r *Recovery) repositories(ctx context.Context, installation int64, infos []github.RepoInfo) (archived map[int64]bool, err error) {
	archived = map[int64]bool{}
	err = r.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		known, err := q.KnownRepositories(ctx, installation)
		if err != nil {
			return err
		}
		gone := map[int64]bool{}
		for _, id := range known {
			gone[id] = true
		}
		for _, info := range infos {
			delete(gone, info.Repo.ID)
			archived[info.Repo.ID] = info.Archived
			if err := q.SawRepository(ctx, storage.SawRepositoryParams{
				ID: info.Repo.ID, InstallationID: installation, Owner: info.Repo.Owner, Name: info.Repo.Name, DefaultBranch: info.DefaultBranch,
			}); err != nil {
				return err
			}
		}
		for id := range gone {
			if err := q.RemoveRepository(ctx, storage.RemoveRepositoryParams{ID: id, InstallationID: installation}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("storing the repositories: %w", err)
	}
	return archived, nil
}

// issues finds open issues that carry a trigger label and have no session.
func (r *Recovery) issues(ctx context.Context, installation int64, client GitHub, archived map[int64]bool) error {
	rows, err := r.o.DB.Q().RepositoriesToLookAt(ctx, storage.RepositoriesToLookAtParams{InstallationID: installation, Most: maxRepositories})
	if err != nil {
		return fmt.Errorf("reading the repositories: %w", err)
	}
	var all error
	for _, row := range rows {
		if archived[row.ID] {
			continue
		}
		err := r.labelled(ctx, installation, client, row)
		var limited *github.RateLimited
		if errors.As(err, &limited) || ctx.Err() != nil {
			return errors.Join(all, err) // the others would not fare better
		}
		all = errors.Join(all, err)
	}
	return all
}

// labelled looks at one repository. What is older than GitHub keeps deliveries
// is not taken up: nobody waits for it any more.
func (r *Recovery) labelled(ctx context.Context, installation int64, client GitHub, row storage.Repository) error {
	now := r.o.Clock.Now()
	oldest := now.Add(-r.o.Kept)
	since := oldest
	if seen := row.IssuesSeenAt; seen.Valid && seen.Time.After(since) {
		since = seen.Time.Add(-lag)
	}
	repo := github.Repo{ID: row.ID, Owner: row.Owner, Name: row.Name}
	for _, label := range r.o.Labels {
		issues, err := client.OpenLabelled(ctx, repo, label, since)
		if err != nil {
			return err
		}
		for _, issue := range issues {
			if err := r.missed(ctx, client, intake.Missed{
				Installation: installation, Repo: repo, DefaultBranch: row.DefaultBranch, Label: label, Issue: issue,
			}, oldest); err != nil {
				return fmt.Errorf("issue %d of %s: %w", issue.Number, repo, err)
			}
		}
	}
	// Not now: an event that is under way has its time to arrive.
	return r.o.DB.Q().SetIssuesSeen(ctx, storage.SetIssuesSeenParams{ID: row.ID, IssuesSeenAt: sql.NullTime{Time: now.Add(-lag), Valid: true}})
}

// missed has a labelling worked on, unless it is known.
func (r *Recovery) missed(ctx context.Context, client GitHub, m intake.Missed, oldest time.Time) error {
	q := r.o.DB.Q()
	if _, err := q.OpenSessionOfIssue(ctx, storage.OpenSessionOfIssueParams{RepositoryID: m.Repo.ID, IssueNumber: int32(m.Issue.Number)}); err == nil {
		return nil // it is worked on
	} else if !storage.IsMissing(err) {
		return fmt.Errorf("looking for its session: %w", err)
	}
	last, found, err := client.LastLabelling(ctx, m.Repo, m.Issue.Number, m.Label)
	if err != nil || !found {
		return err
	}
	if last.At.Before(oldest) || last.At.After(r.o.Clock.Now().Add(-lag)) {
		return nil
	}
	known, err := q.LabelKnown(ctx, storage.LabelKnownParams{
		RepositoryID: m.Repo.ID, IssueNumber: int32(m.Issue.Number), Since: last.At.Add(-lag),
	})
	if err != nil {
		return fmt.Errorf("looking for its session: %w", err)
	}
	if known {
		return nil
	}
	r.o.Log.Info("a label that no event told of was found", "repository", m.Repo.String(), "issue", m.Issue.Number, "label", m.Label, "at", last.At)
	m.Labelling = last
	return r.o.Missed(ctx, m)
}

// pulls reads the fate of our own pull requests.
func (r *Recovery) pulls(ctx context.Context, installation int64, client GitHub) error {
	q := r.o.DB.Q()
	rows, err := q.PullsToLookAt(ctx, storage.PullsToLookAtParams{InstallationID: installation, Most: maxPulls})
	if err != nil {
		return fmt.Errorf("reading the open pull requests: %w", err)
	}
	var all error
	for _, row := range rows {
		repo := github.Repo{ID: row.RepositoryID, Owner: row.Owner, Name: row.Name}
		pull, err := client.PullRequest(ctx, repo, int(row.PullRequest))
		var limited *github.RateLimited
		if errors.As(err, &limited) || ctx.Err() != nil {
			return errors.Join(all, err)
		}
		gone := errors.Is(err, github.ErrNotFound) || errors.Is(err, github.ErrGone)
		if err != nil && !gone {
			all = errors.Join(all, err)
			continue
		}
		p := storage.SetPullSeenParams{RepositoryID: row.RepositoryID, PullRequest: row.PullRequest, Now: sql.NullTime{Time: r.o.Clock.Now(), Valid: true}}
		switch {
		case gone:
			p.ClosedAt = p.Now
		case !pull.ClosedAt.IsZero():
			p.ClosedAt = sql.NullTime{Time: pull.ClosedAt, Valid: true}
		}
		if err := q.SetPullSeen(ctx, p); err != nil {
			return fmt.Errorf("recording the fate of pull request %d: %w", row.PullRequest, err)
		}
		if !gone {
			of := fate.Pull{Number: pull.Number, HeadRef: pull.HeadRef, HeadSHA: pull.HeadSHA, BaseRef: pull.BaseRef}
			known := []measure.Event{{Kind: measure.Opened, At: pull.Opened}}
			if end := fate.Ended(pull); end.Kind != "" {
				known = append(known, end)
			}
			all = errors.Join(all, r.o.Fates.Saw(ctx, repo, of, known...))
		}
		if !p.ClosedAt.Valid && r.o.Pull != nil {
			all = errors.Join(all, r.o.Pull(ctx, installation, repo, int(row.PullRequest)))
		}
	}
	return all
}
