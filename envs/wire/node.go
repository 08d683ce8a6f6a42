package wire

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Node protocol, control plane side (/node/v1, bearer token of the node).

// NodeState is what a node daemon advertises (POST state, every 10 s).
type NodeState struct {
	Node      string `json:"node"`
	Instance  string `json:"instance"` // of the daemon process: another one has nothing of the former's work in hand
	Version   int    `json:"version"`
	Store     string `json:"store"`
	Forks     bool   `json:"forks,omitempty"` // clones can be made of what others were after a turn
	Tier      string `json:"tier"`
	Limits    string `json:"limits"` // "enforced" or "best effort: <why>"
	FreeBytes int64  `json:"free_bytes"`
	// TotalBytes is the size of the store's filesystem or pool.
	TotalBytes int64 `json:"total_bytes,omitempty"`
	// Refuses says, for people, why the node restores and refreshes nothing now:
	// its store is too full. Empty: it does.
	Refuses   string   `json:"refuses,omitempty"`
	Clones    []Clone  `json:"clones"`
	Snapshots []string `json:"snapshots"`
	// Work lists the ids of the work items in hand; their leases are renewed.
	// Whatever else was handed out is handed out again when its lease is over,
	// as after a restart of the daemon.
	Work []int64 `json:"work"`
}

// Clone is a restored clone on a node.
type Clone struct {
	Session    string    `json:"session"`
	Generation int       `json:"generation"`
	Purpose    string    `json:"purpose"` // "work" or "verify"
	Created    time.Time `json:"created"`
	Bytes      int64     `json:"bytes,omitempty"` // that it alone takes of the disk; 0: not known
}

// Image is a container image as it was unpacked on a node.
type Image struct {
	Digest  string   `json:"digest"` // sha256:…, by which the image is asked for
	Env     []string `json:"env,omitempty"`
	Layers  int      `json:"layers"`
	Files   int64    `json:"files"`   // entries of all layers
	Bytes   int64    `json:"bytes"`   // of all files
	Skipped int64    `json:"skipped"` // devices and pipes that were left out
}

// Refs answers GET refs: everything the control plane still needs on this
// node. What is not listed, and older than the grace, may be collected; while
// the control plane cannot be asked nothing is.
type Refs struct {
	Sessions  []SessionRef `json:"sessions"`
	Snapshots []string     `json:"snapshots"` // ids to keep
	// Repositories are those whose mirrors somebody may need: of environments that
	// are used or have a snapshot, and of sessions that are not over. null: not told.
	Repositories []int64 `json:"repositories"`
	// Over are attempts on this node that count no more while their grants have
	// not expired: the node obeys those no longer.
	Over []SessionRef `json:"over,omitempty"`
}

// SessionRef is a live attempt whose clones must be kept.
type SessionRef struct {
	Session    string `json:"session"`
	Generation int    `json:"generation"`
}

// Work kinds.
const (
	WorkRefresh = "refresh"
	WorkFetch   = "fetch" // bring a commit into the mirror
	WorkDiscard = "discard"
)

// Work is one piece of work for a node (GET work, long poll). It is leased; a node that
// dies is handed it again, so every kind is idempotent.
type Work struct {
	ID      int64        `json:"id"`
	Kind    string       `json:"kind"`
	Refresh *RefreshWork `json:"refresh,omitempty"`
	Fetch   *FetchWork   `json:"fetch,omitempty"`
	Discard *SessionRef  `json:"discard,omitempty"`
}

// Remote is a repository to fetch from. The token is asked for when it is
// needed (POST token), never part of the work.
type Remote struct {
	RepositoryID int64  `json:"repository_id"`
	URL          string `json:"url"` // clone URL without credentials
	Branch       string `json:"branch"`
	// Ref holds the commit, if no branch does; empty: Branch does.
	Ref string `json:"ref,omitempty"`
}

// FetchWork brings Commit into the mirror.
type FetchWork struct {
	Remote Remote `json:"remote"`
	Commit string `json:"commit"`
	// Since is a snapshot's commit: the result says how far Commit is from it.
	Since string `json:"since,omitempty"`
}

// Drift is the way from a snapshot's commit to the one a session needs.
type Drift struct {
	Commits   int  `json:"commits"`             // that are new; at most MaxDrift are counted
	Behind    int  `json:"behind,omitempty"`    // that only the snapshot has: history was rewritten; counted likewise
	Unrelated bool `json:"unrelated,omitempty"` // they have no commit in common
}

// MaxDrift is how many commits a Drift counts.
const MaxDrift = 1_000_000

// RefreshWork prepares a snapshot of an environment at a commit.
type RefreshWork struct {
	Snapshot     string        `json:"snapshot"`       // id given by the control plane
	From         string        `json:"from,omitempty"` // snapshot to go on from; empty, or not there any more: afresh
	Environment  string        `json:"environment"`
	Generation   int           `json:"generation"`
	Remote       Remote        `json:"remote"`
	Commit       string        `json:"commit"`
	ConfigDigest string        `json:"config_digest"`
	Image        string        `json:"image,omitempty"` // name@sha256:…, in place of the node's programs
	Pull         bool          `json:"pull,omitempty"`  // the operator's policy names Image: a node without it fetches it from its registry
	Setup        []Step        `json:"setup"`
	Services     []Service     `json:"services,omitempty"`
	Load         []Step        `json:"load,omitempty"`     // fills the services with data, after setup
	Egress       []string      `json:"egress,omitempty"`   // what setup may reach
	Internal     []string      `json:"internal,omitempty"` // as in Spec
	Inject       []Injection   `json:"inject,omitempty"`   // credentials the proxy adds there
	Limits       Limits        `json:"limits"`
	Timeout      time.Duration `json:"timeout"`
}

// WorkResult ends a work item (POST work/{id}). A refresh that succeeded is
// reported by SnapshotOffer instead.
type WorkResult struct {
	OK    bool   `json:"ok"`
	Words string `json:"words,omitempty"` // what failed, with the last lines of its output
	Drift *Drift `json:"drift,omitempty"` // of a fetch that was asked for it
}

// SnapshotOffer tells the control plane of a verified candidate (POST snapshots).
type SnapshotOffer struct {
	Work         int64                    `json:"work"`
	Snapshot     string                   `json:"snapshot"`
	Environment  string                   `json:"environment"`
	Generation   int                      `json:"generation"`
	Commit       string                   `json:"commit"`
	ConfigDigest string                   `json:"config_digest"`
	Store        string                   `json:"store"`
	Bytes        int64                    `json:"bytes"`
	From         string                   `json:"from,omitempty"` // the snapshot it was made from; empty: afresh
	Phases       map[string]time.Duration `json:"phases"`         // fetch, checkout, setup, scan, snapshot, proof; at most MaxPhases
}

// MaxPhases is how many phases an offer may tell of.
const MaxPhases = 20

// setupLines is how many lines of setup are phases of their own: beside them there
// are 14.
const setupLines = 6

// SetupPhase names the part of the phase setup that one of its lines takes, counted
// from 0; false: it is not told apart.
func SetupPhase(line int) (string, bool) {
	return "setup " + strconv.Itoa(line+1), line >= 0 && line < setupLines
}

// GitTokenRequest asks for a read-only token for one repository.
type GitTokenRequest struct {
	RepositoryID int64 `json:"repository_id"`
	// URL asks for that of a submodule of the repository: its clone URL without
	// credentials, as a hostile .gitmodules names it. Empty: the repository itself.
	// The token is empty if it may be read only as everybody may.
	URL string `json:"url,omitempty"`
}

// GitToken is sent as the password of x-access-token.
type GitToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Node daemon, local side: HTTP over its unix socket for the verbs below, and
// one raw connection for each sandbox start (file descriptors travel on it).

// Grant is an order of the control plane to a node daemon, signed with Ed25519.
// The node obeys no one without it.
type Grant struct {
	Verbs        []string `json:"verbs"` // VerbRestore, VerbSandbox, VerbDiscard
	Node         string   `json:"node"`
	Session      string   `json:"session"`
	Generation   int      `json:"generation"`
	Purpose      string   `json:"purpose"` // "work" or "verify": each has a clone of its own
	Environment  string   `json:"environment"`
	Snapshot     string   `json:"snapshot"`
	RepositoryID int64    `json:"repository_id"`   // whose mirror may be mounted read-only
	Image        string   `json:"image,omitempty"` // name@sha256:…, in place of the node's programs
	Limits       Limits   `json:"limits"`
	PeerUID      int      `json:"peer_uid"`               // uid of the caller that may use it; PeerRunner: whom the node itself started the attempt's runner as
	Tier         string   `json:"tier,omitempty"`         // TierBubblewrap, TierGVisor: the least the sandbox may be; empty: any
	Compartments int      `json:"compartments,omitempty"` // how many services and steps with secrets may run beside the sandbox at a time
	Sockets      []string `json:"sockets,omitempty"`      // SocketModel, SocketEgress: ways out of the sandbox that end at the runner
	Directory    string   `json:"directory,omitempty"`    // VerbQuarantine: NAME or NAME/NAME below the node's directory of quarantines
	// Fork has the clone made of what another was after a turn, in place of Snapshot.
	Fork    *Fork     `json:"fork,omitempty"`
	Expires time.Time `json:"expires"`
}

// Fork names what a clone for work was after a turn.
type Fork struct {
	Session    string `json:"session"`
	Generation int    `json:"generation"`
	Turn       int    `json:"turn"`
}

// PeerRunner as a grant's PeerUID lets in the account of the attempt's runner,
// which the node has started itself and knows.
const PeerRunner = -1

// Tiers of sandboxes, the weaker first.
const (
	TierBubblewrap = "bubblewrap"
	TierGVisor     = "gvisor"
)

// TierAtLeast says whether what a node says of its tier ("gvisor v0.0.0-…") is
// at least the one a grant names. Nothing is at least a tier not known here.
func TierAtLeast(node, least string) bool {
	tiers := []string{"", TierBubblewrap, TierGVisor}
	name, _, _ := strings.Cut(node, " ")
	want := slices.Index(tiers, least)
	return want == 0 || want > 0 && slices.Index(tiers, name) >= want
}

// Verbs of a grant.
const (
	VerbRestore = "restore"
	VerbSandbox = "sandbox"
	VerbDiscard = "discard"
	VerbTurn    = "turn" // keep the state of the clone after a turn

	// The control plane's own, where it is not root: only its account may use them.
	VerbRun        = "run"        // start, look after and stop the runner of an attempt
	VerbQuarantine = "quarantine" // a sandbox over a directory of the control plane's, for git on hostile data
)

// Sockets a grant can name. For each a port on the sandbox's loopback leads to
// a unix socket whose listener the runner gets.
const (
	SocketModel  = "model"
	SocketEgress = "egress"
)

// Purposes of a clone.
const (
	PurposeWork   = "work"
	PurposeVerify = "verify"
)

// RestoreRequest (POST /restore on the node's socket). Idempotent by
// (session, generation, purpose).
type RestoreRequest struct {
	Grant string `json:"grant"`
}

// RestoreReply tells what was restored. Paths are the sandbox's, not the host's.
type RestoreReply struct {
	Commit   string        `json:"commit"`
	Store    string        `json:"store"`
	Tier     string        `json:"tier"`
	Limits   string        `json:"limits"`
	Duration time.Duration `json:"duration"`
}

// DiscardRequest (POST /discard). Not found is success.
type DiscardRequest struct {
	Grant string `json:"grant"`
}

