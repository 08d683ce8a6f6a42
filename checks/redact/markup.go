package redact

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// zwsp keeps two characters from being read as one thing by GitHub and is not
// seen by people.
const zwsp = "\u200b"

var (
	afterAt    = pattern(`@(\w)`)
	reference  = pattern(`#(\d)`)
	ghDash     = pattern(`(?i)\b(GH)-(\d)`)
	scheme     = pattern(`(?i)\b(https?|ftp|mailto|xmpp)\\:`) // after escaping
	www        = pattern(`(?i)\bwww\.`)
	lineStart  = pattern(`(?m)^([ \t]*)([-+=]|\d+[.)]|/)`)
	indentCode = pattern(`(?m)^(?: {4,}|[ ]{0,3}\t)[ \t]*`)
)

var escaper = strings.NewReplacer(
	"&", "&amp;", "<", "&lt;", ">", "&gt;",
	`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "]", `\]`, "|", `\|`, "~", `\~`, "$", `\$`, ":", `\:`,
)

// Neutralise makes untrusted text harmless inside Markdown on GitHub: it
// renders as the plain text it is. No mention, no reference or closing
// keyword, no link, image, HTML, fence, table, list, emoji or math, and no
// line that reads as a command of ours.
func Neutralise(s string) string {
	s = visible(s, true)
	s = indentCode().ReplaceAllString(s, "")
	s = escaper.Replace(s)
	s = strings.ReplaceAll(s, "#", `\#`)
	s = reference().ReplaceAllString(s, "#"+zwsp+"$1")
	s = afterAt().ReplaceAllString(s, "@"+zwsp+"$1")
	s = ghDash().ReplaceAllString(s, "$1"+zwsp+"-$2")
	s = scheme().ReplaceAllString(s, "$1"+zwsp+":")
	s = www().ReplaceAllString(s, "www"+zwsp+".")
	s = lineStart().ReplaceAllStringFunc(s, func(m string) string {
		rest := strings.TrimLeft(m, " \t")
		pad := m[:len(m)-len(rest)]
		if rest[0] >= '0' && rest[0] <= '9' {
			return pad + rest[:len(rest)-1] + `\` + rest[len(rest)-1:]
		}
		return pad + `\` + rest
	})
	return s
}

// Fence returns s as a code block that nothing in s can end. Text in it is
// shown to the letter; mentions and references in it have no effect.
func Fence(s, info string) string {
	s = strings.TrimRight(visible(s, true), "\n")
	longest, run := 0, 0
	for _, c := range s {
		if c == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	fence := strings.Repeat("`", max(3, longest+1))
	return fence + info + "\n" + s + "\n" + fence
}

// OneLine makes untrusted text fit for a title: one line, nothing invisible,
// no mention, at most maxBytes bytes.
func OneLine(s string, maxBytes int) string {
	s = strings.Join(strings.Fields(visible(s, false)), " ")
	s = afterAt().ReplaceAllString(s, "@"+zwsp+"$1")
	return Cut(s, maxBytes)
}

// Code returns s as one inline code span, whatever backticks are in it.
func Code(s string) string {
	s = strings.Join(strings.Fields(visible(s, false)), " ")
	longest, run := 0, 0
	for _, c := range s {
		if c == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	ticks := strings.Repeat("`", longest+1)
	if longest > 0 || s == "" {
		return ticks + " " + s + " " + ticks
	}
	return ticks + s + ticks
}

// Cell makes Markdown that we wrote fit for a table's cell: one line, its
// pipes escaped (GitHub takes the backslash away even inside code).
func Cell(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\n", " "), "|", `\|`)
}

// visible drops what a person would not see: control characters, terminal
// escapes, bidirectional overrides and other format characters, invalid UTF-8.
func visible(s string, lines bool) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = ansi().ReplaceAllString(s, "")
	var b strings.Builder
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case c == utf8.RuneError && n == 1:
			b.WriteRune('\uFFFD')
		case c == '\n' || c == '\t':
			if lines {
				b.WriteRune(c)
			} else {
				b.WriteByte(' ')
			}
		case c == '\r':
			if lines {
				b.WriteByte('\n')
			} else {
				b.WriteByte(' ')
			}
		case unicode.Is(unicode.Cc, c), unicode.Is(unicode.Cf, c), c == '\u2028', c == '\u2029', unicode.Is(unicode.Co, c):
		default:
			b.WriteRune(c)
		}
		i += n
	}
	return b.String()
}

var ansi = pattern("\x1b(?:\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\-_])")

// Visible is s without terminal escapes, control, format and bidirectional
// characters; lines and tabs stay.
func Visible(s string) string { return visible(s, true) }

// cutNote stands where text was cut.
const cutNote = "…"

// Cut returns at most maxBytes bytes of s, ending on a character, and says
// that it cut. GitHub counts bytes, not characters.
func Cut(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	if maxBytes <= len(cutNote) {
		return ""
	}
	end := maxBytes - len(cutNote)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + cutNote
}

// Tail returns the last lines of s that fit into maxBytes bytes, and says how
// much was left out.
func Tail(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	from := len(s) - maxBytes
	if at := strings.IndexByte(s[from:], '\n'); at >= 0 && at < maxBytes/2 {
		from += at + 1
	}
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	return fmt.Sprintf("[%d bytes before this left out]\n", from) + s[from:]
}
