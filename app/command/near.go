package command

import (
	"strings"
	"unicode"
)

// nearest returns the command within two edits of word, or "". Marks around the
// word do not count.
func nearest(word string) string {
	best, distance := "", 3
	word = strings.TrimFunc(word, func(r rune) bool { return !isLetter(r) })
	for _, c := range Commands() {
		if c.Arg == FreeText {
			continue
		}
		if d := edits(strings.ToLower(word), c.Name); d < distance {
			best, distance = c.Name, d
		}
	}
	return best
}

// nearestFlag returns the flag of info within two edits of name, or "".
func nearestFlag(name string, info Info) string {
	best, distance := "", 3
	for _, f := range info.Flags {
		if d := edits(strings.ToLower(name), f); d < distance {
			best, distance = f, d
		}
	}
	return best
}

// edits counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b. Words that differ in length by more than two
// are three apart at least, which is all a caller asks.
func edits(a, b string) int {
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

func isLetter(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// blank says whether nothing of s can be seen.
func blank(s string) bool {
	for _, r := range s {
		if unicode.IsGraphic(r) && !unicode.IsSpace(r) {
			return false
		}
	}
	return true
}
