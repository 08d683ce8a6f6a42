package web

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"inspect/app/approve"
	"inspect/app/comment"
	"inspect/app/tally"
	"inspect/checks/evidence"
	"inspect/envs/spec"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/storage"
)

var sessionID = regexp.MustCompile(`^[a-z0-9]{1,32}$`)

const (
	maxManifest  = 4 << 20
	manifestName = "manifest.json"
	eventsOnPage = 150
)

// facts are what is known of one session: the page and its JSON twin are made
// from the same.
type facts struct {
	row        storage.Session
	repository storage.Repository
	attempts   []storage.WebAttemptsRow
	snapshot   *storage.Snapshot
	manifest   *evidence.Manifest // nil before there is one
	outcome    *wire.Outcome
	receipt    *scheduler.Receipt
	restored   *wire.Restored // of the attempt that counts
	taken      *scheduler.Taken
	drifted    *wire.Drifted
	kept       *keptView // clones that are kept after the end
	spec       spec.Spec
	waiting    int                // sessions in the queue
	asks       []comment.Approval // what waits for a person
	files      []fileView

	agent  evidence.Agent
	model  evidence.Model
	egress evidence.Egress
}

// SessionJSON is the JSON twin of a session's page. Durations are in
// milliseconds, money in billionths of a US dollar.
type SessionJSON struct {
	Session     string `json:"session"`
	State       string `json:"state"`
	Terminal    bool   `json:"terminal"`
	Reported    bool   `json:"reported"`   // the end was told on GitHub
	Conclusion  string `json:"conclusion"` // as of a check run; empty while it goes on
	Reason      string `json:"reason,omitempty"`
	Words       string `json:"words,omitempty"`
	QueueReason string `json:"queue_reason,omitempty"`
	QueueJSON
	Priority int `json:"priority,omitempty"`
	// Waiting is what a person has to answer.
	Waiting []comment.Approval `json:"waiting,omitempty"`

	Repository string `json:"repository"`
	Issue      int    `json:"issue"`
	Title      string `json:"title"`
	Requester  string `json:"requester"`
	BaseBranch string `json:"base_branch"`
	BaseSHA    string `json:"base_sha"`

	Generation int    `json:"generation"`
	Harness    string `json:"harness"`
	Tier       string `json:"tier,omitempty"`
	Limits     string `json:"limits,omitempty"`

	Instructions string          `json:"instructions,omitempty"` // sha256 of the prompt as the agent got it
	Agent        evidence.Agent  `json:"agent"`
	Model        *evidence.Model `json:"model,omitempty"` // while it goes on, calls going on count as unreported
	Spent        int64           `json:"spent"`           // of model.budget
	Egress       evidence.Egress `json:"egress"`
	Services     []string        `json:"services,omitempty"`
	Data         string          `json:"data,omitempty"` // provenance

	Branch      string             `json:"branch,omitempty"`
	HeadSHA     string             `json:"head_sha,omitempty"`
	PullRequest int                `json:"pull_request,omitempty"`
	CheckRunID  int64              `json:"check_run_id,omitempty"`
	CommentID   int64              `json:"comment_id,omitempty"`
	Receipt     *scheduler.Receipt `json:"receipt,omitempty"`

	Verify   VerifyJSON    `json:"verify"`
	Snapshot *SnapshotJSON `json:"snapshot,omitempty"`
	// KeptUntil is set while the clone of a session that failed is kept.
	KeptUntil *time.Time `json:"kept_until,omitempty"`
	Times     TimesJSON  `json:"times"`
	Events    int64      `json:"events"`
	Files     []FileJSON `json:"files,omitempty"`
}

// VerifyJSON counts tests, or commands where a command has no report.
type VerifyJSON struct {
	Passed   int         `json:"passed"`
	Failed   int         `json:"failed"`
	Skipped  int         `json:"skipped"`
	Commands []CheckJSON `json:"commands,omitempty"`
}

// CheckJSON is one verify command.
type CheckJSON struct {
	Name   string `json:"name"`
	Run    string `json:"run"`
	Passed bool   `json:"passed"`
	Words  string `json:"words"`
	MS     int64  `json:"ms"`
}

// SnapshotJSON is where the session's clones came from.
type SnapshotJSON struct {
	ID     string `json:"id"`
	Commit string `json:"commit"`
	Store  string `json:"store"`
	AgeMS  int64  `json:"age_ms"`
	Drift  bool   `json:"drift"`
	// Behind is how many commits the snapshot lacks; absent: not known.
	Behind    *int            `json:"behind,omitempty"`
	Why       string          `json:"why,omitempty"` // it was taken
	Stale     bool            `json:"stale,omitempty"`
	Cold      bool            `json:"cold,omitempty"` // prepared for the session's own commit
	Image     string          `json:"image,omitempty"`
	Manifests []string        `json:"manifests,omitempty"` // dependency manifests that had changed
	Steps     []string        `json:"steps,omitempty"`     // of setup that ran again for that
	Lockfiles []wire.Lockfile `json:"lockfiles,omitempty"`
}

