package buildkite

import (
	"strings"

	"inspect/checks/redact"
)

// Strip is a raw log as a person reads it: without terminal sequences, without
// the timestamps that the agent writes between them ("ESC _bk;t=… BEL"), without
// control characters and what only steers the direction of text. Of a line that
// was overwritten the last state stays. Where the log was cut in front, the rest
// of the line that was cut goes, too: half a sequence may stand there.
func Strip(raw string, cutInFront bool) string {
	if cutInFront {
		if _, rest, ok := strings.Cut(raw, "\n"); ok {
			raw = rest
		}
	}
	text := sequences(raw)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		line = strings.TrimRight(line, "\r")
		lines[i] = line[strings.LastIndexByte(line, '\r')+1:]
	}
	return redact.Visible(strings.Join(lines, "\n"))
}

// sequences takes out what begins with an escape. A sequence that does not end
// ends with its line, so that it hides nothing of the lines below.
func sequences(s string) string {
	if !strings.ContainsRune(s, '\x1b') {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		next := strings.IndexByte(s[i:], '\x1b')
		if next < 0 {
			b.WriteString(s[i:])
			break
		}
		b.WriteString(s[i : i+next])
		i = sequence(s, i+next+1)
	}
	return b.String()
}

// sequence is where the sequence ends whose escape stands before i.
func sequence(s string, i int) int {
	if i >= len(s) {
		return i
	}
	switch c := s[i]; c {
	case '[': // parameters, then one letter
		for i++; i < len(s); i++ {
			switch {
			case s[i] >= 0x40 && s[i] <= 0x7e:
				return i + 1
			case s[i] < 0x20 || s[i] > 0x3f:
				return i // not a parameter: the sequence is broken
			}
		}
		return i
	case ']', '_', 'P', '^', 'X': // a text that ends with BEL or ESC \
		for i++; i < len(s); i++ {
			switch s[i] {
			case '\a':
				return i + 1
			case '\n':
				return i
			case '\x1b':
				if i+1 < len(s) && s[i+1] == '\\' {
					return i + 2
				}
				return i
			}
		}
		return i
	default:
		for i < len(s) && s[i] >= 0x20 && s[i] <= 0x2f {
			i++
		}
		if i < len(s) && s[i] >= 0x30 && s[i] <= 0x7e {
			i++
		}
		return i
	}
}
