// Package builds follows what a pipeline says of what sessions pushed: the build
// of exactly that commit, which is looked for, or asked for where the operator
// and the repository want that, until it has come to its end or its time is over.
// Delivered sessions come in from the database; what their builds show goes there
// and into their evidence, and is told on GitHub again. Webhooks only hurry it:
// what none told of is found by looking.
package builds

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sqlc-dev/pqtype"

	"inspect/app/github"
	"inspect/app/policy"
	"inspect/checks/buildkite"
	"inspect/checks/evidence"
	"inspect/checks/render"
	"inspect/envs/proc"
	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

// Times of a look.
const (
	Every    = 5 * time.Second  // between two looks at the database
	Between  = 20 * time.Second // between two looks at one build
	slowest  = 2 * time.Minute  // the same where Buildkite does not answer
	grace    = time.Minute      // a build of its own is waited for so long before one is asked for
	newest   = 24 * time.Hour   // sessions that ended before and require no build are not begun with
	pause    = time.Minute      // until GitHub is told again of what it did not hear
	patient  = 4                // looks until a verdict does without reports that cannot be had
	reading  = time.Minute      // for what is read after a verdict that is due
	atOnce   = 50               // sessions and builds in one look
	lookTime = 3 * time.Minute  // for one build, with Buildkite's pauses
)

// Bounds of what is read of one build.
const (
	maxJobs        = 200
	maxReports     = 20
	maxReportBytes = 8 << 20
)

// Buildkite is what is asked; *buildkite.Client has it.
type Buildkite interface {
	Build(ctx context.Context, org, pipeline string, number int) (buildkite.Build, error)
	BuildsOf(ctx context.Context, org, pipeline, sha string) ([]buildkite.Build, error)
	CreateBuild(ctx context.Context, org, pipeline string, n buildkite.NewBuild) (buildkite.Build, error)
	Artifacts(ctx context.Context, org, pipeline string, number int, job string) ([]buildkite.Artifact, error)
	Artifact(ctx context.Context, org, pipeline string, number int, a buildkite.Artifact, most int64) ([]byte, error)
}

var _ Buildkite = (*buildkite.Client)(nil)

// Options of a Follower.
type Options struct {
	DB *storage.DB
	// Buildkite is asked; nil: there is no access token, and a required build is
	// never passed.
	Buildkite Buildkite
	// Wanted is what the operator's policy lets be looked at now.
	Wanted func(repositoryID int64, ownerName string, c spec.BuildkiteChecks) []policy.BuildWanted
	// CloneURL is a repository's address: a build of another proves nothing.
	CloneURL func(github.Repo) string
	// Keep stores a file of a session's evidence and returns its SHA-256.
	Keep func(ctx context.Context, session string, body []byte) (string, error)
	// Record adds to a session's record.
	Record func(ctx context.Context, session, kind string, data any) error
	// Failed is told of a build that failed, each time that this is found: the
	// webhook that would have told of it may have been lost. nil: nobody is.
	Failed func(ctx context.Context, pipelineID string, number int) error
	// Report brings what GitHub shows of an ended session up to date.
	Report func(ctx context.Context, s storage.Session) error
	Clock  proc.Clock   // nil: the machine's
	Log    *slog.Logger // nil: slog.Default()
}

// Follower looks at builds.
type Follower struct {
	o                 Options
	lookTime, reading time.Duration
}

// New checks the options.
func New(o Options) (*Follower, error) {
	if o.DB == nil || o.Wanted == nil || o.CloneURL == nil || o.Keep == nil || o.Record == nil || o.Report == nil {
		return nil, errors.New("following builds: an option that is needed is missing")
	}
	if o.Clock == nil {
		o.Clock = proc.System()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Follower{o, lookTime, reading}, nil
}

// Run looks until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	for {
		if err := f.Look(ctx); err != nil && ctx.Err() == nil {
			f.o.Log.Warn("not all builds of what sessions pushed could be looked at; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.o.Clock.After(Every):
		}
	}
}

