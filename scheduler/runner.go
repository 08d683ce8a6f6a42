package scheduler

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/sqlc-dev/pqtype"

	"inspect/checks/redact"
	"inspect/envs/wire"
	"inspect/scheduler/audit"
	"inspect/storage"
)

// The runner's side of the machine API. Errors are *wire.Error.

// Runner is an authenticated caller: one attempt of one session.
type Runner struct {
	Session    string
	Generation int
	bearer     string // what it came with
}

// Codes of wire.Error.
const (
	codeStale        = "stale_generation"
	codeUnauthorized = "unauthorized"
	codeTooLarge     = "too_large"
	codeNotFound     = "not_found"
	codeForbidden    = "forbidden"
	codeBadRequest   = "bad_request"
	codeUnavailable  = "unavailable"
)

func refuse(code, format string, args ...any) error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// unavailable hides an error of ours from a machine and tells it to come back.
func (s *Scheduler) unavailable(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var we *wire.Error
	if errors.As(err, &we) {
		return we
	}
	if ctx.Err() == nil {
		s.log.Error("a machine's call failed", "error", err)
	}
	return refuse(codeUnavailable, "the control plane cannot answer now; try again")
}

// Spec is all a runner needs to know about its attempt.
func (s *Scheduler) Spec(ctx context.Context, r Runner) (wire.Spec, error) {
	sess, a, err := s.peek(ctx, r)
	if err != nil {
		return wire.Spec{}, err
	}
	out, err := s.spec(ctx, sess, a)
	if err == nil && s.o.MirrorNode != "" && a.Node != s.o.MirrorNode {
		// What comes of it is read here, over its base.
		if err := s.Fetch(ctx, s.o.MirrorNode, sess.RepositoryID, sess.BaseBranch, sess.BaseRef, sess.BaseSha); err != nil {
			s.log.Warn("the base of a session's result is fetched later than wanted", "session", sess.ID, "error", err)
		}
	}
	return out, s.unavailable(ctx, err)
}

func (s *Scheduler) spec(ctx context.Context, sess storage.Session, a storage.Attempt) (wire.Spec, error) {
	q := s.db.Q()
	sp, err := sessionSpec(sess)
	if err != nil {
		return wire.Spec{}, err
	}
	repo, err := q.GetRepositoryRow(ctx, sess.RepositoryID)
	if err != nil {
		return wire.Spec{}, err
	}
	snap, err := q.GetSnapshot(ctx, a.SnapshotID)
	if err != nil {
		return wire.Spec{}, err
	}
	if a.Allocation != "" && snap.Node == a.Node {
		// The engine chose the node: the commit may still be on its way there. If it
		// cannot be had the runner will find that, and say so.
		have, _, end, err := s.fetched(ctx, q, sess, snap)
		if err != nil {
			return wire.Spec{}, err
		}
		if !have && end == nil {
			return wire.Spec{}, refuse(codeUnavailable, "the session's commit is being fetched on node %s; try again", a.Node)
		}
	}
	out := wire.Spec{
		Session: sess.ID, Generation: int(a.Generation),
		Repository: repo.Owner + "/" + repo.Name, RepositoryID: repo.ID,
		BaseBranch: sess.BaseBranch, BaseSHA: sess.BaseSha,
		SnapshotID: snap.ID, SnapshotCommit: snap.CommitSha, Environment: sess.EnvironmentID, Image: sp.Image,
		Prompt: sess.Prompt, InstructionsSHA: sess.InstructionsSha, Harness: wire.Harness{Kind: sp.Harness.Kind, Label: sp.Harness.Name()}, Setup: wireSteps(sp.Setup), Limits: wireLimits(sp.Limits),
		AuthorName: s.o.AuthorName, AuthorEmail: s.o.AuthorEmail,
		WorkDeadline: a.WorkDeadline, EndDeadline: a.Deadline, Compare: true,
	}
	if sp.Harness.Command != "" {
		out.Harness.Command = []string{"sh", "-c", sp.Harness.Command}
	}
	if out.Harness.Model = sp.Harness.Model; out.Harness.Model != "" && s.o.ModelAPI != nil {
		if out.Harness.API, err = s.o.ModelAPI(sp.Harness.Model, sp.Harness.Kind); err != nil {
			return wire.Spec{}, refuse(codeBadRequest, "%v", err)
		}
	}
	out.Internal = s.o.EgressInternal
	out.Services, out.Egress, out.Inject = wireServices(sp.Services), sp.DeclaredEgress(), wireInject(sp.Inject)
	out.SetupEgress = slices.Concat(sp.Egress, sp.Allowed) // also what was only guessed
	for _, v := range sp.Verify {
		out.Verify = append(out.Verify, wireVerify(v))
	}
	if err := leaveEgress(ctx, q, &out); err != nil {
		return wire.Spec{}, err
	}
	b, err := lastWork(ctx, q, sess, a.Generation)
	if err == nil {
		err = s.adopt(ctx, sess, b)
	}
	if err != nil && !storage.IsMissing(err) {
		return wire.Spec{}, err
	}
	if a.Fork.Valid {
		err = json.Unmarshal(a.Fork.RawMessage, &out.Fork)
	} else if err == nil {
		out.Resume = &wire.Resume{Generation: int(b.Generation), Turn: int(b.Turn), SHA256: b.Sha256, Tip: b.Tip}
	}
	if err != nil && !storage.IsMissing(err) {
		return wire.Spec{}, err
	}
	now, err := s.boundSession(ctx, q, sess)
	if err != nil {
		return wire.Spec{}, err
	}
	if out.WorkGrant, err = s.grant(sess, a, out, wire.PurposeWork, now.Tier, sp.WithSecrets(), sp.KeepFailed > 0); err != nil {
		return wire.Spec{}, err
	}
	out.VerifyGrant, err = s.grant(sess, a, out, wire.PurposeVerify, now.Tier, sp.WithSecrets(), false)
	return out, err
}

