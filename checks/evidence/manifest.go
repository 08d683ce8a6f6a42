// Package evidence turns what the repository's own commands left behind into
// facts: it parses their reports, judges them and describes the whole in a
// Manifest. What comes in was written by code under test and is treated as
// hostile: bounded, never executed, never believed against the exit status.
package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"
)

// ManifestVersion is the version of the format below.
const ManifestVersion = 1

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
	Checks  []Check `json:"checks"`
	Change  Change  `json:"change"`
	// Risks are words about what a reviewer should look at twice, written by us
	// around escaped names.
	Risks []string `json:"risks,omitempty"`

	Snapshot      Snapshot `json:"snapshot"`
	Harness       Harness  `json:"harness"`
	Sandbox       Sandbox  `json:"sandbox"`
	SpecSource    string   `json:"spec_source"`    // ".inspect.yml" or what it was guessed from
	ContextDigest string   `json:"context_digest"` // of what the agent was told
	Times         Times    `json:"times"`

	// Files are the evidence files by name, each found under its digest.
	Files []File `json:"files"`
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
}

// Snapshot is where the session's clones came from.
type Snapshot struct {
	ID      string        `json:"id"`
	Commit  string        `json:"commit"`
	Store   string        `json:"store"`
	Age     time.Duration `json:"age"`     // at restore, nanoseconds
	Drift   bool          `json:"drift"`   // the session's base is another commit
	Restore time.Duration `json:"restore"` // clone and mount, nanoseconds
}

// Harness is the agent that worked.
type Harness struct {
	Kind  string `json:"kind"`
	Label string `json:"label"`
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
	Work          time.Duration `json:"work"`
	VerifyRestore time.Duration `json:"verify_restore"`
	Verify        time.Duration `json:"verify"`
}

// Encode returns the manifest as JSON and its SHA-256 in hexadecimal.
func (m Manifest) Encode() (body []byte, digest string, err error) {
	m.Version = ManifestVersion
	body, err = json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, "", err
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	return body, hex.EncodeToString(sum[:]), nil
}
