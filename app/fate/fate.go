// Package fate follows the pull requests that sessions had a hand in, and keeps
// what became of them for each session. In come the things that happened, from
// deliveries in whatever order and however often, and what is read from GitHub
// where none told; package measure counts. Nothing is written to GitHub.
package fate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"inspect/app/github"
	"inspect/app/measure"
	"inspect/envs/proc"
	"inspect/storage"
)

// GitHub is what is asked of one installation; *github.Client has it.
type GitHub interface {
	Reviews(ctx context.Context, repo github.Repo, number int) ([]github.Review, error)
	PullPaths(ctx context.Context, repo github.Repo, number int) ([]string, error)
	Commits(ctx context.Context, repo github.Repo, branch string, since time.Time) ([]github.Commit, error)
	CommitPaths(ctx context.Context, repo github.Repo, sha string) ([]string, error)
}

var _ GitHub = (*github.Client)(nil)

// Options of a Desk.
type Options struct {
	DB     *storage.DB
	GitHub func(installation int64) GitHub
	Clock  proc.Clock   // nil: the machine's
	Log    *slog.Logger // nil: silent
}

// Desk follows pull requests. It may be used by several at once.
type Desk struct{ o Options }

// New checks the options.
func New(o Options) (*Desk, error) {
	if o.DB == nil || o.GitHub == nil {
		return nil, errors.New("following pull requests needs a database and GitHub")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Desk{o}, nil
}

// Pull is a pull request as it was when something happened to it.
type Pull struct {
	Number           int
	HeadRef, HeadSHA string
	BaseRef          string // "": not known
	// Retargeted is when it got its base, if that was told. Zero: it was not.
	Retargeted time.Time
}

// Saw takes in what happened to a pull request. Those that no session had a
// hand in are passed over.
func (d *Desk) Saw(ctx context.Context, repo github.Repo, p Pull, events ...measure.Event) error {
	sessions, err := d.sessions(ctx, repo, p)
	if err != nil || len(sessions) == 0 {
		return err
	}
	err = d.o.DB.InTx(ctx, func(tx *storage.Tx) error {
		q := tx.Q()
		if err := q.SawPull(ctx, storage.SawPullParams{RepositoryID: repo.ID, Number: int32(p.Number)}); err != nil {
			return err
		}
		row, err := q.LockPull(ctx, storage.LockPullParams{RepositoryID: repo.ID, Number: int32(p.Number)})
		if err != nil {
			return err
		}
		if err := rebase(ctx, q, row, p, d.o.Clock.Now()); err != nil {
			return err
		}
		return d.add(ctx, q, row, sessions, events)
	})
	if err != nil {
		return fmt.Errorf("record what happened to pull request %d: %w", p.Number, err)
	}
	return nil
}

func (d *Desk) sessions(ctx context.Context, repo github.Repo, p Pull) ([]storage.Session, error) {
	all, err := d.o.DB.Q().SessionsOfPull(ctx, storage.SessionsOfPullParams{
		RepositoryID: repo.ID, PullRequest: int32(p.Number), HeadRef: p.HeadRef, HeadSha: p.HeadSHA,
	})
	if err != nil {
		return nil, fmt.Errorf("look for the sessions of pull request %d: %w", p.Number, err)
	}
	return all, nil
}

// rebase records where a pull request is to go. What is told late of an earlier
// base changes nothing.
func rebase(ctx context.Context, q *storage.Queries, row storage.Pull, p Pull, now time.Time) error {
	if p.BaseRef == "" || p.Retargeted.IsZero() && p.BaseRef == row.BaseRef || !p.Retargeted.IsZero() && row.BaseSince.Valid && !p.Retargeted.After(row.BaseSince.Time) {
		return nil
	}
	since := sql.NullTime{Time: p.Retargeted, Valid: true}
	if p.Retargeted.IsZero() {
		since = sql.NullTime{Time: now, Valid: row.BaseRef != ""} // nobody told when
	}
	return q.SetPullBase(ctx, storage.SetPullBaseParams{RepositoryID: row.RepositoryID, Number: row.Number, BaseRef: p.BaseRef, BaseSince: since})
}

// add records events and counts anew.
func (d *Desk) add(ctx context.Context, q *storage.Queries, row storage.Pull, sessions []storage.Session, events []measure.Event) error {
	for _, e := range events {
		if e.At.IsZero() { // GitHub did not say when: it is known now
			e.At = d.o.Clock.Now()
		}
		err := q.InsertPullEvent(ctx, storage.InsertPullEventParams{
			RepositoryID: row.RepositoryID, Number: row.Number, Kind: string(e.Kind), Key: e.Key, At: e.At,
			ActorID: e.Actor, ActorLogin: e.Login, Bot: e.Bot, Sha: e.SHA, Before: e.Before,
		})
		if err != nil {
			return err
		}
	}
	all, err := Events(ctx, q, row.RepositoryID, int(row.Number))
	if err != nil {
		return err
	}
	o := measure.Of(all)
	if err := q.SetPullMerged(ctx, storage.SetPullMergedParams{RepositoryID: row.RepositoryID, Number: row.Number, MergedAt: when(o.Merged), MergeSha: o.MergeSHA}); err != nil {
		return err
	}
	opened := false
	for _, s := range sessions {
		put := storage.PutOutcomeParams{
			SessionID: s.ID, PullRequest: row.Number, OpenedAt: when(o.Opened), MergedAt: when(o.Merged), ClosedAt: when(o.Closed), RevertedAt: when(o.Reverted), UpdatedAt: d.o.Clock.Now(),
		}
		if !opened && s.PullRequest == row.Number { // once, however many went on with it
			opened, put.Opened = true, true
			put.ReviewSeconds, put.Rounds, put.Pushes, put.Fixes = int32(o.Review/time.Second), int32(o.Rounds), int32(o.Pushes), int32(o.Fixes)
		}
		if err := q.PutOutcome(ctx, put); err != nil {
			return err
		}
	}
	return nil
}

func when(t time.Time) sql.NullTime { return sql.NullTime{Time: t, Valid: !t.IsZero()} }

// Events are what is known to have happened to a pull request, the oldest first.
func Events(ctx context.Context, q *storage.Queries, repository int64, number int) ([]measure.Event, error) {
	rows, err := q.PullEvents(ctx, storage.PullEventsParams{RepositoryID: repository, Number: int32(number)})
	if err != nil {
		return nil, fmt.Errorf("read what happened to pull request %d: %w", number, err)
	}
	var out []measure.Event
	for _, r := range rows {
		out = append(out, measure.Event{
			Kind: measure.Kind(r.Kind), Key: r.Key, At: r.At, Actor: r.ActorID, Login: r.ActorLogin, Bot: r.Bot, SHA: r.Sha, Before: r.Before,
		})
	}
	return out, nil
}

// more takes in what else happened to a pull request that is known.
func (d *Desk) more(ctx context.Context, repo github.Repo, number int, events ...measure.Event) error {
	return d.Saw(ctx, repo, Pull{Number: number}, events...)
}

// Reverts takes in a merged pull request whose text says that it takes others back.
func (d *Desk) Reverts(ctx context.Context, repo github.Repo, by int, body string, at time.Time) error {
	for _, n := range measure.RevertedPulls(body, repo.Owner+"/"+repo.Name) {
		if err := d.more(ctx, repo, n, measure.Event{Kind: measure.Reverted, Key: "pull " + strconv.Itoa(by), At: at}); err != nil {
			return err
		}
	}
	return nil
}

// IssueReopened takes in that an issue was opened again.
func (d *Desk) IssueReopened(ctx context.Context, repo github.Repo, issue int, at time.Time) error {
	pulls, err := d.o.DB.Q().PullsOfIssue(ctx, storage.PullsOfIssueParams{
		RepositoryID: repo.ID, IssueNumber: int32(issue), Since: at.Add(-measure.FixedWithin),
	})
	if err != nil {
		return fmt.Errorf("look for the pull requests of issue %d: %w", issue, err)
	}
	for _, n := range pulls {
		if err := d.more(ctx, repo, int(n), measure.Event{Kind: measure.Asked, Key: fmt.Sprintf("issue %d %d", issue, at.Unix()), At: at}); err != nil {
			return err
		}
	}
	return nil
}

// Landed takes in commits that came onto a branch: they may take back or put
// right what ours did. Paths that are not known are read from GitHub for those
// that say so, a bounded number of them.
func (d *Desk) Landed(ctx context.Context, installation int64, repo github.Repo, branch string, commits []measure.Commit) error {
	for _, c := range commits {
		if err := d.taken(ctx, repo, c); err != nil {
			return err
		}
	}
	ours, err := d.o.DB.Q().PullsMergedSince(ctx, storage.PullsMergedSinceParams{
		RepositoryID: repo.ID, BaseRef: branch, Since: d.o.Clock.Now().Add(-measure.FixedWithin),
	})
	if err != nil {
		return fmt.Errorf("look for what went into %s: %w", branch, err)
	}
	look := &reader{d.o.GitHub(installation), repo, map[string][]string{}}
	for _, row := range ours {
		if err := d.mended(ctx, look, repo, row, commits); err != nil {
			return err
		}
	}
	return nil
}

// taken records what a commit takes back.
func (d *Desk) taken(ctx context.Context, repo github.Repo, c measure.Commit) error {
	shas := measure.RevertedCommits(c.Message)
	if len(shas) == 0 {
		return nil
	}
	pulls, err := d.o.DB.Q().PullsOfCommits(ctx, storage.PullsOfCommitsParams{RepositoryID: repo.ID, Shas: strings.Join(shas, ",")})
	if err != nil {
		return fmt.Errorf("look for what commit %.12s takes back: %w", c.SHA, err)
	}
	for _, n := range pulls {
		if err := d.more(ctx, repo, int(n), measure.Event{Kind: measure.Reverted, Key: "commit " + c.SHA, At: c.At}); err != nil {
			return err
		}
	}
	return nil
}

// maxFixes commits of one list are read.
const maxFixes = 10

// reader reads which files commits changed, each once, and at most maxFixes of them.
type reader struct {
	gh    GitHub
	repo  github.Repo
	known map[string][]string // by commit
}

func (r *reader) paths(ctx context.Context, sha string) ([]string, error) {
	paths, read := r.known[sha]
	if read || len(r.known) == maxFixes {
		return paths, nil
	}
	paths, err := r.gh.CommitPaths(ctx, r.repo, sha)
	if err != nil && !errors.Is(err, github.ErrNotFound) {
		return nil, fmt.Errorf("read which files %.12s changed: %w", sha, err)
	}
	r.known[sha] = paths
	return paths, nil
}

// mended records which commits seem to put right what a pull request did.
func (d *Desk) mended(ctx context.Context, look *reader, repo github.Repo, row storage.Pull, commits []measure.Commit) error {
	for _, c := range commits {
		if !c.IsFix() || c.SHA == row.MergeSha || !c.At.After(row.MergedAt.Time) || c.At.After(row.MergedAt.Time.Add(measure.FixedWithin)) {
			continue
		}
		if !c.Names(int(row.Number)) {
			paths, err := d.paths(ctx, look.gh, repo, row)
			if err != nil {
				return err
			}
			if c.Paths == nil {
				if c.Paths, err = look.paths(ctx, c.SHA); err != nil {
					return err
				}
			}
			if !c.Touches(paths) {
				continue
			}
		}
		if err := d.more(ctx, repo, int(row.Number), measure.Event{Kind: measure.Fixed, Key: c.SHA, At: c.At}); err != nil {
			return err
		}
	}
	return nil
}

// paths are the files that a pull request changed. They are read once.
func (d *Desk) paths(ctx context.Context, gh GitHub, repo github.Repo, row storage.Pull) (paths []string, err error) {
	if now, err := d.o.DB.Q().PullRow(ctx, storage.PullRowParams{RepositoryID: row.RepositoryID, Number: row.Number}); err == nil && now.Paths.Valid {
		err = json.Unmarshal(now.Paths.RawMessage, &paths)
		return paths, err
	}
	paths, err = gh.PullPaths(ctx, repo, int(row.Number))
	if err != nil && !errors.Is(err, github.ErrNotFound) {
		return nil, fmt.Errorf("read which files pull request %d changed: %w", row.Number, err)
	}
	body, err := json.Marshal(append([]string{}, paths...))
	if err != nil {
		return nil, err
	}
	if err := d.o.DB.Q().SetPullPaths(ctx, storage.SetPullPathsParams{RepositoryID: row.RepositoryID, Number: row.Number, Paths: body}); err != nil {
		return nil, fmt.Errorf("record which files pull request %d changed: %w", row.Number, err)
	}
	return paths, nil
}

// Bounds of one look at an installation.
const (
	maxRead    = 20 // pull requests whose reviews are read once more
	maxWatched = 20 // branches that are looked through
	watchEvery = 6 * time.Hour
)

// Look reads what no delivery told: the reviews of pull requests that have
// ended, and what landed where ours were merged lately.
func (d *Desk) Look(ctx context.Context, installation int64) error {
	q, gh, now := d.o.DB.Q(), d.o.GitHub(installation), d.o.Clock.Now()
	ended, err := q.PullsToRead(ctx, storage.PullsToReadParams{InstallationID: installation, Most: maxRead})
	if err != nil {
		return fmt.Errorf("look for pull requests that have ended: %w", err)
	}
	var all error
	for _, p := range ended {
		repo := github.Repo{ID: p.ID, Owner: p.Owner, Name: p.Name}
		err := d.read(ctx, gh, repo, int(p.Number))
		if all = errors.Join(all, err); stops(ctx, err) {
			return all
		}
	}
	bases, err := q.BasesToWatch(ctx, storage.BasesToWatchParams{InstallationID: installation, After: now.Add(-measure.FixedWithin), Before: now.Add(-watchEvery), Most: maxWatched})
	if err != nil {
		return errors.Join(all, fmt.Errorf("look for what was merged lately: %w", err))
	}
	for _, b := range bases {
		repo := github.Repo{ID: b.ID, Owner: b.Owner, Name: b.Name}
		err := d.watch(ctx, installation, gh, repo, b.BaseRef, b.Since)
		if all = errors.Join(all, err); stops(ctx, err) {
			return all
		}
	}
	return all
}

// stops says that the others would not fare better.
func stops(ctx context.Context, err error) bool {
	var limited *github.RateLimited
	return errors.As(err, &limited) || ctx.Err() != nil
}

// read takes in the reviews of a pull request that has ended, and which files a
// merged one changed.
func (d *Desk) read(ctx context.Context, gh GitHub, repo github.Repo, number int) error {
	reviews, err := gh.Reviews(ctx, repo, number)
	if err != nil && !errors.Is(err, github.ErrNotFound) && !errors.Is(err, github.ErrGone) {
		return fmt.Errorf("read the reviews of pull request %d: %w", number, err)
	}
	var events []measure.Event
	for _, r := range reviews {
		events = append(events, Reviewed(r.ID, r.UserID, r.Login, r.Bot, r.CommitID, r.Created))
	}
	if err := d.more(ctx, repo, number, events...); err != nil {
		return err
	}
	row, err := d.o.DB.Q().PullRow(ctx, storage.PullRowParams{RepositoryID: repo.ID, Number: int32(number)})
	if err != nil {
		return fmt.Errorf("read pull request %d: %w", number, err)
	}
	if row.MergedAt.Valid { // what its risk is told by
		if _, err := d.paths(ctx, gh, repo, row); err != nil {
			return err
		}
	}
	return d.o.DB.Q().SetPullReviewsRead(ctx, storage.SetPullReviewsReadParams{RepositoryID: repo.ID, Number: int32(number)})
}

// Ended is the end of a pull request as an event; no Kind if it has not ended.
func Ended(pr github.PullRequest) measure.Event {
	switch {
	case pr.Merged:
		return measure.Event{Kind: measure.Merged, At: pr.MergedAt, SHA: pr.MergeSHA}
	case !pr.ClosedAt.IsZero():
		return measure.Event{Kind: measure.Closed, Key: strconv.FormatInt(pr.ClosedAt.Unix(), 10), At: pr.ClosedAt}
	}
	return measure.Event{}
}

// Pushed is a move of a pull request's head as an event.
func Pushed(before, after string, user int64, login string, bot bool, at time.Time) measure.Event {
	return measure.Event{Kind: measure.Push, Key: fmt.Sprintf("%s..%s %d", before, after, user), At: at, Actor: user, Login: login, Bot: bot, SHA: after, Before: before}
}

// Reviewed is a review as an event.
func Reviewed(id, user int64, login string, bot bool, commit string, at time.Time) measure.Event {
	return measure.Event{Kind: measure.Review, Key: strconv.FormatInt(id, 10), At: at, Actor: user, Login: login, Bot: bot, SHA: commit}
}

// lag is how much later than it was made a commit may arrive on a branch and
// still be seen by a look that asks for what is younger than the one before.
const lag = 24 * time.Hour

// watch looks through what landed on a branch.
func (d *Desk) watch(ctx context.Context, installation int64, gh GitHub, repo github.Repo, branch string, since time.Time) error {
	now := d.o.Clock.Now()
	list, err := gh.Commits(ctx, repo, branch, since.Add(-lag))
	if err != nil && !errors.Is(err, github.ErrNotFound) {
		return fmt.Errorf("list what landed on %s: %w", branch, err)
	}
	commits := make([]measure.Commit, len(list))
	for i, c := range list {
		commits[i] = measure.Commit{SHA: c.SHA, Message: c.Message, At: c.At}
	}
	if err := d.Landed(ctx, installation, repo, branch, commits); err != nil {
		return err
	}
	return d.o.DB.Q().SetPullsWatched(ctx, storage.SetPullsWatchedParams{RepositoryID: repo.ID, BaseRef: branch, Since: now.Add(-measure.FixedWithin), Until: now})
}