// sockets are the ways out that a sandbox of a purpose gets: the model only
// for the agent, the egress proxy only where the environment declares it or
// setup may run again.
func sockets(sp wire.Spec, purpose string) (out []string) {
	if purpose == wire.PurposeWork && sp.Harness.Model != "" {
		out = append(out, wire.SocketModel)
	}
	if len(sp.Egress) > 0 || len(sp.SetupEgress) > 0 {
		out = append(out, wire.SocketEgress)
	}
	return out
}

func (s *Scheduler) grant(sess storage.Session, a storage.Attempt, sp wire.Spec, purpose, tier string, compartments int, keeps bool) (string, error) {
	verbs := []string{wire.VerbRestore, wire.VerbSandbox, wire.VerbTurn, wire.VerbDiscard}
	if purpose == wire.PurposeVerify {
		verbs = []string{wire.VerbRestore, wire.VerbSandbox, wire.VerbDiscard}
	} else if keeps {
		verbs = verbs[:3] // discarding it is ours: it is kept if the session fails
	}
	var fork *wire.Fork
	if purpose == wire.PurposeWork {
		fork = sp.Fork
	}
	return wire.SignGrant(s.o.GrantKey, wire.Grant{
		Verbs: verbs, Fork: fork,
		Node: a.Node, Session: sess.ID, Generation: int(a.Generation), Purpose: purpose,
		Environment: sess.EnvironmentID, Snapshot: a.SnapshotID, RepositoryID: sess.RepositoryID, Image: sp.Image,
		Limits: sp.Limits, PeerUID: s.o.RunnerUID, Sockets: sockets(sp, purpose), Compartments: compartments, Tier: tier, Expires: a.Deadline.Add(tokenSlack),
	})
}

// Directives answers a long poll with what the control plane wants of a runner.
func (s *Scheduler) Directives(ctx context.Context, r Runner, after int64) (wire.DirectivesReply, error) {
	var reply wire.DirectivesReply
	err := s.poll(ctx, "session:"+r.Session, func(ctx context.Context) (bool, error) {
		if _, _, err := s.peek(ctx, r); err != nil {
			return false, err
		}
		rows, err := s.db.Q().DirectivesAfter(ctx, storage.DirectivesAfterParams{
			SessionID: r.Session, Generation: int32(r.Generation), ID: after,
		})
		if err != nil {
			return false, err
		}
		for _, row := range rows {
			d := wire.Directive{ID: row.ID, Kind: row.Kind}
			switch row.Kind {
			case wire.DirectiveStop:
				d.Stop = new(wire.StopDirective)
				err = json.Unmarshal(row.Data.RawMessage, d.Stop)
			case wire.DirectivePrompt:
				d.Prompt = new(wire.PromptDirective)
				err = json.Unmarshal(row.Data.RawMessage, d.Prompt)
			case wire.DirectiveAllowHost:
				d.AllowHost = new(wire.AllowHostDirective)
				err = json.Unmarshal(row.Data.RawMessage, d.AllowHost)
			case wire.DirectiveBudget:
				d.Budget = new(wire.BudgetDirective)
				err = json.Unmarshal(row.Data.RawMessage, d.Budget)
			}
			if err != nil {
				return false, fmt.Errorf("reading directive %d: %w", row.ID, err)
			}
			reply.Directives = append(reply.Directives, d)
		}
		return len(rows) > 0, nil
	})
	return reply, s.unavailable(ctx, err)
}

