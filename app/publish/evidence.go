package publish

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"inspect/app/tally"
	"inspect/checks/evidence"
	"inspect/checks/redact"
	"inspect/envs/wire"
	"inspect/scheduler"
	"inspect/scheduler/audit"
	"inspect/storage"
)

// Names of evidence files.
const (
	FileManifest     = evidence.ManifestName
	FilePatch        = "change.patch"      // the whole change, secrets replaced
	FileWithheld     = "withheld.patch"    // what GitHub refuses us
	FileBundle       = "result.bundle"     // the work as the runner uploaded it; not listed if it holds a secret
	FileUnsearched   = "unsearched.bundle" // in its place, if not all that it holds was searched for one
	FileInstructions = "instructions.md"   // the first prompt as the agent got it
	FileTranscript   = "transcript.jsonl"  // the session's events, which inspect audit verify --file reads
	FileTests        = "tests.json"        // every test of verification, in each column
	FileContext      = "context.json"      // what people wrote that the agent was told, and what it was not
)

// maxEvidenceFile bounds one file made here, in bytes.
const maxEvidenceFile = wire.MaxBundleBytes + 1<<20

// maxRefusedText bounds each text about a refused connection, in bytes.
const maxRefusedText = 500

// Kept is the evidence of a session.
type Kept struct {
	Manifest evidence.Manifest
	Digest   string // of the manifest
}

// Keep writes the evidence of a session that ended without a delivery: its
// work as bundle and patch, what verification showed, the manifest. Once
// written it is read back. Nothing is pushed.
func (p *Publisher) Keep(ctx context.Context, s storage.Session) (Kept, error) {
	release, err := p.turns.Take(ctx, s.ID)
	if err != nil {
		return Kept{}, err
	}
	defer release()
	j, err := p.job(ctx, s.ID)
	if err != nil {
		return Kept{}, err
	}
	step, err := p.steps.Begin(ctx, s.ID, j.session.Generation, "evidence-"+string(j.session.State))
	if err != nil {
		return Kept{}, err
	}
	if step.Done {
		var digest string
		if err := json.Unmarshal(step.Result, &digest); err != nil {
			return Kept{}, fmt.Errorf("read which evidence was kept: %w", err)
		}
		return p.Kept(ctx, s.ID, digest)
	}
	if j.shown, err = evidence.Judge(j.outcome, p.opener(ctx, s.ID)); err != nil {
		return Kept{}, err
	}
	sum, err := p.workOf(ctx, j)
	if err != nil {
		return Kept{}, err
	}
	if sum != "" {
		defer func() { p.remove(j.dir) }()
		if err := p.loadWork(ctx, j, sum); err != nil {
			return Kept{}, err
		}
	}
	kept, err := p.keep(ctx, j)
	if err != nil {
		return Kept{}, err
	}
	return kept, step.End(ctx, kept.Digest)
}

// Kept reads a manifest back.
func (p *Publisher) Kept(ctx context.Context, session, digest string) (Kept, error) {
	r, err := p.blobs.Get(ctx, session, digest)
	if err != nil {
		return Kept{}, fmt.Errorf("read the evidence: %w", err)
	}
	defer r.Close()
	body, err := io.ReadAll(io.LimitReader(r, maxEvidenceFile))
	if err != nil {
		return Kept{}, fmt.Errorf("read the evidence: %w", err)
	}
	k := Kept{Digest: digest}
	if err := json.Unmarshal(body, &k.Manifest); err != nil {
		return Kept{}, fmt.Errorf("read the evidence: %w", err)
	}
	return k, nil
}

// workOf is the digest of the newest work there is, "" for none: the result of
// the attempt that counts, or the last that any attempt uploaded.
func (p *Publisher) workOf(ctx context.Context, j *job) (string, error) {
	if j.outcome.Bundle != "" {
		return j.outcome.Bundle, nil
	}
	b, err := p.db.Q().NewestBundle(ctx, j.session.ID)
	if storage.IsMissing(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for the work of session %s: %w", j.session.ID, err)
	}
	j.outcome.Bundle = b.Sha256
	return b.Sha256, nil
}

// loadWork imports work that will not be pushed. Work that is refused is kept
// as the bundle it is.
func (p *Publisher) loadWork(ctx context.Context, j *job, sum string) error {
	err := p.begin(ctx, j)
	if err == nil {
		rules := p.rules(j)
		if err = p.load(ctx, j, sum, rules); err == nil {
			j.judge(j.im.Change, rules)
		}
	}
	var refused *refusal
	if errors.As(err, &refused) || errors.Is(err, errBaseMissing) {
		p.log.Info("the kept work is not shown as a patch", "session", j.session.ID, "why", err)
		j.im, j.searched = Imported{}, false
		return nil
	}
	return err
}