// Look looks once. Its errors are those of all parts; each was tried.
func (f *Follower) Look(ctx context.Context) error {
	err := f.begin(ctx)
	due, listErr := f.o.DB.Q().DueSessionBuilds(ctx, storage.DueSessionBuildsParams{Now: f.o.Clock.Now(), Most: atOnce})
	if listErr != nil {
		return errors.Join(err, fmt.Errorf("looking for builds to look at: %w", listErr))
	}
	for _, row := range due {
		if ctx.Err() != nil {
			break
		}
		if one := f.look(ctx, row); one != nil {
			err = errors.Join(err, fmt.Errorf("the build of session %s: %w", row.SessionID, one))
		}
	}
	return errors.Join(err, f.tell(ctx))
}

// begin notes which builds are looked at for sessions that were delivered.
func (f *Follower) begin(ctx context.Context) error {
	now := f.o.Clock.Now()
	sessions, err := f.o.DB.Q().SessionsWantingBuilds(ctx, storage.SessionsWantingBuildsParams{Since: now.Add(-newest), Most: atOnce})
	if err != nil {
		return fmt.Errorf("looking for sessions whose builds are to be looked at: %w", err)
	}
	for _, s := range sessions {
		if one := f.beginOne(ctx, s, now); one != nil {
			err = errors.Join(err, fmt.Errorf("session %s, whose builds are to be looked at: %w", s.ID, one))
		}
	}
	return err
}

func (f *Follower) beginOne(ctx context.Context, s storage.Session, now time.Time) error {
	var sp spec.Spec
	if err := json.Unmarshal(s.Spec, &sp); err != nil {
		return fmt.Errorf("reading its configuration: %w", err)
	}
	repo, err := f.repository(ctx, s)
	if err != nil {
		return err
	}
	checks := sp.Checks.Buildkite
	wanted := f.o.Wanted(repo.ID, repo.Owner+"/"+repo.Name, checks)
	insert := storage.InsertSessionBuildParams{SessionID: s.ID, Sha: s.HeadSha, Required: checks.Required, CreatedAt: now, NextLookAt: now, Deadline: now}
	switch {
	case f.o.Buildkite == nil:
		insert.Words = "whoever runs Inspect has configured no API access token for Buildkite"
	case len(wanted) == 0:
		insert.Words = "the operator's policy binds no pipeline whose builds may be looked at to this repository"
	}
	if insert.Words != "" {
		insert.DoneAt = sql.NullTime{Time: now, Valid: true}
		if err := f.o.DB.Q().InsertSessionBuild(ctx, insert); err != nil {
			return fmt.Errorf("noting that it has none: %w", err)
		}
		return nil
	}
	for _, w := range wanted {
		insert.PipelineID, insert.Slug, insert.Creates, insert.Deadline = w.Pipeline.ID, w.Pipeline.Slug, w.Create, now.Add(w.Timeout)
		if err := f.o.DB.Q().InsertSessionBuild(ctx, insert); err != nil {
			return fmt.Errorf("noting which: %w", err)
		}
	}
	return nil
}

func (f *Follower) repository(ctx context.Context, s storage.Session) (github.Repo, error) {
	place, err := f.o.DB.Q().PublishPlace(ctx, s.RepositoryID)
	if err != nil {
		return github.Repo{}, fmt.Errorf("reading the repository of session %s: %w", s.ID, err)
	}
	return github.Repo{ID: place.ID, Owner: place.Owner, Name: place.Name}, nil
}

// found is what is known of a build after a look.
type found struct {
	build *buildkite.Build
	state string
	words string
	done  bool
	wait  time.Duration // until the next look; 0: Between
	lost  bool          // nothing was learned
}