// Beat takes a sign of life. In the second half of its life a token is renewed;
// the one the runner came with stays good beside the new one.
func (s *Scheduler) Beat(ctx context.Context, r Runner, _ wire.Heartbeat) (wire.HeartbeatReply, error) {
	var reply wire.HeartbeatReply
	err := s.current(ctx, r, func(tx *storage.Tx, _ storage.Session, a storage.Attempt) error {
		now := s.clock.Now()
		keep, until := a.TokenHash, a.TokenExpires
		last := r.bearer != "" && subtle.ConstantTimeCompare(hashOf(r.bearer), a.TokenHash) == 1
		if last && a.TokenIssued.Valid && now.Sub(a.TokenIssued.Time) <= tokenLife/2 {
			reply = wire.HeartbeatReply{Token: r.bearer, Expires: a.TokenExpires.Time}
			return tx.Q().SetHeartbeat(ctx, storage.SetHeartbeatParams{SessionID: a.SessionID, Generation: a.Generation, Now: now})
		}
		if r.bearer != "" && !last { // the renewed one got lost
			keep, until = a.PrevTokenHash, a.PrevTokenExpires
		}
		t, err := s.issue(ctx, tx.Q(), a, keep, until)
		reply = wire.HeartbeatReply(t)
		return err
	})
	return reply, err
}

// Outcome takes what came of an attempt. The first one counts; saying it again
// is harmless.
func (s *Scheduler) Outcome(ctx context.Context, r Runner, o wire.Outcome) error {
	if err := checkOutcome(&o); err != nil {
		return err
	}
	if err := s.learn(ctx); err != nil {
		return s.unavailable(ctx, err)
	}
	return s.current(ctx, r, func(tx *storage.Tx, sess storage.Session, a storage.Attempt) error {
		if a.Outcome.Valid || Terminal(sess.State) {
			return nil
		}
		if o.Bundle != "" {
			b, err := tx.Q().GetBundle(ctx, storage.GetBundleParams{SessionID: sess.ID, Sha256: o.Bundle})
			if err != nil {
				return missingAs(err, refuse(codeBadRequest, "the outcome names a bundle that was not uploaded"))
			}
			if b.Tip != o.Tip {
				return refuse(codeBadRequest, "the outcome names another tip than its bundle was uploaded with")
			}
		}
		data, err := audit.CanonicalTexts(encode(o), s.o.Redactor.Known)
		if err != nil {
			return refuse(codeBadRequest, "the outcome cannot be stored: %v", err)
		}
		if err := tx.Q().SetAttemptOutcome(ctx, storage.SetAttemptOutcomeParams{
			SessionID: sess.ID, Generation: a.Generation,
			Outcome: pqtype.NullRawMessage{RawMessage: data, Valid: true},
		}); err != nil {
			return err
		}
		if err := tx.Q().WakeSession(ctx, storage.WakeSessionParams{ID: sess.ID, At: s.clock.Now()}); err != nil {
			return err
		}
		return s.InsertReconcile(ctx, tx, sess.ID)
	})
}

var (
	objectName = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	sumName    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	reasonName = regexp.MustCompile(`^[a-z0-9_]{0,40}$`)
)

// checkOutcome bounds what a runner says about its attempt.
func checkOutcome(o *wire.Outcome) error {
	switch o.Kind {
	case wire.OutcomeVerified, wire.OutcomeNoChange, wire.OutcomeFailed, wire.OutcomeStopped, wire.OutcomeTimedOut,
		wire.OutcomeOverBudget, wire.OutcomeInfrastructure:
	default:
		return refuse(codeBadRequest, "%.40q is no outcome", o.Kind)
	}
	blankOr := func(re *regexp.Regexp, v string) bool { return v == "" || re.MatchString(v) }
	switch {
	case !reasonName.MatchString(o.Reason):
		return refuse(codeBadRequest, "the reason is not a code")
	case !blankOr(sumName, o.Bundle), !blankOr(objectName, o.Tip), !blankOr(objectName, o.Tree), !blankOr(sumName, o.Instructions):
		return refuse(codeBadRequest, "bundle, tip, tree or instructions is not a hash")
	}
	if len(o.ServiceLogs) > wire.MaxServiceLogs || slices.ContainsFunc(o.ServiceLogs, func(l wire.ServiceLog) bool {
		return !slices.Contains([]string{"session", "verify", "base", "base-tests"}, l.Where) || len(l.Service) > 100 || !sumName.MatchString(l.SHA256)
	}) {
		return refuse(codeBadRequest, "the logs of services are malformed")
	}
	o.Words = clip(o.Words, maxWords)
	if err := checkResults(o.Results); err != nil {
		return err
	}
	for _, c := range []*wire.Column{o.Base, o.BaseTests} {
		if c == nil {
			continue
		}
		c.Words = clip(c.Words, maxWords)
		if err := checkResults(c.Results); err != nil {
			return err
		}
	}
	return nil
}

