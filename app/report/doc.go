// Package report tells GitHub how a session stands: the one comment under its
// issue, edited in place, and, where a commit was pushed, the check run on it.
// In comes a session; out go at most three writes, each keyed and looked up
// before it is repeated. What is written is decided by packages comment and
// render; at an end the evidence is kept first, so that the text can say where
// the work is. An issue that is locked or gone gets no comment, and that is
// not an error.
package report
