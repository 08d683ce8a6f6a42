package evidence

import (
	"bytes"
	"strconv"
	"strings"
)

// readLCOV reads lcov's tracefiles: DA records of the file that SF names.
func readLCOV(name string, body []byte, p *profile) {
	file, open := "", false
	for line := range bytes.Lines(body) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		switch key {
		case "SF":
			if open {
				p.broken("%s has a record without an end", name)
			}
			file, _ = inRepository(value)
			open = true
		case "DA":
			f := strings.Split(value, ",")
			if len(f) < 2 {
				continue
			}
			n, err1 := strconv.Atoi(f[0])
			hits, err2 := strconv.ParseFloat(f[1], 64)
			if err1 == nil && err2 == nil {
				p.mark(file, n, hits > 0)
			}
		case "end_of_record":
			file, open = "", false
		}
	}
	if open {
		p.broken("%s ends in the middle of a record", name)
	}
}