func checkResults(results []wire.VerifyResult) error {
	if len(results) > 100 {
		return refuse(codeBadRequest, "more than 100 verification results")
	}
	for i := range results {
		r := &results[i]
		runs := append([]wire.VerifyResult{*r}, r.Again...)
		for k, run := range runs {
			if len(run.Name) > 200 || len(run.Run) > 8192 || len(run.Report) > 300 || len(run.Coverage) > 300 || len(run.Signal) > 40 ||
				!sumOrBlank(run.Stdout) || !sumOrBlank(run.Stderr) || run.Duration < 0 || len(runs) > 1+wire.MaxAgain || k > 0 && len(run.Again) > 0 ||
				!filesFit(run.Reports) || !filesFit(run.CoverageFiles) {
				return refuse(codeBadRequest, "verification result %d is malformed", i+1)
			}
		}
	}
	return nil
}

func sumOrBlank(sum string) bool { return sum == "" || sumName.MatchString(sum) }

func filesFit(files []wire.ReportFile) bool {
	return len(files) <= wire.MaxReportFiles+1 && !slices.ContainsFunc(files, func(f wire.ReportFile) bool {
		return len(f.Path) > 2048 || len(f.Problem) > 500 || !sumOrBlank(f.SHA256)
	})
}

// maxBundlesBytes bounds all bundles of one session together, also those that
// were replaced.
const maxBundlesBytes = 1 << 30

// PutArtifact stores one artifact of a session, named by its sha256. Storing
// the same again is harmless. One that holds the value of a secret is refused:
// it cannot be taken out of what is named by its content.
func (s *Scheduler) PutArtifact(ctx context.Context, r Runner, sum string, content io.Reader) error {
	if !sumName.MatchString(sum) {
		return refuse(codeBadRequest, "an artifact is named by its sha256 in lower case hexadecimal")
	}
	if _, _, err := s.peek(ctx, r); err != nil {
		return err
	}
	q := s.db.Q()
	if _, err := q.GetArtifact(ctx, storage.GetArtifactParams{SessionID: r.Session, Sha256: sum}); err == nil {
		return nil
	} else if !storage.IsMissing(err) {
		return s.unavailable(ctx, err)
	}
	used, err := q.ArtifactBytes(ctx, r.Session)
	if err != nil {
		return s.unavailable(ctx, err)
	}
	if err := s.learn(ctx); err != nil {
		return s.unavailable(ctx, err)
	}
	n, err := s.o.Blobs.PutNamed(ctx, r.Session, sum, s.o.Redactor.Guard(content), max(wire.MaxArtifactBytes-used, 0))
	if err != nil {
		return s.blobError(ctx, err, "the artifacts of one session may have %d bytes together", int64(wire.MaxArtifactBytes))
	}
	ctx = context.WithoutCancel(ctx) // it is stored: it counts, also if the runner hangs up now
	return s.current(ctx, r, func(tx *storage.Tx, _ storage.Session, _ storage.Attempt) error {
		// Others may have been stored meanwhile; the row's lock makes this count.
		used, err := tx.Q().ArtifactBytes(ctx, r.Session)
		if err != nil {
			return err
		}
		if used+n > wire.MaxArtifactBytes {
			return refuse(codeTooLarge, "the artifacts of one session may have %d bytes together", int64(wire.MaxArtifactBytes))
		}
		return tx.Q().InsertArtifact(ctx, storage.InsertArtifactParams{SessionID: r.Session, Sha256: sum, Bytes: n, CreatedAt: s.clock.Now()})
	})
}

// maxTurn is the highest number of a turn.
const maxTurn = 1_000_000

