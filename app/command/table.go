package command

import (
	"fmt"
	"strings"
)

// Trigger is the word every command starts with.
const Trigger = "/inspect"

// Names of the commands. Request is the one without a word of its own.
const (
	Request = "request"
	Status  = "status"
	Help    = "help"
	Stop    = "stop"
	Retry   = "retry"
	Approve = "approve"
	Reject  = "reject"
	Allow   = "allow"
	Budget  = "budget"
	Rewind  = "rewind"
	Fork    = "fork"
	Refresh = "refresh"
	Doctor  = "doctor"
)

// Level of permission on the repository that a command needs.
const (
	Read  = "read"
	Write = "write"
)

// Info describes one command. The table of these is the source of the help
// text, of the README's table and of what Parse accepts.
type Info struct {
	Name  string
	Usage string   // without Trigger
	Does  string   // for people, no full stop
	Who   string   // Read or Write
	Arg   ArgKind  // what stands after the name
	Flags []string // names of the flags it takes, without the dashes
}

// ArgKind says what may follow a command's name.
type ArgKind int

// Kinds of arguments.
const (
	NoArg     ArgKind = iota
	FreeText          // the request
	DigestArg         // optional hexadecimal digest
	HostArg           // host or host:port
	USDArg            // amount of dollars
	NumberArg         // a turn's number
)

// Commands returns the table, in the order it is shown.
func Commands() []Info {
	return []Info{
		{Request, "[flags] <request>", "on an issue: starts a session with this request. On a pull request: works on its head. While a session runs there: is given to its agent too; after its end: goes on from its last state", Write, FreeText,
			[]string{"model", "harness", "budget", "timeout", "base", "head", "priority"}},
		{Status, "status", "says how the session stands", Read, NoArg, nil},
		{Help, "help", "shows this table", Read, NoArg, nil},
		{Stop, "stop", "stops the session from any state, keeps the work", Write, NoArg, nil},
		{Retry, "retry", "makes a new attempt from the last bundle of a session that has ended", Write, NoArg, nil},
		{Approve, "approve [digest]", "says yes to what waits for approval", Write, DigestArg, nil},
		{Reject, "reject [digest]", "says no to what waits for approval", Write, DigestArg, nil},
		{Allow, "allow HOST", "asks for a host to be reachable for this session", Write, HostArg, nil},
		{Budget, "budget USD", "asks for a higher budget for this session", Write, USDArg, nil},
		{Rewind, "rewind N", "continues from turn N", Write, NumberArg, nil},
		{Fork, "fork [--harness H]", "starts a second session from the same point", Write, NoArg, []string{"harness"}},
		{Refresh, "refresh", "rebuilds the snapshot now", Write, NoArg, nil},
		{Doctor, "doctor", "checks permissions, rules and snapshot before money is spent", Write, NoArg, nil},
	}
}

// FlagInfo describes one flag of a request.
type FlagInfo struct {
	Name  string // without the dashes
	Value string // placeholder
	Does  string
}

// FlagTable returns the flags in the order they are shown.
func FlagTable() []FlagInfo {
	return []FlagInfo{
		{"timeout", "30m", "ends the agent's work after this time, at most what the repository allows"},
		{"base", "BRANCH", "starts from this branch and opens the pull request against it"},
		{"head", "SHA", "on a pull request: the commit that is meant, which must still be its head; of a fork it must be named"},
		{"model", "NAME", "another model, of those whoever runs Inspect offers"},
		{"harness", "NAME", "another agent program: opencode, codex, claude or command"},
		{"budget", "2.50", "the most this session may spend on model calls, in dollars, at most what the repository allows"},
		{"priority", "10", "goes ahead of sessions with a smaller number in the queue, at most what whoever runs Inspect allows"},
	}
}

// Lookup returns the command of that name.
func Lookup(name string) (Info, bool) {
	for _, c := range Commands() {
		if c.Name == name {
			return c, true
		}
	}
	return Info{}, false
}

// Table is the commands and flags as two Markdown tables, for the README and
// the help reply. No line of it starts with a command.
func Table() string {
	var b strings.Builder
	b.WriteString("| command | does | who |\n|---|---|---|\n")
	for _, c := range Commands() {
		fmt.Fprintf(&b, "| `%s %s` | %s | %s |\n", Trigger, c.Usage, c.Does, c.Who)
	}
	b.WriteString("\n| flag | does |\n|---|---|\n")
	for _, f := range FlagTable() {
		fmt.Fprintf(&b, "| `--%s %s` | %s |\n", f.Name, f.Value, f.Does)
	}
	return b.String()
}