// TimesJSON of a session; zero where something did not happen.
type TimesJSON struct {
	Created   time.Time  `json:"created"`
	Started   *time.Time `json:"started,omitempty"`
	Finished  *time.Time `json:"finished,omitempty"`
	RestoreMS int64      `json:"restore_ms"`
	SyncMS    int64      `json:"sync_ms"`
	ReadyMS   int64      `json:"ready_ms"` // from the restore's begin until the agent could take its first prompt
	WorkMS    int64      `json:"work_ms"`
	VerifyMS  int64      `json:"verify_ms"`
}

// FileJSON is one evidence file.
type FileJSON struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes,omitempty"`
	URL    string `json:"url"` // path on this server
}

// session serves a session's page, and with .json at the end its twin.
func (p *pages) session(w http.ResponseWriter, r *http.Request) {
	id, asJSON := strings.CutSuffix(r.PathValue("id"), ".json")
	f, err := p.gather(r.Context(), id)
	if err == nil && !p.mayRead(r.Context(), refOf(f.repository)) {
		err = sql.ErrNoRows
	}
	if err != nil {
		missing := storage.IsMissing(err)
		switch {
		case missing && asJSON:
			writeJSON(w, http.StatusNotFound, map[string]string{"error": "there is no such session"})
		case missing:
			p.fail(w, http.StatusNotFound, "No such session", "There is no session of that name on this server.")
		default:
			p.broken(w, r, err)
		}
		return
	}
	if asJSON {
		writeJSON(w, http.StatusOK, f.json())
		return
	}
	before := newest
	if s := r.URL.Query().Get("before"); s != "" {
		if before, err = strconv.ParseInt(s, 10, 64); err != nil || before < 1 {
			p.fail(w, http.StatusBadRequest, "That is no page", "The address is not one of ours.")
			return
		}
	}
	events, err := p.db.Q().WebEvents(r.Context(), storage.WebEventsParams{SessionID: id, Before: before, AtMost: eventsOnPage})
	if err != nil {
		p.broken(w, r, err)
		return
	}
	v := p.sessionView(f, events)
	v.Still = r.URL.Query().Has("still")
	v.Frame = p.frame(r)
	v.Diff = p.diff(r.Context(), f)
	if v.Acts, err = p.acts(r, f); err != nil {
		p.broken(w, r, err)
		return
	}
	if v.Live && before == newest && !v.Still {
		v.Follow = fmt.Sprintf("/sessions/%s/live?after=%d&state=%s", id, lastSeq(events), f.row.State)
	}
	// Without scripts the page is read anew, but not while somebody may write in it.
	waits := v.Acts != nil && v.Acts.Waits
	v.Refresh = v.Follow != "" && (waits || v.Acts == nil || !v.Acts.May)
	v.Again = waits
	p.render(w, http.StatusOK, "session.html", v)
}

// gather reads everything about one session. storage.IsMissing: there is none.
func (p *pages) gather(ctx context.Context, id string) (*facts, error) {
	q := p.db.Q()
	if !sessionID.MatchString(id) {
		id = ""
	}
	row, err := q.WebSession(ctx, id)
	if err != nil {
		return nil, err
	}
	f := &facts{row: row}
	n, err := q.QueueLength(ctx)
	if err != nil {
		return nil, err
	}
	f.waiting = int(n)
	if f.repository, err = q.WebRepository(ctx, row.RepositoryID); err != nil {
		return nil, fmt.Errorf("reading the repository of session %s: %w", id, broke(err))
	}
	if f.attempts, err = q.WebAttempts(ctx, id); err != nil {
		return nil, err
	}
	for _, a := range f.attempts {
		if a.Generation != row.Generation {
			continue
		}
		if a.Restore.Valid {
			f.restored = unpack[wire.Restored](a.Restore.RawMessage)
		}
		if a.Taken.Valid {
			f.taken = unpack[scheduler.Taken](a.Taken.RawMessage)
		}
		if a.Drifted.Valid {
			f.drifted = unpack[wire.Drifted](a.Drifted.RawMessage)
		}
		if scheduler.Terminal(row.State) && !a.ReapedAt.Valid && a.KeepUntil.Valid && a.KeepUntil.Time.After(p.clock.Now()) {
			f.kept = &keptView{Node: a.Node, Until: a.KeepUntil.Time}
		}
	}
	if row.SnapshotID != "" {
		s, err := q.WebSnapshot(ctx, row.SnapshotID)
		switch {
		case err == nil:
			f.snapshot = &s
		case !storage.IsMissing(err):
			return nil, err
		}
	}
	if row.Outcome.Valid {
		f.outcome = unpack[wire.Outcome](row.Outcome.RawMessage)
	}
	if row.Receipt.Valid {
		f.receipt = unpack[scheduler.Receipt](row.Receipt.RawMessage)
	}
	if s := unpack[spec.Spec](row.Spec); s != nil {
		f.spec = *s
	}
	if err := p.gatherFiles(ctx, f); err != nil {
		return nil, err
	}
	return f, p.gatherUse(ctx, f)
}

