package command

import (
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of --timeout.
const (
	MinTimeout = time.Minute
	MaxTimeout = 24 * time.Hour
)

const seeHelp = "`" + Trigger + " help` lists the commands."

// parseOne reads what follows one Trigger up to the next command.
func parseOne(after string) Parsed {
	first, more, _ := strings.Cut(after, "\n")
	first = strings.Trim(first, " \t")
	more = trimLines(more)

	if p := named(seen(first), more); p != nil {
		return p
	}
	request, _ := Lookup(Request)
	flags, text, wrong := splitFlags(first, request)
	if wrong != "" {
		return Reply{Words: wrong}
	}
	if text != "" && more != "" {
		_, more, _ = strings.Cut(after, "\n") // with its blank lines
		text += "\n" + strings.TrimRight(more, " \t\n")
	} else if text == "" {
		text = more
	}
	if blank(seen(text)) {
		return Reply{Words: "Say what is to be done: `" + Trigger + " fix the failing test`. " + seeHelp}
	}
	if one := strings.TrimSpace(seen(text)); !strings.ContainsAny(one, " \t\n") {
		if near := nearest(linked.ReplaceAllString(one, "$1")); near != "" {
			return Reply{Words: fmt.Sprintf("Is %s meant to be `%s %s`? Nothing was started. A request needs more than this one word. %s", quote(text), Trigger, near, seeHelp)}
		}
	}
	return Command{Name: Request, Text: text, Flags: flags}
}

var (
	hidden = regexp.MustCompile(`(?s)<!--.*?-->`)
	linked = regexp.MustCompile(`^\[([^\]]*)\]\(.*\)$`)
)

// seen is what a reader sees of a line that is to be a command with a word of its
// own. A request stays as it was written.
func seen(line string) string {
	return html.UnescapeString(hidden.ReplaceAllString(strings.TrimSuffix(line, "\\"), " "))
}

// trimLines takes blank lines off the start and white space off the end.
func trimLines(s string) string {
	s = strings.TrimRight(s, " \t\n")
	for {
		line, rest, found := strings.Cut(s, "\n")
		if strings.Trim(line, " \t") != "" || !found {
			return s
		}
		s = rest
	}
}

// named reads a command that has a word of its own. It returns nil if the line
// is the text of a request: "stop" is a command, "stop the server from
// crashing" is a request.
func named(first, more string) Parsed {
	word, rest, _ := strings.Cut(strings.Trim(strings.Map(plainSpace, first), " "), " ")
	info, ok := Lookup(strings.ToLower(word))
	if !ok || info.Arg == FreeText {
		return nil
	}
	rest = strings.Trim(rest, " ")
	var flags Flags
	if strings.HasPrefix(rest, "--") {
		var wrong string
		flags, rest, wrong = splitFlags(rest, info)
		if wrong != "" {
			return Reply{Words: wrong}
		}
	}
	args := strings.Fields(rest)
	switch {
	case len(args) > 1 && args[0] == Trigger:
		return Reply{Words: "A command needs a line of its own; nothing was done. " + seeHelp}
	case len(args) > 1:
		return nil
	case info.Arg == NoArg && len(args) == 1:
		return Reply{Words: fmt.Sprintf("`%s %s` takes nothing after it, but %s stands there; nothing was done. If this is meant as a request, say it in more words.", Trigger, info.Usage, quote(args[0]))}
	case info.Arg == NoArg:
		return Command{Name: info.Name, Flags: flags}
	case len(args) == 0 && info.Arg == DigestArg:
		return Command{Name: info.Name}
	case len(args) == 0 && more != "" && info.Arg != DigestArg:
		return nil
	case len(args) == 0:
		return Reply{Words: fmt.Sprintf("Something is missing: `%s %s`. Nothing was done.", Trigger, info.Usage)}
	}
	if !argPatterns[info.Arg].MatchString(args[0]) {
		return Reply{Words: fmt.Sprintf("%s is not %s: `%s %s`. Nothing was done.", quote(args[0]), argWords[info.Arg], Trigger, info.Usage)}
	}
	return Command{Name: info.Name, Arg: args[0]}
}

// plainSpace is r with every kind of white space as the usual one: what looks
// like "stop" followed by nothing is that.
func plainSpace(r rune) rune {
	if unicode.IsSpace(r) {
		return ' '
	}
	return r
}

var argPatterns = map[ArgKind]*regexp.Regexp{
	DigestArg: regexp.MustCompile(`^(sha256:)?[0-9a-f]{7,64}$`),
	HostArg:   regexp.MustCompile(`^(\*\.)?[a-zA-Z0-9]([a-zA-Z0-9-]{0,62}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,62}[a-zA-Z0-9])?){1,10}(:[0-9]{1,5})?$`),
	USDArg:    usdPattern,
	NumberArg: regexp.MustCompile(`^[0-9]{1,6}$`),
}

var argWords = map[ArgKind]string{
	DigestArg: "a digest (7 to 64 hexadecimal digits)",
	HostArg:   "a host name",
	USDArg:    "an amount in dollars such as 2.50",
	NumberArg: "a turn's number",
}

var (
	usdPattern     = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,2})?$`)
	modelPattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$`)
	harnessPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	timeoutPattern = regexp.MustCompile(`^([0-9]{1,4}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?$`)
	// Nomad has room for 50 above its usual priority.
	priorityPattern = regexp.MustCompile(`^([1-9]|[1-4][0-9]|50)$`)
	// HeadPattern is a commit as people write it.
	HeadPattern = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
	flagPattern = regexp.MustCompile(`^--[a-zA-Z][a-zA-Z0-9-]*(=|$)`)
)

