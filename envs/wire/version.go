package wire

import (
	"fmt"
	"strconv"
)

// A machine and a control plane understand one another if their versions are the
// same or neighbours, whichever is the newer. Each says its own in HeaderVersion
// of what it sends. What makes that work, in either direction:
//
//   - Whoever reads ignores members it does not know, but for a control plane
//     that reads what a machine of its own or an older version says: there an
//     unknown member is a mistake.
//   - Something new in an answer or a directive must be of no harm to who does not
//     know it. What is not, such as a grant's new bound, needs a new verb, kind or
//     path, which is refused where it is not known; the control plane uses it only
//     with nodes whose NodeState says that they do.

// Speaks says whether builds of two versions understand one another.
func Speaks(a, b int) bool {
	return a >= 1 && b >= 1 && a-b <= 1 && b-a <= 1
}

// Misfit says in words why a machine and a control plane of two versions do not
// understand one another, and what to update. It is empty if they do. who is the
// machine's process, as in "the runner".
func Misfit(who string, machine, control int) string {
	if Speaks(machine, control) {
		return ""
	}
	update := "inspect on the node"
	if machine > control {
		update = "the control plane"
	}
	return fmt.Sprintf("%s speaks version %d of the protocol and the control plane version %d: only neighbouring versions understand one another, so update %s",
		who, machine, control, update)
}

// Answered checks the HeaderVersion of a control plane's answer. The error, if it
// is not understood, is an *Error of the code "version". An answer without one is
// of somebody between the two.
func Answered(who, v string) error {
	if v == "" {
		return nil
	}
	control, err := strconv.Atoi(v)
	if err != nil {
		return &Error{Code: "version", Message: fmt.Sprintf("the control plane answered with %.40q as its protocol version, which is no number: is it one?", v)}
	}
	if words := Misfit(who, Version, control); words != "" {
		return &Error{Code: "version", Message: words}
	}
	return nil
}