// gatherUse reads what was used and tried: from the evidence, or, before there
// is any, from the database.
func (p *pages) gatherUse(ctx context.Context, f *facts) (err error) {
	if m := f.manifest; m != nil && m.Version >= 2 {
		f.agent, f.model, f.egress = m.Agent, m.Model, m.Egress
		return nil
	}
	q := p.db.Q()
	if f.agent, err = tally.Agent(ctx, q, f.row.ID); err != nil {
		return err
	}
	if f.model, err = tally.Model(ctx, q, f.row, f.spec); err != nil {
		return err
	}
	if f.egress, err = tally.Egress(ctx, q, f.row, f.spec); err != nil {
		return err
	}
	pending, err := scheduler.Approvals(ctx, q, f.row.ID)
	for _, a := range pending {
		f.asks = append(f.asks, approve.One(a))
	}
	return err
}

// gatherFiles lists the evidence files under the names people see, and reads
// the manifest.
func (p *pages) gatherFiles(ctx context.Context, f *facts) error {
	q, id := p.db.Q(), f.row.ID
	rows, err := q.WebEvidence(ctx, id)
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	artifacts, err := q.WebArtifactSizes(ctx, id)
	if err != nil {
		return err
	}
	for _, a := range artifacts {
		sizes[a.Sha256] = a.Bytes
	}
	listed := map[string]bool{}
	add := func(name, sum string, bytes int64) {
		if digest.MatchString(sum) && !listed[sum] {
			listed[sum] = true
			if n, ok := sizes[sum]; ok && bytes < 0 {
				bytes = n
			}
			f.files = append(f.files, fileView{Name: name, SHA256: sum, Bytes: bytes, URL: fileURL(id, name, sum)})
		}
	}
	for _, e := range rows {
		add(e.Name, e.Sha256, e.Bytes)
		if e.Name == manifestName {
			if f.manifest, err = p.manifest(ctx, id, e.Sha256); err != nil {
				p.log.WarnContext(ctx, "a manifest cannot be read", "session", id, "error", err)
			}
		}
	}
	if f.outcome != nil {
		for _, v := range f.outcome.Results {
			add(v.Name+".stdout.txt", v.Stdout, -1)
			add(v.Name+".stderr.txt", v.Stderr, -1)
		}
		add("instructions.md", f.outcome.Instructions, -1)
	}
	return nil
}

