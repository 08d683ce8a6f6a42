// Package step is what the step of a pipeline and the control plane say to each
// other: JSON over HTTPS below Path. The step proves itself with the OIDC token of
// its job, the control plane answers with a token that reads the one session that
// was started. Pure: types and their bounds only. Both sides are enemies of each
// other until they are verified.
package step

import "time"

// Path begins every address of this protocol on the listener for hooks.
//
//	POST /buildkite/v1/sessions                Ask -> Answer; 201 started, 200 it was there
//	GET  /buildkite/v1/sessions/{id}?after=N   State; waits up to Wait while it is version N
//	GET  /buildkite/v1/sessions/{id}/evidence  the evidence as a tar
const Path = "/buildkite/v1"

// Wait is the longest that a question for the state is held.
const Wait = 25 * time.Second

// Bounds of an Ask, in bytes.
const (
	MaxAsk    = 256 << 10 // the whole body
	MaxPrompt = 64 << 10
)

// Ask is what a step wants. It says nothing of who asks: that is in the token.
type Ask struct {
	// Repository is "owner/name". Empty means the one that the pipeline is bound to
	// in the operator's policy; with several it is asked for.
	Repository string `json:"repository,omitempty"`
	Prompt     string `json:"prompt,omitempty"`    // the request, in words
	Issue      int    `json:"issue,omitempty"`     // an issue whose text is the request
	FixBuild   bool   `json:"fix_build,omitempty"` // the failures of the token's build are the request
	Base       string `json:"base,omitempty"`      // a branch; empty: the default branch, or the build's where it is fixed
	Harness    string `json:"harness,omitempty"`
	Model      string `json:"model,omitempty"`
	Budget     string `json:"budget,omitempty"`  // US dollars, "2.50"
	Timeout    string `json:"timeout,omitempty"` // Go's way: "30m"
	// Once says how far the same wish is one session: "job" (also if empty), or
	// "build", where a job that is retried asks for the session of its predecessor.
	Once string `json:"once,omitempty"`
}

// Answer names the session that the wish led to.
type Answer struct {
	Session string `json:"session"`
	URL     string `json:"url"`     // its page
	Token   string `json:"token"`   // reads this session until a day after its end; a new one each time
	Started bool   `json:"started"` // false: it was there before
	State   State  `json:"state"`
}

// State is how a session is now.
type State struct {
	Version    int64  `json:"version"` // grows with each change
	State      string `json:"state"`   // the session's state, see the scheduler
	Over       bool   `json:"over"`
	Conclusion string `json:"conclusion,omitempty"` // of its check run, if it is over or waits for a person
	Reason     string `json:"reason,omitempty"`     // the end's reason code
	Words      string `json:"words,omitempty"`      // why it waits, or how it ended; one line
	Title      string `json:"title,omitempty"`      // the check run's
	Summary    string `json:"summary,omitempty"`    // the check run's, Markdown
	Branch     string `json:"branch,omitempty"`
	SHA        string `json:"sha,omitempty"` // what was pushed
	Pull       string `json:"pull,omitempty"`
	CheckRun   string `json:"check_run,omitempty"`
}

// Refusal is the body of every answer that is not 2xx.
type Refusal struct {
	Error string `json:"error"`
}
