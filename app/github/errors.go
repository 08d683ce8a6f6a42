package github

import (
	"errors"
	"fmt"
	"time"
)

// Errors a caller decides on; test with errors.Is. The error that carries one
// says what was tried and what GitHub answered.
var (
	// ErrNotFound: GitHub answered 404, which is also its way of saying "not
	// for this App". Nothing is gained by repeating.
	ErrNotFound = errors.New("not found on GitHub")
	// ErrDenied: the App may not do this (403), or its credentials were refused.
	ErrDenied = errors.New("GitHub does not allow it")
	// ErrGone: the thing is locked, archived or deleted (410): never repeat.
	ErrGone = errors.New("locked, archived or deleted")
	// ErrMoved: the repository has another name now and asking for it by id did
	// not help. Nothing was written.
	ErrMoved = errors.New("moved")
	// ErrSuspended: the installation is suspended or was removed. Leave it alone
	// until an installation event says otherwise.
	ErrSuspended = errors.New("the installation is suspended or was removed")
	// ErrAmbiguous: a write may or may not have happened. Look for its effect
	// before repeating it.
	ErrAmbiguous = errors.New("it is not known whether this happened")
	// ErrInvalid: GitHub understood and refused the content (400, 422).
	ErrInvalid = errors.New("GitHub refused the content")
	// ErrExists: what was to be created is there already. It is ErrInvalid too.
	ErrExists = fmt.Errorf("it exists already: %w", ErrInvalid)
	// ErrUnavailable: GitHub cannot be reached or is unwell, and nothing was
	// written: try again later.
	ErrUnavailable = errors.New("GitHub is not available")
	// ErrTooLarge: an answer or a file is larger than we read.
	ErrTooLarge = errors.New("too large")
	// ErrForbidden: our own gate refused the request, nothing was sent. It is a
	// mistake in the program, or an attempt to misuse it.
	ErrForbidden = errors.New("not something Inspect ever does")
)

// RateLimited says that GitHub wants no request of this installation before
// Until. Test with errors.As.
type RateLimited struct {
	Until time.Time
}

func (e *RateLimited) Error() string {
	return "GitHub's rate limit: wait until " + e.Until.UTC().Format(time.RFC3339)
}

// RetryAt is when a repetition makes sense.
func (e *RateLimited) RetryAt() time.Time { return e.Until }

// Error is a request that did not succeed. Unwrap leads to one of the errors
// above.
type Error struct {
	Op      string // what was tried, "create a comment on octocat/hello#3"
	Status  int    // HTTP status; 0 if there was no answer
	Message string // GitHub's words, shortened and redacted
	Kind    error  // one of the errors above
	Cause   error  // what lies beneath, or nil
}

func (e *Error) Error() string {
	s := "could not " + e.Op + ": " + e.Kind.Error()
	switch {
	case e.Status != 0 && e.Message != "":
		s += fmt.Sprintf(" (GitHub answered %d: %s)", e.Status, e.Message)
	case e.Status != 0:
		s += fmt.Sprintf(" (GitHub answered %d)", e.Status)
	case e.Cause != nil:
		s += " (" + e.Cause.Error() + ")"
	}
	return s
}

// Unwrap gives the kind and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}