// splitFlags takes the flags off the start and the end of a line. What is left
// is returned as it was written.
func splitFlags(line string, info Info) (Flags, string, string) {
	var flags Flags
	seen := map[string]bool{}
	rest := line
	if name, ok := dashed(rest); ok && takes(info, name) {
		return flags, "", fmt.Sprintf("A flag begins with two dashes, not with one long one as phones make of them: `--%s`. Nothing was started.", name)
	}
	for strings.HasPrefix(rest, "--") && flagPattern.MatchString(firstWord(rest)) {
		after, wrong := takeFlag(&flags, rest, info, seen)
		if wrong != "" {
			return flags, "", wrong
		}
		rest = strings.TrimLeft(after, " \t")
	}
	tail := trailingFlags(rest)
	text := strings.TrimRight(rest[:tail], " \t")
	for rest = rest[tail:]; rest != ""; rest = strings.TrimLeft(rest, " \t") {
		after, wrong := takeFlag(&flags, rest, info, seen)
		if wrong != "" {
			return flags, "", wrong + " If it belongs to the request, put it in backticks or on the next line."
		}
		rest = after
	}
	return flags, text, ""
}

// dashed is the name of what would be a flag if its dash were two.
func dashed(s string) (string, bool) {
	for _, dash := range []string{"—", "–"} {
		if rest, ok := strings.CutPrefix(firstWord(s), dash); ok {
			name, _, _ := strings.Cut(rest, "=")
			return name, true
		}
	}
	return "", false
}

func firstWord(s string) string {
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		return s[:i]
	}
	return s
}

// takeFlag reads one flag with its value from the start of s.
func takeFlag(flags *Flags, s string, info Info, seen map[string]bool) (rest, wrong string) {
	end := strings.IndexAny(s, " \t=")
	if end < 0 {
		end = len(s)
	}
	name := s[2:end]
	if !takes(info, name) {
		return "", unknownFlag(name, info)
	}
	if seen[name] {
		return "", fmt.Sprintf("`--%s` stands there twice. Nothing was started.", name)
	}
	seen[name] = true
	s = s[end:]
	if strings.HasPrefix(s, "=") {
		s = s[1:]
	} else {
		s = strings.TrimLeft(s, " \t")
	}
	value, rest, ok := shellWord(s)
	if !ok {
		return "", fmt.Sprintf("The value of `--%s` has a quote that is not closed. Nothing was started.", name)
	}
	if wrong := setFlag(flags, name, value); wrong != "" {
		return "", wrong
	}
	return rest, ""
}

func unknownFlag(name string, info Info) string {
	near := nearestFlag(name, info)
	switch {
	case info.Name != Request:
		return fmt.Sprintf("`%s %s` has no flag %s. Nothing was done.", Trigger, info.Name, quote("--"+name))
	case near != "":
		return fmt.Sprintf("There is no flag %s; is `--%s` meant? Nothing was started.", quote("--"+name), near)
	}
	return fmt.Sprintf("There is no flag %s. Nothing was started. %s", quote("--"+name), seeHelp)
}

func takes(info Info, name string) bool {
	for _, f := range info.Flags {
		if f == name {
			return true
		}
	}
	return false
}