// keep writes the evidence files and the manifest that names them.
func (p *Publisher) keep(ctx context.Context, j *job) (Kept, error) {
	m, err := p.manifest(ctx, j)
	if err != nil {
		return Kept{}, err
	}
	add := func(name, sum string, n int64) error {
		m.Files = append(m.Files, evidence.File{Name: name, SHA256: sum, Bytes: n})
		return p.listed(ctx, j.session.ID, name, sum, n)
	}
	if len(j.im.Change.Entries) > 0 {
		sum, n, err := p.putPatch(ctx, j, nil)
		if err != nil {
			return Kept{}, err
		}
		if err := add(FilePatch, sum, n); err != nil {
			return Kept{}, err
		}
		if w := j.verdict.Withheld; len(w) > 0 {
			if sum, n, err = p.putPatch(ctx, j, w); err != nil {
				return Kept{}, err
			}
			if err := add(FileWithheld, sum, n); err != nil {
				return Kept{}, err
			}
		}
	}
	if len(j.verdict.Secret) == 0 { // a bundle shows what the patch does not
		name := FileBundle
		if !j.searched {
			name = FileUnsearched
		}
		if err := p.known(ctx, j.session.ID, name, j.outcome.Bundle, add); err != nil {
			return Kept{}, err
		}
	}
	if err := p.known(ctx, j.session.ID, FileInstructions, j.outcome.Instructions, add); err != nil {
		return Kept{}, err
	}
	if c := j.session.Context; c.Valid {
		body := []byte(j.redactor.String(string(c.RawMessage)))
		sum, n, err := p.blobs.Put(ctx, j.session.ID, bytes.NewReader(body), maxEvidenceFile)
		if err != nil {
			return Kept{}, fmt.Errorf("store what the agent was told: %w", err)
		}
		if err := add(FileContext, sum, n); err != nil {
			return Kept{}, err
		}
	}
	if err := p.keepReports(ctx, j, add); err != nil {
		return Kept{}, err
	}
	if err := p.keepPictures(ctx, j, &m, add); err != nil {
		return Kept{}, err
	}
	if err := p.putTranscript(ctx, j, m, add); err != nil {
		return Kept{}, err
	}
	body, digest, err := m.Encode()
	if err != nil {
		return Kept{}, fmt.Errorf("write the manifest: %w", err)
	}
	if _, _, err := p.blobs.Put(ctx, j.session.ID, bytes.NewReader(body), maxEvidenceFile); err != nil {
		return Kept{}, fmt.Errorf("store the manifest: %w", err)
	}
	if err := p.listed(ctx, j.session.ID, FileManifest, digest, int64(len(body))); err != nil {
		return Kept{}, err
	}
	return Kept{m, digest}, nil
}

// known lists a file that is in the store already; one that is not is left out.
func (p *Publisher) known(ctx context.Context, session, name, sum string, add func(string, string, int64) error) error {
	if sum == "" {
		return nil
	}
	n, err := p.blobs.Size(ctx, session, sum)
	if errors.Is(err, storage.ErrBlobMissing) || errors.Is(err, storage.ErrBlobName) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	return add(name, sum, n)
}

func (p *Publisher) listed(ctx context.Context, session, name, sum string, n int64) error {
	err := p.db.Q().KeepEvidence(ctx, storage.KeepEvidenceParams{SessionID: session, Name: name, Sha256: sum, Bytes: n, Now: p.clock.Now()})
	if err != nil {
		return fmt.Errorf("list %s in the evidence: %w", name, err)
	}
	return nil
}

// putPatch stores the change, or what it does to some paths, with secrets
// replaced. The patch is passed on as it is made.
func (p *Publisher) putPatch(ctx context.Context, j *job, paths []string) (sum string, n int64, err error) {
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		w := j.redactor.Writer(pw)
		complete, err := j.cell.patchForPeople(ctx, w, j.im, paths)
		if err == nil {
			err = w.Flush()
		}
		if err == nil && !complete {
			_, err = io.WriteString(pw, "\n[cut here: the patch is longer than is kept; the bundle has all of it]\n")
		}
		pw.CloseWithError(err)
		done <- err
	}()
	sum, n, err = p.blobs.Put(ctx, j.session.ID, pr, 2*maxEvidenceFile)
	pr.CloseWithError(io.ErrClosedPipe) // the writer ends even if the store gave up
	if werr := <-done; err == nil {
		err = werr
	}
	if err != nil {
		return "", 0, fmt.Errorf("store the patch: %w", err)
	}
	return sum, n, nil
}

