package scheduler

import (
	"errors"
	"time"

	"inspect/scheduler/audit"
)

// Reason codes a session ends with, besides those of wire.Outcome and those a
// Refusal brings.
const (
	ReasonQueueTimeout      = "queue_timeout"      // no machine became free in time
	ReasonSnapshotRefused   = "snapshot_refused"   // the environment could not be prepared
	ReasonSnapshotMissing   = "snapshot_missing"   // the nodes it was placed on did not have it
	ReasonSync              = "sync"               // the base commit could not be fetched
	ReasonStopped           = "stopped"            // a person asked for it
	ReasonRejected          = "rejected"           // a person said no to what waited for approval
	ReasonApprovalExpired   = "approval_expired"   // nobody answered in time
	ReasonDenied            = "denied"             // the operator's policy allows it no more
	ReasonTimeout           = "timeout"            // the work or the verification took too long
	ReasonAttemptsExhausted = "attempts_exhausted" // every attempt was lost
	ReasonNothingVerified   = "nothing_verified"   // no verify command ran
	ReasonVerifyFailed      = "verify_failed"      // one of them failed
	ReasonNoBundle          = "no_bundle"          // a result was announced and not uploaded
	ReasonBudget            = "budget"             // the model calls used it up
	ReasonPublishTimeout    = "publish_timeout"    // GitHub could not be reached for too long
	ReasonPublishRefused    = "publish_refused"    // GitHub refuses for good
	ReasonSuperseded        = "superseded"         // somebody moved what it works on
	ReasonPullClosed        = "pull_closed"        // the pull request it works on was closed or merged
	ReasonIssueGone         = "issue_gone"         // the issue it works on was deleted or moved to another repository
	ReasonUnreachable       = "unreachable"        // the App does not reach the repository any more
	ReasonArchived          = "archived"           // the repository takes nothing any more
	ReasonPatch             = "patch"              // the verified result is a patch in the evidence, by design
)

// Kinds of events the control plane itself puts into a session's chain. The
// runner's kinds are wire.Event….
const (
	EventCreated = "created"       // what the session was created from, see Create
	EventState   = audit.KindState // {"from","to","reason","words"}
	EventAttempt = "attempt"       // {"generation","node","snapshot","why"}
	EventSecrets = "secrets"       // {"to","node","versions"}: of secrets whose values were given out for the first time in an attempt
	EventStop    = "stop"          // {"who","words"}
	EventAsked   = "asked"         // {"number","author","author_id","comment","text_sha256"}: something besides the first request
	// EventApproval is what became of an approval: {"approval","kind","state",
	// "digest","words","who","who_id","how"}, when it is asked for also "asked" and
	// what it is bound to.
	EventApproval = "approval"
	EventGitHub   = "github" // a write to GitHub: asked for, then answered
	EventBuild    = "build"  // what a build of the pushed commit showed, and the digest of all of it
)

// MaxAttempts is how many attempts one session gets, anew each time it is rewound.
const MaxAttempts = 3

// ErrPermanent is wrapped by errors of Effects that no repetition can change.
var ErrPermanent = errors.New("this cannot succeed by trying again")

// RetryAt may be implemented by errors of Effects that know when a repetition
// makes sense, for example when a rate limit ends.
type RetryAt interface{ RetryAt() time.Time }

// backoff is the wait before the next of n failed tries: 2 s, doubled, at most limit.
func backoff(tries int, limit time.Duration) time.Duration {
	if tries > 20 {
		return limit
	}
	return min(2*time.Second<<max(tries, 0), limit)
}

// retryTime is when to try again after err, the n-th failure in a row.
func retryTime(now time.Time, err error, tries int, limit time.Duration) time.Time {
	at := now.Add(backoff(tries, limit))
	var later RetryAt
	if errors.As(err, &later) {
		// Never trust a date far away: the session's own deadline must stay in reach.
		if t := later.RetryAt(); t.After(at) {
			at = t
		}
		if far := now.Add(15 * time.Minute); at.After(far) {
			at = far
		}
	}
	return at
}
