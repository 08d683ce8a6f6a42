// Package wire holds the types of the runner and node protocols: what the
// control plane, the runner and the node daemon say to one another. It is a
// pure leaf: no network, no files, no clock. Everything that arrives in one of
// these types from a runner is written by an enemy until it has been checked.
package wire

import "time"

// Version is the protocol version this build speaks. Its neighbours are
// understood too, see Speaks; anything else is refused with words.
const Version = 1

// HeaderVersion, HeaderGeneration and HeaderSession travel on every machine call,
// the first also on every answer.
const (
	HeaderVersion    = "Inspect-Protocol"
	HeaderGeneration = "Inspect-Generation"
	HeaderSession    = "Inspect-Session"
)

// Limits a control plane enforces per session.
const (
	MaxEventsPerSecond = 200
	MaxEvents          = 200_000
	MaxEventBytes      = 64 << 10
	MaxArtifactBytes   = 256 << 20 // all artifacts of one session together
	MaxBundleBytes     = 64 << 20
	MaxPrompts         = 64
)

// TokenRequest exchanges a proof of identity for a bearer token. Locally the
// proof is the one-time secret the runner read from its standard input.
type TokenRequest struct {
	Session    string `json:"session"`
	Generation int    `json:"generation"`
	Secret     string `json:"secret,omitempty"` // one-time secret (local engine)
	JWT        string `json:"jwt,omitempty"`    // workload identity (Nomad)
}

// TokenReply carries a bearer token; a heartbeat renews it.
type TokenReply struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Spec is all a runner needs to know about one attempt. It holds no
// credential that could write to GitHub and no model key.
type Spec struct {
	Session    string `json:"session"`
	Generation int    `json:"generation"`

	Repository   string `json:"repository"`    // owner/name, for display only
	RepositoryID int64  `json:"repository_id"` // GitHub's numeric id
	BaseBranch   string `json:"base_branch"`
	BaseSHA      string `json:"base_sha"` // the commit the session starts from

	SnapshotID     string `json:"snapshot_id"`
	SnapshotCommit string `json:"snapshot_commit"`
	Environment    string `json:"environment"`
	Image          string `json:"image,omitempty"` // name@sha256:…, whose programs are inside; empty: the node's

	// Prompt is what the harness is given first, with InstructionsMark where the
	// repository's own instructions go, which are read at InstructionsSHA, a
	// commit of the default branch.
	Prompt          string `json:"prompt"`
	InstructionsSHA string `json:"instructions_sha,omitempty"` // empty: BaseSHA

	Harness Harness  `json:"harness"`
	Setup   []Step   `json:"setup,omitempty"`
	Verify  []Verify `json:"verify"`
	Limits  Limits   `json:"limits"`

	// Services run in the work sandbox and in the verification sandbox.
	Services []Service `json:"services,omitempty"`
	// Egress is what the agent and verification may reach, as in the file.
	Egress []string `json:"egress,omitempty"`
	// SetupEgress is what Setup may reach when some of it runs again because of
	// drift; it may be more than the agent's.
	SetupEgress []string `json:"setup_egress,omitempty"`
	// Internal are the address ranges of the operator's own network that hosts
	// of Egress may have.
	Internal []string `json:"internal,omitempty"`
	// Inject are the credentials the proxy adds to what it lets through.
	Inject []Injection `json:"inject,omitempty"`

	// Compare asks that verification is done on the base as well, and with the
	// base's tests over the result, see Outcome. Without it the control plane may
	// not know what that would be told with.
	Compare bool `json:"compare,omitempty"`

	// Author is the identity commits in the sandbox are made with.
	AuthorName  string `json:"author_name"`
	AuthorEmail string `json:"author_email"`

	// Fork says that the clone is what another was after a turn: nothing is
	// synced or applied, the work goes on where that turn ended.
	Fork *Fork `json:"fork,omitempty"`

	// Resume is the bundle of an earlier generation to continue from; nil on a fresh start.
	Resume *Resume `json:"resume,omitempty"`

	// WorkDeadline is when the harness is interrupted; EndDeadline is when the
	// attempt must be over, verification and uploads included.
	WorkDeadline time.Time `json:"work_deadline"`
	EndDeadline  time.Time `json:"end_deadline"`

	// Grants the node daemon obeys: one for each purpose, see Grant.
	WorkGrant   string `json:"work_grant"`
	VerifyGrant string `json:"verify_grant"`
}

