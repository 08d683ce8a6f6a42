package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect/app/web"
	"inspect/checks/redact"
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
SESSION is its id, or the beginning of it. Exit status with -f: 0 the result was delivered, or
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
}

func (l *logs) print(ctx context.Context, db *storage.DB, id string) error {
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