func (p *pages) manifest(ctx context.Context, id, sum string) (*evidence.Manifest, error) {
	r, err := p.blobs.Get(ctx, id, sum)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	body, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxManifest {
		return nil, fmt.Errorf("it has more than %d bytes", maxManifest)
	}
	var m evidence.Manifest
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// unpack reads a JSON column; what cannot be read is left out of the page.
func unpack[T any](raw []byte) *T {
	v := new(T)
	if json.Unmarshal(raw, v) != nil {
		return nil
	}
	return v
}

// broke keeps a missing row behind a reference from looking like a missing session.
func broke(err error) error { return fmt.Errorf("%s", err) }

// checks are the verify commands: as judged, or, before there is a manifest,
// as the runner reported their exit.
func (f *facts) checks() []evidence.Check {
	if f.manifest != nil {
		return f.manifest.Checks
	}
	if f.outcome == nil {
		return nil
	}
	var out []evidence.Check
	for _, r := range f.outcome.Results {
		c := evidence.Check{
			Name: r.Name, Run: r.Run, Report: r.Report, ExitCode: r.ExitCode, Signal: r.Signal, Duration: r.Duration,
			Stdout: r.Stdout, Stderr: r.Stderr, Passed: r.ExitCode == 0 && r.Signal == "" && !r.TimedOut,
			Words: fmt.Sprintf("exit status %d, not judged yet", r.ExitCode),
		}
		out = append(out, c)
	}
	return out
}

func (f *facts) harness() string {
	return f.spec.Harness.Name()
}

// instructions is the digest of the prompt as the agent got it.
func (f *facts) instructions() string {
	switch {
	case f.manifest != nil && f.manifest.Instructions != "":
		return f.manifest.Instructions
	case f.outcome != nil:
		return f.outcome.Instructions
	}
	return ""
}

func (f *facts) times() wire.Times {
	if f.outcome == nil {
		return wire.Times{}
	}
	return f.outcome.Times
}

// restore is how long the clone the agent worked in took.
func (f *facts) restore() time.Duration {
	switch {
	case f.manifest != nil && f.manifest.Snapshot.Restore > 0:
		return f.manifest.Snapshot.Restore
	case f.restored != nil:
		return f.restored.Duration
	}
	return f.times().Restore
}

func (f *facts) json() SessionJSON {
	s := f.row
	out := SessionJSON{
		Session: s.ID, State: string(s.State), Terminal: scheduler.Terminal(s.State), Reported: s.ReportedAt.Valid,
		Conclusion: f.conclusion(), Reason: s.Reason, Words: s.Words, QueueReason: s.QueueReason,
		QueueJSON: queueJSON(s.State, s.QueueAt, s.QueuePosition, f.waiting), Priority: int(s.Priority), Waiting: f.asks,
		Repository: f.repository.Owner + "/" + f.repository.Name, Issue: int(s.IssueNumber), Title: s.Title,
		Requester: s.RequesterLogin, BaseBranch: s.BaseBranch, BaseSHA: s.BaseSha,
		Generation: int(s.Generation), Harness: f.harness(),
		Branch: s.Branch, HeadSHA: s.HeadSha, PullRequest: int(s.PullRequest), CheckRunID: s.CheckRunID, CommentID: s.CommentID,
		Receipt: f.receipt, Events: s.EventsCount,
		Instructions: f.instructions(), Agent: f.agent, Spent: s.Spent, Egress: f.egress, Data: f.spec.Data.Provenance,
		Times: TimesJSON{
			Created: s.CreatedAt.UTC(), RestoreMS: f.restore().Milliseconds(),
			SyncMS: f.times().Sync.Milliseconds(), ReadyMS: f.times().Ready.Milliseconds(), WorkMS: f.times().Work.Milliseconds(), VerifyMS: f.times().Verify.Milliseconds(),
		},
	}
	if f.model.Name != "" {
		out.Model = &f.model
	}
	for _, v := range f.spec.Services {
		out.Services = append(out.Services, v.Name)
	}
	if s.StartedAt.Valid {
		t := s.StartedAt.Time.UTC()
		out.Times.Started = &t
	}
	if s.FinishedAt.Valid {
		t := s.FinishedAt.Time.UTC()
		out.Times.Finished = &t
	}
	if f.restored != nil {
		out.Tier, out.Limits = f.restored.Tier, f.restored.Limits
	}
	for _, c := range f.checks() {
		out.Verify.Commands = append(out.Verify.Commands, CheckJSON{Name: c.Name, Run: c.Run, Passed: c.Passed, Words: c.Words, MS: c.Duration.Milliseconds()})
		if f.manifest == nil {
			if c.Passed {
				out.Verify.Passed++
			} else {
				out.Verify.Failed++
			}
		}
	}
	if m := f.manifest; m != nil {
		out.Verify.Passed, out.Verify.Failed, out.Verify.Skipped = m.Verdict.Passed, m.Verdict.Failed, m.Verdict.Skipped
		out.Tier, out.Limits = m.Sandbox.Tier, m.Sandbox.Limits
		out.Snapshot = &SnapshotJSON{ID: m.Snapshot.ID, Commit: m.Snapshot.Commit, Store: m.Snapshot.Store, AgeMS: m.Snapshot.Age.Milliseconds(), Drift: m.Snapshot.Drift}
	} else if n := f.snapshot; n != nil {
		out.Snapshot = &SnapshotJSON{ID: n.ID, Commit: n.CommitSha, Store: n.Store, Drift: n.CommitSha != s.BaseSha}
	}
	if sn := out.Snapshot; sn != nil {
		if t := f.taken; t != nil {
			sn.Why, sn.Stale, sn.Cold, sn.Image = t.Why, t.Stale, t.Cold, t.Image
			if f.manifest == nil {
				sn.AgeMS = t.Age.Milliseconds()
			}
			if t.Drift != nil {
				sn.Behind = &t.Drift.Commits
			}
		}
		if d := f.drifted; d != nil {
			sn.Manifests, sn.Steps, sn.Lockfiles = d.Manifests, d.Steps, d.Lockfiles
		}
	}
	if f.kept != nil {
		until := f.kept.Until.UTC()
		out.KeptUntil = &until
	}
	for _, x := range f.files {
		out.Files = append(out.Files, FileJSON{Name: x.Name, SHA256: x.SHA256, Bytes: max(x.Bytes, 0), URL: x.URL})
	}
	return out
}