// PutBundle stores the work of one turn. The same turn may be stored again,
// also with other content: the last one counts.
func (s *Scheduler) PutBundle(ctx context.Context, r Runner, turn int, tip, sum string, content io.Reader) error {
	if !sumName.MatchString(sum) || !objectName.MatchString(tip) || turn < 0 || turn > maxTurn {
		return refuse(codeBadRequest, "a bundle needs a turn, the commit it ends at and its sha256")
	}
	if _, _, err := s.peek(ctx, r); err != nil {
		return err
	}
	used, err := s.db.Q().BundleBytes(ctx, r.Session)
	if err != nil {
		return s.unavailable(ctx, err)
	}
	n, err := s.o.Blobs.PutNamed(ctx, r.Session, sum, content, min(wire.MaxBundleBytes, max(maxBundlesBytes-used, 0)))
	if err != nil {
		return s.blobError(ctx, err, "a bundle may have %d bytes, all of a session %d", int64(wire.MaxBundleBytes), int64(maxBundlesBytes))
	}
	ctx = context.WithoutCancel(ctx) // it is stored: it counts, also if the runner hangs up now
	return s.current(ctx, r, func(tx *storage.Tx, _ storage.Session, a storage.Attempt) error {
		if err := tx.Q().UpsertBundle(ctx, storage.UpsertBundleParams{
			SessionID: r.Session, Generation: a.Generation, Turn: int32(turn), Sha256: sum, Bytes: n, Tip: tip, CreatedAt: s.clock.Now(),
		}); err != nil {
			return err
		}
		// Others may have been stored meanwhile; the row's lock makes this count.
		used, err := tx.Q().BundleBytes(ctx, r.Session)
		if err == nil && used > maxBundlesBytes {
			err = refuse(codeTooLarge, "all bundles of a session may have %d bytes together", int64(maxBundlesBytes))
		}
		return err
	})
}

func (s *Scheduler) blobError(ctx context.Context, err error, format string, args ...any) error {
	switch {
	case errors.Is(err, redact.ErrKnown):
		return refuse(codeBadRequest, "the value of a secret stands in it, so it is not kept")
	case errors.Is(err, storage.ErrBlobTooLarge):
		return refuse(codeTooLarge, format, args...)
	case errors.Is(err, storage.ErrBlobMismatch):
		return refuse(codeBadRequest, "the content does not have the sha256 it was sent under")
	}
	return s.unavailable(ctx, err)
}

// Bundle opens a bundle of the runner's own session, of any generation, or the
// one that it was forked with.
func (s *Scheduler) Bundle(ctx context.Context, r Runner, sum string) (io.ReadCloser, error) {
	if !sumName.MatchString(sum) {
		return nil, refuse(codeBadRequest, "a bundle is named by its sha256")
	}
	sess, _, err := s.peek(ctx, r)
	if err != nil {
		return nil, err
	}
	none := refuse(codeNotFound, "this session has no such bundle")
	b, err := s.db.Q().GetBundle(ctx, storage.GetBundleParams{SessionID: r.Session, Sha256: sum})
	if err != nil {
		return nil, s.unavailable(ctx, missingAs(err, none))
	}
	if err := s.adopt(ctx, sess, b); err != nil {
		return nil, s.unavailable(ctx, err)
	}
	rc, err := s.o.Blobs.Get(ctx, r.Session, sum)
	if errors.Is(err, storage.ErrBlobMissing) {
		return nil, none
	}
	return rc, s.unavailable(ctx, err)
}

// missingAs turns "no such row" into another error.
func missingAs(err, other error) error {
	if storage.IsMissing(err) {
		return other
	}
	return err
}

var idForm = regexp.MustCompile(`^[a-z2-7]{10}$`)

func validID(id string) bool { return idForm.MatchString(id) }

func validGeneration(g int) bool { return g >= 1 && g <= 1000 }

// leaveEgress takes what earlier attempts sent and received from what this one
// may: the limit is the session's.
func leaveEgress(ctx context.Context, q *storage.Queries, sp *wire.Spec) error {
	if sp.Limits.EgressBytes == 0 {
		return nil
	}
	used, err := q.EgressBytes(ctx, storage.EgressBytesParams{SessionID: sp.Session, Before: int32(sp.Generation)})
	if err != nil {
		return fmt.Errorf("adding up what session %s sent and received: %w", sp.Session, err)
	}
	sp.Limits.EgressBytes = max(1, sp.Limits.EgressBytes-used.Sent-used.Received) // 0 would be no limit
	return nil
}
