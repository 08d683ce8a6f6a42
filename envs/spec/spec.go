// Package spec holds the types of .inspect.yml, reads and validates the file,
// and guesses an environment for repositories that have none. It is a pure
// leaf: bytes come in, a Spec or a list of Problems goes out. The file is
// written by whoever can push to the default branch and is treated as hostile:
// its size, depth and shape are bounded before anything is made of it.
package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// FileName is where a repository describes its environment.
const FileName = ".inspect.yml"

// Spec is a validated .inspect.yml with every default filled in. It is stored
// with each session, so that a later change of the file changes nothing that runs.
type Spec struct {
	Version  int       `json:"version"`
	Image    string    `json:"image,omitempty"` // name@sha256:…; empty: the node's own programs
	Setup    []Step    `json:"setup,omitempty"`
	Data     Data      `json:"data,omitzero"`
	Services []Service `json:"services,omitempty"` // in the order of the file, which is the order they start in
	Egress   []string  `json:"egress,omitempty"`   // ecosystems or hosts in lower case, "npm", "*.internal.example:443"
	// EgressGuessed says that nobody declared Egress: it was guessed from the
	// repository's files so that setup can fetch what they name, and is for
	// setup alone.
	EgressGuessed bool `json:"egress_guessed,omitempty"`
	// Allowed are hosts that people allowed to one session beside Egress. No file
	// has them.
	Allowed []string `json:"allowed,omitempty"`
	// Inject are the credentials the egress proxy adds; each Host is an entry
	// of Egress too.
	Inject  []Injection `json:"inject,omitempty"`
	Verify  []Verify    `json:"verify,omitempty"`
	Limits  Limits      `json:"limits"`
	Refresh Refresh     `json:"refresh"`
	// KeepFailed is how long the clone of a session that failed is kept for
	// people to look at; 0: not at all.
	KeepFailed time.Duration `json:"keep_failed,omitempty"`
	Harness    Harness       `json:"harness"`
	Publish    Publish       `json:"publish"`
	Checks     Checks        `json:"checks,omitzero"`
	Triggers   Triggers      `json:"triggers"`
}

// Checks are how check runs are concluded.
type Checks struct {
	// Required: GitHub asks for a check run of ours before a merge. It counts a
	// neutral one as passed, so that one asks for action instead.
	Required  bool            `json:"required,omitempty"`
	Buildkite BuildkiteChecks `json:"buildkite,omitzero"`
}

// Step is a shell line, run with sh -c in the sandbox, and the names of the
// secrets it finds in its environment. Without secrets its JSON is the line.
type Step struct {
	Run     string
	Secrets []string
}

