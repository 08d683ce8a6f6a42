package scheduler

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sqlc-dev/pqtype"

	"inspect/envs/spec"
	"inspect/storage"
)

// NewSession is what a session is created from. All of it is pinned: a later
// change of the issue, the file or the policy does not change the session.
type NewSession struct {
	InstallationID int64
	RepositoryID   int64
	IssueNumber    int
	IntentKey      string // one session for each intent
	RequesterID    int64
	RequesterLogin string
	Title          string
	Request        string // what the person asked for
	Prompt         string // what the agent is told
	ContextDigest  string
	BaseBranch     string
	BaseSHA        string
	// InstructionsSHA is the commit of the default branch whose AGENTS.md the
	// agent is given; empty: BaseSHA.
	InstructionsSHA string
	EnvironmentID   string // of EnsureEnvironment
	Spec            spec.Spec
	SpecSource      string // ".inspect.yml" or "detected from go.mod"
	Priority        int    // higher goes first; zero is usual
	Pull            Pull   // that it works on; zero: none
	Locked          bool   // nothing is to be written into its conversation
	// Context lists what the agent was told of what people wrote, and what it was
	// not; JSON, nil: not known.
	Context []byte
}

// Pull is a pull request whose head a session works on: its base commit is that
// head.
type Pull struct {
	Number     int
	HeadRepoID int64  // 0: the fork was deleted
	Deliver    string // Deliver…
}

// What becomes of a session's result.
const (
	DeliverPull  = "pull"  // a branch of its own and a draft pull request against its base branch
	DeliverHead  = "head"  // a commit onto the head branch of the pull request it works on
	DeliverPatch = "patch" // a patch in the evidence
)

// ref is where the head can be fetched, also when it is in a fork or its branch is gone.
func (p Pull) ref() string { return fmt.Sprintf("refs/pull/%d/head", p.Number) }

// Create adds a session to the queue in the caller's transaction; the look at
// it is enqueued there too. A second session for the same intent is an error
// that storage.IsUnique(err, "sessions_intent_key_key") tells.
func (s *Scheduler) Create(ctx context.Context, tx *storage.Tx, n NewSession) (storage.Session, error) {
	switch {
	case n.IntentKey == "", n.EnvironmentID == "", n.BaseSHA == "", n.BaseBranch == "":
		return storage.Session{}, errors.New("a session needs an intent, an environment and a base commit")
	case n.Pull.Number > 0 && n.Pull.Deliver == "":
		return storage.Session{}, errors.New("a session on a pull request needs to know where its result goes")
	case n.Spec.Limits.Timeout <= 0:
		return storage.Session{}, errors.New("a session needs a time limit")
	}
	now := s.clock.Now()
	row, err := insertSession(ctx, tx.Q(), newID(), n, now, now.Add(s.times.Queue))
	if err != nil {
		return storage.Session{}, err
	}
	return row, s.InsertReconcile(ctx, tx, row.ID)
}

