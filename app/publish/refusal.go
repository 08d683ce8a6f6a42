package publish

import (
	"errors"
	"fmt"
	"time"

	"inspect/app/github"
	"inspect/scheduler"
	"inspect/storage"
)

// Reasons a result is not pushed, besides those of packages policy and
// scheduler.
const (
	ReasonBundle      = "bundle_refused"         // git or we do not accept what the bundle holds
	ReasonUnrelated   = "unrelated_history"      // the result does not descend from the base
	ReasonNotVerified = "not_verified"           // what was verified is not what would be pushed
	ReasonDenied      = "denied"                 // the requester may not write any more
	ReasonGone        = "repository_read_only"   // removed, archived, suspended
	ReasonNotAllowed  = "repository_not_allowed" // the operator lets the repository use Inspect no more
	ReasonRules       = "branch_rules"           // rules of the repository refuse the push
	ReasonPushRefused = "push_refused"           // GitHub refused the push
	ReasonBranchMoved = "branch_moved"           // somebody else pushed to our branch
	ReasonUnsigned    = "unsigned"               // the commit has to be signed, and cannot be
	ReasonTerms       = "configuration_unusable" // what the repository says now cannot be read
	ReasonUnprotected = "unprotected"            // the App could push to the default branch, and must not be able to
	ReasonPullRefused = "pull_request_refused"   // GitHub refused the pull request
)

// refusal is an error that ends the session: the same input will be refused
// again. Words are plain text for people.
type refusal struct {
	State  storage.SessionState
	Reason string
	Words  string
}

func (r *refusal) Error() string { return r.Words }

// refuse makes a refusal with the state failed. With ReasonBundle the words
// complete a sentence about the bundle.
func refuse(reason, format string, args ...any) error {
	words := fmt.Sprintf(format, args...)
	if reason == ReasonBundle {
		words = "The result's bundle was refused: " + words + "."
	}
	return &refusal{State: scheduler.Failed, Reason: reason, Words: words}
}

// settle turns what came of publishing into what the scheduler is told.
// Errors that a repetition can cure are passed on.
func settle(err error) (scheduler.Published, error) {
	var r *refusal
	var q *question
	switch {
	case errors.As(err, &q):
		return scheduler.Published{Ask: &q.Ask}, nil
	case errors.As(err, &r):
	case errors.Is(err, github.ErrGone):
		r = &refusal{scheduler.Failed, ReasonGone, "The repository is archived or deleted; the work is kept, but cannot be pushed."}
	case errors.Is(err, github.ErrSuspended):
		r = &refusal{scheduler.Failed, ReasonGone, "The App's installation is suspended or was removed; the work is kept, but cannot be pushed."}
	case errors.Is(err, github.ErrNotFound):
		r = &refusal{scheduler.Failed, ReasonGone, "GitHub does not show the repository to the App any more; the work is kept, but cannot be pushed."}
	case errors.Is(err, github.ErrDenied):
		r = &refusal{scheduler.Failed, ReasonPushRefused, "GitHub does not let the App do this: " + sentence(said(err))}
	default:
		return scheduler.Published{}, Again(err)
	}
	return scheduler.Published{Refusal: &scheduler.Refusal{State: r.State, Reason: r.Reason, Words: r.Words}}, nil
}

// Again tells the scheduler when a failed effect is worth another try, where
// GitHub said when, and that it is not, where our own gate refused it.
func Again(err error) error {
	var limited *github.RateLimited
	switch {
	case err == nil:
		return nil
	case errors.As(err, &limited):
		return &later{err, limited.Until}
	case errors.Is(err, github.ErrForbidden):
		return fmt.Errorf("%w: %w", scheduler.ErrPermanent, err)
	}
	return err
}

type later struct {
	error
	at time.Time
}

func (l *later) RetryAt() time.Time { return l.at }
func (l *later) Unwrap() error      { return l.error }