// InstructionsMark is the line of a prompt that the repository's own
// instructions take the place of.
const InstructionsMark = "\n[the repository's instructions]\n"

// Resume names the last uploaded bundle of an earlier generation. The runner
// fetches it from GET /runner/v1/bundle/{sha256}.
type Resume struct {
	Generation int    `json:"generation"`
	Turn       int    `json:"turn"`
	SHA256     string `json:"sha256"`
	Tip        string `json:"tip"` // commit at the bundle's one ref
}

// Harness says which agent program to run and how.
type Harness struct {
	Kind    string   `json:"kind"`              // spec.HarnessCommand, …
	Command []string `json:"command,omitempty"` // of kind command: argument vector, run inside the sandbox
	Label   string   `json:"label"`             // how it is named to people, e.g. "scripted"
	Model   string   `json:"model,omitempty"`   // as the gateway knows it, "anthropic/claude-sonnet"
	API     string   `json:"api,omitempty"`     // APIChat, …: what the harness is to speak with the gateway
}

// APIs the model gateway speaks.
const (
	APIChat      = "chat"      // POST /v1/chat/completions
	APIResponses = "responses" // POST /v1/responses
	APIMessages  = "messages"  // POST /v1/messages
)

// Step is a shell line of the environment and the names of the secrets it finds
// in its environment. The values are asked for when it is about to run (POST
// secrets) and are no part of any other message.
type Step struct {
	Run     string   `json:"run"`
	Secrets []string `json:"secrets,omitempty"`
}

// Injection has the egress proxy add a header to every request to Host. Its
// value is made of a secret, which the sandbox never sees.
type Injection struct {
	Host   string `json:"host"` // host or host:port
	Header string `json:"header"`
	Secret string `json:"secret"` // name
}

// SecretsRequest asks for values of the secrets that the environment of the
// caller's attempt or work item names (POST /runner/v1/secrets, POST
// /node/v1/work/{id}/secrets). The reply has all of them, or there is an error
// whose message says which is missing or not allowed.
type SecretsRequest struct {
	Names []string `json:"names"`
}

// SecretsReply has a value for each name that was asked for.
type SecretsReply struct {
	Values map[string]string `json:"values"`
}

// Service is a declared service of the environment.
type Service struct {
	Name    string `json:"name"`
	Command string `json:"command"`         // shell line that stays in the foreground
	Ready   string `json:"ready,omitempty"` // shell line that succeeds, or an http:// address that answers; empty: Port, if there is one, accepts
	Stop    string `json:"stop,omitempty"`  // shell line; empty: SIGTERM
	Port    int    `json:"port,omitempty"`
	// Secrets are the names of those Command finds in its environment.
	Secrets []string `json:"secrets,omitempty"`
}

// Verify is one verification command of the repository.
type Verify struct {
	Name   string `json:"name"`
	Run    string `json:"run"`    // shell line, run with sh -c inside the sandbox
	Report string `json:"report"` // as in the file: "exit", "junit:reports/*.xml", …
	// Coverage is as in the file; empty: there is none.
	Coverage string `json:"coverage,omitempty"`
	// Secrets are the names of those the command finds in its environment.
	Secrets []string `json:"secrets,omitempty"`
	// Screenshot is what a picture is taken of. Run says the same to people, and
	// to a runner that does not know this: there it fails.
	Screenshot *Screenshot `json:"screenshot,omitempty"`
}