type stepJSON struct {
	Run     string   `json:"run"`
	Secrets []string `json:"secrets,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (s Step) MarshalJSON() ([]byte, error) {
	if len(s.Secrets) == 0 {
		return json.Marshal(s.Run)
	}
	return json.Marshal(stepJSON(s))
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Step) UnmarshalJSON(b []byte) error {
	*s = Step{}
	if json.Unmarshal(b, &s.Run) == nil {
		return nil
	}
	var j stepJSON
	err := json.Unmarshal(b, &j)
	*s = Step(j)
	return err
}

// Steps are lines without secrets.
func Steps(lines ...string) (out []Step) {
	for _, l := range lines {
		out = append(out, Step{Run: l})
	}
	return out
}

// Lines are the shell lines of steps.
func Lines(steps []Step) (out []string) {
	for _, s := range steps {
		out = append(out, s.Run)
	}
	return out
}

// Injection has the egress proxy add a credential to every request to a host.
// The sandbox never sees it.
type Injection struct {
	Host   string `json:"host"`   // host or host:port, no pattern
	Header string `json:"header"` // "Authorization" unless the file says otherwise
	Secret string `json:"secret"` // name; its value is the header's, with "Bearer " before it if it is one word for Authorization
}

// Verify is one command whose success the repository calls "works".
type Verify struct {
	Name   string `json:"name"`
	Run    string `json:"run"`    // given to sh -c in the sandbox
	Report string `json:"report"` // ReportExit, …; of a kind in files followed by ":" and a glob
	// Coverage is empty or a kind of coverage file, ":" and a glob.
	Coverage string `json:"coverage,omitempty"`
	// Secrets are the names of those the command finds in its environment.
	Secrets []string `json:"secrets,omitempty"`
	// Screenshot is what a picture is taken of; Run is then the line that takes it.
	Screenshot *Screenshot `json:"screenshot,omitempty"`
}

// Kinds of report a verify command can leave.
const (
	ReportExit   = "exit"   // the exit status is all there is
	ReportGoTest = "gotest" // standard output is `go test -json`
	ReportTAP    = "tap"    // standard output is the Test Anything Protocol
	ReportJUnit  = "junit"  // in files
	ReportSARIF  = "sarif"  // in files: findings, not tests
	// ReportScreenshot is a picture and what the browser said. No file has it: it
	// is what Screenshot leads to.
	ReportScreenshot = "screenshot"
)

// Kinds of coverage files.
const (
	CoverageGo        = "go" // a profile of go test -coverprofile
	CoverageCobertura = "cobertura"
	CoverageLCOV      = "lcov"
)

// ReportFiles takes what Verify has for a report or coverage apart: "junit" and
// "reports/*.xml" of "junit:reports/*.xml". The glob is empty for what is not in
// files.
func ReportFiles(report string) (kind, glob string) {
	kind, glob, _ = strings.Cut(report, ":")
	return kind, glob
}

// Service is a program that runs beside setup, the agent and verification, on
// the sandbox's own loopback.
type Service struct {
	Name    string `json:"name"`
	Command string `json:"command"`         // given to sh -c, stays in the foreground
	Ready   string `json:"ready,omitempty"` // a shell line that succeeds or an http:// address that answers
	Stop    string `json:"stop,omitempty"`  // a shell line; empty: SIGTERM
	Port    int    `json:"port,omitempty"`
	// Secrets are the names of those the command finds in its environment;
	// Ready and Stop do not get them.
	Secrets []string `json:"secrets,omitempty"`
}

// Data is what the services are filled with when a snapshot is prepared.
type Data struct {
	Provenance string `json:"provenance,omitempty"` // synthetic, scrubbed or production
	Load       []Step `json:"load,omitempty"`       // run while the services are up
}

// Limits of a session. Zero never occurs after Parse.
type Limits struct {
	CPU         float64       `json:"cpu"` // cores
	MemoryBytes int64         `json:"memory_bytes"`
	Pids        int64         `json:"pids"`         // processes and threads
	DiskBytes   int64         `json:"disk_bytes"`   // what a session may add to its clone
	EgressBytes int64         `json:"egress_bytes"` // through the egress proxy, in both directions together
	Timeout     time.Duration `json:"timeout"`      // of the harness's work, nanoseconds in JSON
	Concurrent  int           `json:"concurrent"`   // sessions of this repository at once
	// OpenPullRequests of sessions of this repository, beyond which none is
	// started; 0: any number.
	OpenPullRequests int `json:"open_pull_requests,omitempty"`
	// OpenPullRequestsEach is the same for those that one person asked for.
	OpenPullRequestsEach int   `json:"open_pull_requests_per_requester,omitempty"`
	Budget               Money `json:"budget"` // of the session's model calls
}

// Refresh says how fresh snapshots are kept, and how fresh a session wants its
// own. Zero never occurs after Parse.
type Refresh struct {
	Every     time.Duration `json:"every"`     // from the beginning of one refresh to the next
	MaxAge    time.Duration `json:"max_age"`   // of a snapshot that is behind the session's commit, since it was last the newest there could be
	MaxDrift  int           `json:"max_drift"` // commits from the snapshot to the session's
	WhenStale string        `json:"when_stale"`
}

// What becomes of a session whose snapshot is older or further behind than it
// wants.
const (
	StaleUse    = "use"    // it takes the snapshot, which it brings up to date anyway
	StaleRefuse = "refuse" // it ends
	StaleCold   = "cold"   // it waits for one prepared afresh at its own commit
)

// Harness says which agent works. After Parse an empty Kind means the
// operator's default; in the spec of a session it is filled in.
type Harness struct {
	Kind    string `json:"kind,omitempty"`
	Command string `json:"command,omitempty"` // of kind command: given to sh -c in the sandbox
	Label   string `json:"label,omitempty"`   // what people see, of the operator's default
	Model   string `json:"model,omitempty"`   // as the gateway knows it; empty: the operator's default
}

// Name is what the harness is called to people.
func (h Harness) Name() string {
	if h.Label != "" {
		return h.Label
	}
	return h.Kind
}

// Kinds of harness.
const (
	HarnessOpenCode = "opencode"
	HarnessClaude   = "claude"
	HarnessCodex    = "codex"
	HarnessCommand  = "command" // any program
)

// Harnesses are the kinds there are.
func Harnesses() []string {
	return []string{HarnessOpenCode, HarnessClaude, HarnessCodex, HarnessCommand}
}

// Publish bounds what may leave a session and how.
type Publish struct {
	Prefix    string   `json:"prefix"`              // of branches
	Push      string   `json:"push,omitempty"`      // where results for a pull request go that is not ours: PushHead; else a stacked one
	Protected []string `json:"protected,omitempty"` // doublestar globs, in addition to AlwaysProtected
	MaxFiles  int      `json:"max_files"`
	MaxBytes  int64    `json:"max_bytes"` // of the patch
	// FourEyes: what a session was asked for is approved by somebody who had no
	// hand in it, and so is its pull request.
	FourEyes bool `json:"four_eyes,omitempty"`
	// Signed: SignedAlways or SignedNever; else the commit is signed where the
	// repository's rules want it.
	Signed string `json:"signed,omitempty"`
	// SignOff adds a Signed-off-by trailer of the App's own account.
	SignOff bool `json:"signoff,omitempty"`
	// Reviewers: ReviewersNone, or else the code owners of what changed are asked.
	Reviewers string `json:"reviewers,omitempty"`
}

// What publish.signed and publish.reviewers can be, besides their defaults.
const (
	SignedAuto    = "auto"
	SignedAlways  = "always"
	SignedNever   = "never"
	ReviewersCode = "codeowners"
	ReviewersNone = "none"
)

// PushHead has results for a pull request pushed onto its head branch, where the
// operator allows it.
const PushHead = "head"

// AlwaysProtected are globs no repository can take away: what says who reviews
// (CODEOWNERS may be in three places), what Inspect does, where everybody's git-lfs
// fetches from with their credentials, and what other machines run, with theirs, as
// soon as a branch is pushed.
var alwaysProtected = []string{
	".github/**", "CODEOWNERS", ".inspect.yml", ".lfsconfig",
	".buildkite/**", ".circleci/**", ".drone.yml", ".gitlab-ci.yml", ".travis.yml", ".woodpecker/**", ".woodpecker.yml",
	"Jenkinsfile", "azure-pipelines.yml", "bitbucket-pipelines.yml", "cloudbuild.yaml",
}

// AlwaysProtected returns the globs that are protected whatever the file says.
func AlwaysProtected() []string { return append([]string(nil), alwaysProtected...) }

// Triggers says what starts a session.
type Triggers struct {
	Labels   []string `json:"labels"`
	Commands string   `json:"commands"` // least permission for commands; "write" is the only value so far
	// OnBuildkiteFailure has a build that fails be fixed, on our own branches and on
	// pull requests that carry a label, where the operator lets the pipeline.
	OnBuildkiteFailure bool `json:"on_buildkite_failure,omitempty"`
	// BuildkiteAttempts is how many sessions may try to fix one commit; 0: one.
	BuildkiteAttempts int `json:"buildkite_attempts,omitempty"`
}

// BuildkiteChecks has the builds of what was pushed looked at.
type BuildkiteChecks struct {
	Builds   string        `json:"builds,omitempty"`   // BuildsFollow or BuildsCreate; empty: nobody looks
	Required bool          `json:"required,omitempty"` // the check run waits for the build, and says success only if it passed
	Timeout  time.Duration `json:"timeout,omitempty"`  // 0: DefaultBuildTimeout
}

// DefaultBuildTimeout is how long the build of what was pushed is waited for.
const DefaultBuildTimeout = time.Hour

// Default is the Spec of an empty file: no setup, nothing to verify.
func Default() Spec {
	return Spec{
		Version: 1,
		Limits: Limits{
			CPU: 2, MemoryBytes: 4 << 30, Pids: 512, DiskBytes: 10 << 30, EgressBytes: 10 << 30,
			Timeout: 45 * time.Minute, Concurrent: 4, Budget: 5 * Dollar,
		},
		// A session fetches what its snapshot lacks and runs setup again where
		// dependencies changed, so a stale snapshot costs time, not correctness.
		Refresh:  Refresh{Every: 30 * time.Minute, MaxAge: 2 * time.Hour, MaxDrift: 200, WhenStale: StaleUse},
		Publish:  Publish{Prefix: "inspect", MaxFiles: 100, MaxBytes: 4 << 20},
		Triggers: Triggers{Labels: []string{"inspect"}, Commands: "write"},
	}
}

// DeclaredEgress is what the agent and verification may reach: what the
// repository declared and what was allowed to the session, and nothing of what
// was only guessed.
func (s Spec) DeclaredEgress() []string {
	if s.EgressGuessed {
		return s.Allowed
	}
	return slices.Concat(s.Egress, s.Allowed)
}

// EnvironmentDigest identifies what a snapshot is made from besides the
// commit: two specs with the same digest can share one. It is hexadecimal
// SHA-256.
func (s Spec) EnvironmentDigest() string {
	body, err := json.Marshal(struct {
		Format   int         `json:"format"` // raise when the preparation itself changes
		Setup    []Step      `json:"setup"`
		Services []Service   `json:"services,omitempty"`
		Load     []Step      `json:"load,omitempty"`
		Egress   []string    `json:"egress,omitempty"`
		Inject   []Injection `json:"inject,omitempty"`
		Image    string      `json:"image,omitempty"`
	}{2, s.Setup, s.Services, s.Data.Load, s.Egress, s.Inject, s.Image})
	if err != nil {
		panic("spec: strings always marshal: " + err.Error())
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