func setFlag(flags *Flags, name, value string) (wrong string) {
	bad := func(want string) string {
		if value == "" {
			return fmt.Sprintf("`--%s` needs a value: %s. Nothing was started.", name, want)
		}
		return fmt.Sprintf("%s is no value for `--%s`: expected %s. Nothing was started.", quote(value), name, want)
	}
	switch name {
	case "model":
		if !modelPattern.MatchString(value) {
			return bad("a model's name such as `anthropic/claude-sonnet`")
		}
		flags.Model = value
	case "harness":
		if !harnessPattern.MatchString(value) {
			return bad("a harness's name such as `opencode`")
		}
		flags.Harness = value
	case "budget":
		cents, ok := parseCents(value)
		if !ok {
			return bad("an amount in dollars such as `2.50`")
		}
		flags.Budget = cents
	case "timeout":
		d, err := time.ParseDuration(value)
		if !timeoutPattern.MatchString(value) || err != nil || d < MinTimeout || d > MaxTimeout {
			return bad("a time from `1m` to `24h` such as `30m`")
		}
		flags.Timeout = d
	case "priority":
		if !priorityPattern.MatchString(value) {
			return bad("a number from `1` to `50`")
		}
		flags.Priority, _ = strconv.Atoi(value)
	case "base":
		if !ValidBranch(value) {
			return bad("a branch's name")
		}
		flags.Base = value
	case "head":
		if !HeadPattern.MatchString(value) {
			return bad("a commit, 7 to 40 hexadecimal digits")
		}
		flags.Head = value
	}
	return ""
}

// parseCents reads dollars such as "2.50" as cents; zero is refused.
func parseCents(s string) (int64, bool) {
	if !usdPattern.MatchString(s) {
		return 0, false
	}
	whole, frac, _ := strings.Cut(s, ".")
	for len(frac) < 2 {
		frac += "0"
	}
	n, err := strconv.ParseInt(whole+frac, 10, 64)
	return n, err == nil && n > 0
}

// ValidBranch says whether name may be a branch: git's rules for refs, and no
// leading dash, which a program could take for an option.
func ValidBranch(name string) bool {
	if name == "" || len(name) > 200 || !utf8.ValidString(name) || strings.HasPrefix(name, "-") || name == "@" ||
		strings.HasPrefix(name, "refs/") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return false
	}
	for _, r := range name {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) {
			return false
		}
	}
	for _, part := range strings.Split(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// maxTail is how far from a line's end its flags may begin, in bytes.
const maxTail = 1024

// trailingFlags returns where the flags at the end of a line begin, len(line)
// if there are none. A word that looks like a flag in the middle of a sentence
// is text, and so is one within backticks or quotes.
func trailingFlags(line string) int {
	best := len(line)
	for i := len(line) - 2; i >= max(0, len(line)-maxTail); i-- {
		if line[i] != '-' || !strings.HasPrefix(line[i:], "--") || i > 0 && line[i-1] != ' ' && line[i-1] != '\t' {
			continue
		}
		if !onlyFlags(line[i:]) || strings.Count(line[:i], "`")%2 == 1 {
			continue
		}
		best = i
	}
	return best
}

// onlyFlags says whether s is flags with their values and nothing else. A
// known flag takes the next word; so does one that is nearly known. Any other
// takes none: "add a --verbose flag" is a sentence.
func onlyFlags(s string) bool {
	request, _ := Lookup(Request)
	for s != "" {
		if !flagPattern.MatchString(firstWord(s)) {
			return false
		}
		end := strings.IndexAny(s, " \t=")
		if end < 0 {
			return true
		}
		name := s[2:end]
		if s[end] == '=' || takes(request, name) || nearestFlag(name, request) != "" {
			_, rest, ok := shellWord(strings.TrimLeft(strings.TrimPrefix(s[end:], "="), " \t"))
			if !ok {
				return false
			}
			s = rest
		} else {
			s = s[end:]
		}
		s = strings.TrimLeft(s, " \t")
	}
	return true
}

// shellWord reads one word as a POSIX shell would split it: quotes and
// backslashes join, nothing is expanded. ok is false if a quote stays open.
func shellWord(s string) (word, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t':
			return b.String(), s[i:], true
		case '\'':
			j := strings.IndexByte(s[i+1:], '\'')
			if j < 0 {
				return "", "", false
			}
			b.WriteString(s[i+1 : i+1+j])
			i += j + 1
		case '"':
			closed := false
			for i++; i < len(s); i++ {
				if s[i] == '"' {
					closed = true
					break
				}
				if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("\"\\$`", s[i+1]) >= 0 {
					i++
				}
				b.WriteByte(s[i])
			}
			if !closed {
				return "", "", false
			}
		case '\\':
			if i+1 >= len(s) {
				return "", "", false
			}
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", true
}

// quote shows a short piece of a comment in a reply: in backticks, without
// anything that could end them, cut at 40 characters.
func quote(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n == 40 {
			b.WriteString("…")
			break
		}
		if r == '`' || r < ' ' || r == 0x7f || r >= 0x80 && !isLetter(r) {
			r = '?'
		}
		b.WriteRune(r)
		n++
	}
	return "`" + b.String() + "`"
}
