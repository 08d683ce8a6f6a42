package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"inspect/envs/wire"
	"inspect/storage"
)

// Effects are the things the scheduler needs done in the world but does not
// do itself. app implements them, cmd wires them. Each is idempotent: it looks
// up what it did before it does it again. An error that wraps ErrPermanent is
// not retried.
type Effects interface {
	// Publish judges the session's bundle,
	// pushes it and finds or creates the draft pull request.
	Publish(ctx context.Context, s storage.Session) (Published, error)
	// Report brings the session's one comment, and at the end its check run, up
	// to date. It may choose not to write (debounce); final reports are never
	// debounced. The scheduler calls it after state changes and sets
	// sessions.reported_at once it succeeded in a terminal state.
	Report(ctx context.Context, s storage.Session) error
	// GitToken mints a read-only token for one repository, for a node's mirror.
	// Work on the repository of asks for it: the same, or one that has it as a
	// submodule.
	GitToken(ctx context.Context, repositoryID, of int64) (wire.GitToken, error)
	// GitTokenDone says that no node has work on the repository in hand any
	// more: all tokens that this work asked for are revoked.
	GitTokenDone(ctx context.Context, repositoryID int64)
}

// Published is what Publish did. Exactly one of its fields is set.
type Published struct {
	Receipt *Receipt
	Refusal *Refusal
	Ask     *Ask // nothing was pushed; Publish is called again when it is allowed
}

// Refusal says why a result was not pushed. The work stays in the evidence.
type Refusal struct {
	State  storage.SessionState // failed, no_change or stopped
	Reason string
	Words  string
}

// Receipt proves a delivery; success is reported only with one that was read
// back from the remote.
type Receipt struct {
	Branch      string `json:"branch"`
	HeadSHA     string `json:"head_sha"` // read back from the remote
	Tree        string `json:"tree"`     // equals the verified tree
	PullRequest int    `json:"pull_request"`
	URL         string `json:"url"`
	Evidence    string `json:"evidence"`    // sha256 of the evidence manifest
	EventsHead  string `json:"events_head"` // head of the event chain, hex
	EventsCount int64  `json:"events_count"`
	// Withheld lists paths that were not pushed because GitHub refuses them to us.
	Withheld []string `json:"withheld,omitempty"`
	// Signed: GitHub made and signed the commit, and says that it is verified.
	Signed bool `json:"signed,omitempty"`
	// Reviewers are the code owners who were asked to review the pull request:
	// logins, and teams as org/slug. Unasked could not be, each with a reason.
	Reviewers []string `json:"reviewers,omitempty"`
	Unasked   []string `json:"unasked,omitempty"`
}

// Engine runs attempts. It is deliberately narrow: it starts and stops
// processes and says whether they are over; what came of an attempt is said by
// its runner alone. All methods may be called from several goroutines.
type Engine interface {
	// Name is "local" or "nomad".
	Name() string
	// Start begins an attempt. It is called again with the same attempt after a
	// crash and must then find what it started before instead of starting twice.
	// The reference it returns is stored and given back to the other methods.
	Start(ctx context.Context, a Attempt) (json.RawMessage, error)
	// Stop ends an attempt and all its processes. Not found is success.
	Stop(ctx context.Context, ref json.RawMessage) error
	// State says whether the attempt still runs.
	State(ctx context.Context, ref json.RawMessage) (EngineState, error)
	// Logs returns the end of what the attempt's runner wrote, at most max bytes.
	// Nothing there is no error.
	Logs(ctx context.Context, ref json.RawMessage, max int) ([]byte, error)
	// List returns every attempt that the engine still knows, running or over.
	List(ctx context.Context) ([]Listed, error)
	// Forget ends an attempt like Stop, and removes what the engine keeps of it
	// too, its log included. It is then no longer listed. Not found is success.
	Forget(ctx context.Context, ref json.RawMessage) error
}

// Attempt is what an engine gets to start.
type Attempt struct {
	Session    string
	Generation int
	Node       string
	Secret     string // one-time secret for the runner's standard input; never argv or environment

	Repository  string    // owner/name, for people who look at the engine
	Environment string    // whose snapshot it needs
	Commit      string    // of the snapshot that it was placed for
	CPU         float64   // cores of its sandbox
	Memory      int64     // bytes of its sandbox
	Priority    int       // of its session: higher goes first; 0 is usual
	Deadline    time.Time // of the whole attempt, after which nothing of it may run
}

// EngineState of an attempt.
type EngineState int

const (
	EngineUnknown EngineState = iota // cannot be told now; ask again
	EngineRunning
	EngineGone // over, or never was
)

// Placer is an Engine that has several machines and chooses among them. The
// node of an Attempt is then the one that is expected to be best, and the
// engine's own choice counts.
type Placer interface {
	// Room is what the nodes have. It may be a minute old.
	Room(ctx context.Context) ([]NodeRoom, error)
	// Waits says what an attempt that was started has no machine for. The
	// attempt is not lost: it starts as soon as there is one.
	Waits(ctx context.Context, ref json.RawMessage) (Wait, error)
}

// NodeRoom is what one node has for attempts.
type NodeRoom struct {
	Node     string // as it is registered with us
	Eligible bool   // takes new attempts: ready and not draining
	CPU      float64
	Memory   int64 // bytes
	// OthersCPU and OthersMemory are held by what is not an attempt of ours.
	OthersCPU    float64
	OthersMemory int64
	// Overhead is the memory in bytes that each attempt takes besides its sandbox.
	Overhead int64
}

// Wait is why an attempt has no machine yet.
type Wait struct {
	Waiting bool
	// Never: no node could ever take it as the nodes are now, so it must not hold
	// others up.
	Never bool
	Words string // for people, such as "no node with 32 GiB"
}

// Identifier is an Engine whose runners prove themselves with a token that
// their machine's cluster signs.
type Identifier interface {
	// Identify checks such a token and says which attempt it proves. The error is
	// for the log: whoever showed the token learns only that it was refused. One
	// that wraps ErrIdentityUnknown means that it could not be told now.
	Identify(ctx context.Context, token string) (Identity, error)
}

// ErrIdentityUnknown says that a token could not be checked now; ask again.
var ErrIdentityUnknown = errors.New("the identity cannot be checked now")

// Identity is what a token proves.
type Identity struct {
	Session    string
	Generation int
	Allocation string // of the attempt, once and for all: no second one of it counts
	Node       string // as it is registered with us; empty: not known
}