// Limits of one sandbox. Zero means "no limit of ours".
type Limits struct {
	CPU         float64       `json:"cpu"` // cores
	MemoryBytes int64         `json:"memory_bytes"`
	Pids        int64         `json:"pids"`
	DiskBytes   int64         `json:"disk_bytes"`
	Timeout     time.Duration `json:"timeout"`      // nanoseconds, of the harness's work
	OutputBytes int64         `json:"output_bytes"` // kept of one command's output
	EgressBytes int64         `json:"egress_bytes"` // through the proxy, in both directions together
}

// Event kinds the runner sends. Data is a JSON object by kind, see the types below.
const (
	EventPhase   = "phase"   // Phase
	EventCommand = "command" // Command: one finished command
	EventOutput  = "output"  // Output: text of the harness
	EventTurn    = "turn"    // Turn: a bundle was uploaded
	EventNote    = "note"    // Note: words for people
	EventRestore = "restore" // Restored
	EventMessage = "message" // Message: what the agent said
	EventTool    = "tool"    // Tool: one finished tool call of the agent
	EventPrompt  = "prompt"  // Prompted: the agent was given a prompt or is done with one
	EventUsage   = "usage"   // Usage: one settled model call; written by the control plane only
	EventEgress  = "egress"  // Egress: one decision of the proxy
	EventUse     = "use"     // EgressUse: at the end of each sandbox that had the proxy
	EventService = "service" // ServiceState
	EventDrift   = "drift"   // Drifted: once, before the first prompt
)

// Event is one thing that happened in an attempt, numbered from 1 by the
// runner without gaps. Sending a number again with the same content is harmless.
type Event struct {
	Number int64     `json:"number"`
	Kind   string    `json:"kind"`
	At     time.Time `json:"at"`
	Data   any       `json:"data"`
}

// EventsReply acknowledges all events up to and including Acked.
type EventsReply struct {
	Acked int64 `json:"acked"`
}

// Phase says which state the attempt has reached: "restoring", "working", "verifying".
type Phase struct {
	Phase string `json:"phase"`
}

// Command is a finished command in the sandbox.
type Command struct {
	Step     string        `json:"step"` // "sync", "setup", "harness", "bundle", "verify:<name>", "base:<name>", "base-tests:<name>"
	Line     string        `json:"line"`
	ExitCode int           `json:"exit_code"` // -1: ended by a signal or never started
	Signal   string        `json:"signal,omitempty"`
	Duration time.Duration `json:"duration"`
	Output   string        `json:"output,omitempty"` // tail, redacted
	Error    string        `json:"error,omitempty"`
}

// Output is a piece of the harness's output as it comes.
type Output struct {
	Stream string `json:"stream"` // "stdout" or "stderr"
	Text   string `json:"text"`
}

// Message is text the agent addressed to people.
type Message struct {
	Text string `json:"text"`
}

// Tool is a finished tool call of the agent, as its harness tells it. Commands
// are tools too: then Command is set and ExitCode is the command's.
type Tool struct {
	Name     string        `json:"name"`              // as the harness calls it: "bash", "edit", …
	Title    string        `json:"title,omitempty"`   // one line for people
	Command  string        `json:"command,omitempty"` // shell line
	ExitCode *int          `json:"exit_code,omitempty"`
	Failed   bool          `json:"failed,omitempty"`
	Files    []string      `json:"files,omitempty"`  // touched, relative to the repository where they lie in it
	Output   string        `json:"output,omitempty"` // tail
	Duration time.Duration `json:"duration,omitempty"`
}

// Prompted tells where the agent is with its prompts, counted from 1.
type Prompted struct {
	Prompt int    `json:"prompt"`
	Author string `json:"author,omitempty"` // login; empty for our own words
	Text   string `json:"text,omitempty"`   // of a further prompt, cut
	Done   bool   `json:"done"`
	Failed string `json:"failed,omitempty"` // why it could not be worked on
}

