package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"inspect/scheduler"
	"inspect/storage"
)

func stopCommand() *cobra.Command {
	var d dataFlags
	cmd := &cobra.Command{
		Use:   "stop SESSION",
		Short: "Stop a session and keep its work",
		Long: `Ask for the end of a session, in whatever state it is. What it has done is kept. SESSION is
its id, or the beginning of it. "inspect session logs -f SESSION" shows how it ends.`,
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
			asked, err := scheduler.StopByOperator(cmd.Context(), db, id, operator(), time.Now())
			switch {
			case err != nil:
				return err
			case !asked:
				fmt.Fprintf(cmd.OutOrStdout(), "Session %s is over, or was asked to stop before.\n", id)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "Session %s stops.\n", id)
			}
			return nil
		},
	}
	d.flags(cmd.Flags())
	return withEnvironment(cmd)
}

func retryCommand() *cobra.Command {
	var p pointFlags
	cmd := &cobra.Command{
		Use:   "retry SESSION",
		Short: "Put a session that ended back into the queue, to go on from its last turn",
		Long: `Put a session that ended without a delivery back into the queue, to go on from its last turn
as a new attempt, or from the beginning where nothing is kept. SESSION is its id, or the
beginning of it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			row, err := p.at(cmd.Context(), args[0], func(tx *storage.Tx, at scheduler.Point) (storage.Session, error) {
				return scheduler.Retry(cmd.Context(), tx, at, operator(), time.Now())
			})
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "Session %s is tried again.\n", row.ID)
			}
			return err
		},
	}
	p.dataFlags.flags(cmd.Flags())
	return withEnvironment(cmd)
}
