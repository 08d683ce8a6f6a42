// Package evidence turns what the repository's own commands left behind into
// facts: it parses their reports, judges them and describes the whole in a
// Manifest. What comes in was written by code under test and is treated as
// hostile: bounded, never executed, never believed against the exit status.
package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"inspect/envs/spec"
	"inspect/envs/wire"
)

// ManifestVersion is the version of the format below. Manifests of version 1
// lack what the model cost, the ways out and the instructions; those before 3 the
// base's columns, approvals and the decisions about ways out, those before 4
// screenshots.
const ManifestVersion = 4

// Manifest describes the evidence of one session. Its digest stands in the receipt.
type Manifest struct {
	Version    int    `json:"version"`
	Session    string `json:"session"`
	Generation int    `json:"generation"`
	Repository string `json:"repository"` // owner/name at the time
	Issue      int    `json:"issue"`

	BaseBranch string `json:"base_branch"`
	BaseSHA    string `json:"base_sha"`
	Tip        string `json:"tip,omitempty"`  // commit the harness left
	Tree       string `json:"tree,omitempty"` // its tree: what was verified

	Verdict Verdict `json:"verdict"`
	Checks  []Check `json:"checks"` // on the result
	// Base is what the same commands did on the base, BaseTests what they did on
	// the result with the base's tests, each in a clean clone of its own. Absent in
	// older manifests.
	Base      []Check    `json:"base,omitempty"`
	BaseTests []Check    `json:"base_tests,omitempty"`
	SameTests bool       `json:"same_tests,omitempty"` // the base's tests are the result's: BaseTests would be Checks
	Compared  []Compared `json:"compared,omitempty"`
	Change    Change     `json:"change"`
	// Screenshots are the pages that verification took pictures of. Absent in
	// older manifests.
	Screenshots []Screenshot `json:"screenshots,omitempty"`
	// Risks are words about what a reviewer should look at twice, written by us
	// around escaped names.
	Risks []string `json:"risks,omitempty"`

	Snapshot      Snapshot    `json:"snapshot"`
	Harness       Harness     `json:"harness"`
	Agent         Agent       `json:"agent"`
	Model         Model       `json:"model,omitzero"` // absent where no model was called by way of us
	Egress        Egress      `json:"egress"`
	Sandbox       Sandbox     `json:"sandbox"`
	Environment   Environment `json:"environment"`
	SpecSource    string      `json:"spec_source"`            // ".inspect.yml" or what it was guessed from
	ContextDigest string      `json:"context_digest"`         // of what the control plane gathered for the agent
	Instructions  string      `json:"instructions,omitempty"` // SHA-256 of the first prompt as the agent got it
	Times         Times       `json:"times"`

	// Events is the record of the session's events when it came to its end or to
	// be published; there are later ones. Absent in older manifests.
	Events Events `json:"events,omitzero"`

	// Approvals are what people were asked to allow, and how they answered.
	Approvals []Approval `json:"approvals,omitempty"`

	// Files are the evidence files by name, each found under its digest.
	Files []File `json:"files"`
}

// Events is a place in the chain of a session's events.
type Events struct {
	Count int64  `json:"count"`
	Head  string `json:"head"` // hash of event Count, hexadecimal
}

// Approval is one thing that people were asked to allow.
type Approval struct {
	Kind   string    `json:"kind"` // "publish", "egress" or "budget"
	Words  string    `json:"words"`
	Digest string    `json:"digest"` // of what was asked
	State  string    `json:"state"`  // "approved", …
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at,omitzero"`
}

// File is one evidence file.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// Change is what the session would add to the base.
type Change struct {
	Files    []ChangedFile `json:"files"`
	Added    int           `json:"added"`              // lines
	Deleted  int           `json:"deleted"`            // lines
	Withheld []string      `json:"withheld,omitempty"` // paths that are not pushed, only in the patch
}

// ChangedFile is one path of a Change. Added and Deleted are -1 for binary files.
type ChangedFile struct {
	Path    string `json:"path"`
	Added   int    `json:"added"`
	Deleted int    `json:"deleted"`
	// Lines are those that are added, first and last of each run, at most
	// MaxRanges.
	Lines [][2]int `json:"lines,omitempty"`
}

// MaxRanges bounds ChangedFile.Lines.
const MaxRanges = 2_000

// Has says whether a line is one that the change adds.
func (f ChangedFile) Has(line int) bool {
	return slices.ContainsFunc(f.Lines, func(r [2]int) bool { return r[0] <= line && line <= r[1] })
}

// Ranges are the runs of lines in a list that rises.
func Ranges(lines []int) (out [][2]int) {
	for _, n := range lines {
		if last := len(out) - 1; last >= 0 && out[last][1] == n-1 {
			out[last][1] = n
		} else if len(out) < MaxRanges {
			out = append(out, [2]int{n, n})
		}
	}
	return out
}

// Snapshot is where the session's clones came from.
type Snapshot struct {
	ID     string        `json:"id"`
	Commit string        `json:"commit"`
	Store  string        `json:"store"`
	Age    time.Duration `json:"age"`   // at restore, nanoseconds
	Drift  bool          `json:"drift"` // the session's base is another commit
	// Behind is how many commits lie between Commit and the session's base. nil:
	// not known, as in older manifests.
	Behind *int `json:"behind,omitempty"`
	// Why it was taken, where that is known, and whether it was older or further
	// behind than the environment's refresh allows.
	Why   string `json:"why,omitempty"`
	Stale bool   `json:"stale,omitempty"`
	Image string `json:"image,omitempty"` // name@sha256:… of its root file system; empty: the node's own programs
	// Lockfiles are the dependency manifests and lock files of the session's base.
	Lockfiles []wire.Lockfile `json:"lockfiles,omitempty"`
	Restore   time.Duration   `json:"restore"` // clone and mount, nanoseconds
}