// Usage is one settled model call. Money is in billionths of a US dollar.
type Usage struct {
	Model            string `json:"model"`
	InputTokens      int64  `json:"input_tokens"` // those of the cache not included
	CacheReadTokens  int64  `json:"cache_read_tokens,omitempty"`
	CacheWriteTokens int64  `json:"cache_write_tokens,omitempty"`
	OutputTokens     int64  `json:"output_tokens"`
	Cost             int64  `json:"cost"`
	Priced           bool   `json:"priced"`   // the operator's table has a price for the model
	Reported         bool   `json:"reported"` // by the provider; else Cost is what was held for the call
	Spent            int64  `json:"spent"`    // of the session so far, this call included
}

// Egress is one decision of the egress proxy.
type Egress struct {
	Host    string `json:"host"`
	Port    int    `json:"port"`
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason,omitempty"`  // why it was refused
	Command string `json:"command,omitempty"` // what asked, as the sandbox says
	Noise   bool   `json:"noise,omitempty"`   // the harness's own doing, not the agent's
	Secret  string `json:"secret,omitempty"`  // name of the credential that the proxy added
}

// EgressUse is what has gone through an attempt's egress proxies until now, in
// bytes.
type EgressUse struct {
	Sent     int64 `json:"sent"` // out of the sandboxes
	Received int64 `json:"received"`
	Limit    int64 `json:"limit,omitempty"` // of both together; 0: none
}

// EgressNotListed is the Reason of a refusal that an entry under egress in
// .inspect.yml would turn into a yes.
const EgressNotListed = "it is not in the environment's egress"

// ServiceState tells what became of a declared service.
type ServiceState struct {
	Name   string        `json:"name"`
	State  string        `json:"state"` // "ready", "failed", "stopped"
	After  time.Duration `json:"after,omitempty"`
	Words  string        `json:"words,omitempty"`
	Output string        `json:"output,omitempty"` // tail of its log
}

// Turn tells that the work of a turn was taken and uploaded, or that a turn is
// over in which nothing was committed.
type Turn struct {
	Turn   int    `json:"turn"`
	Tip    string `json:"tip"`
	SHA256 string `json:"sha256"` // of the bundle; empty: nothing was committed since the turn before
	Bytes  int64  `json:"bytes"`
}

// Note is something a person should read on the session page.
type Note struct {
	Words string `json:"words"`
}

// Restored tells where an attempt's clone came from and what it took.
type Restored struct {
	Purpose  string        `json:"purpose"` // "work" or "verify"
	Snapshot string        `json:"snapshot"`
	Commit   string        `json:"commit"`
	Store    string        `json:"store"`  // "dir" or "zfs"
	Tier     string        `json:"tier"`   // sandbox tier and version, e.g. "bubblewrap 0.8.0"
	Limits   string        `json:"limits"` // "enforced" or "best effort: <why>"
	Duration time.Duration `json:"duration"`
}

// Drifted tells what the way from the snapshot's commit to the session's changed
// for the environment.
type Drifted struct {
	Manifests []string   `json:"manifests,omitempty"` // dependency manifests that changed, at most 100
	Steps     []string   `json:"steps,omitempty"`     // lines of setup that ran again because of that
	Lockfiles []Lockfile `json:"lockfiles,omitempty"` // of the session's commit, at most 100
}

// Lockfile is a dependency manifest or lock file and its content.
type Lockfile struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
}

// Directive kinds.
const (
	DirectiveStop   = "stop"   // StopDirective
	DirectivePrompt = "prompt" // PromptDirective
	DirectiveFinish = "finish" // no data
	// A runner of an older version says that it does not know these; the session
	// has them from its next attempt on.
	DirectiveAllowHost = "allow_host" // AllowHostDirective
	DirectiveBudget    = "budget"     // BudgetDirective
)