var notInFileName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

func fileName(s string) string {
	s = notInFileName.ReplaceAllString(s, "-")
	if len(s) > 40 {
		s = s[:40]
	}
	return strings.Trim(s, ".-")
}

// manifest describes the session.
func (p *Publisher) manifest(ctx context.Context, j *job) (evidence.Manifest, error) {
	s := j.session
	t := j.outcome.Times
	m := evidence.Manifest{
		Version: evidence.ManifestVersion, Session: s.ID, Generation: int(s.Generation), Repository: j.repo.String(), Issue: int(s.IssueNumber),
		BaseBranch: s.BaseBranch, BaseSHA: s.BaseSha, Tip: j.outcome.Tip, Tree: j.outcome.Tree,
		SpecSource: s.SpecSource, ContextDigest: s.ContextDigest, Instructions: j.outcome.Instructions,
		Times:       evidence.Times{Restore: t.Restore, Sync: t.Sync, Ready: t.Ready, Work: t.Work, VerifyRestore: t.VerifyRestore, Verify: t.Verify},
		Harness:     evidence.Harness{Kind: j.spec.Harness.Kind, Label: j.spec.Harness.Name()},
		Environment: evidence.Environment{Data: j.spec.Data.Provenance, Setup: len(j.spec.Setup), Image: j.spec.Image},
	}
	for _, v := range j.spec.Services {
		m.Environment.Services = append(m.Environment.Services, v.Name)
	}
	for _, w := range j.verdict.Withheld {
		m.Change.Withheld = append(m.Change.Withheld, j.redactor.String(w))
	}
	for _, r := range j.verdict.Risks {
		m.Risks = append(m.Risks, j.redactor.String(r))
	}
	if err := p.showVerification(ctx, j, &m); err != nil {
		return m, err
	}
	lines := map[string][][2]int{}
	for _, a := range j.im.Change.Added {
		lines[a.Path] = evidence.Ranges(a.Numbers)
	}
	for _, st := range j.im.Stats {
		f := evidence.ChangedFile{Path: j.redactor.String(st.Path), Added: st.Added, Deleted: st.Deleted, Lines: lines[st.Path]}
		if st.Binary {
			f.Added, f.Deleted = -1, -1
		}
		m.Change.Files = append(m.Change.Files, f)
		m.Change.Added += st.Added
		m.Change.Deleted += st.Deleted
	}
	restored, err := p.provenance(ctx, s)
	if err != nil {
		return m, err
	}
	if m.Events, err = p.events(ctx, s); err != nil {
		return m, err
	}
	m.Snapshot, m.Sandbox = restored.Snapshot, restored.Sandbox
	if m.Approvals, err = p.answered(ctx, j); err != nil {
		return m, err
	}
	return m, p.tally(ctx, j, &m)
}

// answered are the approvals that were given and hold.
func (p *Publisher) answered(ctx context.Context, j *job) (out []evidence.Approval, err error) {
	all, err := scheduler.AllowedTo(ctx, p.db.Q(), j.session.ID)
	for _, a := range all {
		out = append(out, evidence.Approval{
			Kind: a.Kind, Words: j.redactor.String(a.Words), Digest: a.Digest, State: a.State, By: a.AnsweredLogin, At: a.AnsweredAt.Time.UTC(),
		})
	}
	return out, err
}

// putTranscript stores the session's events up to those the manifest tells of, as
// an export of the audit chain. Of a record that is too long there is none here.
func (p *Publisher) putTranscript(ctx context.Context, j *job, m evidence.Manifest, add func(string, string, int64) error) error {
	s, all, err := scheduler.Chain(ctx, p.db.Q(), j.session.ID)
	if err != nil || s.Removed != nil {
		return err
	}
	s.Receipt, s.Record.Receipt = nil, nil // it is not there yet, or it names this
	s.Count = m.Events.Count
	if s.Head, err = hex.DecodeString(m.Events.Head); err != nil {
		return fmt.Errorf("write the transcript: %w", err)
	}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		x := audit.NewExporter(pw)
		err := x.Session(s, func(yield func(audit.Event) error) error {
			err := all(func(e audit.Event) error {
				if e.Seq > m.Events.Count {
					return errTold
				}
				return yield(e)
			})
			if errors.Is(err, errTold) {
				return nil
			}
			return err
		})
		err = cmp.Or(err, x.Close())
		pw.CloseWithError(err)
		done <- err
	}()
	sum, n, err := p.blobs.Put(ctx, j.session.ID, pr, maxEvidenceFile)
	pr.CloseWithError(io.ErrClosedPipe)
	if werr := <-done; err == nil {
		err = werr
	}
	switch {
	case errors.Is(err, storage.ErrBlobTooLarge):
		return nil
	case err != nil:
		return fmt.Errorf("store the transcript: %w", err)
	}
	return add(FileTranscript, sum, n)
}

