package buildkite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// What an *Error may be, for errors.Is.
var (
	ErrNotFound  = errors.New("not there, or not for this token")
	ErrForbidden = errors.New("not allowed")
	// ErrUncertain is of a build that was asked for when nobody knows whether
	// Buildkite made it: look for it by its commit before you ask again.
	ErrUncertain = errors.New("it may have been done")
	// ErrBusy is of an answer that comes when it is asked for later.
	ErrBusy = errors.New("no answer of Buildkite at the moment")
)

// Error is why Buildkite did not do what was asked.
type Error struct {
	What       string        // what was asked for, in words
	Status     int           // HTTP's; 0 where no answer came
	Words      string        // why, one line
	RetryAfter time.Duration // what Buildkite asks for; 0 if nothing
	Uncertain  bool          // it may have been done all the same
	cause      error         // the context's or the token's, if it was that
}

func (e *Error) Error() string {
	s := "Buildkite: " + e.What + ": " + e.Words
	if e.Uncertain {
		s += "; it may have been done all the same"
	}
	return s
}

// Unwrap is the context's cause or the error of the token, if it was that.
func (e *Error) Unwrap() error { return e.cause }

// Is tells the kinds of errors apart.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrForbidden:
		return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
	case ErrUncertain:
		return e.Uncertain
	case ErrBusy:
		return e.temporary()
	}
	return false
}

// temporary says whether asking later may help.
func (e *Error) temporary() bool {
	return e.cause == nil && (e.Status == 0 || e.Status == http.StatusTooManyRequests || e.Status == http.StatusRequestTimeout || e.Status >= 500) && e.Words != tooLarge
}

var tooLarge = fmt.Sprintf("the answer is larger than %d MiB", maxAnswer>>20)

// explain is what went wrong, in words; no address and no header is in them.
func explain(ctx context.Context, k call, err error) *Error {
	e := &Error{What: k.what}
	var st *status
	var none *noToken
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &st):
		e.Status, e.RetryAfter = st.code, st.after
		e.Words = statusWords(k, st)
	case errors.As(err, &none):
		e.cause, e.Words = none, "there is no access token: "+none.Error()
	case ctx.Err() != nil:
		e.cause, e.Words = context.Cause(ctx), "it was given up"
	case errors.Is(err, errTooLarge):
		e.Words = tooLarge
	case errors.As(err, &dns):
		e.Words = "the host " + dns.Name + " has no address"
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Words = "no answer in time"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		e.Words = "the answer broke off"
	default:
		var of *url.Error
		if errors.As(err, &of) {
			err = of.Err // without the address
		}
		e.Words = "no answer that can be read: " + oneLine(err.Error())
	}
	return e
}

func statusWords(k call, st *status) string {
	said := ""
	if st.words != "" {
		said = " (" + st.words + ")"
	}
	switch {
	case st.code == http.StatusUnauthorized:
		return "the API access token is not accepted" + said + ": it may have expired or be revoked"
	case st.code == http.StatusForbidden:
		return "the API access token may not do this" + said + ": it needs the scope " + k.scope + " and access to the organization, also from this machine's address"
	case st.code == http.StatusNotFound:
		return "there is no such thing, or the API access token may not see it" + said + ": look at the slugs and at the token's scope " + k.scope
	case st.code == http.StatusTooManyRequests:
		return "too many requests of the organization in this minute" + said
	case st.code >= 500:
		return fmt.Sprintf("Buildkite has a fault (status %d)%s", st.code, said)
	case st.code >= 300 && st.code < 400:
		return fmt.Sprintf("the API sends us elsewhere (status %d), which is not followed", st.code)
	}
	return fmt.Sprintf("refused with status %d%s", st.code, said)
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}
