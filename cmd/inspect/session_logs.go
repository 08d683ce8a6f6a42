package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"inspect/app/web"
	"inspect/checks/redact"
	"inspect/checks/render"
	"inspect/envs/proc"
	"inspect/scheduler"
	"inspect/storage"
)

const (
	logBatch = 1000                   // events read at once
	logLook  = 500 * time.Millisecond // between two looks of -f
)

// errOtherEnd makes the exit status of a session that was followed to another end
// than a delivery.
var errOtherEnd = errors.New("the session ended otherwise")

func logsCommand() *cobra.Command {
	var d dataFlags
	l := logs{clock: proc.System()}
	cmd := &cobra.Command{
		Use:   "logs SESSION",
		Short: "Print what happened in a session, and follow it",
		Long: `Print what happened in a session, in words, and with -f what happens until it has ended.
SESSION is its id, or the beginning of it. On a terminal, -f says in the last line how the session
stands. Exit status with -f: 0 the result was delivered, or
there was nothing to change; 1 the session ended otherwise.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := openDatabase(cmd.Context(), d)
			if err != nil {
				return err
			}
			defer db.Close()
			id, err := sessionNamed(cmd.Context(), db.Q(), args[0])
			if err != nil {
				return err
			}
			l.to = cmd.OutOrStdout()
			if f, ok := l.to.(*os.File); ok && !l.asJSON && term.IsTerminal(int(f.Fd())) {
				l.width = func() int {
					width, _, err := term.GetSize(int(f.Fd()))
					if err != nil {
						return 80
					}
					return width
				}
			}
			return l.print(cmd.Context(), db, id)
		},
	}
	d.flags(cmd.Flags())
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on until the session has ended")
	cmd.Flags().BoolVar(&l.asJSON, "json", false, "print a JSON object for each line")
	return withEnvironment(cmd)
}

type logs struct {
	to             io.Writer
	clock          proc.Clock
	follow, asJSON bool
	// width of the terminal that is written to; nil: it is none, and no line is
	// written that is taken back.
	width func() int
	shown bool // such a line stands there
}

// stands writes how the session stands into the last line, over what stood there.
func (l *logs) stands(row storage.Session) error {
	if l.width == nil || !l.follow {
		return nil
	}
	words := render.StateOf(string(row.State)).Title
	if row.State == scheduler.Queued || row.State == scheduler.Placing {
		words = strings.TrimSuffix(words+": "+redact.OneLine(row.QueueReason, 200), ": ")
	}
	words += fmt.Sprintf(", %s, %s", render.Duration(l.clock.Now().Sub(row.CreatedAt)), render.Count(row.EventsCount, "event", "events"))
	if most := l.width() - 1; len(words) > most { // bytes: at most as wide
		words = redact.Cut(words, max(most-len("…"), 0))
	}
	l.shown = true
	_, err := fmt.Fprint(l.to, "\r\x1b[K"+words)
	return err
}

// clear takes the line back that says how the session stands.
func (l *logs) clear() error {
	if !l.shown {
		return nil
	}
	l.shown = false
	_, err := fmt.Fprint(l.to, "\r\x1b[K")
	return err
}

func (l *logs) print(ctx context.Context, db *storage.DB, id string) (err error) {
	defer func() { err = errors.Join(err, l.clear()) }()
	after := int64(0)
	for {
		// The state first: what belongs to an end is there when it is seen.
		row, err := db.Q().GetSession(ctx, id)
		if err != nil {
			return fmt.Errorf("read session %s: %w", id, err)
		}
		for {
			events, err := db.Q().WebEventsAfter(ctx, storage.WebEventsAfterParams{SessionID: id, After: after, AtMost: logBatch})
			if err != nil {
				return fmt.Errorf("read the events of session %s: %w", id, err)
			}
			if len(events) == 0 {
				break
			}
			after = events[len(events)-1].Seq
			if err := l.clear(); err != nil {
				return err
			}
			if err := l.lines(web.Lines(events)); err != nil {
				return err
			}
		}
		switch over := scheduler.Terminal(row.State) && row.ReportedAt.Valid; {
		case !l.follow, over && (row.State == scheduler.Delivered || row.State == scheduler.NoChange):
			return nil
		case over:
			return fmt.Errorf("%w: %s", errOtherEnd, redact.OneLine(string(row.State)+" "+row.Words, 300))
		}
		if err := l.stands(row); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.clock.After(logLook):
		}
	}
}

func (l *logs) lines(all []web.Line) error {
	for _, line := range all {
		line.Title, line.Detail = redact.Visible(line.Title), redact.Visible(line.Detail)
		if l.asJSON {
			if err := json.NewEncoder(l.to).Encode(line); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintf(l.to, "%s %5d  %s\n", line.At.Format(time.TimeOnly), line.Seq, line.Title); err != nil {
			return err
		}
		if line.Detail == "" {
			continue
		}
		text := strings.TrimRight(line.Detail, "\n")
		if _, err := fmt.Fprintln(l.to, "    "+strings.ReplaceAll(text, "\n", "\n    ")); err != nil {
			return err
		}
	}
	return nil
}