// look looks at one build and writes down what it shows. Only reading takes as
// long as others let it: whatever comes of that is written down, so that the time
// of a build is over when it is.
func (f *Follower) look(ctx context.Context, row storage.SessionBuild) error {
	within, cancel := context.WithTimeout(ctx, f.lookTime)
	defer cancel()
	s, err := f.o.DB.Q().GetSession(ctx, row.SessionID)
	if err != nil {
		return err
	}
	repo, err := f.repository(ctx, s)
	if err != nil {
		return err
	}
	got, lookErr := f.see(within, row, s, repo)
	var shown *render.Build
	if lookErr == nil && got.build != nil {
		var one render.Build
		if one, lookErr = f.shows(within, row, *got.build, got, false); lookErr == nil {
			shown = &one
		}
	}
	if ctx.Err() != nil {
		return ctx.Err() // the row is due as before
	}
	now := f.o.Clock.Now()
	over := !now.Before(row.Deadline)
	if got.done && got.build != nil && lookErr != nil && (over || row.Looks >= patient) {
		// The verdict is known, and whether its reports can ever be had is not.
		last, cancel := context.WithTimeout(ctx, f.reading)
		one, err := f.shows(last, row, *got.build, got, true)
		cancel()
		if err != nil {
			return err
		}
		shown, lookErr = &one, nil
	}
	if lookErr != nil {
		got = found{state: row.State, words: row.Words, lost: true, wait: waitFor(lookErr, int(row.Looks))}
	}
	if !got.done && over {
		got.done = true
		switch {
		case lookErr != nil:
			got.words = "Buildkite did not answer in time"
		case row.Number == 0 && got.build == nil:
			got.words = "there was no build of this commit in time"
		case got.state != render.BuildBlocked:
			got.words = "the build did not end in time"
		}
	}
	p := storage.SetSessionBuildParams{
		SessionID: row.SessionID, PipelineID: row.PipelineID, Number: row.Number, State: got.state, Result: row.Result, Words: got.words, NextLookAt: now.Add(max(got.wait, Between)),
	}
	if got.lost {
		p.Looks = row.Looks + 1
	}
	if got.done {
		p.DoneAt = sql.NullTime{Time: now, Valid: true}
	}
	if shown != nil {
		shown.Done, shown.Words = got.done, got.words
		body, err := json.Marshal(*shown)
		if err != nil {
			return err
		}
		p.Number, p.Result = int32(shown.Number), pqtype.NullRawMessage{RawMessage: body, Valid: true}
	}
	if got.done && got.state == render.BuildFailed && shown != nil && f.o.Failed != nil {
		if err := f.o.Failed(ctx, row.PipelineID, shown.Number); err != nil {
			if !over {
				return fmt.Errorf("having it repaired: %w", err) // the row is due as before
			}
			f.o.Log.Warn("nobody repairs a build that has failed", "session", row.SessionID, "build", shown.Number, "error", err)
		}
	}
	if got.done && shown != nil {
		if err := f.keep(ctx, row, *shown); err != nil {
			return err
		}
	}
	if err := f.o.DB.Q().SetSessionBuild(ctx, p); err != nil {
		return errors.Join(lookErr, fmt.Errorf("writing down what a build shows: %w", err))
	}
	return lookErr
}

// waitFor is the wait after a look that failed.
func waitFor(err error, looks int) time.Duration {
	wait := min(Between<<min(looks, 5), slowest)
	var e *buildkite.Error
	if errors.As(err, &e) {
		wait = max(wait, min(e.RetryAfter, 10*time.Minute))
	}
	return wait
}

// see asks Buildkite.
func (f *Follower) see(ctx context.Context, row storage.SessionBuild, s storage.Session, repo github.Repo) (found, error) {
	var sp spec.Spec
	if err := json.Unmarshal(s.Spec, &sp); err != nil {
		return found{}, err
	}
	// The policy as it is now: what it lets nobody look at any more is not looked at.
	var wanted *policy.BuildWanted
	for _, w := range f.o.Wanted(repo.ID, repo.Owner+"/"+repo.Name, sp.Checks.Buildkite) {
		if w.Pipeline.ID == row.PipelineID {
			wanted = &w
		}
	}
	if wanted == nil || f.o.Buildkite == nil {
		return found{state: row.State, done: true, words: "the operator's policy does not let this pipeline's builds be looked at any more"}, nil
	}
	org, slug, _ := strings.Cut(wanted.Pipeline.Slug, "/")
	list, err := f.o.Buildkite.BuildsOf(ctx, org, slug, row.Sha)
	if err != nil {
		return found{}, err
	}
	number := 0
	for _, b := range list {
		if f.of(row, b, repo) && b.Number > number {
			number = b.Number
		}
	}
	if number == 0 {
		return found{state: render.BuildPending, words: ""}, f.ask(ctx, row, s, *wanted, org, slug)
	}
	b, err := f.o.Buildkite.Build(ctx, org, slug, number)
	if err != nil {
		return found{}, err
	}
	if !f.of(row, b, repo) {
		return found{state: render.BuildPending}, nil
	}
	out := found{build: &b, state: map[buildkite.Outcome]string{
		buildkite.Passed: render.BuildPassed, buildkite.Failed: render.BuildFailed, buildkite.Blocked: render.BuildBlocked, buildkite.Canceled: render.BuildCanceled,
	}[b.Outcome()]}
	switch out.state {
	case "":
		out.state = render.BuildPending
	case render.BuildPassed, render.BuildFailed, render.BuildCanceled:
		out.done = true
	}
	return out, nil
}

