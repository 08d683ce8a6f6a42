package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// teller writes the story. With JSON it is silent but for the result.
type teller struct {
	w    io.Writer
	json bool
	said bool // the result
}

func newTeller(w io.Writer, json bool) *teller { return &teller{w: w, json: json} }

func (t *teller) line(s string) {
	if !t.json {
		fmt.Fprintln(t.w, s)
	}
}

func (t *teller) blank() { t.line("") }

// step says what begins and returns what says that it is over, with its duration.
func (t *teller) step(what string) (done func(more string)) {
	begun := time.Now()
	t.line("· " + what)
	return func(more string) {
		if more != "" {
			more = "  " + more
		}
		t.line(fmt.Sprintf("  %6.2f s%s", time.Since(begun).Seconds(), more))
	}
}

func (t *teller) heading(s string) { t.line("── " + s) }

func (t *teller) text(s string) {
	for line := range strings.SplitSeq(strings.TrimRight(s, "\n"), "\n") {
		t.line("   " + line)
	}
	t.blank()
}

// result prints the one line of --json.
func (t *teller) result(r Result) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	t.said = true
	_, err = fmt.Fprintf(t.w, "%s\n", body)
	return err
}
