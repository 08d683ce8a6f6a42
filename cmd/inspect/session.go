package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"inspect/envs/spec"
	"inspect/scheduler"
	"inspect/storage"
)

func sessionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "session", Short: "Look at sessions, stop them, and go on from an earlier turn"}
	cmd.AddCommand(listCommand(), showCommand(), logsCommand(), stopCommand(), retryCommand(), rewindCommand(), forkCommand())
	return cmd
}

// changed is what a command that changes a session prints.
type changed struct {
	Session string `json:"session"`
	State   string `json:"state"`
	Changed bool   `json:"changed"`        // false: there was nothing to change
	Turn    int    `json:"turn,omitempty"` // that it goes on from, where one was named
	From    string `json:"from,omitempty"` // the session that it is a fork of
}

// tell prints words, or the same as JSON.
func (c changed) tell(cmd *cobra.Command, asJSON bool, format string, args ...any) error {
	if asJSON {
		return printJSON(cmd.OutOrStdout(), c)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}

// pointFlags name a turn.
type pointFlags struct {
	dataFlags
	turn, attempt int
	asJSON        bool
}

func (p *pointFlags) flags(cmd *cobra.Command) {
	p.common(cmd)
	cmd.Flags().IntVar(&p.turn, "turn", 0, "number of the turn, counted from 1 in each attempt")
	cmd.Flags().IntVar(&p.attempt, "attempt", 0, "number of the attempt (default: the newest that has the turn)")
}

func (p *pointFlags) common(cmd *cobra.Command) {
	p.dataFlags.flags(cmd.Flags())
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
}

// check refuses what is the number of no turn.
func (p pointFlags) check(cmd *cobra.Command) error {
	if p.turn < 1 && cmd.Flags().Changed("turn") || p.attempt < 1 && cmd.Flags().Changed("attempt") {
		return usagef("--turn and --attempt are counted from 1")
	}
	return nil
}

// at runs do with the turn of a session.
func (p pointFlags) at(ctx context.Context, session string, do func(tx *storage.Tx, at scheduler.Point) (storage.Session, error)) (row storage.Session, err error) {
	db, err := openDatabase(ctx, p.dataFlags)
	if err != nil {
		return row, err
	}
	defer db.Close()
	id, err := sessionNamed(ctx, db.Q(), session)
	if err != nil {
		return row, err
	}
	err = db.InTx(ctx, func(tx *storage.Tx) (err error) {
		row, err = do(tx, scheduler.Point{Session: id, Generation: p.attempt, Turn: p.turn})
		return err
	})
	if err != nil {
		return row, err
	}
	return db.Q().GetSession(ctx, row.ID)
}

const pointHelp = `

Where the clone of that turn's attempt is still there (see keep_failed) on a store that
can fork it (zfs, or dir where files can share their blocks), the work goes on in a copy
of it as it was then. Else the commits of the turn are applied to a new clone of the
environment, which works on every store; what the agent had not committed is not in it.
A dir store whose files cannot share blocks keeps no turns: each would be the whole clone
once more on the disk. inspect env status says what a node's store can.`

func rewindCommand() *cobra.Command {
	var p pointFlags
	cmd := &cobra.Command{
		Use:   "rewind SESSION --turn N",
		Short: "Put a session that ended back into the queue, to go on from the end of a turn",
		Long: `Put a session that ended without a delivery back into the queue, to go on from the end of
one of its turns as a new attempt. SESSION is its id, or the beginning of it.` + pointHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(cmd); err != nil {
				return err
			}
			if p.turn == 0 {
				return usagef("--turn: expected the number of the turn to go on from")
			}
			row, err := p.at(cmd.Context(), args[0], func(tx *storage.Tx, at scheduler.Point) (storage.Session, error) {
				return scheduler.Rewind(cmd.Context(), tx, at, operator(), time.Now())
			})
			if err != nil {
				return err
			}
			return changed{Session: row.ID, State: string(row.State), Changed: true, Turn: p.turn}.tell(cmd, p.asJSON, "Session %s goes on from turn %d.", row.ID, p.turn)
		},
	}
	p.flags(cmd)
	return withEnvironment(cmd)
}

func forkCommand() *cobra.Command {
	var p pointFlags
	var h spec.Harness
	cmd := &cobra.Command{
		Use:   "fork SESSION",
		Short: "Start a second session from the end of a turn",
		Long: `Start a second session from the end of a turn of another one, by default its last, which
stays as it is. SESSION is its id, or the beginning of it.` + pointHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(cmd); err != nil {
				return err
			}
			if h.Kind != "" && !slices.Contains(spec.Harnesses(), h.Kind) {
				return usagef("--harness: expected one of %v", spec.Harnesses())
			}
			from := ""
			row, err := p.at(cmd.Context(), args[0], func(tx *storage.Tx, at scheduler.Point) (storage.Session, error) {
				from = at.Session
				return scheduler.Fork(cmd.Context(), tx, at, h, operator(), time.Now())
			})
			if err != nil {
				return err
			}
			return changed{Session: row.ID, State: string(row.State), Changed: true, Turn: p.turn, From: from}.tell(cmd, p.asJSON, "Session %s was started.", row.ID)
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&h.Kind, "harness", "", "agent that works (default: that of the session)")
	cmd.Flags().StringVar(&h.Model, "model", "", "model it works with (default: that of the session)")
	return withEnvironment(cmd)
}