// Harness is the agent that worked.
type Harness struct {
	Kind  string `json:"kind"`
	Label string `json:"label"`
}

// Agent is what the agent did in all attempts, as its harness told it. A
// harness that tells nothing leaves zeros.
type Agent struct {
	ToolCalls      int64 `json:"tool_calls"`
	Commands       int64 `json:"commands"` // of the tool calls
	FailedCommands int64 `json:"failed_commands"`
	FilesTouched   int64 `json:"files_touched"`
}

// Model is what the model calls of all attempts came to. Money is in billionths
// of a US dollar.
type Model struct {
	Name         string `json:"name"`
	Calls        int64  `json:"calls"`        // whose use the provider reported; the numbers below are of these
	InputTokens  int64  `json:"input_tokens"` // from and to the cache included
	OutputTokens int64  `json:"output_tokens"`
	Cost         int64  `json:"cost"`
	// Unreported are further calls whose use the provider never told, and
	// UnreportedCost what they are counted with against the budget. While a
	// session goes on, the calls going on are among them.
	Unreported     int64  `json:"unreported_calls"`
	UnreportedCost int64  `json:"unreported_cost"`
	Failed         int64  `json:"failed_calls"`   // further calls, which came to nothing
	Unpriced       int64  `json:"unpriced_calls"` // of Calls and Unreported: those without a price
	Priced         bool   `json:"priced"`         // every call had one
	Budget         int64  `json:"budget"`
	PricesAsOf     string `json:"prices_as_of,omitempty"`
}

// MaxRefused bounds Egress.Refused.
const MaxRefused = 200

// Egress is what could be reached from the sandboxes, and what was tried.
type Egress struct {
	// Declared is what the agent and verification could reach, as in the file.
	Declared []string `json:"declared,omitempty"`
	// Setup is what setup alone could reach, because nobody declared it and it
	// was guessed.
	Setup   []string `json:"setup,omitempty"`
	Allowed int64    `json:"allowed"` // connections
	// Bytes that went through the proxy out of the sandboxes and into them, in
	// all attempts.
	Sent     int64 `json:"sent,omitempty"`
	Received int64 `json:"received,omitempty"`
	// Refused are the destinations that were refused, the agent's and
	// verification's first, then by how often.
	Refused []Refused `json:"refused,omitempty"`
	More    int64     `json:"more,omitempty"` // further destinations, beyond MaxRefused
}

// NotListed is the egress proxy's reason for what nobody declared.
const NotListed = wire.EgressNotListed

// Refused is a destination that was refused.
type Refused struct {
	Host    string `json:"host"`
	Port    int    `json:"port"`
	Command string `json:"command,omitempty"` // what asked, as the sandbox says
	Reason  string `json:"reason,omitempty"`  // of one of them
	Count   int64  `json:"count"`
	// Noise: the harness's own doing, not the agent's.
	Noise bool `json:"noise,omitempty"`
	// Verification: asked for by the repository's own commands.
	Verification bool `json:"verification,omitempty"`
}

// Address is the destination as people write it.
func (r Refused) Address() string {
	switch {
	case r.Port == 0:
		return r.Host
	case strings.Contains(r.Host, ":"):
		return fmt.Sprintf("[%s]:%d", r.Host, r.Port)
	}
	return fmt.Sprintf("%s:%d", r.Host, r.Port)
}

// Addable says whether the destination would be reached if it were declared.
func (r Refused) Addable() bool {
	return (r.Reason == "" || r.Reason == NotListed) && spec.EgressProblem(strings.ToLower(r.Address())) == ""
}

// Environment is what was prepared for the session.
type Environment struct {
	Services []string `json:"services,omitempty"`
	Data     string   `json:"data,omitempty"`  // provenance: synthetic, scrubbed or production
	Setup    int      `json:"setup"`           // commands
	Image    string   `json:"image,omitempty"` // of the programs, name@sha256:…; empty: the node's own
}

// Sandbox is where it worked.
type Sandbox struct {
	Tier   string `json:"tier"`
	Limits string `json:"limits"`
}

// Times of the attempt that counts, nanoseconds.
type Times struct {
	Restore       time.Duration `json:"restore"`
	Sync          time.Duration `json:"sync"`
	Ready         time.Duration `json:"ready"` // from the restore's begin until the agent could take its first prompt
	Work          time.Duration `json:"work"`
	VerifyRestore time.Duration `json:"verify_restore"`
	Verify        time.Duration `json:"verify"`
}

// Encode returns the manifest as JSON and its SHA-256 in hexadecimal.
func (m Manifest) Encode() (body []byte, digest string, err error) {
	m.Version = ManifestVersion
	m.Checks, m.Files, m.Change.Files = append([]Check{}, m.Checks...), append([]File{}, m.Files...), append([]ChangedFile{}, m.Change.Files...)
	body, err = json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, "", err
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	return body, hex.EncodeToString(sum[:]), nil
}
