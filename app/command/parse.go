package command

import (
	"strings"
	"time"
)

// MaxCommands is how many commands one comment may hold. With more, none is obeyed.
const MaxCommands = 5

// MaxBytes bounds a comment before it is parsed. GitHub allows 65,536
// characters; no UTF-8 character is longer than four bytes.
const MaxBytes = 4 * 65536

// Parsed is what a comment asks for: a Command, a Reply or Ignore.
type Parsed interface{ parsed() }

// Command is a well-formed command.
type Command struct {
	Index int    // position among the comment's commands, from 0
	Line  int    // line of the comment, from 1
	Name  string // Request, Status, ...
	Arg   string // digest, host, dollars or number, as written; checked
	Text  string // raw text of a request, trimmed; line ends are \n
	Flags Flags
}

// Flags of a command. Zero values mean "not given".
type Flags struct {
	Model   string
	Harness string
	Budget  int64         // cents
	Timeout time.Duration // between MinTimeout and MaxTimeout
	Base    string        // branch name, fit for a ref
	Head    string        // of a pull request: 7 to 40 hexadecimal digits of the commit meant
	// Priority in the queue; 0 is usual.
	Priority int
}

// Reply is an attempt at a command that cannot be obeyed. Nothing of its
// comment is to be done.
type Reply struct {
	Index int
	Line  int
	Words string // Markdown for the author; quotes at most short, harmless pieces of the comment
}

// Ignore says that the comment holds no command at all.
type Ignore struct{}

func (Command) parsed() {}
func (Reply) parsed()   {}
func (Ignore) parsed()  {}

// Parse reads a comment. The result is never empty and never mixed: one
// Ignore, or one to MaxCommands Commands in order, or the Replies to whatever
// is wrong, in which case nothing of the comment is obeyed.
func Parse(body string) []Parsed {
	if len(body) > MaxBytes || !strings.Contains(body, Trigger) {
		return []Parsed{Ignore{}}
	}
	src := normalise(body)
	cand := candidates(src)
	if len(cand) == 0 {
		return []Parsed{Ignore{}}
	}
	if tooTangled(src) {
		return []Parsed{Reply{Line: lineOf(src, cand[0]), Words: "This comment has too much markup to be read for commands. Put the command into a comment of its own."}}
	}
	at := visible(src, cand)
	if len(at) == 0 {
		return []Parsed{Ignore{}}
	}
	if len(at) > MaxCommands {
		return []Parsed{Reply{Line: lineOf(src, at[0]), Words: "A comment may hold at most five commands; nothing of this one was done."}}
	}
	var commands, replies []Parsed
	for i, start := range at {
		end := len(src)
		if i+1 < len(at) {
			end = lineStart(src, at[i+1])
		}
		switch p := parseOne(src[start+len(Trigger) : end]).(type) {
		case Command:
			p.Index, p.Line = i, lineOf(src, start)
			commands = append(commands, p)
		case Reply:
			p.Index, p.Line = i, lineOf(src, start)
			replies = append(replies, p)
		}
	}
	if len(replies) > 0 {
		return replies
	}
	return commands
}

// normalise makes every line end \n and the text valid UTF-8 without NUL.
func normalise(body string) string {
	s := strings.ToValidUTF8(body, "\uFFFD")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

// candidates returns the offsets of every Trigger that is the first text of a
// line and ends at a word boundary. Only spaces and tabs may stand before it,
// only a space, a tab or the line's end after it.
func candidates(src string) []int {
	var at []int
	for start := 0; start < len(src); {
		line := src[start:]
		if i := strings.IndexByte(line, '\n'); i >= 0 {
			line = line[:i]
		}
		text := strings.TrimLeft(line, " \t")
		if rest, ok := strings.CutPrefix(text, Trigger); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
			at = append(at, start+len(line)-len(text))
		}
		start += len(line) + 1
	}
	return at
}

func lineStart(src string, at int) int { return strings.LastIndexByte(src[:at], '\n') + 1 }

func lineOf(src string, at int) int { return 1 + strings.Count(src[:at], "\n") }