// Directive is something the control plane wants of the runner.
type Directive struct {
	ID        int64               `json:"id"`
	Kind      string              `json:"kind"`
	Stop      *StopDirective      `json:"stop,omitempty"`
	Prompt    *PromptDirective    `json:"prompt,omitempty"`
	AllowHost *AllowHostDirective `json:"allow_host,omitempty"`
	Budget    *BudgetDirective    `json:"budget,omitempty"`
}

// StopDirective asks to end the work, upload what there is and report; the
// engine kills the runner after the grace.
type StopDirective struct {
	Reason string        `json:"reason"`
	Grace  time.Duration `json:"grace"`
}

// PromptDirective is a follow-up prompt of an authorised person.
type PromptDirective struct {
	Text   string `json:"text"`
	Author string `json:"author"`
}

// AllowHostDirective opens a further way out, which a person allowed.
type AllowHostDirective struct {
	Host string `json:"host"` // an entry of egress: a host, or host:port
}

// BudgetDirective tells of the session's budget, which a person raised.
type BudgetDirective struct {
	Budget int64 `json:"budget"` // in billionths of a US dollar
}

// DirectivesReply answers the long poll.
type DirectivesReply struct {
	Directives []Directive `json:"directives"`
}

// Heartbeat is sent every 10 s; the reply renews the token.
type Heartbeat struct {
	Phase string `json:"phase"`
}

// HeartbeatReply renews the token. The old one stays good until it expires.
type HeartbeatReply struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// Outcome kinds a runner may report. The control plane decides the session's
// state from them; a runner can never say "delivered".
const (
	OutcomeVerified       = "verified"       // there is a change and every verify command ran (passed or not)
	OutcomeNoChange       = "no_change"      // the harness changed nothing
	OutcomeFailed         = "failed"         // the harness or its result is at fault
	OutcomeStopped        = "stopped"        // a stop directive was obeyed
	OutcomeTimedOut       = "timed_out"      // WorkDeadline reached
	OutcomeOverBudget     = "over_budget"    // the model gateway refused further calls
	OutcomeInfrastructure = "infrastructure" // ours: may be tried again as a new attempt
)

// Reason codes used in Outcome.Reason (and on the session).
const (
	ReasonHarnessExit      = "harness_exit"      // non-zero exit status
	ReasonHarnessMissing   = "harness_missing"   // the program could not be started
	ReasonConflict         = "conflict"          // unmerged paths left behind
	ReasonRepositoryGone   = "repository_gone"   // .git deleted or unusable
	ReasonUnrelatedHistory = "unrelated_history" // result does not descend from the base
	ReasonElsewhere        = "commits_elsewhere" // commits on several other branches, none on HEAD
	ReasonDisk             = "disk"              // disk limit reached
	ReasonNodeStore        = "node_store"        // the node's store was full, or not to be had, while the attempt ran
	ReasonMemory           = "memory"            // memory limit reached
	ReasonPids             = "pids"              // process limit reached
	ReasonSnapshotMissing  = "snapshot_missing"
	ReasonSync             = "sync"  // base commit could not be checked out
	ReasonSetup            = "setup" // setup failed
	ReasonBundleTooLarge   = "bundle_too_large"
	ReasonService          = "service" // a declared service did not become ready
	ReasonSecret           = "secret"  // a secret that the environment names cannot be had or used
	ReasonModel            = "model"   // the model could not be reached or gave nothing usable
)