// of says whether a build is of the commit that was pushed, of the pipeline by its
// id, and of the repository. Anything else proves nothing.
func (f *Follower) of(row storage.SessionBuild, b buildkite.Build, repo github.Repo) bool {
	return b.Number > 0 && b.Commit == row.Sha && row.Sha != "" && strings.EqualFold(b.Pipeline.ID, row.PipelineID) && !b.Fork() &&
		buildkite.SameRepository(b.Pipeline.Repository, f.o.CloneURL(repo))
}

// ask asks for a build where there is none, once: whether that was done is looked
// for by its commit, never tried again.
func (f *Follower) ask(ctx context.Context, row storage.SessionBuild, s storage.Session, w policy.BuildWanted, org, slug string) error {
	now := f.o.Clock.Now()
	if !row.Creates || !w.Create || row.AskedAt.Valid || now.Before(row.CreatedAt.Add(grace)) {
		return nil
	}
	n, err := f.o.DB.Q().AskedSessionBuild(ctx, storage.AskedSessionBuildParams{SessionID: row.SessionID, PipelineID: row.PipelineID, Now: now})
	if err != nil || n == 0 {
		return err
	}
	b := buildkite.NewBuild{Commit: row.Sha, Branch: s.Branch, Message: "Inspect, session " + s.ID, MetaData: map[string]string{"inspect:session": s.ID}}
	_, err = f.o.Buildkite.CreateBuild(ctx, org, slug, b)
	if errors.Is(err, buildkite.ErrUncertain) {
		f.o.Log.Info("whether a build was made is looked for by its commit", "session", s.ID, "error", err)
		return nil
	}
	return err
}

// shows is what is told and kept of a build; anyway: with those reports that can
// be had now, since later there may be none either.
func (f *Follower) shows(ctx context.Context, row storage.SessionBuild, b buildkite.Build, got found, anyway bool) (render.Build, error) {
	out := render.Build{
		Pipeline: row.Slug, Number: b.Number, URL: b.URL, State: got.state, SHA: b.Commit, Done: got.done, Required: row.Required, Words: got.words,
	}
	for _, j := range b.Jobs {
		if j.Type != "script" && j.Type != "trigger" || j.Retried {
			continue
		}
		if len(out.Jobs) == maxJobs {
			out.More++
			continue
		}
		out.Jobs = append(out.Jobs, render.Job{Name: j.Name, State: j.State, Exit: j.ExitStatus, Soft: j.SoftFailed, Bad: j.Failed()})
	}
	if !got.done || got.state == render.BuildCanceled {
		return out, nil
	}
	var err error
	out.Tests, err = f.tests(ctx, row, b, anyway)
	return out, err
}