var errTold = errors.New("all that is told of")

// events is the record up to the event that brought the session into its state,
// so that a repetition says the same though there are further ones by then.
func (p *Publisher) events(ctx context.Context, s storage.Session) (evidence.Events, error) {
	e, err := p.db.Q().LastStateEvent(ctx, s.ID)
	if storage.IsMissing(err) {
		return evidence.Events{Count: s.EventsCount, Head: hex.EncodeToString(s.EventsHead)}, nil
	}
	if err != nil {
		return evidence.Events{}, fmt.Errorf("read the record of session %s: %w", s.ID, err)
	}
	return evidence.Events{Count: e.Seq, Head: hex.EncodeToString(e.Hash)}, nil
}

// tally adds what the session used and tried, without secrets.
func (p *Publisher) tally(ctx context.Context, j *job, m *evidence.Manifest) (err error) {
	q, s := p.db.Q(), j.session
	if m.Agent, err = tally.Agent(ctx, q, s.ID); err != nil {
		return err
	}
	if m.Model, err = tally.Model(ctx, q, s, j.spec); err != nil {
		return err
	}
	if m.Model.Name != "" {
		m.Model.PricesAsOf = p.pricesAsOf
	}
	if m.Egress, err = tally.Egress(ctx, q, s, j.spec); err != nil {
		return err
	}
	for i := range m.Egress.Refused {
		r := &m.Egress.Refused[i]
		for _, text := range []*string{&r.Host, &r.Command, &r.Reason} {
			*text = redact.Cut(j.redactor.String(*text), maxRefusedText)
		}
	}
	return nil
}

// Provenance is where a session's clones came from and where it ran.
type Provenance struct {
	Snapshot evidence.Snapshot
	Sandbox  evidence.Sandbox
}

// taken fills in why an attempt was given its snapshot and what its base needs.
func taken(at storage.Attempt, sn *evidence.Snapshot) error {
	if at.Taken.Valid {
		var t scheduler.Taken
		if err := json.Unmarshal(at.Taken.RawMessage, &t); err != nil {
			return err
		}
		sn.Why, sn.Stale, sn.Image = t.Why, t.Stale, t.Image
		if t.Drift != nil {
			sn.Behind = &t.Drift.Commits
		}
	}
	if at.Drifted.Valid {
		var d wire.Drifted
		if err := json.Unmarshal(at.Drifted.RawMessage, &d); err != nil {
			return err
		}
		sn.Lockfiles = d.Lockfiles
	}
	return nil
}

// Provenance of the attempt that counts, as far as it is known by now.
func (p *Publisher) Provenance(ctx context.Context, s storage.Session) (Provenance, error) {
	return p.provenance(ctx, s)
}

func (p *Publisher) provenance(ctx context.Context, s storage.Session) (Provenance, error) {
	var out Provenance
	out.Snapshot.ID = s.SnapshotID
	at, err := p.db.Q().ReportAttempt(ctx, storage.ReportAttemptParams{SessionID: s.ID, Generation: s.Generation})
	if storage.IsMissing(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("look up the attempt of session %s: %w", s.ID, err)
	}
	var r wire.Restored
	if at.Restore.Valid {
		if err := json.Unmarshal(at.Restore.RawMessage, &r); err != nil {
			return out, fmt.Errorf("read how session %s was restored: %w", s.ID, err)
		}
	}
	out.Snapshot = evidence.Snapshot{ID: at.SnapshotID, Commit: r.Commit, Store: r.Store, Restore: r.Duration}
	out.Sandbox = evidence.Sandbox{Tier: r.Tier, Limits: r.Limits}
	if err := taken(at, &out.Snapshot); err != nil {
		return out, fmt.Errorf("read why session %s took its snapshot: %w", s.ID, err)
	}
	snap, err := p.db.Q().ReportSnapshot(ctx, at.SnapshotID)
	if storage.IsMissing(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("look up the snapshot of session %s: %w", s.ID, err)
	}
	out.Snapshot.Commit = snap.CommitSha
	if out.Snapshot.Store == "" {
		out.Snapshot.Store = snap.Store
	}
	made := snap.CreatedAt
	if snap.PublishedAt.Valid {
		made = snap.PublishedAt.Time
	}
	out.Snapshot.Age = max(0, at.StartedAt.Sub(made)).Truncate(time.Second)
	out.Snapshot.Drift = snap.CommitSha != s.BaseSha
	return out, nil
}