// Outcome ends an attempt.
type Outcome struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason,omitempty"`
	Words  string `json:"words"` // one sentence for people
	// Bundle is the sha256 of the uploaded result, empty if there is none.
	Bundle string `json:"bundle,omitempty"`
	// Patch is the sha256 of an artifact: the same change as a patch for people,
	// secrets replaced. Empty if there is none.
	Patch   string         `json:"patch,omitempty"`
	Tip     string         `json:"tip,omitempty"`
	Tree    string         `json:"tree,omitempty"` // tree of Tip, what was verified
	Results []VerifyResult `json:"results,omitempty"`
	// Base and BaseTests are told only if Spec.Compare asked for them.
	Base      *Column `json:"base,omitempty"`       // the same commands on the base
	BaseTests *Column `json:"base_tests,omitempty"` // and on the result with the base's tests
	// Instructions is the hexadecimal SHA-256 of the first prompt as the agent
	// got it, and the artifact that holds it.
	Instructions string `json:"instructions,omitempty"`
	Times        Times  `json:"times"`
	// ServiceLogs are told only if Spec.Compare is set, too.
	ServiceLogs []ServiceLog `json:"service_logs,omitempty"`
}

// ServiceLog is the end of what a declared service said.
type ServiceLog struct {
	Where   string `json:"where"` // "session", or the column: "verify", "base" or "base-tests"
	Service string `json:"service"`
	SHA256  string `json:"sha256"` // of the artifact
}

// MaxServiceLogs bounds Outcome.ServiceLogs.
const MaxServiceLogs = 80

// Column is one more verification, in a clean clone of its own.
type Column struct {
	Results []VerifyResult `json:"results,omitempty"`
	// Same: nothing of the base's tests is another, so it would be what the
	// result's was; it was not done.
	Same bool `json:"same,omitempty"`
	// Words say why it is not complete; empty: it is.
	Words string `json:"words,omitempty"`
}

// ReportFile is a file that a verify command left and that is kept.
type ReportFile struct {
	Path   string `json:"path"`             // in the repository, as the sandbox has it
	SHA256 string `json:"sha256,omitempty"` // of the artifact; empty if there is none
	// Problem says why it cannot be read: "is a symbolic link"; empty: it can.
	Problem string `json:"problem,omitempty"`
}

// MaxAgain is how often a verify command that fails is run again.
const MaxAgain = 2

// MaxReportFiles bounds the report and the coverage files of one run, each.
const MaxReportFiles = 500

// VerifyResult is what one verify command did in the second clone.
type VerifyResult struct {
	Name      string        `json:"name"`
	Run       string        `json:"run"`
	Report    string        `json:"report"`
	ExitCode  int           `json:"exit_code"`
	Signal    string        `json:"signal,omitempty"`
	TimedOut  bool          `json:"timed_out,omitempty"`
	Duration  time.Duration `json:"duration"`
	Stdout    string        `json:"stdout"`              // sha256 of the artifact
	Stderr    string        `json:"stderr"`              // sha256 of the artifact
	Truncated bool          `json:"truncated,omitempty"` // output was cut at Limits.OutputBytes

	// What follows is told only if Spec.Compare asked for it.

	Coverage      string       `json:"coverage,omitempty"`
	Reports       []ReportFile `json:"reports,omitempty"`
	CoverageFiles []ReportFile `json:"coverage_files,omitempty"`
	// Again are further runs of a command that failed, at most MaxAgain, none of
	// which has further runs.
	Again []VerifyResult `json:"again,omitempty"`
}

// Times of an attempt; zero where a phase did not happen.
type Times struct {
	Restore       time.Duration `json:"restore"`
	Sync          time.Duration `json:"sync"`
	Ready         time.Duration `json:"ready"` // from the restore's begin until the agent could take its first prompt
	Work          time.Duration `json:"work"`
	Bundle        time.Duration `json:"bundle"`
	VerifyRestore time.Duration `json:"verify_restore"`
	Verify        time.Duration `json:"verify"`
}

// Error is the body of every refusal on a machine call.
type Error struct {
	Code    string `json:"code"`    // "stale_generation", "unauthorized", "too_large", "not_found", "version", "bad_request", "unavailable"; of a node also "busy", "no_space", "tier", "unsupported"
	Message string `json:"message"` // for a person
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }
