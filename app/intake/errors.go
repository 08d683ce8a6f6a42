package intake

import (
	"context"
	"errors"
	"time"

	"inspect/app/github"
)

// retry carries the time before which nothing is to be tried.
type retry struct {
	at  time.Time
	err error
}

func (r *retry) Error() string      { return r.err.Error() }
func (r *retry) Unwrap() error      { return r.err }
func (r *retry) RetryAt() time.Time { return r.at }

// later tells the scheduler when GitHub wants to be asked again, if err says so.
func later(err error) error {
	var limited *github.RateLimited
	if errors.As(err, &limited) {
		return &retry{limited.Until, err}
	}
	return err
}

// final says whether err is GitHub's last word: asking again gives the same.
// What is not known to be final may pass.
func final(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	for _, kind := range []error{
		github.ErrNotFound, github.ErrDenied, github.ErrGone, github.ErrMoved, github.ErrSuspended,
		github.ErrInvalid, github.ErrTooLarge, github.ErrForbidden,
	} {
		if errors.Is(err, kind) {
			var limited *github.RateLimited
			return !errors.As(err, &limited)
		}
	}
	return false
}