// TurnRequest (POST /turn) keeps the state of a clone for work after a turn, to
// be forked from. Idempotent by turn. A store that cannot do that without
// copying the clone refuses with "unsupported".
type TurnRequest struct {
	Grant string `json:"grant"`
	Turn  int    `json:"turn"`
}

// SpaceReply answers POST /space on the node's socket; POST /list there is
// answered with the NodeState. Neither takes a grant: root and the control
// plane's account may ask.
type SpaceReply struct {
	FreeBytes  int64  `json:"free_bytes"`
	TotalBytes int64  `json:"total_bytes"`
	Refuses    string `json:"refuses,omitempty"` // as in NodeState
}

// RunRequest (POST /run/start, /run/state, /run/stop, /run/logs, /run/forget) is
// about the runner of the grant's attempt; POST /run/stop-all and /run/list are
// about all runners here. Each is
// idempotent: an attempt is started once, one that is not there is stopped.
type RunRequest struct {
	Grant  string `json:"grant"`
	Secret string `json:"secret,omitempty"` // for a start: the runner's one-time secret
}

// RunReply answers it.
type RunReply struct {
	Running bool          `json:"running"`
	Log     []byte        `json:"log,omitempty"`  // the end of it, at most MaxRunnerLog bytes
	List    []RunnerState `json:"list,omitempty"` // of /run/list
}

// MaxRunnerLog is how much of a runner's log is told, in bytes.
const MaxRunnerLog = 64 << 10

// RunnerState is one runner that a node knows.
type RunnerState struct {
	Session    string `json:"session"`
	Generation int    `json:"generation"`
	Running    bool   `json:"running"`
}

// SandboxRequest is the one line of JSON (ended by \n) that opens a sandbox
// connection. With it the caller passes exactly one file descriptor: its end's
// peer of a SOCK_STREAM socketpair, the control stream of the init inside
// (protocol: package sandbox). The stream is the lifeline too: when the last
// holder outside closes it, init ends the sandbox.
type SandboxRequest struct {
	Grant string `json:"grant"`
	// Beside names a compartment: a second sandbox over the same clone, with a
	// pid and a user namespace of its own and the loopback of the running one.
	// In it runs one command that has secrets in its environment. Up to 40
	// lower-case letters, digits, '-' and '_'; empty: the sandbox itself.
	Beside string `json:"beside,omitempty"`
	// Authority is the certificate, in PEM, of the authority of the caller's
	// egress proxy, which adds credentials. The sandbox trusts it beside the
	// node's own. Empty: there is none.
	Authority string `json:"authority,omitempty"`
	// Quarantine asks for the sandbox of a grant with VerbQuarantine.
	Quarantine bool `json:"quarantine,omitempty"`
}

// SandboxReply is the one line of JSON that answers a SandboxRequest. With its
// first byte come the listening unix sockets of Sockets, in that order. After it
// the node daemon keeps the connection open until the sandbox has ended and
// then sends one SandboxEnd line; the caller may also never read that.
type SandboxReply struct {
	OK bool   `json:"ok"`
	ID string `json:"id,omitempty"`
	// Sockets are the grant's sockets, as many as descriptors were passed.
	Sockets []string `json:"sockets,omitempty"`
	Error   *Error   `json:"error,omitempty"`
}

// SandboxEnd tells why a sandbox ended.
type SandboxEnd struct {
	OOM      int64 `json:"oom"`      // processes killed for memory
	PidsHit  int64 `json:"pids_hit"` // forks refused
	DiskFull bool  `json:"disk_full"`
	// Store says, for people, what was wrong with the node's store of snapshots
	// while the sandbox ran or when it ended: it was full, though not by this
	// sandbox, or not to be had. Empty: nothing.
	Store    string `json:"store,omitempty"`
	ExitCode int    `json:"exit_code"`
}
