package try

import (
	"errors"
	"fmt"
	"os/exec"
)

// Exit statuses besides 0: delivered.
const (
	ExitOther       = 1   // it ended in another way, or something of ours failed
	ExitUsage       = 2   // flags, files, the repository: a person can put it right
	ExitSetup       = 3   // something is missing on this machine; the message has the line to run
	ExitInterrupted = 130 // Ctrl-C; what there was of the work is kept
)

// Error ends a try with an exit status. An empty message was told already.
type Error struct {
	Status int
	Words  string
}

func (e *Error) Error() string { return e.Words }

// ExitCode is the status.
func (e *Error) ExitCode() int { return e.Status }

// Usagef is an error of something that a person can put right.
func Usagef(format string, args ...any) error {
	return &Error{ExitUsage, fmt.Sprintf(format, args...)}
}

// Setup is the error of something that is missing on this machine.
func Setup(words string) error { return &Error{ExitSetup, words} }

// coded says whether an error has its exit status. That of a program we ran
// is not ours.
func coded(err error) bool {
	var c interface{ ExitCode() int }
	if !errors.As(err, &c) {
		return false
	}
	_, program := c.(*exec.ExitError)
	return !program
}