// tests counts what the JUnit reports say that jobs of a build kept.
func (f *Follower) tests(ctx context.Context, row storage.SessionBuild, b buildkite.Build, anyway bool) (*render.BuildTests, error) {
	org, slug, _ := strings.Cut(row.Slug, "/")
	var t render.BuildTests
	for _, j := range b.Jobs[:min(len(b.Jobs), maxJobs)] {
		if j.Type != "script" || j.Retried || t.Reports+t.Unread >= maxReports {
			continue
		}
		all, err := f.o.Buildkite.Artifacts(ctx, org, slug, b.Number, j.ID)
		if err != nil && !anyway && (errors.Is(err, buildkite.ErrBusy) || ctx.Err() != nil) {
			return nil, err
		}
		if err != nil && anyway {
			break
		}
		if err != nil {
			f.o.Log.Info("the artifacts of a build cannot be listed", "session", row.SessionID, "build", b.Number, "error", err)
			return nil, nil //nolint:nilerr // the token may not: the build's own verdict stands
		}
		for _, a := range all {
			if !strings.HasSuffix(strings.ToLower(a.Path), ".xml") || a.State != "finished" || t.Reports+t.Unread >= maxReports {
				continue
			}
			body, err := f.o.Buildkite.Artifact(ctx, org, slug, b.Number, a, maxReportBytes)
			if err != nil && !anyway && (errors.Is(err, buildkite.ErrBusy) || ctx.Err() != nil) {
				return nil, err
			}
			var total, failed, skipped int
			if err == nil {
				total, failed, skipped, err = evidence.JUnitCounts(a.Path, body)
			}
			if err != nil {
				t.Unread++
				continue
			}
			t.Reports, t.Total, t.Failed, t.Skipped = t.Reports+1, t.Total+total, t.Failed+failed, t.Skipped+skipped
		}
	}
	if t == (render.BuildTests{}) {
		return nil, nil
	}
	return &t, nil
}

// FileOf names what is kept of a build in a session's evidence.
func FileOf(b render.Build) string {
	_, slug, _ := strings.Cut(b.Pipeline, "/")
	return fmt.Sprintf("build-%s-%d.json", slug, b.Number)
}

// keep puts what a build showed into the evidence, and its digest into the
// record. The manifest is sealed by then: the build came after it.
func (f *Follower) keep(ctx context.Context, row storage.SessionBuild, b render.Build) error {
	body, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	sum, err := f.o.Keep(ctx, row.SessionID, body)
	if err != nil {
		return fmt.Errorf("keeping what a build showed: %w", err)
	}
	name := FileOf(b)
	have, err := f.o.DB.Q().EvidenceFile(ctx, storage.EvidenceFileParams{SessionID: row.SessionID, Name: name})
	if err == nil && have.Sha256 == sum {
		return nil // an earlier try came so far
	}
	if err != nil && !storage.IsMissing(err) {
		return err
	}
	if err := f.o.Record(ctx, row.SessionID, scheduler.EventBuild, map[string]any{
		"pipeline": b.Pipeline, "pipeline_id": row.PipelineID, "number": b.Number, "sha": b.SHA, "state": b.State, "file": name, "sha256": sum,
	}); err != nil {
		return err
	}
	return f.o.DB.Q().KeepEvidence(ctx, storage.KeepEvidenceParams{SessionID: row.SessionID, Name: name, Sha256: sum, Bytes: int64(len(body)), Now: f.o.Clock.Now()})
}

// tell has GitHub told of what changed, and again until it has heard it.
func (f *Follower) tell(ctx context.Context) error {
	now := f.o.Clock.Now()
	untold, err := f.o.DB.Q().UntoldSessionBuilds(ctx, storage.UntoldSessionBuildsParams{Now: now, Most: atOnce})
	if err != nil {
		return fmt.Errorf("looking for builds to be told of: %w", err)
	}
	for _, session := range untold {
		if ctx.Err() != nil {
			break
		}
		s, one := f.o.DB.Q().GetSession(ctx, session)
		if one == nil {
			one = f.o.Report(ctx, s)
		}
		if one == nil {
			one = f.o.DB.Q().ToldSessionBuilds(ctx, session)
		} else if later := f.o.DB.Q().TellSessionBuildsLater(ctx, storage.TellSessionBuildsLaterParams{SessionID: session, After: now.Add(pause)}); later != nil {
			one = errors.Join(one, later)
		}
		if one != nil {
			err = errors.Join(err, fmt.Errorf("telling what the build of session %s shows: %w", session, one))
		}
	}
	return err
}