// insertSession writes a session's row and the first event of its record.
func insertSession(ctx context.Context, q *storage.Queries, id string, n NewSession, now, deadline time.Time) (storage.Session, error) {
	row, err := q.InsertSession(ctx, storage.InsertSessionParams{
		ID: id, InstallationID: n.InstallationID, RepositoryID: n.RepositoryID,
		IssueNumber: int32(n.IssueNumber), IntentKey: n.IntentKey,
		RequesterID: n.RequesterID, RequesterLogin: n.RequesterLogin,
		Title: text(n.Title), Request: text(n.Request), Prompt: text(n.Prompt), ContextDigest: n.ContextDigest,
		BaseBranch: n.BaseBranch, BaseSha: n.BaseSHA, EnvironmentID: n.EnvironmentID,
		Spec: encode(n.Spec), SpecSource: n.SpecSource, QueueReason: "waiting for its turn",
		Priority: int32(n.Priority), CreatedAt: now, Deadline: deadline, NextCheckAt: now,
	})
	if err != nil {
		return storage.Session{}, fmt.Errorf("creating a session: %w", err)
	}
	row.Budget, row.InstructionsSha = int64(n.Spec.Limits.Budget), n.InstructionsSHA
	if err := q.SetSessionMeans(ctx, storage.SetSessionMeansParams{ID: row.ID, Budget: row.Budget, InstructionsSha: row.InstructionsSha}); err != nil {
		return storage.Session{}, fmt.Errorf("creating a session: %w", err)
	}
	if err := setPull(ctx, q, &row, n); err != nil {
		return storage.Session{}, err
	}
	if err := addPerson(ctx, q, row.ID, Person{n.RequesterID, n.RequesterLogin}, RoleStarted, now); err != nil {
		return storage.Session{}, err
	}
	// Digests of what is pinned, so that a row changed later is found out.
	e, err := ownEvent(0, EventCreated, now, map[string]any{
		"requester": n.RequesterLogin, "requester_id": n.RequesterID, "intent": n.IntentKey,
		"repository_id": n.RepositoryID, "issue": n.IssueNumber, "base_branch": n.BaseBranch, "base_sha": n.BaseSHA,
		"spec_source": n.SpecSource, "spec_sha256": digestOf(encode(n.Spec)), "environment": n.EnvironmentID,
		"request_sha256": digestOf([]byte(row.Request)), "prompt_sha256": digestOf([]byte(row.Prompt)),
		"context": n.ContextDigest, "instructions_sha": n.InstructionsSHA, "budget": row.Budget,
		"pull": n.Pull.Number, "deliver": row.Deliver,
	})
	if err != nil {
		return storage.Session{}, err
	}
	return row, appendEvents(ctx, q, &row, e)
}

// setPull writes what only some sessions have.
func setPull(ctx context.Context, q *storage.Queries, row *storage.Session, n NewSession) error {
	if n.Pull.Number == 0 && !n.Locked && n.Context == nil {
		return nil
	}
	row.Locked, row.Context = n.Locked, pqtype.NullRawMessage{RawMessage: n.Context, Valid: n.Context != nil}
	if n.Pull.Number > 0 {
		row.PullNumber, row.HeadRepoID, row.BaseRef = int32(n.Pull.Number), n.Pull.HeadRepoID, n.Pull.ref()
		row.Deliver = n.Pull.Deliver
	}
	if err := q.SetSessionPull(ctx, storage.SetSessionPullParams{
		ID: row.ID, PullNumber: row.PullNumber, HeadRepoID: row.HeadRepoID, BaseRef: row.BaseRef,
		Deliver: row.Deliver, Locked: row.Locked, Context: row.Context,
	}); err != nil {
		return fmt.Errorf("creating a session: %w", err)
	}
	return nil
}

// digestOf is a SHA-256 in hexadecimal.
func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// newID returns ten characters a-z2-7: 50 bits of chance.
func newID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	for i := range b {
		b[i] = idAlphabet[b[i]&31]
	}
	return string(b[:])
}

// sessionSpec is the pinned spec of a session.
func sessionSpec(sess storage.Session) (spec.Spec, error) {
	sp := spec.Spec{Refresh: spec.Default().Refresh} // specs stored before there was one lack it
	if err := json.Unmarshal(sess.Spec, &sp); err != nil {
		return sp, fmt.Errorf("the stored configuration of session %s cannot be read: %w", sess.ID, err)
	}
	return sp, nil
}

// text makes a string storable: Postgres takes neither NUL nor bytes that are not UTF-8.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// clip is text of at most n bytes, cut on a character's boundary.
func clip(s string, n int) string {
	s = text(s)
	if len(s) <= n {
		return s
	}
	cut := n - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// clipTail keeps the end instead, where a command's error usually is.
func clipTail(s string, n int) string {
	s = text(s)
	if len(s) <= n {
		return s
	}
	cut := len(s) - n + len("…")
	for cut < len(s) && !utf8.RuneStart(s[cut]) {
		cut++
	}
	return "…" + s[cut:]
}
